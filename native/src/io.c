/* io.c: the transfer threads. A job is cut into pieces of at most RDX_PIECE_BYTES, and a thread
 * asks before each piece what is most urgent, so a demand load waits for one piece at most. Small
 * parts that lie one after the other in a file are moved as one piece; if that does not go through
 * whole, each is moved by itself, so that a part fails for its own reasons only.
 *
 *     submit -> [class queue] -> pieces run -> [sync queue] -> syncs run -> [ready] -> poll
 *                    |                              |             ^
 *                    +------- cancel, and nothing runs any more --+
 *
 * A job is in at most one queue. It leaves its class queue when its last piece has begun, the sync
 * queue when its last file is synced, and is completed by whoever ends its last piece or sync. The
 * job itself carries its completion, so a completion needs no memory and the ready list has no
 * bound of its own.
 *
 * One sync serves every job that waits for its file, because all of them were written before it
 * began. So that there are several, a sync begins only once as much waits for one as is still to be
 * written, or MOST_UNSYNCED: with two jobs under way after each, with four after every second one.
 *
 * A part's status is RDX_ECANCELED from the submit until its last piece (and the sync of its file,
 * where asked for) has ended well: what never ran needs no visit.
 *
 * Invariants: I22 each job is completed exactly once and polled at most once; a job's memory is
 * not touched after its completion. */
#define _GNU_SOURCE
#include "alloc.h"
#include "copy.h"
#include "file.h"
#include "rdx.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 1024 /* of the table of job ids */
#define THREADS_MAX 256
#define MOST_UNSYNCED (UINT64_C(32) << 20) /* bytes that wait while others are written */

typedef struct io_job io_job;
typedef struct io_piece io_piece;

typedef struct io_list {
    io_job *head;
    io_job *tail;
} io_list;

struct io_job {
    io_job *next; /* in its one list */
    io_job *previous;
    io_job *chain; /* in the table of ids */
    io_list *list; /* NULL: in none */
    rdx_completion completion;
    uint64_t submitted_ns;
    uint64_t begun_ns; /* 0: no piece has begun */
    uint32_t cls;
    uint32_t running;   /* pieces or syncs in a thread now */
    uint32_t syncs;     /* files that are not synced yet */
    uint32_t waiting;   /* of these, those of which no sync has begun */
    uint32_t next_part; /* file jobs: the part that the next piece is of */
    uint32_t parts;
    uint64_t next_byte;         /* of that part, or of the whole copy */
    rdx_op *ops;                /* NULL: a copy */
    uint32_t *pieces;           /* of each part, those that have not ended well */
    int32_t *fds;               /* the distinct files to sync */
    const io_piece **synced_by; /* of each of these files, the sync that runs, or NULL */
    uint64_t unsynced;          /* bytes to write, of a job with files to sync */
    rdx_copy copy;
};

/* What a thread does at a time. */
struct io_piece {
    io_job *job;
    uint64_t begin;
    uint64_t end;
    uint32_t part;
    uint32_t parts; /* more than one: `part` and those behind it, each of them whole */
    int sync_fd;    /* -1: no sync */
    int injected;   /* a status to fail with */
};

struct rdx_io {
    pthread_mutex_t lock;
    pthread_cond_t work; /* there may be a piece to begin */
    pthread_cond_t done; /* a completion is ready */
    io_list queues[RDX_CLASS_COUNT];
    io_list syncing;
    io_list ready;
    io_job *table[BUCKETS];
    uint32_t active[RDX_CLASS_COUNT]; /* submitted, not completed */
    uint32_t queue;
    uint32_t ready_count;
    uint32_t running_syncs;
    uint64_t unwritten; /* bytes of jobs that will be synced, until their last piece has ended */
    uint64_t written;   /* bytes of jobs in `syncing` of which a file waits for a sync */
    uint32_t threads;
    _Atomic uint32_t pending; /* submitted, not polled */
    uint64_t fail_countdown;
    int fail_status;
    int fail_sticky;
    uint64_t allowed; /* pieces that may still begin */
    int stopping;
    int event_fd;
    pid_t owner; /* threads do not survive a fork: a child must not wait for them */
    pthread_t thread[];
};

