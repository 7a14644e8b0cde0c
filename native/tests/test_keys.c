/* XXH3 against golden vectors (made with the Python package xxhash 4), inputs in parts against
 * inputs in one, page keys against single hashes; on every path. */
#include "dispatch.h"
#include "expect.h"
#include "keys.h"
#include "rdx.h"

#include <string.h>

typedef struct golden_vector {
    uint32_t bytes;
    uint64_t hash64;
    uint64_t high128;
    uint64_t low128;
} golden_vector;

/* Over byte i of the input = i*i*7 + i*131 + bytes. */
static const golden_vector golden[] = {
    {0, UINT64_C(0x2d06800538d394c2), UINT64_C(0x99aa06d3014798d8), UINT64_C(0x6001c324468d497f)},
    {1, UINT64_C(0xe12ef9d2eb86ceeb), UINT64_C(0x51025a4491835505), UINT64_C(0xe12ef9d2eb86ceeb)},
    {3, UINT64_C(0xe14840a076419e14), UINT64_C(0xd2f56be5e9e5a26d), UINT64_C(0xe14840a076419e14)},
    {4, UINT64_C(0x88f94d339c3d8ffd), UINT64_C(0x69512900dda19b6b), UINT64_C(0xb46d1c8b7f79b822)},
    {8, UINT64_C(0xffcf93f981f0903b), UINT64_C(0xe79a9d91a4cc6c23), UINT64_C(0x44135fa6b747352f)},
    {9, UINT64_C(0x9b7e40a47bf74209), UINT64_C(0x653ec51bc90a47c8), UINT64_C(0x3298668d14d15892)},
    {16, UINT64_C(0x50e14895c2285b2b), UINT64_C(0x68d1e0f0b08223f8), UINT64_C(0xe92fba14b0b6004c)},
    {17, UINT64_C(0x3210d198ea2de38a), UINT64_C(0x29be02e7d29269dd), UINT64_C(0xb860ba6159019a9c)},
    {32, UINT64_C(0xd42578086747ccad), UINT64_C(0x6ed9422da70b50f8), UINT64_C(0x84c6b3b10e674e7a)},
    {33, UINT64_C(0x3d30c201d624d3ba), UINT64_C(0x31acf2f27fa2353c), UINT64_C(0xb686d5034543b263)},
    {80, UINT64_C(0xc4511000d60ebbff), UINT64_C(0x703e1f697d08da0a), UINT64_C(0xc9855f0824f3be99)},
    {128, UINT64_C(0x5dcb768ad49756c3), UINT64_C(0x57020bcaca1621d7), UINT64_C(0x0daf691dbf4b43f9)},
    {129, UINT64_C(0x6f60e2f757ebd798), UINT64_C(0x883fb34828343f68), UINT64_C(0xd8ec286f9abd30a1)},
    {144, UINT64_C(0xb4038623ccaccaaa), UINT64_C(0x69c32a65f9907662), UINT64_C(0xdc44725dc4eee265)},
    {240, UINT64_C(0x1317f1a841a2c5e1), UINT64_C(0x266369947408b14d), UINT64_C(0xa41695bb6fdc8a26)},
    {241, UINT64_C(0x26b2091a339bf005), UINT64_C(0x656334c511d53ec7), UINT64_C(0x26b2091a339bf005)},
    {256, UINT64_C(0x3c58fe3184daa943), UINT64_C(0x332b7865bee0d897), UINT64_C(0x3c58fe3184daa943)},
    {1024, UINT64_C(0x2c694957b42811e5), UINT64_C(0xa309909b1dea8e91),
     UINT64_C(0x2c694957b42811e5)},
    {1025, UINT64_C(0xba8c01a6f2583dd3), UINT64_C(0x0dd193fc6068db06),
     UINT64_C(0xba8c01a6f2583dd3)},
    {4096, UINT64_C(0x9048929a0a9ca111), UINT64_C(0xb7daad7a5380c41f),
     UINT64_C(0x9048929a0a9ca111)},
    {65537, UINT64_C(0xca1d27143568eca8), UINT64_C(0xce49fb4422763e6d),
     UINT64_C(0xca1d27143568eca8)},
};

