/* The transfer threads on real files. What is asserted is order and outcome, never time: pieces
 * are let through one by one (rdx_io_allow), so each run sees the same interleaving. */
#define _GNU_SOURCE
#include "expect.h"
#include "rdx.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define NO_LIMIT UINT64_MAX

static uint8_t *memory;   /* 16 MiB of source, aligned */
static uint8_t *returned; /* 16 MiB of target */
static int file;

static rdx_op an_op(uint32_t kind, uint64_t offset, uint8_t *at, uint64_t bytes) {
    rdx_op op = {0};
    op.kind = kind;
    op.fd = file;
    op.offset = offset;
    op.memory = (uint64_t)(uintptr_t)at;
    op.bytes = bytes;
    op.payload_bytes = bytes;
    op.status = 99;
    return op;
}

static rdx_completion next_completion(rdx_io *io) {
    rdx_completion completion;
    while (rdx_io_poll(io, &completion, 1) == 0)
        EXPECT(rdx_io_wait(io, 20000) > 0);
    return completion;
}

static void expect_completion(rdx_io *io, uint64_t job, int status, uint32_t failed) {
    rdx_completion completion = next_completion(io);
    EXPECT_EQ(completion.job, job);
    EXPECT_EQ(completion.status, status);
    EXPECT_EQ(completion.failed, failed);
}

static rdx_io *new_io(uint32_t threads, uint32_t queue) {
    rdx_io *io;
    EXPECT_EQ(rdx_io_new(threads, queue, &io), RDX_OK);
    return io;
}

static int is_readable(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    return poll(&one, 1, 0) == 1;
}

/* Waits until a thread has written there: the only way to see that a piece has run. It looks at
 * memory that a job owns, which is what the thread sanitizer must not be told. */
__attribute__((no_sanitize("thread"))) static void wait_for_byte(const uint8_t *at, uint8_t value) {
    while (__atomic_load_n(at, __ATOMIC_ACQUIRE) != value)
        usleep(200);
}

static void test_round_trip(uint32_t threads) {
    rdx_io *io = new_io(threads, 8);
    rdx_op writes[40], reads[40];
    uint64_t sizes[] = {1, 4096, 65536, 524288, 524289, 1 * MIB + 77};
    uint64_t offset = 3, total = 0;
    EXPECT_EQ(ftruncate(file, 0), 0);
    memset(returned, 0, 16 * MIB);
    for (uint32_t i = 0; i < 40; i++) {
        uint64_t bytes = sizes[i % 6];
        writes[i] = an_op(RDX_OP_WRITE, offset, memory + offset, bytes);
        writes[i].payload_bytes = i % 5 == 4 ? (bytes + 1) / 2 : bytes;
        writes[i].block = i;
        reads[i] = writes[i];
        reads[i].kind = RDX_OP_READ;
        reads[i].memory = (uint64_t)(uintptr_t)(returned + offset);
        offset += bytes;
        total += bytes;
    }
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, RDX_JOB_SYNC, writes, 40), RDX_OK);
    EXPECT_EQ(rdx_io_pending(io), 1);
    rdx_completion completion = next_completion(io);
    EXPECT_EQ(completion.status, RDX_OK);
    EXPECT_EQ(completion.bytes, total);
    EXPECT_EQ(completion.failed, 40);
    EXPECT_EQ(rdx_io_pending(io), 0);
    for (uint32_t i = 0; i < 40; i++) {
        EXPECT_EQ(writes[i].status, RDX_OK);
        EXPECT_EQ(writes[i].block, i);
        EXPECT(writes[i].checksum ==
               rdx_xxh3_64((void *)(uintptr_t)writes[i].memory, writes[i].payload_bytes));
        reads[i].checksum = writes[i].checksum;
    }
    reads[7].checksum ^= 1;
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_DEMAND, 0, reads, 40), RDX_OK);
    expect_completion(io, 2, RDX_ECORRUPT, 7);
    for (uint32_t i = 0; i < 40; i++)
        EXPECT_EQ(reads[i].status, i == 7 ? RDX_ECORRUPT : RDX_OK);
    EXPECT(memcmp(memory + 3, returned + 3, total) == 0);
    reads[7].payload_bytes = 0; /* unverified */
    EXPECT_EQ(rdx_io_submit(io, 3, RDX_CLASS_DEMAND, 0, reads + 7, 1), RDX_OK);
    expect_completion(io, 3, RDX_OK, 1);
    rdx_io_free(io);
}

