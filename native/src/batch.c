/* batch.c: what one step of a scheduler asks for many requests, in one crossing. Each call is the
 * loop of the single ones in the given order, but for this: all is checked, and what could fail
 * for want of memory is taken, before the first of them changes anything. So a call that fails
 * says whose fault it was and leaves everything as it was (I11).
 *
 *     requests    0 1 2 3 ... m-1
 *     checked     + + + x              *bad = 3, nothing has changed
 *     checked     + + + + ... +        room for all of them; then each goes in, and none can fail
 */
#include "tree.h"

#define MARKED (NIL - 1)

/* The first of n leases that is not held, or stands twice; n for none. 0 is no lease. */
static uint32_t first_bad_lease(rdx_tree *t, const uint64_t *leases, uint32_t n) {
    uint32_t k = 0;
    for (; k < n; k++) {
        lease_slot *l = rdx_lease_of(t, leases[k]);
        if (leases[k] && (!l || l->next_free == MARKED)) {
            break;
        }
        if (l) {
            l->next_free = MARKED;
        }
    }
    for (uint32_t j = 0; j < k; j++) {
        lease_slot *l = rdx_lease_of(t, leases[j]);
        if (l) {
            l->next_free = NIL; /* a slot in use has no mark */
        }
    }
    return k;
}

int rdx_lease_take_many(rdx_tree *t, const rdx_cursor *at, uint32_t m, uint64_t mask,
                        uint64_t *leases, rdx_cursor *ends, uint32_t *bad) {
    for (*bad = 0; *bad < m; (*bad)++) {
        uint32_t i;
        uint32_t pages;
        rdx_resolve(t, at[*bad], &i, &pages);
        if (i == NIL) {
            return RDX_ESTALE;
        }
    }
    int status = rdx_make_room(t, m); /* a split each */
    if (status == RDX_OK) {
        status = rdx_lease_room(t, m);
    }
    for (uint32_t k = 0; k < m && status == RDX_OK; k++) {
        status = rdx_lease_take(t, at[k], mask, RDX_BY_RULE, &leases[k], &ends[k]);
    }
    return status;
}

int rdx_lease_release_many(rdx_tree *t, const uint64_t *leases, uint32_t m, int stamp,
                           uint32_t *bad) {
    *bad = first_bad_lease(t, leases, m);
    for (uint32_t k = 0; k < *bad; k++) {
        *bad = leases[k] ? *bad : k;
    }
    for (uint32_t k = 0; k < m && *bad == m; k++) {
        rdx_lease_release(t, leases[k], stamp);
    }
    return *bad == m ? RDX_OK : RDX_ELEASE;
}

/* One insert of a batch. */
typedef struct part {
    const uint8_t *run;
    uint32_t n;
    const int32_t *slots;
    int32_t *canonical;
    uint64_t lease;
    void *spare; /* room for all its pages: it may need less, never more */
    size_t spare_bytes;
} part;

/* The most nodes that an insert can take: one for each slot of a group that is not full, and what
 * its two ends and a touch cost. */
static uint64_t splits_for(const rdx_tree *t, const part *p, const uint32_t *columns, uint32_t n) {
    uint64_t found = 3;
    for (uint32_t c = 0; c < n; c++) {
        const int32_t *row = p->slots + (size_t)c * p->n;
        for (uint32_t i = 0; is_sparse(t, columns[c]) && i < p->n; i++) {
            found += row[i] != RDX_NO_SLOT;
        }
    }
    return found;
}

static void parts_free(rdx_tree *t, part *parts, uint32_t m) {
    for (uint32_t k = 0; k < m; k++) {
        rdx_room_give(t, parts[k].spare);
    }
    rdx_free_mem(parts);
}

/* Room for all of them, so that no insert has to ask for any. */
static int parts_room(rdx_tree *t, part *parts, uint32_t m, const uint32_t *columns,
                      uint32_t ncolumns) {
    uint64_t more = 258; /* what one insert asks for at most, whatever its slots are */
    for (uint32_t k = 0; k < m; k++) {
        more += splits_for(t, &parts[k], columns, ncolumns);
    }
    int status = more < NIL / 2 ? rdx_make_room(t, (uint32_t)more) : RDX_ENOMEM;
    for (uint32_t k = 0; k < m && status == RDX_OK; k++) {
        if (parts[k].n) {
            parts[k].spare_bytes = rdx_buffer_bytes(t, parts[k].n);
            parts[k].spare = rdx_room_take(t, parts[k].spare_bytes);
            status = parts[k].spare ? RDX_OK : RDX_ENOMEM;
        }
    }
    return status;
}

int rdx_tree_insert_many(rdx_tree *t, const rdx_cursor *from, uint32_t m, const void *const *pages,
                         const uint32_t *counts, const uint32_t *columns, uint32_t ncolumns,
                         const int32_t *slots, uint64_t nslots, int32_t *canonical,
                         const uint64_t *leases, int touch, rdx_insert *out, uint32_t *bad) {
    *bad = leases ? first_bad_lease(t, leases, m) : m;
    if (*bad < m) {
        return RDX_ELEASE;
    }
    part *parts = rdx_calloc(m, sizeof(*parts));
    int status = parts ? RDX_OK : RDX_ENOMEM;
    uint64_t at = 0;
    for (uint32_t k = 0; k < m && status == RDX_OK; k++) {
        part *p = &parts[k];
        uint32_t first = from[k].pages < counts[k] ? from[k].pages : counts[k];
        uint32_t node;
        *p = (part){.run = (const uint8_t *)pages[k] + (size_t)first * t->page_bytes,
                    .n = counts[k] - first,
                    .slots = slots + at,
                    .canonical = canonical ? canonical + at : NULL,
                    .lease = leases ? leases[k] : 0};
        at += (uint64_t)p->n * ncolumns;
        status = rdx_insert_check(t, from[k], p->run, p->n, columns, ncolumns, p->lease, &node);
        status = status == RDX_OK && at > nslots ? RDX_EARG : status;
        *bad = status == RDX_OK ? m : k;
    }
    if (status == RDX_OK) {
        status = parts_room(t, parts, m, columns, ncolumns);
    }
    for (uint32_t k = 0; k < m && status == RDX_OK; k++) {
        part *p = &parts[k];
        t->spare = p->spare;
        t->spare_bytes = p->spare_bytes;
        p->spare = NULL;
        if (touch && from[k].pages) {
            rdx_touch(t, from[k]);
        }
        status = rdx_tree_insert(t, from[k], p->run, p->n, columns, ncolumns, p->slots,
                                 p->canonical, p->lease, &out[k]);
        p->spare = t->spare; /* not needed, or NULL */
        t->spare = NULL;
        t->spare_bytes = 0;
    }
    if (parts) {
        parts_free(t, parts, m);
    }
    return status;
}
