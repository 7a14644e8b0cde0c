/* Block copies against a copy byte by byte, over random cuts of both sides, on every path. */
#define _GNU_SOURCE
#include "copy.h"
#include "dispatch.h"
#include "expect.h"
#include "rdx.h"

#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define MOST_PLANES 7

/* Cuts a block into planes that lie one behind the other, with random gaps. Returns the bytes. */
static uint64_t cut(rdx_plane *planes, uint32_t n, uint64_t block_bytes, uint32_t slots) {
    uint64_t at = random_below(64), left = block_bytes;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = i + 1 == n ? left : random_u64() % (left + 1);
        planes[i].bytes = bytes;
        planes[i].stride = bytes + (random_below(2) ? 0 : random_below(70));
        planes[i].base = at;
        at += planes[i].stride * slots + random_below(40);
        left -= bytes;
    }
    return at;
}

/* The same, but in planes of one length, at a stride that keeps or breaks their alignment. */
static uint64_t cut_evenly(rdx_plane *planes, uint32_t n, uint64_t bytes, uint32_t slots) {
    uint64_t at = random_below(2) ? 0 : random_below(64), gap = random_below(2) ? 0 : 17;
    for (uint32_t i = 0; i < n; i++) {
        planes[i] = (rdx_plane){at, bytes + gap, bytes};
        at += (bytes + gap) * slots;
    }
    return at;
}

static void rebase(rdx_plane *planes, uint32_t n, const uint8_t *memory) {
    for (uint32_t i = 0; i < n; i++)
        planes[i].base += (uint64_t)(uintptr_t)memory;
}

static uint64_t byte_address(const rdx_plane *plane, int32_t slot, uint64_t byte) {
    while (byte >= plane->bytes)
        byte -= plane++->bytes;
    return plane->base + (uint64_t)slot * plane->stride + byte;
}

static void shuffle(int32_t *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        slots[i] = (int32_t)i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = random_below(i);
        int32_t slot = slots[k];
        slots[k] = slots[i - 1];
        slots[i - 1] = slot;
    }
}

/* Copies all slots but a few, whole or in random pieces, and compares the whole target memory, so
 * that a byte written outside of a block is seen too. */
static void check(rdx_plane *dst, uint32_t dst_planes, uint64_t dst_bytes, rdx_plane *src,
                  uint32_t src_planes, uint64_t src_bytes, uint64_t block_bytes, uint32_t slots) {
    uint8_t *from = malloc(src_bytes), *to = malloc(dst_bytes), *wanted = malloc(dst_bytes);
    int32_t *src_slots = malloc(slots * sizeof *src_slots);
    int32_t *dst_slots = malloc(slots * sizeof *dst_slots);
    uint64_t *sums = malloc(slots * sizeof *sums), *again = malloc(slots * sizeof *again);
    uint8_t *block = malloc(block_bytes);
    uint32_t n = slots - random_below(slots > 4 ? 4 : 1);
    random_fill(from, src_bytes < 65536 ? src_bytes : 65536);
    for (uint64_t at = 65536; at < src_bytes; at++)
        from[at] = (uint8_t)(from[at - 65536] + 11);
    memset(to, 0xee, dst_bytes);
    memset(wanted, 0xee, dst_bytes);
    rebase(src, src_planes, from);
    rebase(dst, dst_planes, wanted);
    shuffle(src_slots, slots);
    shuffle(dst_slots, slots);
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t byte = 0; byte < block_bytes; byte++)
            *(uint8_t *)(uintptr_t)byte_address(dst, dst_slots[i], byte) =
                *(const uint8_t *)(uintptr_t)byte_address(src, src_slots[i], byte);
    for (uint32_t i = 0; i < dst_planes; i++)
        dst[i].base += (uint64_t)(uintptr_t)to - (uint64_t)(uintptr_t)wanted;
    if (random_below(2)) {
        EXPECT_EQ(rdx_copy_blocks(dst, dst_planes, dst_slots, src, src_planes, src_slots, n),
                  RDX_OK);
    } else {
        rdx_copy copy = {dst, src, dst_slots, src_slots, dst_planes, src_planes, n, 0};
        EXPECT_EQ(rdx_copy_prepare(&copy), RDX_OK);
        EXPECT_EQ(copy.block_bytes, block_bytes);
        for (uint64_t begin = 0, end; begin < n * block_bytes; begin = end) {
            end = begin + 1 + random_u64() % (2 * block_bytes);
            end = end < n * block_bytes ? end : n * block_bytes;
            rdx_copy_range(&copy, begin, end);
        }
    }
    EXPECT(memcmp(to, wanted, dst_bytes) == 0);
    EXPECT_EQ(rdx_checksum_blocks(src, src_planes, src_slots, n, sums), RDX_OK);
    EXPECT_EQ(rdx_checksum_blocks(dst, dst_planes, dst_slots, n, again), RDX_OK);
    for (uint32_t i = 0; i < n; i++) {
        for (uint64_t byte = 0; byte < block_bytes; byte++)
            block[byte] = *(const uint8_t *)(uintptr_t)byte_address(src, src_slots[i], byte);
        EXPECT(sums[i] == rdx_xxh3_64(block, block_bytes));
        EXPECT(sums[i] == again[i]);
    }
    free(from), free(to), free(wanted), free(src_slots), free(dst_slots);
    free(sums), free(again), free(block);
}