static void test_short_file(void) {
    rdx_io *io = new_io(2, 8);
    rdx_op ops[3];
    EXPECT_EQ(ftruncate(file, 0), 0);
    EXPECT_EQ(pwrite(file, memory, 5000, 0), 5000);
    ops[0] = an_op(RDX_OP_READ, 0, returned, 4096);
    ops[0].checksum = rdx_xxh3_64(memory, 4096);
    ops[1] = an_op(RDX_OP_READ, 4096, returned + 4096, 4096);
    ops[2] = ops[1]; /* the same bytes, of which only those that are there are payload */
    ops[2].memory += 4096;
    ops[2].payload_bytes = 904;
    ops[2].checksum = rdx_xxh3_64(memory + 4096, 904);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_DEMAND, 0, ops, 3), RDX_OK);
    expect_completion(io, 1, RDX_ESHORT, 1);
    EXPECT_EQ(ops[0].status, RDX_OK);
    EXPECT_EQ(ops[1].status, RDX_ESHORT);
    EXPECT_EQ(ops[2].status, RDX_OK);
    rdx_io_free(io);
}

static void test_demand_goes_before_queued_and_begun_stores(void) {
    rdx_io *io = new_io(1, 16);
    rdx_op stores[8], demand, prefetch, begun;
    EXPECT_EQ(ftruncate(file, 16 * MIB), 0);
    EXPECT_EQ(pwrite(file, memory, 4 * MIB, 0), 4 * MIB);
    memset(returned, 0, 16 * MIB);
    rdx_io_allow(io, 2);
    /* Eight pieces, of which two run. */
    begun = an_op(RDX_OP_READ, 0, returned, 4 * MIB);
    begun.checksum = rdx_xxh3_64(memory, 4 * MIB);
    EXPECT_EQ(rdx_io_submit(io, 100, RDX_CLASS_STORE, 0, &begun, 1), RDX_OK);
    wait_for_byte(returned + 2 * RDX_PIECE_BYTES - 1, memory[2 * RDX_PIECE_BYTES - 1]);
    for (uint32_t i = 0; i < 8; i++) {
        stores[i] = an_op(RDX_OP_WRITE, 4 * MIB + i * MIB, memory + i * MIB, MIB);
        EXPECT_EQ(rdx_io_submit(io, i, RDX_CLASS_STORE, RDX_JOB_SYNC, &stores[i], 1), RDX_OK);
    }
    prefetch = an_op(RDX_OP_READ, 0, returned + 8 * MIB, 65536);
    prefetch.payload_bytes = 0;
    EXPECT_EQ(rdx_io_submit(io, 101, RDX_CLASS_PREFETCH, 0, &prefetch, 1), RDX_OK);
    demand = an_op(RDX_OP_READ, 0, returned + 9 * MIB, 65536);
    demand.payload_bytes = 0;
    EXPECT_EQ(rdx_io_submit(io, 102, RDX_CLASS_DEMAND, 0, &demand, 1), RDX_OK);
    rdx_io_allow(io, NO_LIMIT);
    expect_completion(io, 102, RDX_OK, 1);
    expect_completion(io, 101, RDX_OK, 1);
    expect_completion(io, 100, RDX_OK, 1);
    for (uint32_t i = 0; i < 8; i++)
        expect_completion(io, i, RDX_OK, 1);
    rdx_io_free(io);
}

