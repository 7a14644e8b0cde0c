/* match.c: how much of a prompt is there. Changes nothing (I34). Structure is walked edge by edge;
 * beside it run, for every group, the pages that tier 0 holds without a gap from the root, and
 * those that the union of the readable tiers holds. Groups with other rules are judged by joint.c
 * when the walk has ended.
 */
#include "tree.h"

typedef struct cover {
    uint32_t device;
    uint32_t hit;
    bool device_open;
    bool hit_open;
} cover;

/* Pages of [0, shared) of node i that `tiers` (a bit mask) hold without a gap, for one group. */
static uint32_t union_pages(const cell *row, uint32_t tiers, uint32_t count, uint32_t shared) {
    uint32_t reach = 0;
    bool grew = true;
    while (grew && reach < shared) {
        grew = false;
        for (uint32_t t = 0; t < count; t++) {
            if (tiers >> t & 1 && row[t].lo <= reach && row[t].hi > reach) {
                reach = row[t].hi;
                grew = true;
            }
        }
    }
    return reach < shared ? reach : shared;
}

static void cover_node(const rdx_tree *t, uint32_t i, uint32_t shared, uint32_t readable,
                       cover *c) {
    const cell *row = cell_at(t, i, 0);
    uint32_t device = shared;
    uint32_t hit = shared;
    for (uint32_t g = 0; g < t->groups && c->hit_open; g++, row += t->tiers) {
        uint32_t d = union_pages(row, readable & 1, 1, shared);
        uint32_t h = d == shared ? d : union_pages(row, readable, t->tiers, shared);
        device = d < device ? d : device;
        hit = h < hit ? h : hit;
    }
    if (c->device_open) {
        c->device += device;
        c->device_open = device == shared;
    }
    if (c->hit_open) {
        c->hit += hit;
        c->hit_open = hit == shared;
    }
}

/* The same where some group is not plain: what is resident is judged from the end upwards. */
static void finish_joint(const rdx_tree *t, uint32_t i, uint32_t limit, uint32_t readable,
                         rdx_match *out) {
    uint32_t pages = out->structural.pages;
    out->device_pages = rdx_joint_hit(t, i, pages, limit, readable & 1, &out->stop);
    out->hit_pages = out->device_pages;
    if (readable & ~1u && out->device_pages < pages && out->device_pages < limit) {
        out->hit_pages = rdx_joint_hit(t, i, pages, limit, readable, &out->stop);
    }
}

static void finish(const rdx_tree *t, uint32_t i, const cover *c, uint32_t limit, uint32_t readable,
                   rdx_match *out) {
    out->limit_pages = limit;
    if (!t->plain) {
        finish_joint(t, i, limit, readable, out);
        return;
    }
    out->device_pages = c->device < limit ? c->device : limit;
    out->hit_pages = c->hit < limit ? c->hit : limit;
    if (out->hit_pages == limit) {
        out->stop = RDX_STOP_LIMIT;
    } else {
        out->stop = c->hit < out->structural.pages ? RDX_STOP_HOLE : RDX_STOP_COLD;
    }
}

/* What node `child` (or NIL) and n pages at `run` will compare; asks for its beginning. */
static rdx_ahead edge_of(const rdx_tree *t, uint32_t child, const uint8_t *run, uint32_t n) {
    if (child == NIL) {
        return (rdx_ahead){NULL, NULL, 0};
    }
    const node *x = node_at(t, child);
    rdx_ahead e = {run, pages_at(t, x), (uint64_t)(n < x->len ? n : x->len) * t->page_bytes};
    rdx_ask_pages(e.b, e.bytes, 2, 3);
    return e;
}

/* One edge further from node i, `child` being likely: the child that really is there, or NIL, with
 * *shared pages in common. What is likely to follow it is looked up before its pages are compared,
 * so that the waits for memory overlap: *next. */
static uint32_t step(const rdx_tree *t, uint32_t i, uint32_t child, const uint8_t *run, uint32_t n,
                     uint32_t *shared, uint32_t *next) {
    rdx_ahead here = edge_of(t, child, run, n);
    uint32_t most = (uint32_t)(here.bytes / t->page_bytes);
    *next = most < n ? rdx_child_likely(t, child, run + here.bytes) : NIL;
    rdx_ahead then = edge_of(t, *next, run + here.bytes, n - most);
    *shared = rdx_shared_pages(here.a, here.b, most, t->page_bytes, &then);
    if (*shared) {
        return child;
    }
    child = rdx_child_step(t, i, run, n, shared); /* another child's page with this hash */
    bool on = child != NIL && *shared < n && *shared == node_at(t, child)->len;
    *next = on ? rdx_child_likely(t, child, run + (size_t)*shared * t->page_bytes) : NIL;
    return child;
}