/* fold[n] = xxh3_128(fold[n-1] || xxh3_64(input n) || xxh3_128(input n)), n = 0..2048; canonical.
 */
static const uint8_t golden_fold[16] = {0x39, 0x8e, 0x46, 0x1c, 0xd9, 0x3a, 0xb8, 0x46,
                                        0xa8, 0x3b, 0x54, 0x69, 0x6f, 0x77, 0x25, 0x2c};

static uint8_t input[70000];

static void make_input(uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; i++)
        input[i] = (uint8_t)(i * i * 7 + i * 131 + bytes);
}

static void put_big_endian(uint8_t *out, uint64_t value) {
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(value >> (56 - 8 * i));
}

static void test_golden_vectors(void) {
    uint8_t wanted[16], found[16];
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        make_input(golden[i].bytes);
        put_big_endian(wanted, golden[i].high128);
        put_big_endian(wanted + 8, golden[i].low128);
        rdx_xxh3_128(input, golden[i].bytes, found);
        EXPECT(memcmp(found, wanted, 16) == 0);
        EXPECT(rdx_xxh3_64(input, golden[i].bytes) == golden[i].hash64);
    }
}

static void test_golden_fold(void) {
    uint8_t all[40];
    uint64_t used = 0; /* the fold of nothing is empty */
    for (uint64_t bytes = 0; bytes <= 2048; bytes++) {
        make_input(bytes);
        put_big_endian(all + used, rdx_xxh3_64(input, bytes));
        rdx_xxh3_128(input, bytes, all + used + 8);
        rdx_xxh3_128(all, used + 24, all);
        used = 16;
    }
    EXPECT(memcmp(all, golden_fold, 16) == 0);
}

static void test_parts_equal_the_whole(void) {
    rdx_xxh3 state;
    for (int round = 0; round < 3000; round++) {
        uint64_t bytes = random_below(round % 10 ? 3000 : 70000), at = 0;
        uint32_t most = 1 + random_below(round % 3 ? 90 : 5000);
        make_input(bytes);
        rdx_xxh3_begin(&state);
        while (at < bytes) {
            uint64_t part = random_below(most + 1);
            part = part < bytes - at ? part : bytes - at;
            rdx_xxh3_add(&state, input + at, part);
            at += part;
            /* An end may be asked for at any time, and does not end anything. */
            if (random_below(8) == 0)
                EXPECT(rdx_xxh3_end(&state) == rdx_xxh3_64(input, at));
        }
        EXPECT(rdx_xxh3_end(&state) == rdx_xxh3_64(input, bytes));
    }
}

static void test_chain_equals_single_hashes(void) {
    uint32_t widths[] = {1, 4, 8, 16, 32, 63, 64, 65, 112, 113, 128, 224, 225, 256, 1024, 4096};
    uint8_t both[16 + 4096], parent[16], keys[16 * 16];
    make_input(sizeof input);
    memcpy(parent, input + 5000, 16);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        rdx_keys_chain(parent, input + 1, 16, widths[i], keys);
        memcpy(both, parent, 16);
        for (uint32_t page = 0; page < 16; page++) {
            memcpy(both + 16, input + 1 + page * widths[i], widths[i]);
            rdx_xxh3_128(both, 16 + widths[i], both);
            EXPECT(memcmp(both, keys + 16 * page, 16) == 0);
        }
    }
}

int main(void) {
    for (int path = RDX_PATH_SCALAR; path <= RDX_PATH_NEON; path++) {
        if (rdx_dispatch_set(path) != RDX_OK)
            continue;
        EXPECT_EQ(rdx_dispatch_get(), path);
        test_golden_vectors();
        test_golden_fold();
        test_parts_equal_the_whole();
        test_chain_equals_single_hashes();
    }
    EXPECT_EQ(rdx_dispatch_set(3), RDX_EARG);
    EXPECT_EQ(rdx_dispatch_set(-1), RDX_EARG);
    return 0;
}
