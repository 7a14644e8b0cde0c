/* arena.c: blocks of any size out of chunks (arena.h). Each hole is known by its size, and each
 * block by the one behind it, so that what is given back melts with its neighbours at once.
 */
#include "arena.h"

#include "alloc.h"

#include <stdbool.h>

#define GRAIN 32u
#define IS_HOLE 1u
#define BEHIND_HOLE 2u
#define IS_FIRST 4u /* of its chunk */
#define BITS 31u
#define FIRST_CHUNK (4u << 10)
#define MOST_BYTES (1ull << 45) /* what the lists have octaves for */
#define MOST_TRIED 8            /* holes of the list where some fit and some do not */

struct rdx_hole {
    uint64_t head; /* bytes of the block, this word too, and the bits; 0 and bits: a chunk's end */
    rdx_hole *next;
    rdx_hole *prev;
};

struct rdx_chunk {
    rdx_chunk *next;
    rdx_chunk *prev;
    uint64_t bytes;
    uint64_t unused[2];
};
_Static_assert(sizeof(rdx_chunk) % GRAIN == 8, "so that what is taken begins at 16 in a grain");

static inline uint64_t size_of(const rdx_hole *b) { return b->head & ~(uint64_t)BITS; }
static inline rdx_hole *at_offset(void *base, uint64_t bytes) {
    return (rdx_hole *)(void *)((uint8_t *)base + bytes);
}
static inline rdx_hole *behind(rdx_hole *b) { return at_offset(b, size_of(b)); }
static inline rdx_hole *first_of(rdx_chunk *c) { return at_offset(c, sizeof(*c)); }
static inline rdx_chunk *chunk_of(rdx_hole *first) { return (rdx_chunk *)(void *)first - 1; }
/* The last word of a hole says where it begins. */
static inline rdx_hole **foot_of(rdx_hole *b) {
    return (rdx_hole **)(void *)at_offset(b, size_of(b) - sizeof(rdx_hole *));
}
static inline bool is_whole(rdx_hole *b) { return b->head & IS_FIRST && size_of(behind(b)) == 0; }

/* ---------------------------------------------------------------- lists of holes */
static inline void place_of(uint64_t bytes, uint32_t *octave, uint32_t *step) {
    uint64_t grains = bytes / GRAIN;
    uint32_t log = grains < RDX_STEPS ? 3 : 63 - (uint32_t)__builtin_clzll(grains);
    *octave = log - 3;
    *step = (uint32_t)(log == 3 ? grains : grains >> (log - 4)) % RDX_STEPS;
}

static void hole_add(rdx_arena *a, rdx_hole *h) {
    uint32_t octave, step;
    place_of(size_of(h), &octave, &step);
    rdx_hole *next = a->holes[octave][step];
    h->head |= IS_HOLE;
    h->next = next;
    h->prev = NULL;
    if (next) {
        next->prev = h;
    }
    a->holes[octave][step] = h;
    a->steps[octave] |= 1u << step;
    a->octaves |= 1ull << octave;
    *foot_of(h) = h;
    behind(h)->head |= BEHIND_HOLE;
    a->hole_bytes += size_of(h);
    a->vacant += is_whole(h);
}

static void hole_drop(rdx_arena *a, rdx_hole *h) {
    uint32_t octave, step;
    place_of(size_of(h), &octave, &step);
    if (h->next) {
        h->next->prev = h->prev;
    }
    if (h->prev) {
        h->prev->next = h->next;
    } else {
        a->holes[octave][step] = h->next;
    }
    if (!a->holes[octave][step]) {
        a->steps[octave] &= ~(1u << step);
        a->octaves &= ~((uint64_t)(a->steps[octave] == 0) << octave);
    }
    h->head &= ~(uint64_t)IS_HOLE;
    behind(h)->head &= ~(uint64_t)BEHIND_HOLE;
    a->hole_bytes -= size_of(h);
    a->vacant -= is_whole(h);
}

/* The hole that was made last of those that fit closely, or NULL. */
static rdx_hole *hole_for(const rdx_arena *a, uint64_t bytes) {
    uint32_t octave, step;
    place_of(bytes, &octave, &step);
    rdx_hole *h = a->holes[octave][step];
    for (uint32_t tried = 0; h && tried < MOST_TRIED; tried++, h = h->next) {
        if (size_of(h) >= bytes) {
            return h;
        }
    }
    uint32_t steps = a->steps[octave] & ~((2u << step) - 1);
    if (!steps) {
        uint64_t octaves = a->octaves & ~((2ull << octave) - 1);
        if (!octaves) {
            return NULL;
        }
        octave = (uint32_t)__builtin_ctzll(octaves);
        steps = a->steps[octave];
    }
    return a->holes[octave][__builtin_ctz(steps)];
}

/* ---------------------------------------------------------------- chunks */
/* A new chunk that is one hole of at least so many bytes, or NULL. They grow with what there is:
 * a small tree takes little, a large one huge pages. */
