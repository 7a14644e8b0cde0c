/* policy.c: what every policy but the order of last use shares. A column that a policy orders keeps
 * its list (order.c), which holds all that may go; a policy adds a mark to each node and keeps what
 * the list holds in heaps, whose head is the next victim. Keeps I16-I18 for them.
 *
 *     list    A - B - C - D         by last use
 *     queue 0   heap of B, D        by the policy's key; the marks of A and C name queue 1
 *     queue 1   heap of A, C
 *
 * All memory is reserved with the nodes, so nothing fails late. Where no policy is set there are no
 * marks, and the list alone decides.
 */
#include "policy.h"

static const policy *const POLICIES[RDX_POLICY_COUNT] = {
    [RDX_POLICY_FIFO] = &rdx_policy_fifo,     [RDX_POLICY_LFU] = &rdx_policy_lfu,
    [RDX_POLICY_SLRU] = &rdx_policy_slru,     [RDX_POLICY_HIT_DENSITY] = &rdx_policy_density,
    [RDX_POLICY_S3FIFO] = &rdx_policy_s3fifo, [RDX_POLICY_ARC] = &rdx_policy_arc,
    [RDX_POLICY_GIVEN] = &rdx_policy_given,   [RDX_POLICY_PRIORITY] = &rdx_policy_priority,
    [RDX_POLICY_COST] = &rdx_policy_cost,
};

bool rdx_policy_orders(const rdx_tree *t, uint32_t column) {
    return t->policy && t->policy->ordered >> column & 1;
}

static bool orders(const rdx_tree *t, uint32_t column) { return rdx_policy_orders(t, column); }

/* Whether node i may go: of a full group only a leaf. */
static bool may_go(const rdx_tree *t, uint32_t i, uint32_t column) {
    return is_sparse(t, column) || cell_at(t, i, column)->kids == 0;
}

/* ---------------------------------------------------------------- heaps */
static bool goes_before(const rdx_tree *t, uint32_t column, uint32_t a, uint32_t b) {
    const mark *x = mark_at(t, a, column);
    const mark *y = mark_at(t, b, column);
    if (x->key != y->key) {
        return x->key < y->key;
    }
    return x->last != y->last ? x->last < y->last : a < b;
}

static void put(rdx_tree *t, uint32_t column, uint32_t queue, uint32_t place, uint32_t i) {
    t->policy->columns[column].queue[queue][place] = i;
    mark_at(t, i, column)->place = place;
}

static void sift_up(rdx_tree *t, uint32_t column, uint32_t queue, uint32_t place, uint32_t i) {
    const uint32_t *heap = t->policy->columns[column].queue[queue];
    while (place && goes_before(t, column, i, heap[(place - 1) / 4])) {
        put(t, column, queue, place, heap[(place - 1) / 4]);
        place = (place - 1) / 4;
    }
    put(t, column, queue, place, i);
}

static void sift_down(rdx_tree *t, uint32_t column, uint32_t queue, uint32_t place, uint32_t i) {
    const policy_column *c = &t->policy->columns[column];
    const uint32_t *heap = c->queue[queue];
    for (;;) {
        uint64_t first = (uint64_t)place * 4 + 1;
        uint32_t best = i;
        uint32_t at = place;
        for (uint64_t k = first; k < first + 4 && k < c->count[queue]; k++) {
            if (goes_before(t, column, heap[k], best)) {
                best = heap[k];
                at = (uint32_t)k;
            }
        }
        if (at == place) {
            break;
        }
        put(t, column, queue, place, best);
        place = at;
    }
    put(t, column, queue, place, i);
}

static void heap_add(rdx_tree *t, uint32_t i, uint32_t column) {
    policy_column *c = &t->policy->columns[column];
    uint32_t queue = mark_at(t, i, column)->queue;
    uint32_t place = c->count[queue]++;
    if (t->policy->rule->drawn) {
        put(t, column, queue, place, i);
    } else {
        sift_up(t, column, queue, place, i);
    }
}

