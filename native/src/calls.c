/* calls.c: the calls of calls.h: each checks that its buffers hold what it is about, and goes on to
 * rdx.h. What a prompt's last tokens may count is the one rule that stands here. */
#include "calls.h"

#include <string.h>

#define GIVE(c, ...) memcpy((c)->out, (uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}))
#define BUF(i) (c->v[i].at)
/* Whether a buffer, where one was given, has room for so many. */
#define HOLDS(i, count, size) (!c->v[i].at || c->v[i].bytes >= (uint64_t)(count) * (size))

void rdx_call_room(rdx_call *c, void *at, uint32_t prompts) {
    c->runs = at;
    c->tokens = (uint64_t *)(void *)(c->runs + prompts);
    c->counts = (uint32_t *)(void *)(c->tokens + prompts);
    c->limits = c->counts + prompts;
}

void rdx_call_prompt(rdx_call *c, uint32_t k, const rdx_prompt *prompt) {
    c->runs[k] = prompt->run;
    c->tokens[k] = prompt->tokens;
    c->counts[k] = prompt->pages;
}

static int tree_new(rdx_call *c) {
    uint32_t groups = (uint32_t)(c->v[0].bytes / sizeof(rdx_group));
    rdx_tree_config config = {(uint32_t)c->n[0], (uint32_t)c->n[1], groups,
                              (uint32_t)c->n[2], (uint32_t)c->n[3], (uint32_t)c->n[4],
                              (uint32_t)c->n[5]};
    return rdx_tree_new(&config, BUF(0), &c->tree);
}

static int tree_address(rdx_call *c) {
    c->out[0] = (uint64_t)(uintptr_t)c->tree;
    return RDX_OK;
}

/* Pages that may count as hit: the last `leave` tokens never do. */
static uint32_t limit_of(const rdx_call *c, uint64_t tokens, uint32_t pages, uint64_t leave) {
    uint64_t kept = tokens > leave ? (tokens - leave) * 4 / rdx_tree_page_bytes(c->tree) : 0;
    return leave ? (uint32_t)kept : pages;
}

static int tree_match(rdx_call *c) {
    rdx_match m = {0};
    uint32_t limit = limit_of(c, c->prompt.tokens, c->prompt.pages, c->n[1]);
    int status = rdx_tree_match(c->tree, c->n[0], c->prompt.run, c->prompt.pages, limit,
                                (uint32_t)c->n[2], &m);
    GIVE(c, m.device_pages, m.hit_pages, m.structural.pages, m.limit_pages, m.stop,
         m.structural.node);
    return status;
}

static int tree_match_many(rdx_call *c) {
    for (uint32_t k = 0; k < c->many; k++) {
        c->limits[k] = limit_of(c, c->tokens[k], c->counts[k], c->n[0]);
    }
    return HOLDS(0, c->many, sizeof(rdx_handle)) && HOLDS(1, c->many, sizeof(rdx_match))
               ? rdx_tree_match_many(c->tree, c->many, BUF(0), c->runs, c->counts, c->limits,
                                     (uint32_t)c->n[1], BUF(1))
               : RDX_NO_ROOM;
}

static int lease_take(rdx_call *c) {
    uint64_t lease = 0;
    rdx_cursor end = {0};
    int status = rdx_lease_take(c->tree, c->at, c->n[0], (uint32_t)c->n[1], &lease, &end);
    GIVE(c, lease, end.node, end.pages);
    return status;
}

static int lease_take_many(rdx_call *c) {
    uint32_t m = (uint32_t)(c->v[0].bytes / sizeof(rdx_cursor));
    return HOLDS(1, m, sizeof(uint64_t)) && HOLDS(2, m, sizeof(rdx_cursor))
               ? rdx_lease_take_many(c->tree, BUF(0), m, c->n[0], BUF(1), BUF(2), &c->bad)
               : RDX_NO_ROOM;
}

static int lease_release(rdx_call *c) { return rdx_lease_release(c->tree, c->n[0], c->n[1] != 0); }

static int lease_release_many(rdx_call *c) {
    uint32_t m = (uint32_t)(c->v[0].bytes / sizeof(uint64_t));
    return rdx_lease_release_many(c->tree, BUF(0), m, c->n[0] != 0, &c->bad);
}

static int tree_insert(rdx_call *c) {
    uint64_t columns = c->v[1].bytes / 4, n = c->prompt.pages;
    if (!HOLDS(2, columns * n, 4) || !HOLDS(3, columns * n, 4)) {
        return RDX_NO_ROOM;
    }
    rdx_insert r = {0};
    int status = rdx_tree_insert(c->tree, c->at, c->prompt.run, (uint32_t)n, BUF(1),
                                 (uint32_t)columns, BUF(2), BUF(3), c->n[0], &r);
    GIVE(c, r.end.node, r.end.pages, r.existing, r.created, r.attached, r.duplicates);
    return status;
}

/* Where it is left to the caller: 0 for the node, the group whose pool is short, what it needs. In
 * the place of what was attached: how many blocks were evicted. */
