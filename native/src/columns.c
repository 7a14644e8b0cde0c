/* columns.c: which pages of an edge are resident in which (group, tier), and in which slot. Tied to
 * the structure by the observer table. Keeps I3 (intervals), I6 (a split changes nothing that can
 * be asked), I12, I20, I21.
 */
#include "tree.h"

static int on_reserve(void *self, uint32_t nodes) {
    rdx_tree *t = self;
    if (t->policy && rdx_policy_reserve(t, nodes) != RDX_OK) {
        return RDX_ENOMEM;
    }
    if (nodes <= t->cell_nodes || t->columns == 0) {
        return RDX_OK;
    }
    cell *cells = rdx_realloc(t->cells, (size_t)nodes * t->columns * sizeof(cell));
    if (!cells) {
        return RDX_ENOMEM;
    }
    rdx_ask_huge(cells, (size_t)nodes * t->columns * sizeof(cell));
    size_t old = (size_t)t->cell_nodes * t->columns;
    memset(cells + old, 0, ((size_t)nodes * t->columns - old) * sizeof(cell));
    t->cells = cells;
    t->cell_nodes = nodes;
    return RDX_OK;
}

void rdx_kids_add(rdx_tree *t, uint32_t i, uint32_t column, bool more) {
    for (;; i = node_at(t, i)->parent) {
        cell *k = cell_at(t, i, column);
        bool bore = rdx_bears(t, i, column);
        k->kids = more ? k->kids + 1 : k->kids - 1;
        bool turned = k->kids == (more ? 1 : 0);
        uint32_t c = t->group_of[column] * t->tiers;
        for (uint32_t end = c + t->tiers; t->mixed && turned && c < end && !is_sparse(t, c); c++) {
            rdx_relist(t, i, c); /* a leaf, maybe */
        }
        if (node_at(t, i)->flags & NODE_ROOT || bore == rdx_bears(t, i, column)) {
            return;
        }
    }
}

/* The upper part takes the bounds of its pages; a block that is cut stays with the lower part. */
static void split_cell(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t c, uint32_t at) {
    cell *u = cell_at(t, upper, c);
    cell *l = cell_at(t, lower, c);
    uint32_t b = rdx_width(rule_of(t, c));
    node whole = {.start = node_at(t, upper)->start, .len = at + node_at(t, lower)->len};
    bool bore = l->hi != l->lo || (l->kids && rdx_passes(&whole, rule_of(t, c)));
    *u = (cell){0};
    if (l->hi == l->lo && (b == 1 || !l->kids)) {
        return;
    }
    u->lo = l->lo < at ? l->lo : at;
    u->hi = l->hi < at ? l->hi : at;
    if (b > 1) {
        uint32_t end = (whole.start + u->hi) / b * b;
        u->hi = end > whole.start + u->lo ? end - whole.start : u->lo;
    }
    l->lo = l->lo > at ? l->lo - at : 0;
    l->hi = l->hi > at ? l->hi - at : 0;
    if (u->hi == u->lo) {
        u->lo = u->hi = 0;
    } else {
        rdx_policy_split(t, upper, lower, c);
    }
    u->kids = rdx_bears(t, lower, c);
    if (rdx_bears(t, upper, c) != bore) {
        rdx_kids_add(t, node_at(t, upper)->parent, c, !bore);
    }
}

/* Order and stamp stay with the lower part, as long as it has data. */
static void split_place(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t c) {
    cell *u = cell_at(t, upper, c);
    cell *l = cell_at(t, lower, c);
    if (l->hi != l->lo) {
        if (u->hi == u->lo) {
            rdx_list_inherit(t, upper, c); /* a hole above: the parent may be a leaf now */
        }
    } else if (u->hi != u->lo) {
        if (l->listed) {
            rdx_list_after(t, upper, c, lower, l->stamp);
            rdx_list_remove(t, lower, c);
        } else if (node_at(t, lower)->protect) {
            u->stamp = l->stamp;
        } else {
            rdx_list_head(t, upper, c); /* a leaf now, above a hole */
        }
        rdx_policy_left(t, lower, c);
        l->stamp = 0;
    }
}

