/* flat.c: the flat store's operations on sets of keys. Each key is a child of a root in a tree of
 * opaque keys, so lists, leases, slots and checks are literally the tree's.
 */
#include "tree.h"

int rdx_flat_find(const rdx_tree *t, rdx_handle root, const void *keys, uint32_t n,
                  rdx_handle *out) {
    uint32_t r = node_of(t, root);
    if (r == NIL || !(node_at(t, r)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    const uint8_t *key = keys;
    for (uint32_t k = 0; k < n; k++, key += t->page_bytes) {
        uint32_t shared;
        uint32_t i = rdx_child_step(t, r, key, 1, &shared);
        out[k] = i == NIL ? 0 : handle_of(t, i);
    }
    return RDX_OK;
}

int rdx_flat_slots(const rdx_tree *t, const rdx_handle *nodes, uint32_t n, uint32_t column,
                   int32_t *out) {
    if (column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        const cell *c = i == NIL ? NULL : cell_at(t, i, column);
        out[k] = c && c->hi > c->lo ? slots_at(t, node_at(t, i), column)[0] : RDX_NO_SLOT;
    }
    return RDX_OK;
}

int rdx_flat_lease(rdx_tree *t, const rdx_handle *nodes, uint32_t n, uint64_t *leases) {
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        rdx_cursor at = {nodes[k], 0, i == NIL ? 0 : node_at(t, i)->len};
        rdx_cursor end;
        int status = i == NIL ? RDX_ESTALE : rdx_lease_take(t, at, &leases[k], &end);
        if (status != RDX_OK) {
            while (k-- > 0) {
                rdx_lease_release(t, leases[k], 1);
            }
            return status;
        }
    }
    return RDX_OK;
}

int rdx_flat_release(rdx_tree *t, const uint64_t *leases, uint32_t n) {
    uint32_t bad = 0;
    for (uint32_t k = 0; k < n && !bad; k++) {
        lease_slot *l = rdx_lease_of(t, leases[k]);
        bad = !l || l->next_free == NIL - 1; /* unknown, or marked: it stands twice */
        if (l && !bad) {
            l->next_free = NIL - 1;
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        lease_slot *l = rdx_lease_of(t, leases[k]);
        if (l) {
            l->next_free = NIL;
        }
    }
    for (uint32_t k = 0; k < n && !bad; k++) {
        rdx_lease_release(t, leases[k], 1);
    }
    return bad ? RDX_ELEASE : RDX_OK;
}

int rdx_flat_insert(rdx_tree *t, rdx_handle root, const void *keys, uint32_t n, uint32_t column,
                    const int32_t *slots, int32_t *canonical) {
    uint32_t r = node_of(t, root);
    if (r == NIL || !(node_at(t, r)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    if (column >= t->columns) {
        return RDX_EARG;
    }
    const uint8_t *key = keys;
    for (uint32_t k = 0; k < n; k++, key += t->page_bytes) {
        rdx_insert result;
        rdx_cursor from = {root, root, 0};
        int status = rdx_tree_insert(t, from, key, 1, &column, 1, slots + k,
                                     canonical ? canonical + k : NULL, 0, &result);
        if (status != RDX_OK) {
            /* what went in before comes out again */
            while (k-- > 0) {
                key -= t->page_bytes;
                uint32_t shared;
                uint32_t i = rdx_child_step(t, r, key, 1, &shared);
                if (i != NIL && slots_at(t, node_at(t, i), column)[0] == slots[k]) {
                    rdx_drop_page(t, i, column, 0);
                    rdx_trim(t, i);
                }
            }
            return status;
        }
    }
    return RDX_OK;
}

int rdx_flat_touch(rdx_tree *t, const rdx_handle *nodes, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        if (i != NIL) {
            t->clock++;
            rdx_stamp_path(t, i);
        }
    }
    return RDX_OK;
}

int rdx_flat_drop(rdx_tree *t, const rdx_handle *nodes, uint32_t n, uint32_t column,
                  int32_t *slots) {
    if (column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        slots[k] = i == NIL ? RDX_NO_SLOT : rdx_drop_page(t, i, column, node_at(t, i)->start);
        if (i != NIL) {
            rdx_trim(t, i);
        }
    }
    return RDX_OK;
}