static void test_queue_is_bounded_by_class(void) {
    rdx_io *io = new_io(1, 2);
    rdx_op ops[4];
    EXPECT_EQ(ftruncate(file, MIB), 0);
    for (int i = 0; i < 4; i++) {
        ops[i] = an_op(RDX_OP_READ, 0, returned, 4096);
        ops[i].payload_bytes = 0;
    }
    rdx_io_allow(io, 0);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &ops[0], 1), RDX_OK);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &ops[1], 1), RDX_EARG); /* pending */
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_STORE, 0, &ops[1], 1), RDX_OK);
    EXPECT_EQ(rdx_io_submit(io, 3, RDX_CLASS_STORE, 0, &ops[2], 1), RDX_EBUSY);
    EXPECT_EQ(ops[2].status, 99); /* a refused job leaves its parts alone */
    EXPECT_EQ(rdx_io_submit(io, 4, RDX_CLASS_DEMAND, 0, &ops[3], 1), RDX_OK);
    EXPECT_EQ(rdx_io_pending(io), 3);
    EXPECT_EQ(rdx_io_wait(io, 1), 0);
    rdx_io_allow(io, NO_LIMIT);
    expect_completion(io, 4, RDX_OK, 1);
    expect_completion(io, 1, RDX_OK, 1);
    expect_completion(io, 2, RDX_OK, 1);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &ops[2], 1), RDX_OK);
    expect_completion(io, 1, RDX_OK, 1);
    EXPECT_EQ(rdx_io_wait(io, 60000), 0); /* nothing is pending: no reason to wait */
    rdx_io_free(io);
}

static void test_cancel_completes_once(void) {
    rdx_io *io = new_io(1, 8);
    rdx_op ops[4], other;
    rdx_completion completion;
    EXPECT_EQ(ftruncate(file, 8 * MIB), 0);
    EXPECT_EQ(pwrite(file, memory, 4 * MIB, 0), 4 * MIB);
    memset(returned, 0, 8 * MIB);
    for (uint32_t i = 0; i < 4; i++) { /* two pieces each */
        ops[i] = an_op(RDX_OP_READ, i * MIB, returned + i * MIB, MIB);
        ops[i].checksum = rdx_xxh3_64(memory + i * MIB, MIB);
    }
    rdx_io_allow(io, 3);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_DEMAND, 0, ops, 4), RDX_OK);
    wait_for_byte(returned + 3 * RDX_PIECE_BYTES - 1, memory[3 * RDX_PIECE_BYTES - 1]);
    EXPECT_EQ(rdx_io_cancel(io, 1), RDX_OK);
    expect_completion(io, 1, RDX_ECANCELED, 1);
    EXPECT_EQ(ops[0].status, RDX_OK);
    for (uint32_t i = 1; i < 4; i++)
        EXPECT_EQ(ops[i].status, RDX_ECANCELED);
    EXPECT_EQ(rdx_io_cancel(io, 1), RDX_ESTALE);
    EXPECT_EQ(rdx_io_cancel(io, 77), RDX_ESTALE);
    /* A job that has not begun at all; and one that is complete, but not polled. */
    other = an_op(RDX_OP_WRITE, 0, memory, MIB);
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_STORE, RDX_JOB_SYNC, &other, 1), RDX_OK);
    EXPECT_EQ(rdx_io_cancel(io, 2), RDX_OK);
    EXPECT_EQ(rdx_io_cancel(io, 2), RDX_OK);
    expect_completion(io, 2, RDX_ECANCELED, 0);
    EXPECT_EQ(other.status, RDX_ECANCELED);
    EXPECT_EQ(rdx_io_poll(io, &completion, 1), 0);
    /* All is written, the sync is not: nothing of it counts as durable. */
    rdx_io_allow(io, 2);
    EXPECT_EQ(rdx_io_submit(io, 3, RDX_CLASS_STORE, RDX_JOB_SYNC, &other, 1), RDX_OK);
    memset(returned, 0, MIB);
    while (pread(file, returned, MIB, 0) != (ssize_t)MIB || memcmp(returned, memory, MIB) != 0)
        usleep(200);
    EXPECT_EQ(rdx_io_cancel(io, 3), RDX_OK);
    rdx_io_allow(io, NO_LIMIT);
    completion = next_completion(io);
    EXPECT_EQ(completion.job, 3);
    EXPECT(completion.status == RDX_ECANCELED || completion.status == RDX_OK);
    EXPECT_EQ(completion.status, other.status);
    EXPECT_EQ(rdx_io_pending(io), 0);
    rdx_io_free(io);
}

