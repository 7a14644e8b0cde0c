/* order.c: what goes first. Two lists for each column, of what is dead (dead.c) and of the rest,
 * in the order of last use. In a full column a node stands in one only when it was leased or
 * inserted directly, or became a leaf; in another, as long as its first block is not pinned, so
 * that no tombstone hides a victim. Keeps I16-I18, I20.
 *
 *     head (oldest)                                    tail (newest)
 *       A ----------- B ----------- C ----------- D        stamps ascend, equal ones allowed
 *
 * An inner node that reaches the head is unlinked: its leaves are newer. A leaf that loses its last
 * block hands its stamp and its place to its parent. Nothing scans past what cannot go: protected
 * nodes are not in the list.
 */
#include "tree.h"

/* The list where node i belongs. */
static uint32_t list_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    return t->mixed && rdx_is_dead(t, i, column) ? t->columns + column : column;
}

static void link_between(rdx_tree *t, uint32_t i, uint32_t column, uint32_t which, uint32_t prev,
                         uint32_t next) {
    order_list *l = rdx_list_of(t, i, which);
    cell *c = cell_at(t, i, column);
    c->prev = prev;
    c->next = next;
    c->listed = which == column ? LISTED_LIVE : LISTED_DEAD;
    if (prev == NIL) {
        l->head = i;
    } else {
        cell_at(t, prev, column)->next = i;
    }
    if (next == NIL) {
        l->tail = i;
    } else {
        cell_at(t, next, column)->prev = i;
    }
    l->listed++;
    if (t->tenants) {
        rdx_tenant_listed(t, i, column, which, true);
    }
    if (t->policy && which == column) {
        rdx_policy_listed(t, i, column);
    }
}

void rdx_list_remove(rdx_tree *t, uint32_t i, uint32_t column) {
    cell *c = cell_at(t, i, column);
    if (!c->listed) {
        return;
    }
    if (t->policy && c->listed == LISTED_LIVE) {
        rdx_policy_unlisted(t, i, column);
    }
    uint32_t which = c->listed == LISTED_DEAD ? t->columns + column : column;
    order_list *l = rdx_list_of(t, i, which);
    if (c->prev == NIL) {
        l->head = c->next;
    } else {
        cell_at(t, c->prev, column)->next = c->next;
    }
    if (c->next == NIL) {
        l->tail = c->prev;
    } else {
        cell_at(t, c->next, column)->prev = c->prev;
    }
    c->listed = 0;
    l->listed--;
    if (t->tenants) {
        rdx_tenant_listed(t, i, column, which, false);
    }
}

static uint32_t listed_in(uint32_t column, uint32_t which) {
    return which == column ? LISTED_LIVE : LISTED_DEAD;
}

void rdx_list_tail(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp) {
    cell *c = cell_at(t, i, column);
    uint32_t which = c->listed == LISTED_DEAD ? t->columns + column : column;
    which = c->listed ? which : list_of(t, i, column);
    rdx_list_remove(t, i, column);
    c->stamp = stamp;
    link_between(t, i, column, which, rdx_list_of(t, i, which)->tail, NIL);
}

#define MOST_HOPS 8

/* Whether node a goes later than one with this stamp that begins at page `start`. */
static bool is_newer(const rdx_tree *t, uint32_t a, uint32_t column, uint64_t stamp,
                     uint32_t start) {
    uint64_t own = cell_at(t, a, column)->stamp;
    return own > stamp || (own == stamp && is_sparse(t, column) && node_at(t, a)->start > start);
}

/* A node of the list near the place that unlisted i had there, or NIL: what stood before it then,
 * or what stood before that. A hint, that may lead anywhere in the list. */
