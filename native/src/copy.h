/* copy.h: copies by byte range, so that a transfer thread can do one in pieces. */
#ifndef RDX_COPY_H
#define RDX_COPY_H
#include "rdx.h"

/* One copy of n blocks. As bytes it is the n blocks one after the other: n * block_bytes. */
typedef struct rdx_copy {
    const rdx_plane *dst;
    const rdx_plane *src;
    const int32_t *dst_slots;
    const int32_t *src_slots;
    uint32_t dst_planes;
    uint32_t src_planes;
    uint32_t n;
    uint64_t block_bytes; /* filled in by rdx_copy_prepare */
} rdx_copy;

/* RDX_EARG if a slot is negative or the two sides do not have the same number of bytes a block. */
int rdx_copy_prepare(rdx_copy *copy);
/* Bytes [begin, end) of a prepared copy. Stores of large copies pass by the cache; they are
 * ordered before whatever the caller stores afterwards. */
void rdx_copy_range(const rdx_copy *copy, uint64_t begin, uint64_t end);
#endif
