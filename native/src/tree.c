/* tree.c: pure structure. Nodes, the child table, shared edge buffers, split, insert, leases.
 * Knows no group, tier or policy: it copies, grows and compacts rows of bytes and reads only the
 * pages. Keeps I1-I6, I13, I14. No recursion; what can fail is reserved before anything changes.
 */
#include "tree.h"

/* ---------------------------------------------------------------- hashing and comparing */
static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t r = (__uint128_t)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint32_t rdx_page_hash(const rdx_tree *t, uint32_t parent, const void *page) {
    const uint8_t *p = page;
    uint32_t left = t->page_bytes;
    /* a factor of 0 would make all first words alike: seed 0 under node 0 must not be one */
    uint64_t h = t->seed ^ ((parent + 1ull) * 0x9E3779B97F4A7C15ull);
    uint64_t g = t->seed ^ 0x589965CC75374CC3ull;
    uint64_t w[4];
    while (left >= 32) {
        memcpy(w, p, 32);
        h = mix(w[0] ^ 0xA0761D6478BD642Full, w[1] ^ h);
        g = mix(w[2] ^ 0xE7037ED1A0B428DBull, w[3] ^ g);
        p += 32;
        left -= 32;
    }
    if (left) {
        memset(w, 0, sizeof w);
        if (left == 16) { /* chained keys: no call for so few bytes */
            memcpy(w, p, 16);
        } else {
            memcpy(w, p, left);
        }
        h = mix(w[0] ^ 0xA0761D6478BD642Full, w[1] ^ h);
        g = mix(w[2] ^ 0xE7037ED1A0B428DBull, w[3] ^ g);
    }
    h = mix(h ^ 0x8EBC6AF09C88C6E3ull, g ^ t->page_bytes);
    return (uint32_t)(h ^ (h >> 32));
}

uint32_t rdx_shared_pages(const void *a, const void *b, uint32_t n, uint32_t page_bytes,
                          const rdx_ahead *next) {
    uint64_t total = (uint64_t)n * page_bytes;
    uint64_t same = rdx_shared_bytes(a, b, total, next);
    return same == total ? n : (uint32_t)(same / page_bytes);
}

/* ---------------------------------------------------------------- child table */
static void table_put(entry *table, uint32_t cap, uint32_t hash, uint32_t i) {
    uint32_t at = hash & (cap - 1);
    while (table[at].node != NIL) {
        at = (at + 1) & (cap - 1);
    }
    table[at].hash = hash;
    table[at].node = i;
}

static int table_room(rdx_tree *t, uint32_t more) {
    uint64_t need = (uint64_t)t->table_used + more;
    uint32_t cap = t->table_cap ? t->table_cap : 64;
    while (need * 3 > (uint64_t)cap * 2) {
        if (cap >= 1u << 31) {
            return RDX_ENOMEM;
        }
        cap *= 2;
    }
    if (cap == t->table_cap) {
        return RDX_OK;
    }
    entry *table = rdx_malloc(sizeof(entry) * (size_t)cap);
    if (!table) {
        return RDX_ENOMEM;
    }
    rdx_ask_huge(table, sizeof(entry) * (size_t)cap);
    memset(table, 0xff, sizeof(entry) * (size_t)cap);
    for (uint32_t i = 0; i < t->table_cap; i++) {
        if (t->table[i].node != NIL) {
            table_put(table, cap, t->table[i].hash, t->table[i].node);
        }
    }
    rdx_free_mem(t->table);
    t->table = table;
    t->table_cap = cap;
    return RDX_OK;
}

void rdx_table_add(rdx_tree *t, uint32_t i) {
    node *x = node_at(t, i);
    x->hash = rdx_page_hash(t, x->parent, pages_at(t, x));
    table_put(t->table, t->table_cap, x->hash, i);
    t->table_used++;
}

