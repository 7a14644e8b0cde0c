/* rdx.h: the native half of the prefix cache. C11, no dependency, prefix rdx_.
 *
 * Everything here is called by one owner thread at a time, except the transfer threads of
 * rdx_io, which touch nothing but their own queue and the memory that a job names.
 * A call that fails (status != RDX_OK) leaves every structure as it was.
 *
 * A compressed radix tree over pages. A page is `page_bytes` bytes of key: P int32 tokens, or one
 * opaque key. An edge holds k >= 1 pages; they lie, with every column, in one refcounted buffer:
 *
 *     node (64 bytes)            buffer: one allocation, capacity c pages
 *     +--------------------+     +--------+----------------+-----------+-----------+
 *     | parent  children   |     | refs   | page 0 .. c-1  | column 0  | column 1  | ...
 *     | start   (pages)    |     | cap    | page_bytes     | c x bytes | c x bytes |
 *     | off,len -----------+---> | used   | each           |           |           |
 *     | protect stamp gen  |     +--------+----------------+-----------+-----------+
 *     +--------------------+              ^ off ... off+len is this node's edge
 *
 * A split only makes a second node over the same buffer, so it costs the same for an edge of two
 * pages and of two million. The new node is the *upper* one: the handle that a caller holds, the
 * children, the pins and the jobs stay with the suffix.
 *
 *          before                      after a split at 3
 *     A [p0 p1 p2 p3 p4]          U [p0 p1 p2] -> A [p3 p4]     one buffer, refs 2
 *
 * Columns: for each (group, tier) one int32 slot a page and, for each node, the interval [lo, hi)
 * of its pages that are resident there. Eviction and window slides move a bound:
 *
 *     pages of the edge   0 1 2 3 4 5 6 7
 *     column device       s s s s s . . .      lo=0 hi=5
 *     column host         s s s s s s s s      lo=0 hi=8
 */
#ifndef RDX_H
#define RDX_H
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- status codes (status.c) */
#define RDX_OK 0
#define RDX_ENOMEM 1     /* an allocation failed; nothing changed */
#define RDX_EARG 2       /* an argument is out of its range */
#define RDX_ETOKEN 3     /* a token id is outside [0, 2^31) */
#define RDX_ESTALE 4     /* a handle or cursor names something that is gone */
#define RDX_ELEASE 5     /* a lease that was released already, or was never given */
#define RDX_EFULL 6      /* not enough free slots */
#define RDX_ESLOT 7      /* a slot is not in the state that the call needs (double free, foreign) */
#define RDX_EINVARIANT 8 /* rdx_check found a broken invariant */
#define RDX_EIO 9        /* the operating system refused a read, a write or a sync */
#define RDX_ECORRUPT 10  /* bytes were read whose checksum is wrong */
#define RDX_ESHORT 11    /* a file ended before the block did */
#define RDX_ECANCELED 12 /* the job was cancelled before this part of it ran */
#define RDX_ECLOSED 13   /* the object was closed */
#define RDX_EBUSY 14     /* a bounded queue is full; offer the job again */
#define RDX_ENOSPC 15    /* no space is left on the device */
#define RDX_EROFS 16     /* the file system or the file is read-only */
#define RDX_EPINNED 17   /* the operation would remove something that a lease protects */
#define RDX_STATUS_COUNT 18

/* The text of a status, for people; "unknown status" outside the range. */
const char *rdx_status_text(int status);
const char *rdx_status_name(int status);

/* ---------------------------------------------------------------- keys and checksums (keys.c)
 * XXH3 of the public specification, 64 and 128 bits, seed 0. */
uint64_t rdx_xxh3_64(const void *data, uint64_t bytes);
void rdx_xxh3_128(const void *data, uint64_t bytes, uint8_t out[16]); /* canonical, big endian */

/* Chained page keys: key[i] = xxh3_128(key[i-1] || page[i]), key[-1] = parent (16 bytes).
 * out: n * 16 bytes. Cost: n pages. */
void rdx_keys_chain(const uint8_t *parent, const void *pages, uint32_t n, uint32_t page_bytes,
                    uint8_t *out);

/* ---------------------------------------------------------------- copies (copy.c)
 * Where the blocks of a group lie in memory: block `slot` is the concatenation, in order, of
 * bytes [base + slot*stride, +bytes) of each plane (one plane: page first; one a layer: layer
 * first). Both sides of a copy concatenate to the same block size; their cuts may differ. */
typedef struct rdx_plane {
    uint64_t base;   /* address */
    uint64_t stride; /* bytes from a slot to the next */
    uint64_t bytes;  /* bytes of one slot in this plane */
} rdx_plane;

/* Copies n blocks src_slots[i] -> dst_slots[i]. Cost: the bytes. RDX_EARG if the totals differ.
 * Wide stores that pass by the cache are used for large totals. */
int rdx_copy_blocks(const rdx_plane *dst, uint32_t dst_planes, const int32_t *dst_slots,
                    const rdx_plane *src, uint32_t src_planes, const int32_t *src_slots,
                    uint32_t n);
/* Checksums (xxh3-64) of n blocks, each over its concatenated planes. out: n values. */
int rdx_checksum_blocks(const rdx_plane *src, uint32_t planes, const int32_t *slots, uint32_t n,
                        uint64_t *out);
/* Touches every page of [address, address+bytes) with `threads` threads (pre-fault). */
int rdx_prefault(uint64_t address, uint64_t bytes, uint32_t threads);
#define RDX_HUGE_BYTES (2u << 20)
/* Puts the whole huge pages of a fresh range on such where the system is asked to but gives none at
 * the first touch, as for files of memory under shmem_enabled=never (Linux 6.1). What comes of it
 * the system tells; what is refused stays untouched, and is no error. */
