/* order.c: what goes first. One list for each column; a node stands in it only when it was leased
 * or inserted directly, or became a leaf. Keeps I16-I18.
 *
 *     head (oldest)                                    tail (newest)
 *       A ----------- B ----------- C ----------- D        stamps ascend, equal ones allowed
 *
 * An inner node that reaches the head is unlinked: its leaves are newer. A leaf that loses its last
 * block hands its stamp and its place to its parent. Nothing scans past what cannot go: protected
 * nodes are not in the list.
 */
#include "tree.h"

static void link_between(rdx_tree *t, uint32_t i, uint32_t column, uint32_t prev, uint32_t next) {
    order_list *l = &t->lists[column];
    cell *c = cell_at(t, i, column);
    c->prev = prev;
    c->next = next;
    c->listed = 1;
    if (prev == NIL) {
        l->head = i;
    } else {
        cell_at(t, prev, column)->next = i;
    }
    if (next == NIL) {
        l->tail = i;
    } else {
        cell_at(t, next, column)->prev = i;
    }
    l->listed++;
}

void rdx_list_remove(rdx_tree *t, uint32_t i, uint32_t column) {
    order_list *l = &t->lists[column];
    cell *c = cell_at(t, i, column);
    if (!c->listed) {
        return;
    }
    if (c->prev == NIL) {
        l->head = c->next;
    } else {
        cell_at(t, c->prev, column)->next = c->next;
    }
    if (c->next == NIL) {
        l->tail = c->prev;
    } else {
        cell_at(t, c->next, column)->prev = c->prev;
    }
    c->listed = 0;
    l->listed--;
}

void rdx_list_tail(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp) {
    rdx_list_remove(t, i, column);
    cell_at(t, i, column)->stamp = stamp;
    link_between(t, i, column, t->lists[column].tail, NIL);
}

void rdx_list_after(rdx_tree *t, uint32_t i, uint32_t column, uint32_t before, uint64_t stamp) {
    rdx_list_remove(t, i, column);
    cell_at(t, i, column)->stamp = stamp;
    uint32_t next = before == NIL ? t->lists[column].head : cell_at(t, before, column)->next;
    link_between(t, i, column, before, next);
}

void rdx_list_sorted(rdx_tree *t, uint32_t i, uint32_t column, uint64_t stamp) {
    rdx_list_remove(t, i, column);
    uint32_t before = t->lists[column].tail;
    uint32_t after = t->lists[column].head;
    while (before != NIL && cell_at(t, before, column)->stamp > stamp) {
        if (cell_at(t, after, column)->stamp > stamp) {
            before = cell_at(t, after, column)->prev;
            break;
        }
        before = cell_at(t, before, column)->prev;
        after = cell_at(t, after, column)->next;
    }
    rdx_list_after(t, i, column, before, stamp);
}

void rdx_list_head(rdx_tree *t, uint32_t i, uint32_t column) {
    uint32_t head = t->lists[column].head;
    uint64_t stamp = head == NIL ? t->clock : cell_at(t, head, column)->stamp;
    rdx_list_after(t, i, column, NIL, stamp);
}

void rdx_list_inherit(rdx_tree *t, uint32_t x, uint32_t column) {
    uint32_t p = node_at(t, x)->parent;
    const cell *c = cell_at(t, x, column);
    cell *k = cell_at(t, p, column);
    if (k->hi == k->lo) {
        return; /* a hole, or a root */
    }
    if (node_at(t, p)->protect) {
        k->stamp = c->stamp > k->stamp ? c->stamp : k->stamp; /* it is listed when its pin goes */
        return;
    }
    /* A parent with other children needs the stamp only if they may be older: not while x, the
     * oldest of all, is at the head. */
    bool needs = k->listed ? k->stamp < c->stamp : k->kids == 0 || c->prev != NIL;
    if (c->listed && needs) {
        rdx_list_after(t, p, column, x, c->stamp);
    } else if (!k->listed && k->kids == 0) {
        rdx_list_head(t, p, column); /* the child was an inner node: its stamp says nothing */
    }
}

void rdx_list_leaves(rdx_tree *t, uint32_t i, uint32_t column, uint32_t first) {
    for (; !(node_at(t, i)->flags & NODE_ROOT); i = node_at(t, i)->parent) {
        const cell *k = cell_at(t, i, column);
        if (!node_at(t, i)->protect && k->hi != k->lo && k->kids == 0 && !k->listed) {
            uint64_t stamp = k->stamp ? k->stamp : t->clock;
            rdx_list_sorted(t, i, column, stamp);
        }
        if (node_at(t, i)->start <= first) {
            break;
        }
    }
}