/* Backward shift, so that no tombstones pile up. */
static void table_drop(rdx_tree *t, uint32_t i) {
    uint32_t mask = t->table_cap - 1;
    uint32_t at = node_at(t, i)->hash & mask;
    while (t->table[at].node != i) {
        at = (at + 1) & mask;
    }
    uint32_t gap = at;
    for (;;) {
        at = (at + 1) & mask;
        if (t->table[at].node == NIL) {
            break;
        }
        uint32_t home = t->table[at].hash & mask;
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            t->table[gap] = t->table[at];
            gap = at;
        }
    }
    t->table[gap].node = NIL;
    t->table_used--;
}

uint32_t rdx_child_likely(const rdx_tree *t, uint32_t parent, const void *page) {
    uint32_t hash = rdx_page_hash(t, parent, page);
    uint32_t mask = t->table_cap - 1;
    for (uint32_t at = hash & mask; t->table[at].node != NIL; at = (at + 1) & mask) {
        uint32_t i = t->table[at].node;
        if (t->table[at].hash == hash) {
            __builtin_prefetch(cell_at(t, i, 0));
            if (node_at(t, i)->parent == parent) {
                return i;
            }
        }
    }
    return NIL;
}

uint32_t rdx_child_step(const rdx_tree *t, uint32_t parent, const void *pages, uint32_t n,
                        uint32_t *shared) {
    uint32_t hash = rdx_page_hash(t, parent, pages);
    uint32_t mask = t->table_cap - 1;
    for (uint32_t at = hash & mask; t->table[at].node != NIL; at = (at + 1) & mask) {
        if (t->table[at].hash != hash) {
            continue;
        }
        uint32_t i = t->table[at].node;
        const node *x = node_at(t, i);
        __builtin_prefetch(cell_at(t, i, 0));
        if (x->parent != parent) {
            continue;
        }
        uint32_t most = n < x->len ? n : x->len;
        if (most < n) { /* an edge mostly agrees: what the next step looks up is on its way then */
            const uint8_t *behind = (const uint8_t *)pages + (size_t)most * t->page_bytes;
            __builtin_prefetch(&t->table[rdx_page_hash(t, i, behind) & mask]);
        }
        *shared = rdx_shared_pages(pages_at(t, x), pages, most, t->page_bytes, NULL);
        if (*shared) {
            return i;
        }
    }
    *shared = 0;
    return NIL;
}

/* ---------------------------------------------------------------- buffers */
static buffer *take_spare(rdx_tree *t) {
    buffer *b = t->spare;
    t->spare = NULL;
    t->spare_bytes = 0;
    return b;
}

buffer *rdx_buffer_new(rdx_tree *t, uint32_t cap) {
    size_t bytes = rdx_buffer_bytes(t, cap);
    buffer *b = t->spare_bytes == bytes ? take_spare(t) : rdx_room_take(t, bytes);
    if (!b && t->spare_bytes >= bytes) {
        b = take_spare(t);
    }
    if (!b) {
        return NULL;
    }
    *b = (buffer){.cap = cap};
    t->buffers++;
    t->buffer_bytes += bytes;
    return b;
}

void rdx_buffer_free(rdx_tree *t, buffer *b) {
    t->buffers--;
    t->buffer_bytes -= rdx_buffer_bytes(t, b->cap);
    rdx_room_give(t, b);
}

/* Copies n pages of every stripe. */
void rdx_buffer_copy(const rdx_tree *t, buffer *to, uint32_t to_off, const buffer *from,
                     uint32_t from_off, uint32_t n) {
    node a = {.off = to_off, .buf = to};
    node b = {.off = from_off, .buf = (buffer *)from};
    if (t->key_bytes) {
        memcpy(keys_at(t, &a), keys_at(t, &b), (size_t)n * t->key_bytes);
    }
    for (uint32_t c = 0; c < t->rows; c++) {
        memcpy(slots_at(t, &a, c), slots_at(t, &b, c), (size_t)n * 4);
    }
    memcpy(pages_at(t, &a), pages_at(t, &b), (size_t)n * t->page_bytes);
}