int rdx_take_huge(uint64_t address, uint64_t bytes, uint32_t threads);

/* ---------------------------------------------------------------- transfer threads (io.c) */
typedef struct rdx_io rdx_io;

#define RDX_OP_READ 1  /* file -> memory, verified against `checksum` unless payload_bytes == 0 */
#define RDX_OP_WRITE 2 /* memory -> file, `checksum` is computed */
#define RDX_CLASS_DEMAND 0
#define RDX_CLASS_PREFETCH 1
#define RDX_CLASS_STORE 2
#define RDX_CLASS_COUNT 3
#define RDX_JOB_SYNC 1 /* fdatasync the files of the job after its last write (or several jobs) */
#define RDX_PIECE_BYTES 524288

/* One contiguous, checksummed run of bytes between a file and memory (a block, or a part or a
 * shard piece of one). `status` and, for writes, `checksum` are filled in; they are final once
 * the job's completion has been polled. Runs over RDX_PIECE_BYTES are cut into pieces; runs that
 * follow one another, in the job and in the file, are moved together up to that size. */
typedef struct rdx_op {
    uint32_t kind;
    int32_t fd;
    uint64_t offset;        /* in the file, bytes */
    uint64_t memory;        /* address */
    uint64_t bytes;         /* bytes moved; padded to the alignment where O_DIRECT asks for it */
    uint64_t payload_bytes; /* the checksum covers the first payload_bytes; a file may end there */
    uint64_t checksum;      /* xxh3-64: expected (read) or computed (write) */
    uint32_t block;         /* the caller's index of the block, untouched */
    int32_t status;         /* RDX_OK, RDX_EIO, RDX_ECORRUPT, RDX_ESHORT, RDX_ENOSPC, ... */
} rdx_op;

typedef struct rdx_completion {
    uint64_t job;
    int32_t status;  /* RDX_OK, or the status of the first part that failed */
    uint32_t failed; /* index of that part (copy: block); == number of parts if none failed */
    uint64_t bytes;  /* bytes really moved */
    uint64_t queued_ns;
    uint64_t run_ns;
} rdx_completion;

/* threads >= 1; at most `queue` jobs of each class wait or run (RDX_EBUSY beyond). */
int rdx_io_new(uint32_t threads, uint32_t queue, rdx_io **out);
/* Waits for running pieces, cancels the rest, joins the threads. Completions not polled are lost.
 */
void rdx_io_free(rdx_io *io);
/* The caller keeps `ops` and the memory they name until the completion of `job` was polled. One
 * part's failure does not stop the others. With RDX_JOB_SYNC a write whose status is RDX_OK is
 * durable. RDX_EARG: `job` is pending already, or a part is out of its range. */
int rdx_io_submit(rdx_io *io, uint64_t job, uint32_t cls, uint32_t flags, rdx_op *ops, uint32_t n);
/* A copy job: rdx_copy_blocks in a transfer thread, in pieces. The planes and slots are copied at
 * the call; the memory they point at is the caller's until the completion was polled. */
int rdx_io_submit_copy(rdx_io *io, uint64_t job, uint32_t cls, const rdx_plane *dst,
                       uint32_t dst_planes, const int32_t *dst_slots, const rdx_plane *src,
                       uint32_t src_planes, const int32_t *src_slots, uint32_t n);
/* What has not begun is skipped (RDX_ECANCELED); the completion still comes, exactly once.
 * RDX_ESTALE: no such job is pending. */
int rdx_io_cancel(rdx_io *io, uint64_t job);
/* Takes up to max completions, oldest first; returns how many. Never blocks. */
uint32_t rdx_io_poll(rdx_io *io, rdx_completion *out, uint32_t max);
/* Waits until a completion is ready, nothing is pending or the time is over; returns completions
 * ready. */
uint32_t rdx_io_wait(rdx_io *io, uint32_t timeout_ms);
/* Jobs submitted whose completion has not been polled. */
uint32_t rdx_io_pending(const rdx_io *io);
/* An eventfd that is readable while completions are ready. */
int rdx_io_event_fd(const rdx_io *io);
/* Fault injection for tests: the k-th file operation from now (1-based; reads, writes, syncs
 * counted together) fails with `status`, and `sticky` makes every later one fail too. k=0: off. */
void rdx_io_fail_at(rdx_io *io, uint64_t k, int status, int sticky);
/* For tests: only so many more pieces begin (a sync is one, and so is each run of those that are
 * moved together); UINT64_MAX, the start: no limit. */
void rdx_io_allow(rdx_io *io, uint64_t pieces);

/* ---------------------------------------------------------------- slot pools (pool.c)
 * Every slot of [0, capacity) has exactly one state. reserve is all or nothing; lowest index
 * first after a fresh start, most recently freed first later (warm slots); what one call freed
 * comes back in the order of that call. */
#define RDX_SLOT_FREE 0
#define RDX_SLOT_RESERVED 1   /* given out, its bytes are not yet final */
#define RDX_SLOT_USED 2       /* committed: visible, one owner in the tree */
#define RDX_SLOT_QUARANTINE 3 /* free but fenced */
#define RDX_SLOT_RETIRED 4    /* out of the pool: its segment is lent elsewhere */
typedef struct rdx_pool rdx_pool;
int rdx_pool_new(uint32_t capacity, rdx_pool **out);
void rdx_pool_free(rdx_pool *pool);
int rdx_pool_grow(rdx_pool *pool, uint32_t more); /* appends slots [capacity, capacity+more) */
/* Takes slots [first, first+n) out of the pool until they are revived (RDX_ESLOT unless all are
 * free). revive brings retired ones back, behind all that are free. */