/* Where groups are not full both parts keep the stamp and stand in the list, the upper one first.
 */
static void split_sparse(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t c) {
    cell *u = cell_at(t, upper, c);
    cell *l = cell_at(t, lower, c);
    if (u->hi != u->lo) {
        u->stamp = l->stamp;
        rdx_settle(t, upper, c, l->listed ? lower : NIL);
    }
    if (l->hi == l->lo) {
        rdx_list_remove(t, lower, c);
        rdx_policy_left(t, lower, c);
        l->stamp = 0;
    } else if (l->listed && l->next != NIL && cell_at(t, l->next, c)->stamp == l->stamp) {
        rdx_list_sorted(t, lower, c, l->stamp); /* it begins further down now */
    }
}

static void on_split(void *self, uint32_t upper, uint32_t lower, uint32_t at) {
    rdx_tree *t = self;
    for (uint32_t c = 0; c < t->columns; c++) {
        split_cell(t, upper, lower, c, at);
    }
    for (uint32_t c = 0; c < t->columns; c++) {
        if (is_sparse(t, c)) {
            split_sparse(t, upper, lower, c);
        } else {
            split_place(t, upper, lower, c);
        }
    }
    if (t->mixed) {
        rdx_review(t, upper);
        rdx_review(t, lower);
    }
}

static void on_resize(void *self, uint32_t i) {
    rdx_tree *t = self;
    if (t->mixed) {
        rdx_review(t, i);
    }
}

static void on_remove(void *self, uint32_t i) {
    rdx_tree *t = self;
    for (uint32_t c = 0; c < t->columns; c++) {
        rdx_list_remove(t, i, c);
        rdx_policy_left(t, i, c);
        *cell_at(t, i, c) = (cell){0};
    }
}

/* What becomes unprotected comes back into its lists: leaves, and inner nodes that were used later
 * than all that lies below them on the path (the rest is subsumed by what is below). */
static void on_protect(void *self, uint32_t i, int shield) {
    rdx_tree *t = self;
    for (uint32_t c = 0; c < t->columns; c++) {
        if (is_sparse(t, c)) {
            continue; /* its pages have pins of their own */
        }
        order_list *l = &t->lists[c];
        cell *k = cell_at(t, i, c);
        uint32_t held = rdx_entries(node_at(t, i), rule_of(t, c), k->lo, k->hi);
        if (shield == SHIELD_ON) {
            rdx_count(t, i, c, 0, held);
            rdx_list_remove(t, i, c);
            continue;
        }
        l->below = shield == SHIELD_OFF_END ? 0 : l->below;
        rdx_count(t, i, c, 0, -(int64_t)held);
        if (held && (k->kids == 0 || k->stamp > l->below)) {
            uint64_t stamp = k->stamp ? k->stamp : l->below;
            rdx_list_sorted(t, i, c, stamp ? stamp : t->clock);
            l->below = k->stamp > l->below ? k->stamp : l->below;
        } else {
            k->stamp = 0;
        }
    }
}

static uint32_t on_held(void *self, uint32_t i) {
    rdx_tree *t = self;
    uint32_t most = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t hi = cell_at(t, i, c)->hi;
        most = hi > most ? hi : most;
    }
    return most;
}

int rdx_columns_new(rdx_tree *t) {
    t->lists = rdx_calloc(t->columns ? (size_t)t->columns * 2 : 1, sizeof(order_list));
    if (!t->lists) {
        return RDX_ENOMEM;
    }
    for (uint32_t c = 0; c < t->columns * 2; c++) {
        t->lists[c].head = t->lists[c].tail = NIL;
    }
    if (t->columns) {
        t->observer = (rdx_observer){.self = t,
                                     .reserve = on_reserve,
                                     .split = on_split,
                                     .resize = on_resize,
                                     .remove = on_remove,
                                     .protect = on_protect,
                                     .held = on_held};
    }
    return RDX_OK;
}

void rdx_columns_free(rdx_tree *t) {
    rdx_free_mem(t->cells);
    rdx_free_mem(t->lists);
}

