/* Slot pools against a truth table: an array of states and the free slots in order, as arrays. */
#include "expect.h"
#include "rdx.h"

#include <string.h>

#define MOST_SLOTS 96
#define STEPS 60000

static uint32_t table_states[MOST_SLOTS];
static int32_t table_free[MOST_SLOTS]; /* in the order in which they will be given out */
static uint32_t table_free_count;
static uint32_t table_capacity;

static void table_insert_free(uint32_t at, int32_t slot) {
    memmove(table_free + at + 1, table_free + at, (table_free_count - at) * sizeof *table_free);
    table_free[at] = slot;
    table_free_count++;
    table_states[slot] = RDX_SLOT_FREE;
}

static void table_remove_free(int32_t slot) {
    uint32_t at = 0;
    while (table_free[at] != slot)
        at++;
    table_free_count--;
    memmove(table_free + at, table_free + at + 1, (table_free_count - at) * sizeof *table_free);
}

static void step_reserve(rdx_pool *pool) {
    int32_t slots[MOST_SLOTS];
    uint32_t n = random_below(9);
    int status = rdx_pool_reserve(pool, n, slots);
    if (n > table_free_count) {
        EXPECT_EQ(status, RDX_EFULL);
        return;
    }
    EXPECT_EQ(status, RDX_OK);
    for (uint32_t i = 0; i < n; i++) {
        EXPECT_EQ(slots[i], table_free[0]);
        table_states[slots[i]] = RDX_SLOT_RESERVED;
        table_remove_free(slots[i]);
    }
}

/* Mostly slots in the right state; now and then one that is not, or is named twice. */
static void step_move(rdx_pool *pool) {
    int32_t slots[MOST_SLOTS + 1];
    uint32_t n = 0, bad = UINT32_MAX, first_bad = UINT32_MAX;
    uint32_t from = random_below(4), to = random_below(4);
    for (uint32_t slot = 0; slot < table_capacity; slot++)
        if (table_states[slot] == from && random_below(4) == 0)
            slots[n++] = (int32_t)slot;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = random_below(i);
        int32_t slot = slots[k];
        slots[k] = slots[i - 1];
        slots[i - 1] = slot;
    }
    if (n > 0 && random_below(4) == 0)
        slots[random_below(n)] = (int32_t)random_below(table_capacity + 4) - 2;
    for (uint32_t i = 0; i < n && first_bad == UINT32_MAX; i++) {
        int is_known = slots[i] >= 0 && slots[i] < (int32_t)table_capacity;
        if (!is_known || table_states[slots[i]] != from)
            first_bad = i;
        for (uint32_t k = 0; k < i; k++)
            if (slots[k] == slots[i])
                first_bad = i;
    }
    int status = rdx_pool_move(pool, slots, n, from, to, &bad);
    if (from == to) {
        EXPECT_EQ(status, RDX_EARG);
        return;
    }
    EXPECT_EQ(bad, first_bad);
    EXPECT_EQ(status, first_bad == UINT32_MAX ? RDX_OK : RDX_ESLOT);
    for (uint32_t i = 0; status == RDX_OK && i < n; i++) {
        if (from == RDX_SLOT_FREE)
            table_remove_free(slots[i]);
        table_states[slots[i]] = to;
        if (to == RDX_SLOT_FREE)
            table_insert_free(i, slots[i]);
    }
}

static void step_range(rdx_pool *pool) {
    uint32_t first = random_below(table_capacity + 2), n = random_below(5);
    int retires = random_below(2) == 0;
    uint32_t from = retires ? RDX_SLOT_FREE : RDX_SLOT_RETIRED;
    int wanted = first + n > table_capacity ? RDX_EARG : RDX_OK;
    for (uint32_t slot = first; wanted == RDX_OK && slot < first + n; slot++)
        if (table_states[slot] != from)
            wanted = RDX_ESLOT;
    EXPECT_EQ(retires ? rdx_pool_retire(pool, first, n) : rdx_pool_revive(pool, first, n), wanted);
    for (uint32_t slot = first; wanted == RDX_OK && slot < first + n; slot++) {
        if (retires) {
            table_remove_free((int32_t)slot);
            table_states[slot] = RDX_SLOT_RETIRED;
        } else {
            table_insert_free(table_free_count, (int32_t)slot);
        }
    }
}

static void step_grow(rdx_pool *pool) {
    uint32_t more = random_below(3);
    if (table_capacity + more > MOST_SLOTS)
        return;
    EXPECT_EQ(rdx_pool_grow(pool, more), RDX_OK);
    for (uint32_t i = 0; i < more; i++)
        table_insert_free(table_free_count, (int32_t)table_capacity++);
}

static void compare(const rdx_pool *pool) {
    uint32_t counts[5] = {0}, sum = 0;
    EXPECT_EQ(rdx_pool_check(pool), RDX_OK);
    EXPECT_EQ(rdx_pool_capacity(pool), table_capacity);
    for (uint32_t slot = 0; slot < table_capacity; slot++) {
        EXPECT_EQ(rdx_pool_state(pool, slot), table_states[slot]);
        counts[table_states[slot]]++;
    }
    for (uint32_t state = 0; state < 5; state++) {
        EXPECT_EQ(rdx_pool_count(pool, state), counts[state]);
        sum += counts[state];
    }
    EXPECT_EQ(sum, table_capacity);
}

static void fuzz(uint32_t capacity) {
    rdx_pool *pool;
    EXPECT_EQ(rdx_pool_new(capacity, &pool), RDX_OK);
    table_capacity = 0;
    table_free_count = 0;
    while (table_capacity < capacity)
        table_insert_free(table_free_count, (int32_t)table_capacity++);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t dice = random_below(100);
        if (dice < 35)
            step_reserve(pool);
        else if (dice < 90)
            step_move(pool);
        else if (dice < 99)
            step_range(pool);
        else
            step_grow(pool);
        compare(pool);
    }
    rdx_pool_free(pool);
}

static void test_limits(void) {
    rdx_pool *pool;
    int32_t slots[4];
    uint32_t bad = 7;
    EXPECT_EQ(rdx_pool_new((uint32_t)INT32_MAX + 1, &pool), RDX_EARG);
    EXPECT_EQ(rdx_pool_new(0, &pool), RDX_OK);
    EXPECT_EQ(rdx_pool_reserve(pool, 0, NULL), RDX_OK);
    EXPECT_EQ(rdx_pool_reserve(pool, 1, slots), RDX_EFULL);
    EXPECT_EQ(rdx_pool_grow(pool, 4), RDX_OK);
    EXPECT_EQ(rdx_pool_grow(pool, INT32_MAX), RDX_EARG);
    EXPECT_EQ(rdx_pool_claim(pool, (int32_t[]){3, 1}, 2, &bad), RDX_OK);
    EXPECT_EQ(rdx_pool_claim(pool, (int32_t[]){0, 3}, 2, &bad), RDX_ESLOT);
    EXPECT_EQ(bad, 1);
    EXPECT_EQ(rdx_pool_reserve(pool, 2, slots), RDX_OK);
    EXPECT_EQ(slots[0], 0);
    EXPECT_EQ(slots[1], 2);
    rdx_pool_free(pool);
    rdx_pool_free(NULL);
}

int main(void) {
    test_limits();
    fuzz(8);
    fuzz(0);
    fuzz(80);
    return 0;
}
