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
        if (node_of(t, nodes[k]) == NIL) {
            return RDX_ESTALE;
        }
    }
    int status = rdx_lease_room(t, n);
    for (uint32_t k = 0; k < n && status == RDX_OK; k++) {
        leases[k] = rdx_lease_put(t, node_of(t, nodes[k]), RDX_EVERY_GROUP, RDX_BY_RULE);
    }
    return status;
}

int rdx_flat_release(rdx_tree *t, const uint64_t *leases, uint32_t n, int stamp) {
    uint32_t bad;
    return rdx_lease_release_many(t, leases, n, stamp, &bad);
}

static void rooms_free(rdx_tree *t, buffer **rooms, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        if (rooms[k]) {
            rdx_buffer_free(t, rooms[k]);
        }
    }
    rdx_free_mem(rooms);
}

/* Everything that inserting the keys needs: a buffer for each that is not there, and nodes. */
static int rooms_new(rdx_tree *t, uint32_t r, const uint8_t *keys, uint32_t n, buffer ***out) {
    buffer **rooms = rdx_calloc(n, sizeof(*rooms));
    int status = rooms ? RDX_OK : RDX_ENOMEM;
    uint32_t fresh = 0;
    for (uint32_t k = 0; k < n && status == RDX_OK; k++) {
        uint32_t shared;
        uint32_t i = rdx_child_step(t, r, keys + (size_t)k * t->page_bytes, 1, &shared);
        if (i == NIL) {
            rooms[k] = rdx_buffer_new(t, 1);
            status = rooms[k] ? RDX_OK : RDX_ENOMEM;
            fresh++;
        } else if (node_at(t, i)->len != 1) {
            status = RDX_EARG; /* a prompt's edge begins with this key: no flat store */
        }
    }
    if (status == RDX_OK) {
        status = rdx_make_room(t, fresh);
    }
    if (status != RDX_OK && rooms) {
        rooms_free(t, rooms, n);
    }
    *out = rooms;
    return status;
}

int rdx_flat_insert(rdx_tree *t, rdx_handle root, const void *keys, uint32_t n, uint32_t column,
                    const int32_t *slots, int32_t *canonical) {
    uint32_t r = node_of(t, root);
    if (r == NIL || !(node_at(t, r)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    if (column >= t->columns || t->check_ids) {
        return RDX_EARG;
    }
    buffer **rooms;
    int status = rooms_new(t, r, keys, n, &rooms);
    if (status != RDX_OK) {
        return status;
    }
    const uint8_t *key = keys;
    for (uint32_t k = 0; k < n; k++, key += t->page_bytes) {
        uint32_t shared;
        uint32_t i = rdx_child_step(t, r, key, 1, &shared);
        if (i == NIL) {
            i = rdx_child_append(t, r, key, 1, rooms[k]);
            rooms[k] = NULL;
        }
        uint32_t twice = 0;
        t->uncounted = true;
        rdx_attach_path(t, i, column, 0, 1, slots + k, canonical ? canonical + k : NULL, &twice);
        t->uncounted = false;
        rdx_list_leaves(t, i, column, 0);
        rdx_review_path(t, i, 0);
        t->clock++;
        rdx_stamp_since(t, i, ALWAYS);
        rdx_trim(t, i);
    }
    rooms_free(t, rooms, n);
    return RDX_OK;
}

int rdx_flat_touch(rdx_tree *t, const rdx_handle *nodes, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        if (i != NIL) {
            t->clock++;
            rdx_stamp_since(t, i, ALWAYS);
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
        if (i != NIL && node_at(t, i)->len > 1) {
            return RDX_EARG; /* a longer edge might have to be split */
        }
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

int rdx_flat_attach(rdx_tree *t, const rdx_handle *nodes, uint32_t n, uint32_t column,
                    const int32_t *slots, int32_t *canonical) {
    if (column >= t->columns) {
        return RDX_EARG;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        if (i == NIL || node_at(t, i)->flags & NODE_ROOT) {
            return RDX_ESTALE;
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = node_of(t, nodes[k]);
        uint32_t twice = 0;
        if (rdx_attach_path(t, i, column, node_at(t, i)->start, 1, slots + k, canonical + k,
                            &twice)) {
            rdx_list_leaves(t, i, column, node_at(t, i)->start);
            rdx_review_path(t, i, node_at(t, i)->start);
        }
    }
    return RDX_OK;
}

int rdx_flat_evict(rdx_tree *t, uint32_t column, uint32_t n, int32_t *slots, uint8_t *ids,
                   rdx_handle *roots, uint32_t *freed) {
    *freed = 0;
    if (column >= t->columns) {
        return RDX_EARG;
    }
    uint32_t width = t->key_bytes ? t->key_bytes : t->page_bytes;
    while (*freed < n) {
        uint32_t i = rdx_next_victim(t, column); /* all are leaves of one page */
        if (i == NIL) {
            break;
        }
        roots[*freed] = handle_of(t, node_at(t, i)->root);
        uint32_t one;
        int status =
            rdx_evict(t, column, 1, UINT64_MAX, slots + *freed, ids + (size_t)*freed * width, &one);
        if (status != RDX_OK || one == 0) {
            return status;
        }
        (*freed)++;
    }
    return RDX_OK;
}