int rdx_pool_retire(rdx_pool *pool, uint32_t first, uint32_t n);
int rdx_pool_revive(rdx_pool *pool, uint32_t first, uint32_t n);
int rdx_pool_reserve(rdx_pool *pool, uint32_t n, int32_t *out);
/* Moves slots from state `from` to `to`; all or nothing: RDX_ESLOT names the first bad index. */
int rdx_pool_move(rdx_pool *pool, const int32_t *slots, uint32_t n, uint32_t from, uint32_t to,
                  uint32_t *bad);
/* Marks named free slots as used (restart: the slots that a disk index names). */
int rdx_pool_claim(rdx_pool *pool, const int32_t *slots, uint32_t n, uint32_t *bad);
uint32_t rdx_pool_capacity(const rdx_pool *pool);
uint32_t rdx_pool_count(const rdx_pool *pool, uint32_t state);
uint32_t rdx_pool_state(const rdx_pool *pool, uint32_t slot);
int rdx_pool_check(const rdx_pool *pool);

/* ---------------------------------------------------------------- tree (tree.c) */
typedef struct rdx_tree rdx_tree;
typedef uint64_t rdx_handle; /* generation << 32 | index; 0 is no node */

#define RDX_MAX_COLUMNS 64
#define RDX_MAX_TIERS 32 /* a set of tiers is a mask of 32 bits */
#define RDX_NO_SLOT (-1)

/* Where a match ended: `pages` pages from the root, inside or at the end of `node`. */
typedef struct rdx_cursor {
    rdx_handle node;
    rdx_handle root; /* what is left of a cursor whose node is gone; its own generation, so that
                        no other namespace can stand in for one that was removed */
    uint32_t pages;
} rdx_cursor;

typedef struct rdx_tree_config {
    uint32_t page_bytes;
    uint32_t check_ids; /* 1: pages are int32 tokens and ids outside [0, 2^31) are refused */
    uint32_t groups;    /* columns = groups * tiers, column = group * tiers + tier */
    uint32_t tiers;
    uint32_t key_bytes;   /* 16: keep the chained page key of each page; 0: do not */
    uint32_t page_tokens; /* tokens a page stands for, whatever its bytes are */
    uint64_t seed;        /* of the child table; never decides anything */
} rdx_tree_config;

/* Which blocks of a group a hit at n tokens needs, and where its blocks may stand. A block of b
 * pages has one slot, at its last page; every other page of it has RDX_NO_SLOT.
 *
 *     pages               0 1 2 3 4 5 6 7 | n        b = 2
 *     full                  s   s   s   s            every block of [0, n)
 *     window, chunked             t   s   s          the blocks of the last `reach` tokens (of the
 *                                                    chunk that n lies in); t: a tombstone
 *     state                             s            one snapshot, exactly at n
 */
#define RDX_RULE_FULL 0
#define RDX_RULE_WINDOW 1
#define RDX_RULE_CHUNKED 2
#define RDX_RULE_STATE 3
#define RDX_RULE_SCRATCH 4 /* never in the tree */
#define RDX_RULE_COUNT 5
typedef struct rdx_group {
    uint32_t rule;
    uint32_t block_pages;     /* >= 1; state: a checkpoint stands at multiples of it only */
    uint32_t reach_tokens;    /* window: tokens before n; chunked: tokens of a chunk, >= 1 */
    uint32_t lookahead_pages; /* the block that ends with page p stands at page p + lookahead */
    uint32_t lookup;          /* 1: it limits a hit */
} rdx_group;

typedef struct rdx_tree_stats {
    uint64_t nodes;
    uint64_t pages; /* pages of live edges */
    uint64_t buffers;
    uint64_t bytes; /* of nodes, buffers, tables and columns */
    uint64_t roots;
    uint64_t leases;
    uint64_t clock;
    uint64_t splits;
    uint64_t compactions;
    uint64_t removed_nodes;
} rdx_tree_stats;

/* groups: config->groups of them, or NULL: all full, a page a block, with lookup. RDX_EARG: a rule
 * out of its range; lookahead goes with full and window groups of one page a block only. */
int rdx_tree_new(const rdx_tree_config *config, const rdx_group *groups, rdx_tree **out);
void rdx_tree_free(rdx_tree *tree);
uint32_t rdx_tree_page_bytes(const rdx_tree *tree);
/* Width of the ids that evict gives: 16 where keys are kept, else page_bytes. */
uint32_t rdx_tree_id_bytes(const rdx_tree *tree);
int rdx_tree_checks_ids(const rdx_tree *tree);
void rdx_tree_get_stats(const rdx_tree *tree, rdx_tree_stats *out);

/* A root for one namespace. `key`: 16 bytes, the key that its first page chains from (or NULL). */
int rdx_root_new(rdx_tree *tree, const uint8_t *key, rdx_handle *out);
/* RDX_EPINNED while it has a child or a lease. */
int rdx_root_free(rdx_tree *tree, rdx_handle root);

/* The result of a match; nothing is changed. All in pages from the root. The joint hit is the
 * greatest length <= limit that is valid for every group with lookup: all that the group's rule
 * needs for it is resident in one of the tiers that count. It is not downward closed. */
typedef struct rdx_match {
    rdx_cursor structural; /* where the walk ended */
    uint32_t device_pages; /* the joint hit over tier 0 alone */
    uint32_t hit_pages;    /* the joint hit over the union of the readable tiers */
    uint32_t limit_pages;  /* the most that the caller may use */
    uint32_t stop;         /* RDX_STOP_* : why the hit is not longer */
} rdx_match;
#define RDX_STOP_LIMIT 0  /* everything that was asked for is there */
#define RDX_STOP_COLD 1   /* no such page in the tree */
#define RDX_STOP_HOLE 2   /* the page is in the tree, its block in no readable tier */
#define RDX_STOP_WINDOW 3 /* the same for a block of the window, or chunk, before the end */
#define RDX_STOP_STATE 4  /* no snapshot stands there */