/* ------------------------------------------------------------------------ lists and the table */
static void list_push(io_list *list, io_job *job) {
    job->next = NULL;
    job->previous = list->tail;
    job->list = list;
    if (list->tail == NULL)
        list->head = job;
    else
        list->tail->next = job;
    list->tail = job;
}

static void list_remove(io_job *job) {
    io_list *list = job->list;
    if (list == NULL)
        return;
    if (job->previous == NULL)
        list->head = job->next;
    else
        job->previous->next = job->next;
    if (job->next == NULL)
        list->tail = job->previous;
    else
        job->next->previous = job->previous;
    job->list = NULL;
}

/* The link that points at the job with this id, or the NULL at the end of its chain. */
static io_job **table_find(rdx_io *io, uint64_t id) {
    io_job **link = &io->table[(id ^ id >> 17) % BUCKETS];
    while (*link != NULL && (*link)->completion.job != id)
        link = &(*link)->chain;
    return link;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int is_foreign(const rdx_io *io) { return io->owner != getpid(); }

/* ------------------------------------------------------------------------ completion */
static void fill_completion(io_job *job) {
    rdx_completion *completion = &job->completion;
    uint64_t now = now_ns();
    uint64_t begun = job->begun_ns ? job->begun_ns : now;
    completion->queued_ns = begun - job->submitted_ns;
    completion->run_ns = now - begun;
    completion->status = RDX_OK;
    completion->failed = job->parts;
    if (job->ops == NULL) {
        if (job->next_byte < job->parts * job->copy.block_bytes) {
            completion->status = RDX_ECANCELED;
            completion->failed = (uint32_t)(job->next_byte / job->copy.block_bytes);
        }
        return;
    }
    for (uint32_t part = 0; part < job->parts; part++) {
        if (job->ops[part].status != RDX_OK) {
            completion->status = job->ops[part].status;
            completion->failed = part;
            return;
        }
    }
}

static int has_more_pieces(const io_job *job) {
    if (job->ops == NULL)
        return job->next_byte < job->parts * job->copy.block_bytes;
    return job->next_part < job->parts;
}

static void complete(rdx_io *io, io_job *job) {
    uint64_t one = 1;
    fill_completion(job);
    io->active[job->cls]--;
    if (has_more_pieces(job))
        io->unwritten -= job->unsynced;
    list_push(&io->ready, job);
    /* Readable exactly while the list is not empty; the counter cannot overflow, so no error. */
    if (io->ready_count++ == 0 && write(io->event_fd, &one, sizeof one) < 0)
        one = 0;
    pthread_cond_broadcast(&io->done);
}

/* Moves a job of which nothing runs on to its syncs or its completion. Called with the lock. */
static void settle(rdx_io *io, io_job *job) {
    if (job->running > 0 || job->list != NULL)
        return;
    if (has_more_pieces(job) || job->syncs == 0) {
        complete(io, job); /* with pieces left it was cancelled */
    } else {
        io->unwritten -= job->unsynced;
        io->written += job->unsynced;
        job->waiting = job->syncs;
        list_push(&io->syncing, job);
    }
    pthread_cond_signal(&io->work); /* a sync may be due now */
}

/* ------------------------------------------------------------------------ taking a piece */
/* Syncs last long and cannot be cut: they never hold the last thread, if there are several. */
static int sync_is_due(const rdx_io *io) {
    uint32_t most_syncs = io->threads > 1 ? io->threads - 1 : 1;
    return io->written > 0 && io->running_syncs < most_syncs &&
           (io->written >= io->unwritten || io->written >= MOST_UNSYNCED);
}

static io_job *most_urgent(rdx_io *io) {
    for (int cls = 0; cls < RDX_CLASS_STORE; cls++)
        if (io->queues[cls].head != NULL)
            return io->queues[cls].head;
    if (sync_is_due(io)) {
        io_job *job = io->syncing.head;
        while (job->waiting == 0)
            job = job->next;
        return job;
    }
    return io->queues[RDX_CLASS_STORE].head;
}

static int injected_failure(rdx_io *io) {
    if (io->fail_countdown == 0)
        return RDX_OK;
    if (io->fail_countdown > 1) {
        io->fail_countdown--;
        return RDX_OK;
    }
    io->fail_countdown = io->fail_sticky ? 1 : 0;
    return io->fail_status;
}

/* The next piece of a part; the rest of a part that has failed is passed over. */
static int take_part_piece(io_job *job, io_piece *piece) {
    while (job->next_part < job->parts) {
        rdx_op *op = &job->ops[job->next_part];
        piece->part = job->next_part;
        piece->begin = job->next_byte;
        piece->end =
            op->bytes - piece->begin > RDX_PIECE_BYTES ? piece->begin + RDX_PIECE_BYTES : op->bytes;
        int is_failed = op->status != RDX_ECANCELED;
        job->next_byte = piece->end;
        if (is_failed || piece->end == op->bytes) {
            job->next_part++;
            job->next_byte = 0;
        }
        if (!is_failed)
            return 1;
    }
    return 0;
}

static int follows(const rdx_op *op, const rdx_op *next) {
    return next->status == RDX_ECANCELED && next->kind == op->kind && next->fd == op->fd &&
           next->offset == op->offset + op->bytes;
}

/* Adds the parts that go on where the piece ends, as far as it may grow. Each counts as a piece. */
static void take_neighbours(rdx_io *io, io_job *job, io_piece *piece) {
    uint64_t bytes = piece->end;
    if (piece->injected != RDX_OK || piece->begin != 0 || job->next_byte != 0)
        return;
    while (job->next_part < job->parts && piece->parts < RDX_FILE_PARTS_MAX) {
        const rdx_op *next = &job->ops[job->next_part];
        bytes += next->bytes;
        if (bytes > RDX_PIECE_BYTES || !follows(next - 1, next) || io->fail_countdown == 1 ||
            io->allowed == 0)
            break;
        io->fail_countdown -= io->fail_countdown > 1;
        io->allowed -= io->allowed != UINT64_MAX;
        piece->parts++;
        job->next_part++;
    }
}

/* A sync for the first file that the job waits for, and for all jobs that wait for the same. */
static void take_sync(rdx_io *io, const io_job *first, io_piece *piece) {
    uint32_t at = 0;
    while (first->synced_by[at] != NULL)
        at++;
    piece->sync_fd = first->fds[at];
    io->running_syncs++;
    for (io_job *job = io->syncing.head; job != NULL; job = job->next) {
        for (uint32_t i = 0; i < job->syncs; i++) {
            if (job->fds[i] != piece->sync_fd || job->synced_by[i] != NULL)
                continue;
            job->synced_by[i] = piece;
            job->running++;
            if (--job->waiting == 0)
                io->written -= job->unsynced;
        }
    }
}

/* Called with the lock. 0: there was nothing left to begin after all. */
static int take(rdx_io *io, io_job *job, io_piece *piece) {
    *piece = (io_piece){.job = job, .parts = 1, .sync_fd = -1, .injected = RDX_OK};
    int taken = 1;
    if (job->list == &io->syncing) {
        take_sync(io, job, piece);
    } else if (job->ops == NULL) {
        uint64_t left = job->parts * job->copy.block_bytes - job->next_byte;
        piece->begin = job->next_byte;
        job->next_byte += left < RDX_PIECE_BYTES ? left : RDX_PIECE_BYTES;
        piece->end = job->next_byte;
    } else {
        taken = take_part_piece(job, piece);
    }
    if (taken) {
        if (job->ops != NULL)
            piece->injected = injected_failure(io);
        if (io->allowed != UINT64_MAX)
            io->allowed--;
        if (job->ops != NULL && piece->sync_fd < 0)
            take_neighbours(io, job, piece);
    }
    if (piece->sync_fd >= 0)
        return 1;
    if (!has_more_pieces(job))
        list_remove(job);
    if (!taken) {
        settle(io, job);
        return 0;
    }
    if (job->begun_ns == 0)
        job->begun_ns = now_ns();
    job->running++;
    return 1;
}

/* ------------------------------------------------------------------------ running a piece */
/* Checksums of parts that are written in one piece, before that: whoever takes the bytes from
 * memory then, the device or what emulates it, finds them in the cache. */
static void sum_parts(const io_piece *piece) {
    for (uint32_t i = 0; i < piece->parts; i++) {
        rdx_op *op = &piece->job->ops[piece->part + i];
        if (op->kind == RDX_OP_WRITE && op->payload_bytes > 0 && op->bytes <= RDX_PIECE_BYTES)
            op->checksum = rdx_xxh3_64((const void *)(uintptr_t)op->memory, op->payload_bytes);
    }
}

static void run(const io_piece *piece, int *statuses, uint64_t *moved) {
    io_job *job = piece->job;
    if (piece->injected != RDX_OK) {
        statuses[0] = piece->injected;
    } else if (piece->sync_fd >= 0) {
        statuses[0] = rdx_file_sync(piece->sync_fd);
    } else if (job->ops == NULL) {
        rdx_copy_range(&job->copy, piece->begin, piece->end);
        *moved = piece->end - piece->begin;
        statuses[0] = RDX_OK;
    } else {
        sum_parts(piece);
        rdx_file_move(&job->ops[piece->part], piece->parts, piece->begin, piece->end, statuses,
                      moved);
    }
}

/* The checksum of a part whose bytes are all there; nobody else touches it now. */
static int check_part(rdx_op *op) {
    if (op->payload_bytes == 0 || (op->kind == RDX_OP_WRITE && op->bytes <= RDX_PIECE_BYTES))
        return RDX_OK; /* nothing to check, or sum_parts did it */
    uint64_t checksum = rdx_xxh3_64((const void *)(uintptr_t)op->memory, op->payload_bytes);
    if (op->kind == RDX_OP_READ)
        return checksum == op->checksum ? RDX_OK : RDX_ECORRUPT;
    op->checksum = checksum;
    return RDX_OK;
}

/* Settles the parts of a synced file: until now they were written, but not final. */
static void settle_parts(io_job *job, int fd, int status) {
    for (uint32_t part = 0; part < job->parts; part++) {
        rdx_op *op = &job->ops[part];
        if (op->kind == RDX_OP_WRITE && op->fd == fd && op->status == RDX_ECANCELED &&
            job->pieces[part] == 0)
            op->status = status;
    }
}

static void drop_sync(io_job *job, uint32_t i) {
    job->syncs--;
    job->fds[i] = job->fds[job->syncs];
    job->synced_by[i] = job->synced_by[job->syncs];
}

/* Called with the lock: the file of the piece is synced, for each job that the sync was for. */
static void finish_sync(rdx_io *io, const io_piece *piece, int status) {
    io->running_syncs--;
    for (io_job *job = io->syncing.head, *next; job != NULL; job = next) {
        next = job->next;
        for (uint32_t i = job->syncs; i-- > 0;) {
            if (job->synced_by[i] != piece)
                continue;
            settle_parts(job, piece->sync_fd, status);
            drop_sync(job, i);
            job->running--;
        }
        if (job->syncs == 0) {
            list_remove(job);
            settle(io, job);
        }
    }
    pthread_cond_signal(&io->work); /* of those that waited for a thread to sync with, one may */
}

/* Called with the lock, which it gives up for checksums; `running` still counts the piece, so
 * neither a sync nor the completion comes before it. */
static void finish_parts(rdx_io *io, const io_piece *piece, int *statuses) {
    io_job *job = piece->job;
    rdx_op *ops = &job->ops[piece->part];
    int is_whole[RDX_FILE_PARTS_MAX];
    int any_whole = 0;
    for (uint32_t i = 0; i < piece->parts; i++) {
        is_whole[i] = statuses[i] == RDX_OK && --job->pieces[piece->part + i] == 0;
        any_whole |= is_whole[i];
    }
    if (any_whole) {
        pthread_mutex_unlock(&io->lock);
        for (uint32_t i = 0; i < piece->parts; i++)
            if (is_whole[i])
                statuses[i] = check_part(&ops[i]);
        pthread_mutex_lock(&io->lock);
    }
    for (uint32_t i = 0; i < piece->parts; i++) {
        int is_final = is_whole[i] && (ops[i].kind == RDX_OP_READ || job->syncs == 0);
        if (statuses[i] == RDX_OK && is_final)
            ops[i].status = RDX_OK;
        if (statuses[i] != RDX_OK && ops[i].status == RDX_ECANCELED)
            ops[i].status = statuses[i];
    }
}

/* Called with the lock. */
static void finish(rdx_io *io, const io_piece *piece, int *statuses, uint64_t moved) {
    io_job *job = piece->job;
    if (piece->sync_fd >= 0) {
        finish_sync(io, piece, statuses[0]);
        return;
    }
    job->completion.bytes += moved;
    if (job->ops != NULL)
        finish_parts(io, piece, statuses);
    job->running--;
    settle(io, job);
}

static void *thread_main(void *argument) {
    rdx_io *io = argument;
    io_piece piece;
    int statuses[RDX_FILE_PARTS_MAX];
    pthread_mutex_lock(&io->lock);
    while (!io->stopping) {
        io_job *job = io->allowed > 0 ? most_urgent(io) : NULL;
        if (job == NULL) {
            pthread_cond_wait(&io->work, &io->lock);
            continue;
        }
        if (!take(io, job, &piece))
            continue;
        uint64_t moved = 0;
        pthread_mutex_unlock(&io->lock);
        run(&piece, statuses, &moved);
        pthread_mutex_lock(&io->lock);
        finish(io, &piece, statuses, moved);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

/* ------------------------------------------------------------------------ construction */
static int start_threads(rdx_io *io, uint32_t threads) {
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* what the threads inherit */
    while (error == 0 && io->threads < threads) {
        /* Under the lock, because a thread that runs already reads the count. */
        pthread_mutex_lock(&io->lock);
        error = pthread_create(&io->thread[io->threads], NULL, thread_main, io);
        io->threads += error == 0;
        pthread_mutex_unlock(&io->lock);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? RDX_OK : RDX_ENOMEM;
}

int rdx_io_new(uint32_t threads, uint32_t queue, rdx_io **out) {
    pthread_condattr_t monotonic;
    if (threads == 0 || threads > THREADS_MAX || queue == 0 || out == NULL)
        return RDX_EARG;
    rdx_io *io = rdx_calloc(1, sizeof *io + threads * sizeof io->thread[0]);
    if (io == NULL)
        return RDX_ENOMEM;
    io->queue = queue;
    io->allowed = UINT64_MAX;
    io->owner = getpid();
    io->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (io->event_fd < 0) {
        rdx_free_mem(io);
        return RDX_EIO;
    }
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&io->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int status = start_threads(io, threads);
    if (status != RDX_OK) {
        rdx_io_free(io);
        return status;
    }
    *out = io;
    return RDX_OK;
}

void rdx_io_free(rdx_io *io) {
    if (io == NULL)
        return;
    if (!is_foreign(io)) {
        pthread_mutex_lock(&io->lock);
        io->stopping = 1;
        pthread_cond_broadcast(&io->work);
        pthread_mutex_unlock(&io->lock);
        for (uint32_t i = 0; i < io->threads; i++)
            pthread_join(io->thread[i], NULL);
        pthread_cond_destroy(&io->done);
        pthread_cond_destroy(&io->work);
        pthread_mutex_destroy(&io->lock);
    }
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
        for (io_job *job = io->table[bucket], *next; job != NULL; job = next) {
            next = job->chain;
            rdx_free_mem(job);
        }
    }
    close(io->event_fd);
    rdx_free_mem(io);
}

/* ------------------------------------------------------------------------ submission */
static int op_is_valid(const rdx_op *op) {
    return (op->kind == RDX_OP_READ || op->kind == RDX_OP_WRITE) && op->fd >= 0 &&
           op->memory != 0 && op->bytes > 0 && op->payload_bytes <= op->bytes &&
           op->bytes <= INT64_MAX && op->offset <= (uint64_t)INT64_MAX - op->bytes &&
           op->memory <= UINT64_MAX - op->bytes &&
           op->bytes <= (uint64_t)RDX_PIECE_BYTES * UINT32_MAX;
}

static void collect_sync(io_job *job, int32_t fd) {
    for (uint32_t i = job->syncs; i-- > 0;)
        if (job->fds[i] == fd)
            return;
    job->fds[job->syncs++] = fd;
}

static int enqueue(rdx_io *io, io_job *job) {
    int status = RDX_OK;
    pthread_mutex_lock(&io->lock);
    io_job **link = table_find(io, job->completion.job);
    if (*link != NULL) {
        status = RDX_EARG;
    } else if (io->active[job->cls] >= io->queue) {
        status = RDX_EBUSY;
    } else {
        *link = job;
        io->active[job->cls]++;
        io->unwritten += job->unsynced;
        atomic_fetch_add_explicit(&io->pending, 1, memory_order_relaxed);
        for (uint32_t part = 0; job->ops != NULL && part < job->parts; part++)
            job->ops[part].status = RDX_ECANCELED;
        job->submitted_ns = now_ns();
        if (has_more_pieces(job)) {
            list_push(&io->queues[job->cls], job);
            pthread_cond_broadcast(&io->work);
        } else {
            settle(io, job);
        }
    }
    pthread_mutex_unlock(&io->lock);
    if (status != RDX_OK)
        rdx_free_mem(job);
    return status;
}

int rdx_io_submit(rdx_io *io, uint64_t id, uint32_t cls, uint32_t flags, rdx_op *ops, uint32_t n) {
    if (is_foreign(io))
        return RDX_ECLOSED;
    if (cls >= RDX_CLASS_COUNT || (flags & ~(uint32_t)RDX_JOB_SYNC) != 0 || ops == NULL)
        return RDX_EARG;
    for (uint32_t part = 0; part < n; part++)
        if (!op_is_valid(&ops[part]))
            return RDX_EARG;
    size_t a_part = sizeof(io_piece *) + sizeof(uint32_t) + sizeof(int32_t);
    io_job *job = rdx_calloc(1, sizeof *job + n * a_part);
    if (job == NULL)
        return RDX_ENOMEM;
    job->completion.job = id;
    job->cls = cls;
    job->ops = ops;
    job->parts = n;
    job->synced_by = (const io_piece **)(job + 1);
    job->pieces = (uint32_t *)(job->synced_by + n);
    job->fds = (int32_t *)(job->pieces + n);
    for (uint32_t part = 0; part < n; part++) {
        job->pieces[part] = (uint32_t)((ops[part].bytes - 1) / RDX_PIECE_BYTES + 1);
        if (flags & RDX_JOB_SYNC && ops[part].kind == RDX_OP_WRITE) {
            collect_sync(job, ops[part].fd);
            job->unsynced += ops[part].bytes;
        }
    }
    return enqueue(io, job);
}

int rdx_io_submit_copy(rdx_io *io, uint64_t id, uint32_t cls, const rdx_plane *dst,
                       uint32_t dst_planes, const int32_t *dst_slots, const rdx_plane *src,
                       uint32_t src_planes, const int32_t *src_slots, uint32_t n) {
    rdx_copy copy = {dst, src, dst_slots, src_slots, dst_planes, src_planes, n, 0};
    if (is_foreign(io))
        return RDX_ECLOSED;
    if (cls >= RDX_CLASS_COUNT || rdx_copy_prepare(&copy) != RDX_OK)
        return RDX_EARG;
    size_t planes = (size_t)dst_planes + src_planes;
    size_t slots_bytes = n * sizeof *dst_slots;
    io_job *job = rdx_calloc(1, sizeof *job + planes * sizeof *dst + 2 * slots_bytes);
    if (job == NULL)
        return RDX_ENOMEM;
    rdx_plane *kept_planes = (rdx_plane *)(job + 1);
    int32_t *kept_slots = (int32_t *)(kept_planes + planes);
    memcpy(kept_planes, dst, dst_planes * sizeof *dst);
    memcpy(kept_planes + dst_planes, src, src_planes * sizeof *src);
    if (n > 0) {
        memcpy(kept_slots, dst_slots, slots_bytes);
        memcpy(kept_slots + n, src_slots, slots_bytes);
    }
    copy.dst = kept_planes;
    copy.src = kept_planes + dst_planes;
    copy.dst_slots = kept_slots;
    copy.src_slots = kept_slots + n;
    job->completion.job = id;
    job->cls = cls;
    job->parts = n;
    job->copy = copy;
    return enqueue(io, job);
}

/* Of a job that is written: syncs that run are waited for, the others are left out. */
static void cancel_syncs(rdx_io *io, io_job *job) {
    if (job->waiting > 0)
        io->written -= job->unsynced;
    job->waiting = 0;
    for (uint32_t i = job->syncs; i-- > 0;)
        if (job->synced_by[i] == NULL)
            drop_sync(job, i);
    if (job->syncs == 0) {
        list_remove(job);
        settle(io, job);
    }
}

int rdx_io_cancel(rdx_io *io, uint64_t id) {
    if (is_foreign(io))
        return RDX_ECLOSED;
    pthread_mutex_lock(&io->lock);
    io_job *job = *table_find(io, id);
    /* In no list: its last piece runs. In the ready list: it is over. */
    if (job != NULL && job->list == &io->syncing) {
        cancel_syncs(io, job);
    } else if (job != NULL && job->list != NULL && job->list != &io->ready) {
        list_remove(job);
        settle(io, job);
    }
    pthread_mutex_unlock(&io->lock);
    return job == NULL ? RDX_ESTALE : RDX_OK;
}

/* ------------------------------------------------------------------------ the owner's side */
uint32_t rdx_io_poll(rdx_io *io, rdx_completion *out, uint32_t max) {
    uint32_t n = 0;
    io_job *polled = NULL;
    if (is_foreign(io))
        return 0;
    pthread_mutex_lock(&io->lock);
    for (; n < max && io->ready.head != NULL; n++) {
        io_job *job = io->ready.head;
        list_remove(job);
        *table_find(io, job->completion.job) = job->chain;
        out[n] = job->completion;
        job->next = polled;
        polled = job;
    }
    io->ready_count -= n;
    uint64_t count;
    if (n > 0 && io->ready_count == 0 && read(io->event_fd, &count, sizeof count) < 0)
        count = 0; /* it was read by the caller's event loop */
    atomic_fetch_sub_explicit(&io->pending, n, memory_order_relaxed);
    pthread_mutex_unlock(&io->lock);
    while (polled != NULL) {
        io_job *job = polled;
        polled = job->next;
        rdx_free_mem(job);
    }
    return n;
}

uint32_t rdx_io_wait(rdx_io *io, uint32_t timeout_ms) {
    if (is_foreign(io))
        return 0;
    uint64_t until_ns = now_ns() + (uint64_t)timeout_ms * UINT64_C(1000000);
    struct timespec until = {(time_t)(until_ns / UINT64_C(1000000000)),
                             (long)(until_ns % UINT64_C(1000000000))};
    int result = 0;
    pthread_mutex_lock(&io->lock);
    while (io->ready_count == 0 && result != ETIMEDOUT &&
           atomic_load_explicit(&io->pending, memory_order_relaxed) > 0)
        result = pthread_cond_timedwait(&io->done, &io->lock, &until);
    uint32_t ready = io->ready_count;
    pthread_mutex_unlock(&io->lock);
    return ready;
}

uint32_t rdx_io_pending(const rdx_io *io) {
    return atomic_load_explicit(&io->pending, memory_order_relaxed);
}

int rdx_io_event_fd(const rdx_io *io) { return io->event_fd; }

void rdx_io_fail_at(rdx_io *io, uint64_t k, int status, int sticky) {
    if (is_foreign(io))
        return;
    pthread_mutex_lock(&io->lock);
    io->fail_countdown = k;
    io->fail_status = status;
    io->fail_sticky = sticky;
    pthread_mutex_unlock(&io->lock);
}

void rdx_io_allow(rdx_io *io, uint64_t pieces) {
    if (is_foreign(io))
        return;
    pthread_mutex_lock(&io->lock);
    io->allowed = pieces;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
}