static void test_injected_failure_at_every_step(void) {
    /* Two writes of two pieces, a third to a second file, two syncs: seven operations. */
    int second = openat(AT_FDCWD, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    EXPECT(second >= 0);
    for (uint64_t k = 1; k <= 8; k++) {
        for (int sticky = 0; sticky < 2; sticky++) {
            rdx_io *io = new_io(1, 8);
            rdx_op ops[3];
            for (uint32_t i = 0; i < 3; i++)
                ops[i] = an_op(RDX_OP_WRITE, i * MIB, memory, i < 2 ? MIB : 4096);
            ops[2].fd = second;
            rdx_io_fail_at(io, k, RDX_ENOSPC, sticky);
            EXPECT_EQ(rdx_io_submit(io, k, RDX_CLASS_STORE, RDX_JOB_SYNC, ops, 3), RDX_OK);
            rdx_completion completion = next_completion(io);
            /* A sticky failure takes the syncs too, and with them what was written before. */
            uint32_t once[] = {0, 0, 1, 1, 2, 0, 2, 3}, ever[] = {0, 0, 0, 0, 0, 0, 2, 3};
            uint32_t failed = sticky ? ever[k - 1] : once[k - 1];
            EXPECT_EQ(completion.status, k == 8 ? RDX_OK : RDX_ENOSPC);
            EXPECT_EQ(completion.failed, failed);
            for (uint32_t i = 0; i < 3; i++)
                EXPECT(ops[i].status == RDX_OK || ops[i].status == RDX_ENOSPC);
            if (sticky && k <= 6)
                EXPECT_EQ(ops[2].status, RDX_ENOSPC);
            rdx_io_free(io);
        }
    }
    close(second);
}

static void submit_stores(rdx_io *io, rdx_op *ops, uint32_t first, uint32_t n) {
    for (uint32_t i = first; i < first + n; i++) {
        ops[i] = an_op(RDX_OP_WRITE, i * 4096, memory, 4096);
        EXPECT_EQ(rdx_io_submit(io, i, RDX_CLASS_STORE, RDX_JOB_SYNC, &ops[i], 1), RDX_OK);
    }
}

static void test_one_sync_serves_all_that_wait_for_it(void) {
    rdx_op ops[4];
    for (int is_failing = 0; is_failing < 2; is_failing++) {
        rdx_io *io = new_io(1, 8);
        rdx_io_allow(io, 0);
        submit_stores(io, ops, 0, 4);
        if (is_failing)
            rdx_io_fail_at(io, 3, RDX_EIO, 0);
        rdx_io_allow(io, 3); /* two writes and their sync */
        for (uint32_t i = 0; i < 2; i++)
            expect_completion(io, i, is_failing ? RDX_EIO : RDX_OK, is_failing ? 0 : 1);
        EXPECT_EQ(rdx_io_pending(io), 2);
        rdx_io_allow(io, 2); /* the third has as much behind it as the fourth will be */
        expect_completion(io, 2, RDX_OK, 1);
        rdx_io_allow(io, 2);
        expect_completion(io, 3, RDX_OK, 1);
        rdx_io_free(io);
    }
    rdx_io *io = new_io(3, 64);
    rdx_op many[64];
    submit_stores(io, many, 0, 64);
    for (uint32_t i = 0; i < 64; i++)
        EXPECT_EQ(next_completion(io).status, RDX_OK);
    rdx_io_free(io);
}

static void test_a_job_cancelled_before_its_sync_lets_the_others_go_on(void) {
    rdx_io *io = new_io(1, 8);
    rdx_op ops[3];
    int second = openat(AT_FDCWD, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    EXPECT(second >= 0);
    rdx_completion completion;
    EXPECT_EQ(ftruncate(file, 0), 0);
    rdx_io_allow(io, 0);
    submit_stores(io, ops, 0, 3);
    rdx_io_allow(io, 1);
    while (pread(file, returned, 1, 0) != 1)
        usleep(200);
    while (rdx_io_poll(io, &completion, 1) == 0) /* its piece may be about to end */
        EXPECT_EQ(rdx_io_cancel(io, 0), RDX_OK);
    EXPECT_EQ(completion.status, RDX_ECANCELED);
    EXPECT_EQ(completion.job, 0);
    rdx_io_allow(io, 2); /* the second has as much behind it as the third will be */
    expect_completion(io, 1, RDX_OK, 1);
    EXPECT_EQ(rdx_io_cancel(io, 2), RDX_OK);
    expect_completion(io, 2, RDX_ECANCELED, 0);
    rdx_io_free(io);
    /* One of two files, and two: the second is synced once, for both. */
    io = new_io(1, 8);
    rdx_op both[2] = {an_op(RDX_OP_WRITE, 0, memory, 4096), an_op(RDX_OP_WRITE, 0, memory, 4096)};
    rdx_op longer = an_op(RDX_OP_WRITE, 4096, memory, 16384);
    both[1].fd = longer.fd = second;
    rdx_io_allow(io, 0);
    EXPECT_EQ(rdx_io_submit(io, 7, RDX_CLASS_STORE, RDX_JOB_SYNC, both, 2), RDX_OK);
    EXPECT_EQ(rdx_io_submit(io, 8, RDX_CLASS_STORE, RDX_JOB_SYNC, &longer, 1), RDX_OK);
    rdx_io_allow(io, 5);
    completion = next_completion(io);
    rdx_completion other = next_completion(io);
    EXPECT_EQ(completion.job + other.job, 15);
    EXPECT(completion.status == RDX_OK && other.status == RDX_OK);
    rdx_io_free(io);
    close(second);
}

static void test_what_is_written_waits_for_so_many_bytes_only(void) {
    rdx_io *io = new_io(1, 8);
    rdx_op first[2], second[5];
    for (uint32_t i = 0; i < 5; i++) {
        second[i] = an_op(RDX_OP_WRITE, (i + 2) * 16 * MIB, memory, 16 * MIB);
        if (i < 2)
            first[i] = an_op(RDX_OP_WRITE, i * 16 * MIB, memory, 16 * MIB);
    }
    rdx_io_allow(io, 0);
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, RDX_JOB_SYNC, first, 2), RDX_OK);
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_STORE, RDX_JOB_SYNC, second, 5), RDX_OK);
    rdx_io_allow(io, 32 * MIB / RDX_PIECE_BYTES + 1);
    expect_completion(io, 1, RDX_OK, 2);
    EXPECT_EQ(rdx_io_cancel(io, 2), RDX_OK);
    expect_completion(io, 2, RDX_ECANCELED, 0);
    rdx_io_free(io);
    EXPECT_EQ(ftruncate(file, 0), 0);
}

