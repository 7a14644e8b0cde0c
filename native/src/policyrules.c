/* policyrules.c: the policies that need a key and nothing else. */
#include "policy.h"

/* ---------------------------------------------------------------- fifo: what came first */
static void fifo_came(rdx_tree *t, uint32_t i, uint32_t column) {
    rdx_policy_move(t, i, column, 0, ranking_at(t, i, column)->came);
}

static void fifo_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)t, (void)i, (void)column, (void)again, (void)old;
}

const policy rdx_policy_fifo = {.came = fifo_came, .used = fifo_used};

/* ---------------------------------------------------------------- lfu: what was used least
 * A key is the uses so far on top of the key of the last victim at that time, so that what was used
 * often once grows old (dynamic ageing). */
static void lfu_came(rdx_tree *t, uint32_t i, uint32_t column) {
    rdx_policy_move(t, i, column, 0, ranking_at(t, i, column)->age + 1);
}

static void lfu_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)old;
    if (again) {
        uint64_t uses = mark_at(t, i, column)->uses;
        rdx_policy_move(t, i, column, 0, ranking_at(t, i, column)->age + 1 + uses);
    }
}

static void lfu_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    (void)n;
    ranking *r = ranking_at(t, i, column);
    uint64_t key = mark_at(t, i, column)->key;
    r->age = key > r->age ? key : r->age;
}

const policy rdx_policy_lfu = {.came = lfu_came, .used = lfu_used, .going = lfu_going};

/* ---------------------------------------------------------------- slru: two segments by last use
 * What came is on probation (queue 0) and goes first; what is used again is protected (queue 1). Of
 * the blocks at most four fifths are: beyond that the leaf there that was used longest ago is on
 * probation again, as if used now. */
static void slru_came(rdx_tree *t, uint32_t i, uint32_t column) {
    rdx_policy_move(t, i, column, 0, t->clock);
}

static void slru_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)old;
    rdx_policy_move(t, i, column, again ? 1 : mark_at(t, i, column)->queue, t->clock);
}

static void slru_settle(rdx_tree *t, uint32_t column, uint32_t tenant) {
    const ranking *r = ranking_of(t, tenant, column);
    while (r->resident[1] * 5 > (r->resident[0] + r->resident[1]) * 4) {
        uint32_t i = rdx_policy_head(t, column, tenant, 1);
        if (i == NIL) {
            return;
        }
        rdx_policy_move(t, i, column, 0, t->clock);
    }
}

const policy rdx_policy_slru = {.came = slru_came, .used = slru_used, .settle = slru_settle};
