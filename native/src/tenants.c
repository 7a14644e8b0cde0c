/* tenants.c: whose blocks are whose, and whose go next. A root belongs to a tenant; each tenant has
 * its own two lists in each column (order.c), and a queue for each kind of list holds the tenants
 * of which something stands there, the one that goes first at its head. Keeps I16-I18 for them, and
 * I12 for what they hold.
 *
 *     column    queue (a heap)      lists, by last use
 *     host      B                   B: e - f - g - h
 *              / \                  A: a - b
 *             A   C                 C: c - d
 *
 * The first is who stands furthest above his share: most bytes in the pool for his weight, what is
 * reserved for him included. Who has no more than his floor there comes behind all who have. So a
 * victim costs the logarithm of the tenants, and nothing is scanned. All memory is made with the
 * tenant, so that nothing fails late.
 */
#include "tree.h"

#define WAYS 4
__extension__ typedef unsigned __int128 wide;

typedef struct account { /* of a tenant in a column */
    uint64_t resident;
    uint64_t shielded;
    uint64_t reserved; /* slots that hold no block of the tree yet */
    uint64_t evicted;
    uint64_t floor;    /* of the pool, in its units */
    uint32_t place[2]; /* in the queue of the living, and of the dead; NIL: in none */
} account;

struct tenants {
    uint32_t known;
    uint32_t room;
    account *accounts; /* [tenant * columns + column] */
    uint64_t *used;    /* [tenant * columns + pool], in units */
    uint64_t *weights; /* [tenant] */
    uint32_t *queues;  /* [which * room], heaps */
    uint32_t count[RDX_MAX_COLUMNS * 2];
    uint64_t listed[RDX_MAX_COLUMNS];
    uint64_t unit[RDX_MAX_COLUMNS]; /* of a block of the column */
    uint32_t pool[RDX_MAX_COLUMNS]; /* the least column of the pool that it is of */
};

static account *account_at(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    return &t->tenants->accounts[(size_t)tenant * t->columns + column];
}

static uint64_t *used_at(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    const struct tenants *s = t->tenants;
    return &s->used[(size_t)tenant * t->columns + s->pool[column]];
}

static uint32_t *queue_at(const rdx_tree *t, uint32_t which) {
    return t->tenants->queues + (size_t)which * t->tenants->room;
}

static uint32_t *place_at(const rdx_tree *t, uint32_t tenant, uint32_t which) {
    bool dead = which >= t->columns;
    return &account_at(t, tenant, which - (dead ? t->columns : 0))->place[dead];
}

/* ---------------------------------------------------------------- who goes first */
/* Whether a tenant that has so much of the pool has a block of the column above its floor. */
static bool above_floor(const rdx_tree *t, uint32_t tenant, uint32_t column, uint64_t used) {
    return used >= t->tenants->unit[column] + account_at(t, tenant, column)->floor;
}

/* Whether tenant a, if it has so much of the pool, goes before tenant b. What is dead serves
 * nobody: there no floor counts. */
static bool goes_before(const rdx_tree *t, uint32_t which, uint32_t a, uint64_t used, uint32_t b) {
    bool dead = which >= t->columns;
    uint32_t column = which - (dead ? t->columns : 0);
    uint64_t other = *used_at(t, b, column);
    bool x = dead || above_floor(t, a, column, used);
    bool y = dead || above_floor(t, b, column, other);
    if (x != y) {
        return x;
    }
    wide mine = (wide)used * t->tenants->weights[b];
    wide his = (wide)other * t->tenants->weights[a];
    return mine != his ? mine > his : a < b;
}

static bool before(const rdx_tree *t, uint32_t which, uint32_t a, uint32_t b) {
    uint32_t column = which % t->columns;
    return goes_before(t, which, a, *used_at(t, a, column), b);
}

static void put(rdx_tree *t, uint32_t which, uint32_t place, uint32_t tenant) {
    queue_at(t, which)[place] = tenant;
    *place_at(t, tenant, which) = place;
}

/* Puts a tenant where it belongs, from a place that is free. */
static void sift(rdx_tree *t, uint32_t which, uint32_t place, uint32_t tenant) {
    const uint32_t *queue = queue_at(t, which);
    while (place && before(t, which, tenant, queue[(place - 1) / WAYS])) {
        put(t, which, place, queue[(place - 1) / WAYS]);
        place = (place - 1) / WAYS;
    }
    for (;;) {
        uint64_t first = (uint64_t)place * WAYS + 1;
        uint32_t best = tenant;
        uint32_t at = place;
        for (uint64_t k = first; k < first + WAYS && k < t->tenants->count[which]; k++) {
            if (before(t, which, queue[k], best)) {
                best = queue[k];
                at = (uint32_t)k;
            }
        }
        if (at == place) {
            break;
        }
        put(t, which, place, best);
        place = at;
    }
    put(t, which, place, tenant);
}

