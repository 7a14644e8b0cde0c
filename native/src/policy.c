/* policy.c: what every policy but the order of last use shares. A column that a policy orders keeps
 * its list (order.c), which holds all that may go; a policy adds a mark to each node and keeps what
 * the list holds in heaps, whose head is the next victim. Keeps I16-I18 for them.
 *
 *     list    A - B - C - D         by last use
 *     queue 0   heap of B, D        by the policy's key; the marks of A and C name queue 1
 *     queue 1   heap of A, C
 *
 * Tenants have queues, and all that a policy learns, each for itself (tenants.c); whose turn it is,
 * no policy decides. All memory is reserved with the nodes or the tenant, so nothing fails late.
 * Where no policy is set there are no marks, and the list alone decides.
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
    if (x->last != y->last) {
        return x->last < y->last;
    }
    /* Of one path, where more than its leaf may go, what stands further up goes first. */
    const node *n = node_at(t, a);
    const node *m = node_at(t, b);
    return is_sparse(t, column) && n->start != m->start ? n->start < m->start : a < b;
}

static void put(rdx_tree *t, uint32_t column, const queue *q, uint32_t place, uint32_t i) {
    *rdx_queue_at(&t->policy->stock, q, place) = i;
    mark_at(t, i, column)->place = place;
}

static void sift_up(rdx_tree *t, uint32_t column, const queue *q, uint32_t place, uint32_t i) {
    const stock *s = &t->policy->stock;
    while (place) {
        uint32_t above = *rdx_queue_at(s, q, (place - 1) / 4);
        if (!goes_before(t, column, i, above)) {
            break;
        }
        put(t, column, q, place, above);
        place = (place - 1) / 4;
    }
    put(t, column, q, place, i);
}

static void sift_down(rdx_tree *t, uint32_t column, const queue *q, uint32_t place, uint32_t i) {
    const stock *s = &t->policy->stock;
    for (;;) {
        uint64_t first = (uint64_t)place * 4 + 1;
        uint32_t best = i;
        uint32_t at = place;
        uint32_t n = first < q->count ? q->count - (uint32_t)first : 0;
        uint32_t below[4];
        n = n < 4 ? n : 4;
        for (uint32_t k = 0; k < n; k++) { /* all are on their way before one is looked at */
            below[k] = *rdx_queue_at(s, q, (uint32_t)first + k);
            __builtin_prefetch(mark_at(t, below[k], column));
        }
        for (uint32_t k = 0; k < n; k++) {
            if (goes_before(t, column, below[k], best)) {
                best = below[k];
                at = (uint32_t)first + k;
            }
        }
        if (at == place) {
            break;
        }
        put(t, column, q, place, best);
        place = at;
    }
    put(t, column, q, place, i);
}

static void heap_add(rdx_tree *t, uint32_t i, uint32_t column) {
    queue *q = &ranking_at(t, i, column)->queues[mark_at(t, i, column)->queue];
    uint32_t place = q->count;
    if (q->whole) {
        q->count++;
    } else {
        rdx_queue_grow(&t->policy->stock, q);
    }
    if (t->policy->rule->drawn) {
        put(t, column, q, place, i);
    } else {
        sift_up(t, column, q, place, i);
    }
}

static void heap_remove(rdx_tree *t, uint32_t i, uint32_t column) {
    mark *m = mark_at(t, i, column);
    queue *q = &ranking_at(t, i, column)->queues[m->queue];
    uint32_t place = m->place;
    uint32_t last = *rdx_queue_at(&t->policy->stock, q, q->count - 1);
    if (q->whole) {
        q->count--;
    } else {
        rdx_queue_shrink(&t->policy->stock, q);
    }
    if (last != i && t->policy->rule->drawn) {
        put(t, column, q, place, last);
    } else if (last != i) {
        sift_up(t, column, q, place, last);
        sift_down(t, column, q, mark_at(t, last, column)->place, last);
    }
    m->place = NIL;
}

