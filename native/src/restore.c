/* restore.c: paths rebuilt from the unordered records of a reopened disk. Records are linked by
 * their chained keys, runs of single children enter the tree as one edge, and the order of last use
 * is the order of the records. Records of windows and snapshots find their pages by key.
 */
#include "tree.h"

typedef struct links {
    uint32_t cap;     /* of the index, a power of two */
    uint32_t *index;  /* key -> record */
    uint32_t *first;  /* first child of a record, [n] is the root's */
    uint32_t *next;   /* next child of the same parent */
    uint32_t *parent; /* record, n for the root, NIL for none; TIP once it ended a path */
    uint32_t *stack;
    rdx_cursor *ends; /* of the run that ends with this record */
    uint8_t *pages;   /* one run */
    int32_t *slots;
    int32_t *kept; /* the slots that count for it */
    uint32_t *run; /* its records */
} links;

#define TIP (NIL - 1)

static void links_free(links *l) {
    rdx_free_mem(l->index);
    rdx_free_mem(l->first);
    rdx_free_mem(l->next);
    rdx_free_mem(l->parent);
    rdx_free_mem(l->stack);
    rdx_free_mem(l->ends);
    rdx_free_mem(l->pages);
    rdx_free_mem(l->slots);
    rdx_free_mem(l->kept);
    rdx_free_mem(l->run);
}

static int links_new(links *l, uint32_t n, uint32_t page_bytes) {
    memset(l, 0, sizeof *l);
    l->cap = 64;
    while (l->cap < (uint64_t)n * 2) {
        l->cap *= 2;
    }
    l->index = rdx_malloc((size_t)l->cap * 4);
    l->first = rdx_malloc(((size_t)n + 1) * 4);
    l->next = rdx_malloc((size_t)n * 4);
    l->parent = rdx_malloc((size_t)n * 4);
    l->stack = rdx_malloc((size_t)n * 4);
    l->ends = rdx_malloc((size_t)n * sizeof(rdx_cursor));
    l->pages = rdx_malloc((size_t)n * page_bytes);
    l->slots = rdx_malloc((size_t)n * 4);
    l->kept = rdx_malloc((size_t)n * 4);
    l->run = rdx_malloc((size_t)n * 4);
    if (!l->index || !l->first || !l->next || !l->parent || !l->stack || !l->ends || !l->pages ||
        !l->slots || !l->kept || !l->run) {
        links_free(l);
        return RDX_ENOMEM;
    }
    memset(l->index, 0xff, (size_t)l->cap * 4);
    memset(l->first, 0xff, ((size_t)n + 1) * 4);
    memset(l->ends, 0, (size_t)n * sizeof(rdx_cursor));
    return RDX_OK;
}

static uint32_t key_home(const links *l, const uint8_t *key) {
    uint32_t h;
    memcpy(&h, key, 4);
    return h & (l->cap - 1);
}

static uint32_t key_find(const links *l, const uint8_t *keys, const uint8_t *key) {
    uint32_t at = key_home(l, key);
    while (l->index[at] != NIL && memcmp(keys + (size_t)l->index[at] * 16, key, 16) != 0) {
        at = (at + 1) & (l->cap - 1);
    }
    return l->index[at];
}

/* Indexes the records whose key is true; of two with one key the newer counts. */
static void index_records(links *l, const rdx_tree *t, uint32_t n, const uint8_t *keys,
                          const uint8_t *parents, const uint8_t *pages) {
    uint8_t key[16];
    for (uint32_t i = n; i-- > 0;) {
        const uint8_t *k = keys + (size_t)i * 16;
        rdx_keys_chain(parents + (size_t)i * 16, pages + (size_t)i * t->page_bytes, 1,
                       t->page_bytes, key);
        l->parent[i] = NIL;
        if (memcmp(key, k, 16) != 0 || key_find(l, keys, k) != NIL) {
            continue;
        }
        uint32_t at = key_home(l, k);
        while (l->index[at] != NIL) {
            at = (at + 1) & (l->cap - 1);
        }
        l->index[at] = i;
        l->parent[i] = i; /* indexed; the real parent follows */
    }
}

static void join_records(links *l, uint32_t n, const uint8_t *keys, const uint8_t *parents,
                         const uint8_t *root_key) {
    for (uint32_t i = 0; i < n; i++) {
        if (l->parent[i] == NIL) {
            continue;
        }
        const uint8_t *p = parents + (size_t)i * 16;
        uint32_t parent = memcmp(p, root_key, 16) == 0 ? n : key_find(l, keys, p);
        l->parent[i] = parent;
        if (parent != NIL) {
            l->next[i] = l->first[parent];
            l->first[parent] = i;
        }
    }
}

/* Takes the run that begins with record i: as long as there is exactly one child. */
static uint32_t gather_run(links *l, const rdx_tree *t, uint32_t i, const uint8_t *pages,
                           const int32_t *slots, uint32_t *length) {
    *length = 0;
    for (;;) {
        memcpy(l->pages + (size_t)*length * t->page_bytes, pages + (size_t)i * t->page_bytes,
               t->page_bytes);
        l->slots[*length] = slots[i];
        l->run[*length] = i;
        (*length)++;
        uint32_t child = l->first[i];
        if (child == NIL || l->next[child] != NIL) {
            return i;
        }
        i = child;
    }
}

/* Where the page of a record lies; splits may have moved it to a node further up. */
typedef struct place {
    uint32_t node;
    uint32_t page;
} place;

static uint32_t node_of_place(const rdx_tree *t, const place *at) {
    uint32_t i = at->node;
    while (node_at(t, i)->start > at->page) {
        i = node_at(t, i)->parent;
    }
    return i;
}

