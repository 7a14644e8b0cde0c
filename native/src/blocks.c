/* blocks.c: columns where an entry does not stand at each page: windows, chunks and snapshots with
 * tombstones between them, and blocks of several pages. A node has one interval a column, so what
 * would need a second one splits the edge; of a full group it is refused. A snapshot always stands
 * at the end of a node (I28). Keeps I3, I6, I12, I27.
 *
 *     a window over boundaries 3 and 8 of an edge      becomes      two nodes
 *     pages   0 1 2 3 4 5 6 7                             U [0 1 2]   A [3 4 5 6 7]
 *     slots   . s s . . . s s                                . s s       . . . s s
 */
#include "tree.h"

static bool splits(const rdx_tree *t, uint32_t column) { return is_sparse(t, column); }

uint32_t rdx_splits_of(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                       const int32_t *slots) {
    const rdx_group *g = rule_of(t, column);
    if (!splits(t, column) || g->rule == RDX_RULE_SCRATCH) {
        return 0;
    }
    uint32_t step = g->block_pages;
    uint32_t begin = rdx_entry_from(g, first) - first;
    bool single = g->rule == RDX_RULE_STATE; /* each is a run of its own */
    uint32_t runs = begin < n && slots[begin] != RDX_NO_SLOT;
    for (uint32_t j = 1; step == 1 && j < n; j++) {
        runs += (slots[j] != RDX_NO_SLOT) & (single | (slots[j - 1] == RDX_NO_SLOT));
    }
    for (uint64_t j = (uint64_t)begin + step; step > 1 && j < n; j += step) {
        runs += (slots[j] != RDX_NO_SLOT) & (single | (slots[j - step] == RDX_NO_SLOT));
    }
    for (; runs && !single && rdx_end_of(t, i) > first; i = node_at(t, i)->parent) {
        runs++; /* one may go on over the end of a node */
    }
    return runs < n ? runs : n;
}

/* Makes n blocks, of which the first ends with page p, part of the interval of node i, beside which
 * they lie. More than one only where a block is a page. */
static void put_blocks(rdx_tree *t, uint32_t i, uint32_t column, uint32_t p, uint32_t n,
                       const int32_t *slots) {
    const node *x = node_at(t, i);
    cell *k = cell_at(t, i, column);
    uint32_t at = p - x->start;
    uint32_t begin = rdx_block_begin(rule_of(t, column), at);
    int32_t *row = slots_at(t, x, column);
    for (uint32_t j = begin; j < at; j++) {
        row[j] = RDX_NO_SLOT;
    }
    memcpy(row + at, slots, (size_t)n * 4);
    bool first = k->hi == k->lo;
    if (first) {
        rdx_kids_add(t, x->parent, column, true);
        k->stamp = rdx_newest_stamp(t, i);
        if (!k->stamp && is_sparse(t, column)) {
            k->stamp = t->clock ? t->clock : 1; /* 0 is what is dead */
        }
        k->lo = begin;
        k->hi = at + n;
    } else if (at + n > k->hi) {
        k->hi = at + n;
    } else {
        k->lo = begin;
    }
    uint32_t pinned = x->protect ? n : 0;
    if (is_sparse(t, column)) {
        const uint32_t *pins = pins_at(t, x, t->group_of[column]) + at;
        for (pinned = 0; pinned < n && pins[n - 1 - pinned]; pinned++) {
        }
    }
    if (first) {
        rdx_policy_came(t, i, column);
    } else {
        rdx_policy_resident(t, i, column, n);
    }
    rdx_count(t, i, column, n, pinned);
}

/* Pages [lo, p] below the interval of node i, the last first. */
static uint32_t attach_below(rdx_tree *t, uint32_t i, uint32_t column, uint32_t lo, uint32_t hi,
                             const int32_t *slots) {
    const rdx_group *g = rule_of(t, column);
    uint32_t first = rdx_entry_from(g, lo);
    uint32_t got = 0;
    if (first >= hi) {
        return 0;
    }
    uint32_t last = hi - 1 - (hi - 1 - first) % g->block_pages;
    for (uint32_t p = last;; p -= g->block_pages) {
        const node *x = node_at(t, i);
        if (slots[p - lo] != RDX_NO_SLOT) {
            bool beside = p + 1 == x->start + cell_at(t, i, column)->lo;
            if (splits(t, column) && (!beside || g->rule == RDX_RULE_STATE)) {
                i = rdx_split(t, i, p + 1 - x->start);
                beside = true;
            }
            if (!beside) {
                return got; /* a second interval */
            }
            put_blocks(t, i, column, p, 1, &slots[p - lo]);
            got++;
        }
        if (p == first) {
            return got;
        }
    }
}