static rdx_hole *chunk_add(rdx_arena *a, uint64_t bytes) {
    uint64_t want = a->bytes > FIRST_CHUNK ? a->bytes : FIRST_CHUNK;
    want = want < RDX_HUGE_PAGE ? want : RDX_HUGE_PAGE;
    uint64_t need = bytes + sizeof(rdx_chunk) + sizeof(uint64_t);
    want = ((need > want ? need : want) + FIRST_CHUNK - 1) / FIRST_CHUNK * FIRST_CHUNK;
    rdx_chunk *c = rdx_chunk_new(want);
    if (!c) {
        return NULL;
    }
    *c = (rdx_chunk){.next = a->chunks, .bytes = want};
    if (c->next) {
        c->next->prev = c;
    }
    a->chunks = c;
    a->bytes += want;
    rdx_hole *h = first_of(c);
    h->head = ((want - sizeof(*c) - sizeof(uint64_t)) & ~(uint64_t)BITS) | IS_FIRST;
    behind(h)->head = 0;
    hole_add(a, h);
    return h;
}

static void chunk_drop(rdx_arena *a, rdx_chunk *c) {
    if (c->next) {
        c->next->prev = c->prev;
    }
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        a->chunks = c->next;
    }
    a->bytes -= c->bytes;
    rdx_chunk_free(c, c->bytes);
}

/* ---------------------------------------------------------------- take and give */
void *rdx_arena_take(rdx_arena *a, size_t size) {
    if (rdx_alloc_fails() || size > MOST_BYTES) {
        return NULL;
    }
    uint64_t bytes = ((uint64_t)size + sizeof(uint64_t) + BITS) & ~(uint64_t)BITS;
    rdx_hole *b = hole_for(a, bytes);
    if (!b && !(b = chunk_add(a, bytes))) {
        return NULL;
    }
    hole_drop(a, b);
    uint64_t left = size_of(b) - bytes;
    if (left) {
        b->head -= left;
        rdx_hole *rest = behind(b);
        rest->head = left;
        hole_add(a, rest);
    }
    return &b->next;
}

void rdx_arena_give(rdx_arena *a, void *memory) {
    if (!memory) {
        return;
    }
    rdx_hole *b = (rdx_hole *)(void *)((uint8_t *)memory - offsetof(rdx_hole, next));
    rdx_hole *next = behind(b);
    if (next->head & IS_HOLE) {
        hole_drop(a, next);
        b->head += size_of(next);
    }
    if (b->head & BEHIND_HOLE) {
        rdx_hole *before = *((rdx_hole **)(void *)b - 1);
        hole_drop(a, before);
        before->head += size_of(b);
        b = before;
    }
    if (a->vacant && is_whole(b)) {
        chunk_drop(a, chunk_of(b));
        return;
    }
    hole_add(a, b);
}

void rdx_arena_free(rdx_arena *a) {
    while (a->chunks) {
        chunk_drop(a, a->chunks);
    }
    *a = (rdx_arena){0};
}

/* ---------------------------------------------------------------- looking */
const char *rdx_arena_fault(const rdx_arena *a) {
    uint64_t bytes = 0, hole_bytes = 0, holes = 0;
    uint32_t vacant = 0;
    for (rdx_chunk *c = a->chunks; c; c = c->next) {
        bool after = false;
        uint64_t walked = sizeof(*c) + sizeof(uint64_t);
        rdx_hole *b = first_of(c);
        for (; size_of(b); b = behind(b)) {
            bool hole = b->head & IS_HOLE;
            if (!!(b->head & BEHIND_HOLE) != after || (hole && after) ||
                !!(b->head & IS_FIRST) != (b == first_of(c))) {
                return "a block does not know its neighbour";
            }
            if ((walked += size_of(b)) > c->bytes) {
                return "a block reaches beyond its chunk";
            }
            if (hole && *foot_of(b) != b) {
                return "a hole does not know where it begins";
            }
            hole_bytes += hole ? size_of(b) : 0;
            holes += hole;
            vacant += hole && is_whole(b);
            after = hole;
        }
        if (walked + BITS < c->bytes || !!(b->head & BEHIND_HOLE) != after) {
            return "a chunk ends too early";
        }
        bytes += c->bytes;
    }
    for (uint32_t octave = 0; octave < RDX_OCTAVES; octave++) {
        for (uint32_t step = 0; step < RDX_STEPS; step++) {
            for (const rdx_hole *h = a->holes[octave][step]; h; h = h->next) {
                uint32_t own_octave, own_step;
                place_of(size_of(h), &own_octave, &own_step);
                if (own_octave != octave || own_step != step || holes-- == 0) {
                    return "a hole stands in a list of other sizes";
                }
            }
            bool marked = a->octaves >> octave & 1 && a->steps[octave] >> step & 1;
            if (marked != (a->holes[octave][step] != NULL)) {
                return "a list of holes is not marked as it is";
            }
        }
    }
    return holes || vacant != a->vacant || vacant > 1 || bytes != a->bytes ||
                   hole_bytes != a->hole_bytes
               ? "the counts of chunks and holes differ from what is there"
               : NULL;
}
