/* An insert that takes its slots from pools: which pages get some, what goes back, and that a call
 * that fails, for want of memory at any allocation too, leaves pools and tree as they were. */
#include "alloc.h"
#include "expect.h"
#include "rdx.h"

#include <string.h>

#define GROUPS 3
#define PAGES 12
#define SLOTS 64

typedef struct world {
    rdx_tree *tree;
    rdx_handle root;
    rdx_pool *pools[GROUPS];
    rdx_tree_stats stats;
    uint32_t counts[GROUPS][2];
    rdx_pools *from;
    int32_t kept[GROUPS * PAGES];
} world;

static void open_world(world *w, uint32_t slots) {
    const rdx_group groups[GROUPS] = {
        {.rule = RDX_RULE_FULL, .block_pages = 1, .lookup = 1},
        {.rule = RDX_RULE_WINDOW, .block_pages = 1, .reach_tokens = 3, .lookup = 1},
        {.rule = RDX_RULE_STATE, .block_pages = 1, .lookup = 1}};
    rdx_tree_config config = {
        .page_bytes = 4, .check_ids = 1, .groups = GROUPS, .tiers = 1, .page_tokens = 1};
    EXPECT_EQ(rdx_tree_new(&config, groups, &w->tree), RDX_OK);
    EXPECT_EQ(rdx_root_new(w->tree, NULL, &w->root), RDX_OK);
    for (uint32_t g = 0; g < GROUPS; g++)
        EXPECT_EQ(rdx_pool_new(slots, &w->pools[g]), RDX_OK);
    EXPECT_EQ(rdx_pools_new(GROUPS, &w->from), RDX_OK);
    memcpy(w->from->pools, w->pools, sizeof w->pools);
}

static void close_world(world *w) {
    rdx_tree_free(w->tree);
    rdx_pools_free(w->from);
    for (uint32_t g = 0; g < GROUPS; g++)
        rdx_pool_free(w->pools[g]);
}

static void sound(const world *w) {
    char what[256];
    EXPECT_EQ(rdx_check(w->tree, 1, what, sizeof what), RDX_OK);
    for (uint32_t g = 0; g < GROUPS; g++) {
        EXPECT_EQ(rdx_pool_check(w->pools[g]), RDX_OK);
        EXPECT_EQ(rdx_pool_count(w->pools[g], RDX_SLOT_RESERVED), 0);
    }
}

static uint32_t used(const world *w, uint32_t g) {
    return rdx_pool_count(w->pools[g], RDX_SLOT_USED);
}

static void remember(world *w) {
    rdx_tree_get_stats(w->tree, &w->stats);
    w->stats.bytes = 0; /* room in hand may grow */
    for (uint32_t g = 0; g < GROUPS; g++) {
        w->counts[g][0] = rdx_pool_count(w->pools[g], RDX_SLOT_FREE);
        w->counts[g][1] = used(w, g);
    }
}

static void expect_as_before(const world *w) {
    world now = *w;
    remember(&now);
    EXPECT(memcmp(&now.stats, &w->stats, sizeof now.stats) == 0);
    EXPECT(memcmp(now.counts, w->counts, sizeof now.counts) == 0);
    sound(w);
}

static int insert(world *w, rdx_pooled *p, const int32_t *run, uint32_t n, rdx_insert *out) {
    return rdx_tree_insert_pooled(w->tree, run, p->from.pages + n, w->from, p, w->kept, out);
}

static void each_group_gets_what_a_hit_needs(void) {
    static world w;
    int32_t run[PAGES];
    rdx_insert out;
    open_world(&w, SLOTS);
    for (int32_t i = 0; i < PAGES; i++)
        run[i] = i;
    rdx_pooled p = {.from = {w.root, w.root, 0}, .boundary = 8};
    EXPECT_EQ(insert(&w, &p, run, 8, &out), RDX_OK);
    EXPECT_EQ(p.spare, 0);
    EXPECT_EQ(used(&w, 0), 8);
    EXPECT_EQ(used(&w, 1), 3);
    EXPECT_EQ(used(&w, 2), 1);
    for (uint32_t i = 0; i < 8; i++) {
        EXPECT_EQ(w.kept[i] >= 0, 1);
        EXPECT_EQ(w.kept[8 + i] >= 0, i >= 5);
        EXPECT_EQ(w.kept[16 + i] >= 0, i == 7);
    }
    p = (rdx_pooled){.from = out.end};
    EXPECT_EQ(insert(&w, &p, run, 2, &out), RDX_OK); /* no boundary: no snapshot */
    EXPECT_EQ(used(&w, 0), 10);
    EXPECT_EQ(used(&w, 1), 5);
    EXPECT_EQ(used(&w, 2), 1);
    sound(&w);
    close_world(&w);
}

