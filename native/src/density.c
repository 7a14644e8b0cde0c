/* density.c: hit_density, the policy that learns. What goes first has the fewest hits to expect for
 * each unit of space and time that it would go on taking; what that is, it learns from when blocks
 * were used again, by how long ago that was and how long they had waited for that use.
 *
 *     waited for the last use (class)    none yet | below 8 | 64 | 512 | longer     in uses
 *     time since (bucket)                1 1.5 2 3 4 6 8 12 16 ...    half an octave each
 *
 * hits[class][bucket]: blocks that were used at that age; ends: blocks of which nothing more will
 * be known; the ring: blocks that are still waited for. Of these three follows the chance h of a
 * use in each bucket, and from an age on the best that keeping can give:
 *
 *     rank(age) = max over T of  P(use within T) / E[min(time of the use, T)]
 *
 * What was evicted is remembered by the key of its first page, at most four times as many blocks as
 * are resident, so that what would have been a hit counts too. A victim is the least rank of 16
 * leaves, drawn by a generator of its own with a fixed start: the same calls evict the same blocks.
 *
 * The guard: in step with it runs the order of last use, in keys alone. LRU of C blocks holds what
 * was used behind a horizon, the time since which C different blocks were used; the ring says where
 * that lies. While LRU did better over the last window the victim is what was used longest ago.
 */
#include "policy.h"

#define CLASSES 5
#define BUCKETS 48
#define SLOTS 512
#define OVER 1 /* the queue of what no request goes on from any more; it goes first */
#define DRAWS 16
#define HISTORY 4        /* blocks remembered for each resident one */
#define LEARN_EVERY 128  /* uses between two looks at what was learned */
#define LEARN_FIRST 1024 /* uses before the ranks decide anything */
#define FADING 0.98      /* what is left of a count at the next look */
#define PRIOR 500.0      /* blocks of all classes that weigh as much as a class's own */

struct density {
    double hits[CLASSES][BUCKETS];
    double ends[CLASSES][BUCKETS];
    double rank[CLASSES][BUCKETS];
    uint64_t learned; /* the clock at the last look */
    uint64_t draw;    /* state of the generator */
    /* blocks waited for, resident or remembered, by class and the time of their last use */
    uint64_t ring[CLASSES][SLOTS];
    uint64_t older[CLASSES];
    uint64_t waited; /* all of them */
    uint64_t base;   /* the first slot of the ring */
    uint64_t width;  /* clock of a slot */
    /* the shadow */
    uint64_t horizon; /* the slot where LRU's blocks begin */
    uint64_t behind;  /* blocks in slots >= horizon */
    uint64_t room;    /* blocks that were resident when room was needed last */
    /* the guard */
    int64_t won;     /* hits more than LRU's in this window */
    int64_t total;   /* and in all */
    uint64_t asked;  /* blocks */
    uint64_t missed; /* in this window */
    uint64_t began;  /* the clock at its begin */
    uint32_t pause;  /* windows that LRU still decides; 0: the ranks do */
    uint32_t next_pause;
};

static struct density *density_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    return ranking_at(t, i, column)->density;
}

/* What went of all leaves, which are in one queue. */
static ghosts *gone_of(const rdx_tree *t, uint32_t i, uint32_t column) {
    return &ranking_at(t, i, column)->gone[0];
}

/* The class of what is used after it waited that long; 0 is of what was not used yet. */
static uint32_t class_after(uint64_t wait) {
    return wait < 8 ? 1 : wait < 64 ? 2 : wait < 512 ? 3 : 4;
}

/* A mark has its class for a key: nothing is ordered by it. */
static uint32_t class_of(const mark *m) { return (uint32_t)m->key; }

