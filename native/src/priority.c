/* priority.c: the policy that goes by what requests said. What they said is over goes first; then
 * what has the least priority, where a reservation counts until its time; and of one priority what
 * is furthest, in time, from a use:
 *
 *     last use, or the return that did not happen          now          the return expected
 *        |<------------------- idle ----------------------->|<------------ wait ---------->|
 *
 * Queue 0 holds what nobody expects back, the longest idle first; queue 1 what is expected, the
 * furthest return first; of the two heads the larger distance goes. A timer for each node says when
 * what was said of it ends. A node's place is a function of what was said and of the time told.
 */
#include "policy.h"

#define TIME_BITS 54
#define TIME_MOST ((1ull << TIME_BITS) - 1)
#define LEVEL(priority) ((uint8_t)((priority) + 101)) /* 0: said to be over */

/* What was said of one node. */
typedef struct hint {
    uint64_t since;   /* the time of its last use, or the one at which it was expected in vain */
    uint64_t returns; /* still to come; 0: nobody said */
    uint64_t until;   /* the end of the reservation; 0: none */
    uint32_t timer;   /* its place among the timers; NIL: in none */
    uint8_t own;      /* its level, and that while the reservation lasts */
    uint8_t held;
    bool ended;
} hint;

struct hinted {
    hint *hints;      /* by node */
    uint32_t *timers; /* nodes, the first to end at the head of a binary heap */
    uint32_t ntimers;
    uint32_t nodes;
};

static struct hinted *hinted_of(const rdx_tree *t, uint32_t column) {
    return t->policy->columns[column].hinted;
}

static uint8_t level_of(const hint *h) {
    uint8_t own = h->ended ? 0 : h->own;
    return h->until && h->held > own ? h->held : own;
}

static uint64_t key_of(const hint *h) {
    uint64_t time = h->returns ? TIME_MOST - h->returns : h->since;
    return (uint64_t)level_of(h) << TIME_BITS | time;
}

/* ---------------------------------------------------------------- timers */
static uint64_t due(const hint *h) {
    uint64_t returns = h->returns ? h->returns : UINT64_MAX;
    uint64_t until = h->until ? h->until : UINT64_MAX;
    return returns < until ? returns : until;
}

static bool ends_before(const struct hinted *p, uint32_t a, uint32_t b) {
    uint64_t x = due(&p->hints[a]);
    uint64_t y = due(&p->hints[b]);
    return x != y ? x < y : a < b;
}

static void put_timer(struct hinted *p, uint32_t at, uint32_t i) {
    p->timers[at] = i;
    p->hints[i].timer = at;
}

/* Node i belongs at place `at`, above it or below. */
static void sift_timer(struct hinted *p, uint32_t at, uint32_t i) {
    while (at && ends_before(p, i, p->timers[(at - 1) / 2])) {
        put_timer(p, at, p->timers[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint64_t below = (uint64_t)at * 2 + 1;
        if (below + 1 < p->ntimers && ends_before(p, p->timers[below + 1], p->timers[below])) {
            below++;
        }
        if (below >= p->ntimers || !ends_before(p, p->timers[below], i)) {
            break;
        }
        put_timer(p, at, p->timers[below]);
        at = (uint32_t)below;
    }
    put_timer(p, at, i);
}

static void disarm(struct hinted *p, uint32_t i) {
    uint32_t at = p->hints[i].timer;
    if (at == NIL) {
        return;
    }
    uint32_t last = p->timers[--p->ntimers];
    p->hints[i].timer = NIL;
    if (last != i) {
        sift_timer(p, at, last);
    }
}

static void arm(struct hinted *p, uint32_t i) {
    if (due(&p->hints[i]) == UINT64_MAX) {
        disarm(p, i);
        return;
    }
    uint32_t at = p->hints[i].timer == NIL ? p->ntimers++ : p->hints[i].timer;
    sift_timer(p, at, i);
}

/* ---------------------------------------------------------------- the policy */
static void place(rdx_tree *t, uint32_t i, uint32_t column) {
    struct hinted *p = hinted_of(t, column);
    const hint *h = &p->hints[i];
    rdx_policy_move(t, i, column, h->returns ? 1 : 0, key_of(h));
    arm(p, i);
}

/* A node that comes into a tier by a copy is what requests said of it elsewhere. */
static void priority_came(rdx_tree *t, uint32_t i, uint32_t column) {
    struct hinted *p = hinted_of(t, column);
    hint h = {.since = t->policy->now, .timer = NIL, .own = LEVEL(0)};
    uint32_t first = t->group_of[column] * t->tiers;
    for (uint32_t c = first; c < first + t->tiers; c++) {
        const cell *k = cell_at(t, i, c);
        if (c != column && k->hi != k->lo) {
            h = hinted_of(t, c)->hints[i];
            h.timer = NIL;
            break;
        }
    }
    p->hints[i] = h;
    place(t, i, column);
}

static void priority_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)again, (void)old;
    hint *h = &hinted_of(t, column)->hints[i];
    h->since = t->policy->now;
    h->returns = 0;
    h->ended = false;
    place(t, i, column);
}

static void priority_split(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t column) {
    struct hinted *p = hinted_of(t, column);
    p->hints[upper] = p->hints[lower];
    p->hints[upper].timer = NIL;
    arm(p, upper);
}

static void priority_left(rdx_tree *t, uint32_t i, uint32_t column) {
    disarm(hinted_of(t, column), i);
}

