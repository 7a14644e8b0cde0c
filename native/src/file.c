/* file.c: reads, writes and syncs of one piece of a job. Small parts that lie side by side go in
 * one call; if that does not go through whole, each goes by itself, so that a part fails for its
 * own reasons only. Keeps no invariant of its own: what a status means is said in rdx.h. */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int status_of_errno(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return RDX_ENOSPC;
    case EROFS:
    case EPERM: /* an immutable file, a sealed memfd */
        return RDX_EROFS;
    case EINVAL: /* O_DIRECT, and an address, offset or length that is not aligned */
        return RDX_EARG;
    default:
        return RDX_EIO;
    }
}

static int read_range(const rdx_op *op, uint64_t begin, uint64_t end, uint64_t *moved) {
    uint64_t at = begin;
    /* Only the payload must be there: the padding of the last block of a file need not be. */
    uint64_t needed = op->payload_bytes ? op->payload_bytes : op->bytes;
    while (at < end) {
        ssize_t got =
            pread(op->fd, (char *)(uintptr_t)op->memory + at, end - at, (off_t)(op->offset + at));
        if (got < 0 && errno == EINTR)
            continue;
        /* After the end of a file an O_DIRECT read goes on from an unaligned place. */
        if (got < 0 && errno == EINVAL && (op->offset + at) % 512 != 0 && at > begin)
            got = 0;
        if (got < 0)
            return status_of_errno(errno);
        if (got == 0)
            return at < needed ? RDX_ESHORT : RDX_OK;
        at += (uint64_t)got;
        *moved += (uint64_t)got;
    }
    return RDX_OK;
}

static int write_range(const rdx_op *op, uint64_t begin, uint64_t end, uint64_t *moved) {
    uint64_t at = begin;
    while (at < end) {
        ssize_t put = pwrite(op->fd, (const char *)(uintptr_t)op->memory + at, end - at,
                             (off_t)(op->offset + at));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? status_of_errno(errno) : RDX_EIO;
        at += (uint64_t)put;
        *moved += (uint64_t)put;
    }
    return RDX_OK;
}

/* Moves the parts in one call; 0 where that did not move all of them. */
static int move_together(const rdx_op *ops, uint32_t parts, uint64_t *moved) {
    struct iovec runs[RDX_FILE_PARTS_MAX];
    uint64_t bytes = 0;
    ssize_t done;
    for (uint32_t i = 0; i < parts; i++) {
        runs[i] = (struct iovec){(void *)(uintptr_t)ops[i].memory, (size_t)ops[i].bytes};
        bytes += ops[i].bytes;
    }
    do {
        done = ops->kind == RDX_OP_READ ? preadv(ops->fd, runs, (int)parts, (off_t)ops->offset)
                                        : pwritev(ops->fd, runs, (int)parts, (off_t)ops->offset);
    } while (done < 0 && errno == EINTR);
    if (done < 0 || (uint64_t)done != bytes)
        return 0;
    *moved += bytes;
    return 1;
}

void rdx_file_move(const rdx_op *ops, uint32_t parts, uint64_t begin, uint64_t end, int *statuses,
                   uint64_t *moved) {
    if (parts > 1 && move_together(ops, parts, moved)) {
        memset(statuses, 0, parts * sizeof *statuses);
        return;
    }
    for (uint32_t i = 0; i < parts; i++) {
        uint64_t until = parts > 1 ? ops[i].bytes : end;
        statuses[i] = ops[i].kind == RDX_OP_READ ? read_range(&ops[i], begin, until, moved)
                                                 : write_range(&ops[i], begin, until, moved);
    }
}

int rdx_file_sync(int fd) {
    int result;
    do
        result = fdatasync(fd);
    while (result != 0 && errno == EINTR);
    return result == 0 ? RDX_OK : status_of_errno(errno);
}