static uint32_t bucket_of(uint64_t age) {
    age = age ? age : 1;
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(age);
    uint32_t half = octave ? (age >> (octave - 1)) & 1 : 0;
    uint32_t bucket = octave * 2 + half;
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* The age at which a bucket begins. */
static double age_of(uint32_t bucket) {
    return (double)(1ull << bucket / 2) * (bucket % 2 ? 1.5 : 1.0);
}

static uint32_t held_pages(const rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    return rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
}

/* ---------------------------------------------------------------- the ring and the shadow */
static void wait_for(struct density *d, uint32_t class, uint64_t last, uint64_t n, bool more) {
    uint64_t slot = last / d->width;
    uint64_t *count = slot < d->base ? &d->older[class] : &d->ring[class][slot % SLOTS];
    *count = more ? *count + n : *count - n;
    d->waited = more ? d->waited + n : d->waited - n;
    if (slot >= d->horizon) {
        d->behind = more ? d->behind + n : d->behind - n;
    }
}

static uint64_t in_slot(const struct density *d, uint64_t slot) {
    uint64_t n = 0;
    for (uint32_t c = 0; c < CLASSES; c++) {
        n += d->ring[c][slot % SLOTS];
    }
    return n;
}

/* The first slot falls out of the ring. */
static void drop_slot(struct density *d) {
    for (uint32_t c = 0; c < CLASSES; c++) {
        d->older[c] += d->ring[c][d->base % SLOTS];
        d->ring[c][d->base % SLOTS] = 0;
    }
    d->base++;
}

/* Two slots become one, so that the ring reaches twice as far back. */
static void widen(struct density *d, uint64_t now) {
    if (d->base % 2) {
        drop_slot(d);
    }
    if (d->horizon % 2 || d->horizon < d->base) {
        d->horizon = d->horizon > d->base ? d->horizon - 1 : d->base;
    }
    uint64_t ring[CLASSES][SLOTS] = {{0}};
    for (uint64_t slot = d->base; slot <= now / d->width; slot++) {
        for (uint32_t c = 0; c < CLASSES; c++) {
            ring[c][slot / 2 % SLOTS] += d->ring[c][slot % SLOTS];
        }
    }
    memcpy(d->ring, ring, sizeof ring);
    d->width *= 2;
    d->base /= 2;
    d->horizon /= 2;
    d->behind = 0;
    for (uint64_t slot = d->horizon; slot <= now / d->width; slot++) {
        d->behind += in_slot(d, slot);
    }
}

/* Time goes on: what falls out of the ring is older; the horizon follows. The ring reaches as far
 * back as the horizon, and as seven of eight blocks. */
static void advance(struct density *d, uint64_t now) {
    while (now / d->width >= d->base + SLOTS) {
        uint64_t out = in_slot(d, d->base);
        for (uint32_t c = 0; c < CLASSES; c++) {
            out += d->older[c];
        }
        if (d->horizon <= d->base || out * 8 > d->waited) {
            widen(d, d->base * d->width + SLOTS * d->width - 1);
        } else {
            drop_slot(d);
        }
    }
    while (d->room && d->behind > d->room && d->horizon < now / d->width) {
        d->behind -= in_slot(d, d->horizon++);
    }
}

static bool lru_holds(const struct density *d, uint64_t last) {
    return last / d->width >= d->horizon;
}

/* ---------------------------------------------------------------- what is learned */
/* Blocks that were, or are, waited for in each bucket, by class. */
static void counts_at_risk(const struct density *d, uint64_t now, double risk[CLASSES][BUCKETS]) {
    double waiting[CLASSES][BUCKETS];
    memcpy(waiting, d->ends, sizeof waiting);
    for (uint32_t c = 0; c < CLASSES; c++) {
        for (uint64_t slot = d->base; slot <= now / d->width; slot++) {
            uint64_t then = slot * d->width + d->width / 2;
            uint32_t bucket = bucket_of(now > then ? now - then : 1);
            waiting[c][bucket] += (double)d->ring[c][slot % SLOTS];
        }
        waiting[c][bucket_of(now - d->base * d->width)] += (double)d->older[c];
        double sum = 0;
        for (uint32_t b = BUCKETS; b-- > 0;) {
            sum += d->hits[c][b] + waiting[c][b];
            risk[c][b] = sum - waiting[c][b] / 2; /* it ends somewhere in the bucket */
        }
    }
}

/* The best that keeping a block of this age can give, in uses a unit of time. */
static double best_rate(const double *chance, uint32_t from) {
    double best = 0;
    double alive = 1;
    double hit = 0;
    double time = 0;
    for (uint32_t b = from; b < BUCKETS; b++) {
        double share = b == from ? 0.5 : 1.0; /* it is somewhere in the first bucket */
        double p = chance[b] * share;
        hit += alive * p;
        time += alive * (age_of(b + 1) - age_of(b)) * share * (1 - p / 2);
        alive *= 1 - p;
        best = hit / time > best ? hit / time : best;
    }
    return best;
}

static void learn(struct density *d, uint64_t now) {
    double risk[CLASSES][BUCKETS];
    double pooled[BUCKETS];
    counts_at_risk(d, now, risk);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        double hits = 0;
        double all = 0;
        for (uint32_t c = 0; c < CLASSES; c++) {
            hits += d->hits[c][b];
            all += risk[c][b];
        }
        pooled[b] = all > 0 ? hits / all : 0;
    }
    for (uint32_t c = 0; c < CLASSES; c++) {
        double chance[BUCKETS];
        for (uint32_t b = 0; b < BUCKETS; b++) {
            double p = (d->hits[c][b] + PRIOR * pooled[b]) / (risk[c][b] + PRIOR);
            chance[b] = p < 1 ? p : 1;
        }
        for (uint32_t b = 0; b < BUCKETS; b++) {
            d->rank[c][b] = best_rate(chance, b);
            d->hits[c][b] *= FADING;
            d->ends[c][b] *= FADING;
        }
    }
    d->learned = now;
}