/* ---------------------------------------------------------------- attach */
typedef struct part { /* pages [a, b) of one edge, and the slots offered for them */
    int32_t *have;
    const int32_t *offer;
    int32_t *canonical;
    uint32_t a;
    uint32_t b;
} part;

static bool attach_one(cell *k, const part *p, uint32_t at) {
    int32_t slot = p->offer[at - p->a];
    if (slot == RDX_NO_SLOT) {
        return false;
    }
    if (k->hi == k->lo) {
        k->lo = at;
        k->hi = at;
    }
    if (at == k->hi) {
        k->hi++;
    } else if (at + 1 == k->lo) {
        k->lo--;
    } else {
        return false; /* a second interval */
    }
    p->have[at] = slot;
    return true;
}

uint64_t rdx_newest_stamp(const rdx_tree *t, uint32_t i) {
    uint64_t newest = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        uint64_t stamp = cell_at(t, i, c)->stamp;
        newest = stamp > newest ? stamp : newest;
    }
    return newest;
}

/* How many slots there are before the first that is missing; as a rule none is. */
static uint32_t leading_slots(const int32_t *slots, uint32_t n) {
    if (!rdx_has_negative(slots, n)) {
        return n;
    }
    uint32_t got = 0;
    while (got < n && slots[got] != RDX_NO_SLOT) {
        got++;
    }
    return got;
}

/* The whole part where the cell holds nothing of it: so many slots until the first that is missing
 * continue the interval, or begin it. */
static uint32_t attach_run(cell *k, const part *p) {
    if (k->hi != k->lo && k->hi != p->a) {
        return 0;
    }
    uint32_t got = leading_slots(p->offer, p->b - p->a);
    if (got) {
        memcpy(p->have + p->a, p->offer, (size_t)got * 4);
        k->lo = k->hi == k->lo ? p->a : k->lo;
        k->hi = p->a + got;
    }
    return got;
}

/* Slots that are there; counted in a register, so that the loop is done several at a time. */
static uint32_t count_slots(const int32_t *slots, uint32_t n) {
    if (!rdx_has_negative(slots, n)) {
        return n;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        count += slots[i] != RDX_NO_SLOT;
    }
    return count;
}

/* Slots of pages [a, b) of an edge: those that lie in the interval, and none for the others. */
static void copy_slots(const cell *k, const int32_t *have, uint32_t a, uint32_t b, int32_t *out) {
    uint32_t lo = k->lo < a ? a : k->lo > b ? b : k->lo;
    uint32_t hi = k->hi > b ? b : k->hi < lo ? lo : k->hi;
    memset(out, 0xff, (size_t)(lo - a) * 4);
    memcpy(out + (lo - a), have + lo, (size_t)(hi - lo) * 4);
    memset(out + (hi - a), 0xff, (size_t)(b - hi) * 4);
}
_Static_assert(RDX_NO_SLOT == -1, "none is all bits set");

static uint32_t attach_node(rdx_tree *t, uint32_t i, uint32_t column, const part *p,
                            uint32_t *duplicates) {
    node *x = node_at(t, i);
    cell *k = cell_at(t, i, column);
    uint32_t before = k->hi - k->lo;
    uint32_t got = 0;
    if (before) {
        uint32_t lo = p->a > k->lo ? p->a : k->lo;
        uint32_t hi = p->b < k->hi ? p->b : k->hi;
        *duplicates += lo < hi ? count_slots(p->offer + (lo - p->a), hi - lo) : 0;
        for (uint32_t at = p->b < k->lo ? p->b : k->lo; at > p->a; at--) {
            got += attach_one(k, p, at - 1);
        }
    }
    uint32_t from = before && p->a < k->hi ? k->hi : p->a;
    if (from == p->a) {
        from += attach_run(k, p);
        got += from - p->a;
    }
    for (uint32_t at = from; at < p->b; at++) {
        got += attach_one(k, p, at);
    }
    if (p->canonical) {
        copy_slots(k, p->have, p->a, p->b, p->canonical);
    }
    if (got) {
        rdx_count(t, i, column, got, x->protect ? got : 0);
        if (!before) {
            rdx_kids_add(t, x->parent, column, true);
            k->stamp = rdx_newest_stamp(t, i);
            rdx_policy_came(t, i, column);
        } else {
            rdx_policy_resident(t, i, column, got);
        }
    }
    return got;
}