/* The first of [j, last] that has a slot, or the last one. All bits of RDX_NO_SLOT are set, so of
 * eight at a time. */
static uint32_t skip_empty(const int32_t *slots, uint32_t j, uint32_t last) {
    for (; j + 8 <= last; j += 8) {
        int32_t all = slots[j];
        for (uint32_t k = 1; k < 8; k++) {
            all &= slots[j + k];
        }
        if (all != RDX_NO_SLOT) {
            break;
        }
    }
    while (j < last && slots[j] == RDX_NO_SLOT) {
        j++;
    }
    return j;
}

/* Pages [lo, hi) behind the interval of node i, the first first; node i stays the lower part. */
static uint32_t attach_behind(rdx_tree *t, uint32_t i, uint32_t column, uint32_t lo, uint32_t hi,
                              const int32_t *slots) {
    const rdx_group *g = rule_of(t, column);
    uint32_t got = 0;
    uint32_t step = g->block_pages;
    uint32_t count = hi - lo;
    bool runs = step == 1 && g->rule != RDX_RULE_STATE;
    for (uint32_t j = rdx_entry_from(g, lo) - lo; j < count; j += step) {
        j = step == 1 ? skip_empty(slots, j, count - 1) : j;
        if (slots[j] == RDX_NO_SLOT) {
            continue;
        }
        const node *x = node_at(t, i);
        const cell *k = cell_at(t, i, column);
        uint32_t at = lo + j - x->start;
        uint32_t to = i;
        if (g->rule == RDX_RULE_STATE) {
            to = at + 1 < x->len ? rdx_split(t, i, at + 1) : i;
        } else if (k->hi > k->lo && rdx_block_begin(g, at) != k->hi) {
            if (!splits(t, column)) {
                break; /* a second interval */
            }
            rdx_split(t, i, k->hi);
        }
        uint32_t n = 1;
        while (runs && j + n < count && slots[j + n] != RDX_NO_SLOT) {
            n++;
        }
        put_blocks(t, to, column, lo + j, n, slots + j);
        got += n;
        j += n - 1;
    }
    return got;
}

uint32_t rdx_attach_blocks(rdx_tree *t, uint32_t i, uint32_t column, uint32_t lo, uint32_t hi,
                           const int32_t *slots, uint32_t *duplicates) {
    const rdx_group *g = rule_of(t, column);
    if (g->rule == RDX_RULE_SCRATCH) {
        return 0;
    }
    const cell *k = cell_at(t, i, column);
    uint32_t start = node_at(t, i)->start;
    uint32_t got = 0;
    uint32_t from = lo;
    if (k->hi > k->lo) {
        uint32_t a = start + k->lo;
        uint32_t e = start + k->hi;
        uint32_t first = rdx_entry_from(g, lo > a ? lo : a);
        for (uint64_t p = first; p < (e < hi ? e : hi); p += g->block_pages) {
            *duplicates += slots[p - lo] != RDX_NO_SLOT;
        }
        from = e > lo ? e : lo;
        got += attach_below(t, i, column, lo, a < hi ? a : hi, slots);
    }
    if (from < hi) {
        got += attach_behind(t, i, column, from, hi, slots + (from - lo));
    }
    return got;
}

/* ---------------------------------------------------------------- a window slides */
typedef struct sink { /* where slots go */
    uint32_t first;
    int32_t *slots;
    uint8_t *ids;
    uint32_t freed;
} sink;

static void give(const rdx_tree *t, const node *x, uint32_t column, uint32_t at, sink *out) {
    int32_t *slot = &slots_at(t, x, column)[at];
    if (out->ids == BY_PAGE) {
        out->slots[x->start + at - out->first] = *slot;
    } else {
        out->slots[out->freed] = *slot;
        if (out->ids) {
            uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
            const uint8_t *id = t->key_bytes ? keys_at(t, x) : pages_at(t, x);
            memcpy(out->ids + (size_t)out->freed * width, id + (size_t)at * width, width);
        }
    }
    *slot = RDX_NO_SLOT;
    out->freed++;
}

