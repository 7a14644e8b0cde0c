/* check.c: every invariant of the native half, by number. Recomputes what the running values claim;
 * trusts nothing but the node array. Cost: the whole tree.
 */
#include "tree.h"
#include <stdarg.h>
#include <stdio.h>

typedef struct report {
    const rdx_tree *t;
    char *what;
    uint32_t bytes;
} report;

static int broken(const report *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (r->what && r->bytes) {
        vsnprintf(r->what, r->bytes, format, args);
    }
    va_end(args);
    return RDX_EINVARIANT;
}

static bool is_live(const rdx_tree *t, uint32_t i) {
    return i < t->node_used && (t->nodes[i].flags & NODE_LIVE);
}

/* I1, I2, I3: the node against its parent, its siblings and the child table. */
static int check_place(const report *r, uint32_t i) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    if (x->flags & NODE_ROOT) {
        if (x->parent != NIL || x->len != 0 || x->start != 0 || x->root != i || x->buf) {
            return broken(r, "I1: root %u has a parent, a key or a position", i);
        }
        if (x->off >= t->root_key_used || t->root_keys[x->off].node != i) {
            return broken(r, "I1: root %u has lost the key that its pages chain from", i);
        }
        return RDX_OK;
    }
    if (!is_live(t, x->parent)) {
        return broken(r, "I2: node %u has a parent that is gone", i);
    }
    const node *p = node_at(t, x->parent);
    if (x->len == 0) {
        return broken(r, "I3: node %u has an empty key", i);
    }
    if (x->start != p->start + p->len || x->root != p->root) {
        return broken(r, "I5: node %u starts at %u, its parent ends at %u", i, x->start,
                      p->start + p->len);
    }
    if (x->hash != rdx_page_hash(t, x->parent, pages_at(t, x))) {
        return broken(r, "I2: node %u stands under a foreign key", i);
    }
    uint32_t shared;
    if (rdx_child_step(t, x->parent, pages_at(t, x), 1, &shared) != i) {
        return broken(r, "I2: the child table does not find node %u (or finds a twin, I3)", i);
    }
    return RDX_OK;
}

/* I4, I13: children lists, reachability and the protect count. */
static int check_children(const report *r, uint32_t i, uint64_t *linked, const uint32_t *pins) {
    const rdx_tree *t = r->t;
    uint32_t shielded = 0;
    uint32_t prev = NIL;
    for (uint32_t c = node_at(t, i)->first_child; c != NIL; c = node_at(t, c)->next_sibling) {
        if (!is_live(t, c) || node_at(t, c)->parent != i || node_at(t, c)->prev_sibling != prev) {
            return broken(r, "I2: the children of node %u are not linked as its children", i);
        }
        if (++*linked > t->live_nodes) {
            return broken(r, "I4: the children of node %u form a circle", i);
        }
        shielded += node_at(t, c)->protect ? 1 : 0;
        prev = c;
    }
    if (node_at(t, i)->protect != shielded + pins[i]) {
        return broken(r, "I13: node %u counts %u, pins %u and protected children %u say otherwise",
                      i, node_at(t, i)->protect, pins[i], shielded);
    }
    return RDX_OK;
}

/* I4, I12: the nodes that share a buffer, once for each buffer. seen[j]: j was met on a ring. */
static int check_buffer(const report *r, uint32_t i, uint8_t *seen, rdx_tree_stats *sum) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    if (x->flags & NODE_ROOT || seen[i]) {
        return RDX_OK;
    }
    sum->buffers++;
    sum->bytes += rdx_buffer_bytes(t, x->buf->cap);
    uint64_t live = 0;
    uint32_t refs = 0;
    uint32_t j = i;
    do {
        const node *y = node_at(t, j);
        if (!is_live(t, j) || y->buf != x->buf || y->off + y->len > y->buf->used || seen[j] ||
            y->buf_next >= t->node_used || node_at(t, y->buf_next)->buf_prev != j) {
            return broken(r, "I4: the buffer ring of node %u is broken at %u", i, j);
        }
        seen[j] = 1;
        refs++;
        live += y->len;
        j = y->buf_next;
    } while (j != i);
    if (refs != x->buf->refs || live != x->buf->live || x->buf->used > x->buf->cap) {
        return broken(r, "I12: the buffer of node %u counts %u nodes and %u pages, not %u and %u",
                      i, x->buf->refs, x->buf->live, refs, (uint32_t)live);
    }
    return RDX_OK;
}