/* n pages at `pages`; at most `limit` of them count as hit. `readable`: bit t = tier t.
 * Cost: the pages compared. */
int rdx_tree_match(const rdx_tree *tree, rdx_handle root, const void *pages, uint32_t n,
                   uint32_t limit, uint32_t readable, rdx_match *out);
/* Many prompts, walked in turns with prefetch. counts[i] pages at pages[i]. */
int rdx_tree_match_many(const rdx_tree *tree, uint32_t m, const rdx_handle *roots,
                        const void *const *pages, const uint32_t *counts, const uint32_t *limits,
                        uint32_t readable, rdx_match *out);

/* The joint hit (see rdx_match) on the path to `at`, at most `limit` pages; changes nothing.
 * Cost: the nodes of the path, for each group. */
int rdx_joint(const rdx_tree *tree, rdx_cursor at, uint32_t limit, uint32_t readable,
              uint32_t *pages, uint32_t *stop);

/* Finds where `cursor` lies now. A cursor whose node is gone gives the root's end (0 pages): a
 * stale cursor is a shorter one. */
void rdx_cursor_resolve(const rdx_tree *tree, rdx_cursor cursor, rdx_cursor *out);

typedef struct rdx_insert {
    rdx_cursor end;      /* of the whole inserted run */
    uint32_t existing;   /* pages after `from` that stood in the tree already */
    uint32_t created;    /* pages that are new */
    uint32_t attached;   /* existing pages that got a slot in some column */
    uint32_t duplicates; /* existing pages for which some column had a slot already */
} rdx_insert;

/* Inserts n pages after `from` and gives them slots: slots[c*n + i] for page i in column
 * columns[c] (RDX_NO_SLOT: none). canonical (same shape, may be NULL) receives the slots that
 * count from now on: where it differs from what was given, the caller still owns its own slot.
 * lease (0: none) is a lease that ends at `from`; it is moved to the new end and thereby covers
 * the new pages. RDX_NO_SLOT may stand anywhere in a row; a slot at a page where no entry of its
 * group may stand is not taken. In a full column a page that cannot be attached without a second
 * interval keeps RDX_NO_SLOT; in another one the edge is split there.
 * Cost: the n pages; never the prefix. */
int rdx_tree_insert(rdx_tree *tree, rdx_cursor from, const void *pages, uint32_t n,
                    const uint32_t *columns, uint32_t ncolumns, const int32_t *slots,
                    int32_t *canonical, uint64_t lease, rdx_insert *out);

/* Leases: the only pin. Pins the path from the root to `at`, splitting where it ends inside an
 * edge. A stale cursor is resolved first: *end tells what is really pinned, and is the cursor to
 * go on from (the node that `at` named may be evicted behind it).
 *
 * The structure and the blocks of full groups are pinned on the whole path. Blocks of another
 * group g are pinned if bit g of `mask` is set, and only on those pages of the path that a hit at
 * its end needs, or, unless `first` is RDX_BY_RULE, on the pages [first, end):
 *
 *     pages     0 1 2 3 4 5 6 7 | end = 8
 *     full      p p p p p p p p
 *     window              p p p     of 3 pages
 *     state                   p
 */
#define RDX_BY_RULE 0xffffffff
#define RDX_EVERY_GROUP 0xffffffffffffffff
int rdx_lease_take(rdx_tree *tree, rdx_cursor at, uint64_t mask, uint32_t first, uint64_t *lease,
                   rdx_cursor *end);
/* Gives up the page pins of the groups that are not in `mask`. */
int rdx_lease_narrow(rdx_tree *tree, uint64_t lease, uint64_t mask);
/* Releases. stamp: 1 makes the path the most recently used, in every tier; 0 leaves the order as
 * it is (the pin of a transfer, whose timing must decide nothing). */
int rdx_lease_release(rdx_tree *tree, uint64_t lease, int stamp);
/* Moves a lease down or up its own path or to a descendant; the new end is pinned first, its pages
 * by rule, for the groups that the lease has left. */
int rdx_lease_move(rdx_tree *tree, uint64_t lease, rdx_cursor at, uint32_t *pages);
int rdx_lease_end(const rdx_tree *tree, uint64_t lease, rdx_cursor *out);

/* ---------------------------------------------------------------- slots from pools (pooled.c) */
typedef struct rdx_pools { /* those of a first tier, and what an insert out of them works with */
    struct rdx_pool *pools[RDX_MAX_COLUMNS]; /* by group */
    uint32_t evicted[RDX_MAX_COLUMNS]; /* out, by group: blocks that went for room, whatever comes
                                          of it */
    uint32_t groups;                   /* of them, as many as the tree has; else RDX_EARG */
    uint32_t evicts; /* 1: where a pool is short, the oldest blocks of its column go */
    int32_t *slots;  /* out: a row a group, what was reserved; -1 where none was */
    uint64_t room;   /* slots there; pooled.c's own */
} rdx_pools;

typedef struct rdx_pooled {
    rdx_cursor from;
    uint64_t lease;
    uint32_t boundary; /* the end, in pages, where a snapshot is taken there; or 0 */
    uint32_t spare;    /* out: slots that were not needed, and are free */
    uint32_t group;    /* out, RDX_EFULL: whose pool is short; groups: nobody's */
    uint32_t needed;   /* out, RDX_EFULL: slots that it has to give */
} rdx_pooled;