/* Pages [a, e) of node i. */
static void drop_in_node(rdx_tree *t, uint32_t i, uint32_t column, uint32_t a, uint32_t e,
                         sink *out) {
    const node *x = node_at(t, i);
    const rdx_group *g = rule_of(t, column);
    cell *k = cell_at(t, i, column);
    uint32_t b = rdx_width(g);
    uint32_t lo = a > k->lo ? a : k->lo;
    uint32_t hi = e < k->hi ? e : k->hi;
    const uint32_t *pins = pins_at(t, x, t->group_of[column]);
    uint32_t first = b == 1 ? lo : (x->start + lo + b) / b * b - 1 - x->start;
    uint32_t end = first; /* behind the last entry that goes: pins lie at the end */
    while (end < hi && pins[end] == 0) {
        end += b;
    }
    if (end == first) {
        return;
    }
    for (uint32_t at = end; at > first; at -= b) {
        give(t, x, column, at - b, out);
    }
    rdx_count(t, i, column, -(int64_t)((end - first) / b), 0);
    rdx_policy_resident(t, i, column, -(int64_t)((end - first) / b));
    uint32_t begin = rdx_block_begin(g, first);
    uint32_t behind = end - b + 1;
    if (begin > k->lo && behind < k->hi) {
        uint32_t upper = rdx_split(t, i, behind);
        cell_at(t, upper, column)->hi = begin;
        rdx_review(t, upper);
    } else if (behind < k->hi) {
        k->lo = behind;
    } else if (begin > k->lo) {
        k->hi = begin;
    } else {
        rdx_cell_empty(t, i, column);
    }
    rdx_review(t, i);
}

uint32_t rdx_drop_span(rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                       int32_t *slots, uint8_t *ids) {
    sink out = {first, slots, ids, 0};
    if (rule_of(t, column)->rule == RDX_RULE_SCRATCH) {
        return 0;
    }
    while (rdx_end_of(t, i) > first) {
        const node *x = node_at(t, i);
        uint32_t parent = x->parent;
        uint32_t a = x->start > first ? 0 : first - x->start;
        uint64_t e = (uint64_t)first + n < x->start ? 0 : (uint64_t)first + n - x->start;
        drop_in_node(t, i, column, a, e < x->len ? (uint32_t)e : x->len, &out);
        i = parent;
    }
    return out.freed;
}

int rdx_slots_drop_span(rdx_tree *t, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                        int32_t *slots) {
    if (column >= t->columns || !is_sparse(t, column)) {
        return RDX_EARG;
    }
    int status = rdx_make_room(t, 1);
    if (status != RDX_OK) {
        return status;
    }
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL || pages < (uint64_t)first + n) {
        return RDX_ESTALE;
    }
    memset(slots, 0xff, (size_t)n * 4);
    rdx_drop_span(t, i, column, first, n, slots, BY_PAGE);
    rdx_trim(t, i);
    return RDX_OK;
}

int rdx_entries_get(const rdx_tree *t, rdx_cursor at, uint32_t column, uint32_t first,
                    uint32_t *out, uint32_t max, uint32_t *n) {
    uint32_t end;
    uint32_t pages;
    *n = 0;
    rdx_resolve(t, at, &end, &pages);
    if (end == NIL) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    uint32_t b = rdx_width(rule_of(t, column));
    for (uint32_t round = 0; round < 2; round++) { /* counted, then written from the end */
        uint32_t left = *n;
        for (uint32_t i = end; rdx_end_of(t, i) > first; i = node_at(t, i)->parent) {
            const node *x = node_at(t, i);
            const cell *k = cell_at(t, i, column);
            uint32_t lo = x->start + k->lo > first ? x->start + k->lo : first;
            uint32_t hi = x->start + k->hi < pages ? x->start + k->hi : pages;
            for (uint32_t p = rdx_round_down(hi, b); k->hi > k->lo && p > lo; p -= b) {
                if (round == 0) {
                    ++*n;
                } else if (--left < max) {
                    out[left] = p - 1;
                }
            }
        }
    }
    return RDX_OK;
}