static void queue_add(rdx_tree *t, uint32_t which, uint32_t tenant) {
    sift(t, which, t->tenants->count[which]++, tenant);
}

static void queue_remove(rdx_tree *t, uint32_t which, uint32_t tenant) {
    uint32_t place = *place_at(t, tenant, which);
    uint32_t last = queue_at(t, which)[--t->tenants->count[which]];
    *place_at(t, tenant, which) = NIL;
    if (last != tenant) {
        sift(t, which, place, last);
    }
}

/* The tenant has more of a pool, or less, or other terms. */
static void settle(rdx_tree *t, uint32_t tenant, uint32_t pool) {
    for (uint32_t c = pool; c < t->columns; c++) {
        for (uint32_t which = c; t->tenants->pool[c] == pool && which < 2 * t->columns;
             which += t->columns) {
            uint32_t place = *place_at(t, tenant, which);
            if (place != NIL) {
                sift(t, which, place, tenant);
            }
        }
    }
}

static void use(rdx_tree *t, uint32_t tenant, uint32_t column, int64_t blocks) {
    *used_at(t, tenant, column) += (uint64_t)blocks * t->tenants->unit[column];
    settle(t, tenant, t->tenants->pool[column]);
}

/* ---------------------------------------------------------------- what the tree tells */
void rdx_tenant_listed(rdx_tree *t, uint32_t i, uint32_t column, uint32_t which, bool more) {
    uint64_t listed = rdx_list_of(t, i, which)->listed;
    t->tenants->listed[column] += more ? 1 : UINT64_MAX;
    if (more && listed == 1) {
        queue_add(t, which, rdx_tenant_of(t, i));
    } else if (!more && listed == 0) {
        queue_remove(t, which, rdx_tenant_of(t, i));
    }
}

void rdx_tenant_count(rdx_tree *t, uint32_t i, uint32_t column, int64_t held, int64_t shielded) {
    uint32_t tenant = rdx_tenant_of(t, i);
    account *a = account_at(t, tenant, column);
    a->resident += (uint64_t)held;
    a->shielded += (uint64_t)shielded;
    if (held) {
        use(t, tenant, column, held);
    }
}

uint64_t rdx_tenant_blocks(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    return t->tenants ? account_at(t, tenant, column)->resident : t->lists[column].resident;
}

void rdx_tenant_evicted(rdx_tree *t, uint32_t tenant, uint32_t column, uint32_t n) {
    account_at(t, tenant, column)->evicted += n;
}

/* ---------------------------------------------------------------- the next victim */
/* Whose turn it is in one kind of list, or NIL. */
static uint32_t next_tenant(const rdx_tree *t, uint32_t which, claim for_whom) {
    const struct tenants *s = t->tenants;
    uint32_t mine = for_whom.tenant == NIL ? NIL : *place_at(t, for_whom.tenant, which);
    if (for_whom.own) {
        return mine == NIL ? NIL : for_whom.tenant;
    }
    if (s->count[which] == 0) {
        return NIL;
    }
    uint32_t head = queue_at(t, which)[0];
    bool any = for_whom.tenant == NIL || which >= t->columns;
    if (any || above_floor(t, head, which, *used_at(t, head, which))) {
        return head;
    }
    return mine == NIL ? NIL : for_whom.tenant; /* nobody has more than his floor */
}

static uint32_t dead_of(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    return t->lists[((size_t)tenant * 2 + 1) * t->columns + column].head;
}

uint32_t rdx_tenant_victim(rdx_tree *t, uint32_t column, claim for_whom) {
    for (uint32_t dead = 2; dead-- > 0;) {
        uint32_t which = column + (dead ? t->columns : 0);
        for (;;) {
            uint32_t tenant = next_tenant(t, which, for_whom);
            if (tenant == NIL) {
                break;
            }
            uint32_t i = dead ? dead_of(t, tenant, column) : rdx_living_victim(t, column, tenant);
            if (i != NIL) {
                return i;
            }
        }
    }
    return NIL;
}

/* The tenant behind the head of a queue, or NIL. */
static uint32_t second(const rdx_tree *t, uint32_t which) {
    const uint32_t *queue = queue_at(t, which);
    uint32_t best = NIL;
    for (uint32_t k = 1; k <= WAYS && k < t->tenants->count[which]; k++) {
        if (best == NIL || before(t, which, queue[k], best)) {
            best = queue[k];
        }
    }
    return best;
}

