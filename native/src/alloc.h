/* alloc.h: the one door to the heap for all native code, so that a test can make any single
 * allocation fail. Thread-safe. Memory from here is given back with rdx_free_mem only. */
#ifndef RDX_ALLOC_H
#define RDX_ALLOC_H
#include <stddef.h>

/* NULL on failure, like the functions of the C library. A size of 0 allocates one byte, so that
 * NULL always means failure. rdx_calloc refuses an overflowing product. A failed rdx_realloc
 * leaves `memory` as it was. */
void *rdx_malloc(size_t size);
void *rdx_calloc(size_t n, size_t size);
void *rdx_realloc(void *memory, size_t size);
/* Alignment: a power of two and a multiple of sizeof(void *). */
void *rdx_malloc_aligned(size_t alignment, size_t size);
/* Asks for huge pages under a large array that is looked up at random; a hint, that changes nothing
 * else and can't fail. */
void rdx_ask_huge(void *memory, size_t size);
void rdx_free_mem(void *memory);
/* Counts one allocation; not 0 where it is to fail, for who allocates in a way of his own. */
int rdx_alloc_fails(void);
/* A chunk of a multiple of 4 KiB, aligned to a line; one of RDX_HUGE_PAGE or more begins with a
 * huge page, and lies on them as far as they go where the machine gives any. Given back by
 * rdx_chunk_free, with the same size. */
#define RDX_HUGE_PAGE (2u << 20)
void *rdx_chunk_new(size_t size);
void rdx_chunk_free(void *chunk, size_t size);
#endif
