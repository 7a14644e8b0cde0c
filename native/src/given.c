/* given.c: the policy whose keys are given from outside. Nodes that came or were used since the
 * last answer wait for one, each once; what was chosen and went in between is told, too. Whoever
 * chooses asks first, so that an eviction finds a key at every node:
 *
 *     came, used -> | waiting, at most all nodes | -- ask --> outside -- answer: keys --> the heap
 *     victims    -> | what went, the last ones   | ----^
 *
 * A key is a double; here it stands as a number of 64 bits in the same order. What is pinned or has
 * something below it stands in no heap, whatever its key says.
 */
#include "policy.h"

#define CAME 1u
#define USED 2u

typedef struct asking {
    uint64_t came;   /* the clock when it did */
    uint64_t before; /* its last use as it was told last */
    uint32_t uses;   /* as they were told last */
    uint32_t state;  /* CAME or USED: it waits; 0: it does not */
} asking;

struct given {
    asking *nodes;
    uint32_t *waiting;
    uint32_t count;
    rdx_told *went; /* a ring */
    uint64_t first;
    uint64_t end;
    uint32_t room;
    bool silent; /* nobody answers: the order of last use decides */
};

static struct given *given_of(const rdx_tree *t, uint32_t column) {
    return t->policy->columns[column].given;
}

static uint64_t ordered(double key) {
    uint64_t bits;
    key += 0.0; /* the two zeroes are one */
    memcpy(&bits, &key, sizeof bits);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

static double unordered(uint64_t bits) {
    double key;
    bits = bits >> 63 ? bits & ~(1ull << 63) : ~bits;
    memcpy(&key, &bits, sizeof key);
    return key;
}

static void wait(struct given *g, uint32_t i, uint32_t state) {
    if (g->silent) {
        return;
    }
    if (!g->nodes[i].state) {
        g->waiting[g->count++] = i;
    }
    g->nodes[i].state = g->nodes[i].state == CAME && state == USED ? CAME : state;
}

/* ---------------------------------------------------------------- the policy */
static void given_came(rdx_tree *t, uint32_t i, uint32_t column) {
    struct given *g = given_of(t, column);
    g->nodes[i].came = t->clock;
    g->nodes[i].before = t->clock;
    g->nodes[i].uses = 0;
    wait(g, i, CAME);
    rdx_policy_move(t, i, column, 0, ordered(0));
}

static void given_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)again, (void)old;
    wait(given_of(t, column), i, USED);
}

static void given_split(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t column) {
    struct given *g = given_of(t, column);
    uint32_t state = g->nodes[upper].state; /* of a node that went: it may wait still */
    g->nodes[upper] = g->nodes[lower];
    g->nodes[upper].state = state;
    if (g->nodes[lower].state) {
        g->nodes[upper].state = state ? g->nodes[lower].state : 0;
        wait(g, upper, g->nodes[lower].state);
    }
}

static rdx_told told_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    const asking *a = &given_of(t, column)->nodes[i];
    const mark *m = mark_at(t, i, column);
    const cell *k = cell_at(t, i, column);
    const node *x = node_at(t, i);
    const rdx_group *g = rule_of(t, column);
    return (rdx_told){.came = a->came,
                      .last = m->last,
                      .before = a->before,
                      .key = unordered(m->key),
                      .node = i,
                      .uses = m->uses,
                      .again = m->uses - a->uses,
                      .blocks = rdx_entries(x, g, k->lo, k->hi),
                      .depth = (x->start + k->lo) / rdx_width(g),
                      .tenant = rdx_tenant_of(t, i)};
}

static void given_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    struct given *g = given_of(t, column);
    if (g->silent) {
        return;
    }
    rdx_told *last = g->end > g->first ? &g->went[(g->end - 1) % g->room] : NULL;
    rdx_told now = told_of(t, i, column);
    now.blocks = n < now.blocks ? n : now.blocks;
    now.kind = RDX_TOLD_WENT;
    if (last && last->node == i && last->came == now.came) {
        last->blocks += now.blocks; /* more of the same one */
        return;
    }
    g->first += g->end - g->first == g->room;
    g->went[g->end++ % g->room] = now;
}

static uint32_t given_choose(rdx_tree *t, uint32_t column, uint32_t tenant) {
    return given_of(t, column)->silent ? rdx_oldest_leaf(t, column, tenant) : NIL;
}

