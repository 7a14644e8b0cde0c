/* Blocks of an arena never overlap and keep what is written, holes melt, chunks go back, whatever
 * the order; and every allocation of one scenario fails once, which leaves all as it was. */
#include "arena.h"

#include "alloc.h"
#include "expect.h"
#include "rdx.h"

#include <string.h>

#define MOST 300
#define FEW_BYTES (4u << 10)

typedef struct taken {
    uint8_t *at;
    size_t bytes;
    uint8_t mark;
} taken;

static void sound(const rdx_arena *a) {
    const char *fault = rdx_arena_fault(a);
    if (fault) {
        fprintf(stderr, "%s\n", fault);
        exit(1);
    }
}

static void fill(taken *one, size_t bytes, uint8_t mark) {
    EXPECT(one->at != NULL);
    EXPECT_EQ((uintptr_t)one->at % 32, 16);
    one->bytes = bytes;
    one->mark = mark;
    memset(one->at, mark, bytes);
}

static void expect_kept(const taken *one) {
    for (size_t i = 0; i < one->bytes; i++)
        EXPECT_EQ(one->at[i], one->mark);
}

/* Sizes of edges as trees have them: many alike, some of any size, a few larger than a chunk. */
static size_t size_of_one(void) {
    uint32_t kind = random_below(100);
    return kind < 50   ? 8720
           : kind < 80 ? 56 + random_below(300)
           : kind < 98 ? random_below(100000)
                       : random_below(5u << 20);
}

static void blocks_keep_what_is_written(uint32_t steps) {
    static taken blocks[MOST];
    rdx_arena a = {0};
    memset(blocks, 0, sizeof blocks);
    for (uint32_t step = 0; step < steps; step++) {
        taken *one = &blocks[random_below(MOST)];
        if (one->at) {
            expect_kept(one);
            rdx_arena_give(&a, one->at);
            one->at = NULL;
        } else if (random_below(3) || step < MOST) {
            size_t bytes = size_of_one();
            one->at = rdx_arena_take(&a, bytes);
            fill(one, bytes, (uint8_t)step);
        }
        sound(&a);
    }
    for (uint32_t i = 0; i < MOST; i++) {
        if (blocks[i].at) {
            expect_kept(&blocks[i]);
            rdx_arena_give(&a, blocks[i].at);
            sound(&a);
        }
    }
    EXPECT(a.vacant <= 1); /* what is left is one chunk, and all of it a hole */
    EXPECT(a.chunks == NULL || a.bytes - a.hole_bytes < 100);
    rdx_arena_free(&a);
    EXPECT_EQ(a.bytes, 0);
    sound(&a);
}

static void chunks_grow_and_go_back(void) {
    static void *all[4000];
    rdx_arena a = {0};
    rdx_arena_give(&a, NULL);
    void *one = rdx_arena_take(&a, 100);
    EXPECT_EQ(a.bytes, FEW_BYTES); /* a small tree takes little */
    uint64_t used = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        all[i] = rdx_arena_take(&a, 8720);
        used += 8720;
        EXPECT(a.bytes <= 3 * used + 4 * FEW_BYTES);
        EXPECT(a.bytes <= used + used / 100 + 2 * RDX_HUGE_PAGE);
    }
    sound(&a);
    uint64_t most = a.bytes;
    for (uint32_t i = 0; i < 4000; i += 2)
        rdx_arena_give(&a, all[i]);
    for (uint32_t i = 0; i < 4000; i += 2)
        all[i] = rdx_arena_take(&a, 8720);
    EXPECT_EQ(a.bytes, most); /* what was given back is taken again */
    for (uint32_t i = 0; i < 4000; i++)
        rdx_arena_give(&a, all[i]);
    sound(&a);
    EXPECT(a.bytes <= RDX_HUGE_PAGE + FEW_BYTES);
    one = (rdx_arena_give(&a, one), rdx_arena_take(&a, 9u << 20)); /* larger than any chunk */
    EXPECT(one != NULL);
    memset(one, 1, 9u << 20);
    EXPECT(a.bytes <= (9u << 20) + RDX_HUGE_PAGE + 3 * FEW_BYTES);
    EXPECT(rdx_arena_take(&a, SIZE_MAX) == NULL);
    EXPECT(rdx_arena_take(&a, SIZE_MAX / 2) == NULL);
    sound(&a);
    rdx_arena_give(&a, one);
    sound(&a);
    rdx_arena_free(&a);
}

static void what_fails_changes_nothing(void) {
    static taken blocks[MOST];
    rdx_arena a = {0};
    uint32_t failed = 0;
    for (uint32_t i = 0; i < MOST; i++) {
        size_t bytes = size_of_one();
        for (uint64_t nth = 1;; nth++) {
            rdx_arena before = a;
            rdx_alloc_fail_at(nth);
            blocks[i].at = rdx_arena_take(&a, bytes);
            rdx_alloc_fail_at(0);
            if (blocks[i].at)
                break;
            failed++;
            EXPECT(memcmp(&before, &a, sizeof a) == 0);
            sound(&a);
        }
        fill(&blocks[i], bytes, (uint8_t)i);
        for (uint32_t k = 0; i % 25 == 0 && k < i; k++)
            expect_kept(&blocks[k]);
    }
    EXPECT(failed > MOST); /* each block, and some chunks */
    rdx_arena_free(&a);
}

int main(void) {
    for (uint32_t run = 0; run < 4; run++)
        blocks_keep_what_is_written(1500);
    chunks_grow_and_go_back();
    what_fails_changes_nothing();
    return 0;
}