void rdx_ring_add(rdx_tree *t, uint32_t i, uint32_t mate) {
    node *x = node_at(t, i);
    if (mate == NIL) {
        x->buf_next = x->buf_prev = i;
        return;
    }
    node *m = node_at(t, mate);
    x->buf_next = m->buf_next;
    x->buf_prev = mate;
    node_at(t, m->buf_next)->buf_prev = i;
    m->buf_next = i;
}

void rdx_buffer_leave(rdx_tree *t, uint32_t i) {
    node *x = node_at(t, i);
    buffer *b = x->buf;
    node_at(t, x->buf_prev)->buf_next = x->buf_next;
    node_at(t, x->buf_next)->buf_prev = x->buf_prev;
    b->live -= x->len;
    if (--b->refs == 0) {
        rdx_buffer_free(t, b);
    }
    x->buf = NULL;
}

/* A buffer under half live gives its nodes a smaller one. Without memory it stays as it is. */
static void buffer_compact(rdx_tree *t, uint32_t mate) {
    buffer *old = node_at(t, mate)->buf;
    if (old->cap < 8 || old->live * 2 >= old->cap) {
        return;
    }
    buffer *b = rdx_buffer_new(t, old->live);
    if (!b) {
        return;
    }
    uint32_t i = mate;
    do {
        node *x = node_at(t, i);
        rdx_buffer_copy(t, b, b->used, old, x->off, x->len);
        x->off = b->used;
        x->buf = b;
        b->used += x->len;
        i = x->buf_next;
    } while (i != mate);
    b->live = b->used;
    b->refs = old->refs;
    rdx_buffer_free(t, old);
    t->compactions++;
}

/* ---------------------------------------------------------------- nodes */
static int node_room(rdx_tree *t, uint32_t more) {
    uint64_t need = (uint64_t)t->node_used + more; /* the free chain is a bonus */
    if (need <= t->node_cap) {
        return RDX_OK;
    }
    uint64_t cap = t->node_cap ? t->node_cap : 16;
    while (cap < need) {
        cap *= 2;
    }
    if (cap >= NIL) {
        return RDX_ENOMEM;
    }
    node *nodes = rdx_realloc(t->nodes, cap * sizeof(node));
    if (!nodes) {
        return RDX_ENOMEM;
    }
    rdx_ask_huge(nodes, cap * sizeof(node));
    t->nodes = nodes;
    t->node_cap = (uint32_t)cap;
    return RDX_OK;
}

bool rdx_has_room(const rdx_tree *t, uint64_t more) {
    return t->node_used + more <= t->node_cap &&
           (t->table_used + more) * 3 <= (uint64_t)t->table_cap * 2 &&
           (t->columns == 0 || t->cell_nodes >= t->node_cap);
}

int rdx_make_room(rdx_tree *t, uint32_t more) {
    int status = node_room(t, more);
    if (status == RDX_OK) {
        status = table_room(t, more);
    }
    if (status == RDX_OK && t->observer.reserve) {
        status = t->observer.reserve(t->observer.self, t->node_cap);
    }
    return status;
}

uint32_t rdx_node_new(rdx_tree *t) {
    uint32_t i = t->node_free;
    uint32_t gen = 1;
    if (i != NIL) {
        t->node_free = node_at(t, i)->parent;
        gen = node_at(t, i)->gen;
    } else {
        i = t->node_used++;
    }
    *node_at(t, i) = (node){.gen = gen,
                            .flags = NODE_LIVE,
                            .parent = NIL,
                            .first_child = NIL,
                            .next_sibling = NIL,
                            .prev_sibling = NIL};
    t->live_nodes++;
    return i;
}