static int tree_insert_pooled(rdx_call *c) {
    uint64_t n = c->prompt.pages > c->at.pages ? c->prompt.pages - c->at.pages : 0;
    rdx_pools *pools = (rdx_pools *)(uintptr_t)c->n[0];
    if (!HOLDS(1, pools->groups * n, 4)) {
        return RDX_NO_ROOM;
    }
    rdx_pooled p = {.from = c->at, .lease = c->n[2], .boundary = (uint32_t)c->n[1]};
    rdx_insert r = {0};
    int status =
        rdx_tree_insert_pooled(c->tree, c->prompt.run, c->prompt.pages, pools, &p, BUF(1), &r);
    uint64_t went = 0;
    for (uint32_t g = 0; g < pools->groups; g++) {
        went += pools->evicted[g];
    }
    if (status == RDX_EFULL) {
        GIVE(c, 0, p.group, p.needed, 0, went, 0);
        return RDX_OK;
    }
    GIVE(c, r.end.node, r.end.pages, r.existing, r.created, went, p.spare);
    return status;
}

static int tree_insert_many(rdx_call *c) {
    uint64_t nslots = c->v[2].bytes / 4;
    return HOLDS(0, c->many, sizeof(rdx_cursor)) && HOLDS(3, nslots, 4) &&
                   HOLDS(4, c->many, sizeof(uint64_t)) && HOLDS(5, c->many, sizeof(rdx_insert))
               ? rdx_tree_insert_many(c->tree, BUF(0), c->many, c->runs, c->counts, BUF(1),
                                      (uint32_t)(c->v[1].bytes / 4), BUF(2), nslots, BUF(3), BUF(4),
                                      c->n[0] != 0, BUF(5), &c->bad)
               : RDX_NO_ROOM;
}

static int tree_evict(rdx_call *c) {
    uint32_t freed = 0, want = (uint32_t)c->n[1];
    int status = HOLDS(0, want, 4) && HOLDS(1, want, rdx_tree_id_bytes(c->tree))
                     ? rdx_evict(c->tree, (uint32_t)c->n[0], want, c->n[2], BUF(0), BUF(1), &freed)
                     : RDX_NO_ROOM;
    c->out[0] = freed;
    return status;
}

static int tree_peek(rdx_call *c) {
    c->out[0] = rdx_evict_peek(c->tree, (uint32_t)c->n[0]);
    return RDX_OK;
}

static int tree_touch(rdx_call *c) { return rdx_touch(c->tree, c->at); }

static int tree_slots(rdx_call *c) {
    return HOLDS(0, c->n[2], 4) ? rdx_slots_get(c->tree, c->at, (uint32_t)c->n[0],
                                                (uint32_t)c->n[1], (uint32_t)c->n[2], BUF(0))
                                : RDX_NO_ROOM;
}

static int tree_column(rdx_call *c) {
    rdx_column_stats s;
    rdx_column_get_stats(c->tree, (uint32_t)c->n[0], &s);
    GIVE(c, s.resident, s.protected_blocks, s.listed);
    return RDX_OK;
}

static int pool_capacity(rdx_call *c) {
    c->out[0] = rdx_pool_capacity(c->pool);
    return RDX_OK;
}

static int pool_count(rdx_call *c) {
    c->out[0] = rdx_pool_count(c->pool, (uint32_t)c->n[0]);
    return RDX_OK;
}

static int pool_reserve(rdx_call *c) {
    int status =
        HOLDS(0, c->n[0], 4) ? rdx_pool_reserve(c->pool, (uint32_t)c->n[0], BUF(0)) : RDX_NO_ROOM;
    c->out[0] = status == RDX_OK;
    return status == RDX_EFULL ? RDX_OK : status;
}

/* Gives the index of the first slot that is not in that state; how many slots there are: none. */
static int pool_move(rdx_call *c) {
    uint32_t n = (uint32_t)(c->v[0].bytes / 4), bad = 0;
    int status = rdx_pool_move(c->pool, BUF(0), n, (uint32_t)c->n[0], (uint32_t)c->n[1], &bad);
    c->out[0] = status == RDX_OK ? n : bad;
    return status == RDX_ESLOT ? RDX_OK : status;
}

#define ENTRY(name, takes, gives) {#name, takes, name, RDX_GIVES_##gives}
const rdx_entry rdx_entries[RDX_ENTRIES] = {
    ENTRY(tree_new, "uuuuunb", TREE),      ENTRY(tree_address, "t", NUMBER),
    ENTRY(tree_match, "tnknu", MATCH),     ENTRY(tree_match_many, "tKbnuB", NOTHING),
    ENTRY(lease_take, "tcnu", THREE),      ENTRY(lease_take_many, "tCnBB", NOTHING),
    ENTRY(lease_release, "tnu", NOTHING),  ENTRY(lease_release_many, "tbu", NOTHING),
    ENTRY(tree_insert, "tckssOn", INSERT), ENTRY(tree_insert_many, "tKCssOauB", NOTHING),
    ENTRY(tree_evict, "tuunSA", NUMBER),   ENTRY(tree_peek, "tu", NUMBER),
    ENTRY(tree_touch, "tc", NOTHING),      ENTRY(tree_slots, "tcuuuS", NOTHING),
    ENTRY(tree_column, "tu", THREE),       ENTRY(pool_count, "pu", NUMBER),
    ENTRY(pool_capacity, "p", NUMBER),     ENTRY(pool_reserve, "puS", NUMBER),
    ENTRY(pool_move, "psuu", NUMBER),      ENTRY(tree_insert_pooled, "tcknunS", INSERT),
};