static uint32_t near_place(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t which) {
    uint32_t listed = listed_in(column, which);
    uint32_t whose = rdx_tenant_of(t, i);
    const cell *c = cell_at(t, i, column);
    if (c->next < t->node_used && cell_at(t, c->next, column)->listed == listed &&
        rdx_tenant_of(t, c->next) == whose) {
        return c->next;
    }
    for (uint32_t hops = 0; hops < MOST_HOPS && c->prev < t->node_used; hops++) {
        uint32_t near = c->prev;
        c = cell_at(t, near, column);
        if (c->listed == listed && rdx_tenant_of(t, near) == whose) {
            return near;
        }
    }
    return NIL;
}

/* Puts i into its list `which`, where its stamp belongs: it is looked for from both ends and from
 * where i stood before, in step. */
static void put_sorted(rdx_tree *t, uint32_t i, uint32_t column, uint32_t which, uint64_t stamp) {
    rdx_list_remove(t, i, column);
    uint32_t start = node_at(t, i)->start;
    const order_list *l = rdx_list_of(t, i, which);
    uint32_t before = l->tail;
    uint32_t after = l->head;
    uint32_t near = near_place(t, i, column, which);
    while (before != NIL && is_newer(t, before, column, stamp, start)) {
        if (is_newer(t, after, column, stamp, start)) {
            before = cell_at(t, after, column)->prev;
            break;
        }
        if (near != NIL) {
            uint32_t then = cell_at(t, near, column)->next;
            bool newer = is_newer(t, near, column, stamp, start);
            if (!newer && (then == NIL || is_newer(t, then, column, stamp, start))) {
                before = near;
                break;
            }
            near = newer ? cell_at(t, near, column)->prev : then;
        }
        before = cell_at(t, before, column)->prev;
        after = cell_at(t, after, column)->next;
    }
    cell_at(t, i, column)->stamp = stamp;
    uint32_t next = before == NIL ? l->head : cell_at(t, before, column)->next;
    link_between(t, i, column, which, before, next);
}

void rdx_list_sorted(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp) {
    put_sorted(t, i, column, list_of(t, i, column), stamp);
}

void rdx_list_after(rdx_tree *t, uint32_t i, uint32_t column, uint32_t before, uint64_t stamp) {
    uint32_t which = list_of(t, i, column);
    if (before != NIL && cell_at(t, before, column)->listed != listed_in(column, which)) {
        put_sorted(t, i, column, which, stamp);
        return;
    }
    rdx_list_remove(t, i, column);
    cell_at(t, i, column)->stamp = stamp;
    const order_list *l = rdx_list_of(t, i, which);
    uint32_t next = before == NIL ? l->head : cell_at(t, before, column)->next;
    link_between(t, i, column, which, before, next);
}

void rdx_list_before(rdx_tree *t, uint32_t i, uint32_t column, uint32_t next, uint64_t stamp,
                     uint32_t listed) {
    uint32_t which = listed == LISTED_DEAD ? t->columns + column : column;
    uint32_t start = node_at(t, i)->start;
    rdx_list_remove(t, i, column);
    if (next != NIL && cell_at(t, next, column)->listed == listed &&
        is_newer(t, next, column, stamp, start)) {
        uint32_t prev = cell_at(t, next, column)->prev;
        if (prev == NIL || !is_newer(t, prev, column, stamp, start)) {
            cell_at(t, i, column)->stamp = stamp;
            link_between(t, i, column, which, prev, next);
            return;
        }
    }
    put_sorted(t, i, column, which, stamp);
}

void rdx_list_head(rdx_tree *t, uint32_t i, uint32_t column) {
    uint32_t head = rdx_list_of(t, i, list_of(t, i, column))->head;
    uint64_t stamp = head == NIL ? t->clock : cell_at(t, head, column)->stamp;
    rdx_list_after(t, i, column, NIL, stamp);
}