static void heap_remove(rdx_tree *t, uint32_t i, uint32_t column) {
    policy_column *c = &t->policy->columns[column];
    mark *m = mark_at(t, i, column);
    uint32_t place = m->place;
    uint32_t last = c->queue[m->queue][--c->count[m->queue]];
    if (last != i && t->policy->rule->drawn) {
        put(t, column, m->queue, place, last);
    } else if (last != i) {
        sift_up(t, column, m->queue, place, last);
        sift_down(t, column, m->queue, mark_at(t, last, column)->place, last);
    }
    m->place = NIL;
}

void rdx_policy_move(rdx_tree *t, uint32_t i, uint32_t column, uint32_t queue, uint64_t key) {
    policy_column *c = &t->policy->columns[column];
    mark *m = mark_at(t, i, column);
    const cell *k = cell_at(t, i, column);
    bool stands = m->place != NIL;
    if (stands) {
        heap_remove(t, i, column);
    }
    uint32_t held = rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
    c->resident[m->queue] -= held;
    c->resident[queue] += held;
    m->queue = queue;
    m->key = key;
    if (stands) {
        heap_add(t, i, column);
    }
}

uint32_t rdx_policy_head(rdx_tree *t, uint32_t column, uint32_t queue) {
    const policy_column *c = &t->policy->columns[column];
    while (c->count[queue]) {
        uint32_t i = c->queue[queue][0];
        if (may_go(t, i, column)) {
            return i;
        }
        rdx_list_remove(t, i, column); /* its leaves are listed, and hand it their places */
        cell_at(t, i, column)->stamp = 0;
    }
    return NIL;
}

/* ---------------------------------------------------------------- what the tree tells */
void rdx_policy_listed(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        t->policy->columns[column].victim = NIL;
        heap_add(t, i, column);
    }
}

void rdx_policy_unlisted(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        t->policy->columns[column].victim = NIL;
        heap_remove(t, i, column);
    }
}

void rdx_policy_came(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        *mark_at(t, i, column) = (mark){.last = t->clock, .place = NIL, .fresh = t->uncounted};
        const cell *k = cell_at(t, i, column);
        policy_column *c = &t->policy->columns[column];
        c->resident[0] += rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
        c->came++;
        t->policy->rule->came(t, i, column);
    }
}

void rdx_policy_resident(rdx_tree *t, uint32_t i, uint32_t column, int64_t more) {
    if (orders(t, column)) {
        t->policy->columns[column].resident[mark_at(t, i, column)->queue] += (uint64_t)more;
        if (t->policy->rule->resident) {
            t->policy->rule->resident(t, i, column, more);
        }
    }
}

void rdx_policy_left(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        if (t->policy->rule->left) {
            t->policy->rule->left(t, i, column);
        }
        *mark_at(t, i, column) = (mark){0};
    }
}

void rdx_policy_split(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t column) {
    if (orders(t, column)) {
        *mark_at(t, upper, column) = *mark_at(t, lower, column);
        mark_at(t, upper, column)->place = NIL;
        if (t->policy->rule->split) {
            t->policy->rule->split(t, upper, lower, column);
        }
    }
}

/* Node i was used in a column. */
static void use(rdx_tree *t, uint32_t i, uint32_t c, uint64_t since) {
    const policy *rule = t->policy->rule;
    mark *m = mark_at(t, i, c);
    const mark old = *m;
    bool again = !m->fresh && !t->uncounted && m->last <= since;
    m->uses += again;
    m->fresh = 0;
    bool stands = m->place != NIL && !rule->drawn;
    if (stands) {
        heap_remove(t, i, c); /* the time of its last use decides, too */
    }
    m->last = t->clock;
    rule->used(t, i, c, again, &old);
    if (stands) {
        heap_add(t, i, c);
    }
}

void rdx_policy_used(rdx_tree *t, uint32_t i, uint64_t since) {
    const policy *rule = t->policy->rule;
    uint32_t from[RDX_MAX_COLUMNS]; /* what lies behind these pages is needed by a hit at the end */
    for (uint32_t c = 0; c < t->columns; c++) {
        t->policy->columns[c].victim = NIL;
        from[c] = is_sparse(t, c) ? rdx_first_entry(t, rule_of(t, c), rdx_end_of(t, i)) : 0;
    }
    for (; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        for (uint32_t c = 0; c < t->columns; c++) {
            const cell *k = cell_at(t, i, c);
            if (orders(t, c) && k->hi != k->lo && rdx_end_of(t, i) > from[c]) {
                use(t, i, c, since);
            }
        }
    }
    for (uint32_t c = 0; rule->settle && c < t->columns; c++) {
        if (orders(t, c)) {
            rule->settle(t, c);
        }
    }
}

