/* Every allocation of the tree fails once, at every k of one scenario: the call says so, leaves
 * everything that can be asked as it was, and works at the next try. */
#include "alloc.h"
#include "expect.h"
#include "rdx.h"

#include <stdbool.h>
#include <string.h>

#define PAGES 40
#define KEY_BYTES 16
#define MOST_NODES 512
#define COLUMNS 2

typedef struct picture {
    rdx_tree_stats stats;
    rdx_column_stats columns[COLUMNS];
    uint32_t nodes;
    rdx_node_view views[MOST_NODES];
    uint32_t bounds[MOST_NODES][COLUMNS][2];
    uint32_t listed[COLUMNS];
    rdx_handle order[COLUMNS][MOST_NODES];
    int32_t slots[MOST_NODES][COLUMNS][PAGES];
    uint8_t keys[MOST_NODES][PAGES * KEY_BYTES];
} picture;

typedef struct world {
    rdx_tree *tree;
    rdx_handle root;
    uint64_t failures;
} world;

static void take_picture(const world *w, picture *p) {
    memset(p, 0, sizeof *p);
    rdx_tree_get_stats(w->tree, &p->stats);
    p->stats.bytes = 0; /* room in hand may grow */
    EXPECT_EQ(rdx_tree_nodes(w->tree, w->root, p->views, MOST_NODES, &p->nodes), RDX_OK);
    EXPECT(p->nodes < MOST_NODES);
    for (uint32_t c = 0; c < COLUMNS; c++) {
        rdx_column_get_stats(w->tree, c, &p->columns[c]);
        EXPECT_EQ(rdx_order_nodes(w->tree, c, p->order[c], MOST_NODES, &p->listed[c]), RDX_OK);
        for (uint32_t i = 1; i < p->nodes; i++) {
            const rdx_node_view *v = &p->views[i];
            rdx_cursor end = {v->node, w->root, v->start + v->pages};
            EXPECT(v->pages <= PAGES);
            EXPECT_EQ(rdx_slots_get(w->tree, end, c, v->start, v->pages, p->slots[i][c]), RDX_OK);
            EXPECT_EQ(rdx_keys_get(w->tree, end, v->start, v->pages, p->keys[i]), RDX_OK);
            EXPECT_EQ(
                rdx_node_interval(w->tree, v->node, c, &p->bounds[i][c][0], &p->bounds[i][c][1]),
                RDX_OK);
        }
    }
    char what[256];
    if (rdx_check(w->tree, 1, what, sizeof what) != RDX_OK) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* Runs `call` with the first, second, ... allocation failing until it goes through. */
#define THROUGH(w, call)                                                                           \
    do {                                                                                           \
        static picture before, after;                                                              \
        for (uint64_t nth = 1;; nth++) {                                                           \
            take_picture(w, &before);                                                              \
            rdx_alloc_fail_at(nth);                                                                \
            int status_now = (call);                                                               \
            rdx_alloc_fail_at(0);                                                                  \
            if (status_now == RDX_OK)                                                              \
                break;                                                                             \
            EXPECT_EQ(status_now, RDX_ENOMEM);                                                     \
            take_picture(w, &after);                                                               \
            EXPECT(memcmp(&before, &after, sizeof before) == 0);                                   \
            (w)->failures++;                                                                       \
        }                                                                                          \
    } while (0)

static rdx_cursor find(const world *w, const int32_t *run, uint32_t n) {
    rdx_match m;
    EXPECT_EQ(rdx_tree_match(w->tree, w->root, run, n, n, 3, &m), RDX_OK);
    return m.structural;
}

static void fill(int32_t *run, int32_t seed, uint32_t shared) {
    for (uint32_t i = 0; i < PAGES; i++)
        run[i] = i < shared ? (int32_t)i : seed * 1000 + (int32_t)i;
}

/* Prompts that share prefixes, leased, grown, split, copied down, dropped and evicted. */
static void scenario(world *w) {
    int32_t run[PAGES], slots[2 * PAGES], canonical[2 * PAGES], gone[PAGES];
    const uint32_t both[] = {0, 1};
    uint64_t leases[20];
    rdx_insert result;
    for (int32_t i = 0; i < 2 * PAGES; i++)
        slots[i] = i;
    for (int32_t k = 0; k < 20; k++) {
        fill(run, k, (uint32_t)(k * 7 % PAGES));
        rdx_cursor at = find(w, run, PAGES / 2), end;
        THROUGH(w, rdx_lease_take(w->tree, at, RDX_EVERY_GROUP, RDX_BY_RULE, &leases[k], &end));
        THROUGH(w, rdx_tree_insert(w->tree, end, run + end.pages, PAGES / 2 - end.pages, both, 2,
                                   slots, canonical, leases[k], &result));
        THROUGH(w, rdx_tree_insert(w->tree, result.end, run + PAGES / 2, PAGES / 2, both, 1, slots,
                                   NULL, leases[k], &result));
        rdx_cursor middle = {result.end.node, w->root, PAGES / 2 + 3};
        uint32_t pages;
        if (k % 3 == 0)
            THROUGH(w, rdx_lease_move(w->tree, leases[k], middle, &pages));
        int32_t slot;
        if (k % 4 == 1)
            THROUGH(w, rdx_slots_drop(w->tree, find(w, run, PAGES), 1, (uint32_t)k, &slot));
    }
    uint32_t freed;
    for (int32_t k = 0; k < 20; k++) {
        EXPECT_EQ(rdx_lease_release(w->tree, leases[k], k % 2), RDX_OK);
        EXPECT_EQ(rdx_evict(w->tree, (uint32_t)k % 2, 17, UINT64_MAX, gone, NULL, &freed), RDX_OK);
    }
}

static int new_world(world *w) {
    rdx_tree_config config = {
        .page_bytes = 4, .check_ids = 1, .groups = 1, .tiers = 2, .key_bytes = KEY_BYTES};
    int status = rdx_tree_new(&config, NULL, &w->tree);
    EXPECT(status == RDX_OK || w->tree == NULL);
    return status;
}

/* The second column is of a group with gaps between its blocks: each may split an edge. */
static void scenario_with_gaps(world *w) {
    int32_t run[PAGES], slots[2 * PAGES], canonical[2 * PAGES], gone[PAGES];
    const uint32_t both[] = {0, 1};
    uint64_t leases[20];
    rdx_insert result;
    for (int32_t k = 0; k < 20; k++) {
        fill(run, k, (uint32_t)(k * 7 % PAGES));
        for (int32_t i = 0; i < 2 * PAGES; i++)
            slots[i] = i < PAGES || (i * (k + 3)) % 5 < 2 ? i : RDX_NO_SLOT;
        rdx_cursor root = {w->root, w->root, 0}, end;
        THROUGH(w, rdx_lease_take(w->tree, root, RDX_EVERY_GROUP, RDX_BY_RULE, &leases[k], &end));
        THROUGH(w, rdx_tree_insert(w->tree, end, run, PAGES, both, 2, slots, canonical, leases[k],
                                   &result));
        uint32_t attached, pages, freed;
        rdx_cursor middle = {result.end.node, w->root, PAGES / 2 + 3};
        for (int32_t i = 0; i < PAGES; i++)
            slots[i] = (i + k) % 4 == 1 ? 100 + i : RDX_NO_SLOT;
        THROUGH(w, rdx_slots_attach(w->tree, result.end, 1, 2, PAGES - 2, slots, canonical, 0,
                                    &attached));
        THROUGH(w, rdx_slots_drop_span(w->tree, result.end, 1, (uint32_t)k, 9, gone));
        THROUGH(w, rdx_forget(w->tree, result.end, PAGES / 2, 1, gone, NULL, &freed));
        int32_t slot;
        THROUGH(w, rdx_slots_drop(w->tree, result.end, 1, (uint32_t)k + 1, &slot));
        if (k % 3 == 0)
            THROUGH(w, rdx_lease_move(w->tree, leases[k], middle, &pages));
        EXPECT_EQ(rdx_lease_narrow(w->tree, leases[k], k % 2 ? RDX_EVERY_GROUP : 0), RDX_OK);
    }
    uint32_t freed;
    for (int32_t k = 0; k < 20; k++) {
        EXPECT_EQ(rdx_lease_release(w->tree, leases[k], k % 2), RDX_OK);
        EXPECT_EQ(rdx_evict(w->tree, (uint32_t)k % 2, 17, UINT64_MAX, gone, NULL, &freed), RDX_OK);
    }
}

static void test_groups_with_gaps_at_every_allocation(void) {
    const rdx_group seconds[] = {{RDX_RULE_WINDOW, 1, 5, 0, 1},
                                 {RDX_RULE_WINDOW, 3, 7, 0, 1},
                                 {RDX_RULE_CHUNKED, 2, 6, 0, 1},
                                 {RDX_RULE_STATE, 1, 0, 0, 1},
                                 {RDX_RULE_STATE, 3, 0, 0, 1}};
    for (uint32_t s = 0; s < sizeof seconds / sizeof *seconds; s++) {
        rdx_group groups[] = {{RDX_RULE_FULL, 1, 0, 0, 1}, seconds[s]};
        rdx_tree_config config = {.page_bytes = 4,
                                  .check_ids = 1,
                                  .groups = 2,
                                  .tiers = 1,
                                  .key_bytes = KEY_BYTES,
                                  .page_tokens = 1};
        world w = {0};
        EXPECT_EQ(rdx_tree_new(&config, groups, &w.tree), RDX_OK);
        EXPECT_EQ(rdx_root_new(w.tree, NULL, &w.root), RDX_OK);
        scenario_with_gaps(&w);
        EXPECT(w.failures > 20);
        int32_t gone[2048];
        uint32_t freed;
        for (uint32_t c = 0; c < COLUMNS; c++)
            EXPECT_EQ(rdx_evict(w.tree, c, 2048, UINT64_MAX, gone, NULL, &freed), RDX_OK);
        EXPECT_EQ(rdx_root_free(w.tree, w.root), RDX_OK);
        rdx_tree_free(w.tree);
    }
}

static uint64_t count_failures_of_construction(world *w) {
    uint64_t k = 0;
    int status = RDX_ENOMEM;
    while (status != RDX_OK) {
        rdx_alloc_fail_at(++k);
        status = new_world(w);
        EXPECT(status == RDX_OK || status == RDX_ENOMEM);
    }
    rdx_alloc_fail_at(0);
    return k - 1;
}

static void test_a_tree_at_every_allocation(void) {
    world w = {0};
    EXPECT(count_failures_of_construction(&w) >= 4);
    int status = RDX_ENOMEM;
    for (uint64_t k = 1; status != RDX_OK; k++) {
        rdx_alloc_fail_at(k);
        status = rdx_root_new(w.tree, NULL, &w.root);
        rdx_tree_stats stats;
        rdx_tree_get_stats(w.tree, &stats);
        EXPECT_EQ(stats.roots, status == RDX_OK);
    }
    rdx_alloc_fail_at(0);
    scenario(&w);
    EXPECT(w.failures > 20);
    int32_t gone[2048];
    uint32_t freed;
    for (uint32_t c = 0; c < COLUMNS; c++)
        EXPECT_EQ(rdx_evict(w.tree, c, 2048, UINT64_MAX, gone, NULL, &freed), RDX_OK);
    EXPECT_EQ(rdx_root_free(w.tree, w.root), RDX_OK);
    rdx_tree_stats stats;
    rdx_tree_get_stats(w.tree, &stats);
    EXPECT_EQ(stats.nodes, 0);
    EXPECT_EQ(stats.buffers, 0);
    rdx_tree_free(w.tree);
}

/* Steps of a scheduler: prompts that share prefixes, among themselves too, in one call each. */
#define STEP 5

/* The rows of each request in turn; in the second some pages have no slot. */
static void fill_slots(int32_t *slots, const rdx_cursor *at, const uint32_t *counts, bool gaps) {
    for (uint32_t q = 0; q < STEP; q++)
        for (uint32_t row = 0; row < 2; row++)
            for (uint32_t i = at[q].pages; i < counts[q]; i++)
                *slots++ = gaps && row && i % 7 == 3 ? RDX_NO_SLOT : (int32_t)i;
}

static void scenario_of_steps(world *w, bool gaps, uint64_t mask) {
    static int32_t runs[STEP][PAGES], slots[STEP * 2 * PAGES], canonical[STEP * 2 * PAGES];
    int32_t gone[4 * PAGES];
    const uint32_t both[] = {0, 1};
    const void *pages[STEP];
    uint32_t counts[STEP], freed, bad;
    rdx_cursor at[STEP];
    uint64_t leases[STEP];
    rdx_insert done[STEP];
    for (int32_t k = 0; k < 12; k++) {
        for (int32_t q = 0; q < STEP; q++) {
            fill(runs[q], k * 7 + q % 3, (uint32_t)((k + q) * 7 % PAGES));
            pages[q] = runs[q];
            counts[q] = PAGES / 2 + (uint32_t)q;
            at[q] = find(w, runs[q], counts[q]);
        }
        THROUGH(w, rdx_lease_take_many(w->tree, at, STEP, mask, leases, at, &bad));
        fill_slots(slots, at, counts, gaps);
        THROUGH(w, rdx_tree_insert_many(w->tree, at, STEP, pages, counts, both, 2, slots,
                                        STEP * 2 * PAGES, canonical, leases, k % 2, done, &bad));
        for (uint32_t q = 0; q < STEP; q++) {
            EXPECT_EQ(done[q].end.pages, counts[q]);
            at[q] = done[q].end;
            counts[q] = PAGES;
        }
        fill_slots(slots, at, counts, gaps);
        /* the same leases grow what they hold; in every third step nobody holds anything */
        if (k % 3 == 2)
            EXPECT_EQ(rdx_lease_release_many(w->tree, leases, STEP, k % 2, &bad), RDX_OK);
        THROUGH(w, rdx_tree_insert_many(w->tree, at, STEP, pages, counts, both, 2, slots,
                                        STEP * 2 * PAGES, NULL, k % 3 == 2 ? NULL : leases, 1, done,
                                        &bad));
        if (k % 3 != 2)
            EXPECT_EQ(rdx_lease_release_many(w->tree, leases, STEP, k % 2, &bad), RDX_OK);
        EXPECT_EQ(rdx_lease_release_many(w->tree, leases, STEP, 1, &bad), RDX_ELEASE);
        EXPECT_EQ(bad, 0);
        for (uint32_t c = 0; c < COLUMNS; c++)
            EXPECT_EQ(rdx_evict(w->tree, c, 70, UINT64_MAX, gone, NULL, &freed), RDX_OK);
    }
}

static void test_steps_at_every_allocation(void) {
    const rdx_group seconds[] = {{RDX_RULE_FULL, 1, 0, 0, 1},
                                 {RDX_RULE_WINDOW, 1, 5, 0, 1},
                                 {RDX_RULE_CHUNKED, 2, 6, 0, 1},
                                 {RDX_RULE_STATE, 1, 0, 0, 1}};
    for (uint32_t s = 0; s < sizeof seconds / sizeof *seconds; s++) {
        rdx_group groups[] = {{RDX_RULE_FULL, 1, 0, 0, 1}, seconds[s]};
        rdx_tree_config config = {.page_bytes = 4,
                                  .check_ids = 1,
                                  .groups = 2,
                                  .tiers = 1,
                                  .key_bytes = KEY_BYTES,
                                  .page_tokens = 1};
        world w = {0};
        EXPECT_EQ(rdx_tree_new(&config, groups, &w.tree), RDX_OK);
        EXPECT_EQ(rdx_root_new(w.tree, NULL, &w.root), RDX_OK);
        scenario_of_steps(&w, s > 0, s % 2 ? 1 : RDX_EVERY_GROUP);
        EXPECT(w.failures > 100);
        int32_t gone[2048];
        uint32_t freed;
        for (uint32_t c = 0; c < COLUMNS; c++)
            EXPECT_EQ(rdx_evict(w.tree, c, 2048, UINT64_MAX, gone, NULL, &freed), RDX_OK);
        EXPECT_EQ(rdx_root_free(w.tree, w.root), RDX_OK);
        rdx_tree_stats stats;
        rdx_tree_get_stats(w.tree, &stats);
        EXPECT_EQ(stats.buffers, 0);
        rdx_tree_free(w.tree);
    }
}

/* What cannot fail for want of memory: a match, a release, an eviction, a touch (it does without
 * its split), a copy that arrives. */
static void test_calls_that_need_no_memory(void) {
    world w = {0};
    EXPECT_EQ(new_world(&w), RDX_OK);
    EXPECT_EQ(rdx_root_new(w.tree, NULL, &w.root), RDX_OK);
    int32_t run[PAGES], slots[PAGES], canonical[PAGES];
    const uint32_t first = 0;
    rdx_insert result;
    for (int32_t k = 0; k < 9; k++) { /* until nodes fill the room that the tree began with */
        fill(run, k, 0);
        EXPECT_EQ(rdx_tree_insert(w.tree, find(&w, run, PAGES), run, PAGES, &first, 1, run, NULL, 0,
                                  &result),
                  RDX_OK);
    }
    uint64_t lease;
    rdx_cursor end;
    EXPECT_EQ(
        rdx_lease_take(w.tree, find(&w, run, PAGES), RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &end),
        RDX_OK);
    for (int32_t i = 0; i < PAGES; i++)
        slots[i] = i;
    uint32_t attached, freed;
    for (uint32_t pages = 1; pages < PAGES; pages++) {
        rdx_cursor inside = {end.node, w.root, pages};
        rdx_alloc_fail_at(1);
        EXPECT_EQ(rdx_touch(w.tree, inside), RDX_OK);
        rdx_alloc_fail_at(1);
        EXPECT_EQ(rdx_slots_attach(w.tree, inside, 1, 0, pages, slots, canonical, 1, &attached),
                  RDX_OK);
    }
    rdx_alloc_fail_at(1);
    EXPECT_EQ(rdx_lease_release(w.tree, lease, 1), RDX_OK);
    rdx_alloc_fail_at(1);
    EXPECT_EQ(rdx_evict(w.tree, 0, 5, UINT64_MAX, slots, NULL, &freed), RDX_OK);
    EXPECT_EQ(freed, 5);
    rdx_alloc_fail_at(0);
    EXPECT_EQ(rdx_check(w.tree, 1, NULL, 0), RDX_OK);
    rdx_tree_free(w.tree);
}

int main(void) {
    test_a_tree_at_every_allocation();
    test_groups_with_gaps_at_every_allocation();
    test_steps_at_every_allocation();
    test_calls_that_need_no_memory();
    return 0;
}