uint32_t rdx_tenant_turn(const rdx_tree *t, uint32_t i, uint32_t column, claim for_whom,
                         uint32_t n) {
    uint32_t tenant = rdx_tenant_of(t, i);
    bool dead = cell_at(t, i, column)->listed == LISTED_DEAD;
    uint32_t which = column + (dead ? t->columns : 0);
    if (for_whom.own || queue_at(t, which)[0] != tenant) {
        return n; /* of nobody else's blocks any can go */
    }
    uint32_t next = second(t, which);
    bool held = !dead && for_whom.tenant != NIL && for_whom.tenant != tenant;
    uint64_t used = *used_at(t, tenant, column);
    uint32_t lo = 1;
    uint32_t hi = n;
    while (lo < hi) { /* the most that may go, of which the last is still its turn */
        uint32_t mid = lo + (hi - lo + 1) / 2;
        uint64_t gone = (uint64_t)(mid - 1) * t->tenants->unit[column];
        bool first =
            gone <= used && (next == NIL || goes_before(t, which, tenant, used - gone, next));
        first = first && (!held || above_floor(t, tenant, column, used - gone));
        lo = first ? mid : lo;
        hi = first ? hi : mid - 1;
    }
    return lo;
}

/* ---------------------------------------------------------------- terms */
int rdx_tenants_enable(rdx_tree *t, const uint64_t *sizes, const uint32_t *pools) {
    if (t->tenants || t->live_pages || t->columns == 0) {
        return RDX_EARG;
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        if (pools[c] > c || pools[pools[c]] != pools[c] || sizes[c] == 0 || sizes[c] >> 40) {
            return RDX_EARG;
        }
    }
    t->tenants = rdx_calloc(1, sizeof(*t->tenants));
    if (!t->tenants) {
        return RDX_ENOMEM;
    }
    memcpy(t->tenants->unit, sizes, t->columns * sizeof(*sizes));
    memcpy(t->tenants->pool, pools, t->columns * sizeof(*pools));
    uint64_t floors[RDX_MAX_COLUMNS] = {0};
    int status = rdx_tenant_set(t, 0, 1, floors);
    if (status != RDX_OK) {
        rdx_tenants_free(t);
    }
    return status;
}

/* An array that holds `used` bytes, with room for `bytes`; the rest is zero. */
static bool grow(void *array, size_t used, size_t bytes) {
    void **old = array;
    uint8_t *larger = rdx_realloc(*old, bytes);
    if (larger) {
        memset(larger + used, 0, bytes - used);
        *old = larger;
    }
    return larger != NULL;
}

static int make_room(rdx_tree *t) {
    struct tenants *s = t->tenants;
    uint32_t room = s->room ? s->room * 2 : 4;
    if (s->known < s->room) {
        return RDX_OK;
    }
    size_t old = (size_t)s->room * t->columns;
    size_t all = (size_t)room * t->columns;
    size_t lists = s->room ? old * 2 : (size_t)t->columns * 2; /* a tree has those of one tenant */
    if (t->policy && rdx_policy_tenants(t, room) != RDX_OK) {
        return RDX_ENOMEM;
    }
    uint32_t *queues = rdx_calloc(all * 2, sizeof(uint32_t));
    if (!queues || !grow(&s->accounts, old * sizeof(account), all * sizeof(account)) ||
        !grow(&s->used, old * sizeof(uint64_t), all * sizeof(uint64_t)) ||
        !grow(&s->weights, s->room * sizeof(uint64_t), room * sizeof(uint64_t)) ||
        !grow(&t->lists, lists * sizeof(order_list), all * 2 * sizeof(order_list))) {
        rdx_free_mem(queues);
        return RDX_ENOMEM;
    }
    for (uint32_t which = 0; which < 2 * t->columns && s->queues; which++) {
        memcpy(queues + (size_t)which * room, queue_at(t, which), s->count[which] * 4);
    }
    rdx_free_mem(s->queues);
    s->queues = queues;
    s->room = room;
    return RDX_OK;
}

int rdx_tenant_set(rdx_tree *t, uint32_t tenant, uint64_t weight, const uint64_t *floors) {
    struct tenants *s = t->tenants;
    if (!s || tenant > s->known || weight == 0) {
        return RDX_EARG;
    }
    if (tenant == s->known) {
        int status = make_room(t);
        status = status == RDX_OK && t->policy ? rdx_policy_begin(t, tenant) : status;
        if (status != RDX_OK) {
            return status;
        }
        s->known++;
        for (uint32_t c = 0; c < t->columns; c++) {
            account_at(t, tenant, c)->place[0] = account_at(t, tenant, c)->place[1] = NIL;
            for (uint32_t dead = 0; tenant && dead < 2; dead++) {
                order_list *l = &t->lists[((size_t)tenant * 2 + dead) * t->columns + c];
                *l = (order_list){.head = NIL, .tail = NIL};
            }
        }
    }
    s->weights[tenant] = weight;
    for (uint32_t c = 0; c < t->columns; c++) {
        account_at(t, tenant, c)->floor = floors[s->pool[c]];
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        if (s->pool[c] == c) {
            settle(t, tenant, c);
        }
    }
    return RDX_OK;
}