void rdx_policy_move(rdx_tree *t, uint32_t i, uint32_t column, uint32_t queue, uint64_t key) {
    ranking *r = ranking_at(t, i, column);
    mark *m = mark_at(t, i, column);
    const cell *k = cell_at(t, i, column);
    bool stands = m->place != NIL;
    if (stands) {
        heap_remove(t, i, column);
    }
    uint32_t held = rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
    r->resident[m->queue] -= held;
    r->resident[queue] += held;
    m->queue = queue;
    m->key = key;
    if (stands) {
        heap_add(t, i, column);
    }
}

uint32_t rdx_policy_head(rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t queue) {
    const ranking *r = ranking_of(t, tenant, column);
    while (r->queues[queue].count) {
        uint32_t i = queued_at(t, r, queue, 0);
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
        ranking_at(t, i, column)->victim = NIL;
        heap_add(t, i, column);
    }
}

void rdx_policy_unlisted(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        ranking_at(t, i, column)->victim = NIL;
        heap_remove(t, i, column);
    }
}

void rdx_policy_came(rdx_tree *t, uint32_t i, uint32_t column) {
    if (orders(t, column)) {
        *mark_at(t, i, column) = (mark){.last = t->clock, .place = NIL, .fresh = t->uncounted};
        const cell *k = cell_at(t, i, column);
        ranking *r = ranking_at(t, i, column);
        r->resident[0] += rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
        r->came++;
        t->policy->rule->came(t, i, column);
    }
}

void rdx_policy_resident(rdx_tree *t, uint32_t i, uint32_t column, int64_t more) {
    if (orders(t, column)) {
        ranking_at(t, i, column)->resident[mark_at(t, i, column)->queue] += (uint64_t)more;
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
        if (is_sparse(t, column) && mark_at(t, lower, column)->place != NIL) {
            heap_remove(t, lower, column); /* it begins further down now */
            heap_add(t, lower, column);
        }
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
    uint32_t tenant = rdx_tenant_of(t, i);
    uint32_t from[RDX_MAX_COLUMNS]; /* what lies behind these pages is needed by a hit at the end */
    for (uint32_t c = 0; c < t->columns; c++) {
        ranking_of(t, tenant, c)->victim = NIL;
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
            rule->settle(t, c, tenant);
        }
    }
}

uint32_t rdx_policy_victim(rdx_tree *t, uint32_t column, uint32_t tenant) {
    ranking *r = ranking_of(t, tenant, column);
    uint64_t turned = t->policy->columns[column].turned;
    if (r->victim != NIL && (r->found != turned || !may_go(t, r->victim, column))) {
        r->victim = NIL;
    }
    r->found = turned;
    if (t->policy->rule->choose && r->victim == NIL) {
        r->victim = t->policy->rule->choose(t, column, tenant);
    }
    for (uint32_t queue = 0; queue < QUEUES && r->victim == NIL; queue++) {
        r->victim = rdx_policy_head(t, column, tenant, queue);
    }
    return r->victim;
}

uint32_t rdx_policy_next(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    if (!orders(t, column)) {
        return NIL;
    }
    const ranking *r = ranking_of(t, tenant, column);
    return r->found == t->policy->columns[column].turned ? r->victim : NIL;
}

void rdx_policy_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    if (orders(t, column) && t->policy->rule->going) {
        t->policy->rule->going(t, i, column, n);
    }
}

/* ---------------------------------------------------------------- room */
uint64_t rdx_policy_memory(const rdx_tree *t, uint32_t queue) {
    return (uint64_t)t->policy->nodes * t->policy->rule->memory[queue];
}

/* Of one column, where tenants are not told apart: the queues in one piece each, and what went. */
static int reserve_whole(rdx_tree *t, uint32_t column, uint32_t nodes) {
    ranking *r = ranking_of(t, 0, column);
    for (uint32_t q = 0; q < QUEUES; q++) {
        uint32_t *whole = rdx_realloc(r->queues[q].whole, (size_t)nodes * 4);
        if (!whole) {
            return RDX_ENOMEM;
        }
        r->queues[q].whole = whole;
        uint64_t runs = (uint64_t)nodes * t->policy->rule->memory[q];
        if (runs && rdx_ghosts_reserve(&r->gone[q], runs) != RDX_OK) {
            return RDX_ENOMEM;
        }
    }
    return RDX_OK;
}

