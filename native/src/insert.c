/* insert.c: where structure and columns meet: a run of pages enters the tree and gets its slots.
 * What can fail is allocated first; then nothing fails. Cost in the new work, never in the prefix.
 */
#include "tree.h"

#define MANY_SLOTS 1024 /* a page of memory */

typedef struct walk {
    uint32_t node;
    uint32_t pages;    /* absolute */
    uint32_t existing; /* pages of the run that stand in the tree */
} walk;

/* Follows the run from (node, pages) as far as the tree goes. */
static walk follow(const rdx_tree *t, uint32_t i, uint32_t pages, const uint8_t *run, uint32_t n) {
    walk w = {i, pages, 0};
    const node *x = node_at(t, i);
    uint32_t inside = x->flags & NODE_ROOT ? 0 : x->start + x->len - pages;
    if (inside && n) {
        uint32_t most = inside < n ? inside : n;
        const uint8_t *edge = pages_at(t, x) + (size_t)(pages - x->start) * t->page_bytes;
        uint32_t same = rdx_shared_pages(edge, run, most, t->page_bytes, NULL);
        w.pages += same;
        w.existing = same;
        if (same < inside) {
            return w;
        }
    }
    while (w.existing < n) {
        uint32_t shared;
        uint32_t child = rdx_child_step(t, w.node, run + (size_t)w.existing * t->page_bytes,
                                        n - w.existing, &shared);
        if (child == NIL) {
            break;
        }
        w.node = child;
        w.pages += shared;
        w.existing += shared;
        if (shared < node_at(t, child)->len) {
            break;
        }
    }
    return w;
}

/* Whether the pages can be appended to node i itself: a leaf that nobody but the inserter's own
 * lease pins, that never lost pages, and whose columns end where the new ones begin. Not where a
 * policy knows nodes by when they came, and how often they were used. */
static bool grows(const rdx_tree *t, uint32_t i, uint32_t pages, const lease_slot *lease,
                  const uint32_t *columns, uint32_t ncolumns) {
    const node *x = node_at(t, i);
    uint32_t own = lease && lease->node == i ? 1 : 0;
    if (t->policy) {
        return false;
    }
    if (x->flags & (NODE_ROOT | NODE_TRIMMED) || x->first_child != NIL || x->protect != own ||
        pages != x->start + x->len) {
        return false;
    }
    for (uint32_t c = 0; c < ncolumns; c++) {
        const cell *k = cell_at(t, i, columns[c]);
        uint32_t b = rdx_width(rule_of(t, columns[c]));
        if (!is_sparse(t, columns[c]) && k->hi != k->lo &&
            x->start + k->hi != rdx_round_down(x->start + x->len, b)) {
            return false;
        }
    }
    for (uint32_t c = 0; t->mixed && c < t->columns; c++) {
        if (rule_of(t, c)->rule == RDX_RULE_STATE && cell_at(t, i, c)->hi) {
            return false; /* a snapshot stands at the end of its node */
        }
    }
    return true;
}

/* A buffer that has room for n more pages behind node i, whose edge is its last run; *copied is
 * set to a new buffer where the old one is too small or goes on behind the edge. */
static int grow_room(rdx_tree *t, uint32_t i, uint32_t n, buffer **copied) {
    const node *x = node_at(t, i);
    *copied = NULL;
    if (x->off + x->len == x->buf->used && x->buf->cap - x->buf->used >= n) {
        return RDX_OK;
    }
    uint64_t need = (uint64_t)x->len + n;
    uint64_t cap = (uint64_t)x->len * 2;
    if (cap < need) {
        cap = need;
    }
    if (cap > NIL / 2) {
        return RDX_EARG;
    }
    *copied = rdx_buffer_new(t, (uint32_t)cap);
    return *copied ? RDX_OK : RDX_ENOMEM;
}

