/* ghosts.c: what a policy remembers of blocks that went: the key of the first page of each run, as
 * many as there was memory for when the nodes were reserved, so that remembering never fails; where
 * tenants are told apart each begins with few and more are made when they are needed, or the oldest
 * is forgotten. Two pages of one key would be taken for each other, which costs hits and nothing
 * else.
 */
#include "ghosts.h"

static uint32_t held(const rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    return rdx_entries(node_at(t, i), rule_of(t, column), k->lo, k->hi);
}

uint64_t rdx_ghost_key(const rdx_tree *t, uint32_t i, uint32_t at) {
    const node *x = node_at(t, i);
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    const uint8_t *rows = t->key_bytes ? keys_at(t, x) : pages_at(t, x);
    return rdx_xxh3_64(rows + (size_t)at * width, width);
}

ghost rdx_ghost_of(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    const cell *k = cell_at(t, i, column);
    uint32_t all = held(t, i, column);
    uint32_t going = n < all ? n : all;
    uint32_t first = going < all ? k->hi - going * rdx_width(rule_of(t, column)) : k->lo;
    return (ghost){.key = rdx_ghost_key(t, i, first), .pages = going};
}

/* ---------------------------------------------------------------- the index */
/* Where the index names the run with the key, or would. */
static uint32_t place_of(const ghosts *g, uint64_t key) {
    uint32_t mask = g->room * 2 - 1;
    uint32_t at = (uint32_t)key & mask;
    while (g->index[at] != NIL && g->ring[g->index[at]].key != key) {
        at = (at + 1) & mask;
    }
    return at;
}

static void drop_place(ghosts *g, uint32_t gap) {
    uint32_t mask = g->room * 2 - 1;
    for (uint32_t at = (gap + 1) & mask; g->index[at] != NIL; at = (at + 1) & mask) {
        uint32_t home = (uint32_t)g->ring[g->index[at]].key & mask;
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            g->index[gap] = g->index[at];
            gap = at;
        }
    }
    g->index[gap] = NIL;
}

static void append(ghosts *g, ghost run) {
    uint32_t place = (uint32_t)(g->end++ & (g->room - 1));
    g->ring[place] = run;
    g->index[place_of(g, run.key)] = place;
}

static void clear_index(ghosts *g) { memset(g->index, 0xff, (size_t)g->room * 2 * 4); }

/* The runs move together over the places of those that are back. */
static void squeeze(ghosts *g) {
    uint64_t end = g->end;
    clear_index(g);
    g->end = g->first;
    for (uint64_t k = g->first; k < end; k++) {
        ghost run = g->ring[k & (g->room - 1)];
        if (run.pages) {
            append(g, run);
        }
    }
}

/* ---------------------------------------------------------------- runs */
ghost rdx_ghosts_take(ghosts *g, uint64_t key) {
    uint32_t at = place_of(g, key);
    if (g->index[at] == NIL) {
        return (ghost){0};
    }
    ghost *run = &g->ring[g->index[at]];
    ghost was = *run;
    g->blocks -= was.pages;
    g->runs--;
    run->pages = 0;
    drop_place(g, at);
    return was;
}

ghost rdx_ghosts_shift(ghosts *g) {
    while (g->first < g->end) {
        const ghost *run = &g->ring[g->first & (g->room - 1)];
        g->first++;
        if (run->pages) {
            return rdx_ghosts_take(g, run->key);
        }
    }
    return (ghost){0};
}

ghost rdx_ghosts_push(ghosts *g, ghost run, uint64_t most) {
    ghost forgotten = {0};
    if (g->end - g->first >= g->room && g->runs * 2 <= g->room) {
        squeeze(g);
    } else if (g->end - g->first >= g->room) {
        bool more = g->room < most && rdx_ghosts_reserve(g, 2ull * g->room) == RDX_OK;
        forgotten = more ? forgotten : rdx_ghosts_shift(g);
    }
    append(g, run);
    g->runs++;
    g->blocks += run.pages;
    return forgotten;
}

uint32_t rdx_ghosts_recall(const rdx_tree *t, ghosts *g, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    uint32_t width = rdx_width(rule_of(t, column));
    uint64_t blocks = 0;
    for (uint64_t p = k->lo; p < k->hi && g->blocks;) {
        ghost run = rdx_ghosts_take(g, rdx_ghost_key(t, i, (uint32_t)p));
        if (!run.pages) {
            break;
        }
        blocks += run.pages;
        p += (uint64_t)run.pages * width;
    }
    uint32_t all = held(t, i, column);
    return blocks < all ? (uint32_t)blocks : all;
}

void rdx_ghosts_clear(ghosts *g) {
    g->first = g->end = g->blocks = 0;
    g->runs = 0;
    if (g->room) {
        clear_index(g);
    }
}

/* ---------------------------------------------------------------- room */
int rdx_ghosts_reserve(ghosts *g, uint64_t runs) {
    uint64_t room = 64;
    while (room < runs) {
        room *= 2;
    }
    if (room <= g->room) {
        return RDX_OK;
    }
    ghost *ring = room > UINT32_MAX / 4 ? NULL : rdx_calloc(room, sizeof(ghost));
    uint32_t *index = ring ? rdx_malloc((size_t)room * 2 * 4) : NULL;
    if (!index) {
        rdx_free_mem(ring);
        return RDX_ENOMEM;
    }
    ghosts old = *g;
    g->ring = ring;
    g->index = index;
    g->room = (uint32_t)room;
    g->first = g->end = 0;
    clear_index(g);
    for (uint64_t k = old.first; k < old.end; k++) {
        ghost run = old.ring[k & (old.room - 1)];
        if (run.pages) {
            append(g, run);
        }
    }
    rdx_free_mem(old.ring);
    rdx_free_mem(old.index);
    return RDX_OK;
}

void rdx_ghosts_free(ghosts *g) {
    rdx_free_mem(g->ring);
    rdx_free_mem(g->index);
}

uint64_t rdx_ghosts_bytes(const ghosts *g) {
    return g->room * (uint64_t)(sizeof(ghost) + 2 * sizeof(uint32_t));
}

/* ---------------------------------------------------------------- check */
const char *rdx_ghosts_fault(const ghosts *g) {
    uint64_t blocks = 0;
    uint32_t runs = 0;
    for (uint64_t k = g->first; k < g->end; k++) {
        const ghost *run = &g->ring[k & (g->room - 1)];
        if (run->pages && g->index[place_of(g, run->key)] != (k & (g->room - 1))) {
            return "what went is not found by its key";
        }
        blocks += run->pages;
        runs += run->pages != 0;
    }
    return blocks != g->blocks || runs != g->runs ? "other blocks are remembered than went" : NULL;
}
