/* tree.h: what the files of the tree share. Not public. */
#ifndef RDX_TREE_H
#define RDX_TREE_H
#include "alloc.h"
#include "arena.h"
#include "dispatch.h"
#include "rdx.h"
#include <stdbool.h>
#include <string.h>

#define NIL UINT32_MAX
#define NODE_LIVE 1u
#define NODE_ROOT 2u
#define NODE_TRIMMED                                                                               \
    4u /* lost pages at its end: never grows in place again, so that a cursor                      \
          into what it lost can't come to point at other tokens */

/* One allocation; behind the header stand, each `cap` long, the stripes: pages, columns, keys. */
typedef struct buffer {
    uint32_t cap;
    uint32_t used; /* pages written, live or not */
    uint32_t live; /* pages that a node names */
    uint32_t refs; /* nodes */
} buffer;

typedef struct node { /* 64 bytes */
    uint32_t gen;
    uint32_t flags;
    uint32_t parent;
    uint32_t first_child;
    uint32_t next_sibling;
    uint32_t prev_sibling;
    uint32_t off;     /* in the buffer, pages */
    uint32_t len;     /* pages of this edge */
    uint32_t start;   /* pages before this edge */
    uint32_t protect; /* own pins + protected children */
    uint32_t root;
    uint32_t hash;     /* of (parent, first page), as in the child table; of a root: its tenant */
    uint32_t buf_next; /* nodes of one buffer, a ring */
    uint32_t buf_prev;
    buffer *buf;
} node;
_Static_assert(sizeof(node) == 64, "a node is one cache line");

typedef struct entry { /* of the child table */
    uint32_t hash;
    uint32_t node;
} entry;

/* What a second module needs to know of changes of structure. Called in the owner's thread; only
 * `reserve` can fail, and it is called before anything changes. */
#define SHIELD_ON 1        /* a node is protected from now on */
#define SHIELD_OFF_END 0   /* a pin went, and this node, its end, is not protected any more */
#define SHIELD_OFF_ABOVE 2 /* the same for a node above that end; told from the bottom upwards */
typedef struct rdx_observer {
    void *self;
    int (*reserve)(void *self, uint32_t nodes); /* room for node indices < nodes */
    void (*split)(void *self, uint32_t upper, uint32_t lower, uint32_t at);
    void (*resize)(void *self, uint32_t node); /* its edge became longer or shorter */
    void (*remove)(void *self, uint32_t node);
    void (*protect)(void *self, uint32_t node, int shield);
    uint32_t (*held)(void *self, uint32_t node); /* pages of the edge that something still needs */
} rdx_observer;

typedef struct lease_slot {
    uint32_t gen;
    uint32_t node; /* NIL: free */
    uint32_t next_free;
    uint32_t first; /* page pins begin here, or RDX_BY_RULE */
    uint64_t mask;  /* groups with page pins */
    uint64_t taken; /* the clock when it was */
} lease_slot;

/* State of one node in one column. Where a block has several pages, hi lies right behind the end
 * of one, lo before the beginning of one or, where it begins further up, at 0; of the pages
 * between, those that end no block have RDX_NO_SLOT. */
typedef struct cell {
    uint32_t lo;
    uint32_t hi;
    uint32_t prev; /* in its list; of one that stands in none: where it stood, a hint */
    uint32_t next;
    uint32_t kids;   /* children that bear data in this column (rdx_bears) */
    uint32_t listed; /* 0, LISTED_LIVE or LISTED_DEAD */
    uint64_t stamp;
} cell;
#define LISTED_LIVE 1
#define LISTED_DEAD 2

typedef struct order_list {
    uint32_t head;
    uint32_t tail;
    uint64_t resident;
    uint64_t shielded; /* resident blocks on protected nodes; not full: on pinned pages */
    uint64_t listed;
    uint64_t below; /* the newest stamp below, while a release walks upwards */
} order_list;