static void fill_pages(rdx_tree *t, const node *x, uint32_t at, const uint8_t *run, uint32_t n,
                       const uint8_t *parent_key) {
    memcpy(pages_at(t, x) + (size_t)at * t->page_bytes, run, (size_t)n * t->page_bytes);
    if (t->key_bytes) {
        rdx_keys_chain(parent_key, run, n, t->page_bytes, keys_at(t, x) + (size_t)at * 16);
    }
    for (uint32_t row = t->columns; row < t->rows; row++) {
        memset(slots_at(t, x, row) + at, 0, (size_t)n * 4); /* page pins */
    }
}

static const uint8_t *end_key(const rdx_tree *t, uint32_t i) {
    const node *x = node_at(t, i);
    if (x->flags & NODE_ROOT) {
        return rdx_root_key(t, i);
    }
    return keys_at(t, x) + (size_t)(x->len - 1) * 16;
}

static void append_in_place(rdx_tree *t, uint32_t i, const uint8_t *run, uint32_t n,
                            buffer *copied) {
    node *x = node_at(t, i);
    if (copied) {
        rdx_buffer_copy(t, copied, 0, x->buf, x->off, x->len);
        copied->used = copied->live = x->len;
        copied->refs = 1;
        rdx_buffer_leave(t, i);
        x->buf = copied;
        x->off = 0;
        rdx_ring_add(t, i, NIL);
    }
    uint8_t parent_key[16] = {0};
    if (t->key_bytes) {
        memcpy(parent_key, end_key(t, i), 16);
    }
    uint32_t at = x->len;
    x->len += n;
    x->buf->used += n;
    x->buf->live += n;
    fill_pages(t, x, at, run, n, parent_key);
    t->live_pages += n;
    if (t->observer.resize) {
        t->observer.resize(t->observer.self, i);
    }
}

uint32_t rdx_child_append(rdx_tree *t, uint32_t parent, const uint8_t *run, uint32_t n, buffer *b) {
    uint32_t i = rdx_node_new(t);
    node *x = node_at(t, i);
    const node *p = node_at(t, parent);
    x->root = p->root;
    x->start = p->start + p->len;
    x->len = n;
    x->buf = b;
    b->used = b->live = n;
    b->refs = 1;
    rdx_ring_add(t, i, NIL);
    rdx_child_link(t, parent, i);
    fill_pages(t, x, 0, run, n, t->key_bytes ? end_key(t, parent) : NULL);
    rdx_table_add(t, i);
    t->live_pages += n;
    return i;
}

/* What an insert was given, checked and located. */
typedef struct plan {
    lease_slot *lease;
    walk w;
    uint32_t depth;
    uint32_t fresh;
    bool in_place;
    buffer *room; /* for the fresh pages, unless they fit behind the leaf */
} plan;

int rdx_insert_check(const rdx_tree *t, rdx_cursor from, const void *run, uint32_t n,
                     const uint32_t *columns, uint32_t ncolumns, uint64_t lease, uint32_t *node) {
    const lease_slot *held = lease ? rdx_lease_of(t, lease) : NULL;
    if (lease && !held) {
        return RDX_ELEASE;
    }
    for (uint32_t c = 0; c < ncolumns; c++) {
        if (columns[c] >= t->columns) {
            return RDX_EARG;
        }
    }
    uint32_t i;
    uint32_t depth;
    rdx_resolve(t, from, &i, &depth);
    if (i == NIL || depth != from.pages) {
        return RDX_ESTALE;
    }
    if (held && (held->node != i || depth != rdx_end_of(t, i))) {
        return RDX_ELEASE;
    }
    if (depth + (uint64_t)n > NIL / 2) {
        return RDX_EARG;
    }
    *node = i;
    return t->check_ids && rdx_has_negative(run, (uint64_t)n * (t->page_bytes / 4)) ? RDX_ETOKEN
                                                                                    : RDX_OK;
}