/* What pools of so many groups need, all zero but that number. RDX_EARG, RDX_ENOMEM. */
int rdx_pools_new(uint32_t groups, rdx_pools **out);
void rdx_pools_free(rdx_pools *pools);

/* rdx_tree_insert with slots of each group's pool, in the columns of tier 0: of full groups at all
 * new pages, of others where a hit at the end needs them. pages: the whole prompt, of which those
 * behind `from` go in; canonical: one row of them a group. What the tree took is used, the rest
 * free, when it returns. Where some group is not full, what a path ends with, unless it is empty,
 * becomes the most recently used before.
 * Where `from` may go, pin it: what is evicted is as old as can be, and may be all that is there.
 * RDX_EFULL: a pool is short, or it takes more than this: blocks of several pages, a path that ends
 * behind what tier 0 holds or, beside groups that are not full, in front of pages that are known.
 * Whatever fails: pools and tree are as before, but for what was evicted. Cost: the new pages, and
 * what went. */
int rdx_tree_insert_pooled(rdx_tree *tree, const void *pages, uint32_t count, rdx_pools *pools,
                           rdx_pooled *pooled, int32_t *canonical, rdx_insert *out);

/* ---------------------------------------------------------------- a step's requests (batch.c)
 * The loop of the single calls, in the given order and in one crossing, but all or nothing: where
 * one is refused nothing has changed, and *bad is its index (m: none of them alone is at fault, as
 * where memory is short). A lease may stand once in a call. */
/* m leases, each as rdx_lease_take, pages by rule. RDX_ESTALE: a root is gone. */
int rdx_lease_take_many(rdx_tree *tree, const rdx_cursor *at, uint32_t m, uint64_t mask,
                        uint64_t *leases, rdx_cursor *ends, uint32_t *bad);
/* Releases m leases; stamp as in rdx_lease_release, the last being the most recent. RDX_ELEASE: one
 * is not held, or stands twice. */
int rdx_lease_release_many(rdx_tree *tree, const uint64_t *leases, uint32_t m, int stamp,
                           uint32_t *bad);
/* m inserts, each as rdx_tree_insert: of the counts[i] pages at pages[i], the whole prompt, those
 * behind from[i] go in. slots, and canonical unless NULL, hold nslots: of each request in turn its
 * ncolumns rows, as long as its new pages are many. leases (NULL: none): one each, 0 for none.
 * touch: 1 makes the path to from[i], unless it is empty, the most recently used before. */
int rdx_tree_insert_many(rdx_tree *tree, const rdx_cursor *from, uint32_t m,
                         const void *const *pages, const uint32_t *counts, const uint32_t *columns,
                         uint32_t ncolumns, const int32_t *slots, uint64_t nslots,
                         int32_t *canonical, const uint64_t *leases, int touch, rdx_insert *out,
                         uint32_t *bad);

/* ---------------------------------------------------------------- columns (columns.c) */
/* Slots of pages [first, first+n) of the path to `at` in one column; RDX_NO_SLOT where none.
 * Cost: n pages and the nodes of [first, at]. */
int rdx_slots_get(const rdx_tree *tree, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                  int32_t *out);
/* The keys (16 bytes each) or the page bytes of pages [first, first+n) of the path to `at`. */
int rdx_keys_get(const rdx_tree *tree, rdx_cursor at, uint32_t first, uint32_t n, uint8_t *out);
int rdx_pages_get(const rdx_tree *tree, rdx_cursor at, uint32_t first, uint32_t n, void *out);
/* Gives pages [first, first+n) of the path to `at` slots in one column (a finished copy).
 * canonical as in insert. Nodes are stamped only if `touch`. */
int rdx_slots_attach(rdx_tree *tree, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                     const int32_t *slots, int32_t *canonical, int touch, uint32_t *attached);
/* Takes page `page` of the path to `at` out of a column (a corrupt block): its slot comes back.
 * Splits only where a second interval would be needed. RDX_NO_SLOT if it was not there. May
 * remove what no tier holds any more. A pin does not hinder it: what is pinned is the path. */
int rdx_slots_drop(rdx_tree *tree, rdx_cursor at, uint32_t column, uint32_t page, int32_t *slot);
/* Takes what is resident and not pinned in pages [first, first+n) of the path to `at` out of the
 * column of a group that is not full (a window slides): slots[i] is the slot of page first+i, or
 * RDX_NO_SLOT. May remove what no tier holds any more. RDX_EARG: the column is of a full group.
 * Cost: n pages and the nodes of [first, at]. */
int rdx_slots_drop_span(rdx_tree *tree, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                        int32_t *slots);
/* The pages >= first of the path to `at` that have an entry in the column, ascending: *n of them,
 * of which the first `max` are written. Cost: the pages found and the nodes of [first, at]. */
int rdx_entries_get(const rdx_tree *tree, rdx_cursor at, uint32_t column, uint32_t first,
                    uint32_t *pages, uint32_t max, uint32_t *n);

/* ---------------------------------------------------------------- order (order.c) */
/* What goes first in the columns of full groups. Every policy takes leaves only, and what no hit
 * can need any more before all others; the columns of other groups always go by last use. A node
 * counts one use for each request (lease, touch, insert) that came after its last use. */
#define RDX_POLICY_LRU 0  /* what was used longest ago, exact for each page */
#define RDX_POLICY_FIFO 1 /* what came first */
#define RDX_POLICY_LFU 2  /* the fewest uses on top of the key of the last victim at that time */
#define RDX_POLICY_SLRU 3 /* what was used once, then the rest; the rest is at most four fifths */
#define RDX_POLICY_HIT_DENSITY                                                                     \
    4                         /* the fewest hits to expect, learned; LRU where that does better */
