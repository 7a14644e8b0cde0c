/* copy.c: gathers and scatters blocks between pools that are cut differently.
 *
 *     source, one plane a layer     |  layer 0  |  layer 1  |  layer 2  |
 *     target, page first            |            one plane              |
 *     fragments                     |-----------|-----------|-----------|
 *
 * A fragment is the longest run that lies in one piece on both sides. Both cuts are walked side
 * by side, without a table of fragments, so a copy allocates nothing and cannot fail half way. */
#define _GNU_SOURCE
#include "copy.h"

#include "dispatch.h"
#include "keys.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if RDX_HAVE_AVX2
#include <immintrin.h>
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Measured: below about 4 MiB the target is still wanted in the cache, and a store that passes by
 * it costs more than it saves; short fragments leave half-filled lines at both ends. */
#define WIDE_TOTAL_BYTES (UINT64_C(4) << 20)
#define WIDE_FRAGMENT_BYTES 1024
#define PREFETCH_BYTES 512
#define PREFAULT_THREADS_MAX 64

/* Where a walk over the planes of one side stands. */
typedef struct plane_cursor {
    const rdx_plane *plane;
    uint64_t offset; /* in the plane's part of the block */
} plane_cursor;

static inline uint8_t *memory_at(uint64_t address) { return (uint8_t *)(uintptr_t)address; }

/* 0 if the sum is more than any memory. */
static uint64_t planes_bytes(const rdx_plane *planes, uint32_t n) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (planes[i].bytes > (uint64_t)INT64_MAX - bytes)
            return 0;
        bytes += planes[i].bytes;
    }
    return bytes;
}

static int has_negative(const int32_t *slots, uint32_t n) {
    int32_t signs = 0;
    for (uint32_t i = 0; i < n; i++)
        signs |= slots[i];
    return signs < 0;
}

int rdx_copy_prepare(rdx_copy *copy) {
    copy->block_bytes = planes_bytes(copy->dst, copy->dst_planes);
    if (copy->block_bytes == 0 || copy->block_bytes != planes_bytes(copy->src, copy->src_planes))
        return RDX_EARG;
    if (copy->n > (uint64_t)INT64_MAX / copy->block_bytes)
        return RDX_EARG;
    if (has_negative(copy->dst_slots, copy->n) || has_negative(copy->src_slots, copy->n))
        return RDX_EARG;
    return RDX_OK;
}

/* ------------------------------------------------------------------------ one fragment */
typedef void copy_fragment_fn(uint8_t *dst, const uint8_t *src, uint64_t bytes);

static void copy_fragment_plain(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
    memcpy(dst, src, bytes);
}

#if RDX_HAVE_AVX2
RDX_TARGET_AVX2 static void copy_fragment_wide(uint8_t *dst, const uint8_t *src, uint64_t bytes) {
    if (bytes < WIDE_FRAGMENT_BYTES) {
        memcpy(dst, src, bytes);
        return;
    }
    uint64_t head = (0 - (uintptr_t)dst) & 63; /* whole lines only may pass by the cache */
    memcpy(dst, src, head);
    dst += head;
    src += head;
    bytes -= head;
    for (; bytes >= 128; bytes -= 128, dst += 128, src += 128) {
        const __m256i *from = (const __m256i *)(const void *)src;
        __m256i *to = (__m256i *)(void *)dst;
        __m256i a = _mm256_loadu_si256(from);
        __m256i b = _mm256_loadu_si256(from + 1);
        __m256i c = _mm256_loadu_si256(from + 2);
        __m256i d = _mm256_loadu_si256(from + 3);
        _mm_prefetch((const char *)src + 1024, _MM_HINT_NTA);
        _mm_prefetch((const char *)src + 1088, _MM_HINT_NTA);
        _mm256_stream_si256(to, a);
        _mm256_stream_si256(to + 1, b);
        _mm256_stream_si256(to + 2, c);
        _mm256_stream_si256(to + 3, d);
    }
    memcpy(dst, src, bytes);
}
#endif

static copy_fragment_fn *copy_fragment_for(const rdx_copy *copy) {
#if RDX_HAVE_AVX2
    /* The number of bytes of the whole copy decides, not that of the piece at hand. */
    if (rdx_path() == RDX_PATH_AVX2 && copy->n >= (WIDE_TOTAL_BYTES - 1) / copy->block_bytes + 1)
        return copy_fragment_wide;
#endif
    (void)copy;
    return copy_fragment_plain;
}

/* Ordinary stores (the completion of a job, say) may overtake the wide ones: stop them. */
static void order_stores(copy_fragment_fn *used) {
#if RDX_HAVE_AVX2
    if (used == copy_fragment_wide)
        _mm_sfence();
#endif
    (void)used;
}

/* ------------------------------------------------------------------------ the walk */
static plane_cursor seek(const rdx_plane *planes, uint64_t offset) {
    while (offset >= planes->bytes) /* also steps over planes of no bytes */
        offset -= planes++->bytes;
    return (plane_cursor){planes, offset};
}

static inline void advance(plane_cursor *at, uint64_t bytes) {
    at->offset += bytes;
    if (at->offset == at->plane->bytes) {
        at->plane++;
        at->offset = 0;
    }
}

