/* alloc.c: counted allocations. One relaxed increment an allocation; the countdown is touched
 * only while a test has armed it. */
#define _GNU_SOURCE
#include "alloc.h"

#include "rdx.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LEAST_HUGE (4u << 20) /* bytes: below, rounding to huge pages could take more memory */

static _Atomic uint64_t allocations;
static _Atomic uint64_t countdown; /* 0: off; k: the k-th allocation from now fails */

int rdx_alloc_fails(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    uint64_t left = atomic_load_explicit(&countdown, memory_order_relaxed);
    while (left != 0) {
        if (atomic_compare_exchange_weak_explicit(&countdown, &left, left - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return left == 1;
    }
    return 0;
}

void *rdx_malloc(size_t size) { return rdx_alloc_fails() ? NULL : malloc(size ? size : 1); }

void *rdx_calloc(size_t n, size_t size) {
    if (rdx_alloc_fails() || (size != 0 && n > SIZE_MAX / size))
        return NULL;
    return n == 0 || size == 0 ? calloc(1, 1) : calloc(n, size);
}

void *rdx_realloc(void *memory, size_t size) {
    return rdx_alloc_fails() ? NULL : realloc(memory, size ? size : 1);
}

void *rdx_malloc_aligned(size_t alignment, size_t size) {
    if (rdx_alloc_fails() || size > SIZE_MAX - alignment)
        return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment; /* as C11 asks */
    return aligned_alloc(alignment, rounded ? rounded : alignment);
}

void rdx_ask_huge(void *memory, size_t size) {
#ifdef MADV_HUGEPAGE
    uintptr_t page = 4096;
    uintptr_t begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)memory + size) & ~(page - 1);
    if (size >= LEAST_HUGE) {
        madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* refused: small pages do as well */
    }
#endif
}

void rdx_free_mem(void *memory) { free(memory); }

/* Huge pages are asked for before the first touch, and only where one begins. */
static void *map_huge(size_t size) {
    uint8_t *wide = mmap(NULL, size + RDX_HUGE_PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (wide == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)wide % RDX_HUGE_PAGE;
    if (before)
        munmap(wide, before);
    munmap(wide + before + size, RDX_HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    madvise(wide + before, size, MADV_HUGEPAGE); /* refused: small pages do as well */
#endif
    return wide + before;
}

void *rdx_chunk_new(size_t size) {
    if (size < RDX_HUGE_PAGE)
        return rdx_malloc_aligned(64, size);
    return rdx_alloc_fails() ? NULL : map_huge(size);
}

void rdx_chunk_free(void *chunk, size_t size) {
    if (size < RDX_HUGE_PAGE)
        free(chunk);
    else
        munmap(chunk, size);
}

uint64_t rdx_alloc_fail_at(uint64_t k) {
    atomic_store_explicit(&countdown, k, memory_order_relaxed);
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}