#define RDX_POLICY_S3FIFO 5   /* three queues: what came, what was used twice there, what went */
#define RDX_POLICY_ARC 6      /* once or more often used, in shares that what comes back sets */
#define RDX_POLICY_GIVEN 7    /* the least key, of those that are given from outside (given.c) */
#define RDX_POLICY_PRIORITY 8 /* what requests said is over, then the least priority, then time */
#define RDX_POLICY_COST 9     /* the fewest FLOPs saved a byte, on top of the last victim's */
#define RDX_POLICY_COUNT 10
/* Sets the policy of a tree that has no pages yet, at most once. RDX_EARG: it has, or there is no
 * such policy, or it has to know pages again and they have no keys and are none. The order of last
 * use costs nothing; others take 40 bytes for each node and column (s3fifo 110, given keys 130, arc
 * and hit_density 200), and make a node of each run of pages that is inserted. */
int rdx_policy_set(rdx_tree *tree, uint32_t policy);

/* What whoever gives the keys is told of a node. */
#define RDX_TOLD_WENT 0 /* blocks of it were evicted */
#define RDX_TOLD_CAME 1 /* it has its first blocks, and no key yet (0) */
#define RDX_TOLD_USED 2
typedef struct rdx_told {
    uint64_t came;   /* the clock when it came */
    uint64_t last;   /* and at its last use; at most the clock now */
    uint64_t before; /* the last use that was told before this one; when it came, where none was */
    double key;      /* as it was given last */
    uint32_t node;   /* its index: of one node as long as it lives, then of another */
    uint32_t uses;   /* since it came */
    uint32_t again;  /* of these, not told before */
    uint32_t blocks; /* that it has; that went */
    uint32_t depth;  /* blocks before it on its path */
    uint32_t kind;   /* RDX_TOLD_* */
    uint32_t tenant; /* whose it is; 0 where they are not told apart */
    uint32_t zero;
} rdx_told;
/* Under RDX_POLICY_GIVEN: how much there is to be told of a column, and that: what went, what came,
 * what was used, each node of these once; and the clock. RDX_EARG: max is less. Cost: what is told.
 */
uint32_t rdx_policy_waiting(const rdx_tree *tree, uint32_t column);
int rdx_policy_ask(const rdx_tree *tree, uint32_t column, rdx_told *out, uint32_t max, uint32_t *n,
                   uint64_t *now);
/* Gives nodes keys; what was told is not told again. RDX_EARG, and nothing has changed: one of the
 * nodes is gone, a key is no number, or the policy is another. Cost: O(log nodes) each. */
int rdx_policy_answer(rdx_tree *tree, uint32_t column, const uint32_t *nodes, const double *keys,
                      uint32_t n);
/* Nobody will answer any more: the order of last use decides from now on. */
void rdx_policy_yield(rdx_tree *tree);

/* What the entries of a column save, for RDX_POLICY_COST: computing a token costs `linear` FLOPs
 * and `quadratic` more for each token before it, an entry has so many bytes. Columns with one
 * `pool` make room for each other. RDX_EARG: the tree has pages, another policy, or no such column;
 * or a number is not above 0 (quadratic: below 0). */
int rdx_policy_price(rdx_tree *tree, uint32_t column, double linear, double quadratic, double bytes,
                     uint32_t pool);

/* What a request says, at its end, of the blocks that it used. Times are of the clock that is told
 * by rdx_policy_time. */
typedef struct rdx_hint {
    uint64_t
        returns;    /* when the next request that goes on from here is expected; 0: nobody knows */
    uint64_t until; /* until then they have this priority at least; 0: for good */
    int32_t priority; /* -100 to 100, ordinary ones have 0; RDX_KEPT: above all of these */
    uint32_t says;    /* RDX_SAYS_PRIORITY, RDX_SAYS_ENDED */
} rdx_hint;
#define RDX_KEPT 101
#define RDX_SAYS_PRIORITY 1 /* `priority` holds; else it is that of the blocks */
#define RDX_SAYS_ENDED 2    /* no request goes on from here any more */
/* The time as the caller counts it, below 2^54 and never backwards. Cost: what falls due. */
void rdx_policy_time(rdx_tree *tree, uint64_t now);
/* Notes what a request says of the path to `at`: RDX_POLICY_PRIORITY goes by all of it,
 * RDX_POLICY_HIT_DENSITY and the order of last use by its end, the others by nothing. Of a path
 * that has become shorter it holds of what is left. RDX_EARG: a priority or time outside its range.
 * Cost: the nodes of the path. */
int rdx_policy_hint(rdx_tree *tree, rdx_cursor at, const rdx_hint *hint);
/* The same for the keys of a flat store; nodes that are gone are passed over. */
int rdx_flat_hint(rdx_tree *tree, const rdx_handle *nodes, uint32_t n, const rdx_hint *hint);

/* Evicts up to n blocks of a column, least recently used first, whose stamp is at most `upto`. A
 * full group goes page by page from the end of a leaf, children before parents; another one page by
 * page from the front of any node, as far as no lease pins the page. What no length of a hit can
 * need any more goes before all others, as if its stamp were 0. slots: room for n. ids (may be
 * NULL): room for n keys of 16 bytes (page_bytes each where keys are not kept). *freed tells how
 * many. Cost: the blocks freed. */
int rdx_evict(rdx_tree *tree, uint32_t column, uint32_t n, uint64_t upto, int32_t *slots,
              uint8_t *ids, uint32_t *freed);
/* ---------------------------------------------------------------- tenants (tenants.c)
 * Each root is of one tenant, a number from 0 on. Where room is needed in a column, what goes next
 * is the head of the order of the tenant that stands furthest above its share: that has most bytes
 * in the pool for its weight, what is reserved for it included. What is dead goes before that, of
 * whichever tenant. A policy orders the blocks of each as if they were alone in the tree. */