int rdx_tenant_renew(rdx_tree *t, uint32_t tenant) {
    if (!t->tenants || tenant >= t->tenants->known) {
        return RDX_EARG;
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        if (account_at(t, tenant, c)->resident) {
            return RDX_EPINNED;
        }
    }
    return t->policy ? rdx_policy_begin(t, tenant) : RDX_OK;
}

int rdx_root_assign(rdx_tree *t, rdx_handle root, uint32_t tenant) {
    uint32_t i = node_of(t, root);
    if (i == NIL || !(node_at(t, i)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    if (!t->tenants || tenant >= t->tenants->known) {
        return RDX_EARG;
    }
    if (node_at(t, i)->first_child != NIL) {
        return RDX_EPINNED;
    }
    node_at(t, i)->hash = tenant;
    return RDX_OK;
}

int rdx_tenant_reserve(rdx_tree *t, uint32_t tenant, uint32_t column, int64_t more) {
    if (!t->tenants || tenant >= t->tenants->known || column >= t->columns) {
        return RDX_EARG;
    }
    account *a = account_at(t, tenant, column);
    if (more < 0 && a->reserved < (uint64_t)-more) {
        return RDX_EARG;
    }
    a->reserved += (uint64_t)more;
    use(t, tenant, column, more);
    return RDX_OK;
}

int rdx_tenant_get_stats(const rdx_tree *t, uint32_t tenant, uint32_t column,
                         rdx_tenant_stats *out) {
    *out = (rdx_tenant_stats){0};
    if (!t->tenants || tenant >= t->tenants->known || column >= t->columns) {
        return RDX_EARG;
    }
    const account *a = account_at(t, tenant, column);
    *out = (rdx_tenant_stats){.resident = a->resident,
                              .protected_blocks = a->shielded,
                              .reserved = a->reserved,
                              .evicted = a->evicted,
                              .pool_bytes = *used_at(t, tenant, column)};
    return RDX_OK;
}

int rdx_tenant_withheld(const rdx_tree *t, uint32_t tenant, uint32_t column, uint64_t *blocks) {
    *blocks = 0;
    if (!t->tenants || tenant >= t->tenants->known || column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t other = 0; other < t->tenants->known; other++) {
        const account *a = account_at(t, other, column);
        if (!a->floor || other == tenant) {
            continue;
        }
        uint64_t used = *used_at(t, other, column);
        uint64_t above = used > a->floor ? (used - a->floor) / t->tenants->unit[column] : 0;
        uint64_t may_go = a->resident - a->shielded;
        *blocks += may_go - (above < may_go ? above : may_go);
    }
    return RDX_OK;
}

/* ---------------------------------------------------------------- eviction for somebody */
static bool fits(const rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t how) {
    bool named = tenant != RDX_ANYBODY;
    return t->tenants && column < t->columns && (!named || tenant < t->tenants->known) &&
           (named || !(how & RDX_OWN)) && how <= (RDX_OWN | RDX_ONCE);
}

int rdx_tenant_peek(rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t how,
                    rdx_tenant_head *out) {
    if (!fits(t, column, tenant, how)) {
        return RDX_EARG;
    }
    *out = (rdx_tenant_head){.stamp = UINT64_MAX, .tenant = RDX_ANYBODY};
    uint32_t i = rdx_tenant_victim(t, column, (claim){tenant, how & RDX_OWN});
    if (i != NIL) {
        const cell *c = cell_at(t, i, column);
        uint32_t whose = rdx_tenant_of(t, i);
        *out =
            (rdx_tenant_head){.node = handle_of(t, i),
                              .root = handle_of(t, node_at(t, i)->root),
                              .stamp = c->listed == LISTED_DEAD ? 0 : rdx_policy_rank(t, i, column),
                              .pool_bytes = *used_at(t, whose, column),
                              .weight = t->tenants->weights[whose],
                              .tenant = whose,
                              .above = above_floor(t, whose, column, *used_at(t, whose, column))};
    }
    return RDX_OK;
}

int rdx_tenant_evict(rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t how, uint32_t n,
                     uint64_t upto, int32_t *slots, uint8_t *ids, rdx_handle *roots,
                     uint32_t *freed) {
    *freed = 0;
    if (!fits(t, column, tenant, how)) {
        return RDX_EARG;
    }
    claim for_whom = {tenant, how & RDX_OWN};
    return rdx_evict_for(t, column, for_whom, how & RDX_ONCE, n, upto, slots, ids, roots, freed);
}

/* ---------------------------------------------------------------- the rest */
uint64_t rdx_tenants_listed(const rdx_tree *t, uint32_t column) {
    return t->tenants->listed[column];
}

uint32_t rdx_tenants_known(const rdx_tree *t) { return t->tenants ? t->tenants->known : 1; }

uint64_t rdx_tenants_bytes(const rdx_tree *t) {
    if (!t->tenants) {
        return 0;
    }
    uint64_t of_one = sizeof(uint64_t) + t->columns * (sizeof(account) + sizeof(uint64_t) +
                                                       2 * (sizeof(order_list) + sizeof(uint32_t)));
    return sizeof(*t->tenants) + t->tenants->room * of_one;
}

void rdx_tenants_free(rdx_tree *t) {
    if (t->tenants) {
        rdx_free_mem(t->tenants->accounts);
        rdx_free_mem(t->tenants->used);
        rdx_free_mem(t->tenants->weights);
        rdx_free_mem(t->tenants->queues);
        rdx_free_mem(t->tenants);
        t->tenants = NULL;
    }
}

/* ---------------------------------------------------------------- check */
static const char *queue_fault(const rdx_tree *t, uint32_t which, uint32_t *whose) {
    uint32_t standing = 0;
    for (uint32_t at = 0; at < t->tenants->count[which]; at++) {
        uint32_t tenant = *whose = queue_at(t, which)[at];
        if (tenant >= t->tenants->known || *place_at(t, tenant, which) != at) {
            return "does not know its place in a queue";
        }
        if (at && before(t, which, tenant, queue_at(t, which)[(at - 1) / WAYS])) {
            return "goes before what stands above it";
        }
    }
    for (uint32_t tenant = 0; tenant < t->tenants->known; tenant++) {
        *whose = tenant;
        bool has = t->lists[(size_t)tenant * 2 * t->columns + which].listed != 0;
        if (has != (*place_at(t, tenant, which) != NIL)) {
            return has ? "has a list and stands in no queue" : "stands in a queue without a list";
        }
        standing += has;
    }
    return standing == t->tenants->count[which] ? NULL : "is counted in a queue, or is not";
}

static uint64_t pins_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, column);
    if (!is_sparse(t, column)) {
        return x->protect ? rdx_entries(x, rule_of(t, column), k->lo, k->hi) : 0;
    }
    uint64_t pinned = 0;
    for (uint32_t p = k->lo; p < k->hi; p++) {
        pinned += slots_at(t, x, column)[p] != RDX_NO_SLOT && pins_at(t, x, t->group_of[column])[p];
    }
    return pinned;
}