/* The same for a column where entries have their places; i goes on as the lower part of splits. */
static uint32_t attach_placed(rdx_tree *t, uint32_t end, uint32_t column, uint32_t first,
                              uint32_t n, const int32_t *slots, int32_t *canonical,
                              uint32_t *duplicates) {
    uint32_t got = 0;
    for (uint32_t i = end; rdx_end_of(t, i) > first;) {
        const node *x = node_at(t, i);
        uint32_t parent = x->parent;
        uint32_t lo = x->start > first ? x->start : first;
        uint32_t hi = x->start + x->len < first + n ? x->start + x->len : first + n;
        if (lo < hi) {
            got += rdx_attach_blocks(t, i, column, lo, hi, slots + (lo - first), duplicates);
        }
        i = parent;
    }
    if (canonical) {
        rdx_read_slots(t, end, column, first, n, canonical);
    }
    return got;
}

uint32_t rdx_attach_path(rdx_tree *t, uint32_t end, uint32_t column, uint32_t first, uint32_t n,
                         const int32_t *slots, int32_t *canonical, uint32_t *duplicates) {
    uint32_t got = 0;
    if (n == 0) {
        return 0;
    }
    if (t->placed >> column & 1) {
        return attach_placed(t, end, column, first, n, slots, canonical, duplicates);
    }
    for (uint32_t i = end; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        uint32_t lo = x->start > first ? x->start : first;
        uint32_t hi = x->start + x->len < first + n ? x->start + x->len : first + n;
        if (lo < hi) {
            part p = {.have = slots_at(t, x, column),
                      .offer = slots + (lo - first),
                      .canonical = canonical ? canonical + (lo - first) : NULL,
                      .a = lo - x->start,
                      .b = hi - x->start};
            got += attach_node(t, i, column, &p, duplicates);
        }
        if (x->start <= first) {
            break;
        }
    }
    return got;
}

int rdx_slots_attach(rdx_tree *t, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                     const int32_t *slots, int32_t *canonical, int touch, uint32_t *attached) {
    uint32_t i;
    uint32_t pages;
    *attached = 0;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    if (pages < (uint64_t)first + n) {
        return RDX_ESTALE;
    }
    int status = rdx_make_room(t, rdx_splits_of(t, i, column, first, n, slots));
    if (status != RDX_OK) {
        return status;
    }
    uint32_t twice = 0;
    *attached = rdx_attach_path(t, i, column, first, n, slots, canonical, &twice);
    if (*attached) {
        rdx_list_leaves(t, i, column, first);
        rdx_review_path(t, i, first);
    }
    if (touch) {
        rdx_resolve(t, at, &i, &pages); /* it may lie above a split now */
        rdx_use_path(t, i, pages);
    }
    return RDX_OK;
}

/* ---------------------------------------------------------------- reading a path */
void rdx_read_slots(const rdx_tree *t, uint32_t i, uint32_t column, uint32_t first, uint32_t n,
                    int32_t *out) {
    for (; n && !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        const cell *k = cell_at(t, i, column);
        const int32_t *s = slots_at(t, x, column);
        uint32_t lo = x->start > first ? x->start : first;
        uint32_t hi = x->start + x->len < first + n ? x->start + x->len : first + n;
        if (lo < hi) {
            copy_slots(k, s, lo - x->start, hi - x->start, out + (lo - first));
        }
        if (x->start <= first) {
            break;
        }
    }
}

int rdx_slots_get(const rdx_tree *t, rdx_cursor at, uint32_t column, uint32_t first, uint32_t n,
                  int32_t *out) {
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL || pages < (uint64_t)first + n) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    rdx_read_slots(t, i, column, first, n, out);
    return RDX_OK;
}