/* Finds the pages under root r that records name; `order` lists these records in page order. */
static uint32_t find_places(const links *l, const rdx_tree *t, uint32_t r, const uint8_t *keys,
                            place *places, uint32_t *order) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < t->node_used; i++) {
        const node *x = node_at(t, i);
        if (!(x->flags & NODE_LIVE) || x->flags & NODE_ROOT || x->root != r) {
            continue;
        }
        for (uint32_t p = 0; p < x->len; p++) {
            uint32_t k = key_find(l, keys, keys_at(t, x) + (size_t)p * 16);
            if (k != NIL) {
                places[k] = (place){i, x->start + p};
                order[found++] = k;
            }
        }
    }
    return found;
}

/* The records' order of age, which is that of their ids, becomes the order of last use. */
static void stamp_places(rdx_tree *t, uint32_t column, uint32_t n, const place *places,
                         const uint8_t *linked) {
    for (uint32_t k = 0; k < n; k++) {
        if (!linked[k]) {
            continue;
        }
        uint32_t i = node_of_place(t, &places[k]);
        t->clock++;
        if (cell_at(t, i, column)->listed) {
            rdx_list_tail(t, i, column, t->clock);
        } else if (is_sparse(t, column)) {
            cell_at(t, i, column)->stamp = t->clock;
        }
    }
}

/* Records of a group whose blocks do not build the paths. */
static int restore_places(rdx_tree *t, uint32_t r, uint32_t column, uint32_t n, const uint8_t *keys,
                          const uint8_t *parents, const void *pages, const int32_t *slots,
                          uint8_t *linked, uint32_t *nlinked) {
    links l;
    place *places = rdx_malloc((size_t)n * sizeof(place));
    uint32_t *order = rdx_malloc((size_t)n * 4);
    int status = places && order ? links_new(&l, n, t->page_bytes) : RDX_ENOMEM;
    if (status == RDX_OK) {
        index_records(&l, t, n, keys, parents, pages);
        uint32_t found = find_places(&l, t, r, keys, places, order);
        for (uint32_t j = 0; j < found && status == RDX_OK; j++) {
            uint32_t k = order[j];
            status = rdx_make_room(t, 2);
            if (status == RDX_OK) {
                uint32_t i = node_of_place(t, &places[k]);
                uint32_t twice = 0;
                int32_t kept;
                rdx_attach_path(t, i, column, places[k].page, 1, &slots[k], &kept, &twice);
                rdx_list_leaves(t, i, column, places[k].page);
                rdx_review_path(t, i, places[k].page);
                linked[k] = slots[k] != RDX_NO_SLOT && kept == slots[k];
                *nlinked += linked[k];
            }
        }
        stamp_places(t, column, n, places, linked);
        links_free(&l);
    }
    rdx_free_mem(places);
    rdx_free_mem(order);
    return status;
}

int rdx_tree_restore(rdx_tree *t, rdx_handle root, uint32_t column, uint32_t n, const uint8_t *keys,
                     const uint8_t *parents, const void *pages, const int32_t *slots, int each_page,
                     uint8_t *linked, uint32_t *nlinked) {
    uint32_t r = node_of(t, root);
    *nlinked = 0;
    if (r == NIL || !(node_at(t, r)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    bool placed = column < t->columns && t->placed >> column & 1;
    const rdx_group *rule = placed ? rule_of(t, column) : NULL;
    if (column >= t->columns || (placed && !t->key_bytes) ||
        (placed && each_page && (rule->rule != RDX_RULE_FULL || rule->lookahead_pages))) {
        return RDX_EARG;
    }
    memset(linked, 0, n);
    if (n == 0) {
        return RDX_OK;
    }
    if (placed && !each_page) {
        return restore_places(t, r, column, n, keys, parents, pages, slots, linked, nlinked);
    }
    links l;
    int status = links_new(&l, n, t->page_bytes);
    if (status != RDX_OK) {
        return status;
    }
    index_records(&l, t, n, keys, parents, pages);
    join_records(&l, n, keys, parents, rdx_root_key(t, r));
    t->uncounted = true; /* what was used before is not known */
    t->untrimmed = true; /* a run may end within a block */
    uint32_t top = 0;
    for (uint32_t i = l.first[n]; i != NIL; i = l.next[i]) {
        l.stack[top++] = i;
    }
    while (top && status == RDX_OK) {
        uint32_t i = l.stack[--top];
        rdx_cursor from = l.parent[i] == n ? (rdx_cursor){root, root, 0} : l.ends[l.parent[i]];
        uint32_t length;
        uint32_t last = gather_run(&l, t, i, pages, slots, &length);
        rdx_insert result;
        status = rdx_tree_insert(t, from, l.pages, length, &column, 1, l.slots, l.kept, 0, &result);
        if (status != RDX_OK) {
            break;
        }
        for (uint32_t k = 0; k < length; k++) {
            linked[l.run[k]] = l.kept[k] == l.slots[k];
            *nlinked += linked[l.run[k]];
        }
        l.ends[last] = result.end;
        l.parent[last] = l.first[last] == NIL ? TIP : l.parent[last];
        for (uint32_t c = l.first[last]; c != NIL; c = l.next[c]) {
            l.stack[top++] = c;
        }
    }
    for (uint32_t i = 0; i < n && status == RDX_OK; i++) {
        if (l.parent[i] == TIP) {
            rdx_touch(t, l.ends[i]);
        }
    }
    t->uncounted = false;
    t->untrimmed = false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end, pages;
        rdx_resolve(t, l.ends[i], &end, &pages);
        rdx_trim(t, end);
    }
    links_free(&l);
    return status;
}