struct rdx_tree {
    uint32_t page_bytes;
    uint32_t key_bytes;
    uint32_t groups;
    uint32_t tiers;
    uint32_t columns;
    uint32_t check_ids;
    uint32_t page_tokens;
    uint64_t seed;
    /* groups */
    rdx_group rules[RDX_MAX_COLUMNS];
    uint8_t group_of[RDX_MAX_COLUMNS]; /* of a column */
    uint32_t pin_row[RDX_MAX_COLUMNS]; /* of a group: its row of page pins behind the columns */
    uint8_t fulls[RDX_MAX_COLUMNS];    /* full groups that limit a hit */
    uint8_t asked[RDX_MAX_COLUMNS];    /* groups of which every hit needs a snapshot, or a window */
    uint32_t nfulls;
    uint32_t nasked;
    uint32_t rows;   /* columns and page pins */
    uint64_t sparse; /* columns of groups that are not full */
    uint64_t placed; /* columns where blocks are longer than a page, or do not stand everywhere */
    bool plain;      /* every group is full, a page a block, and limits a hit */
    bool mixed; /* some group is neither full nor scratch: pages are pinned, data can be dead */
    /* nodes */
    node *nodes;
    uint32_t node_cap;
    uint32_t node_used; /* high-water mark */
    uint32_t node_free; /* chain through `parent` */
    uint64_t live_nodes;
    uint64_t live_pages;
    uint64_t roots;
    uint64_t buffers;
    uint64_t buffer_bytes;
    void *spare; /* what a batch took for the buffer of its next insert, so that it can't fail */
    size_t spare_bytes;
    uint64_t splits;
    uint64_t compactions;
    uint64_t removed;
    /* child table, open addressing, power of two */
    entry *table;
    uint32_t table_cap;
    uint32_t table_used;
    /* leases */
    lease_slot *leases;
    uint32_t lease_cap;
    uint32_t lease_used;
    uint32_t lease_free;
    uint64_t live_leases;
    /* keys of the roots; a root's `off` is its place here */
    struct root_key {
        uint32_t node;
        uint8_t key[16];
    } *root_keys;
    uint32_t root_key_cap;
    uint32_t root_key_used;
    rdx_observer observer;
    /* columns and order */
    cell *cells; /* [node * columns + column] */
    uint32_t cell_nodes;
    /* [column] what a hit may need, [columns + column] what is dead; so many for each tenant, of
     * which the first hold the sums of all */
    order_list *lists;
    struct tenants *tenants; /* NULL: all roots are of one */
    uint64_t clock;
    struct policy_state *policy; /* NULL: the order of last use alone */
    bool uncounted;              /* what comes and is stamped now is no use */
    bool untrimmed;              /* bare ends stay: what stands behind them is yet to come */
    rdx_arena arena;             /* of the buffers; last: it is large, and no match reads it */
};

/* ---- structure (tree.c) */
static inline node *node_at(const rdx_tree *t, uint32_t i) { return &t->nodes[i]; }
static inline rdx_handle handle_of(const rdx_tree *t, uint32_t i) {
    return (uint64_t)t->nodes[i].gen << 32 | i;
}
/* The index of a live node, or NIL. */
static inline uint32_t node_of(const rdx_tree *t, rdx_handle h) {
    uint32_t i = (uint32_t)h;
    if (i >= t->node_used || t->nodes[i].gen != (uint32_t)(h >> 32)) {
        return NIL;
    }
    return t->nodes[i].flags & NODE_LIVE ? i : NIL;
}
/* Pages from the root to the end of node i. */
static inline uint32_t rdx_end_of(const rdx_tree *t, uint32_t i) {
    return t->nodes[i].start + t->nodes[i].len;
}
static inline rdx_cursor cursor_at(const rdx_tree *t, uint32_t i, uint32_t pages) {
    return (rdx_cursor){handle_of(t, i), handle_of(t, t->nodes[i].root), pages};
}
static inline uint8_t *buffer_base(const buffer *b) { return (uint8_t *)(b + 1); }
/* The pages come first, so that a match finds them by the node alone. */
static inline uint8_t *pages_at(const rdx_tree *t, const node *x) {
    return buffer_base(x->buf) + (size_t)x->off * t->page_bytes;
}
static inline size_t rdx_pages_bytes(const rdx_tree *t, uint32_t cap) {
    return ((size_t)cap * t->page_bytes + 3) & ~(size_t)3; /* the slots behind them are aligned */
}
static inline int32_t *slots_at(const rdx_tree *t, const node *x, uint32_t column) {
    uint8_t *base = buffer_base(x->buf) + rdx_pages_bytes(t, x->buf->cap);
    return (int32_t *)(void *)base + (size_t)x->buf->cap * column + x->off;
}
static inline uint32_t *pins_at(const rdx_tree *t, const node *x, uint32_t group) {
    return (uint32_t *)(void *)slots_at(t, x, t->pin_row[group]);
}
static inline uint8_t *keys_at(const rdx_tree *t, const node *x) {
    size_t before = rdx_pages_bytes(t, x->buf->cap) + 4 * (size_t)t->rows * x->buf->cap;
    return buffer_base(x->buf) + before + (size_t)x->off * t->key_bytes;
}
static inline size_t rdx_buffer_bytes(const rdx_tree *t, uint32_t cap) {
    return sizeof(buffer) + rdx_pages_bytes(t, cap) +
           (size_t)cap * (4 * (size_t)t->rows + t->key_bytes);
}