#define RDX_ANYBODY 0xffffffff
#define RDX_OWN 1  /* only the tenant's own blocks */
#define RDX_ONCE 2 /* of one node at most */
/* Makes a tree without pages tell tenants apart; all its roots are of tenant 0 until they are
 * assigned. sizes[c]: bytes of a block of column c, below 2^40; pools[c]: the least column that
 * shares its bytes with c (c: none does). RDX_EARG: it has pages, or does so already. */
int rdx_tenants_enable(rdx_tree *tree, const uint64_t *sizes, const uint32_t *pools);
/* The terms of a tenant, from now on; the next number (as many as there are) makes a new one.
 * floors[p]: bytes of pool p (the number of its least column) that it keeps whoever else needs
 * room. Cost: O(log tenants) for each column. */
int rdx_tenant_set(rdx_tree *tree, uint32_t tenant, uint64_t weight, const uint64_t *floors);
/* What a policy learned of a tenant is forgotten: its number is somebody else's from now on.
 * RDX_EPINNED: it has blocks. */
int rdx_tenant_renew(rdx_tree *tree, uint32_t tenant);
/* Whose a root is. RDX_EPINNED: it has pages. */
int rdx_root_assign(rdx_tree *tree, rdx_handle root, uint32_t tenant);
/* Slots of a column that are taken for a tenant, or given back, and hold no block of the tree. */
int rdx_tenant_reserve(rdx_tree *tree, uint32_t tenant, uint32_t column, int64_t more);
typedef struct rdx_tenant_stats {
    uint64_t resident;
    uint64_t protected_blocks;
    uint64_t reserved;
    uint64_t evicted;    /* blocks, ever */
    uint64_t pool_bytes; /* of all columns of the pool, what is reserved included */
} rdx_tenant_stats;
int rdx_tenant_get_stats(const rdx_tree *tree, uint32_t tenant, uint32_t column,
                         rdx_tenant_stats *out);
/* Blocks of a column that no lease pins and that the floors of others keep from a tenant. Cost: the
 * tenants, some nanoseconds each. */
int rdx_tenant_withheld(const rdx_tree *tree, uint32_t tenant, uint32_t column, uint64_t *blocks);
typedef struct rdx_tenant_head {
    rdx_handle node; /* 0: nothing can go */
    rdx_handle root;
    uint64_t stamp; /* as rdx_evict_peek */
    uint64_t pool_bytes;
    uint64_t weight;
    uint32_t tenant;
    uint32_t above; /* 1: it has a block more than its floor */
} rdx_tenant_head;
/* What goes next of a column where room is made for a tenant (RDX_ANYBODY: for nobody in
 * particular, whom no floor hinders), or with RDX_OWN of its own blocks. */
int rdx_tenant_peek(rdx_tree *tree, uint32_t column, uint32_t tenant, uint32_t how,
                    rdx_tenant_head *out);
/* As rdx_evict for a tenant, one block after the other; roots as in rdx_flat_evict, or NULL. */
int rdx_tenant_evict(rdx_tree *tree, uint32_t column, uint32_t tenant, uint32_t how, uint32_t n,
                     uint64_t upto, int32_t *slots, uint8_t *ids, rdx_handle *roots,
                     uint32_t *freed);

/* Gives up what lies behind page `first` of the path to `at` in one column, from the end upwards,
 * as far as no pin and no child with data stands on it. slots, ids: room for the pages; *freed
 * tells how many went. Cost: the blocks freed. */
int rdx_forget(rdx_tree *tree, rdx_cursor at, uint32_t first, uint32_t column, int32_t *slots,
               uint8_t *ids, uint32_t *freed);
/* The stamp of the next victim (0: no hit can need it; UINT64_MAX: nothing can go). */
uint64_t rdx_evict_peek(rdx_tree *tree, uint32_t column);
/* Makes the path to `at` the most recently used, in every column. Splits where it ends inside an
 * edge, so that nothing behind it looks younger than it is. */
int rdx_touch(rdx_tree *tree, rdx_cursor at);

typedef struct rdx_column_stats {
    uint64_t resident;         /* blocks in the column */
    uint64_t protected_blocks; /* full: on nodes that are protected; else: on pinned pages */
    uint64_t listed;           /* nodes in the lists */
} rdx_column_stats;
void rdx_column_get_stats(const rdx_tree *tree, uint32_t column, rdx_column_stats *out);

/* Rebuilds paths from unordered records (a reopened disk): n records with keys, parents (16 bytes
 * each), pages (page_bytes each) and slots; ids ascend with age of insertion. A record whose
 * parent is neither `root_key` nor another record, whose key is not the key of its page under its
 * parent, or in whose place another block stands, is not linked: linked[i] = 0. Records of a full
 * group whose blocks are pages build the paths. So do those of one with longer blocks if
 * each_page is 1: then each page has a record, a block from its first page to its last, all but the
 * last with RDX_NO_SLOT (RDX_EARG for any other group but these two). Otherwise its records, as
 * those of any other group, are linked to the pages that stand in the tree already, by their own
 * key (RDX_EARG where keys are not kept). The one call that may stop half-way: after RDX_ENOMEM the
 * tree is sound, but holds only a part. Cost: n, and for other groups the pages of the root. */
int rdx_tree_restore(rdx_tree *tree, rdx_handle root, uint32_t column, uint32_t n,
                     const uint8_t *keys, const uint8_t *parents, const void *pages,
                     const int32_t *slots, int each_page, uint8_t *linked, uint32_t *nlinked);