static void node_free(rdx_tree *t, uint32_t i) {
    node *x = node_at(t, i);
    x->flags = 0;
    x->gen = x->gen == UINT32_MAX ? 1 : x->gen + 1;
    x->parent = t->node_free;
    t->node_free = i;
    t->live_nodes--;
}

void rdx_child_link(rdx_tree *t, uint32_t parent, uint32_t i) {
    node *p = node_at(t, parent);
    node *x = node_at(t, i);
    x->parent = parent;
    x->prev_sibling = NIL;
    x->next_sibling = p->first_child;
    if (p->first_child != NIL) {
        node_at(t, p->first_child)->prev_sibling = i;
    }
    p->first_child = i;
}

static void child_unlink(rdx_tree *t, uint32_t i) {
    node *x = node_at(t, i);
    if (x->prev_sibling != NIL) {
        node_at(t, x->prev_sibling)->next_sibling = x->next_sibling;
    } else {
        node_at(t, x->parent)->first_child = x->next_sibling;
    }
    if (x->next_sibling != NIL) {
        node_at(t, x->next_sibling)->prev_sibling = x->prev_sibling;
    }
}

uint32_t rdx_split(rdx_tree *t, uint32_t lower, uint32_t at) {
    uint32_t upper = rdx_node_new(t);
    node *u = node_at(t, upper);
    node *l = node_at(t, lower);
    table_drop(t, lower);
    u->root = l->root;
    u->start = l->start;
    u->len = at;
    u->off = l->off;
    u->buf = l->buf;
    u->buf->refs++;
    rdx_ring_add(t, upper, lower);
    /* the upper node takes the lower one's place among its siblings */
    uint32_t parent = l->parent;
    child_unlink(t, lower);
    rdx_child_link(t, parent, upper);
    u->first_child = NIL;
    rdx_child_link(t, upper, lower);
    u->protect = l->protect ? 1 : 0;
    l->start += at;
    l->off += at;
    l->len -= at;
    rdx_table_add(t, upper);
    rdx_table_add(t, lower);
    t->splits++;
    if (t->observer.split) {
        t->observer.split(t->observer.self, upper, lower, at);
    }
    return upper;
}

static void node_remove(rdx_tree *t, uint32_t i) {
    node *x = node_at(t, i);
    if (t->observer.remove) {
        t->observer.remove(t->observer.self, i);
    }
    table_drop(t, i);
    child_unlink(t, i);
    t->live_pages -= x->len;
    rdx_buffer_leave(t, i);
    node_free(t, i);
    t->removed++;
}

void rdx_trim(rdx_tree *t, uint32_t i) {
    while (i != NIL && !t->untrimmed) {
        node *x = node_at(t, i);
        if (x->flags & NODE_ROOT || x->first_child != NIL || x->protect) {
            return;
        }
        uint32_t held = t->observer.held ? t->observer.held(t->observer.self, i) : x->len;
        if (held == x->len) {
            return;
        }
        if (held == 0) {
            uint32_t parent = x->parent;
            uint32_t mate = x->buf_next == i ? NIL : x->buf_next;
            node_remove(t, i);
            if (mate != NIL) {
                buffer_compact(t, mate);
            }
            i = parent;
            continue;
        }
        uint32_t gone = x->len - held;
        x->len = held;
        x->flags |= NODE_TRIMMED;
        x->buf->live -= gone;
        t->live_pages -= gone;
        buffer_compact(t, i);
        if (t->observer.resize) {
            t->observer.resize(t->observer.self, i);
        }
        return;
    }
}

