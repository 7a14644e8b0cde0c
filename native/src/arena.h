/* arena.h: memory for the edges of one tree, from chunks of its own. Not public.
 *
 * A cold match waits for memory. Chunks lie on huge pages where the machine has them, so that few
 * lookups of addresses miss; what an edge leaves goes to the next one warm, and no insert pays for
 * pages that the system has yet to clear, but one in hundreds.
 *
 *     chunk    head | block | block ............ | block | end
 *     block    size, bits | what was taken
 *     hole     size, bits | next | previous | ....... | where it begins
 *
 * Blocks are multiples of 32 bytes. A hole never lies beside another one. Holes are listed by size,
 * 16 lists an octave: taking and giving cost O(1), and a fit wastes a sixteenth at most.
 */
#ifndef RDX_ARENA_H
#define RDX_ARENA_H
#include <stddef.h>
#include <stdint.h>

#define RDX_OCTAVES 40
#define RDX_STEPS 16

typedef struct rdx_hole rdx_hole;
typedef struct rdx_chunk rdx_chunk;

/* All zero: empty. One thread at a time. */
typedef struct rdx_arena {
    uint64_t octaves; /* bit i: some list of octave i holds something */
    uint32_t steps[RDX_OCTAVES];
    rdx_hole *holes[RDX_OCTAVES][RDX_STEPS];
    rdx_chunk *chunks;
    uint64_t bytes; /* of all chunks, as taken from the system */
    uint64_t hole_bytes;
    uint32_t vacant; /* chunks that are one hole: one is kept at most */
} rdx_arena;

/* size bytes whose address is 16 more than a multiple of 32; NULL on failure. Counts as one
 * allocation (alloc.h), a chunk as another. */
void *rdx_arena_take(rdx_arena *a, size_t size);
/* Gives back what was taken; an empty chunk goes back to the system, but for one. NULL does
 * nothing. */
void rdx_arena_give(rdx_arena *a, void *memory);
/* Gives back all chunks, whatever is taken of them. */
void rdx_arena_free(rdx_arena *a);
/* What is wrong with it, or NULL. Cost: all blocks. */
const char *rdx_arena_fault(const rdx_arena *a);
#endif