uint32_t rdx_policy_victim(rdx_tree *t, uint32_t column) {
    policy_column *c = &t->policy->columns[column];
    if (c->victim != NIL && !may_go(t, c->victim, column)) {
        c->victim = NIL;
    }
    if (t->policy->rule->choose && c->victim == NIL) {
        c->victim = t->policy->rule->choose(t, column);
    }
    for (uint32_t queue = 0; queue < QUEUES && c->victim == NIL; queue++) {
        c->victim = rdx_policy_head(t, column, queue);
    }
    return c->victim;
}

uint32_t rdx_policy_next(const rdx_tree *t, uint32_t column) {
    return orders(t, column) ? t->policy->columns[column].victim : NIL;
}

void rdx_policy_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    if (orders(t, column) && t->policy->rule->going) {
        t->policy->rule->going(t, i, column, n);
    }
}

/* ---------------------------------------------------------------- room */
int rdx_policy_reserve(rdx_tree *t, uint32_t nodes) {
    struct policy_state *p = t->policy;
    if (nodes <= p->nodes) {
        return RDX_OK;
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        for (uint32_t q = 0; q < QUEUES && orders(t, c); q++) {
            uint32_t *queue = rdx_realloc(p->columns[c].queue[q], (size_t)nodes * 4);
            if (!queue) {
                return RDX_ENOMEM;
            }
            p->columns[c].queue[q] = queue;
            uint64_t runs = (uint64_t)nodes * p->rule->memory[q];
            if (runs && rdx_ghosts_reserve(&p->columns[c].gone[q], runs) != RDX_OK) {
                return RDX_ENOMEM;
            }
        }
        if (p->rule->reserve && orders(t, c) && p->rule->reserve(t, c, nodes) != RDX_OK) {
            return RDX_ENOMEM;
        }
    }
    mark *marks = rdx_realloc(p->marks, (size_t)nodes * t->columns * sizeof(mark));
    if (!marks) {
        return RDX_ENOMEM;
    }
    size_t old = (size_t)p->nodes * t->columns;
    memset(marks + old, 0, ((size_t)nodes * t->columns - old) * sizeof(mark));
    p->marks = marks;
    p->nodes = nodes;
    return RDX_OK;
}

void rdx_policy_free(rdx_tree *t) {
    if (!t->policy) {
        return;
    }
    for (uint32_t c = 0; t->policy->columns && c < t->columns; c++) {
        for (uint32_t q = 0; q < QUEUES; q++) {
            rdx_free_mem(t->policy->columns[c].queue[q]);
            rdx_ghosts_free(&t->policy->columns[c].gone[q]);
        }
        if (t->policy->rule->free) {
            t->policy->rule->free(t, c);
        }
    }
    rdx_free_mem(t->policy->columns);
    rdx_free_mem(t->policy->marks);
    rdx_free_mem(t->policy);
    t->policy = NULL;
}

int rdx_policy_set(rdx_tree *t, uint32_t number) {
    if (number >= RDX_POLICY_COUNT || t->policy || t->live_pages) {
        return RDX_EARG;
    }
    if (number == RDX_POLICY_LRU) {
        return RDX_OK;
    }
    const uint32_t *memory = POLICIES[number]->memory;
    if ((memory[0] || memory[1]) && t->check_ids && !t->key_bytes) {
        return RDX_EARG;
    }
    t->policy = rdx_calloc(1, sizeof(*t->policy));
    if (!t->policy) {
        return RDX_ENOMEM;
    }
    t->policy->rule = POLICIES[number];
    t->policy->columns = rdx_calloc(t->columns ? t->columns : 1, sizeof(policy_column));
    for (uint32_t c = 0; t->policy->columns && c < t->columns; c++) {
        t->policy->columns[c].victim = NIL;
        t->policy->columns[c].price = (price){1, 0, 1, c};
        bool alone = rule_of(t, c)->rule == RDX_RULE_STATE && t->policy->rule->alone;
        t->policy->ordered |= (uint64_t)(!is_sparse(t, c) || alone) << c;
    }
    int status = t->policy->columns ? rdx_policy_reserve(t, t->node_cap) : RDX_ENOMEM;
    if (status != RDX_OK) {
        rdx_policy_free(t);
    }
    return status;
}