static void priority_hint(rdx_tree *t, uint32_t i, uint32_t column, const rdx_hint *said,
                          bool own) {
    hint *h = &hinted_of(t, column)->hints[i];
    uint8_t level = LEVEL(said->says & RDX_SAYS_PRIORITY ? said->priority : RDX_KEPT);
    if (said->until > t->policy->now) {
        if (!h->until || level > h->held) {
            h->until = said->until;
            h->held = level;
        } else if (level == h->held && said->until > h->until) {
            h->until = said->until;
        }
    } else if (said->says & RDX_SAYS_PRIORITY) {
        h->own = level;
    }
    if (said->returns > t->policy->now && (!h->returns || said->returns < h->returns)) {
        h->returns = said->returns; /* of several sessions the first to come back */
    }
    if (said->says & RDX_SAYS_ENDED && own) {
        h->ended = true;
        h->returns = 0;
    }
    place(t, i, column);
}

static void priority_time(rdx_tree *t, uint32_t column) {
    struct hinted *p = hinted_of(t, column);
    uint64_t now = t->policy->now;
    while (p->ntimers && due(&p->hints[p->timers[0]]) <= now) {
        uint32_t i = p->timers[0];
        hint *h = &p->hints[i];
        if (h->returns && h->returns <= now) {
            h->since = h->returns;
            h->returns = 0;
        }
        if (h->until <= now) {
            h->until = 0;
        }
        place(t, i, column);
    }
}

static uint32_t priority_choose(rdx_tree *t, uint32_t column, uint32_t tenant) {
    uint32_t idle = rdx_policy_head(t, column, tenant, 0);
    uint32_t back = rdx_policy_head(t, column, tenant, 1);
    if (idle == NIL || back == NIL) {
        return idle == NIL ? back : idle;
    }
    const hint *x = &hinted_of(t, column)->hints[idle];
    const hint *y = &hinted_of(t, column)->hints[back];
    if (level_of(x) != level_of(y)) {
        return level_of(x) < level_of(y) ? idle : back;
    }
    return y->returns - t->policy->now > t->policy->now - x->since ? back : idle;
}

/* ---------------------------------------------------------------- room */
static int priority_reserve(rdx_tree *t, uint32_t column, uint32_t nodes) {
    struct hinted *p = hinted_of(t, column);
    if (!p) {
        p = rdx_calloc(1, sizeof(*p));
        if (!p) {
            return RDX_ENOMEM;
        }
        t->policy->columns[column].hinted = p;
    }
    if (nodes <= p->nodes) {
        return RDX_OK;
    }
    uint32_t *timers = rdx_realloc(p->timers, (size_t)nodes * 4);
    if (!timers) {
        return RDX_ENOMEM;
    }
    p->timers = timers;
    hint *hints = rdx_realloc(p->hints, (size_t)nodes * sizeof(hint));
    if (!hints) {
        return RDX_ENOMEM;
    }
    for (uint32_t i = p->nodes; i < nodes; i++) {
        hints[i] = (hint){.timer = NIL};
    }
    p->hints = hints;
    p->nodes = nodes;
    return RDX_OK;
}

static void priority_free(rdx_tree *t, uint32_t column) {
    struct hinted *p = hinted_of(t, column);
    if (p) {
        rdx_free_mem(p->hints);
        rdx_free_mem(p->timers);
        rdx_free_mem(p);
    }
}

static uint64_t priority_bytes(const rdx_tree *t, uint32_t column) {
    const struct hinted *p = hinted_of(t, column);
    return sizeof(*p) + (uint64_t)p->nodes * (sizeof(hint) + 4);
}

/* ---------------------------------------------------------------- check */
static const char *priority_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    (void)tenant; /* the timers are one for all */
    const struct hinted *p = hinted_of(t, column);
    uint64_t armed = 0;
    for (uint32_t i = 0; i < t->node_used; i++) {
        const cell *k = cell_at(t, i, column);
        if (!(node_at(t, i)->flags & NODE_LIVE) || k->hi == k->lo) {
            continue;
        }
        const hint *h = &p->hints[i];
        const mark *m = mark_at(t, i, column);
        uint64_t end = due(h);
        if (h->since > t->policy->now || end <= t->policy->now) {
            return "what was said of a node has ended, and it counts";
        }
        if (m->queue != (h->returns ? 1 : 0) || m->key != key_of(h)) {
            return "a node does not stand where what was said of it belongs";
        }
        if ((end != UINT64_MAX) != (h->timer != NIL)) {
            return "a node has a timer that it does not need, or lacks one";
        }
        armed += h->timer != NIL;
        if (h->timer != NIL && (h->timer >= p->ntimers || p->timers[h->timer] != i)) {
            return "a node does not know its place among the timers";
        }
        if (h->timer != NIL && h->timer && ends_before(p, i, p->timers[(h->timer - 1) / 2])) {
            return "a timer ends before the one above it";
        }
    }
    return armed != p->ntimers ? "there are other timers than nodes have" : NULL;
}

const policy rdx_policy_priority = {.came = priority_came,
                                    .used = priority_used,
                                    .split = priority_split,
                                    .left = priority_left,
                                    .hint = priority_hint,
                                    .time = priority_time,
                                    .choose = priority_choose,
                                    .reserve = priority_reserve,
                                    .free = priority_free,
                                    .bytes = priority_bytes,
                                    .fault = priority_fault};