void rdx_list_inherit(rdx_tree *t, uint32_t x, uint32_t column) {
    uint32_t p = node_at(t, x)->parent;
    const cell *c = cell_at(t, x, column);
    while (!(node_at(t, p)->flags & NODE_ROOT) && rdx_passes(node_at(t, p), rule_of(t, column))) {
        p = node_at(t, p)->parent;
    }
    cell *k = cell_at(t, p, column);
    if (k->hi == k->lo) {
        return; /* a hole, or a root */
    }
    if (node_at(t, p)->protect) {
        k->stamp = c->stamp > k->stamp ? c->stamp : k->stamp; /* it is listed when its pin goes */
        return;
    }
    /* A parent with other children needs the stamp only if they may be older: not while x, the
     * oldest of all, is at the head. */
    bool oldest = c->prev == NIL && c->listed != LISTED_DEAD;
    bool needs = k->listed ? k->stamp < c->stamp : k->kids == 0 || !oldest;
    if (c->listed && needs) {
        rdx_list_after(t, p, column, x, c->stamp);
    } else if (!k->listed && k->kids == 0) {
        rdx_list_head(t, p, column); /* the child was an inner node: its stamp says nothing */
    }
}

void rdx_list_leaves(rdx_tree *t, uint32_t i, uint32_t column, uint32_t first) {
    if (is_sparse(t, column)) {
        return; /* settled where it changed */
    }
    for (; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const cell *k = cell_at(t, i, column);
        if (!node_at(t, i)->protect && k->hi != k->lo && k->kids == 0 && !k->listed) {
            uint64_t stamp = k->stamp ? k->stamp : t->clock;
            rdx_list_sorted(t, i, column, stamp);
        }
        if (node_at(t, i)->start <= first) {
            break;
        }
    }
}

/* The blocks of a group that is not full which a hit at the end of node i needs were used now. */
static void stamp_window(rdx_tree *t, uint32_t i, uint32_t g) {
    uint32_t next[RDX_MAX_TIERS];
    uint32_t from = rdx_first_entry(t, &t->rules[g], rdx_end_of(t, i));
    memset(next, 0xff, sizeof next);
    for (; rdx_end_of(t, i) > from; i = node_at(t, i)->parent) {
        for (uint32_t tier = 0; tier < t->tiers; tier++) {
            uint32_t c = g * t->tiers + tier;
            cell *k = cell_at(t, i, c);
            if (k->hi == k->lo) {
                continue;
            }
            if (!k->listed) {
                k->stamp = t->clock; /* listed when the last pin goes */
                continue;
            }
            rdx_list_before(t, i, c, next[tier], t->clock, k->listed);
            next[tier] = i;
        }
    }
}

void rdx_stamp_path(rdx_tree *t, uint32_t i) {
    for (uint32_t g = 0; t->mixed && g < t->groups; g++) {
        if (t->pin_row[g]) {
            stamp_window(t, i, g);
        }
    }
    uint64_t open = (t->columns == 64 ? UINT64_MAX : (1ull << t->columns) - 1) & ~t->sparse;
    while (open && !(node_at(t, i)->flags & NODE_ROOT)) {
        for (uint32_t c = 0; c < t->columns; c++) {
            const cell *k = cell_at(t, i, c);
            if (!(open >> c & 1) || k->hi == k->lo) {
                continue;
            }
            open &= ~(1ull << c);
            if (node_at(t, i)->protect) {
                cell_at(t, i, c)->stamp = t->clock; /* listed when the last pin goes */
            } else {
                rdx_list_tail(t, i, c, t->clock);
            }
        }
        i = node_at(t, i)->parent;
    }
}

void rdx_stamp_since(rdx_tree *t, uint32_t i, uint64_t since) {
    rdx_stamp_path(t, i);
    if (t->policy) {
        rdx_policy_used(t, i, since);
    }
}

void rdx_use_path(rdx_tree *t, uint32_t i, uint32_t pages) {
    t->clock++;
    rdx_stamp_since(t, rdx_make_room(t, 1) == RDX_OK ? rdx_end_node(t, i, pages) : i, ALWAYS);
}