int rdx_tree_match(const rdx_tree *t, rdx_handle root, const void *pages, uint32_t n,
                   uint32_t limit, uint32_t readable, rdx_match *out) {
    uint32_t i = node_of(t, root);
    if (i == NIL || !(node_at(t, i)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    const uint8_t *run = pages;
    uint32_t at = 0;
    cover c = {0, 0, true, true};
    rdx_ask_pages(run, (size_t)n * t->page_bytes, 4, 8);
    uint32_t next = n ? rdx_child_likely(t, i, run) : NIL;
    while (next != NIL) {
        uint32_t shared;
        uint32_t child = step(t, i, next, run + (size_t)at * t->page_bytes, n - at, &shared, &next);
        if (child == NIL) {
            break;
        }
        i = child;
        at += shared;
        if (t->plain) {
            cover_node(t, i, shared, readable, &c);
        }
        if (shared < node_at(t, i)->len) {
            break;
        }
    }
    out->structural = (rdx_cursor){handle_of(t, i), root, at};
    finish(t, i, &c, limit, readable, out);
    return RDX_OK;
}

/* ---------------------------------------------------------------- many at once
 * Each prompt is a small machine of steps one memory access apart; each step asks for the lines
 * that the next one reads, and the other prompts' steps run in between. */
#define LANES 32

enum step { HASH, PROBE, VISIT, COMPARE };

typedef struct lane {
    uint32_t prompt; /* NIL: idle */
    uint32_t left;   /* pages of it that nothing was found for yet */
    const uint8_t *run;
    uint32_t node;
    uint32_t child; /* the likely one */
    uint32_t hash;
    uint32_t slot;
    enum step step;
    cover c;
} lane;

/* A short page lies in two lines as a rule. */
static inline void ask_page(const rdx_tree *t, const uint8_t *page) {
    __builtin_prefetch(page);
    __builtin_prefetch(page + (t->page_bytes < 64 ? t->page_bytes - 1 : 63));
}

/* The next entry with the hash from l->slot on: its node. NIL: there is none. */
static uint32_t probe(const rdx_tree *t, lane *l) {
    for (;; l->slot++) {
        const entry *e = &t->table[l->slot &= t->table_cap - 1];
        if (e->node == NIL || e->hash == l->hash) {
            return e->node;
        }
    }
}

/* Compares the pages of the likely child. True while the prompt goes on. */
static bool lane_compare(const rdx_tree *t, lane *l, uint32_t readable) {
    const node *x = node_at(t, l->child);
    uint32_t most = l->left < x->len ? l->left : x->len;
    uint32_t shared = rdx_shared_pages(pages_at(t, x), l->run, most, t->page_bytes, NULL);
    if (!shared) { /* another page with this hash */
        l->child = rdx_child_step(t, l->node, l->run, l->left, &shared);
        if (l->child == NIL) {
            return false;
        }
        x = node_at(t, l->child);
    }
    l->node = l->child;
    l->left -= shared;
    l->run += (size_t)shared * t->page_bytes;
    if (t->plain) {
        cover_node(t, l->node, shared, readable, &l->c);
    }
    return l->left && shared == x->len;
}

/* True while the prompt goes on. */
static bool lane_step(const rdx_tree *t, lane *l, uint32_t readable) {
    const node *x;
    switch (l->step) {
    case HASH:
        l->hash = rdx_page_hash(t, l->node, l->run);
        l->slot = l->hash & (t->table_cap - 1);
        __builtin_prefetch(&t->table[l->slot]);
        l->step = PROBE;
        return true;
    case PROBE:
        l->child = probe(t, l);
        if (l->child == NIL) {
            return false;
        }
        __builtin_prefetch(node_at(t, l->child));
        __builtin_prefetch(cell_at(t, l->child, 0));
        l->step = VISIT;
        return true;
    case VISIT:
        x = node_at(t, l->child);
        if (x->parent != l->node) {
            l->slot++;
            l->step = PROBE;
            return true;
        }
        ask_page(t, pages_at(t, x));
        if (x->len < l->left) {
            ask_page(t, l->run + (size_t)x->len * t->page_bytes);
        }
        l->step = COMPARE;
        return true;
    default:
        l->step = HASH;
        return lane_compare(t, l, readable);
    }
}

int rdx_tree_match_many(const rdx_tree *t, uint32_t m, const rdx_handle *roots,
                        const void *const *pages, const uint32_t *counts, const uint32_t *limits,
                        uint32_t readable, rdx_match *out) {
    for (uint32_t k = 0; k < m; k++) {
        uint32_t i = node_of(t, roots[k]);
        if (i == NIL || !(node_at(t, i)->flags & NODE_ROOT)) {
            return RDX_ESTALE;
        }
    }
    lane lanes[LANES];
    uint32_t next = 0;
    uint32_t busy = 0;
    for (uint32_t k = 0; k < LANES; k++) {
        lanes[k].prompt = NIL;
    }
    do {
        busy = 0;
        for (uint32_t k = 0; k < LANES; k++) {
            lane *l = &lanes[k];
            if (l->prompt == NIL && next < m) {
                *l = (lane){.prompt = next,
                            .left = counts[next],
                            .run = pages[next],
                            .node = (uint32_t)roots[next],
                            .c = {0, 0, true, true}};
                if (l->left) {
                    ask_page(t, l->run);
                }
                next++;
                busy++;
                continue;
            }
            if (l->prompt == NIL) {
                continue;
            }
            busy++;
            uint32_t q = l->prompt;
            if (l->left == 0 || !lane_step(t, l, readable)) {
                out[q].structural =
                    (rdx_cursor){handle_of(t, l->node), roots[q], counts[q] - l->left};
                finish(t, l->node, &l->c, limits[q], readable, &out[q]);
                l->prompt = NIL;
            }
        }
    } while (busy || next < m);
    return RDX_OK;
}
