/* pins.c: page pins. A lease pins the path in the structure (tree.c); of a group that is not full
 * it pins single pages, counted in a row of the edge buffers, so that a split changes nothing. The
 * pages that a lease pins end where a node ends, so within a node the counts never fall. Keeps
 * I13-I15.
 *
 *     pages of a path      0 1 2 3 4 5 6 7 8 | 9 10 11
 *     a lease at 9                     1 1 1 |            a window of 3 pages
 *     and one at 12, too               1 1 1 | 1  1  1
 */
#include "tree.h"

#define MOST_ASKED 5 /* lines, of 16 counts: a window of a thousand tokens */

uint32_t rdx_first_block(const rdx_tree *t, uint32_t i, uint32_t column) {
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, column);
    uint32_t b = rdx_width(rule_of(t, column));
    return b == 1 ? k->lo : (x->start + k->lo + b) / b * b - 1 - x->start;
}

/* Pages [a, e) of node i became pinned, or free. */
static void shield(rdx_tree *t, uint32_t i, uint32_t g, uint32_t a, uint32_t e, bool on,
                   uint32_t *next) {
    for (uint32_t tier = 0; tier < t->tiers; tier++) {
        uint32_t c = g * t->tiers + tier;
        const cell *k = cell_at(t, i, c);
        if (k->hi == k->lo) {
            continue;
        }
        uint32_t lo = k->lo > a ? k->lo : a;
        uint32_t hi = k->hi < e ? k->hi : e;
        uint32_t held = rdx_entries(node_at(t, i), &t->rules[g], lo, hi);
        rdx_count(t, i, c, 0, on ? (int64_t)held : -(int64_t)held);
        rdx_settle(t, i, c, next[tier]);
        next[tier] = k->listed ? i : next[tier];
    }
}

/* How many of n counts, which never fall, are `least`, the lowest that there can be. */
static uint32_t count_least(const uint32_t *counts, uint32_t n, uint32_t least) {
    if (counts[n - 1] == least) { /* as a rule: nobody else pins any, or somebody all */
        return n;
    }
    uint32_t lo = 0;
    for (uint32_t hi = counts[0] == least ? n : 0; lo < hi;) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (counts[middle] == least) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* One pin more, or less, on pages [from, end) of the path that ends with node i. */
static void pins_add(rdx_tree *t, uint32_t i, uint32_t g, uint32_t from, bool on) {
    uint32_t next[RDX_MAX_TIERS];
    memset(next, 0xff, sizeof next);
    for (; rdx_end_of(t, i) > from; i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        uint32_t a = from > x->start ? from - x->start : 0;
        uint32_t n = x->len - a;
        uint32_t *pins = pins_at(t, x, g) + a;
        uint32_t changed = count_least(pins, n, on ? 0 : 1);
        for (uint32_t p = 0; p < n; p++) {
            pins[p] += on ? 1 : UINT32_MAX;
        }
        if (changed) {
            shield(t, i, g, a, a + changed, on, next);
        }
        if (x->start <= from) {
            break;
        }
    }
}

/* Asks for the lines of the last counts of node x, if its buffer holds `cap` pages. */
static void ask_counts(const rdx_tree *t, const node *x, uint32_t g, uint32_t cap) {
    const uint8_t *row = buffer_base(x->buf) + rdx_pages_bytes(t, cap);
    const uint8_t *counts = row + 4 * ((size_t)cap * t->pin_row[g] + x->off);
    uint32_t most = t->rules[g].rule == RDX_RULE_STATE ? 1 : MOST_ASKED;
    for (uint32_t k = 0, p = x->len; k < most && p; k++, p = p > 16 ? p - 16 : 0) {
        __builtin_prefetch(counts + 4 * (size_t)(p - 1), 1);
    }
}

/* Where the counts stand is known once the buffer's header is there. As a rule the buffer ends with
 * the node: they are asked for as if it did, so that they need not wait for that. */
void rdx_pins_ask(const rdx_tree *t, uint32_t i) {
    const node *x = node_at(t, i);
    if (!t->mixed || !x->buf) {
        return;
    }
    uint32_t likely = x->off + x->len;
    for (uint32_t g = 0; g < t->groups; g++) {
        if (t->pin_row[g]) {
            __builtin_prefetch(cell_at(t, i, g * t->tiers), 1);
            ask_counts(t, x, g, likely);
        }
    }
    for (uint32_t c = 0; c < t->columns; c++) { /* where it stands in its lists, or stood */
        const cell *k = cell_at(t, i, c);
        if (k->prev != NIL) {
            __builtin_prefetch(cell_at(t, k->prev, c), 1);
        }
        if (k->next != NIL) {
            __builtin_prefetch(cell_at(t, k->next, c), 1);
        }
    }
    for (uint32_t g = 0; x->buf->cap != likely && g < t->groups; g++) {
        if (t->pin_row[g]) {
            ask_counts(t, x, g, x->buf->cap);
        }
    }
}

static void pins_of(rdx_tree *t, uint64_t mask, uint32_t first, uint32_t i, bool on) {
    uint32_t end = rdx_end_of(t, i);
    for (uint32_t g = 0; t->mixed && g < t->groups; g++) {
        if (t->pin_row[g] && mask >> g & 1) {
            uint32_t from = first == RDX_BY_RULE ? rdx_first_entry(t, &t->rules[g], end) : first;
            pins_add(t, i, g, from, on);
        }
    }
}

void rdx_pins_put(rdx_tree *t, const lease_slot *l, uint32_t i) {
    pins_of(t, l->mask, l->first, i, true);
}

void rdx_pins_off(rdx_tree *t, const lease_slot *l, uint32_t i) {
    pins_of(t, l->mask, l->first, i, false);
}

void rdx_lease_to(rdx_tree *t, lease_slot *l, uint32_t to) {
    lease_slot old = *l;
    l->first = RDX_BY_RULE;
    rdx_pins_put(t, l, to);
    rdx_pins_off(t, &old, old.node);
    rdx_lease_path_to(t, l, to);
}

int rdx_lease_narrow(rdx_tree *t, uint64_t lease, uint64_t mask) {
    lease_slot *l = rdx_lease_of(t, lease);
    if (!l) {
        return RDX_ELEASE;
    }
    pins_of(t, l->mask & ~mask, l->first, l->node, false);
    l->mask &= mask;
    return RDX_OK;
}