static void hit(struct density *d, uint32_t class, uint64_t last, uint64_t now, uint32_t n) {
    d->hits[class][bucket_of(now - last)] += n;
    d->total -= lru_holds(d, last) ? n : 0;
    d->won -= lru_holds(d, last) ? n : 0;
}

/* ---------------------------------------------------------------- what went */
static void expect_no_more(struct density *d, ghost run, uint64_t now) {
    if (run.pages) {
        d->ends[run.class][bucket_of(now - run.last)] += run.pages;
        wait_for(d, run.class, run.last, run.pages, false);
    }
}

static void density_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    struct density *d = density_of(t, i, column);
    ghosts *gone = gone_of(t, i, column);
    const mark *m = mark_at(t, i, column);
    ghost run = rdx_ghost_of(t, i, column, n);
    ghost old = rdx_ghosts_take(gone, run.key);
    if (old.pages) {
        wait_for(d, old.class, old.last, old.pages, false);
    }
    run.last = m->last;
    run.class = class_of(m);
    expect_no_more(d, rdx_ghosts_push(gone, run, rdx_policy_memory(t, 0)), t->clock);
    wait_for(d, class_of(m), m->last, run.pages, true);
    while (gone->blocks > HISTORY * d->room) {
        expect_no_more(d, rdx_ghosts_shift(gone), t->clock);
    }
}

/* What of node i, from its first page on, went not long ago: would have been hits. The last run of
 * it, without pages if nothing is known. */
static ghost recall(rdx_tree *t, uint32_t i, uint32_t column) {
    struct density *d = density_of(t, i, column);
    const cell *k = cell_at(t, i, column);
    uint32_t width = rdx_width(rule_of(t, column));
    ghost known = {0};
    for (uint64_t p = k->lo; p < k->hi;) {
        ghost run = rdx_ghosts_take(gone_of(t, i, column), rdx_ghost_key(t, i, (uint32_t)p));
        if (!run.pages) {
            break;
        }
        uint32_t left = (k->hi - (uint32_t)p) / width;
        hit(d, run.class, run.last, t->clock, run.pages < left ? run.pages : left);
        wait_for(d, run.class, run.last, run.pages, false);
        known = run;
        p += (uint64_t)run.pages * width;
    }
    return known;
}