const char *rdx_tenant_fault(const rdx_tree *t, uint32_t column, uint64_t *sums, uint32_t *whose) {
    const char *fault = queue_fault(t, column, whose);
    fault = fault ? fault : queue_fault(t, column + t->columns, whose);
    memset(sums, 0, (size_t)t->tenants->known * 2 * sizeof(*sums));
    for (uint32_t i = 0; i < t->node_used && !fault; i++) {
        const node *x = node_at(t, i);
        if (x->flags & NODE_LIVE && !(x->flags & NODE_ROOT)) {
            const cell *k = cell_at(t, i, column);
            uint64_t *own = sums + (size_t)rdx_tenant_of(t, i) * 2;
            own[0] += rdx_entries(x, rule_of(t, column), k->lo, k->hi);
            own[1] += pins_of(t, i, column);
        }
    }
    for (uint32_t tenant = 0; tenant < t->tenants->known && !fault; tenant++) {
        const account *a = account_at(t, tenant, column);
        uint64_t used = 0;
        *whose = tenant;
        if (a->resident != sums[tenant * 2] || a->shielded != sums[tenant * 2 + 1]) {
            fault = "counts blocks that it does not have";
        }
        for (uint32_t c = 0; c < t->columns; c++) {
            const account *b = account_at(t, tenant, c);
            bool same = t->tenants->pool[c] == t->tenants->pool[column];
            used += same ? (b->resident + b->reserved) * t->tenants->unit[c] : 0;
        }
        fault = !fault && used != *used_at(t, tenant, column) ? "has another sum of a pool" : fault;
    }
    return fault;
}
