/* keys.c: XXH3, 64 and 128 bits, seed 0, after its public specification, and the page keys that
 * chain over it.
 *
 *     bytes     1..3  4..8  9..16  17..128  129..240   241...
 *     formula   one each, few multiplications          64-byte stripes into eight sums, which
 *                                                      are scrambled after each 16 stripes
 *
 * Only the stripes are worth wide registers, so only they have a path for each processor. */
#include "keys.h"

#include "dispatch.h"
#include "rdx.h"

#include <string.h>

#if RDX_HAVE_AVX2
#include <immintrin.h>
#endif
#if RDX_HAVE_NEON
#include <arm_neon.h>
#endif

__extension__ typedef unsigned __int128 u128;

typedef struct hash128 {
    uint64_t low;
    uint64_t high;
} hash128;

#define PRIME32_1 UINT64_C(0x9E3779B1)
#define PRIME32_2 UINT64_C(0x85EBCA77)
#define PRIME32_3 UINT64_C(0xC2B2AE3D)
#define PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define PRIME64_5 UINT64_C(0x27D4EB2F165667C5)
#define PRIME_MIX1 UINT64_C(0x165667919E3779F9)
#define PRIME_MIX2 UINT64_C(0x9FB21C651E98DF25)

#define SECRET_BYTES 192
#define STRIPE_BYTES 64
/* The secret moves 8 bytes a stripe: (SECRET_BYTES - STRIPE_BYTES) / 8. */
#define BLOCK_STRIPES 16
#define SCRAMBLE_AT (SECRET_BYTES - STRIPE_BYTES)

static const uint8_t secret[SECRET_BYTES] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static const uint64_t acc_start[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                      PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

/* ------------------------------------------------------------------------ pieces of the formulas
 */
static inline uint32_t read32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint64_t read64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline void write64_big_endian(uint8_t *at, uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    memcpy(at, &value, sizeof value);
}

static inline uint64_t rotate64(uint64_t value, int bits) {
    return value << bits | value >> (64 - bits);
}

static inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 37) * PRIME_MIX1;
    return hash ^ hash >> 32;
}

static inline uint64_t avalanche_xxh64(uint64_t hash) {
    hash = (hash ^ hash >> 33) * PRIME64_2;
    hash = (hash ^ hash >> 29) * PRIME64_3;
    return hash ^ hash >> 32;
}

static inline uint64_t mix16(const uint8_t *in, const uint8_t *key) {
    return multiply_fold(read64(in) ^ read64(key), read64(in + 8) ^ read64(key + 8));
}

static inline hash128 mix32(hash128 acc, const uint8_t *a, const uint8_t *b, const uint8_t *key) {
    acc.low = (acc.low + mix16(a, key)) ^ (read64(b) + read64(b + 8));
    acc.high = (acc.high + mix16(b, key + 16)) ^ (read64(a) + read64(a + 8));
    return acc;
}

static inline hash128 finish_middle128(hash128 acc, uint64_t bytes) {
    uint64_t high = acc.low * PRIME64_1 + acc.high * PRIME64_4 + bytes * PRIME64_2;
    return (hash128){avalanche(acc.low + acc.high), 0 - avalanche(high)};
}

/* ------------------------------------------------------------------------ 0..16 bytes */
static inline uint32_t combine_1to3(const uint8_t *in, uint64_t bytes) {
    return (uint32_t)in[0] << 16 | (uint32_t)in[bytes >> 1] << 24 | in[bytes - 1] |
           (uint32_t)bytes << 8;
}

static uint64_t short64(const uint8_t *in, uint64_t bytes) {
    if (bytes > 8) {
        uint64_t low = read64(in) ^ read64(secret + 24) ^ read64(secret + 32);
        uint64_t high = read64(in + bytes - 8) ^ read64(secret + 40) ^ read64(secret + 48);
        return avalanche(bytes + __builtin_bswap64(low) + high + multiply_fold(low, high));
    }
    if (bytes >= 4) {
        uint64_t both = (uint64_t)read32(in) << 32 | read32(in + bytes - 4);
        uint64_t hash = both ^ read64(secret + 8) ^ read64(secret + 16);
        hash = (hash ^ rotate64(hash, 49) ^ rotate64(hash, 24)) * PRIME_MIX2;
        hash = (hash ^ ((hash >> 35) + bytes)) * PRIME_MIX2;
        return hash ^ hash >> 28;
    }
    if (bytes > 0)
        return avalanche_xxh64(combine_1to3(in, bytes) ^ read32(secret) ^ read32(secret + 4));
    return avalanche_xxh64(read64(secret + 56) ^ read64(secret + 64));
}