/* The queues of so many tenants, of together so many nodes. */
static int reserve_sheets(rdx_tree *t, uint32_t nodes, uint32_t tenants) {
    uint64_t sheets = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        sheets += orders(t, c) ? rdx_stock_need(nodes, (uint64_t)tenants * QUEUES) : 0;
    }
    return rdx_stock_reserve(&t->policy->stock, sheets);
}

int rdx_policy_reserve(rdx_tree *t, uint32_t nodes) {
    struct policy_state *p = t->policy;
    if (nodes <= p->nodes) {
        return RDX_OK;
    }
    if (t->tenants && reserve_sheets(t, nodes, p->tenants) != RDX_OK) {
        return RDX_ENOMEM;
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        if (!t->tenants && orders(t, c) && reserve_whole(t, c, nodes) != RDX_OK) {
            return RDX_ENOMEM;
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

/* ---------------------------------------------------------------- tenants */
int rdx_policy_tenants(rdx_tree *t, uint32_t tenants) {
    struct policy_state *p = t->policy;
    size_t old = (size_t)p->tenants * t->columns;
    size_t all = (size_t)tenants * t->columns;
    if (tenants <= p->tenants) {
        return RDX_OK;
    }
    if (t->tenants && reserve_sheets(t, p->nodes, tenants) != RDX_OK) {
        return RDX_ENOMEM;
    }
    ranking *rankings = rdx_realloc(p->rankings, (all ? all : 1) * sizeof(ranking));
    if (!rankings) {
        return RDX_ENOMEM;
    }
    memset(rankings + old, 0, (all - old) * sizeof(ranking));
    p->rankings = rankings;
    p->tenants = tenants;
    return RDX_OK;
}

int rdx_policy_begin(rdx_tree *t, uint32_t tenant) {
    const policy *rule = t->policy->rule;
    for (uint32_t c = 0; c < t->columns; c++) {
        ranking *r = ranking_of(t, tenant, c);
        r->victim = NIL;
        r->came = r->age = r->target = r->turns = 0;
        for (uint32_t q = 0; q < QUEUES && orders(t, c); q++) {
            if (t->tenants && rule->memory[q] && rdx_ghosts_reserve(&r->gone[q], 1) != RDX_OK) {
                return RDX_ENOMEM;
            }
            if (t->tenants) { /* from the stock of all */
                rdx_free_mem(r->queues[q].whole);
                r->queues[q].whole = NULL;
            }
            rdx_ghosts_clear(&r->gone[q]);
        }
        if (rule->begin && orders(t, c) && rule->begin(r) != RDX_OK) {
            return RDX_ENOMEM;
        }
    }
    return RDX_OK;
}

void rdx_policy_free(rdx_tree *t) {
    struct policy_state *p = t->policy;
    if (!p) {
        return;
    }
    for (size_t k = 0; k < (size_t)p->tenants * t->columns; k++) {
        for (uint32_t q = 0; q < QUEUES; q++) {
            rdx_free_mem(p->rankings[k].queues[q].whole);
            rdx_ghosts_free(&p->rankings[k].gone[q]);
        }
        if (p->rule->end) {
            p->rule->end(&p->rankings[k]);
        }
    }
    for (uint32_t c = 0; p->columns && p->rule->free && c < t->columns; c++) {
        p->rule->free(t, c);
    }
    rdx_free_mem(p->stock.places);
    rdx_free_mem(p->rankings);
    rdx_free_mem(p->columns);
    rdx_free_mem(p->marks);
    rdx_free_mem(p);
    t->policy = NULL;
}

int rdx_policy_set(rdx_tree *t, uint32_t number) {
    if (number >= RDX_POLICY_COUNT || t->policy || t->tenants || t->live_pages) {
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
        t->policy->columns[c].price = (price){1, 0, 1, c};
        t->policy->ordered |= (uint64_t)(!is_sparse(t, c) || t->policy->rule->every) << c;
    }
    if (!t->policy->columns || rdx_policy_tenants(t, 1) != RDX_OK ||
        rdx_policy_begin(t, 0) != RDX_OK || rdx_policy_reserve(t, t->node_cap) != RDX_OK) {
        rdx_policy_free(t);
        return RDX_ENOMEM;
    }
    return RDX_OK;
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
    const struct policy_state *p = t->policy;
    uint64_t bytes = p ? (uint64_t)p->stock.sheets * SPAN * 4 : 0;
    for (uint32_t c = 0; p && c < t->columns; c++) {
        bytes += (uint64_t)p->nodes * sizeof(mark);
        bytes += orders(t, c) && p->rule->bytes ? p->rule->bytes(t, c) : 0;
        for (uint32_t tenant = 0; orders(t, c) && tenant < p->tenants; tenant++) {
            const ranking *r = ranking_of(t, tenant, c);
            bytes += r->queues[0].whole ? (uint64_t)p->nodes * QUEUES * 4 : 0;
            bytes += rdx_ghosts_bytes(&r->gone[0]) + rdx_ghosts_bytes(&r->gone[1]);
            bytes += sizeof(ranking) + p->rule->known;
        }
    }
    return bytes;
}

/* ---------------------------------------------------------------- check */
/* What is wrong with the places of a queue, and at which node. */
static const char *queue_fault(const rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t q,
                               uint32_t *where) {
    const ranking *r = ranking_of(t, tenant, column);
    for (uint32_t at = 0; at < r->queues[q].count; at++) {
        uint32_t i = *where = queued_at(t, r, q, at);
        const mark *m = i < t->node_used ? mark_at(t, i, column) : NULL;
        if (!m || m->queue != q || m->place != at || rdx_tenant_of(t, i) != tenant) {
            return "does not know its place in a queue";
        }
        if (cell_at(t, i, column)->listed != LISTED_LIVE) {
            return "stands in a queue and not in the list";
        }
        if (at && !t->policy->rule->drawn &&
            goes_before(t, column, i, queued_at(t, r, q, (at - 1) / 4))) {
            return "goes before what stands above it";
        }
    }
    return NULL;
}

/* The same for a tenant: its queues, the blocks that they count, and what its policy knows. */
static const char *ranking_fault(const rdx_tree *t, uint32_t column, uint32_t tenant,
                                 uint32_t *where) {
    const ranking *r = ranking_of(t, tenant, column);
    uint64_t resident[QUEUES] = {0};
    uint64_t standing = 0;
    for (uint32_t q = 0; q < QUEUES; q++) {
        const char *fault = queue_fault(t, column, tenant, q, where);
        if (fault) {
            return fault;
        }
        standing += r->queues[q].count;
    }
    for (uint32_t i = 0; i < t->node_used; i++) {
        const node *x = node_at(t, i);
        const cell *k = cell_at(t, i, column);
        if (x->flags & NODE_LIVE && k->hi != k->lo && rdx_tenant_of(t, i) == tenant) {
            const mark *m = mark_at(t, i, column);
            *where = i;
            if (m->queue >= QUEUES || m->last > t->clock) {
                return "has a mark that nobody made";
            }
            resident[m->queue] += rdx_entries(x, rule_of(t, column), k->lo, k->hi);
        }
    }
    *where = NIL;
    if (standing != t->lists[(size_t)tenant * 2 * t->columns + column].listed) {
        return "the queues hold another number of nodes than the list";
    }
    for (uint32_t q = 0; q < QUEUES; q++) {
        if (resident[q] != r->resident[q]) {
            return "a queue counts blocks that it does not have";
        }
        const char *fault = r->gone[q].room ? rdx_ghosts_fault(&r->gone[q]) : NULL;
        if (fault) {
            return fault;
        }
    }
    return t->policy->rule->fault ? t->policy->rule->fault(t, column, tenant) : NULL;
}

const char *rdx_policy_fault(const rdx_tree *t, uint32_t column, uint32_t *where) {
    *where = NIL;
    uint64_t sheets = 0;
    for (uint32_t tenant = 0; orders(t, column) && tenant < rdx_tenants_known(t); tenant++) {
        const char *fault = ranking_fault(t, column, tenant, where);
        if (fault) {
            return fault;
        }
    }
    for (size_t k = 0; k < (size_t)t->policy->tenants * t->columns; k++) {
        for (uint32_t q = 0; q < QUEUES; q++) {
            const queue *own = &t->policy->rankings[k].queues[q];
            sheets += own->whole ? 0 : rdx_queue_sheets(own->count);
        }
    }
    return sheets != t->policy->stock.taken ? "the queues have other sheets than they need" : NULL;
}
