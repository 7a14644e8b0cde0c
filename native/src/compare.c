/* compare.c: how far two runs of bytes agree. The inner loop of every match. */
#include "tree.h"

static uint64_t shared_scalar(const uint8_t *a, const uint8_t *b, uint64_t n) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t x;
        uint64_t y;
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y) {
            break;
        }
    }
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

#if RDX_HAVE_AVX2
#include <immintrin.h>
#define STREAM 4096
#define LEAST_STREAMED 512

static inline RDX_TARGET_AVX2 __m256i differ_avx2(const uint8_t *a, const uint8_t *b) {
    const __m256i *p = (const __m256i *)(const void *)a;
    const __m256i *q = (const __m256i *)(const void *)b;
    __m256i x0 = _mm256_xor_si256(_mm256_loadu_si256(p), _mm256_loadu_si256(q));
    __m256i x1 = _mm256_xor_si256(_mm256_loadu_si256(p + 1), _mm256_loadu_si256(q + 1));
    return _mm256_or_si256(x0, x1);
}

/* Line j of each of the two pages that come next, into the second cache: memory is the limit, and
 * the hardware fetches ahead within a page, never into the next one. */
static inline void ask_lines(const rdx_ahead *next, uint64_t j) {
    if (j < next->bytes) {
        __builtin_prefetch(next->a + j, 0, 2);
        __builtin_prefetch(next->b + j, 0, 2);
    }
    if (j + STREAM < next->bytes) {
        __builtin_prefetch(next->a + j + STREAM, 0, 2);
        __builtin_prefetch(next->b + j + STREAM, 0, 2);
    }
}

/* Long runs go in two streams, each on a page of its own, and ask for what is compared after them:
 * the next two pages, or what `next` names behind the last ones. */
RDX_TARGET_AVX2 static uint64_t shared_avx2(const uint8_t *a, const uint8_t *b, uint64_t n,
                                            const rdx_ahead *next) {
    uint64_t i = 0;
    bool same = true;
    while (same && n - i >= LEAST_STREAMED) {
        uint64_t half = n - i >= 2 * STREAM ? STREAM : (n - i) / 2 & ~(uint64_t)63;
        uint64_t end = i + 2 * half;
        rdx_ahead then = {a + end, b + end, n - end};
        if (then.bytes < 128) {
            then = *next;
        }
        uint64_t j = 0;
        while (same && j < half) {
            ask_lines(&then, j);
            __m256i any = _mm256_or_si256(differ_avx2(a + i + j, b + i + j),
                                          differ_avx2(a + i + j + half, b + i + j + half));
            same = _mm256_testz_si256(any, any);
            j += 64;
        }
        i = same ? end : i + j - 64;
    }
    for (; i + 128 <= n; i += 128) {
        __m256i any =
            _mm256_or_si256(differ_avx2(a + i, b + i), differ_avx2(a + i + 64, b + i + 64));
        if (!_mm256_testz_si256(any, any)) {
            break;
        }
    }
    return i + shared_scalar(a + i, b + i, n - i < 128 ? n - i : 128);
}
#endif

#if RDX_HAVE_NEON
#include <arm_neon.h>
static uint64_t shared_neon(const uint8_t *a, const uint8_t *b, uint64_t n) {
    uint64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint8x16_t x0 = veorq_u8(vld1q_u8(a + i), vld1q_u8(b + i));
        uint8x16_t x1 = veorq_u8(vld1q_u8(a + i + 16), vld1q_u8(b + i + 16));
        uint8x16_t x2 = veorq_u8(vld1q_u8(a + i + 32), vld1q_u8(b + i + 32));
        uint8x16_t x3 = veorq_u8(vld1q_u8(a + i + 48), vld1q_u8(b + i + 48));
        uint8x16_t any = vorrq_u8(vorrq_u8(x0, x1), vorrq_u8(x2, x3));
        if (vmaxvq_u8(any)) {
            break;
        }
    }
    return i + shared_scalar(a + i, b + i, n - i < 64 ? n - i : 64);
}
#endif

/* All bits of n words that are set in any. Inlined into each path, where the compiler widens it. */
static inline __attribute__((always_inline)) uint32_t any_bits(const uint8_t *a, uint64_t n) {
    uint32_t any = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t word; /* a run may begin at any address */
        memcpy(&word, a + 4 * i, 4);
        any |= word;
    }
    return any;
}

#if RDX_HAVE_AVX2
/* Four pages of memory in step, for the reason given above. */
RDX_TARGET_AVX2 static uint32_t any_bits_avx2(const uint8_t *a, uint64_t n) {
    uint32_t any = 0;
    uint64_t i = 0;
    for (; i + STREAM <= n; i += STREAM) {
        __m256i all = _mm256_setzero_si256();
        for (uint64_t j = 0; j < STREAM; j += 32) {
            for (uint64_t k = 0; k < 4; k++) {
                const uint8_t *line = a + 4 * i + j + k * STREAM;
                all = _mm256_or_si256(all, _mm256_loadu_si256((const __m256i *)(const void *)line));
            }
        }
        any |= _mm256_movemask_ps(_mm256_castsi256_ps(all)) ? 0x80000000u : 0;
    }
    return any | any_bits(a + 4 * i, n - i);
}
#endif

bool rdx_has_negative(const void *words, uint64_t n) {
#if RDX_HAVE_AVX2
    if (rdx_path() == RDX_PATH_AVX2) {
        return any_bits_avx2(words, n) >> 31;
    }
#endif
    return any_bits(words, n) >> 31;
}

uint64_t rdx_shared_bytes(const void *a, const void *b, uint64_t n, const rdx_ahead *next) {
#if RDX_HAVE_AVX2
    if (rdx_path() == RDX_PATH_AVX2) {
        static const rdx_ahead nothing;
        return shared_avx2(a, b, n, next ? next : &nothing);
    }
#endif
#if RDX_HAVE_NEON
    if (rdx_path() == RDX_PATH_NEON) {
        return shared_neon(a, b, n);
    }
#endif
    return shared_scalar(a, b, n);
}