static void what_is_not_simple_changes_nothing(void) {
    static world w;
    int32_t run[PAGES] = {5, 6, 7, 8, 9, 10};
    rdx_insert out;
    open_world(&w, 5);
    rdx_cursor root = {w.root, w.root, 0};
    rdx_pooled p = {.from = root};
    remember(&w);
    EXPECT_EQ(insert(&w, &p, run, 6, &out), RDX_EFULL); /* the full group has five */
    EXPECT_EQ(p.group, 0);
    EXPECT_EQ(p.needed, 6);
    p.boundary = 2;
    EXPECT_EQ(insert(&w, &p, run, 3, &out), RDX_EFULL); /* a boundary before the end */
    EXPECT_EQ(p.group, GROUPS);
    p = (rdx_pooled){.from = root};
    EXPECT_EQ(insert(&w, &p, run, 0, &out), RDX_EFULL); /* nothing new */
    p.lease = 77;
    EXPECT_EQ(insert(&w, &p, run, 3, &out), RDX_ELEASE);
    p = (rdx_pooled){.from = root};
    run[1] = -1;
    EXPECT_EQ(insert(&w, &p, run, 3, &out), RDX_ETOKEN);
    expect_as_before(&w);
    run[1] = 6;
    EXPECT_EQ(insert(&w, &p, run, 3, &out), RDX_OK);
    remember(&w);
    EXPECT_EQ(insert(&w, &p, run, 4, &out), RDX_EFULL); /* pages behind the root are known */
    EXPECT_EQ(p.group, GROUPS);
    p.from = (rdx_cursor){out.end.node + (1ull << 32), w.root, 3};
    EXPECT_EQ(insert(&w, &p, run, 1, &out), RDX_EFULL); /* a node that never was */
    expect_as_before(&w);
    int32_t slot;
    EXPECT_EQ(rdx_slots_drop(w.tree, out.end, 0, 2, &slot), RDX_OK);
    EXPECT_EQ(rdx_pool_move(w.pools[0], &slot, 1, RDX_SLOT_USED, RDX_SLOT_FREE, NULL), RDX_OK);
    remember(&w);
    p.from = out.end;
    EXPECT_EQ(insert(&w, &p, run, 1, &out), RDX_EFULL); /* its last block is gone */
    EXPECT_EQ(p.group, GROUPS);
    w.from->groups = 1;
    EXPECT_EQ(insert(&w, &p, run, 1, &out), RDX_EARG);
    w.from->groups = GROUPS;
    expect_as_before(&w);
    close_world(&w);
}

static void memory_may_fail_anywhere(void) {
    static world w;
    int32_t run[PAGES];
    uint32_t failed = 0;
    open_world(&w, SLOTS * PAGES);
    for (int32_t k = 0; k < 40; k++) {
        for (int32_t i = 0; i < PAGES; i++)
            run[i] = i < k % 7 ? i : 1000 * (k + 1) + i;
        rdx_match m;
        EXPECT_EQ(rdx_tree_match(w.tree, w.root, run, PAGES, PAGES, 1, &m), RDX_OK);
        uint64_t lease;
        rdx_cursor end;
        EXPECT_EQ(rdx_lease_take(w.tree, m.structural, RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &end),
                  RDX_OK);
        rdx_insert out;
        rdx_pooled p = {.from = end, .lease = lease, .boundary = PAGES};
        for (uint64_t nth = 1;; nth++) {
            remember(&w);
            rdx_alloc_fail_at(nth);
            int status = insert(&w, &p, run, PAGES - end.pages, &out);
            rdx_alloc_fail_at(0);
            if (status == RDX_OK)
                break;
            EXPECT_EQ(status, RDX_ENOMEM);
            failed++;
            expect_as_before(&w);
        }
        EXPECT_EQ(rdx_lease_release(w.tree, lease, 1), RDX_OK);
    }
    EXPECT(failed >= 40);
    sound(&w);
    close_world(&w);
}