/* ---------------------------------------------------------------- the guard */
static void end_window(struct density *d, uint64_t now) {
    double budget = 0.004 * (double)d->asked + 0.2 * (double)d->room;
    double lost = -(double)d->total;
    bool over = lost > budget;
    bool quickly = -(double)d->won > 0.1 * (double)d->room;
    bool full = 2 * d->missed >= d->room && now - d->began >= 64;
    if (d->pause == 0 && (over || quickly || (full && d->won < 0))) {
        d->pause = d->next_pause;
        d->next_pause *= quickly ? 4 : 2;
        d->next_pause = d->next_pause < 64 ? d->next_pause : 64;
    } else if (!full) {
        return;
    } else if (d->pause == 0) {
        d->next_pause = d->won > 0 && d->next_pause > 1 ? d->next_pause / 2 : d->next_pause;
    } else if (d->pause > 1 || (lost <= 0.75 * budget && now >= LEARN_FIRST)) {
        d->pause--;
    }
    d->won = 0;
    d->missed = 0;
    d->began = now;
}

/* ---------------------------------------------------------------- the policy */
static void density_came(rdx_tree *t, uint32_t i, uint32_t column) {
    struct density *d = density_of(t, i, column);
    mark *m = mark_at(t, i, column);
    uint32_t n = held_pages(t, i, column);
    uint32_t parent = node_at(t, i)->parent;
    ghost known = recall(t, i, column);
    m->key = known.pages ? class_after(t->clock - known.last) : 0;
    if (!known.pages && !(node_at(t, parent)->flags & NODE_ROOT) &&
        cell_at(t, parent, column)->kids == 1) { /* what it goes on from was a leaf */
        m->key = class_after(t->clock - mark_at(t, parent, column)->last);
    }
    d->asked += n;
    d->missed += n;
    wait_for(d, class_of(m), m->last, n, true);
}

static void density_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    struct density *d = density_of(t, i, column);
    uint32_t n = held_pages(t, i, column);
    if (old->queue == OVER) {
        rdx_policy_move(t, i, column, 0, old->key);
    }
    wait_for(d, class_of(old), old->last, n, false);
    if (again) {
        hit(d, class_of(old), old->last, t->clock, n);
        d->won += n;
        d->total += n;
        d->asked += n;
    }
    advance(d, t->clock);
    mark *m = mark_at(t, i, column);
    m->key = again ? class_after(t->clock - old->last) : old->key;
    wait_for(d, class_of(m), m->last, n, true);
}

static void density_hint(rdx_tree *t, uint32_t i, uint32_t column, const rdx_hint *said, bool own) {
    if (said->says & RDX_SAYS_ENDED && own) {
        rdx_policy_move(t, i, column, OVER, mark_at(t, i, column)->key);
    }
}

static void density_settle(rdx_tree *t, uint32_t column, uint32_t tenant) {
    struct density *d = ranking_of(t, tenant, column)->density;
    advance(d, t->clock);
    if (t->clock - d->learned >= LEARN_EVERY) {
        learn(d, t->clock);
    }
    if (d->room) {
        end_window(d, t->clock);
    }
}

static void density_resident(rdx_tree *t, uint32_t i, uint32_t column, int64_t more) {
    const mark *m = mark_at(t, i, column);
    uint64_t n = more < 0 ? (uint64_t)-more : (uint64_t)more;
    wait_for(density_of(t, i, column), class_of(m), m->last, n, more > 0);
}

/* Leaves and others, drawn from all that may go; what is known of them is on its way then. */
static void draw_nodes(const rdx_tree *t, uint32_t column, const ranking *r,
                       uint32_t drawn[DRAWS]) {
    const queue *q = &r->queues[0];
    const stock *s = &t->policy->stock;
    uint64_t draw = r->density->draw;
    for (uint32_t k = 0; k < DRAWS; k++) {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        drawn[k] = (uint32_t)((draw >> 32) * q->count >> 32);
        __builtin_prefetch(rdx_queue_at(s, q, drawn[k]));
    }
    r->density->draw = draw;
    for (uint32_t k = 0; k < DRAWS; k++) {
        drawn[k] = *rdx_queue_at(s, q, drawn[k]);
        __builtin_prefetch(mark_at(t, drawn[k], column));
    }
}

