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
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Measured: below about 4 MiB the target is still wanted in the cache, and a store that passes by
 * it costs more than it saves; short fragments leave half-filled lines at both ends. */
#define WIDE_TOTAL_BYTES (UINT64_C(4) << 20)
#define WIDE_FRAGMENT_BYTES 512
/* A processor reads ahead by itself within a run, but at each new run it waits for memory again,
 * and runs of a few KiB end before it has caught up. So several fragments are copied in step, the
 * next ones fetched as these end. How many, and how far ahead, is measured (bench/copies.py). */
#define LANES 8
#define LANES_LONG 4
#define LONG_FRAGMENT_BYTES 16384
#define LANES_PLAIN 4
#define PLAIN_FRAGMENT_BYTES 512
#define STEP_BYTES 128
#define AHEAD_BYTES 2048
#define PREFETCH_BYTES 512
#define PREFAULT_THREADS_MAX 64

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

/* ------------------------------------------------------------------------ the walk */
typedef struct fragment {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t bytes; /* 0: there is none */
} fragment;

/* Where a walk over the planes of one side stands. */
typedef struct plane_side {
    const rdx_plane *plane;
    uint64_t slot;
    uint8_t *at;
    uint64_t left; /* bytes of the slot in the plane */
} plane_side;

/* Both cuts side by side. */
typedef struct walk {
    const rdx_copy *copy;
    uint64_t left;       /* bytes */
    uint64_t block_left; /* of them, in the block */
    uint32_t block;
    plane_side dst;
    plane_side src;
} walk;

static inline void enter(plane_side *side) {
    side->at = memory_at(side->plane->base + side->slot * side->plane->stride);
    side->left = side->plane->bytes;
}

static plane_side side_at(const rdx_plane *planes, int32_t slot, uint64_t offset) {
    while (offset >= planes->bytes) /* also steps over planes of no bytes */
        offset -= planes++->bytes;
    plane_side side = {.plane = planes, .slot = (uint64_t)slot};
    enter(&side);
    side.at += offset;
    side.left -= offset;
    return side;
}

/* Goes on in a block that has more bytes. */
static inline void advance(plane_side *side, uint64_t bytes) {
    side->at += bytes;
    side->left -= bytes;
    while (side->left == 0) {
        side->plane++;
        enter(side);
    }
}

static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline void enter_block(walk *at, uint64_t offset) {
    const rdx_copy *copy = at->copy;
    at->block_left = copy->block_bytes - offset;
    at->dst = side_at(copy->dst, copy->dst_slots[at->block], offset);
    at->src = side_at(copy->src, copy->src_slots[at->block], offset);
}

/* Gives the fragment at which the walk stands, and goes on to the next. */
static inline fragment next_fragment(walk *at) {
    uint64_t bytes = least(least(at->dst.left, at->src.left), at->left);
    fragment now = {at->dst.at, at->src.at, bytes};
    at->left -= bytes;
    at->block_left -= bytes;
    if (at->left == 0)
        return now;
    if (at->block_left == 0) {
        at->block++;
        enter_block(at, 0);
    } else {
        advance(&at->dst, bytes);
        advance(&at->src, bytes);
    }
    return now;
}

static walk walk_from(const rdx_copy *copy, uint64_t begin, uint64_t end) {
    walk at = {.copy = copy, .left = end - begin, .block = (uint32_t)(begin / copy->block_bytes)};
    enter_block(&at, begin % copy->block_bytes);
    return at;
}