static int plan_insert(rdx_tree *t, rdx_cursor from, const uint8_t *run, uint32_t n,
                       const uint32_t *columns, uint32_t ncolumns, const int32_t *slots,
                       uint64_t lease, plan *p) {
    uint32_t i;
    int status = rdx_insert_check(t, from, run, n, columns, ncolumns, lease, &i);
    if (status != RDX_OK) {
        return status;
    }
    *p = (plan){.lease = lease ? rdx_lease_of(t, lease) : NULL, .depth = from.pages};
    p->w = follow(t, i, p->depth, run, n);
    uint64_t more = 2;
    uint64_t most = more + (uint64_t)n * (uint64_t)ncolumns; /* a split for each slot */
    bool ample = !t->sparse || most <= 256 || rdx_has_room(t, most);
    more = t->sparse && most <= 256 ? most : more;
    for (uint32_t c = 0; c < ncolumns && !ample; c++) {
        more += rdx_splits_of(t, p->w.node, columns[c], p->depth, n, slots + (size_t)c * n);
    }
    status = more < NIL / 2 ? rdx_make_room(t, (uint32_t)more) : RDX_ENOMEM;
    if (status != RDX_OK) {
        return status;
    }
    p->fresh = n - p->w.existing;
    if (!p->fresh) {
        return RDX_OK;
    }
    p->in_place = grows(t, p->w.node, p->w.pages, p->lease, columns, ncolumns);
    if (p->in_place && grow_room(t, p->w.node, p->fresh, &p->room) == RDX_OK) {
        return RDX_OK;
    }
    p->in_place = false; /* a leaf that has no room to grow gets a child */
    p->room = rdx_buffer_new(t, p->fresh);
    return p->room ? RDX_OK : RDX_ENOMEM;
}

int rdx_tree_insert(rdx_tree *t, rdx_cursor from, const void *pages, uint32_t n,
                    const uint32_t *columns, uint32_t ncolumns, const int32_t *slots,
                    int32_t *canonical, uint64_t lease, rdx_insert *out) {
    plan p;
    if (n >= MANY_SLOTS) { /* fewer come with the first access */
        rdx_ask_pages(slots, (size_t)n * 4, 4, 8);
    }
    int status = plan_insert(t, from, pages, n, columns, ncolumns, slots, lease, &p);
    if (status != RDX_OK) {
        return status;
    }
    /* from here on nothing fails */
    const uint8_t *fresh = (const uint8_t *)pages + (size_t)p.w.existing * t->page_bytes;
    uint32_t end = p.w.node;
    if (p.lease) {
        rdx_pins_off(t, p.lease, p.lease->node); /* its end may grow */
    }
    if (p.in_place) {
        append_in_place(t, end, fresh, p.fresh, p.room);
    } else if (p.fresh) {
        end = rdx_child_append(t, rdx_end_node(t, end, p.w.pages), fresh, p.fresh, p.room);
    } else {
        end = rdx_end_node(t, end, p.w.pages);
    }
    if (p.lease) {
        p.lease->first = RDX_BY_RULE;
        rdx_pins_put(t, p.lease, end);
    }
    uint32_t attached = 0;
    uint32_t duplicates = 0;
    bool was = t->uncounted;
    t->uncounted = true;
    for (uint32_t c = 0; c < ncolumns; c++) {
        const int32_t *offer = slots + (size_t)c * n;
        int32_t *kept = canonical ? canonical + (size_t)c * n : NULL;
        uint32_t old = p.w.existing;
        uint32_t twice = 0;
        uint32_t got = rdx_attach_path(t, end, columns[c], p.depth, old, offer, kept, &twice);
        attached = got > attached ? got : attached;
        duplicates = twice > duplicates ? twice : duplicates;
        rdx_attach_path(t, end, columns[c], p.depth + old, p.fresh, offer + old,
                        kept ? kept + old : NULL, &twice);
        rdx_list_leaves(t, end, columns[c], p.depth);
    }
    t->uncounted = was;
    rdx_review_path(t, end, p.depth);
    *out = (rdx_insert){.end = cursor_at(t, end, p.depth + n),
                        .existing = p.w.existing,
                        .created = p.fresh,
                        .attached = attached,
                        .duplicates = duplicates};
    if (p.lease) {
        rdx_lease_path_to(t, p.lease, end);
    }
    t->clock++;
    rdx_stamp_since(t, end, p.lease ? p.lease->taken : ALWAYS);
    rdx_trim(t, end);
    return RDX_OK;
}
