/* cost.c: the policy that goes by what a block saves. A node is worth the FLOPs that computing its
 * entries again would take, for each byte that they take: of a full group its pages, of a snapshot
 * or a window all since the one before it on the path. Its key is that on top of the key of the
 * last victim, so that what was dear once grows old (Cao and Irani, Cost-Aware WWW Proxy Caching
 * Algorithms, 1997, where it is GreedyDual-Size).
 */
#include "policy.h"

#define SCALE 4096.0 /* of one FLOP a byte in a key */
#define VALUE_MOST (1ull << 50)

/* Entries that are worth something together, and the page where computing would begin without
 * them. */
typedef struct stretch {
    uint64_t entries;
    uint64_t begin;
} stretch;

/* Of a column that is not full: what a hit at the end of node i has there, as far as it stands
 * without a gap. Without it the hit ends where the next entries above it end. */
static stretch stretch_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    const rdx_group *g = rule_of(t, column);
    const uint32_t needed = rdx_first_entry(t, g, rdx_end_of(t, i));
    stretch s = {0, 0};
    for (; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        const cell *k = cell_at(t, i, column);
        if (k->hi == k->lo) {
            continue;
        }
        if (s.entries && (g->rule == RDX_RULE_STATE || x->start + k->hi != s.begin)) {
            s.begin = x->start + k->hi;
            return s;
        }
        if (s.entries && s.begin <= needed) {
            return s; /* more than a hit needs: it goes on from what stands here */
        }
        s.entries += rdx_entries(x, g, k->lo, k->hi);
        s.begin = x->start + k->lo;
    }
    s.begin = 0;
    return s;
}

static uint64_t value_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    const node *x = node_at(t, i);
    const price *p = &t->policy->columns[column].price;
    stretch s = {rdx_entries(x, rule_of(t, column), k->lo, k->hi), x->start + k->lo};
    if (is_sparse(t, column)) {
        s = stretch_of(t, i, column);
    }
    double begin = (double)s.begin * t->page_tokens;
    double end = ((double)x->start + k->hi) * t->page_tokens;
    double flops = (end - begin) * (p->linear + p->quadratic * (begin + end - 1) / 2);
    double value = s.entries ? flops / ((double)s.entries * p->bytes) * SCALE : 0;
    return value < (double)VALUE_MOST ? (uint64_t)value : VALUE_MOST;
}

/* The key of a tenant's last victim in all columns that make room for each other. */
static uint64_t *age_of(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    return &ranking_of(t, tenant, t->policy->columns[column].price.pool)->age;
}

static void cost_came(rdx_tree *t, uint32_t i, uint32_t column) {
    uint64_t age = *age_of(t, rdx_tenant_of(t, i), column);
    rdx_policy_move(t, i, column, 0, age + value_of(t, i, column));
}

static void cost_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)again, (void)old;
    cost_came(t, i, column);
}

static void cost_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    (void)n;
    uint64_t key = mark_at(t, i, column)->key;
    uint64_t *age = age_of(t, rdx_tenant_of(t, i), column);
    *age = key > *age ? key : *age;
}

static const char *cost_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    uint64_t most = *age_of(t, tenant, column) + VALUE_MOST;
    for (uint32_t i = 0; i < t->node_used; i++) {
        const cell *k = cell_at(t, i, column);
        bool own = node_at(t, i)->flags & NODE_LIVE && rdx_tenant_of(t, i) == tenant;
        if (own && k->hi != k->lo && mark_at(t, i, column)->key > most) {
            return "a node is worth more than anything can be";
        }
    }
    return NULL;
}

const policy rdx_policy_cost = {.came = cost_came,
                                .used = cost_used,
                                .going = cost_going,
                                .fault = cost_fault,
                                .every = true,
                                .price = true};
