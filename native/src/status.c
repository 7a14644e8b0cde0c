/* status.c: a text and a name for each status code, in the order of rdx.h. */
#include "rdx.h"

typedef struct status_entry {
    const char *name;
    const char *text;
} status_entry;

#define ENTRY(status, words) [status] = {#status, words}

static const status_entry entries[RDX_STATUS_COUNT] = {
    ENTRY(RDX_OK, "ok"),
    ENTRY(RDX_ENOMEM, "out of memory"),
    ENTRY(RDX_EARG, "an argument is out of its range"),
    ENTRY(RDX_ETOKEN, "a token id is outside [0, 2^31)"),
    ENTRY(RDX_ESTALE, "the handle or cursor names something that is gone"),
    ENTRY(RDX_ELEASE, "the lease was released already or never given"),
    ENTRY(RDX_EFULL, "not enough free slots"),
    ENTRY(RDX_ESLOT, "a slot is not in the state that the call needs"),
    ENTRY(RDX_EINVARIANT, "an invariant is broken"),
    ENTRY(RDX_EIO, "the operating system refused a read, a write or a sync"),
    ENTRY(RDX_ECORRUPT, "a checksum does not match the bytes that were read"),
    ENTRY(RDX_ESHORT, "the file ended before the block did"),
    ENTRY(RDX_ECANCELED, "cancelled before it ran"),
    ENTRY(RDX_ECLOSED, "the object is closed"),
    ENTRY(RDX_EBUSY, "a bounded queue is full"),
    ENTRY(RDX_ENOSPC, "no space is left on the device"),
    ENTRY(RDX_EROFS, "the file or its file system is read-only"),
    ENTRY(RDX_EPINNED, "a lease protects what the operation would remove"),
};

_Static_assert(sizeof(entries) / sizeof(entries[0]) == RDX_STATUS_COUNT, "one entry a status");

const char *rdx_status_text(int status) {
    return status < 0 || status >= RDX_STATUS_COUNT ? "unknown status" : entries[status].text;
}

const char *rdx_status_name(int status) {
    return status < 0 || status >= RDX_STATUS_COUNT ? "unknown status" : entries[status].name;
}