static hash128 short128(const uint8_t *in, uint64_t bytes) {
    if (bytes > 8) {
        uint64_t high = read64(in + bytes - 8);
        uint64_t flip = read64(secret + 32) ^ read64(secret + 40);
        u128 product = (u128)(read64(in) ^ high ^ flip) * PRIME64_1;
        uint64_t low = (uint64_t)product + ((bytes - 1) << 54);
        high ^= read64(secret + 48) ^ read64(secret + 56);
        uint64_t upper =
            (uint64_t)(product >> 64) + high + (uint64_t)(uint32_t)high * (PRIME32_2 - 1);
        low ^= __builtin_bswap64(upper);
        product = (u128)low * PRIME64_2;
        upper = (uint64_t)(product >> 64) + upper * PRIME64_2;
        return (hash128){avalanche((uint64_t)product), avalanche(upper)};
    }
    if (bytes >= 4) {
        uint64_t both = read32(in) | (uint64_t)read32(in + bytes - 4) << 32;
        uint64_t keyed = both ^ read64(secret + 16) ^ read64(secret + 24);
        u128 product = (u128)keyed * (PRIME64_1 + (bytes << 2));
        uint64_t low = (uint64_t)product;
        uint64_t high = (uint64_t)(product >> 64) + (low << 1);
        low ^= high >> 3;
        low = (low ^ low >> 35) * PRIME_MIX2;
        return (hash128){low ^ low >> 28, avalanche(high)};
    }
    if (bytes > 0) {
        uint32_t low = combine_1to3(in, bytes);
        uint32_t swapped = __builtin_bswap32(low);
        uint32_t high = swapped << 13 | swapped >> 19;
        return (hash128){avalanche_xxh64(low ^ read32(secret) ^ read32(secret + 4)),
                         avalanche_xxh64(high ^ read32(secret + 8) ^ read32(secret + 12))};
    }
    return (hash128){avalanche_xxh64(read64(secret + 64) ^ read64(secret + 72)),
                     avalanche_xxh64(read64(secret + 80) ^ read64(secret + 88))};
}

