/* What the child table is asked by: hashes that differ where pages do, and pages that have one hash
 * all the same, which only a comparison of the pages tells apart. */
#include "expect.h"
#include "tree.h"

#include <stdlib.h>

#define MANY 262144u /* pages of which some pairs have one hash of 32 bits: about eight */
#define FEW 1000u

typedef struct seen {
    uint32_t hash;
    uint32_t page;
} seen;

static int by_hash(const void *a, const void *b) {
    const seen *x = a;
    const seen *y = b;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

static rdx_tree *make_tree(uint32_t width, uint64_t seed, rdx_handle *root) {
    rdx_tree_config config = {.page_bytes = width, .groups = 1, .tiers = 1, .seed = seed};
    rdx_tree *t;
    EXPECT(rdx_tree_new(&config, NULL, &t) == RDX_OK);
    EXPECT(rdx_root_new(t, NULL, root) == RDX_OK);
    return t;
}

/* The first root is node 0, and the default seed 0. */
static void test_short_pages_are_spread_under_the_first_root(uint64_t seed) {
    rdx_handle root;
    rdx_tree *t = make_tree(4, seed, &root);
    static seen all[FEW];
    for (uint32_t page = 0; page < FEW; page++)
        all[page] = (seen){rdx_page_hash(t, (uint32_t)root, &page), page};
    qsort(all, FEW, sizeof *all, by_hash);
    uint32_t alike = 0;
    for (uint32_t k = 1; k < FEW; k++)
        alike += all[k].hash == all[k - 1].hash;
    EXPECT(alike < 3);
    rdx_tree_free(t);
}

static void insert(rdx_tree *t, rdx_handle root, const uint32_t *run, uint32_t n) {
    uint32_t column = 0;
    int32_t slots[4] = {0, 1, 2, 3};
    rdx_insert made;
    EXPECT(rdx_tree_insert(t, (rdx_cursor){root, root, 0}, run, n, &column, 1, slots, NULL, 0,
                           &made) == RDX_OK);
}

static uint32_t found(const rdx_tree *t, rdx_handle root, const uint32_t *run, uint32_t n) {
    const void *pages[1] = {run};
    rdx_match one;
    rdx_match many;
    EXPECT(rdx_tree_match(t, root, run, n, n, 1, &one) == RDX_OK);
    EXPECT(rdx_tree_match_many(t, 1, &root, pages, &n, &n, 1, &many) == RDX_OK);
    EXPECT(one.structural.node == many.structural.node && one.stop == many.stop);
    EXPECT(one.structural.pages == many.structural.pages && one.hit_pages == many.hit_pages);
    return one.hit_pages;
}

/* Pages a and b have one hash under the root. */
static void test_two_children_of_one_hash(uint64_t seed, uint32_t a, uint32_t b) {
    char what[256];
    uint32_t under_a[] = {a, 1, 2};
    uint32_t under_b[] = {b, 1, 3};
    uint32_t both[] = {a, 1};
    rdx_handle root;
    rdx_tree *t = make_tree(4, seed, &root);
    insert(t, root, under_a, 3);
    EXPECT(found(t, root, under_b, 3) == 0); /* nothing but the hash is there */
    insert(t, root, under_b, 3);
    insert(t, root, both, 2); /* a split: each edge has one that follows it now */
    EXPECT(found(t, root, under_a, 3) == 3);
    EXPECT(found(t, root, under_b, 3) == 3);
    under_a[2] = under_b[1] = 9;
    EXPECT(found(t, root, under_a, 3) == 2);
    EXPECT(found(t, root, under_b, 3) == 1);
    EXPECT(rdx_check(t, 1, what, sizeof what) == RDX_OK);
    rdx_tree_free(t);
}

int main(void) {
    static seen all[MANY];
    uint32_t pairs = 0;
    for (uint64_t seed = 0; seed < 3; seed++) {
        rdx_handle root;
        test_short_pages_are_spread_under_the_first_root(seed);
        rdx_tree *t = make_tree(4, seed, &root);
        for (uint32_t page = 0; page < MANY; page++)
            all[page] = (seen){rdx_page_hash(t, (uint32_t)root, &page), page};
        rdx_tree_free(t);
        qsort(all, MANY, sizeof *all, by_hash);
        for (uint32_t k = 1; k < MANY; k++) {
            if (all[k].hash == all[k - 1].hash) {
                test_two_children_of_one_hash(seed, all[k - 1].page, all[k].page);
                test_two_children_of_one_hash(seed, all[k].page, all[k - 1].page);
                pairs++;
            }
        }
    }
    EXPECT(pairs > 3 && pairs < 300);
    return 0;
}
