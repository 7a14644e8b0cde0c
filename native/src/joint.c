/* joint.c: the greatest length that is valid for all groups at once (I26, I28). What a hit needs of
 * a group that is not full is not downward closed, so each group in turn shortens the length to the
 * next one that suits it, until none does. The length never grows, and each group walks its path
 * once, upwards: the cost is the nodes of the path, for each group.
 */
#include "tree.h"

/* Where one group that is not full stands in its walk upwards: every entry of the pages [seen,
 * length + lookahead) is there. */
typedef struct walk {
    uint32_t node;
    uint32_t seen;
} walk;

/* The end of what `tiers` hold without a gap from `reach` on, at most `end`; pages of a node. */
static uint32_t reach_down(const cell *row, uint32_t tiers, uint32_t count, uint32_t reach,
                           uint32_t end) {
    for (bool grew = true; grew && reach < end;) {
        grew = false;
        for (uint32_t k = 0; k < count; k++) {
            if (tiers >> k & 1 && row[k].lo <= reach && row[k].hi > reach) {
                reach = row[k].hi;
                grew = true;
            }
        }
    }
    return reach < end ? reach : end;
}

/* The same upwards: how low they hold without a gap below `reach`, at least `floor`. */
static uint32_t reach_up(const cell *row, uint32_t tiers, uint32_t count, uint32_t reach,
                         uint32_t floor) {
    for (bool grew = true; grew && reach > floor;) {
        grew = false;
        for (uint32_t k = 0; k < count; k++) {
            if (tiers >> k & 1 && row[k].hi >= reach && row[k].lo < reach) {
                reach = row[k].lo;
                grew = true;
            }
        }
    }
    return reach > floor ? reach : floor;
}

/* The end of the last page below page `at`, which is not there, that they hold; 0: none. */
static uint32_t last_below(const cell *row, uint32_t tiers, uint32_t count, uint32_t at) {
    uint32_t last = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (tiers >> k & 1 && row[k].lo < row[k].hi && row[k].lo < at - 1) {
            uint32_t end = row[k].hi < at ? row[k].hi : at - 1;
            last = end > last ? end : last;
        }
    }
    return last;
}

/* The length up to which a full group has every block. */
static uint32_t full_cap(const rdx_tree *t, uint32_t g, uint32_t i, uint32_t pages,
                         uint32_t tiers) {
    const rdx_group *rule = &t->rules[g];
    uint32_t cap = pages;
    for (; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        uint32_t end = x->start + x->len < pages ? x->start + x->len : pages;
        end = rdx_round_down(end, rule->block_pages);
        uint32_t begin = x->start > rule->lookahead_pages ? x->start : rule->lookahead_pages;
        if (end <= begin) {
            continue; /* no block ends here */
        }
        const cell *row = cell_at(t, i, g * t->tiers);
        uint32_t got =
            x->start + reach_down(row, tiers, t->tiers, begin - x->start, end - x->start);
        cap = got < end ? got : cap;
    }
    cap = cap > rule->lookahead_pages ? cap - rule->lookahead_pages : 0;
    return rdx_round_down(cap, rule->block_pages);
}

static uint32_t fit_state(const rdx_tree *t, uint32_t g, walk *w, uint32_t n, uint32_t tiers) {
    for (uint32_t i = w->node;; i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        w->node = i;
        if (x->flags & NODE_ROOT) {
            return 0;
        }
        const cell *row = cell_at(t, i, g * t->tiers);
        for (uint32_t k = 0; k < t->tiers && x->start + x->len <= n; k++) {
            if (tiers >> k & 1 && row[k].hi == x->len) {
                return x->start + x->len;
            }
        }
    }
}

/* The greatest length <= n whose window (or chunk) is whole. */
static uint32_t fit_window(const rdx_tree *t, uint32_t g, walk *w, uint32_t n, uint32_t pages,
                           uint32_t tiers) {
    const rdx_group *rule = &t->rules[g];
    uint32_t ahead = rule->lookahead_pages;
    for (;;) {
        n = rdx_round_down(n, rule->block_pages);
        uint32_t need = rdx_first_page(t, rule, n) + ahead;
        if (need >= n + ahead) {
            return n; /* nothing */
        }
        if (n + ahead > pages) {
            n = pages > ahead ? pages - ahead : 0;
            continue;
        }
        w->seen = w->seen < n + ahead ? w->seen : n + ahead;
        bool gap = false;
        while (w->seen > need && !gap) {
            while (node_at(t, w->node)->start >= w->seen) {
                w->node = node_at(t, w->node)->parent;
            }
            const node *x = node_at(t, w->node);
            uint32_t floor = need > x->start ? need : x->start;
            uint32_t from = rdx_round_down(w->seen, rule->block_pages);
            if (from <= floor) {
                w->seen = floor; /* the block ends further down */
                continue;
            }
            const cell *row = cell_at(t, w->node, g * t->tiers);
            w->seen = x->start + reach_up(row, tiers, t->tiers, from - x->start, floor - x->start);
            if (w->seen > floor) {
                uint32_t less = rule->block_pages + ahead;
                n = w->seen > less ? w->seen - less : 0;
                gap = true;
                if (rule->rule == RDX_RULE_WINDOW && rule->block_pages == 1) {
                    /* A length needs at least its last page: the next one that is there. */
                    uint32_t last = x->start + last_below(row, tiers, t->tiers, w->seen - x->start);
                    n = last > ahead ? last - ahead : 0;
                }
            }
        }
        if (!gap) {
            return n;
        }
    }
}

static uint32_t stop_of(const rdx_group *rule) {
    switch (rule->rule) {
    case RDX_RULE_FULL:
        return RDX_STOP_HOLE;
    case RDX_RULE_STATE:
        return RDX_STOP_STATE;
    default:
        return RDX_STOP_WINDOW;
    }
}

uint32_t rdx_joint_hit(const rdx_tree *t, uint32_t i, uint32_t pages, uint32_t limit,
                       uint32_t tiers, uint32_t *stop) {
    uint32_t n = limit < pages ? limit : pages;
    uint32_t caps[RDX_MAX_COLUMNS];
    walk walks[RDX_MAX_COLUMNS];
    *stop = n == limit ? RDX_STOP_LIMIT : RDX_STOP_COLD;
    for (uint32_t g = 0; g < t->groups; g++) {
        if (t->rules[g].lookup && t->rules[g].rule == RDX_RULE_FULL) {
            caps[g] = full_cap(t, g, i, pages, tiers);
        }
        walks[g] = (walk){i, NIL};
    }
    for (uint32_t before = NIL; before != n && n;) {
        before = n;
        for (uint32_t g = 0; g < t->groups && n; g++) {
            const rdx_group *rule = &t->rules[g];
            uint32_t fit = n;
            if (!rule->lookup) {
                continue;
            }
            if (rule->rule == RDX_RULE_FULL) {
                fit = rdx_round_down(n < caps[g] ? n : caps[g], rule->block_pages);
            } else if (rule->rule == RDX_RULE_STATE) {
                fit = fit_state(t, g, &walks[g], n, tiers);
            } else {
                fit = fit_window(t, g, &walks[g], n, pages, tiers);
            }
            *stop = fit < n ? stop_of(rule) : *stop;
            n = fit;
        }
    }
    return n;
}

int rdx_joint(const rdx_tree *t, rdx_cursor at, uint32_t limit, uint32_t readable, uint32_t *pages,
              uint32_t *stop) {
    uint32_t i;
    uint32_t depth;
    rdx_resolve(t, at, &i, &depth);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    *pages = rdx_joint_hit(t, i, depth, limit, readable, stop);
    return RDX_OK;
}