/* ---- groups (rules.c) */
static inline bool is_sparse(const rdx_tree *t, uint32_t column) { return t->sparse >> column & 1; }
static inline const rdx_group *rule_of(const rdx_tree *t, uint32_t column) {
    return &t->rules[t->group_of[column]];
}
static inline uint32_t rdx_round_down(uint32_t pages, uint32_t b) {
    return b == 1 ? pages : pages / b * b;
}
/* Pages of an interval that go with one entry. */
static inline uint32_t rdx_width(const rdx_group *g) {
    return g->rule == RDX_RULE_STATE ? 1 : g->block_pages;
}
/* Entries of [lo, hi) of node x, which lie within its interval. */
static inline uint32_t rdx_entries(const node *x, const rdx_group *g, uint32_t lo, uint32_t hi) {
    uint32_t b = rdx_width(g);
    return lo >= hi ? 0 : b == 1 ? hi - lo : (x->start + hi) / b - (x->start + lo) / b;
}
/* Where the block that ends with page `at` of node x begins in it. */
static inline uint32_t rdx_block_begin(const rdx_group *g, uint32_t at) {
    uint32_t b = rdx_width(g);
    return at + 1 > b ? at + 1 - b : 0;
}
/* The first page >= p where an entry may stand; they stand block_pages apart. */
static inline uint32_t rdx_entry_from(const rdx_group *g, uint32_t p) {
    if (p < g->lookahead_pages) {
        return g->lookahead_pages;
    }
    return g->block_pages == 1 ? p : (p + g->block_pages) / g->block_pages * g->block_pages - 1;
}
/* The first page whose block a hit of k pages needs, rounded down to a whole block; k: none. */
uint32_t rdx_first_page(const rdx_tree *t, const rdx_group *g, uint32_t k);
/* The same where the entries stand in the tree, for what lies on a path of `end` pages. */
uint32_t rdx_first_entry(const rdx_tree *t, const rdx_group *g, uint32_t end);
int rdx_rules_new(rdx_tree *t, const rdx_group *groups);

/* What will be compared next, to be fetched meanwhile; a hint, never read for its value. */
typedef struct rdx_ahead {
    const uint8_t *a;
    const uint8_t *b;
    uint64_t bytes;
} rdx_ahead;
/* Asks for the first `lines` of each memory page of [run, run+bytes), at most `pages` of them, into
 * the second cache: the hardware fetches ahead within a page, never into the next one. */
static inline void rdx_ask_pages(const void *run, size_t bytes, uint32_t pages, uint32_t lines) {
    size_t end = bytes < (size_t)pages * 4096 ? bytes : (size_t)pages * 4096;
    for (size_t line = 0; line < (size_t)lines * 64; line += 64) {
        for (size_t at = line; at < end; at += 4096) {
            __builtin_prefetch((const uint8_t *)run + at, 0, 2);
        }
    }
}
/* Bytes that a and b have in common from the start, at most n (compare.c); `next` may be NULL. */
uint64_t rdx_shared_bytes(const void *a, const void *b, uint64_t n, const rdx_ahead *next);
uint32_t rdx_page_hash(const rdx_tree *t, uint32_t parent, const void *page);
/* Whether any of n int32, at any address, is below 0 (compare.c). */
bool rdx_has_negative(const void *words, uint64_t n);
/* Pages that a and b have in common from the start, at most n. */
uint32_t rdx_shared_pages(const void *a, const void *b, uint32_t n, uint32_t page_bytes,
                          const rdx_ahead *next);
