/* pooled.c: an insert that takes its slots from pools in the same crossing: reserved, given to the
 * pages, used where the tree took them and free again where it did not. What is not as simple is
 * left to the caller, and nothing has changed.
 */
#include "tree.h"

/* The pages [*lo, *hi), of the n behind page `first`, that get a slot in group g. */
static void span_of(const rdx_tree *t, const rdx_group *g, uint32_t first, uint32_t n,
                    uint32_t boundary, uint32_t *lo, uint32_t *hi) {
    uint32_t from = rdx_first_page(t, g, first + n);
    *lo = from > first ? from - first : 0;
    *hi = g->rule == RDX_RULE_STATE && !boundary ? *lo : n;
}

/* Whether the first tier has every block of full groups up to the end of the path, and nothing is
 * known behind it that may have some blocks already. */
static bool is_simple(const rdx_tree *t, uint32_t i, uint32_t pages, const void *run) {
    for (uint32_t g = 0; g < t->groups; g++) {
        const rdx_group *rule = &t->rules[g];
        if (rule->block_pages > 1 || rule->lookahead_pages || rule->rule == RDX_RULE_SCRATCH) {
            return false;
        }
        int32_t last = 0;
        if (rule->rule == RDX_RULE_FULL && pages) {
            rdx_read_slots(t, i, g * t->tiers, pages - 1, 1, &last);
        }
        if (last == RDX_NO_SLOT) {
            return false;
        }
    }
    return t->plain || (pages == rdx_end_of(t, i) && rdx_child_likely(t, i, run) == NIL);
}

int rdx_pools_new(uint32_t groups, rdx_pools **out) {
    if (!groups || groups > sizeof((*out)->pools) / sizeof((*out)->pools[0])) {
        return RDX_EARG;
    }
    rdx_pools *made = rdx_calloc(1, sizeof *made);
    if (!made) {
        return RDX_ENOMEM;
    }
    made->groups = groups;
    *out = made;
    return RDX_OK;
}

void rdx_pools_free(rdx_pools *pools) {
    if (pools) {
        rdx_free_mem(pools->slots);
        rdx_free_mem(pools);
    }
}

static int make_slots(rdx_pools *p, uint64_t n) {
    if (n > p->room) {
        int32_t *slots = rdx_realloc(p->slots, n * 2 * sizeof *slots);
        if (!slots) {
            return RDX_ENOMEM;
        }
        p->slots = slots;
        p->room = n * 2;
    }
    return RDX_OK;
}

/* Gives reserved slots of the first `groups` rows back. */
static void give_back(const rdx_tree *t, const rdx_pooled *p, const rdx_pools *from,
                      uint32_t groups, uint32_t n) {
    while (groups-- > 0) {
        const int32_t *row = from->slots + (size_t)groups * n;
        uint32_t lo, hi;
        span_of(t, &t->rules[groups], p->from.pages, n, p->boundary, &lo, &hi);
        rdx_pool_move(from->pools[groups], row + lo, hi - lo, RDX_SLOT_RESERVED, RDX_SLOT_FREE,
                      NULL);
    }
}

/* Whether every group gets its slots of the n pages; else whose pool is short, and of how many.
 * Looked at before anything goes. One that nothing can help is named before one that is short only
 * because the caller makes room himself. */
static bool has_room(const rdx_tree *t, const rdx_pools *from, rdx_pooled *p, uint32_t n) {
    bool in_vain = false;
    for (uint32_t g = 0; g < t->groups && !in_vain; g++) {
        uint32_t lo, hi, free = rdx_pool_count(from->pools[g], RDX_SLOT_FREE);
        span_of(t, &t->rules[g], p->from.pages, n, p->boundary, &lo, &hi);
        if (hi - lo <= free) {
            continue;
        }
        rdx_column_stats s;
        rdx_column_get_stats(t, g * t->tiers, &s);
        in_vain = hi - lo > rdx_pool_capacity(from->pools[g]) ||
                  s.resident - s.protected_blocks < hi - lo - free;
        if (in_vain || (!from->evicts && p->group == t->groups)) {
            p->group = g;
            p->needed = hi - lo;
        }
    }
    return p->group == t->groups;
}