int rdx_touch(rdx_tree *t, rdx_cursor at) {
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    rdx_use_path(t, i, pages);
    return RDX_OK;
}

/* The next victim: what is dead, else the oldest leaf. Inner nodes at the head are unlinked: their
 * leaves are newer, and hand their stamps on. */
uint32_t rdx_next_victim(rdx_tree *t, uint32_t column, claim for_whom) {
    if (t->tenants) {
        return rdx_tenant_victim(t, column, for_whom);
    }
    if (t->lists[t->columns + column].head != NIL) {
        return t->lists[t->columns + column].head;
    }
    return rdx_living_victim(t, column, 0);
}

uint32_t rdx_living_victim(rdx_tree *t, uint32_t column, uint32_t tenant) {
    return rdx_policy_orders(t, column) ? rdx_policy_victim(t, column, tenant)
                                        : rdx_oldest_leaf(t, column, tenant);
}

uint32_t rdx_oldest_leaf(rdx_tree *t, uint32_t column, uint32_t tenant) {
    const order_list *l = &t->lists[(size_t)tenant * 2 * t->columns + column];
    for (;;) {
        uint32_t i = l->head;
        if (i == NIL || is_sparse(t, column) || cell_at(t, i, column)->kids == 0) {
            return i;
        }
        rdx_list_remove(t, i, column);
        cell_at(t, i, column)->stamp = 0;
    }
}

static void give(const rdx_tree *t, const node *x, uint32_t column, uint32_t at, int32_t *slot,
                 uint8_t *id) {
    *slot = slots_at(t, x, column)[at];
    if (id) {
        uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
        const uint8_t *ids = t->key_bytes ? keys_at(t, x) : pages_at(t, x);
        memcpy(id, ids + (size_t)at * width, width);
    }
}

/* What the next victim will give, if the list alone decides: its last slots are asked for while
 * those of this one are copied, and what leads to the one behind it. Victims come in rows, and each
 * would wait for memory three times over otherwise. */
static rdx_ahead ask_next(const rdx_tree *t, uint32_t i, uint32_t column) {
    rdx_ahead then = {NULL, NULL, 0};
    uint32_t next = t->policy ? NIL : cell_at(t, i, column)->next;
    if (next == NIL) {
        return then;
    }
    const cell *k = cell_at(t, next, column);
    then.a = (const uint8_t *)(slots_at(t, node_at(t, next), column) + k->hi);
    then.bytes = 4 * (uint64_t)(k->hi - k->lo);
    if (k->next != NIL) {
        __builtin_prefetch(node_at(t, k->next)->buf);
    }
    return then;
}

#if RDX_HAVE_AVX2
#include <immintrin.h>
#define LINE 16u /* slots */