/* The child of `parent` that begins with the page, if the hash tells the truth: nothing is
 * compared. NIL: there is none for sure. */
uint32_t rdx_child_likely(const rdx_tree *t, uint32_t parent, const void *page);
/* The child of `parent` that begins with the page; *shared pages of its edge match (>= 1). */
uint32_t rdx_child_step(const rdx_tree *t, uint32_t parent, const void *pages, uint32_t n,
                        uint32_t *shared);
void rdx_resolve(const rdx_tree *t, rdx_cursor c, uint32_t *node, uint32_t *pages);
/* Room for `more` nodes (and their cells and table entries), so that what follows can't fail. */
int rdx_make_room(rdx_tree *t, uint32_t more);
/* Whether there is room for as many without an allocation. */
bool rdx_has_room(const rdx_tree *t, uint64_t more);
/* Splits at 0 < at < len; needs room for one node. Returns the upper node. */
uint32_t rdx_split(rdx_tree *t, uint32_t lower, uint32_t at);
void rdx_pin(rdx_tree *t, uint32_t i);
/* The nodes that are unprotected by it are told to the observer from the bottom upwards. */
void rdx_unpin(rdx_tree *t, uint32_t i);
/* Cuts or removes what no column holds and no child or lease needs, from i upwards. */
void rdx_trim(rdx_tree *t, uint32_t i);
/* Memory for one buffer, from the arena of the tree; from the heap, each by itself, where a checker
 * of memory is to see who reads or writes beside one. */
#if defined(__SANITIZE_ADDRESS__) || defined(RDX_DEBUG)
#define RDX_LOOSE_BUFFERS 1
#endif
#ifdef RDX_LOOSE_BUFFERS
static inline void *rdx_room_take(rdx_tree *t, size_t bytes) { return rdx_malloc(bytes); }
static inline void rdx_room_give(rdx_tree *t, void *room) { rdx_free_mem(room); }
static inline uint64_t rdx_room_bytes(const rdx_tree *t) { return t->buffer_bytes; }
#else
static inline void *rdx_room_take(rdx_tree *t, size_t bytes) {
    return rdx_arena_take(&t->arena, bytes);
}
static inline void rdx_room_give(rdx_tree *t, void *room) { rdx_arena_give(&t->arena, room); }
static inline uint64_t rdx_room_bytes(const rdx_tree *t) { return t->arena.bytes; }
#endif
buffer *rdx_buffer_new(rdx_tree *t, uint32_t cap);
/* Copies n pages of every stripe. */
void rdx_buffer_copy(const rdx_tree *t, buffer *to, uint32_t to_off, const buffer *from,
                     uint32_t from_off, uint32_t n);
void rdx_buffer_leave(rdx_tree *t, uint32_t i);
void rdx_buffer_free(rdx_tree *t, buffer *b);
/* Puts node i into the ring of nodes that share a buffer with `mate` (NIL: alone). */
void rdx_ring_add(rdx_tree *t, uint32_t i, uint32_t mate);
uint32_t rdx_node_new(rdx_tree *t);
/* A new child of `parent` with n pages in the empty buffer b. Needs room for a node. */
uint32_t rdx_child_append(rdx_tree *t, uint32_t parent, const uint8_t *run, uint32_t n, buffer *b);
void rdx_child_link(rdx_tree *t, uint32_t parent, uint32_t i);
void rdx_table_add(rdx_tree *t, uint32_t i);
/* Room for `more` leases, so that rdx_lease_put can't fail. */
int rdx_lease_room(rdx_tree *t, uint32_t more);
/* A new lease on the path that ends with node i. */
uint64_t rdx_lease_put(rdx_tree *t, uint32_t i, uint64_t mask, uint32_t first);
lease_slot *rdx_lease_of(const rdx_tree *t, uint64_t lease);
/* Moves what the lease pins, pages by rule; the new end first. */
void rdx_lease_to(rdx_tree *t, lease_slot *l, uint32_t to);
/* The same without the pages. */
void rdx_lease_path_to(rdx_tree *t, lease_slot *l, uint32_t to);
/* Makes `pages` the end of a node: splits where it lies inside an edge. Needs room for a node. */
uint32_t rdx_end_node(rdx_tree *t, uint32_t i, uint32_t pages);
const uint8_t *rdx_root_key(const rdx_tree *t, uint32_t root);