/* ------------------------------------------------------------------------ fragments in step */
static inline void fetch_lines(const uint8_t *at, uint64_t bytes) {
    for (uint64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(at + line, 0, 2);
}

/* How a walk copies: fragments of [shortest, longest) bytes go in step, the others one by one. */
typedef struct copy_style {
    uint64_t shortest;
    uint64_t longest;
    uint32_t lanes;      /* at a time */
    uint32_t lanes_long; /* of fragments of LONG_FRAGMENT_BYTES or more */
    void (*copy_lanes)(fragment *lanes, uint32_t n, const fragment *next);
} copy_style;

/* The next fragments of the walk that go in step, empty ones behind them up to LANES; what lies
 * between is copied on the way. */
static uint32_t fill_lanes(const copy_style *style, walk *from, fragment *lanes) {
    walk at = *from; /* in registers */
    uint32_t n = 0, most = style->lanes;
    while (n < most && at.left != 0) {
        fragment now = next_fragment(&at);
        if (now.bytes < style->shortest || now.bytes >= style->longest) {
            fetch_lines(at.src.at, least(least(at.src.left, at.left), PREFETCH_BYTES));
            memcpy(now.dst, now.src, now.bytes);
            continue;
        }
        if (now.bytes >= LONG_FRAGMENT_BYTES)
            most = style->lanes_long;
        lanes[n++] = now;
    }
    for (uint32_t i = n; i < LANES; i++)
        lanes[i].bytes = 0;
    *from = at;
    return n;
}

static void copy_walk(const copy_style *style, walk *at) {
    fragment batches[2][LANES];
    uint32_t n = fill_lanes(style, at, batches[0]);
    for (int now = 0; n != 0; now ^= 1) {
        uint32_t following = fill_lanes(style, at, batches[now ^ 1]);
        style->copy_lanes(batches[now], n, batches[now ^ 1]);
        n = following;
    }
}

typedef void copy_step_fn(uint8_t *dst, const uint8_t *src);

/* Copies what all n lanes have, in whole steps, and takes it off them. While the end of a lane is
 * copied, what follows it is fetched: its own rest, or the lane that comes after it. */
static inline __attribute__((always_inline)) void
copy_in_step(fragment *lanes, uint32_t n, const fragment *next, copy_step_fn *copy_step) {
    /* Names of their own: a store of bytes might change the lanes, as far as a compiler knows. */
    uint8_t *dst[LANES];
    const uint8_t *src[LANES], *after[LANES];
    uint64_t shared = lanes[0].bytes, at = 0;
    for (uint32_t i = 1; i < n; i++)
        shared = least(shared, lanes[i].bytes);
    shared &= ~(uint64_t)(STEP_BYTES - 1);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rest = lanes[i].bytes - shared;
        dst[i] = lanes[i].dst;
        src[i] = lanes[i].src;
        after[i] = rest < STEP_BYTES && next[i].bytes ? next[i].src : src[i] + shared;
        lanes[i] = (fragment){dst[i] + shared, src[i] + shared, rest};
    }
    uint64_t ahead = least(AHEAD_BYTES, shared);
    for (; at + ahead < shared; at += STEP_BYTES) {
        for (uint32_t i = 0; i < n; i++) {
            fetch_lines(src[i] + at + ahead, STEP_BYTES);
            copy_step(dst[i] + at, src[i] + at);
        }
    }
    for (uint64_t line = 0; at < shared; at += STEP_BYTES, line += STEP_BYTES) {
        for (uint32_t i = 0; i < n; i++) {
            fetch_lines(after[i] + line, STEP_BYTES);
            copy_step(dst[i] + at, src[i] + at);
        }
    }
}

/* ------------------------------------------------------------------------ through the cache */
static inline void copy_step_plain(uint8_t *dst, const uint8_t *src) {
    uint8_t step[STEP_BYTES]; /* registers, where there are enough */
    memcpy(step, src, STEP_BYTES);
    memcpy(dst, step, STEP_BYTES);
}

static void copy_rests(const fragment *lanes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (lanes[i].bytes != 0)
            memcpy(lanes[i].dst, lanes[i].src, lanes[i].bytes);
}