/* ---------------------------------------------------------------- construction */
int rdx_tree_new(const rdx_tree_config *config, const rdx_group *groups, rdx_tree **out) {
    *out = NULL;
    uint64_t columns = (uint64_t)config->groups * config->tiers;
    if (config->page_bytes == 0 || config->page_bytes > 1u << 20 || columns > RDX_MAX_COLUMNS ||
        config->tiers > RDX_MAX_TIERS || (config->groups == 0) != (config->tiers == 0) ||
        (config->key_bytes != 0 && config->key_bytes != 16) ||
        (config->check_ids && config->page_bytes % 4)) {
        return RDX_EARG;
    }
    rdx_tree *t = rdx_calloc(1, sizeof(*t));
    if (!t) {
        return RDX_ENOMEM;
    }
    t->page_bytes = config->page_bytes;
    t->key_bytes = config->key_bytes;
    t->groups = config->groups;
    t->tiers = config->tiers;
    t->columns = (uint32_t)columns;
    t->check_ids = config->check_ids;
    t->page_tokens = config->page_tokens ? config->page_tokens : 1;
    t->seed = config->seed;
    t->node_free = NIL;
    t->lease_free = NIL;
    int status = rdx_rules_new(t, groups);
    if (status == RDX_OK) {
        status = rdx_columns_new(t);
    }
    if (status == RDX_OK) {
        status = rdx_make_room(t, 16);
    }
    if (status != RDX_OK) {
        rdx_tree_free(t);
        return status;
    }
    *out = t;
    return RDX_OK;
}

void rdx_tree_free(rdx_tree *t) {
    if (!t) {
        return;
    }
    for (uint32_t i = 0; i < t->node_used; i++) {
        node *x = node_at(t, i);
        if (x->flags & NODE_LIVE && x->buf && --x->buf->refs == 0) {
            rdx_room_give(t, x->buf);
        }
    }
    rdx_arena_free(&t->arena);
    rdx_policy_free(t);
    rdx_columns_free(t);
    rdx_tenants_free(t);
    rdx_free_mem(t->nodes);
    rdx_free_mem(t->table);
    rdx_free_mem(t->leases);
    rdx_free_mem(t->root_keys);
    rdx_free_mem(t);
}

uint32_t rdx_tree_page_bytes(const rdx_tree *t) { return t->page_bytes; }

uint32_t rdx_tree_id_bytes(const rdx_tree *t) {
    return t->key_bytes ? t->key_bytes : t->page_bytes;
}

int rdx_tree_checks_ids(const rdx_tree *t) { return t->check_ids != 0; }

void rdx_tree_get_stats(const rdx_tree *t, rdx_tree_stats *out) {
    *out = (rdx_tree_stats){
        .nodes = t->live_nodes,
        .pages = t->live_pages,
        .buffers = t->buffers,
        .bytes = rdx_room_bytes(t) + (uint64_t)t->node_cap * sizeof(node) +
                 (uint64_t)t->table_cap * sizeof(entry) +
                 (uint64_t)t->cell_nodes * t->columns * sizeof(cell) +
                 (uint64_t)t->lease_cap * sizeof(lease_slot) + rdx_policy_bytes(t) +
                 rdx_tenants_bytes(t),
        .roots = t->roots,
        .leases = t->live_leases,
        .clock = t->clock,
        .splits = t->splits,
        .compactions = t->compactions,
        .removed_nodes = t->removed,
    };
}

int rdx_root_new(rdx_tree *t, const uint8_t *key, rdx_handle *out) {
    int status = rdx_make_room(t, 1);
    if (status != RDX_OK) {
        return status;
    }
    if (t->root_key_used == t->root_key_cap) {
        uint32_t cap = t->root_key_cap ? t->root_key_cap * 2 : 4;
        void *keys = rdx_realloc(t->root_keys, cap * sizeof(*t->root_keys));
        if (!keys) {
            return RDX_ENOMEM;
        }
        t->root_keys = keys;
        t->root_key_cap = cap;
    }
    uint32_t i = rdx_node_new(t);
    node *x = node_at(t, i);
    x->flags |= NODE_ROOT;
    x->root = i;
    x->off = t->root_key_used;
    struct root_key *k = &t->root_keys[t->root_key_used++];
    k->node = i;
    memset(k->key, 0, 16);
    if (key) {
        memcpy(k->key, key, 16);
    }
    t->roots++;
    *out = handle_of(t, i);
    return RDX_OK;
}