static int rows_get(const rdx_tree *t, rdx_cursor at, uint32_t first, uint32_t n, uint32_t width,
                    bool keys, uint8_t *out) {
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL || pages < (uint64_t)first + n) {
        return RDX_ESTALE;
    }
    for (; n && !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const node *x = node_at(t, i);
        const uint8_t *rows = keys ? keys_at(t, x) : pages_at(t, x);
        uint32_t lo = x->start > first ? x->start : first;
        uint32_t hi = x->start + x->len < first + n ? x->start + x->len : first + n;
        if (lo < hi) {
            memcpy(out + (size_t)(lo - first) * width, rows + (size_t)(lo - x->start) * width,
                   (size_t)(hi - lo) * width);
        }
        if (x->start <= first) {
            break;
        }
    }
    return RDX_OK;
}

int rdx_keys_get(const rdx_tree *t, rdx_cursor at, uint32_t first, uint32_t n, uint8_t *out) {
    if (!t->key_bytes) {
        return RDX_EARG;
    }
    return rows_get(t, at, first, n, t->key_bytes, true, out);
}

int rdx_pages_get(const rdx_tree *t, rdx_cursor at, uint32_t first, uint32_t n, void *out) {
    return rows_get(t, at, first, n, t->page_bytes, false, out);
}

/* ---------------------------------------------------------------- dropping one block */
void rdx_cell_empty(rdx_tree *t, uint32_t i, uint32_t column) {
    cell *k = cell_at(t, i, column);
    uint32_t parent = node_at(t, i)->parent;
    k->lo = k->hi = 0;
    rdx_kids_add(t, parent, column, false);
    if (!is_sparse(t, column)) {
        rdx_list_inherit(t, i, column);
    }
    rdx_list_remove(t, i, column);
    rdx_policy_left(t, i, column);
    k->stamp = 0;
}

int32_t rdx_drop_page(rdx_tree *t, uint32_t i, uint32_t column, uint32_t page) {
    node *x = node_at(t, i);
    cell *k = cell_at(t, i, column);
    uint32_t at = page - x->start;
    if (at < k->lo || at >= k->hi || slots_at(t, x, column)[at] == RDX_NO_SLOT) {
        return RDX_NO_SLOT;
    }
    uint32_t begin = rdx_block_begin(rule_of(t, column), at);
    if (begin > k->lo && at != k->hi - 1) {
        i = rdx_split(t, i, at + 1); /* the page is the last of the upper part now */
        x = node_at(t, i);
        k = cell_at(t, i, column);
    }
    int32_t slot = slots_at(t, x, column)[at];
    slots_at(t, x, column)[at] = RDX_NO_SLOT;
    if (at == k->hi - 1) {
        k->hi = begin;
    } else {
        k->lo = at + 1;
    }
    bool pinned = is_sparse(t, column) ? pins_at(t, x, t->group_of[column])[at] != 0 : x->protect;
    rdx_count(t, i, column, -1, -(int64_t)pinned);
    rdx_policy_resident(t, i, column, -1);
    if (k->hi <= k->lo) {
        rdx_cell_empty(t, i, column);
    }
    if (t->mixed) {
        rdx_review(t, i);
    }
    return slot;
}

int rdx_slots_drop(rdx_tree *t, rdx_cursor at, uint32_t column, uint32_t page, int32_t *slot) {
    *slot = RDX_NO_SLOT;
    int status = rdx_make_room(t, 1);
    if (status != RDX_OK) {
        return status;
    }
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL || page >= pages) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    while (page < node_at(t, i)->start) {
        i = node_at(t, i)->parent;
    }
    *slot = rdx_drop_page(t, i, column, page);
    rdx_trim(t, i);
    return RDX_OK;
}

void rdx_column_get_stats(const rdx_tree *t, uint32_t column, rdx_column_stats *out) {
    *out = (rdx_column_stats){0};
    if (column < t->columns) {
        const order_list *l = &t->lists[column];
        uint64_t listed = l->listed + t->lists[t->columns + column].listed;
        listed = t->tenants ? rdx_tenants_listed(t, column) : listed;
        *out = (rdx_column_stats){l->resident, l->shielded, listed};
    }
}

int rdx_node_interval(const rdx_tree *t, rdx_handle h, uint32_t column, uint32_t *lo,
                      uint32_t *hi) {
    uint32_t i = node_of(t, h);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    *lo = cell_at(t, i, column)->lo;
    *hi = cell_at(t, i, column)->hi;
    return RDX_OK;
}