/* ---- insert.c */
/* Why an insert would be refused, memory apart; the node that it goes on from. */
int rdx_insert_check(const rdx_tree *t, rdx_cursor from, const void *run, uint32_t n,
                     const uint32_t *columns, uint32_t ncolumns, uint64_t lease, uint32_t *node);

/* ---- joint.c */
/* The joint hit on the path that ends `pages` pages from the root, in node i. */
uint32_t rdx_joint_hit(const rdx_tree *t, uint32_t i, uint32_t pages, uint32_t limit,
                       uint32_t readable, uint32_t *stop);

/* ---- columns.c */
int rdx_columns_new(rdx_tree *t);
void rdx_columns_free(rdx_tree *t);
static inline cell *cell_at(const rdx_tree *t, uint32_t i, uint32_t column) {
    return &t->cells[(size_t)i * t->columns + column];
}
/* Pages [first, first+n) of the path that ends in node `end`; returns pages attached. The caller
 * lists leaves and reviews the path. */
uint32_t rdx_attach_path(rdx_tree *t, uint32_t end, uint32_t column, uint32_t first, uint32_t n,
                         const int32_t *slots, int32_t *canonical, uint32_t *duplicates);
/* Takes one page of node i out of a column; splits where a second interval would be needed (room
 * for one node). Does not trim. */
int32_t rdx_drop_page(rdx_tree *t, uint32_t i, uint32_t column, uint32_t page);
/* The slots of pages [first, first+n) of the path that ends in node i. */
void rdx_read_slots(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                    int32_t *out);
/* Whether no block can end in node x: what lies below stands on what lies above. */
static inline bool rdx_passes(const node *x, const rdx_group *g) {
    uint32_t b = rdx_width(g);
    return b > 1 && (x->start + x->len) / b == x->start / b;
}
/* Whether node i has data in the column, or passes on what stands below. */
static inline bool rdx_bears(const rdx_tree *t, uint32_t i, uint32_t column) {
    const cell *k = cell_at(t, i, column);
    return k->hi != k->lo || (k->kids && rdx_passes(node_at(t, i), rule_of(t, column)));
}
/* Node i has got, or lost, a child that bears data. */
void rdx_kids_add(rdx_tree *t, uint32_t i, uint32_t column, bool more);
/* The newest stamp of node i in any column: a copy is as recently used as what it is a copy of. */
uint64_t rdx_newest_stamp(const rdx_tree *t, uint32_t i);
/* Node i has no data in the column any more. */
void rdx_cell_empty(rdx_tree *t, uint32_t i, uint32_t column);

/* ---- blocks.c: columns where an entry does not stand at each page */
/* The most splits that attaching a row to pages [first, first+n) can need; its span on the path
 * that ends in node i. */
uint32_t rdx_splits_of(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                       const int32_t *slots);
/* rdx_attach_path for one node and pages [lo, hi) from the root. */
uint32_t rdx_attach_blocks(rdx_tree *t, uint32_t i, uint32_t column, uint32_t lo, uint32_t hi,
                           const int32_t *slots, uint32_t *duplicates);
/* Takes what is not pinned in pages [first, first+n) of the path that ends in node i, the last
 * first: packed, with ids unless NULL; or by page where ids is BY_PAGE. Needs room for a node.
 * Does not trim. */
#define BY_PAGE ((uint8_t *)1)
uint32_t rdx_drop_span(rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                       int32_t *slots, uint8_t *ids);

/* ---- pins.c */
/* Asks for what a lease or release that ends at node i changes soon: counts, its lists. */
void rdx_pins_ask(const rdx_tree *t, uint32_t i);
/* Pins on the pages of a lease whose path ends with node i: put on, or taken off. */
void rdx_pins_put(rdx_tree *t, const lease_slot *l, uint32_t i);
void rdx_pins_off(rdx_tree *t, const lease_slot *l, uint32_t i);
/* The first entry of a node in a column that is not full, pages of the edge. */
uint32_t rdx_first_block(const rdx_tree *t, uint32_t i, uint32_t column);