static uint32_t density_choose(rdx_tree *t, uint32_t column, uint32_t tenant) {
    const ranking *r = ranking_of(t, tenant, column);
    struct density *d = r->density;
    d->room = rdx_tenant_blocks(t, tenant, column);
    uint32_t best = rdx_policy_head(t, column, tenant, OVER);
    if (best != NIL) {
        return best;
    }
    best = rdx_oldest_leaf(t, column, tenant);
    if (d->pause || best == NIL || r->queues[0].count == 0) {
        return best; /* what was used longest ago */
    }
    uint32_t drawn[DRAWS];
    draw_nodes(t, column, r, drawn);
    const mark *m = mark_at(t, best, column);
    uint64_t oldest = m->last;
    double least = d->rank[class_of(m)][bucket_of(t->clock - m->last)];
    for (uint32_t k = 0; k < DRAWS; k++) {
        m = mark_at(t, drawn[k], column);
        double rank = d->rank[class_of(m)][bucket_of(t->clock - m->last)];
        bool before = rank < least || (rank == least && m->last < oldest);
        if (before && cell_at(t, drawn[k], column)->kids == 0) {
            best = drawn[k];
            least = rank;
            oldest = m->last;
        }
    }
    return best;
}

/* ---------------------------------------------------------------- room */
static int density_begin(ranking *r) {
    r->density = r->density ? r->density : rdx_malloc(sizeof(*r->density));
    if (!r->density) {
        return RDX_ENOMEM;
    }
    *r->density =
        (struct density){.draw = 0x9E3779B97F4A7C15ull, .width = 1, .pause = 2, .next_pause = 1};
    return RDX_OK;
}

static void density_end(ranking *r) { rdx_free_mem(r->density); }

/* ---------------------------------------------------------------- check */
/* Counts n blocks as they must be counted. */
static void recount(const struct density *d, struct density *sum, uint32_t class, uint64_t last,
                    uint64_t n) {
    uint64_t slot = last / d->width;
    *(slot < d->base ? &sum->older[class] : &sum->ring[class][slot % SLOTS]) += n;
    sum->behind += slot >= d->horizon ? n : 0;
    sum->waited += n;
}

static const char *density_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    const struct density *d = ranking_of(t, tenant, column)->density;
    struct density sum = {0};
    const ghosts *gone = &ranking_of(t, tenant, column)->gone[0];
    for (uint64_t k = gone->first; k < gone->end; k++) {
        const ghost *run = &gone->ring[k & (gone->room - 1)];
        recount(d, &sum, run->class, run->last, run->pages);
    }
    if (d->horizon < d->base) {
        return "what LRU holds lies further back than it can";
    }
    for (uint32_t i = 0; i < t->node_used; i++) {
        const cell *k = cell_at(t, i, column);
        bool own = node_at(t, i)->flags & NODE_LIVE && rdx_tenant_of(t, i) == tenant;
        if (own && k->hi != k->lo) {
            const mark *m = mark_at(t, i, column);
            recount(d, &sum, class_of(m), m->last, held_pages(t, i, column));
        }
    }
    if (memcmp(sum.ring, d->ring, sizeof sum.ring) ||
        memcmp(sum.older, d->older, sizeof sum.older)) {
        return "blocks are waited for at another age than theirs";
    }
    return sum.behind != d->behind || sum.waited != d->waited ? "the shadow is not what LRU holds"
                                                              : NULL;
}

const policy rdx_policy_density = {.came = density_came,
                                   .used = density_used,
                                   .settle = density_settle,
                                   .going = density_going,
                                   .resident = density_resident,
                                   .hint = density_hint,
                                   .choose = density_choose,
                                   .begin = density_begin,
                                   .end = density_end,
                                   .fault = density_fault,
                                   .known = sizeof(struct density),
                                   .memory = {HISTORY, 0},
                                   .drawn = true};