static void copy_lanes_plain(fragment *lanes, uint32_t n, const fragment *next) {
    for (uint32_t i = 0; i + LANES_PLAIN <= n; i += LANES_PLAIN)
        copy_in_step(lanes + i, LANES_PLAIN, i + LANES_PLAIN == n ? next : lanes + i + LANES_PLAIN,
                     copy_step_plain);
    copy_rests(lanes, n);
}

static const copy_style style_plain = {PLAIN_FRAGMENT_BYTES, LONG_FRAGMENT_BYTES, LANES, LANES,
                                       copy_lanes_plain};

#if RDX_HAVE_AVX2
/* A compiler that may use AVX2 copies bytes by 16 all the same, unless it is told. */
RDX_TARGET_AVX2 static inline void copy_step_avx2(uint8_t *dst, const uint8_t *src) {
    const __m256i *from = (const __m256i *)(const void *)src;
    __m256i *to = (__m256i *)(void *)dst;
    __m256i a = _mm256_loadu_si256(from);
    __m256i b = _mm256_loadu_si256(from + 1);
    __m256i c = _mm256_loadu_si256(from + 2);
    __m256i d = _mm256_loadu_si256(from + 3);
    _mm256_storeu_si256(to, a);
    _mm256_storeu_si256(to + 1, b);
    _mm256_storeu_si256(to + 2, c);
    _mm256_storeu_si256(to + 3, d);
}

RDX_TARGET_AVX2 static void copy_lanes_avx2(fragment *lanes, uint32_t n, const fragment *next) {
    for (uint32_t i = 0; i + LANES_PLAIN <= n; i += LANES_PLAIN)
        copy_in_step(lanes + i, LANES_PLAIN, i + LANES_PLAIN == n ? next : lanes + i + LANES_PLAIN,
                     copy_step_avx2);
    copy_rests(lanes, n);
}

static const copy_style style_avx2 = {PLAIN_FRAGMENT_BYTES, LONG_FRAGMENT_BYTES, LANES, LANES,
                                      copy_lanes_avx2};

/* ------------------------------------------------------------------------ past the cache */
RDX_TARGET_AVX2 static inline void copy_step_wide(uint8_t *dst, const uint8_t *src) {
    const __m256i *from = (const __m256i *)(const void *)src;
    __m256i *to = (__m256i *)(void *)dst;
    __m256i a = _mm256_loadu_si256(from);
    __m256i b = _mm256_loadu_si256(from + 1);
    __m256i c = _mm256_loadu_si256(from + 2);
    __m256i d = _mm256_loadu_si256(from + 3);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
}

/* Whole lines only may pass by the cache: the bytes before the first one are copied as they are. */
static inline void align_lane(fragment *lane) {
    uint64_t head = least((0 - (uintptr_t)lane->dst) & 63, lane->bytes);
    if (head == 0)
        return;
    memcpy(lane->dst, lane->src, head);
    *lane = (fragment){lane->dst + head, lane->src + head, lane->bytes - head};
}

/* One aligned lane as four quarters in step. */
RDX_TARGET_AVX2 static void copy_quarters(fragment lane, const fragment *next) {
    fragment quarters[4];
    uint64_t quarter = lane.bytes / 4 & ~(uint64_t)(STEP_BYTES - 1);
    for (uint32_t i = 0; i < 4; i++)
        quarters[i] = (fragment){lane.dst + i * quarter, lane.src + i * quarter, quarter};
    quarters[3].bytes = lane.bytes - 3 * quarter;
    copy_in_step(quarters, 4, next, copy_step_wide);
    copy_rests(quarters, 4);
}

RDX_TARGET_AVX2 static void copy_lanes_wide(fragment *lanes, uint32_t n, const fragment *next) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < n; i++)
        align_lane(&lanes[i]);
    if (n == LANES) {
        copy_in_step(lanes, LANES, next, copy_step_wide);
        done = LANES;
    } else if (n >= LANES_LONG) {
        copy_in_step(lanes, LANES_LONG, next, copy_step_wide);
        done = LANES_LONG;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (lanes[i].bytes == 0)
            continue;
        if (i < done && lanes[i].bytes < WIDE_FRAGMENT_BYTES)
            memcpy(lanes[i].dst, lanes[i].src, lanes[i].bytes);
        else
            copy_quarters(lanes[i], next);
    }
}

