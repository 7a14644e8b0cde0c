/* flat.c: the flat store's operations on sets of keys. Each key is a child of a root in a tree of
 * opaque keys, so lists, leases, slots and checks are literally the tree's.
 */
#include "tree.h"

#define REACH_STEP 16 /* pages that are hashed before they are looked up: a gap ends both */

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

/* The tiers of a mask in which a node has a block of each of the groups; *uppermost: whether all
 * are in the first. */
static bool everywhere(const rdx_tree *t, uint32_t i, uint64_t groups, uint64_t readable,
                       bool *uppermost) {
    const cell *c = cell_at(t, i, 0);
    for (; groups; groups >>= 1, c += t->tiers) {
        if (!(groups & 1)) {
            continue;
        }
        bool some = false;
        for (uint32_t tier = 0; tier < t->tiers && !some; tier++) {
            some = (readable >> tier & 1) && c[tier].hi > c[tier].lo;
        }
        if (!some) {
            return false;
        }
        *uppermost = *uppermost && c->hi > c->lo;
    }
    return true;
}

/* What looking up n keys under a root reads, asked for before it is needed: each of the loads waits
 * for the one before it, but not for those of other keys. */
static void ahead(const rdx_tree *t, uint32_t r, const uint8_t *keys, uint32_t n,
                  uint32_t *hashes) {
    uint32_t mask = t->table_cap - 1;
    for (uint32_t k = 0; k < n; k++) {
        hashes[k] = rdx_page_hash(t, r, keys + (size_t)k * t->page_bytes);
        __builtin_prefetch(&t->table[hashes[k] & mask]);
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = t->table[hashes[k] & mask].node;
        if (i != NIL) {
            __builtin_prefetch(node_at(t, i));
            __builtin_prefetch(cell_at(t, i, 0));
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = t->table[hashes[k] & mask].node;
        if (i != NIL) {
            __builtin_prefetch(pages_at(t, node_at(t, i)));
        }
    }
}

static bool is_key(const uint8_t *a, const uint8_t *b, uint32_t width) {
    return width == 16 ? memcmp(a, b, 16) == 0 : memcmp(a, b, width) == 0;
}

/* The child of a root that is this key, of which the hash is known. */
static uint32_t child_of(const rdx_tree *t, uint32_t r, uint32_t hash, const uint8_t *key) {
    uint32_t mask = t->table_cap - 1;
    for (uint32_t at = hash & mask; t->table[at].node != NIL; at = (at + 1) & mask) {
        if (t->table[at].hash == hash) {
            const node *x = node_at(t, t->table[at].node);
            if (x->parent == r && is_key(pages_at(t, x), key, t->page_bytes)) {
                return t->table[at].node;
            }
        }
    }
    return NIL;
}

int rdx_flat_reach(const rdx_tree *t, rdx_handle root, const uint8_t *parent, uint32_t page_bytes,
                   uint64_t groups, uint64_t readable, const void *run, uint32_t pages,
                   uint32_t *reached) {
    uint8_t keys[REACH_STEP * 16], above[16];
    uint32_t hashes[REACH_STEP];
    uint32_t r = node_of(t, root), width = t->page_bytes;
    reached[0] = reached[1] = 0;
    if (r == NIL || !(node_at(t, r)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    uint32_t count = t->columns / t->tiers;
    if ((parent ? width != 16 || page_bytes < 4 : page_bytes != width) ||
        (count < 64 && groups >> count)) {
        return RDX_EARG;
    }
    if (parent) {
        memcpy(above, parent, 16);
    }
    bool uppermost = true;
    for (uint32_t at = 0, n; at < pages; at += n) {
        n = pages - at < REACH_STEP ? pages - at : REACH_STEP;
        const uint8_t *key = (const uint8_t *)run + (size_t)at * page_bytes;
        if (parent) {
            rdx_keys_chain(above, key, n, page_bytes, keys);
            memcpy(above, keys + (size_t)(n - 1) * 16, 16);
            key = keys;
        }
        ahead(t, r, key, n, hashes);
        for (uint32_t k = 0; k < n; k++, key += width) {
            uint32_t i = child_of(t, r, hashes[k], key);
            if (i == NIL || !everywhere(t, i, groups, readable, &uppermost)) {
                return RDX_OK;
            }
            reached[0]++;
            reached[1] += uppermost;
        }
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
    return rdx_evict_for(t, column, FOR_ANYBODY, false, n, UINT64_MAX, slots, ids, roots, freed);
}