const uint8_t *rdx_root_key(const rdx_tree *t, uint32_t root) {
    return t->root_keys[node_at(t, root)->off].key;
}

int rdx_root_free(rdx_tree *t, rdx_handle root) {
    uint32_t i = node_of(t, root);
    if (i == NIL || !(node_at(t, i)->flags & NODE_ROOT)) {
        return RDX_ESTALE;
    }
    if (node_at(t, i)->first_child != NIL || node_at(t, i)->protect) {
        return RDX_EPINNED;
    }
    uint32_t k = node_at(t, i)->off;
    t->root_keys[k] = t->root_keys[--t->root_key_used];
    node_at(t, t->root_keys[k].node)->off = k;
    if (t->observer.remove) {
        t->observer.remove(t->observer.self, i);
    }
    node_free(t, i);
    t->roots--;
    return RDX_OK;
}

/* ---------------------------------------------------------------- cursors */
void rdx_resolve(const rdx_tree *t, rdx_cursor c, uint32_t *out, uint32_t *pages) {
    uint32_t i = node_of(t, c.node);
    if (i == NIL) {
        uint32_t root = node_of(t, c.root);
        *out = root != NIL && node_at(t, root)->flags & NODE_ROOT ? root : NIL;
        *pages = 0;
        return;
    }
    const node *x = node_at(t, i);
    while (c.pages <= x->start && !(x->flags & NODE_ROOT)) {
        i = x->parent;
        x = node_at(t, i);
    }
    uint32_t end = x->start + x->len;
    *out = i;
    *pages = c.pages < end ? c.pages : end;
}

void rdx_cursor_resolve(const rdx_tree *t, rdx_cursor cursor, rdx_cursor *out) {
    uint32_t i;
    uint32_t pages;
    rdx_resolve(t, cursor, &i, &pages);
    *out =
        (rdx_cursor){.node = i == NIL ? 0 : handle_of(t, i), .pages = pages, .root = cursor.root};
}

/* ---------------------------------------------------------------- leases */
void rdx_pin(rdx_tree *t, uint32_t i) {
    while (i != NIL && node_at(t, i)->protect++ == 0) {
        if (t->observer.protect) {
            t->observer.protect(t->observer.self, i, SHIELD_ON);
        }
        i = node_at(t, i)->parent;
    }
}

void rdx_unpin(rdx_tree *t, uint32_t i) {
    uint32_t x = i;
    while (x != NIL && --node_at(t, x)->protect == 0) {
        x = node_at(t, x)->parent;
    }
    uint32_t top = x;
    for (x = i; x != top; x = node_at(t, x)->parent) {
        if (t->observer.protect) {
            t->observer.protect(t->observer.self, x, x == i ? SHIELD_OFF_END : SHIELD_OFF_ABOVE);
        }
    }
    if (i != top) {
        rdx_trim(t, i);
    }
}

int rdx_lease_room(rdx_tree *t, uint32_t more) {
    uint64_t need = t->live_leases + more;
    if (need <= t->lease_cap) {
        return RDX_OK;
    }
    uint64_t cap = t->lease_cap ? t->lease_cap : 16;
    while (cap < need) {
        cap *= 2;
    }
    lease_slot *leases = cap < NIL ? rdx_realloc(t->leases, cap * sizeof(*leases)) : NULL;
    if (!leases) {
        return RDX_ENOMEM;
    }
    t->leases = leases;
    t->lease_cap = (uint32_t)cap;
    return RDX_OK;
}