static void test_errors_of_the_system(const char *directory) {
    rdx_io *io = new_io(1, 8);
    int all = file, full = open("/dev/full", O_RDWR | O_CLOEXEC);
    rdx_op op = an_op(RDX_OP_WRITE, 0, memory, 4096);
    EXPECT(full >= 0);
    op.fd = full;
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, 0, &op, 1), RDX_OK);
    expect_completion(io, 1, RDX_ENOSPC, 0);
    int gone = dup(all);
    close(gone);
    op.fd = gone;
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_STORE, RDX_JOB_SYNC, &op, 1), RDX_OK);
    expect_completion(io, 2, RDX_EIO, 0);
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    op.fd = folder;
    op.kind = RDX_OP_READ;
    EXPECT_EQ(rdx_io_submit(io, 3, RDX_CLASS_DEMAND, 0, &op, 1), RDX_OK);
    expect_completion(io, 3, RDX_EIO, 0);
    close(folder);
    close(full);
    rdx_io_free(io);
}

static void test_direct_io(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/direct", directory);
    int direct = open(path, O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (direct < 0)
        return; /* not every file system has it */
    rdx_io *io = new_io(2, 8);
    rdx_op ops[2];
    for (uint32_t i = 0; i < 2; i++) {
        ops[i] = an_op(RDX_OP_WRITE, i * 12288, memory + i * 16384, 12288);
        ops[i].payload_bytes = 9000;
        ops[i].fd = direct;
    }
    EXPECT_EQ(rdx_io_submit(io, 1, RDX_CLASS_STORE, RDX_JOB_SYNC, ops, 2), RDX_OK);
    expect_completion(io, 1, RDX_OK, 2);
    EXPECT_EQ(ftruncate(direct, 12288 + 9000), 0); /* the end is inside of the last padding */
    for (uint32_t i = 0; i < 2; i++) {
        ops[i].kind = RDX_OP_READ;
        ops[i].memory = (uint64_t)(uintptr_t)(returned + i * 16384);
    }
    EXPECT_EQ(rdx_io_submit(io, 2, RDX_CLASS_DEMAND, 0, ops, 2), RDX_OK);
    expect_completion(io, 2, RDX_OK, 2);
    EXPECT_EQ(ftruncate(direct, 12288 + 8999), 0);
    EXPECT_EQ(rdx_io_submit(io, 3, RDX_CLASS_DEMAND, 0, ops, 2), RDX_OK);
    expect_completion(io, 3, RDX_ESHORT, 1);
    rdx_io_free(io);
    close(direct);
    unlink(path);
}

static void test_copy_jobs(void) {
    rdx_io *io = new_io(2, 8);
    rdx_plane src = {(uint64_t)(uintptr_t)memory, 100000, 100000};
    rdx_plane dst[2] = {{(uint64_t)(uintptr_t)returned, 40000, 40000},
                        {(uint64_t)(uintptr_t)returned + 8 * MIB, 60000, 60000}};
    int32_t src_slots[100], dst_slots[100];
    for (int32_t i = 0; i < 100; i++) {
        src_slots[i] = i;
        dst_slots[i] = 99 - i;
    }
    memset(returned, 0, 16 * MIB);
    EXPECT_EQ(rdx_io_submit_copy(io, 5, RDX_CLASS_DEMAND, dst, 2, dst_slots, &src, 1, src_slots, 0),
              RDX_OK);
    expect_completion(io, 5, RDX_OK, 0);
    EXPECT_EQ(
        rdx_io_submit_copy(io, 6, RDX_CLASS_DEMAND, dst, 2, dst_slots, &src, 1, src_slots, 100),
        RDX_OK);
    memset(dst_slots, 0, sizeof dst_slots); /* they were copied at the call */
    rdx_completion completion = next_completion(io);
    EXPECT_EQ(completion.status, RDX_OK);
    EXPECT_EQ(completion.bytes, 10000000);
    EXPECT_EQ(completion.failed, 100);
    for (uint64_t i = 0; i < 100; i++) {
        EXPECT(memcmp(returned + (99 - i) * 40000, memory + i * 100000, 40000) == 0);
        EXPECT(memcmp(returned + 8 * MIB + (99 - i) * 60000, memory + i * 100000 + 40000, 60000) ==
               0);
    }
    rdx_io_free(io);
    io = new_io(1, 8);
    rdx_io_allow(io, 2);
    memset(returned, 0, MIB);
    rdx_plane flat = {(uint64_t)(uintptr_t)returned, 100000, 100000};
    EXPECT_EQ(
        rdx_io_submit_copy(io, 7, RDX_CLASS_DEMAND, &flat, 1, src_slots, &src, 1, src_slots, 100),
        RDX_OK);
    wait_for_byte(returned + 2 * RDX_PIECE_BYTES - 1, memory[2 * RDX_PIECE_BYTES - 1]);
    EXPECT_EQ(rdx_io_cancel(io, 7), RDX_OK);
    expect_completion(io, 7, RDX_ECANCELED, 10); /* 1,048,576 bytes are ten whole blocks */
    EXPECT_EQ(rdx_io_submit_copy(io, 8, RDX_CLASS_DEMAND, dst, 1, dst_slots, &src, 1, src_slots, 1),
              RDX_EARG);
    rdx_io_free(io);
}

static void test_event_fd_is_readable_while_completions_are_ready(void) {
    rdx_io *io = new_io(1, 8);
    rdx_op ops[2];
    rdx_completion completion;
    for (uint32_t i = 0; i < 2; i++)
        ops[i] = an_op(RDX_OP_WRITE, 0, memory, 4096);
    EXPECT(!is_readable(rdx_io_event_fd(io)));
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_EQ(rdx_io_submit(io, i, RDX_CLASS_STORE, 0, &ops[i], 1), RDX_OK);
    while (rdx_io_wait(io, 20000) < 2)
        usleep(200);
    EXPECT(is_readable(rdx_io_event_fd(io)));
    EXPECT_EQ(rdx_io_poll(io, &completion, 1), 1);
    EXPECT(is_readable(rdx_io_event_fd(io)));
    EXPECT_EQ(rdx_io_poll(io, &completion, 1), 1);
    EXPECT(!is_readable(rdx_io_event_fd(io)));
    rdx_io_free(io);
}

static void test_free_with_work_left_returns(void) {
    rdx_op ops[8];
    for (int round = 0; round < 20; round++) {
        rdx_io *io = new_io(1 + round % 3, 8);
        if (round % 2)
            rdx_io_allow(io, (uint64_t)round);
        for (uint32_t i = 0; i < 8; i++) {
            ops[i] = an_op(RDX_OP_WRITE, i * MIB, memory + i * MIB, 2 * MIB);
            EXPECT_EQ(rdx_io_submit(io, i, i % 3, RDX_JOB_SYNC * (i % 2), &ops[i], 1), RDX_OK);
        }
        rdx_io_free(io);
    }
    rdx_io_free(NULL);
}

static void test_child_of_a_fork_neither_hangs_nor_submits(void) {
    rdx_io *io = new_io(2, 8);
    rdx_op op = an_op(RDX_OP_WRITE, 0, memory, 4096);
    rdx_completion completion;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int is_refused = rdx_io_submit(io, 1, 0, 0, &op, 1) == RDX_ECLOSED &&
                         rdx_io_poll(io, &completion, 1) == 0 && rdx_io_wait(io, 60000) == 0 &&
                         rdx_io_cancel(io, 1) == RDX_ECLOSED;
        rdx_io_free(io);
        _exit(is_refused ? 0 : 1);
    }
    int status;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(rdx_io_submit(io, 1, 0, 0, &op, 1), RDX_OK);
    expect_completion(io, 1, RDX_OK, 1);
    rdx_io_free(io);
}