void rdx_stamp_path(rdx_tree *t, uint32_t i) {
    uint64_t open = t->columns == 64 ? UINT64_MAX : (1ull << t->columns) - 1;
    while (open && !(node_at(t, i)->flags & NODE_ROOT)) {
        for (uint32_t c = 0; c < t->columns; c++) {
            const cell *k = cell_at(t, i, c);
            if (!(open >> c & 1) || k->hi == k->lo) {
                continue;
            }
            open &= ~(1ull << c);
            if (node_at(t, i)->protect) {
                cell_at(t, i, c)->stamp = t->clock; /* listed when the last pin goes */
            } else {
                rdx_list_tail(t, i, c, t->clock);
            }
        }
        i = node_at(t, i)->parent;
    }
}

void rdx_use_path(rdx_tree *t, uint32_t i, uint32_t pages) {
    t->clock++;
    rdx_stamp_path(t, rdx_make_room(t, 1) == RDX_OK ? rdx_end_node(t, i, pages) : i);
}

int rdx_touch(rdx_tree *t, rdx_cursor at) {
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    rdx_use_path(t, i, pages);
    return RDX_OK;
}

/* The oldest leaf. Inner nodes at the head are unlinked: their leaves are newer, and hand their
 * stamps on. */
static uint32_t next_leaf(rdx_tree *t, uint32_t column) {
    for (;;) {
        uint32_t i = t->lists[column].head;
        if (i == NIL || cell_at(t, i, column)->kids == 0) {
            return i;
        }
        rdx_list_remove(t, i, column);
        cell_at(t, i, column)->stamp = 0;
    }
}

/* Takes up to n blocks from the end of leaf i; the caller trims. */
static uint32_t take(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n, int32_t *slots,
                     uint8_t *ids) {
    node *x = node_at(t, i);
    cell *c = cell_at(t, i, column);
    uint32_t k = c->hi - c->lo < n ? c->hi - c->lo : n;
    const int32_t *s = slots_at(t, x, column);
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    const uint8_t *id = t->key_bytes ? keys_at(t, x) : pages_at(t, x);
    for (uint32_t j = 0; j < k; j++) {
        uint32_t at = c->hi - 1 - j;
        slots[j] = s[at];
        if (ids) {
            memcpy(ids + (size_t)j * width, id + (size_t)at * width, width);
        }
    }
    c->hi -= k;
    t->lists[column].resident -= k;
    if (c->hi == c->lo) {
        c->lo = c->hi = 0;
        cell_at(t, x->parent, column)->kids--;
        rdx_list_inherit(t, i, column);
        rdx_list_remove(t, i, column);
        c->stamp = 0;
    }
    return k;
}

int rdx_evict(rdx_tree *t, uint32_t column, uint32_t n, uint64_t upto, int32_t *slots, uint8_t *ids,
              uint32_t *freed) {
    *freed = 0;
    if (column >= t->columns) {
        return RDX_EARG;
    }
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    while (*freed < n) {
        uint32_t i = next_leaf(t, column);
        if (i == NIL || cell_at(t, i, column)->stamp > upto) {
            break;
        }
        *freed += take(t, i, column, n - *freed, slots + *freed,
                       ids ? ids + (size_t)*freed * width : NULL);
        rdx_trim(t, i);
    }
    return RDX_OK;
}

int rdx_forget(rdx_tree *t, rdx_cursor at, uint32_t first, uint32_t column, int32_t *slots,
               uint8_t *ids, uint32_t *freed) {
    uint32_t i;
    uint32_t pages;
    *freed = 0;
    rdx_resolve(t, at, &i, &pages);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    while (!(node_at(t, i)->flags & NODE_ROOT) && node_at(t, i)->protect == 0) {
        const node *x = node_at(t, i);
        const cell *c = cell_at(t, i, column);
        uint32_t keep = first > x->start ? first - x->start : 0;
        if (c->kids || keep >= x->len || x->start + x->len > pages) {
            break;
        }
        uint32_t go = c->hi > keep && c->lo < c->hi ? c->hi - (keep > c->lo ? keep : c->lo) : 0;
        if (go) {
            *freed +=
                take(t, i, column, go, slots + *freed, ids ? ids + (size_t)*freed * width : NULL);
        }
        uint32_t parent = x->parent;
        rdx_trim(t, i);
        if (keep || node_of(t, handle_of(t, parent)) == NIL) {
            break;
        }
        i = parent;
    }
    return RDX_OK;
}

uint64_t rdx_evict_peek(rdx_tree *t, uint32_t column) {
    uint32_t i = column < t->columns ? next_leaf(t, column) : NIL;
    return i == NIL ? UINT64_MAX : cell_at(t, i, column)->stamp;
}

int rdx_order_nodes(const rdx_tree *t, uint32_t column, rdx_handle *out, uint32_t max,
                    uint32_t *n) {
    *n = 0;
    if (column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t i = t->lists[column].head; i != NIL && *n < max;
         i = cell_at(t, i, column)->next) {
        out[(*n)++] = handle_of(t, i);
    }
    return RDX_OK;
}