uint64_t rdx_lease_put(rdx_tree *t, uint32_t i, uint64_t mask, uint32_t first) {
    rdx_pin(t, i);
    uint32_t slot = t->lease_free;
    if (slot != NIL) {
        t->lease_free = t->leases[slot].next_free;
    } else {
        slot = t->lease_used++;
        t->leases[slot].gen = 1;
    }
    t->leases[slot].node = i;
    t->leases[slot].next_free = NIL; /* a slot in use has no mark: batch.c */
    t->leases[slot].mask = mask;
    t->leases[slot].first = first;
    t->leases[slot].taken = t->clock;
    rdx_pins_put(t, &t->leases[slot], i);
    t->live_leases++;
    return (uint64_t)t->leases[slot].gen << 32 | slot;
}

lease_slot *rdx_lease_of(const rdx_tree *t, uint64_t lease) {
    uint32_t i = (uint32_t)lease;
    if (i >= t->lease_used || t->leases[i].gen != (uint32_t)(lease >> 32) ||
        t->leases[i].node == NIL) {
        return NULL;
    }
    return &t->leases[i];
}

uint32_t rdx_end_node(rdx_tree *t, uint32_t i, uint32_t pages) {
    node *x = node_at(t, i);
    if (x->flags & NODE_ROOT || pages == x->start + x->len) {
        return i;
    }
    return rdx_split(t, i, pages - x->start);
}

int rdx_lease_take(rdx_tree *t, rdx_cursor at, uint64_t mask, uint32_t first, uint64_t *lease,
                   rdx_cursor *end) {
    int status = rdx_make_room(t, 1);
    if (status == RDX_OK) {
        status = rdx_lease_room(t, 1);
    }
    if (status != RDX_OK) {
        return status;
    }
    uint32_t i;
    uint32_t depth;
    rdx_resolve(t, at, &i, &depth);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    rdx_pins_ask(t, i);
    i = rdx_end_node(t, i, depth);
    *lease = rdx_lease_put(t, i, mask, first);
    *end = cursor_at(t, i, depth);
    return RDX_OK;
}

int rdx_lease_release(rdx_tree *t, uint64_t lease, int stamp) {
    lease_slot *l = rdx_lease_of(t, lease);
    if (!l) {
        return RDX_ELEASE;
    }
    uint32_t i = l->node;
    rdx_pins_ask(t, i);
    if (stamp) {
        t->clock++;
        rdx_stamp_since(t, i, l->taken);
    }
    rdx_pins_off(t, l, i);
    l->node = NIL;
    l->gen = l->gen == UINT32_MAX ? 1 : l->gen + 1;
    l->next_free = t->lease_free;
    t->lease_free = (uint32_t)lease;
    t->live_leases--;
    rdx_unpin(t, i);
    return RDX_OK;
}

void rdx_lease_path_to(rdx_tree *t, lease_slot *l, uint32_t to) {
    uint32_t old = l->node;
    if (old == to) {
        return;
    }
    rdx_pin(t, to);
    l->node = to;
    if (rdx_end_of(t, to) < rdx_end_of(t, old)) {
        t->clock++; /* what it gives up was used until now */
        rdx_stamp_since(t, old, l->taken);
    }
    rdx_unpin(t, old);
}

int rdx_lease_move(rdx_tree *t, uint64_t lease, rdx_cursor at, uint32_t *pages) {
    lease_slot *l = rdx_lease_of(t, lease);
    if (!l) {
        return RDX_ELEASE;
    }
    int status = rdx_make_room(t, 1);
    if (status != RDX_OK) {
        return status;
    }
    uint32_t i;
    uint32_t depth;
    rdx_resolve(t, at, &i, &depth);
    if (i == NIL) {
        return RDX_ESTALE;
    }
    rdx_lease_to(t, l, rdx_end_node(t, i, depth));
    *pages = depth;
    return RDX_OK;
}

int rdx_lease_end(const rdx_tree *t, uint64_t lease, rdx_cursor *out) {
    const lease_slot *l = rdx_lease_of(t, lease);
    if (!l) {
        return RDX_ELEASE;
    }
    const node *x = node_at(t, l->node);
    *out = cursor_at(t, l->node, x->start + x->len);
    return RDX_OK;
}