/* ------------------------------------------------------------------------ 17..240 bytes */
static uint64_t middle64(const uint8_t *in, uint64_t bytes) {
    const uint8_t *end = in + bytes;
    uint64_t acc = bytes * PRIME64_1;
    if (bytes <= 128) {
        /* From the middle outwards: pair k is the k-th 16 bytes from either end. */
        for (uint64_t k = (bytes - 1) / 32 + 1; k-- > 0;)
            acc += mix16(in + 16 * k, secret + 32 * k) +
                   mix16(end - 16 * (k + 1), secret + 32 * k + 16);
        return avalanche(acc);
    }
    for (uint64_t i = 0; i < 8; i++)
        acc += mix16(in + 16 * i, secret + 16 * i);
    acc = avalanche(acc);
    for (uint64_t i = 8; i < bytes / 16; i++)
        acc += mix16(in + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(acc + mix16(end - 16, secret + 136 - 17));
}

static hash128 middle128(const uint8_t *in, uint64_t bytes) {
    const uint8_t *end = in + bytes;
    hash128 acc = {bytes * PRIME64_1, 0};
    if (bytes <= 128) {
        for (uint64_t k = (bytes - 1) / 32 + 1; k-- > 0;)
            acc = mix32(acc, in + 16 * k, end - 16 * (k + 1), secret + 32 * k);
        return finish_middle128(acc, bytes);
    }
    for (uint64_t i = 0; i < 4; i++)
        acc = mix32(acc, in + 32 * i, in + 32 * i + 16, secret + 32 * i);
    acc = (hash128){avalanche(acc.low), avalanche(acc.high)};
    for (uint64_t i = 4; i < bytes / 32; i++)
        acc = mix32(acc, in + 32 * i, in + 32 * i + 16, secret + 32 * (i - 4) + 3);
    acc = mix32(acc, end - 16, end - 32, secret + 136 - 17 - 16);
    return finish_middle128(acc, bytes);
}

/* ------------------------------------------------------------------------ stripes */
/* Adds `stripes` stripes to acc. `*stripe` counts within the block of 16; after the 16th the sums
 * are scrambled, so the caller must know that at least one byte follows. */
typedef void add_stripes_fn(uint64_t acc[8], uint32_t *stripe, const uint8_t *in, uint64_t stripes);

static inline void add_stripe_scalar(uint64_t acc[8], const uint8_t *in, const uint8_t *key) {
    for (int lane = 0; lane < 8; lane++) {
        uint64_t value = read64(in + 8 * lane);
        uint64_t keyed = value ^ read64(key + 8 * lane);
        acc[lane ^ 1] += value;
        acc[lane] += (keyed & 0xffffffffu) * (keyed >> 32);
    }
}

static void add_stripes_scalar(uint64_t acc[8], uint32_t *stripe, const uint8_t *in,
                               uint64_t stripes) {
    uint32_t at = *stripe;
    for (; stripes > 0; stripes--, in += STRIPE_BYTES) {
        add_stripe_scalar(acc, in, secret + 8 * at);
        if (++at == BLOCK_STRIPES) {
            at = 0;
            for (int lane = 0; lane < 8; lane++) {
                uint64_t sum =
                    acc[lane] ^ acc[lane] >> 47 ^ read64(secret + SCRAMBLE_AT + 8 * lane);
                acc[lane] = sum * PRIME32_1;
            }
        }
    }
    *stripe = at;
}

#if RDX_HAVE_AVX2
RDX_TARGET_AVX2 static inline __m256i add_half_avx2(__m256i acc, const uint8_t *in,
                                                    const uint8_t *key) {
    __m256i value = _mm256_loadu_si256((const __m256i *)(const void *)in);
    __m256i keyed = _mm256_xor_si256(value, _mm256_loadu_si256((const __m256i *)(const void *)key));
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    __m256i swapped = _mm256_shuffle_epi32(value, 0x4e); /* the two 64-bit lanes of each pair */
    return _mm256_add_epi64(product, _mm256_add_epi64(acc, swapped));
}

RDX_TARGET_AVX2 static inline __m256i scramble_half_avx2(__m256i acc, const uint8_t *key) {
    __m256i prime = _mm256_set1_epi64x((int64_t)PRIME32_1);
    acc = _mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47));
    acc = _mm256_xor_si256(acc, _mm256_loadu_si256((const __m256i *)(const void *)key));
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(acc, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(acc, prime), _mm256_slli_epi64(high, 32));
}

RDX_TARGET_AVX2 static void add_stripes_avx2(uint64_t acc[8], uint32_t *stripe, const uint8_t *in,
                                             uint64_t stripes) {
    uint32_t at = *stripe;
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)acc);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(acc + 4));
    while (stripes > 0) {
        uint32_t room = BLOCK_STRIPES - at;
        uint32_t run = stripes < room ? (uint32_t)stripes : room;
        for (uint32_t i = 0; i < run; i++, in += STRIPE_BYTES) {
            const uint8_t *key = secret + 8 * (at + i);
            __builtin_prefetch(in + 8 * STRIPE_BYTES);
            low = add_half_avx2(low, in, key);
            high = add_half_avx2(high, in + 32, key + 32);
        }
        at += run;
        stripes -= run;
        if (at == BLOCK_STRIPES) {
            at = 0;
            low = scramble_half_avx2(low, secret + SCRAMBLE_AT);
            high = scramble_half_avx2(high, secret + SCRAMBLE_AT + 32);
        }
    }
    _mm256_storeu_si256((__m256i *)(void *)acc, low);
    _mm256_storeu_si256((__m256i *)(void *)(acc + 4), high);
    *stripe = at;
}
#endif

#if RDX_HAVE_NEON
static inline uint64x2_t load_neon(const uint8_t *at) { return vreinterpretq_u64_u8(vld1q_u8(at)); }