/* I5: the keys of an edge chain from the end of the path above. */
static int check_keys(const report *r, uint32_t i) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    if (x->flags & NODE_ROOT || !t->key_bytes) {
        return RDX_OK;
    }
    const node *p = node_at(t, x->parent);
    const uint8_t *above = p->flags & NODE_ROOT ? rdx_root_key(t, x->parent)
                                                : keys_at(t, p) + (size_t)(p->len - 1) * 16;
    for (uint32_t k = 0; k < x->len; k++) {
        uint8_t key[16];
        rdx_keys_chain(above, pages_at(t, x) + (size_t)k * t->page_bytes, 1, t->page_bytes, key);
        above = keys_at(t, x) + (size_t)k * 16;
        if (memcmp(key, above, 16) != 0) {
            return broken(r, "I5: the key of page %u of node %u is not of its path", k, i);
        }
    }
    return RDX_OK;
}

/* I3, I27, I28: an interval is made of whole blocks, each with a slot at its last page and at no
 * other; a snapshot stands at the end of its node. */
static int check_interval(const report *r, uint32_t i, uint32_t c) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, c);
    const rdx_group *g = rule_of(t, c);
    if (k->lo > k->hi || k->hi > x->len || (k->lo == k->hi && k->hi)) {
        return broken(r, "I3: node %u column %u holds [%u,%u) of %u", i, c, k->lo, k->hi, x->len);
    }
    if (k->lo == k->hi) {
        return RDX_OK;
    }
    uint32_t b = rdx_width(g);
    bool whole = (k->lo == 0 || (x->start + k->lo) % b == 0) && (x->start + k->hi) % b == 0;
    if (!whole || g->rule == RDX_RULE_SCRATCH) {
        return broken(r, "I3: node %u column %u cuts a block at [%u,%u) behind page %u", i, c,
                      k->lo, k->hi, x->start);
    }
    bool stands =
        k->lo + 1 == k->hi && k->hi == x->len && (x->start + x->len) % g->block_pages == 0;
    if (g->rule == RDX_RULE_STATE && !stands) {
        return broken(r, "I28: node %u column %u has a snapshot at [%u,%u) of %u behind page %u", i,
                      c, k->lo, k->hi, x->len, x->start);
    }
    for (uint32_t p = k->lo; p < k->hi; p++) {
        bool entry = rdx_entry_from(g, x->start + p) == x->start + p;
        if (entry != (slots_at(t, x, c)[p] != RDX_NO_SLOT)) {
            return broken(r, "I27: page %u of node %u column %u %s", p, i, c,
                          entry ? "has lost its slot" : "ends no block and has a slot");
        }
    }
    return RDX_OK;
}

/* Entries of a cell that a lease pins. */
static uint32_t pinned_entries(const rdx_tree *t, uint32_t i, uint32_t c) {
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, c);
    if (!is_sparse(t, c)) {
        return x->protect ? rdx_entries(x, rule_of(t, c), k->lo, k->hi) : 0;
    }
    uint32_t pinned = 0;
    for (uint32_t p = k->lo; p < k->hi; p++) {
        pinned += slots_at(t, x, c)[p] != RDX_NO_SLOT && pins_at(t, x, t->group_of[c])[p];
    }
    return pinned;
}

/* I16, I18, I20: a node stands in the list where it belongs. */
static int check_listed(const report *r, uint32_t i, uint32_t c) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, c);
    bool data = k->hi != k->lo;
    bool sparse = is_sparse(t, c);
    bool held = sparse && data && pins_at(t, x, t->group_of[c])[rdx_first_block(t, i, c)];
    held = held || (!sparse && x->protect);
    if (k->listed && (!data || held)) {
        return broken(r, "I18: node %u stands in list %u but %s", i, c,
                      data ? "is protected" : "has no data");
    }
    if (data && !held && (sparse || k->kids == 0) && !k->listed) {
        return broken(r, "I16: %s %u of column %u could go but is not listed",
                      sparse ? "node" : "leaf", i, c);
    }
    bool dead = data && t->mixed && rdx_is_dead(t, i, c);
    if (k->listed && (k->listed == LISTED_DEAD) != dead) {
        return broken(r, "I20: node %u of column %u is %s but stands in the other list", i, c,
                      dead ? "dead" : "alive");
    }
    return RDX_OK;
}