int rdx_policy_price(rdx_tree *t, uint32_t column, double linear, double quadratic, double bytes,
                     uint32_t pool) {
    if (!t->policy || !t->policy->rule->price || column >= t->columns || pool >= t->columns ||
        t->live_pages || !(linear > 0) || !(quadratic >= 0) || !(bytes > 0)) {
        return RDX_EARG;
    }
    struct policy_state *p = t->policy;
    p->columns[column].price = (price){linear, quadratic, bytes, pool};
    p->ranked = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        bool whole = true; /* every column of its pool has keys */
        for (uint32_t other = 0; other < t->columns; other++) {
            bool same = p->columns[other].price.pool == p->columns[c].price.pool;
            whole = whole && (!same || orders(t, other));
        }
        p->ranked |= (uint64_t)whole << c;
    }
    return RDX_OK;
}

uint64_t rdx_policy_rank(const rdx_tree *t, uint32_t i, uint32_t column) {
    bool ranked = t->policy && t->policy->ranked >> column & 1;
    return ranked ? mark_at(t, i, column)->key : cell_at(t, i, column)->stamp;
}

uint64_t rdx_policy_bytes(const rdx_tree *t) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; t->policy && c < t->columns; c++) {
        bytes += (uint64_t)t->policy->nodes * sizeof(mark);
        if (orders(t, c)) {
            bytes += (uint64_t)t->policy->nodes * QUEUES * 4;
            bytes += rdx_ghosts_bytes(&t->policy->columns[c].gone[0]);
            bytes += rdx_ghosts_bytes(&t->policy->columns[c].gone[1]);
            bytes += t->policy->rule->bytes ? t->policy->rule->bytes(t, c) : 0;
        }
    }
    return bytes;
}

/* ---------------------------------------------------------------- check */
const char *rdx_policy_fault(const rdx_tree *t, uint32_t column, uint32_t *where) {
    *where = NIL;
    if (!orders(t, column)) {
        return NULL;
    }
    const policy_column *c = &t->policy->columns[column];
    uint64_t resident[QUEUES] = {0};
    uint64_t standing = 0;
    for (uint32_t q = 0; q < QUEUES; q++) {
        for (uint32_t at = 0; at < c->count[q]; at++) {
            uint32_t i = *where = c->queue[q][at];
            const mark *m = i < t->node_used ? mark_at(t, i, column) : NULL;
            if (!m || m->queue != q || m->place != at) {
                return "does not know its place in a queue";
            }
            if (cell_at(t, i, column)->listed != LISTED_LIVE) {
                return "stands in a queue and not in the list";
            }
            if (at && !t->policy->rule->drawn &&
                goes_before(t, column, i, c->queue[q][(at - 1) / 4])) {
                return "goes before what stands above it";
            }
        }
        standing += c->count[q];
    }
    for (uint32_t i = 0; i < t->node_used; i++) {
        const node *x = node_at(t, i);
        const cell *k = cell_at(t, i, column);
        if (x->flags & NODE_LIVE && k->hi != k->lo) {
            const mark *m = mark_at(t, i, column);
            *where = i;
            if (m->queue >= QUEUES || m->last > t->clock) {
                return "has a mark that nobody made";
            }
            resident[m->queue] += rdx_entries(x, rule_of(t, column), k->lo, k->hi);
        }
    }
    *where = NIL;
    if (standing != t->lists[column].listed) {
        return "the queues hold another number of nodes than the list";
    }
    for (uint32_t q = 0; q < QUEUES; q++) {
        if (resident[q] != c->resident[q]) {
            return "a queue counts blocks that it does not have";
        }
        const char *fault = c->gone[q].room ? rdx_ghosts_fault(&c->gone[q]) : NULL;
        if (fault) {
            return fault;
        }
    }
    return t->policy->rule->fault ? t->policy->rule->fault(t, column) : NULL;
}