static void test_refusals(void) {
    rdx_io *io;
    rdx_op op = an_op(RDX_OP_WRITE, 0, memory, 4096), bad;
    EXPECT_EQ(rdx_io_new(0, 1, &io), RDX_EARG);
    EXPECT_EQ(rdx_io_new(1, 0, &io), RDX_EARG);
    io = new_io(1, 1);
#define REFUSES(change)                                                                            \
    bad = op;                                                                                      \
    bad.change;                                                                                    \
    EXPECT_EQ(rdx_io_submit(io, 1, 0, 0, &bad, 1), RDX_EARG)
    REFUSES(kind = 3);
    REFUSES(fd = -1);
    REFUSES(memory = 0);
    REFUSES(bytes = 0);
    REFUSES(payload_bytes = 4097);
    REFUSES(offset = INT64_MAX);
    EXPECT_EQ(rdx_io_submit(io, 1, 3, 0, &op, 1), RDX_EARG);
    EXPECT_EQ(rdx_io_submit(io, 1, 0, 2, &op, 1), RDX_EARG);
    EXPECT_EQ(rdx_io_submit(io, 1, 0, 0, NULL, 1), RDX_EARG);
    EXPECT_EQ(rdx_io_pending(io), 0);
    EXPECT_EQ(rdx_io_submit(io, 1, 0, RDX_JOB_SYNC, &op, 0), RDX_OK); /* a job of no parts */
    expect_completion(io, 1, RDX_OK, 0);
    rdx_io_free(io);
}