/* I3, I12, I16, I20: intervals, counts of children with data, membership in the lists. */
static int check_cells(const report *r, uint32_t i, order_list *sums) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    uint32_t held = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        const cell *k = cell_at(t, i, c);
        int status = check_interval(r, i, c);
        if (status != RDX_OK) {
            return status;
        }
        uint32_t kids = 0;
        for (uint32_t y = x->first_child; y != NIL; y = node_at(t, y)->next_sibling) {
            kids += rdx_bears(t, y, c);
        }
        if (kids != k->kids) {
            return broken(r, "I16: node %u column %u counts %u children with data, not %u", i, c,
                          k->kids, kids);
        }
        status = check_listed(r, i, c);
        if (status != RDX_OK) {
            return status;
        }
        sums[c].resident += rdx_entries(x, rule_of(t, c), k->lo, k->hi);
        sums[c].shielded += pinned_entries(t, i, c);
        sums[c].listed += k->listed == LISTED_LIVE;
        sums[t->columns + c].listed += k->listed == LISTED_DEAD;
        held = k->hi > held ? k->hi : held;
    }
    bool leaf = x->first_child == NIL && !x->protect && !(x->flags & NODE_ROOT);
    if (t->columns && leaf && held != x->len) {
        return broken(r, "I20: leaf %u keeps %u pages of which no tier holds more than %u", i,
                      x->len, held);
    }
    return RDX_OK;
}

/* One of the two lists of column c and a tenant; adds to *standing how many it holds. */
static int check_order(const report *r, uint32_t c, uint32_t which, uint32_t tenant,
                       uint64_t *standing) {
    const rdx_tree *t = r->t;
    const order_list *l = &t->lists[(size_t)tenant * 2 * t->columns + which];
    uint64_t count = 0;
    uint64_t stamp = 0;
    uint32_t start = 0;
    uint32_t prev = NIL;
    for (uint32_t i = l->head; i != NIL; i = cell_at(t, i, c)->next) {
        uint32_t listed = which == c ? LISTED_LIVE : LISTED_DEAD;
        if (!is_live(t, i) || cell_at(t, i, c)->listed != listed ||
            cell_at(t, i, c)->prev != prev || rdx_tenant_of(t, i) != tenant ||
            ++count > t->live_nodes) {
            return broken(r, "I18: list %u is broken at node %u", which, i);
        }
        bool tie = cell_at(t, i, c)->stamp == stamp && is_sparse(t, c);
        if (cell_at(t, i, c)->stamp < stamp || (tie && node_at(t, i)->start < start)) {
            return broken(r, "I18: list %u goes back in time at node %u", which, i);
        }
        stamp = cell_at(t, i, c)->stamp;
        start = node_at(t, i)->start;
        prev = i;
    }
    *standing += count;
    if (l->tail != prev || count != l->listed) {
        return broken(r, "I18: list %u holds %u nodes and counts %u", which, (uint32_t)count,
                      (uint32_t)l->listed);
    }
    return RDX_OK;
}

/* All of them, of one kind; sum: of the nodes that say that they stand in one. */
static int check_orders(const report *r, uint32_t c, uint32_t which, const order_list *sum) {
    uint64_t standing = 0;
    for (uint32_t tenant = 0; tenant < rdx_tenants_known(r->t); tenant++) {
        int status = check_order(r, c, which, tenant, &standing);
        if (status != RDX_OK) {
            return status;
        }
    }
    if (standing != sum->listed) {
        return broken(r, "I18: list %u holds %u nodes, %u say that they stand in it", which,
                      (uint32_t)standing, (uint32_t)sum->listed);
    }
    return RDX_OK;
}

