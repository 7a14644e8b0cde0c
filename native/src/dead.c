/* dead.c: what no length of a hit can need any more goes first (I20). Judged by one node alone, so
 * that it costs nothing to keep: a block of a window, a chunk or a snapshot is dead when, in the
 * node, the full groups under every length that it serves are gone from all tiers; a leaf of a full
 * column when no tier has blocks below the node, and the node holds no snapshot, or no block of a
 * window, that a hit there would need. In doubt a node is alive. Keeps I16, I18.
 */
#include "tree.h"

typedef struct hull { /* of one group in one node, over all tiers */
    uint32_t lo;
    uint32_t hi;
} hull;

static hull hull_of(const rdx_tree *t, uint32_t i, uint32_t g) {
    const cell *row = cell_at(t, i, g * t->tiers);
    hull h = {NIL, 0};
    for (uint32_t k = 0; k < t->tiers; k++) {
        if (row[k].hi > row[k].lo) {
            h.lo = row[k].lo < h.lo ? row[k].lo : h.lo;
            h.hi = row[k].hi > h.hi ? row[k].hi : h.hi;
        }
    }
    return h;
}

/* Pages of node i, from its start, up to which the full groups are there in some tier. */
static uint32_t covered_pages(const rdx_tree *t, uint32_t i) {
    const node *x = node_at(t, i);
    uint32_t covered = x->len;
    for (uint32_t k = 0; k < t->nfulls; k++) {
        const rdx_group *rule = &t->rules[t->fulls[k]];
        uint32_t ahead = rule->lookahead_pages;
        uint32_t end = rdx_round_down(x->start + x->len, rule->block_pages);
        if (end <= x->start || end <= ahead) {
            continue; /* no block ends here */
        }
        hull h = hull_of(t, i, t->fulls[k]);
        uint32_t got = 0;
        if (h.hi && (h.lo == 0 || x->start + h.lo <= ahead)) {
            got = x->start + h.hi == end ? x->len : h.hi > ahead ? h.hi - ahead : 0;
        }
        covered = got < covered ? got : covered;
    }
    return covered;
}

static uint64_t round_up(uint64_t n, uint64_t b) { return (n + b - 1) / b * b; }

/* The least length, in pages, whose window or chunk begins at page `first` or behind it. */
static uint64_t least_length(const rdx_tree *t, const rdx_group *rule, uint64_t first) {
    uint64_t page = t->page_tokens;
    if (first == 0) {
        return rule->block_pages;
    }
    if (rule->rule == RDX_RULE_WINDOW) {
        return round_up(first + round_up(rule->reach_tokens, page) / page, rule->block_pages);
    }
    uint64_t chunk = round_up(first * page, rule->reach_tokens);
    return round_up(chunk / page + 1, rule->block_pages);
}

static bool serves_nothing(const rdx_tree *t, uint32_t i, uint32_t g) {
    const node *x = node_at(t, i);
    const rdx_group *rule = &t->rules[g];
    uint32_t covered = covered_pages(t, i);
    if (rule->rule == RDX_RULE_STATE) {
        return covered < x->len;
    }
    hull h = hull_of(t, i, g);
    uint64_t ahead = rule->lookahead_pages;
    bool goes_on = x->start + h.hi == rdx_round_down(x->start + x->len, rule->block_pages);
    if (covered == x->len && goes_on) {
        return false; /* it may serve a length further down */
    }
    uint64_t least = round_up(x->start + 1, rule->block_pages);
    if (h.lo) {
        least = least_length(t, rule, x->start + h.lo - ahead);
    } else if (ahead) {
        return false; /* it may serve one further up */
    }
    bool whole = goes_on || least + ahead <= (uint64_t)x->start + h.hi;
    return !whole || least > (uint64_t)x->start + covered;
}

/* Whether a hit that ends in node i lacks a snapshot, or a window, wherever it ends. */
static bool lacks_an_entry(const rdx_tree *t, uint32_t i) {
    for (uint32_t k = 0; k < t->nasked; k++) {
        if (hull_of(t, i, t->asked[k]).hi == 0) {
            return true;
        }
    }
    return false;
}

/* Whether blocks of a group stand below node i, in any tier: a hit may end there. */
static bool has_kids(const rdx_tree *t, uint32_t i, uint32_t g) {
    const cell *row = cell_at(t, i, g * t->tiers);
    uint32_t kids = 0;
    for (uint32_t k = 0; k < t->tiers; k++) {
        kids |= row[k].kids;
    }
    return kids != 0;
}

bool rdx_is_dead(const rdx_tree *t, uint32_t i, uint32_t column) {
    if (is_sparse(t, column)) {
        return serves_nothing(t, i, t->group_of[column]);
    }
    bool ahead = rule_of(t, column)->lookahead_pages != 0; /* it may serve a length further up */
    return !ahead && !has_kids(t, i, t->group_of[column]) && lacks_an_entry(t, i);
}

void rdx_settle(rdx_tree *t, uint32_t i, uint32_t column, uint32_t next) {
    const cell *k = cell_at(t, i, column);
    const uint32_t *pins = pins_at(t, node_at(t, i), t->group_of[column]);
    if (k->hi == k->lo || pins[rdx_first_block(t, i, column)]) {
        rdx_list_remove(t, i, column);
        return;
    }
    uint32_t belongs = rdx_is_dead(t, i, column) ? LISTED_DEAD : LISTED_LIVE;
    if (k->listed != belongs) {
        rdx_list_before(t, i, column, next, k->stamp, belongs);
    }
}

void rdx_relist(rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    if (k->listed && k->listed != (rdx_is_dead(t, i, column) ? LISTED_DEAD : LISTED_LIVE)) {
        rdx_list_sorted(t, i, column, k->stamp);
    }
}

void rdx_review_path(rdx_tree *t, uint32_t i, uint32_t first) {
    for (; t->mixed && rdx_end_of(t, i) > first; i = node_at(t, i)->parent) {
        rdx_review(t, i);
    }
}

void rdx_review(rdx_tree *t, uint32_t i) {
    if (node_at(t, i)->flags & NODE_ROOT) {
        return;
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        const cell *k = cell_at(t, i, c);
        if (k->hi == k->lo) {
            continue;
        }
        if (is_sparse(t, c)) {
            rdx_settle(t, i, c, NIL);
        } else {
            rdx_relist(t, i, c);
        }
    }
}
