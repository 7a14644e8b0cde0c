/* pool.c: who owns a slot. One byte of state for each slot, and the free ones in a doubly linked
 * list, so that a named slot (a claim after a restart, a retired segment) leaves it in O(1).
 *
 *              head                                   tail
 *     taken <-  last freed ... first freed | never used, ascending  <- grown, revived
 *
 * Invariants (rdx_pool_check): I7 every slot has one state and is in the list exactly if it is
 * free; I8 the counts by state add up to the capacity; I11 a call that fails changes nothing. */
#include "alloc.h"
#include "rdx.h"

#define STATE_COUNT 5
#define NO_LINK (-1)

typedef struct pool_link {
    int32_t next;
    int32_t previous;
} pool_link;

struct rdx_pool {
    uint32_t capacity;
    uint32_t counts[STATE_COUNT];
    int32_t head;
    int32_t tail;
    uint8_t *states;
    pool_link *links; /* meaningful for free slots only */
};

static void list_push_head(rdx_pool *pool, int32_t slot) {
    pool->links[slot] = (pool_link){pool->head, NO_LINK};
    if (pool->head == NO_LINK)
        pool->tail = slot;
    else
        pool->links[pool->head].previous = slot;
    pool->head = slot;
}

static void list_push_tail(rdx_pool *pool, int32_t slot) {
    pool->links[slot] = (pool_link){NO_LINK, pool->tail};
    if (pool->tail == NO_LINK)
        pool->head = slot;
    else
        pool->links[pool->tail].next = slot;
    pool->tail = slot;
}

static void list_remove(rdx_pool *pool, int32_t slot) {
    pool_link link = pool->links[slot];
    if (link.previous == NO_LINK)
        pool->head = link.next;
    else
        pool->links[link.previous].next = link.next;
    if (link.next == NO_LINK)
        pool->tail = link.previous;
    else
        pool->links[link.next].previous = link.previous;
}

/* Gives slots [first, first+n) of any other state the state FREE, behind all that are free. */
static void append_free(rdx_pool *pool, uint32_t first, uint32_t n) {
    for (uint32_t slot = first; slot < first + n; slot++) {
        pool->states[slot] = RDX_SLOT_FREE;
        list_push_tail(pool, (int32_t)slot);
    }
    pool->counts[RDX_SLOT_FREE] += n;
}

int rdx_pool_new(uint32_t capacity, rdx_pool **out) {
    if (out == NULL || capacity > INT32_MAX)
        return RDX_EARG;
    rdx_pool *pool = rdx_calloc(1, sizeof *pool);
    if (pool == NULL)
        return RDX_ENOMEM;
    pool->head = NO_LINK;
    pool->tail = NO_LINK;
    int status = rdx_pool_grow(pool, capacity);
    if (status != RDX_OK) {
        rdx_pool_free(pool);
        return status;
    }
    *out = pool;
    return RDX_OK;
}

void rdx_pool_free(rdx_pool *pool) {
    if (pool == NULL)
        return;
    rdx_free_mem(pool->states);
    rdx_free_mem(pool->links);
    rdx_free_mem(pool);
}

int rdx_pool_grow(rdx_pool *pool, uint32_t more) {
    if (more > (uint32_t)INT32_MAX - pool->capacity)
        return RDX_EARG;
    size_t capacity = (size_t)pool->capacity + more;
    /* If the second fails, the first is only longer than it need be. */
    uint8_t *states = rdx_realloc(pool->states, capacity * sizeof *states);
    if (states == NULL)
        return RDX_ENOMEM;
    pool->states = states;
    pool_link *links = rdx_realloc(pool->links, capacity * sizeof *links);
    if (links == NULL)
        return RDX_ENOMEM;
    pool->links = links;
    append_free(pool, pool->capacity, more);
    pool->capacity += more;
    return RDX_OK;
}

static int range_has_state(const rdx_pool *pool, uint32_t first, uint32_t n, uint32_t state) {
    if (first > pool->capacity || n > pool->capacity - first)
        return RDX_EARG;
    for (uint32_t slot = first; slot < first + n; slot++)
        if (pool->states[slot] != state)
            return RDX_ESLOT;
    return RDX_OK;
}