/* I12, I17: what tenants have, and whose turn it is. */
static int check_tenants(const report *r, uint32_t c) {
    const rdx_tree *t = r->t;
    if (!t->tenants) {
        return RDX_OK;
    }
    uint64_t *sums = rdx_calloc((size_t)rdx_tenants_known(t) * 2, sizeof(*sums));
    if (!sums) {
        return RDX_ENOMEM;
    }
    uint32_t whose = 0;
    const char *fault = rdx_tenant_fault(t, c, sums, &whose);
    rdx_free_mem(sums);
    return fault ? broken(r, "I12: column %u: tenant %u %s", c, whose, fault) : RDX_OK;
}

static int check_list(const report *r, uint32_t c, const order_list *sums) {
    const rdx_tree *t = r->t;
    const order_list *l = &t->lists[c];
    int status = check_orders(r, c, c, &sums[c]);
    if (status == RDX_OK) {
        status = check_orders(r, c, t->columns + c, &sums[t->columns + c]);
    }
    if (status == RDX_OK) {
        status = check_tenants(r, c);
    }
    if (status == RDX_OK && (l->resident != sums[c].resident || l->shielded != sums[c].shielded)) {
        return broken(r, "I12: column %u counts %u blocks and %u protected, the tree has %u and %u",
                      c, (uint32_t)l->resident, (uint32_t)l->shielded, (uint32_t)sums[c].resident,
                      (uint32_t)sums[c].shielded);
    }
    uint32_t i = NIL;
    const char *fault = status == RDX_OK && t->policy ? rdx_policy_fault(t, c, &i) : NULL;
    if (fault) {
        return broken(r, "I17: column %u: %s (node %d)", c, fault, (int32_t)i);
    }
    return status;
}

/* I21 for the first tier of each full group: no gap between the root and what it holds. */
static int check_contiguous(const report *r, uint32_t i, uint32_t column) {
    const rdx_tree *t = r->t;
    const node *x = node_at(t, i);
    const cell *k = cell_at(t, i, column);
    const rdx_group *g = rule_of(t, column);
    if (k->hi == k->lo || is_sparse(t, column)) {
        return RDX_OK;
    }
    uint32_t above = x->parent; /* the node above in which a block ends */
    uint32_t end = rdx_end_of(t, above);
    while (end && rdx_round_down(end, g->block_pages) <= node_at(t, above)->start) {
        above = node_at(t, above)->parent;
        end = rdx_end_of(t, above);
    }
    const cell *p = cell_at(t, above, column);
    end = rdx_round_down(end, g->block_pages);
    uint32_t ahead = g->lookahead_pages;
    bool whole = end <= ahead || (end == node_at(t, above)->start + p->hi &&
                                  (p->lo == 0 || node_at(t, above)->start + p->lo == ahead));
    if ((k->lo != 0 && x->start + k->lo != ahead) || !whole) {
        return broken(r, "I21: node %u is resident in column %u over a gap", i, column);
    }
    return RDX_OK;
}

/* I14, I15: the page pins are those of the leases, exactly. `rows`: a count a page and group; those
 * of a node begin at page before[i]. */
static int check_pins(const report *r, uint32_t *rows, const uint64_t *before) {
    const rdx_tree *t = r->t;
    for (uint32_t k = 0; k < t->lease_used; k++) {
        const lease_slot *l = &t->leases[k];
        for (uint32_t g = 0; l->node != NIL && g < t->groups; g++) {
            if (!t->pin_row[g] || !(l->mask >> g & 1)) {
                continue;
            }
            uint32_t end = rdx_end_of(t, l->node);
            uint32_t from =
                l->first == RDX_BY_RULE ? rdx_first_entry(t, &t->rules[g], end) : l->first;
            for (uint32_t i = l->node; rdx_end_of(t, i) > from; i = node_at(t, i)->parent) {
                const node *x = node_at(t, i);
                for (uint32_t p = from > x->start ? from - x->start : 0; p < x->len; p++) {
                    rows[(before[i] + p) * t->groups + g]++;
                }
            }
        }
    }
    for (uint32_t i = 0; i < t->node_used; i++) {
        if (!is_live(t, i) || node_at(t, i)->flags & NODE_ROOT) {
            continue;
        }
        const node *x = node_at(t, i);
        for (uint32_t p = 0; p < x->len * t->groups; p++) {
            uint32_t g = p % t->groups;
            uint32_t want = rows[before[i] * t->groups + p];
            if (t->pin_row[g] && pins_at(t, x, g)[p / t->groups] != want) {
                return broken(r, "I15: page %u of node %u has %u pins in group %u, leases say %u",
                              p / t->groups, i, pins_at(t, x, g)[p / t->groups], g, want);
            }
        }
    }
    return RDX_OK;
}

