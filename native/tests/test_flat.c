/* Sets of keys by the native entries alone, on new memory: every key is inserted, leased, given
 * back, dropped and evicted once, and what stands twice is refused. What memory was before it came
 * must decide nothing here; the memory checker sees where it does. */
#include "expect.h"
#include "rdx.h"

#include <string.h>

#define KEYS 300
#define WIDTH 32

typedef struct world {
    rdx_tree *tree;
    rdx_handle root;
    uint8_t keys[KEYS][WIDTH];
    rdx_handle nodes[KEYS];
    int32_t slots[KEYS];
} world;

static void check(const world *w) {
    char what[256];
    if (rdx_check(w->tree, 0, what, sizeof what) != RDX_OK) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void build(world *w) {
    const rdx_group group = {RDX_RULE_FULL, 1, 0, 0, 1};
    const rdx_tree_config config = {.page_bytes = WIDTH, .groups = 1, .tiers = 2, .page_tokens = 1};
    EXPECT_EQ(rdx_tree_new(&config, &group, &w->tree), RDX_OK);
    EXPECT_EQ(rdx_root_new(w->tree, NULL, &w->root), RDX_OK);
    random_fill(w->keys, sizeof w->keys);
    for (int32_t i = 0; i < KEYS; i++)
        w->slots[i] = i;
    EXPECT_EQ(rdx_flat_insert(w->tree, w->root, w->keys, KEYS, 0, w->slots, NULL), RDX_OK);
    EXPECT_EQ(rdx_flat_find(w->tree, w->root, w->keys, KEYS, w->nodes), RDX_OK);
    check(w);
}

/* As many leases as there is room for, and more: the slots of leases grow with what they hold. */
static void test_leases_are_given_back(world *w) {
    uint64_t leases[KEYS], more[KEYS];
    for (int round = 0; round < 2; round++) {
        EXPECT_EQ(rdx_flat_lease(w->tree, w->nodes, 20, leases), RDX_OK);
        EXPECT_EQ(rdx_flat_lease(w->tree, w->nodes, KEYS, more), RDX_OK);
        EXPECT_EQ(rdx_flat_release(w->tree, leases, 20, 1), RDX_OK);
        EXPECT_EQ(rdx_flat_release(w->tree, leases, 20, 1), RDX_ELEASE);
        uint64_t twice[] = {more[0], more[1], more[0]};
        EXPECT_EQ(rdx_flat_release(w->tree, twice, 3, 0), RDX_ELEASE);
        check(w);
        EXPECT_EQ(rdx_flat_release(w->tree, more, KEYS, 0), RDX_OK);
        check(w);
    }
}

static void test_blocks_leave(world *w) {
    int32_t slots[KEYS], canonical[KEYS];
    uint8_t ids[KEYS][WIDTH];
    rdx_handle roots[KEYS];
    uint32_t freed;
    EXPECT_EQ(rdx_flat_attach(w->tree, w->nodes, KEYS / 2, 1, w->slots, canonical), RDX_OK);
    EXPECT_EQ(rdx_flat_slots(w->tree, w->nodes, KEYS, 1, slots), RDX_OK);
    for (int32_t i = 0; i < KEYS; i++)
        EXPECT_EQ(slots[i], i < KEYS / 2 ? i : RDX_NO_SLOT);
    EXPECT_EQ(rdx_flat_touch(w->tree, w->nodes, 10), RDX_OK);
    EXPECT_EQ(rdx_flat_drop(w->tree, w->nodes + 10, 5, 0, slots), RDX_OK);
    EXPECT(memcmp(slots, w->slots + 10, 5 * sizeof *slots) == 0);
    check(w);
    for (uint32_t column = 0; column < 2; column++) {
        const uint32_t left = column == 0 ? KEYS - 5 : KEYS / 2;
        EXPECT_EQ(rdx_flat_evict(w->tree, column, KEYS, slots, &ids[0][0], roots, &freed), RDX_OK);
        EXPECT_EQ(freed, left);
        for (uint32_t i = 0; i < freed; i++) {
            EXPECT(memcmp(ids[i], w->keys[slots[i]], WIDTH) == 0);
            EXPECT(roots[i] == w->root);
        }
        check(w);
    }
    EXPECT_EQ(rdx_flat_find(w->tree, w->root, w->keys, 1, w->nodes), RDX_OK);
    EXPECT_EQ(w->nodes[0], 0);
}

/* The LOOKUP frames of a service: whole ones are answered, each as far as its keys are there. */
static void test_frames_are_answered_up_to_what_is_none(world *w) {
    enum { FRAME = 64 + 4 * WIDTH };
    uint8_t frames[3 * FRAME] = {0}, answers[3 * 64];
    uint64_t totals[4];
    for (uint32_t k = 0; k < 3; k++) {
        uint8_t *f = frames + (size_t)k * FRAME;
        const uint16_t words[] = {1, 5, 0, 0};
        const uint32_t store = 7, items = 4, bytes = 4 * WIDTH;
        memcpy(f, "RDXS", 4);
        memcpy(f + 4, words, sizeof words);
        memcpy(f + 12, &store, 4);
        f[16] = (uint8_t)(40 + k);
        memcpy(f + 24, &items, 4);
        memcpy(f + 40, &bytes, 4);
        f[48] = (uint8_t)k; /* keys at the end that do not count */
        memcpy(f + 64, w->keys, 4 * WIDTH);
    }
    memset(frames + FRAME + 64 + 2 * WIDTH, 0xA5, WIDTH); /* a key that is not there */
    EXPECT_EQ(rdx_flat_lookups(w->tree, w->root, NULL, 0, 1, 3, 7, frames, sizeof frames - 1, 3,
                               answers, totals),
              RDX_OK);
    EXPECT(totals[0] == 2 * FRAME && totals[1] == 2 && totals[2] == 8 && totals[3] == 6);
    EXPECT(answers[6] == 5 && answers[7] == 0x80 && answers[16] == 40 && answers[24] == 4);
    EXPECT(answers[64 + 16] == 41 && answers[64 + 24] == 2 && answers[64 + 32] == 2);
    EXPECT_EQ(rdx_flat_lookups(w->tree, w->root, NULL, 0, 1, 3, 8, frames, sizeof frames, 3,
                               answers, totals),
              RDX_OK);
    EXPECT_EQ((int)totals[1], 0);
    EXPECT_EQ(rdx_flat_lookups(w->tree, w->root + 1, NULL, 0, 1, 3, 7, frames, sizeof frames, 3,
                               answers, totals),
              RDX_ESTALE);
    uint32_t reached[2];
    EXPECT_EQ(rdx_flat_reach(w->tree, w->root, NULL, WIDTH, 2, 3, w->keys, 4, reached), RDX_EARG);
    EXPECT_EQ(rdx_flat_reach(w->tree, w->root, NULL, WIDTH, 1, 2, w->keys, 4, reached), RDX_OK);
    EXPECT_EQ((int)reached[0], 0);
}

int main(void) {
    world w;
    build(&w);
    test_leases_are_given_back(&w);
    test_frames_are_answered_up_to_what_is_none(&w);
    test_blocks_leave(&w);
    rdx_tree_free(w.tree);
    return 0;
}