/* Both sides cut anyhow: no two fragments have the same length. */
static void round_of(uint64_t block_bytes, uint32_t slots) {
    rdx_plane src[MOST_PLANES], dst[MOST_PLANES];
    uint32_t src_planes = 1 + random_below(MOST_PLANES), dst_planes = 1 + random_below(MOST_PLANES);
    uint64_t src_bytes = cut(src, src_planes, block_bytes, slots);
    uint64_t dst_bytes = cut(dst, dst_planes, block_bytes, slots);
    check(dst, dst_planes, dst_bytes, src, src_planes, src_bytes, block_bytes, slots);
}

/* A layer-first pool and a page-first one, there and back: fragments of `bytes` each. */
static void even_round_of(uint64_t bytes, uint32_t slots) {
    rdx_plane layers[MOST_PLANES], pages[1];
    uint64_t block_bytes = MOST_PLANES * bytes;
    for (int back = 0; back < 2; back++) {
        uint64_t layer_bytes = cut_evenly(layers, MOST_PLANES, bytes, slots);
        uint64_t page_bytes = cut_evenly(pages, 1, block_bytes, slots);
        if (back)
            check(layers, MOST_PLANES, layer_bytes, pages, 1, page_bytes, block_bytes, slots);
        else
            check(pages, 1, page_bytes, layers, MOST_PLANES, layer_bytes, block_bytes, slots);
    }
}

static void test_refusals(void) {
    uint8_t memory[64] = {0};
    uint64_t base = (uint64_t)(uintptr_t)memory, sum;
    rdx_plane eight = {base, 8, 8}, nine = {base, 9, 9}, none = {base, 8, 0};
    int32_t slot = 0, null_slot = -1;
    EXPECT_EQ(rdx_copy_blocks(&eight, 1, &slot, &nine, 1, &slot, 1), RDX_EARG);
    EXPECT_EQ(rdx_copy_blocks(&none, 1, &slot, &none, 1, &slot, 1), RDX_EARG);
    EXPECT_EQ(rdx_copy_blocks(NULL, 0, &slot, NULL, 0, &slot, 1), RDX_EARG);
    EXPECT_EQ(rdx_copy_blocks(&eight, 1, &null_slot, &eight, 1, &slot, 1), RDX_EARG);
    EXPECT_EQ(rdx_copy_blocks(&eight, 1, &slot, &eight, 1, &null_slot, 1), RDX_EARG);
    EXPECT_EQ(rdx_copy_blocks(&eight, 1, NULL, &eight, 1, NULL, 0), RDX_OK);
    EXPECT_EQ(rdx_checksum_blocks(&eight, 1, &null_slot, 1, &sum), RDX_EARG);
    EXPECT_EQ(rdx_checksum_blocks(&eight, 0, &slot, 1, &sum), RDX_EARG);
}

static void test_prefault_keeps_the_bytes(void) {
    uint64_t bytes = 3 << 20;
    uint8_t *memory = malloc(bytes);
    EXPECT_EQ(rdx_prefault((uint64_t)(uintptr_t)memory, bytes, 0), RDX_EARG);
    EXPECT_EQ(rdx_prefault((uint64_t)(uintptr_t)memory, 0, 1), RDX_OK);
    memset(memory, 0x5a, bytes);
    for (uint32_t threads = 1; threads < 5; threads++)
        EXPECT_EQ(rdx_prefault((uint64_t)(uintptr_t)memory + 5, bytes - 5, threads), RDX_OK);
    for (uint64_t at = 0; at < bytes; at++)
        EXPECT(memory[at] == 0x5a);
    if (madvise((void *)4096, 4096, MADV_POPULATE_WRITE) != 0) /* an emulator takes any advice */
        EXPECT_EQ(rdx_prefault(4096, 4096, 2), RDX_ENOMEM);    /* nothing is mapped there */
    free(memory);
}

/* Around every length at which the copies change their way. */
static const uint64_t even_bytes[] = {511,  512,  513,  1023,  1024,  1025, 1151,
                                      2048, 4096, 4100, 16383, 16384, 16385};

int main(void) {
    test_refusals();
    test_prefault_keeps_the_bytes();
    for (int path = RDX_PATH_SCALAR; path <= RDX_PATH_NEON; path++) {
        if (rdx_dispatch_set(path) != RDX_OK)
            continue;
        for (int round = 0; round < 400; round++)
            round_of(1 + random_below(700), 1 + random_below(12));
        for (int round = 0; round < 40; round++)
            round_of(4000 + random_below(40000), 1 + random_below(12));
        for (int round = 0; round < 6; round++)
            round_of(60000 + random_below(9000), 80); /* over 4 MiB: the wide stores */
        for (uint32_t i = 0; i < sizeof even_bytes / sizeof *even_bytes; i++) {
            uint64_t block_bytes = MOST_PLANES * even_bytes[i];
            even_round_of(even_bytes[i], 7);
            even_round_of(even_bytes[i], 3 + (uint32_t)((4u << 20) / block_bytes));
        }
    }
    return 0;
}
