/* Every allocation of pools and transfer threads fails once: the call says so, leaves everything
 * as it was and works at the next try. The address sanitizer sees what is lost on the way. */
#define _GNU_SOURCE
#include "alloc.h"
#include "expect.h"
#include "rdx.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void test_the_door_itself(void) {
    uint64_t before = rdx_alloc_fail_at(2);
    void *first = rdx_malloc(0);
    EXPECT(first != NULL);
    EXPECT(rdx_calloc(1, 8) == NULL); /* the second */
    void *grown = rdx_realloc(first, 100);
    EXPECT(grown != NULL); /* the third: the failure was one only */
    memset(grown, 1, 100);
    rdx_alloc_fail_at(1);
    EXPECT(rdx_realloc(grown, 1 << 20) == NULL);
    EXPECT(((char *)grown)[99] == 1);
    EXPECT_EQ(rdx_alloc_fail_at(0) - before, 4);
    EXPECT(rdx_calloc(SIZE_MAX / 2, 4) == NULL);
    rdx_free_mem(grown);
    rdx_free_mem(NULL);
    for (size_t alignment = 16; alignment <= 4096; alignment *= 2) {
        uint8_t *aligned = rdx_malloc_aligned(alignment, 100);
        EXPECT((uintptr_t)aligned % alignment == 0);
        memset(aligned, 1, 100);
        rdx_free_mem(aligned);
    }
}

static void test_pool_at_every_allocation(void) {
    rdx_pool *pool = NULL;
    int status = RDX_ENOMEM;
    uint64_t k = 0;
    while (status != RDX_OK) {
        rdx_alloc_fail_at(++k);
        status = rdx_pool_new(10, &pool);
        EXPECT(status == RDX_OK || (status == RDX_ENOMEM && pool == NULL));
    }
    EXPECT_EQ(k, 4); /* three allocations were seen to fail */
    int32_t slots[20];
    rdx_alloc_fail_at(0);
    EXPECT_EQ(rdx_pool_reserve(pool, 4, slots), RDX_OK);
    for (k = 1, status = RDX_ENOMEM; status != RDX_OK; k++) {
        rdx_alloc_fail_at(k);
        status = rdx_pool_grow(pool, 1000);
        EXPECT(status == RDX_OK || status == RDX_ENOMEM);
        EXPECT_EQ(rdx_pool_check(pool), RDX_OK);
        EXPECT_EQ(rdx_pool_capacity(pool), status == RDX_OK ? 1010 : 10);
        EXPECT_EQ(rdx_pool_count(pool, RDX_SLOT_RESERVED), 4);
    }
    EXPECT_EQ(k, 4);
    rdx_alloc_fail_at(1); /* what follows needs none */
    EXPECT_EQ(rdx_pool_move(pool, slots, 4, RDX_SLOT_RESERVED, RDX_SLOT_FREE, NULL), RDX_OK);
    EXPECT_EQ(rdx_pool_reserve(pool, 20, slots), RDX_OK);
    EXPECT_EQ(rdx_pool_retire(pool, 500, 510), RDX_OK);
    EXPECT_EQ(rdx_pool_revive(pool, 500, 510), RDX_OK);
    rdx_alloc_fail_at(0);
    rdx_pool_free(pool);
}

static rdx_io *io_at_every_allocation(void) {
    rdx_io *io = NULL;
    int status = RDX_ENOMEM;
    uint64_t k = 0;
    while (status != RDX_OK) {
        rdx_alloc_fail_at(++k);
        status = rdx_io_new(2, 4, &io);
        EXPECT(status == RDX_OK || (status == RDX_ENOMEM && io == NULL));
    }
    EXPECT_EQ(k, 2);
    rdx_alloc_fail_at(0);
    return io;
}

static void expect_completion(rdx_io *io, uint64_t job) {
    rdx_completion completion;
    while (rdx_io_poll(io, &completion, 1) == 0)
        EXPECT(rdx_io_wait(io, 20000) > 0);
    EXPECT_EQ(completion.job, job);
    EXPECT_EQ(completion.status, RDX_OK);
}

static void test_io_at_every_allocation(void) {
    static uint8_t from[4096], to[4096];
    rdx_io *io = io_at_every_allocation();
    int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
    rdx_op op = {.kind = RDX_OP_WRITE,
                 .fd = file,
                 .memory = (uint64_t)(uintptr_t)from,
                 .bytes = sizeof from,
                 .payload_bytes = sizeof from,
                 .status = 99};
    rdx_plane src = {(uint64_t)(uintptr_t)from, 64, 64}, dst = {(uint64_t)(uintptr_t)to, 64, 64};
    int32_t slots[] = {3, 1};
    memset(from, 7, sizeof from);
    rdx_alloc_fail_at(1);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &op, 1), RDX_ENOMEM);
    EXPECT_EQ(op.status, 99);
    EXPECT_EQ(rdx_io_pending(io), 0);
    rdx_alloc_fail_at(1);
    EXPECT_EQ(rdx_io_submit_copy(io, 2, 0, &dst, 1, slots, &src, 1, slots, 2), RDX_ENOMEM);
    EXPECT_EQ(rdx_io_pending(io), 0);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &op, 1), RDX_OK);
    rdx_alloc_fail_at(1); /* running, completing and polling need none */
    expect_completion(io, 1);
    rdx_alloc_fail_at(0);
    EXPECT_EQ(rdx_io_submit_copy(io, 2, 0, &dst, 1, slots, &src, 1, slots, 2), RDX_OK);
    expect_completion(io, 2);
    EXPECT(to[64] == 7 && to[0] == 0 && to[3 * 64 + 63] == 7);
    rdx_io_free(io);
    close(file);
}

int main(void) {
    test_the_door_itself();
    test_pool_at_every_allocation();
    test_io_at_every_allocation();
    return 0;
}