int rdx_pool_retire(rdx_pool *pool, uint32_t first, uint32_t n) {
    int status = range_has_state(pool, first, n, RDX_SLOT_FREE);
    if (status != RDX_OK)
        return status;
    for (uint32_t slot = first; slot < first + n; slot++) {
        list_remove(pool, (int32_t)slot);
        pool->states[slot] = RDX_SLOT_RETIRED;
    }
    pool->counts[RDX_SLOT_FREE] -= n;
    pool->counts[RDX_SLOT_RETIRED] += n;
    return RDX_OK;
}

int rdx_pool_revive(rdx_pool *pool, uint32_t first, uint32_t n) {
    int status = range_has_state(pool, first, n, RDX_SLOT_RETIRED);
    if (status != RDX_OK)
        return status;
    append_free(pool, first, n);
    pool->counts[RDX_SLOT_RETIRED] -= n;
    return RDX_OK;
}

int rdx_pool_reserve(rdx_pool *pool, uint32_t n, int32_t *out) {
    if (n > pool->counts[RDX_SLOT_FREE])
        return RDX_EFULL;
    int32_t slot = pool->head;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = slot;
        pool->states[slot] = RDX_SLOT_RESERVED;
        slot = pool->links[slot].next;
    }
    pool->head = slot;
    if (slot == NO_LINK)
        pool->tail = NO_LINK;
    else
        pool->links[slot].previous = NO_LINK;
    pool->counts[RDX_SLOT_FREE] -= n;
    pool->counts[RDX_SLOT_RESERVED] += n;
    return RDX_OK;
}

int rdx_pool_move(rdx_pool *pool, const int32_t *slots, uint32_t n, uint32_t from, uint32_t to,
                  uint32_t *bad) {
    if (from > RDX_SLOT_QUARANTINE || to > RDX_SLOT_QUARANTINE || from == to)
        return RDX_EARG;
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] >= 0 && (uint32_t)slots[i] < pool->capacity &&
            pool->states[slots[i]] == from) {
            pool->states[slots[i]] = (uint8_t)to; /* so that a second mention is seen as one */
            continue;
        }
        for (uint32_t k = 0; k < i; k++)
            pool->states[slots[k]] = (uint8_t)from;
        if (bad != NULL)
            *bad = i;
        return RDX_ESLOT;
    }
    if (from == RDX_SLOT_FREE)
        for (uint32_t i = 0; i < n; i++)
            list_remove(pool, slots[i]);
    if (to == RDX_SLOT_FREE)
        for (uint32_t i = n; i-- > 0;)
            list_push_head(pool, slots[i]);
    pool->counts[from] -= n;
    pool->counts[to] += n;
    return RDX_OK;
}

int rdx_pool_claim(rdx_pool *pool, const int32_t *slots, uint32_t n, uint32_t *bad) {
    return rdx_pool_move(pool, slots, n, RDX_SLOT_FREE, RDX_SLOT_USED, bad);
}

uint32_t rdx_pool_capacity(const rdx_pool *pool) { return pool->capacity; }

uint32_t rdx_pool_count(const rdx_pool *pool, uint32_t state) {
    return state < STATE_COUNT ? pool->counts[state] : 0;
}

uint32_t rdx_pool_state(const rdx_pool *pool, uint32_t slot) {
    return slot < pool->capacity ? pool->states[slot] : RDX_SLOT_RETIRED;
}

int rdx_pool_check(const rdx_pool *pool) {
    uint32_t counts[STATE_COUNT] = {0};
    uint32_t listed = 0;
    int32_t previous = NO_LINK;
    for (uint32_t slot = 0; slot < pool->capacity; slot++) {
        if (pool->states[slot] >= STATE_COUNT)
            return RDX_EINVARIANT;
        counts[pool->states[slot]]++;
    }
    for (uint32_t state = 0; state < STATE_COUNT; state++)
        if (counts[state] != pool->counts[state])
            return RDX_EINVARIANT;
    for (int32_t slot = pool->head; slot != NO_LINK; slot = pool->links[slot].next) {
        if (slot < 0 || (uint32_t)slot >= pool->capacity || pool->states[slot] != RDX_SLOT_FREE ||
            pool->links[slot].previous != previous || ++listed > counts[RDX_SLOT_FREE])
            return RDX_EINVARIANT;
        previous = slot;
    }
    return listed == counts[RDX_SLOT_FREE] && pool->tail == previous ? RDX_OK : RDX_EINVARIANT;
}