/* ---------------------------------------------------------------- sets of keys (flat.c)
 * The flat store: each key is a child of a root in a tree of opaque keys (one page each). All
 * calls take n keys of page_bytes at `keys`; handles 0 where a key is not there.
 * Cost: n, one crossing. */
int rdx_flat_find(const rdx_tree *tree, rdx_handle root, const void *keys, uint32_t n,
                  rdx_handle *out);
/* Slots of the found nodes in a column (RDX_NO_SLOT where none). */
int rdx_flat_slots(const rdx_tree *tree, const rdx_handle *nodes, uint32_t n, uint32_t column,
                   int32_t *out);
/* How far a run reaches in the columns group * tiers + tier: reached[0] pages of it, from the first
 * on without a gap, have a slot in each of `groups` (a mask) in some tier of `readable` (a mask);
 * reached[1] of them have all in the uppermost tier. The keys of `pages` pages of page_bytes chain
 * from `parent` (16 bytes, the tree's pages too); with `parent` NULL the pages are keys. Cost: the
 * pages up to the gap, one crossing. */
int rdx_flat_reach(const rdx_tree *tree, rdx_handle root, const uint8_t *parent,
                   uint32_t page_bytes, uint64_t groups, uint64_t readable, const void *run,
                   uint32_t pages, uint32_t *reached);
/* The LOOKUP frames of the service (docs/protocol.md) that begin at `frames`, `most` at most:
 * answers of 64 bytes each, as rdx_flat_reach finds them; `parent` and `page_tokens` as the store
 * was opened, page_tokens 0 for keys. Ends before the first that is not whole, or is not exactly a
 * good LOOKUP of this store. totals: bytes taken, frames answered, pages (keys) asked and hit. */
int rdx_flat_lookups(const rdx_tree *tree, rdx_handle root, const uint8_t *parent,
                     uint32_t page_tokens, uint64_t groups, uint64_t readable, uint32_t store,
                     const uint8_t *frames, uint64_t bytes, uint32_t most, uint8_t *answers,
                     uint64_t *totals);
/* A lease for each node; all or nothing (RDX_ESTALE if one is gone). */
int rdx_flat_lease(rdx_tree *tree, const rdx_handle *nodes, uint32_t n, uint64_t *leases);
/* Releases n leases, in the given order; stamp as in rdx_lease_release, the last being the most
 * recent. All or nothing: RDX_ELEASE if one is not held or stands twice. */
int rdx_flat_release(rdx_tree *tree, const uint64_t *leases, uint32_t n, int stamp);
/* Inserts keys with a slot each in one column; canonical as in insert. */
int rdx_flat_insert(rdx_tree *tree, rdx_handle root, const void *keys, uint32_t n, uint32_t column,
                    const int32_t *slots, int32_t *canonical);
/* Gives nodes that are there a slot each in one column (a finished copy) and stamps nothing;
 * canonical as in insert. RDX_ESTALE if one is gone: nothing changed. */
int rdx_flat_attach(rdx_tree *tree, const rdx_handle *nodes, uint32_t n, uint32_t column,
                    const int32_t *slots, int32_t *canonical);
/* Stamps the nodes that are there, in the given order. */
int rdx_flat_touch(rdx_tree *tree, const rdx_handle *nodes, uint32_t n);
/* Takes the block of each node out of a column; slots receives them (RDX_NO_SLOT if not there). */
int rdx_flat_drop(rdx_tree *tree, const rdx_handle *nodes, uint32_t n, uint32_t column,
                  int32_t *slots);
/* As rdx_evict in a tree of flat stores; roots[i] tells the namespace of block i. Room for n. */
int rdx_flat_evict(rdx_tree *tree, uint32_t column, uint32_t n, int32_t *slots, uint8_t *ids,
                   rdx_handle *roots, uint32_t *freed);

/* ---------------------------------------------------------------- iteration and checks */
typedef struct rdx_node_view {
    rdx_handle node;
    rdx_handle parent;
    uint32_t start;   /* pages before this edge */
    uint32_t pages;   /* pages of this edge */
    uint32_t protect; /* own pins + protected children */
    uint32_t children;
} rdx_node_view;
/* Nodes in depth-first order, the root first; returns how many were written (at most max). */
int rdx_tree_nodes(const rdx_tree *tree, rdx_handle root, rdx_node_view *out, uint32_t max,
                   uint32_t *n);
/* The children of a node that stand behind its child `after` (0: from the first on), at most max of
 * them; each one's own children are counted up to RDX_MANY_CHILDREN. RDX_ESTALE where either is
 * gone, or `after` is no child of it. Cost: what is written. */
#define RDX_MANY_CHILDREN 1000
int rdx_node_children(const rdx_tree *tree, rdx_handle parent, rdx_handle after, rdx_node_view *out,
                      uint32_t max, uint32_t *n);
int rdx_node_interval(const rdx_tree *tree, rdx_handle node, uint32_t column, uint32_t *lo,
                      uint32_t *hi);
/* Handles in list order of a column, the next victim first: the dead, then the others. */
int rdx_order_nodes(const rdx_tree *tree, uint32_t column, rdx_handle *out, uint32_t max,
                    uint32_t *n);
/* Walks every invariant. On RDX_EINVARIANT `what` holds its number and what was found. device: 1
 * where tier 0 may have no holes (I21). Cost: the whole tree. */
int rdx_check(const rdx_tree *tree, int device, char *what, uint32_t what_bytes);
/* For tests: which compare path runs: 0 scalar, 1 AVX2, 2 NEON; set picks one (RDX_EARG if absent).
 */
int rdx_dispatch_get(void);
int rdx_dispatch_set(int path);
/* For tests: the k-th allocation from now fails (1-based), 0 = off; returns allocations so far. */
uint64_t rdx_alloc_fail_at(uint64_t k);
#endif