/* A pool that is short takes the oldest blocks of its own column, or none where that is in vain. */
static void room_is_made_of_the_oldest(void) {
    static world w;
    int32_t run[PAGES];
    rdx_insert out;
    uint64_t lease;
    rdx_cursor end, ends[3];
    open_world(&w, 8);
    w.from->evicts = 1;
    for (int32_t k = 0; k < 3; k++) {
        for (int32_t i = 0; i < PAGES; i++)
            run[i] = 100 * k + i;
        rdx_pooled p = {.from = {w.root, w.root, 0}, .boundary = 4};
        EXPECT_EQ(insert(&w, &p, run, 4, &out), RDX_OK);
        EXPECT_EQ(w.from->evicted[0], k < 2 ? 0 : 4);
        EXPECT_EQ(w.from->evicted[1], k < 2 ? 0 : 1); /* three of eight each */
        EXPECT_EQ(w.from->evicted[2], 0);
        EXPECT_EQ(p.spare, 0);
        ends[k] = out.end;
        sound(&w);
    }
    EXPECT_EQ(used(&w, 0), 8);
    EXPECT_EQ(used(&w, 1), 8);
    EXPECT_EQ(rdx_lease_take(w.tree, ends[1], RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &end), RDX_OK);
    rdx_pooled p = {.from = {w.root, w.root, 0}};
    remember(&w);
    for (int32_t i = 0; i < PAGES; i++)
        run[i] = 300 + i;
    EXPECT_EQ(insert(&w, &p, run, 5, &out), RDX_EFULL); /* four may go */
    EXPECT_EQ(p.group, 0);
    EXPECT_EQ(p.needed, 5);
    EXPECT_EQ(insert(&w, &p, run, 9, &out), RDX_EFULL); /* it never fits */
    expect_as_before(&w);
    EXPECT_EQ(w.from->evicted[0], 0);
    EXPECT_EQ(insert(&w, &p, run, 4, &out), RDX_OK);
    EXPECT_EQ(w.from->evicted[0], 4);
    EXPECT_EQ(rdx_lease_release(w.tree, lease, 1), RDX_OK);
    sound(&w);
    close_world(&w);
}

/* The pool of the second group cannot give what is wanted: nothing goes of the first either. */
static void nothing_goes_where_a_later_group_is_short(void) {
    static world w;
    int32_t run[PAGES], gone[8];
    rdx_insert out;
    uint32_t went;
    open_world(&w, 8);
    for (int32_t k = 0; k < 2; k++) {
        for (int32_t i = 0; i < PAGES; i++)
            run[i] = 100 * k + i;
        rdx_pooled p = {.from = {w.root, w.root, 0}};
        EXPECT_EQ(insert(&w, &p, run, 4, &out), RDX_OK);
    }
    EXPECT_EQ(rdx_evict(w.tree, 1, 8, UINT64_MAX, gone, NULL, &went), RDX_OK); /* but not freed */
    EXPECT_EQ(went, 6);
    for (int32_t i = 0; i < PAGES; i++)
        run[i] = 300 + i;
    for (uint32_t evicts = 0; evicts < 2; evicts++) {
        rdx_pooled p = {.from = {w.root, w.root, 0}};
        w.from->evicts = evicts;
        remember(&w);
        EXPECT_EQ(insert(&w, &p, run, 4, &out), RDX_EFULL);
        EXPECT_EQ(p.group, 1);
        EXPECT_EQ(p.needed, 3);
        EXPECT_EQ(w.from->evicted[0], 0);
        expect_as_before(&w);
    }
    close_world(&w);
}

int main(void) {
    nothing_goes_where_a_later_group_is_short();
    room_is_made_of_the_oldest();
    each_group_gets_what_a_hit_needs();
    what_is_not_simple_changes_nothing();
    memory_may_fail_anywhere();
    return 0;
}