static const copy_style style_wide = {WIDE_FRAGMENT_BYTES, UINT64_MAX, LANES, LANES_LONG,
                                      copy_lanes_wide};
#endif

static const copy_style *style_of(const rdx_copy *copy) {
#if RDX_HAVE_AVX2
    /* The number of bytes of the whole copy decides, not that of the piece at hand. */
    if (rdx_path() == RDX_PATH_AVX2 && copy->n >= (WIDE_TOTAL_BYTES - 1) / copy->block_bytes + 1)
        return &style_wide;
    if (rdx_path() == RDX_PATH_AVX2)
        return &style_avx2;
#endif
    return &style_plain;
}

void rdx_copy_range(const rdx_copy *copy, uint64_t begin, uint64_t end) {
    if (begin >= end)
        return;
    const copy_style *style = style_of(copy);
    walk at = walk_from(copy, begin, end);
    copy_walk(style, &at);
#if RDX_HAVE_AVX2
    /* Ordinary stores (the completion of a job, say) may overtake the wide ones: stop them. */
    if (style == &style_wide)
        _mm_sfence();
#endif
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

typedef void *(*prefault_way)(void *);

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

/* The kernel collapses nothing that is wholly absent; one small page is enough. */
static void *huge_run(void *argument) {
    prefault_part *part = argument;
    part->status = RDX_OK;
    for (uint64_t at = part->begin; at < part->end; at += part->page_bytes) {
        if (madvise(memory_at(at), (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) != 0 ||
            madvise(memory_at(at), part->page_bytes, MADV_COLLAPSE) != 0)
            return NULL; /* what is refused once is looked for in vain again and again */
    }
    return NULL;
}

/* Does `pages` pages from page number `first` on, in so many threads. */
static int in_parts(uint64_t first, uint64_t pages, uint64_t page_bytes, uint32_t threads,
                    prefault_way way) {
    prefault_part parts[PREFAULT_THREADS_MAX];
    sigset_t all, before;
    int status = RDX_OK;
    threads = threads < PREFAULT_THREADS_MAX ? threads : PREFAULT_THREADS_MAX;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* what the threads inherit */
    for (uint32_t i = 0; i < threads; i++) {
        prefault_part *part = &parts[i];
        part->begin = (first + pages * i / threads) * page_bytes;
        part->end = (first + pages * (i + 1) / threads) * page_bytes;
        part->page_bytes = page_bytes;
        /* The caller does the last part, and each for which there is no thread. */
        part->started = i + 1 < threads && pthread_create(&part->thread, NULL, way, part) == 0;
        if (!part->started)
            way(part);
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

int rdx_prefault(uint64_t address, uint64_t bytes, uint32_t threads) {
    if (threads == 0 || bytes > UINT64_MAX - address)
        return RDX_EARG;
    if (bytes == 0)
        return RDX_OK;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = address / page_bytes;
    uint64_t pages = (address + bytes - 1) / page_bytes + 1 - first;
    return in_parts(first, pages, page_bytes, threads, prefault_run);
}

int rdx_take_huge(uint64_t address, uint64_t bytes, uint32_t threads) {
    if (threads == 0 || bytes > UINT64_MAX - address || address > UINT64_MAX - RDX_HUGE_BYTES)
        return RDX_EARG;
    uint64_t first = (address + RDX_HUGE_BYTES - 1) / RDX_HUGE_BYTES;
    uint64_t end = (address + bytes) / RDX_HUGE_BYTES;
    return end > first ? in_parts(first, end - first, RDX_HUGE_BYTES, threads, huge_run) : RDX_OK;
}
