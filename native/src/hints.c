/* hints.c: what requests say of the blocks that they used, taken to the nodes of their path. The
 * policy decides what counts (policy.h); without one the list does: a path that no request goes on
 * from is moved to its head. Keeps I16-I18: only the order changes.
 */
#include "policy.h"

#define TIME_LIMIT (1ull << 54)

static bool is_valid(const rdx_hint *said) {
    bool priority = said->priority >= -100 && said->priority <= 100;
    return (priority || !(said->says & RDX_SAYS_PRIORITY)) && said->returns < TIME_LIMIT &&
           said->until < TIME_LIMIT && said->says <= (RDX_SAYS_PRIORITY | RDX_SAYS_ENDED);
}

/* The leaf goes first, once nothing pins it; what lies above it gives up its own place, and takes
 * the leaf's when that is gone. */
static void end_in_list(rdx_tree *t, uint32_t i, uint32_t column) {
    cell *k = cell_at(t, i, column);
    if (node_at(t, i)->protect) {
        k->stamp = k->stamp ? 1 : 0;
    } else if (k->kids) {
        rdx_list_remove(t, i, column);
        k->stamp = 0;
    } else if (k->listed == LISTED_LIVE) {
        rdx_list_remove(t, i, column);
        rdx_list_head(t, i, column);
    }
}

static void say(rdx_tree *t, uint32_t end, const rdx_hint *said) {
    uint64_t shared = 0; /* columns in which something else goes on from here */
    for (uint32_t i = end; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        for (uint32_t c = 0; c < t->columns; c++) {
            const cell *k = cell_at(t, i, c);
            bool there = k->hi != k->lo && !is_sparse(t, c);
            shared |= (uint64_t)(k->kids > (i == end ? 0u : 1u)) << c;
            bool own = !(shared >> c & 1);
            if (there && rdx_policy_orders(t, c)) {
                ranking_at(t, i, c)->victim = NIL;
                if (t->policy->rule->hint) {
                    t->policy->rule->hint(t, i, c, said, own);
                }
            } else if (there && !t->policy && own && said->says & RDX_SAYS_ENDED) {
                end_in_list(t, i, c);
            }
        }
    }
}

int rdx_policy_hint(rdx_tree *t, rdx_cursor at, const rdx_hint *said) {
    uint32_t i;
    uint32_t pages;
    if (!is_valid(said)) {
        return RDX_EARG;
    }
    rdx_resolve(t, at, &i, &pages);
    if (i != NIL) {
        say(t, rdx_make_room(t, 1) == RDX_OK ? rdx_end_node(t, i, pages) : i, said);
    }
    return RDX_OK;
}

int rdx_flat_hint(rdx_tree *t, const rdx_handle *nodes, uint32_t n, const rdx_hint *said) {
    if (!is_valid(said)) {
        return RDX_EARG;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        if (i != NIL) {
            say(t, i, said);
        }
    }
    return RDX_OK;
}

void rdx_policy_time(rdx_tree *t, uint64_t now) {
    if (!t->policy || now <= t->policy->now || now >= TIME_LIMIT) {
        return;
    }
    t->policy->now = now;
    for (uint32_t c = 0; t->policy->rule->time && c < t->columns; c++) {
        if (rdx_policy_orders(t, c)) {
            t->policy->columns[c].turned++;
            t->policy->rule->time(t, c);
        }
    }
}