/* ---- dead.c */
/* Whether no length of a hit can need what node i has in the column, judged by the node alone. */
bool rdx_is_dead(const rdx_tree *t, uint32_t i, uint32_t column);
/* Lists node i in a column that is not full as it must be; `next` (or NIL) may follow it there. */
void rdx_settle(rdx_tree *t, uint32_t i, uint32_t column, uint32_t next);
/* Moves node i to the other list of a full column, if it stands in the wrong one. */
void rdx_relist(rdx_tree *t, uint32_t i, uint32_t column);
/* Both, in every column: something in node i has changed. */
void rdx_review(rdx_tree *t, uint32_t i);
/* The same for what lies behind page `first` of the path that ends in node i, as after attaching.
 */
void rdx_review_path(rdx_tree *t, uint32_t i, uint32_t first);

/* ---- tenants.c: whose blocks are whose. Nothing of it runs where tenants are not told apart. */
static inline uint32_t rdx_tenant_of(const rdx_tree *t, uint32_t i) {
    return t->tenants ? t->nodes[t->nodes[i].root].hash : 0;
}
/* The list of node i's tenant: `which` is column, or columns + column. */
static inline order_list *rdx_list_of(const rdx_tree *t, uint32_t i, uint32_t which) {
    return &t->lists[(size_t)rdx_tenant_of(t, i) * 2 * t->columns + which];
}
/* One node more, or less, stands in the list; told when it does. */
void rdx_tenant_listed(rdx_tree *t, uint32_t i, uint32_t column, uint32_t which, bool more);
void rdx_tenant_count(rdx_tree *t, uint32_t i, uint32_t column, int64_t held, int64_t shielded);
/* Blocks of node i's column came or went; of these so many are protected. */
static inline void rdx_count(rdx_tree *t, uint32_t i, uint32_t column, int64_t held,
                             int64_t shielded) {
    t->lists[column].resident += (uint64_t)held;
    t->lists[column].shielded += (uint64_t)shielded;
    if (t->tenants) {
        rdx_tenant_count(t, i, column, held, shielded);
    }
}
/* For whom room is made: `tenant`, of whose blocks alone if `own`; NIL: for nobody in particular,
 * and no floor hinders it. */
typedef struct claim {
    uint32_t tenant;
    bool own;
} claim;
#define FOR_ANYBODY ((claim){NIL, false})
/* The node of which blocks go next for a claim, or NIL. Where tenants are told apart only. */
uint32_t rdx_tenant_victim(rdx_tree *t, uint32_t column, claim for_whom);
/* So many blocks of that node, at most n, go before it is somebody else's turn. */
uint32_t rdx_tenant_turn(const rdx_tree *t, uint32_t i, uint32_t column, claim for_whom,
                         uint32_t n);
void rdx_tenant_evicted(rdx_tree *t, uint32_t tenant, uint32_t column, uint32_t n);
/* Its blocks; all, where tenants are not told apart. */
uint64_t rdx_tenant_blocks(const rdx_tree *t, uint32_t tenant, uint32_t column);
uint64_t rdx_tenants_listed(const rdx_tree *t, uint32_t column);
uint64_t rdx_tenants_bytes(const rdx_tree *t);
uint32_t rdx_tenants_known(const rdx_tree *t); /* 1 where they are not told apart */
void rdx_tenants_free(rdx_tree *t);
/* What is wrong with the sums and queues of a column, and of which tenant; NULL: nothing.
 * `sums`: room for two counts a tenant. */
const char *rdx_tenant_fault(const rdx_tree *t, uint32_t column, uint64_t *sums, uint32_t *whose);

/* ---- order.c */
void rdx_list_tail(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp);
void rdx_list_remove(rdx_tree *t, uint32_t i, uint32_t column);
/* Node x lost its last block in the column (its own list entry still stands): the parent takes
 * over the stamp and, where it is a leaf now, the place. */
void rdx_list_inherit(rdx_tree *t, uint32_t x, uint32_t column);
void rdx_list_after(rdx_tree *t, uint32_t i, uint32_t column, uint32_t before, uint64_t stamp);
/* Puts i where its stamp belongs; of equal ones the last or, in a column that is not full, by the
 * place on the path. Cost: the newer nodes, the older ones, or those between that place and where i
 * stood when it was last listed, whichever are fewer. */
void rdx_list_sorted(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp);
/* The same in one of the two lists, trying the place before `next` first. */
void rdx_list_before(rdx_tree *t, uint32_t i, uint32_t column, uint32_t next, uint64_t stamp,
                     uint32_t listed);