/* ---------------------------------------------------------------- room */
static int given_reserve(rdx_tree *t, uint32_t column, uint32_t nodes) {
    struct given **g = &t->policy->columns[column].given;
    if (!*g) {
        *g = rdx_calloc(1, sizeof(**g));
        if (!*g) {
            return RDX_ENOMEM;
        }
    }
    uint32_t *waiting = rdx_realloc((*g)->waiting, (size_t)nodes * sizeof(*waiting));
    if (!waiting) {
        return RDX_ENOMEM;
    }
    (*g)->waiting = waiting;
    asking *all = rdx_realloc((*g)->nodes, (size_t)nodes * sizeof(*all));
    if (!all) {
        return RDX_ENOMEM;
    }
    (*g)->nodes = all;
    rdx_told *went = rdx_calloc(nodes, sizeof(*went));
    if (!went) {
        return RDX_ENOMEM;
    }
    memset(all + (*g)->room, 0, (size_t)(nodes - (*g)->room) * sizeof(*all));
    uint64_t n = 0;
    for (uint64_t k = (*g)->first; k < (*g)->end; k++) {
        went[n++] = (*g)->went[k % (*g)->room];
    }
    rdx_free_mem((*g)->went);
    (*g)->went = went;
    (*g)->first = 0;
    (*g)->end = n;
    (*g)->room = nodes;
    return RDX_OK;
}

static void given_free(rdx_tree *t, uint32_t column) {
    struct given *g = given_of(t, column);
    if (g) {
        rdx_free_mem(g->waiting);
        rdx_free_mem(g->nodes);
        rdx_free_mem(g->went);
        rdx_free_mem(g);
    }
}

static uint64_t given_bytes(const rdx_tree *t, uint32_t column) {
    const struct given *g = given_of(t, column);
    return sizeof(*g) + g->room * (sizeof(asking) + sizeof(uint32_t) + sizeof(rdx_told));
}

static const char *given_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    (void)tenant; /* they wait together */
    const struct given *g = given_of(t, column);
    uint32_t waiting = 0;
    for (uint32_t k = 0; k < g->count; k++) {
        if (g->waiting[k] >= g->room || !g->nodes[g->waiting[k]].state) {
            return "a node waits for an answer and does not know";
        }
    }
    for (uint32_t i = 0; i < g->room; i++) {
        waiting += g->nodes[i].state != 0;
    }
    return waiting != g->count || g->end - g->first > g->room ? "other nodes wait for an answer"
                                                              : NULL;
}

const policy rdx_policy_given = {.came = given_came,
                                 .used = given_used,
                                 .split = given_split,
                                 .going = given_going,
                                 .choose = given_choose,
                                 .reserve = given_reserve,
                                 .free = given_free,
                                 .bytes = given_bytes,
                                 .fault = given_fault};

/* ---------------------------------------------------------------- questions and answers */
static bool is_given(const rdx_tree *t, uint32_t column) {
    return t->policy && t->policy->rule == &rdx_policy_given && column < t->columns &&
           !is_sparse(t, column);
}

static bool is_there(const rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    return i < t->node_used && node_at(t, i)->flags & NODE_LIVE && k->hi != k->lo;
}

uint32_t rdx_policy_waiting(const rdx_tree *t, uint32_t column) {
    if (!is_given(t, column)) {
        return 0;
    }
    const struct given *g = given_of(t, column);
    return g->count + (uint32_t)(g->end - g->first);
}

int rdx_policy_ask(const rdx_tree *t, uint32_t column, rdx_told *out, uint32_t max, uint32_t *n,
                   uint64_t *now) {
    *n = 0;
    *now = t->clock;
    if (max < rdx_policy_waiting(t, column)) {
        return RDX_EARG;
    }
    const struct given *g = is_given(t, column) ? given_of(t, column) : NULL;
    for (uint64_t k = g ? g->first : 0; g && k < g->end; k++) {
        out[(*n)++] = g->went[k % g->room];
    }
    for (uint32_t state = CAME; g && state <= USED; state++) {
        for (uint32_t k = 0; k < g->count; k++) {
            uint32_t i = g->waiting[k];
            if (g->nodes[i].state == state && is_there(t, i, column)) {
                out[*n] = told_of(t, i, column);
                out[(*n)++].kind = state == CAME ? RDX_TOLD_CAME : RDX_TOLD_USED;
            }
        }
    }
    return RDX_OK;
}

int rdx_policy_answer(rdx_tree *t, uint32_t column, const uint32_t *nodes, const double *keys,
                      uint32_t n) {
    if (!is_given(t, column)) {
        return RDX_EARG;
    }
    for (uint32_t k = 0; k < n; k++) {
        if (!is_there(t, nodes[k], column) || keys[k] != keys[k]) {
            return RDX_EARG;
        }
    }
    struct given *g = given_of(t, column);
    t->policy->columns[column].turned++;
    for (uint32_t k = 0; k < n; k++) {
        rdx_policy_move(t, nodes[k], column, 0, ordered(keys[k]));
        g->nodes[nodes[k]].before = mark_at(t, nodes[k], column)->last;
        g->nodes[nodes[k]].uses = mark_at(t, nodes[k], column)->uses;
    }
    for (uint32_t k = 0; k < g->count; k++) {
        g->nodes[g->waiting[k]].state = 0;
    }
    g->count = 0;
    g->first = g->end;
    return RDX_OK;
}

void rdx_policy_yield(rdx_tree *t) {
    for (uint32_t c = 0; c < t->columns; c++) {
        if (is_given(t, c)) {
            rdx_policy_answer(t, c, NULL, NULL, 0);
            given_of(t, c)->silent = true;
        }
    }
}