static int check_page_pins(const report *r) {
    const rdx_tree *t = r->t;
    if (!t->mixed) {
        return RDX_OK;
    }
    uint64_t *before = rdx_calloc((size_t)t->node_used + 1, sizeof(uint64_t));
    uint32_t *rows = rdx_calloc((size_t)t->live_pages * t->groups + 1, sizeof(uint32_t));
    int status = before && rows ? RDX_OK : RDX_ENOMEM;
    for (uint32_t i = 0; i < t->node_used && status == RDX_OK; i++) {
        before[i + 1] = before[i] + (is_live(t, i) ? node_at(t, i)->len : 0);
    }
    if (status == RDX_OK) {
        status = check_pins(r, rows, before);
    }
    rdx_free_mem(before);
    rdx_free_mem(rows);
    return status;
}

/* I4: what no node uses hangs together too, so that nothing is lost. */
static int check_free(const report *r, const rdx_tree_stats *sum) {
    const rdx_tree *t = r->t;
    uint64_t count = 0;
    for (uint32_t i = t->node_free; i != NIL; i = node_at(t, i)->parent) {
        if (i >= t->node_used || is_live(t, i) || ++count > t->node_used) {
            return broken(r, "I4: the chain of free nodes is broken at %u", i);
        }
    }
    if (count + t->live_nodes != t->node_used) {
        return broken(r, "I4: %u nodes are free, %u live, %u were made", (uint32_t)count,
                      (uint32_t)t->live_nodes, t->node_used);
    }
    count = 0;
    for (uint32_t k = t->lease_free; k != NIL; k = t->leases[k].next_free) {
        if (k >= t->lease_used || t->leases[k].node != NIL || ++count > t->lease_used) {
            return broken(r, "I14: the chain of free leases is broken at %u", k);
        }
    }
    if (count + t->live_leases != t->lease_used) {
        return broken(r, "I14: %u leases are free, %u out, %u were made", (uint32_t)count,
                      (uint32_t)t->live_leases, t->lease_used);
    }
    if (sum->buffers != t->buffers || sum->bytes != t->buffer_bytes) {
        return broken(r, "I12: %u buffers of %u bytes are counted, nodes name %u of %u",
                      (uint32_t)t->buffers, (uint32_t)t->buffer_bytes, (uint32_t)sum->buffers,
                      (uint32_t)sum->bytes);
    }
    const char *fault = rdx_arena_fault(&t->arena);
    if (fault) {
        return broken(r, "I12: %s, in the memory of the edges", fault);
    }
    return RDX_OK;
}

/* What the walks gather, to be held against the running values. */
typedef struct sums {
    uint32_t *pins;
    order_list *lists;
    uint8_t *seen;
    rdx_tree_stats tree;
} sums;

static int check_nodes(const report *r, sums *s, uint32_t device) {
    const rdx_tree *t = r->t;
    uint64_t linked = t->roots;
    uint64_t live = 0;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < t->node_used; i++) {
        if (!is_live(t, i)) {
            continue;
        }
        live++;
        pages += node_at(t, i)->len;
        int status = check_place(r, i);
        status = status ? status : check_children(r, i, &linked, s->pins);
        status = status ? status : check_buffer(r, i, s->seen, &s->tree);
        status = status ? status : check_keys(r, i);
        status = status ? status : check_cells(r, i, s->lists);
        for (uint32_t g = 0; device && g < t->groups && status == RDX_OK; g++) {
            status = check_contiguous(r, i, g * t->tiers);
        }
        if (status != RDX_OK) {
            return status;
        }
    }
    if (live != t->live_nodes || linked != live || pages != t->live_pages) {
        return broken(r, "I4: %u live nodes, %u registered, %u linked; %u pages, %u counted",
                      (uint32_t)live, (uint32_t)t->live_nodes, (uint32_t)linked, (uint32_t)pages,
                      (uint32_t)t->live_pages);
    }
    if (t->table_used != live - t->roots) {
        return broken(r, "I4: the child table holds %u of %u nodes", t->table_used,
                      (uint32_t)(live - t->roots));
    }
    return RDX_OK;
}