/* The node of which blocks go next, or NIL. */
uint32_t rdx_next_victim(rdx_tree *t, uint32_t column, claim for_whom);
/* Evicts for a claim; `once`: of one node, and no more than are its turn. roots (or NULL): of the
 * namespaces; then ids are wanted, too, and nodes hold one page. */
int rdx_evict_for(rdx_tree *t, uint32_t column, claim for_whom, bool once, uint32_t n,
                  uint64_t upto, int32_t *slots, uint8_t *ids, rdx_handle *roots, uint32_t *freed);
/* What goes next of a tenant's leaves that are not dead, as the order of the column has it, or NIL.
 */
uint32_t rdx_living_victim(rdx_tree *t, uint32_t column, uint32_t tenant);
/* The leaf of a tenant that was used longest ago and is not dead (where groups are not full: node),
 * or NIL. */
uint32_t rdx_oldest_leaf(rdx_tree *t, uint32_t column, uint32_t tenant);
/* Puts i at the head: it may go, and nothing is known of its age. */
void rdx_list_head(rdx_tree *t, uint32_t i, uint32_t column);
/* Lists every leaf of the column that stands unlisted on the path to i, from page `first` on. */
void rdx_list_leaves(rdx_tree *t, uint32_t i, uint32_t column, uint32_t first);
/* Stamps, in every full column, the deepest node with data at or above i; in every other one the
 * nodes that lie on the pages which a hit at the end of i needs. */
void rdx_stamp_path(rdx_tree *t, uint32_t i);
/* The same for a request that came at time `since`: a policy counts a use of each node that was not
 * used since then, every one if ALWAYS. Called after the clock has moved on. */
#define ALWAYS UINT64_MAX
void rdx_stamp_since(rdx_tree *t, uint32_t i, uint64_t since);
/* The same at a new time for the first `pages` pages of the path, exactly: what lies behind them in
 * the edge of i is split off. Without memory for the split it becomes as young as they are. */
void rdx_use_path(rdx_tree *t, uint32_t i, uint32_t pages);

/* ---- policy.c; where no policy is set, or it does not order the column, they do nothing */
bool rdx_policy_orders(const rdx_tree *t, uint32_t column);
/* How early node i goes among those of its tier: less goes before. */
uint64_t rdx_policy_rank(const rdx_tree *t, uint32_t i, uint32_t column);
int rdx_policy_reserve(rdx_tree *t, uint32_t nodes);
void rdx_policy_free(rdx_tree *t);
uint64_t rdx_policy_bytes(const rdx_tree *t);
/* Node i stands in the list of the living from now on, or does not. */
void rdx_policy_listed(rdx_tree *t, uint32_t i, uint32_t column);
void rdx_policy_unlisted(rdx_tree *t, uint32_t i, uint32_t column);
/* Node i has its first data, got or lost blocks, or has no data any more. */
void rdx_policy_came(rdx_tree *t, uint32_t i, uint32_t column);
void rdx_policy_resident(rdx_tree *t, uint32_t i, uint32_t column, int64_t more);
void rdx_policy_left(rdx_tree *t, uint32_t i, uint32_t column);
/* The upper node has data, too, and stands in no list yet. */
void rdx_policy_split(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t column);
/* The victim of a tenant that was found last, where it still may go; NIL where the list alone
 * decides. */
uint32_t rdx_policy_next(const rdx_tree *t, uint32_t column, uint32_t tenant);
/* What follows needs a policy. */
void rdx_policy_used(rdx_tree *t, uint32_t i, uint64_t since);
/* The leaf of a tenant that goes next, or NIL; until something changes the same one. */
uint32_t rdx_policy_victim(rdx_tree *t, uint32_t column, uint32_t tenant);
/* Room for so many tenants. RDX_ENOMEM: as before. */
int rdx_policy_tenants(rdx_tree *t, uint32_t tenants);
/* Nothing is known of a tenant that has no blocks; RDX_ENOMEM only where it is the first time. */
int rdx_policy_begin(rdx_tree *t, uint32_t tenant);
void rdx_policy_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n);
/* What is wrong with a column's queues, and at which node (or NIL); NULL: nothing. */
const char *rdx_policy_fault(const rdx_tree *t, uint32_t column, uint32_t *where);
#endif