/* Slots [from, from+8), turned round. */
static inline RDX_TARGET_AVX2 __m256i turned(const int32_t *from) {
    __m256i slots = _mm256_loadu_si256((const __m256i *)(const void *)from);
    return _mm256_permutevar8x32_epi32(slots, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

/* Whole lines of both halves of the run in step, so that twice as much is fetched ahead; how many
 * slots. A line of `then` is asked for with each. */
RDX_TARGET_AVX2 static uint32_t give_lines(const int32_t *end, uint32_t n, int32_t *restrict slots,
                                           const rdx_ahead *then) {
    uint32_t half = n / 2 / LINE * LINE;
    for (uint32_t done = 0; done < half; done += LINE) {
        for (uint32_t k = done; k < n && k <= done + half; k += half) {
            const int32_t *line = end - k - LINE;
            if (4 * (uint64_t)(k + LINE) <= then->bytes) {
                __builtin_prefetch(then->a - 4 * (uint64_t)(k + LINE), 0, 2);
            }
            _mm256_storeu_si256((__m256i *)(void *)(slots + k), turned(line + 8));
            _mm256_storeu_si256((__m256i *)(void *)(slots + k + 8), turned(line));
        }
    }
    return 2 * half;
}
#endif

/* The n slots that end at `end`, the last first; asks for as many of `then`. */
static void give_slots(const int32_t *end, uint32_t n, int32_t *restrict slots,
                       const rdx_ahead *then) {
    uint32_t k = 0;
#if RDX_HAVE_AVX2
    if (rdx_path() == RDX_PATH_AVX2) {
        k = give_lines(end, n, slots, then);
    }
#endif
    for (; k < n; k++) {
        slots[k] = *(end - 1 - k);
    }
}

/* Takes up to n blocks from the front of node i, as far as no page is pinned. */
static uint32_t take_front(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n, int32_t *slots,
                           uint8_t *ids, uint32_t width) {
    const node *x = node_at(t, i);
    cell *c = cell_at(t, i, column);
    uint32_t b = rdx_width(rule_of(t, column));
    const uint32_t *pins = pins_at(t, x, t->group_of[column]);
    uint32_t taken = 0;
    for (uint32_t at = rdx_first_block(t, i, column); taken < n && c->lo < c->hi; at += b) {
        if (pins[at]) {
            break;
        }
        give(t, x, column, at, slots + taken, ids ? ids + (size_t)taken * width : NULL);
        taken++;
        c->lo = at + 1;
    }
    return taken;
}

/* Takes up to n blocks from the end of leaf i. */
static uint32_t take_end(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n, int32_t *slots,
                         uint8_t *ids, uint32_t width) {
    const node *x = node_at(t, i);
    cell *c = cell_at(t, i, column);
    const rdx_group *g = rule_of(t, column);
    uint32_t taken = 0;
    if (rdx_width(g) == 1 && !ids) {
        rdx_ahead then = ask_next(t, i, column);
        taken = n < c->hi - c->lo ? n : c->hi - c->lo;
        give_slots(slots_at(t, x, column) + c->hi, taken, slots, &then);
        c->hi -= taken;
        return taken;
    }
    for (; taken < n && c->lo < c->hi; taken++) {
        uint32_t at = c->hi - 1;
        give(t, x, column, at, slots + taken, ids ? ids + (size_t)taken * width : NULL);
        uint32_t begin = rdx_block_begin(g, at);
        c->hi = begin > c->lo ? begin : c->lo;
    }
    return taken;
}

/* Takes up to n blocks of node i; the caller trims. */
static uint32_t take(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n, int32_t *slots,
                     uint8_t *ids) {
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    uint32_t taken = is_sparse(t, column) ? take_front(t, i, column, n, slots, ids, width)
                                          : take_end(t, i, column, n, slots, ids, width);
    rdx_count(t, i, column, -(int64_t)taken, 0);
    rdx_policy_resident(t, i, column, -(int64_t)taken);
    if (cell_at(t, i, column)->hi == cell_at(t, i, column)->lo) {
        rdx_cell_empty(t, i, column);
    }
    if (t->mixed) {
        rdx_review(t, i);
    }
    return taken;
}

int rdx_evict_for(rdx_tree *t, uint32_t column, claim for_whom, bool once, uint32_t n,
                  uint64_t upto, int32_t *slots, uint8_t *ids, rdx_handle *roots, uint32_t *freed) {
    *freed = 0;
    if (column >= t->columns) {
        return RDX_EARG;
    }
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    while (*freed < n) {
        uint32_t i = rdx_next_victim(t, column, for_whom);
        const cell *c = i == NIL ? NULL : cell_at(t, i, column);
        if (!c || (c->listed == LISTED_LIVE && rdx_policy_rank(t, i, column) > upto)) {
            break;
        }
        uint32_t most = roots ? 1 : n - *freed;
        most = t->tenants ? rdx_tenant_turn(t, i, column, for_whom, most) : most;
        if (t->policy && c->listed == LISTED_LIVE) {
            rdx_policy_going(t, i, column, most);
        }
        uint32_t whose = rdx_tenant_of(t, i);
        rdx_handle root = roots ? handle_of(t, node_at(t, i)->root) : 0;
        uint32_t taken =
            take(t, i, column, most, slots + *freed, ids ? ids + (size_t)*freed * width : NULL);
        for (uint32_t k = 0; roots && k < taken; k++) {
            roots[*freed + k] = root;
        }
        if (t->tenants) {
            rdx_tenant_evicted(t, whose, column, taken);
        }
        *freed += taken;
        rdx_trim(t, i);
        if (once) {
            break;
        }
    }
    return RDX_OK;
}

int rdx_evict(rdx_tree *t, uint32_t column, uint32_t n, uint64_t upto, int32_t *slots, uint8_t *ids,
              uint32_t *freed) {
    return rdx_evict_for(t, column, FOR_ANYBODY, false, n, upto, slots, ids, NULL, freed);
}

static int forget_sparse(rdx_tree *t, uint32_t i, uint32_t pages, uint32_t first, uint32_t column,
                         int32_t *slots, uint8_t *ids, uint32_t *freed) {
    int status = first < pages ? rdx_make_room(t, 1) : RDX_OK;
    if (status == RDX_OK && first < pages) {
        *freed = rdx_drop_span(t, i, column, first, pages - first, slots, ids);
        rdx_trim(t, i);
    }
    return status;
}

int rdx_forget(rdx_tree *t, rdx_cursor at, uint32_t first, uint32_t column, int32_t *slots,
               uint8_t *ids, uint32_t *freed) {
    uint32_t i;
    uint32_t pages;
    *freed = 0;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    if (is_sparse(t, column)) {
        return forget_sparse(t, i, pages, first, column, slots, ids, freed);
    }
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    while (!(node_at(t, i)->flags & NODE_ROOT) && node_at(t, i)->protect == 0) {
        const node *x = node_at(t, i);
        const cell *c = cell_at(t, i, column);
        uint32_t keep = first > x->start ? first - x->start : 0;
        if (c->kids || keep >= x->len || x->start + x->len > pages) {
            break;
        }
        uint32_t go = rdx_entries(x, rule_of(t, column), keep > c->lo ? keep : c->lo, c->hi);
        if (go) {
            *freed +=
                take(t, i, column, go, slots + *freed, ids ? ids + (size_t)*freed * width : NULL);
        }
        uint32_t parent = x->parent;
        rdx_trim(t, i);
        if (keep || node_of(t, handle_of(t, parent)) == NIL) {
            break;
        }
        i = parent;
    }
    return RDX_OK;
}

uint64_t rdx_evict_peek(rdx_tree *t, uint32_t column) {
    uint32_t i = column < t->columns ? rdx_next_victim(t, column, FOR_ANYBODY) : NIL;
    if (i == NIL) {
        return UINT64_MAX;
    }
    return cell_at(t, i, column)->listed == LISTED_DEAD ? 0 : rdx_policy_rank(t, i, column);
}

int rdx_order_nodes(const rdx_tree *t, uint32_t column, rdx_handle *out, uint32_t max,
                    uint32_t *n) {
    *n = 0;
    if (column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t k = 2 * rdx_tenants_known(t); k-- > 0;) {
        bool dead = k >= rdx_tenants_known(t);
        uint32_t tenant = rdx_tenants_known(t) - 1 - k % rdx_tenants_known(t);
        uint32_t i = t->lists[(tenant * 2 + dead) * t->columns + column].head;
        uint32_t next = dead ? NIL : rdx_policy_next(t, column, tenant);
        if (next != NIL && *n < max) {
            out[(*n)++] = handle_of(t, next);
        }
        for (; i != NIL && *n < max; i = cell_at(t, i, column)->next) {
            if (i != next) {
                out[(*n)++] = handle_of(t, i);
            }
        }
    }
    return RDX_OK;
}