static void add_stripes_neon(uint64_t acc[8], uint32_t *stripe, const uint8_t *in,
                             uint64_t stripes) {
    uint32_t at = *stripe;
    uint64x2_t sums[4];
    for (int pair = 0; pair < 4; pair++)
        sums[pair] = vld1q_u64(acc + 2 * pair);
    for (; stripes > 0; stripes--, in += STRIPE_BYTES) {
        for (int pair = 0; pair < 4; pair++) {
            uint64x2_t value = load_neon(in + 16 * pair);
            uint64x2_t keyed = veorq_u64(value, load_neon(secret + 8 * at + 16 * pair));
            sums[pair] = vaddq_u64(sums[pair], vextq_u64(value, value, 1));
            sums[pair] = vmlal_u32(sums[pair], vmovn_u64(keyed), vshrn_n_u64(keyed, 32));
        }
        if (++at < BLOCK_STRIPES)
            continue;
        at = 0;
        for (int pair = 0; pair < 4; pair++) {
            uint32x2_t prime = vdup_n_u32((uint32_t)PRIME32_1);
            uint64x2_t sum = veorq_u64(sums[pair], vshrq_n_u64(sums[pair], 47));
            sum = veorq_u64(sum, load_neon(secret + SCRAMBLE_AT + 16 * pair));
            uint64x2_t high = vmull_u32(vshrn_n_u64(sum, 32), prime);
            sums[pair] = vmlal_u32(vshlq_n_u64(high, 32), vmovn_u64(sum), prime);
        }
    }
    for (int pair = 0; pair < 4; pair++)
        vst1q_u64(acc + 2 * pair, sums[pair]);
    *stripe = at;
}
#endif

static add_stripes_fn *add_stripes_now(void) {
    switch (rdx_path()) {
#if RDX_HAVE_AVX2
    case RDX_PATH_AVX2:
        return add_stripes_avx2;
#endif
#if RDX_HAVE_NEON
    case RDX_PATH_NEON:
        return add_stripes_neon;
#endif
    default:
        return add_stripes_scalar;
    }
}

static inline uint64_t merge(const uint64_t acc[8], const uint8_t *key, uint64_t start) {
    for (int i = 0; i < 4; i++)
        start += multiply_fold(acc[2 * i] ^ read64(key + 16 * i),
                               acc[2 * i + 1] ^ read64(key + 16 * i + 8));
    return avalanche(start);
}

/* The sums over more than 240 bytes that lie as 64 bytes at `first` and the others at `rest`. */
static void sum_long(uint64_t acc[8], const uint8_t *first, const uint8_t *rest, uint64_t bytes) {
    add_stripes_fn *add = add_stripes_now();
    uint32_t stripe = 0;
    memcpy(acc, acc_start, sizeof acc_start);
    add(acc, &stripe, first, 1);
    add(acc, &stripe, rest, (bytes - 1) / STRIPE_BYTES - 1);
    add_stripe_scalar(acc, rest + bytes - 2 * STRIPE_BYTES, secret + SCRAMBLE_AT - 7);
}

static uint64_t finish_long64(const uint64_t acc[8], uint64_t bytes) {
    return merge(acc, secret + 11, bytes * PRIME64_1);
}

static hash128 finish_long128(const uint64_t acc[8], uint64_t bytes) {
    return (hash128){finish_long64(acc, bytes),
                     merge(acc, secret + SCRAMBLE_AT - 11, ~(bytes * PRIME64_2))};
}

/* ------------------------------------------------------------------------ whole inputs */
uint64_t rdx_xxh3_64(const void *data, uint64_t bytes) {
    const uint8_t *in = data;
    uint64_t acc[8];
    if (bytes <= 16)
        return short64(in, bytes);
    if (bytes <= 240)
        return middle64(in, bytes);
    sum_long(acc, in, in + STRIPE_BYTES, bytes);
    return finish_long64(acc, bytes);
}

static hash128 hash_up_to_240(const uint8_t *in, uint64_t bytes) {
    return bytes <= 16 ? short128(in, bytes) : middle128(in, bytes);
}

static void write_canonical(uint8_t *out, hash128 hash) {
    write64_big_endian(out, hash.high);
    write64_big_endian(out + 8, hash.low);
}

void rdx_xxh3_128(const void *data, uint64_t bytes, uint8_t out[16]) {
    const uint8_t *in = data;
    uint64_t acc[8];
    if (bytes <= 240) {
        write_canonical(out, hash_up_to_240(in, bytes));
        return;
    }
    sum_long(acc, in, in + STRIPE_BYTES, bytes);
    write_canonical(out, finish_long128(acc, bytes));
}

/* ------------------------------------------------------------------------ chained page keys */
/* 16 tokens a page, the usual size: 80 bytes in three rounds, of which only the last one reads the
 * key of the page before. So the other two of many pages run side by side. */