/* n slots of group g, out of what is evicted where the pool is short. */
static int take_slots(rdx_tree *t, rdx_pools *p, uint32_t g, uint32_t n, int32_t *out) {
    rdx_pool *pool = p->pools[g];
    uint32_t free = rdx_pool_count(pool, RDX_SLOT_FREE), column = g * t->tiers, went = 0;
    if (free < n && p->evicts) { /* the row is large enough */
        rdx_evict(t, column, n - free, UINT64_MAX, out, NULL, &went);
        p->evicted[g] += went;
        rdx_pool_move(pool, out, went, RDX_SLOT_USED, RDX_SLOT_FREE, NULL);
    }
    return rdx_pool_reserve(pool, n, out);
}

/* Of one row what the tree took is used from now on; the rest is free. How much that is. */
static uint32_t settle(rdx_pool *pool, const int32_t *row, const int32_t *kept, uint32_t n) {
    if (memcmp(row, kept, (size_t)n * sizeof(*row)) == 0) {
        rdx_pool_move(pool, row, n, RDX_SLOT_RESERVED, RDX_SLOT_USED, NULL);
        return 0;
    }
    uint32_t spare = 0;
    for (uint32_t k = n; k-- > 0;) { /* the first of them is the next to be taken */
        bool taken = row[k] == kept[k];
        spare += !taken;
        rdx_pool_move(pool, row + k, 1, RDX_SLOT_RESERVED, taken ? RDX_SLOT_USED : RDX_SLOT_FREE,
                      NULL);
    }
    return spare;
}

/* The insert itself: where pages of it are pinned, what it goes on from was used, its end moves on,
 * and what could fail is taken before. */
static int put(rdx_tree *t, const rdx_pooled *p, const void *pages, uint32_t count,
               const uint32_t *columns, const int32_t *slots, int32_t *canonical, rdx_insert *out) {
    uint32_t n = count - p->from.pages;
    const uint8_t *run = (const uint8_t *)pages + (size_t)p->from.pages * t->page_bytes;
    if (t->plain || !p->from.pages) {
        return rdx_tree_insert(t, p->from, run, n, columns, t->groups, slots, canonical, p->lease,
                               out);
    }
    uint32_t bad;
    return rdx_tree_insert_many(t, &p->from, 1, &pages, &count, columns, t->groups, slots,
                                (uint64_t)t->groups * n, canonical, &p->lease, 1, out, &bad);
}

int rdx_tree_insert_pooled(rdx_tree *t, const void *pages, uint32_t count, rdx_pools *from,
                           rdx_pooled *p, int32_t *canonical, rdx_insert *out) {
    uint32_t columns[RDX_MAX_COLUMNS];
    uint32_t i, first;
    if (from->groups != t->groups) {
        return RDX_EARG;
    }
    memset(from->evicted, 0, t->groups * sizeof from->evicted[0]);
    rdx_resolve(t, p->from, &i, &first);
    p->group = t->groups;
    if (i == NIL || first != p->from.pages || first >= count || count > NIL / 4 ||
        (p->boundary && p->boundary != count) ||
        !is_simple(t, i, first, (const uint8_t *)pages + (size_t)first * t->page_bytes)) {
        return RDX_EFULL;
    }
    uint32_t n = count - first;
    if (!has_room(t, from, p, n)) {
        return RDX_EFULL;
    }
    if (make_slots(from, (uint64_t)t->groups * n) != RDX_OK) {
        return RDX_ENOMEM;
    }
    int32_t *slots = from->slots;
    for (uint32_t g = 0; g < t->groups; g++) {
        int32_t *row = slots + (size_t)g * n;
        uint32_t lo, hi;
        columns[g] = g * t->tiers;
        span_of(t, &t->rules[g], first, n, p->boundary, &lo, &hi);
        memset(row, 0xff, (size_t)n * sizeof(*row));
        if (take_slots(t, from, g, hi - lo, row + lo) != RDX_OK) {
            give_back(t, p, from, g, n);
            p->group = g;
            p->needed = hi - lo;
            return RDX_EFULL;
        }
    }
    int status = put(t, p, pages, count, columns, slots, canonical, out);
    if (status != RDX_OK) {
        give_back(t, p, from, t->groups, n);
        return status;
    }
    p->spare = 0;
    for (uint32_t g = 0; g < t->groups; g++) {
        uint32_t lo, hi;
        span_of(t, &t->rules[g], first, n, p->boundary, &lo, &hi);
        size_t at = (size_t)g * n + lo;
        p->spare += settle(from->pools[g], slots + at, canonical + at, hi - lo);
    }
    return RDX_OK;
}