static int check_all(const report *r, uint32_t device) {
    const rdx_tree *t = r->t;
    sums s = {.pins = rdx_calloc((size_t)t->node_used + 1, sizeof(uint32_t)),
              .lists = rdx_calloc((size_t)t->columns * 2 + 1, sizeof(order_list)),
              .seen = rdx_calloc((size_t)t->node_used + 1, 1)};
    int status = s.pins && s.lists && s.seen ? RDX_OK : RDX_ENOMEM;
    uint64_t leases = 0;
    for (uint32_t k = 0; k < t->lease_used && status == RDX_OK; k++) {
        if (t->leases[k].node == NIL) {
            continue;
        }
        leases++;
        if (!is_live(t, t->leases[k].node)) {
            status = broken(r, "I14: lease %u names a node that is gone", k);
        } else {
            s.pins[t->leases[k].node]++;
        }
    }
    if (status == RDX_OK && leases != t->live_leases) {
        status = broken(r, "I14: %u leases are out, %u are counted", (uint32_t)leases,
                        (uint32_t)t->live_leases);
    }
    if (status == RDX_OK) {
        status = check_nodes(r, &s, device);
    }
    if (status == RDX_OK) {
        status = check_free(r, &s.tree);
    }
    for (uint32_t c = 0; c < t->columns && status == RDX_OK; c++) {
        status = check_list(r, c, s.lists);
    }
    if (status == RDX_OK) {
        status = check_page_pins(r);
    }
    rdx_free_mem(s.pins);
    rdx_free_mem(s.lists);
    rdx_free_mem(s.seen);
    return status;
}

int rdx_check(const rdx_tree *t, int device, char *what, uint32_t what_bytes) {
    report r = {t, what, what_bytes};
    if (what && what_bytes) {
        what[0] = 0;
    }
    return check_all(&r, device != 0);
}

/* ---------------------------------------------------------------- iteration */
static rdx_node_view view_of(const rdx_tree *t, uint32_t i, uint32_t most) {
    const node *x = node_at(t, i);
    uint32_t children = 0;
    for (uint32_t c = x->first_child; c != NIL && children < most;
         c = node_at(t, c)->next_sibling) {
        children++;
    }
    return (rdx_node_view){
        .node = handle_of(t, i),
        .parent = x->flags & NODE_ROOT ? 0 : handle_of(t, x->parent),
        .start = x->start,
        .pages = x->len,
        .protect = x->protect,
        .children = children,
    };
}

int rdx_tree_nodes(const rdx_tree *t, rdx_handle root, rdx_node_view *out, uint32_t max,
                   uint32_t *n) {
    uint32_t i = node_of(t, root);
    *n = 0;
    if (i == NIL) {
        return RDX_ESTALE;
    }
    uint32_t top = i;
    while (i != NIL && *n < max) {
        const node *x = node_at(t, i);
        out[(*n)++] = view_of(t, i, UINT32_MAX);
        if (x->first_child != NIL) {
            i = x->first_child;
            continue;
        }
        while (i != top && node_at(t, i)->next_sibling == NIL) {
            i = node_at(t, i)->parent;
        }
        i = i == top ? NIL : node_at(t, i)->next_sibling;
    }
    return RDX_OK;
}

int rdx_node_children(const rdx_tree *t, rdx_handle parent, rdx_handle after, rdx_node_view *out,
                      uint32_t max, uint32_t *n) {
    uint32_t i = node_of(t, parent);
    *n = 0;
    if (i == NIL) {
        return RDX_ESTALE;
    }
    uint32_t c = node_at(t, i)->first_child;
    if (after) {
        uint32_t before = node_of(t, after);
        if (before == NIL || node_at(t, before)->flags & NODE_ROOT ||
            node_at(t, before)->parent != i) {
            return RDX_ESTALE;
        }
        c = node_at(t, before)->next_sibling;
    }
    for (; c != NIL && *n < max; c = node_at(t, c)->next_sibling) {
        out[(*n)++] = view_of(t, c, RDX_MANY_CHILDREN);
    }
    return RDX_OK;
}
