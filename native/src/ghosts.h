/* ghosts.h: what a policy remembers of blocks that went. Not public. */
#ifndef RDX_GHOSTS_H
#define RDX_GHOSTS_H
#include "tree.h"

typedef struct ghost { /* a run of blocks that went */
    uint64_t key;      /* of its first page */
    uint64_t last;
    uint32_t class; /* what the policy knew of it */
    uint32_t pages; /* 0: it is back, or the place is free */
} ghost;

/* Runs in a ring, the oldest first, and an index of their keys.
 *
 *     ring    - | A | B | (back) | C | - | -        index   key of A -> 1, of B -> 2, of C -> 4
 *             first .................. end
 */
typedef struct ghosts {
    ghost *ring;
    uint32_t *index;
    uint32_t room; /* a power of two; the index has twice as many places */
    uint32_t runs; /* that are not back */
    uint64_t first;
    uint64_t end;
    uint64_t blocks; /* of all runs */
} ghosts;

/* What is remembered of up to n blocks of node i that go next, from its end. */
ghost rdx_ghost_of(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t n);
/* The key by which page `at` of node i is known again. */
uint64_t rdx_ghost_key(const rdx_tree *t, uint32_t i, uint32_t at);
/* Room for so many runs. RDX_ENOMEM: as before. */
int rdx_ghosts_reserve(ghosts *g, uint64_t runs);
void rdx_ghosts_free(ghosts *g);
uint64_t rdx_ghosts_bytes(const ghosts *g);
/* Takes out the run with the key: what it was; no pages: there is none. */
ghost rdx_ghosts_take(ghosts *g, uint64_t key);
/* Takes out the oldest. */
ghost rdx_ghosts_shift(ghosts *g);
/* Adds a run, whose key no other has; there may be so many at most. The one that was forgotten for
 * it, where room was short. */
ghost rdx_ghosts_push(ghosts *g, ghost run, uint64_t most);
/* Forgets all of them. */
void rdx_ghosts_clear(ghosts *g);
/* Takes out all runs that follow each other from the first page of node i on; their blocks, as many
 * as the node has. */
uint32_t rdx_ghosts_recall(const rdx_tree *t, ghosts *g, uint32_t i, uint32_t column);
/* What is wrong, or NULL. */
const char *rdx_ghosts_fault(const ghosts *g);
#endif