static inline uint8_t *address_of(const plane_cursor *at, int32_t slot) {
    return memory_at(at->plane->base + (uint64_t)slot * at->plane->stride + at->offset);
}

static void copy_block(const rdx_copy *copy, uint32_t block, uint64_t begin, uint64_t end,
                       copy_fragment_fn *copy_fragment) {
    plane_cursor dst = seek(copy->dst, begin);
    plane_cursor src = seek(copy->src, begin);
    while (begin < end) {
        uint64_t bytes = dst.plane->bytes - dst.offset;
        uint64_t src_bytes = src.plane->bytes - src.offset;
        bytes = src_bytes < bytes ? src_bytes : bytes;
        bytes = end - begin < bytes ? end - begin : bytes;
        uint8_t *to = address_of(&dst, copy->dst_slots[block]);
        const uint8_t *from = address_of(&src, copy->src_slots[block]);
        advance(&dst, bytes);
        advance(&src, bytes);
        begin += bytes;
        /* The processor sees runs of lines by itself, but not where the next one will begin. */
        if (begin < end) {
            const uint8_t *next = address_of(&src, copy->src_slots[block]);
            for (uint64_t line = 0; line < PREFETCH_BYTES; line += 64)
                __builtin_prefetch(next + line);
        }
        copy_fragment(to, from, bytes);
    }
}

void rdx_copy_range(const rdx_copy *copy, uint64_t begin, uint64_t end) {
    copy_fragment_fn *copy_fragment = copy_fragment_for(copy);
    uint32_t block = (uint32_t)(begin / copy->block_bytes);
    uint64_t offset = begin % copy->block_bytes;
    while (begin < end) {
        uint64_t bytes = copy->block_bytes - offset;
        bytes = end - begin < bytes ? end - begin : bytes;
        copy_block(copy, block, offset, offset + bytes, copy_fragment);
        begin += bytes;
        block++;
        offset = 0;
    }
    order_stores(copy_fragment);
}

int rdx_copy_blocks(const rdx_plane *dst, uint32_t dst_planes, const int32_t *dst_slots,
                    const rdx_plane *src, uint32_t src_planes, const int32_t *src_slots,
                    uint32_t n) {
    rdx_copy copy = {dst, src, dst_slots, src_slots, dst_planes, src_planes, n, 0};
    int status = rdx_copy_prepare(&copy);
    if (status == RDX_OK)
        rdx_copy_range(&copy, 0, n * copy.block_bytes);
    return status;
}

int rdx_checksum_blocks(const rdx_plane *src, uint32_t planes, const int32_t *slots, uint32_t n,
                        uint64_t *out) {
    if (planes == 0 || has_negative(slots, n))
        return RDX_EARG;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t slot = (uint64_t)slots[i];
        if (planes == 1) {
            out[i] = rdx_xxh3_64(memory_at(src->base + slot * src->stride), src->bytes);
            continue;
        }
        rdx_xxh3 state;
        rdx_xxh3_begin(&state);
        for (uint32_t k = 0; k < planes; k++)
            rdx_xxh3_add(&state, memory_at(src[k].base + slot * src[k].stride), src[k].bytes);
        out[i] = rdx_xxh3_end(&state);
    }
    return RDX_OK;
}

/* ------------------------------------------------------------------------ pre-faulting */
typedef struct prefault_part {
    uint64_t begin;
    uint64_t end;
    uint64_t page_bytes;
    int status;
    int started;
    pthread_t thread;
} prefault_part;

static void *prefault_run(void *argument) {
    prefault_part *part = argument;
    part->status = RDX_OK;
    if (part->begin >= part->end)
        return NULL;
    while (madvise(memory_at(part->begin), part->end - part->begin, MADV_POPULATE_WRITE) != 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL) { /* where a touch would be a signal, this is an error */
            part->status = RDX_ENOMEM;
            return NULL;
        }
        /* A kernel before 5.14: adding nothing, atomically, writes without a change. */
        for (uint64_t at = part->begin; at < part->end; at += part->page_bytes)
            __atomic_fetch_or(memory_at(at), 0, __ATOMIC_RELAXED);
        break;
    }
    return NULL;
}

int rdx_prefault(uint64_t address, uint64_t bytes, uint32_t threads) {
    prefault_part parts[PREFAULT_THREADS_MAX];
    sigset_t all, before;
    int status = RDX_OK;
    if (threads == 0 || bytes > UINT64_MAX - address)
        return RDX_EARG;
    if (bytes == 0)
        return RDX_OK;
    threads = threads < PREFAULT_THREADS_MAX ? threads : PREFAULT_THREADS_MAX;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = address / page_bytes;
    uint64_t pages = (address + bytes - 1) / page_bytes + 1 - first;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* what the threads inherit */
    for (uint32_t i = 0; i < threads; i++) {
        prefault_part *part = &parts[i];
        part->begin = (first + pages * i / threads) * page_bytes;
        part->end = (first + pages * (i + 1) / threads) * page_bytes;
        part->page_bytes = page_bytes;
        /* The caller does the last part, and each for which there is no thread. */
        part->started =
            i + 1 < threads && pthread_create(&part->thread, NULL, prefault_run, part) == 0;
        if (!part->started)
            prefault_run(part);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (uint32_t i = 0; i < threads; i++) {
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
        if (status == RDX_OK)
            status = parts[i].status;
    }
    return status;
}