static void chain_64(const uint8_t *parent, const uint8_t *page, uint32_t n, uint8_t *out) {
    uint64_t key0 = read64(parent), key1 = read64(parent + 8);
    uint64_t secret0 = read64(secret), secret1 = read64(secret + 8);
    for (uint32_t i = 0; i < n; i++, page += 64, out += 16) {
        hash128 acc = {80 * PRIME64_1, 0};
        acc = mix32(acc, page + 16, page + 16, secret + 64);
        acc = mix32(acc, page, page + 32, secret + 32);
        acc.high += mix16(page + 48, secret + 16);
        acc.low += multiply_fold(key0 ^ secret0, key1 ^ secret1);
        acc.low ^= read64(page + 48) + read64(page + 56);
        acc.high ^= key0 + key1;
        hash128 hash = finish_middle128(acc, 80);
        write_canonical(out, hash);
        key0 = __builtin_bswap64(hash.high);
        key1 = __builtin_bswap64(hash.low);
    }
}

void rdx_keys_chain(const uint8_t *parent, const void *pages, uint32_t n, uint32_t page_bytes,
                    uint8_t *out) {
    const uint8_t *page = pages;
    uint8_t input[240];
    uint64_t acc[8];
    if (page_bytes == 64) {
        chain_64(parent, page, n, out);
        return;
    }
    uint64_t bytes = 16 + (uint64_t)page_bytes;
    for (uint32_t i = 0; i < n; i++, page += page_bytes, out += 16) {
        memcpy(input, parent, 16);
        if (bytes <= sizeof input) {
            memcpy(input + 16, page, page_bytes);
            write_canonical(out, hash_up_to_240(input, bytes));
        } else {
            memcpy(input + 16, page, STRIPE_BYTES - 16);
            sum_long(acc, input, page + STRIPE_BYTES - 16, bytes);
            write_canonical(out, finish_long128(acc, bytes));
        }
        parent = out;
    }
}

/* ------------------------------------------------------------------------ inputs in parts */
void rdx_xxh3_begin(rdx_xxh3 *state) {
    memcpy(state->acc, acc_start, sizeof acc_start);
    state->total_bytes = 0;
    state->stripe = 0;
    state->buffered_bytes = 0;
}

void rdx_xxh3_add(rdx_xxh3 *state, const void *data, uint64_t bytes) {
    const uint8_t *in = data;
    uint32_t room = RDX_XXH3_BUFFER_BYTES - state->buffered_bytes;
    state->total_bytes += bytes;
    if (bytes > room) {
        add_stripes_fn *add = add_stripes_now();
        memcpy(state->buffer + state->buffered_bytes, in, room);
        add(state->acc, &state->stripe, state->buffer, RDX_XXH3_BUFFER_BYTES / STRIPE_BYTES);
        in += room;
        bytes -= room;
        state->buffered_bytes = 0;
        if (bytes > RDX_XXH3_BUFFER_BYTES) {
            uint64_t stripes = (bytes - 1) / STRIPE_BYTES;
            add(state->acc, &state->stripe, in, stripes);
            in += stripes * STRIPE_BYTES;
            bytes -= stripes * STRIPE_BYTES;
            /* The last stripe may begin in what was just added. */
            memcpy(state->buffer + RDX_XXH3_BUFFER_BYTES - STRIPE_BYTES, in - STRIPE_BYTES,
                   STRIPE_BYTES);
        }
    }
    if (bytes > 0)
        memcpy(state->buffer + state->buffered_bytes, in, bytes);
    state->buffered_bytes += (uint32_t)bytes;
}

uint64_t rdx_xxh3_end(const rdx_xxh3 *state) {
    uint32_t bytes = state->buffered_bytes;
    uint32_t stripe = state->stripe;
    uint8_t last[STRIPE_BYTES];
    uint64_t acc[8];
    if (state->total_bytes <= 240)
        return rdx_xxh3_64(state->buffer, state->total_bytes);
    memcpy(acc, state->acc, sizeof acc);
    if (bytes >= STRIPE_BYTES) {
        add_stripes_now()(acc, &stripe, state->buffer, (bytes - 1) / STRIPE_BYTES);
        memcpy(last, state->buffer + bytes - STRIPE_BYTES, STRIPE_BYTES);
    } else {
        memcpy(last, state->buffer + RDX_XXH3_BUFFER_BYTES - (STRIPE_BYTES - bytes),
               STRIPE_BYTES - bytes);
        memcpy(last + STRIPE_BYTES - bytes, state->buffer, bytes);
    }
    add_stripe_scalar(acc, last, secret + SCRAMBLE_AT - 7);
    return finish_long64(acc, state->total_bytes);
}