int main(void) {
    char directory[] = "rdx-io-XXXXXX";
    char path[64];
    memory = aligned_alloc(4096, 17 * MIB);
    returned = aligned_alloc(4096, 17 * MIB);
    random_fill(memory, 17 * MIB);
    for (uint64_t end = RDX_PIECE_BYTES; end <= 16 * MIB; end += RDX_PIECE_BYTES)
        memory[end - 1] |= 1; /* never what the cleared target holds */
    EXPECT(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/slab", directory);
    file = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    EXPECT(file >= 0);
    test_refusals();
    for (uint32_t threads = 1; threads <= 4; threads++)
        test_round_trip(threads);
    test_short_file();
    test_demand_goes_before_queued_and_begun_stores();
    test_queue_is_bounded_by_class();
    test_cancel_completes_once();
    test_injected_failure_at_every_step();
    test_one_sync_serves_all_that_wait_for_it();
    test_a_job_cancelled_before_its_sync_lets_the_others_go_on();
    test_what_is_written_waits_for_so_many_bytes_only();
    test_errors_of_the_system(directory);
    test_direct_io(directory);
    test_copy_jobs();
    test_event_fd_is_readable_while_completions_are_ready();
    test_free_with_work_left_returns();
    test_child_of_a_fork_neither_hangs_nor_submits();
    close(file);
    unlink(path);
    rmdir(directory);
    free(memory);
    free(returned);
    return 0;
}
