/* The tree against a truth table: a list of rows, one a page, each with the whole path that leads
 * to it, searched from end to end. Several distributions of keys, every compare path, rdx_check
 * after every step. */
#include "expect.h"
#include "rdx.h"

#include <stdbool.h>
#include <string.h>

#define DEPTH 12
#define WIDTH 32 /* the widest page, bytes */
#define ROWS 512
#define LEASES 6
#define COLUMNS 2 /* the first tier, whose order is exact, and a second one */

typedef struct path {
    uint32_t root;
    uint32_t pages;
    uint8_t key[DEPTH * WIDTH];
} path;

typedef struct row {
    path at;
    int32_t slot[COLUMNS];
    uint64_t used;
} row;

typedef struct table {
    uint32_t width; /* bytes a page */
    uint32_t count;
    row rows[ROWS];
    path leased[LEASES];
    uint64_t lease[LEASES]; /* 0: none */
    uint64_t clock;
    int32_t next_slot;
    rdx_tree *tree;
    rdx_handle roots[2];
} table;

/* ---------------------------------------------------------------- the table */
static bool begins(const table *t, const path *longer, const path *with) {
    return longer->root == with->root && longer->pages >= with->pages &&
           memcmp(longer->key, with->key, (size_t)with->pages * t->width) == 0;
}

static path cut(const path *p, uint32_t pages) {
    path shorter = *p;
    shorter.pages = pages;
    return shorter;
}

static row *find(table *t, const path *p) {
    for (uint32_t i = 0; i < t->count; i++)
        if (t->rows[i].at.pages == p->pages && begins(t, &t->rows[i].at, p))
            return &t->rows[i];
    return NULL;
}

static row *find_or_add(table *t, const path *p) {
    row *found = find(t, p);
    if (found)
        return found;
    EXPECT(t->count < ROWS);
    found = &t->rows[t->count++];
    *found = (row){.at = *p, .slot = {RDX_NO_SLOT, RDX_NO_SLOT}};
    return found;
}

static bool leased(const table *t, const path *p) {
    for (uint32_t i = 0; i < LEASES; i++)
        if (t->lease[i] && begins(t, &t->leased[i], p))
            return true;
    return false;
}

static bool stands(const table *t, const path *p) {
    for (uint32_t i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        if ((r->slot[0] >= 0 || r->slot[1] >= 0) && begins(t, &r->at, p))
            return true;
    }
    return leased(t, p);
}

static uint32_t standing_pages(const table *t, const path *p) {
    uint32_t n = 0;
    while (n < p->pages) {
        path longer = cut(p, n + 1);
        if (!stands(t, &longer))
            break;
        n++;
    }
    return n;
}

/* Pages from the root that are in one of the tiers of the mask. */
static uint32_t covered_pages(table *t, const path *p, uint32_t mask) {
    uint32_t n = 0;
    while (n < p->pages) {
        path longer = cut(p, n + 1);
        const row *r = find(t, &longer);
        bool in = r && ((mask & 1 && r->slot[0] >= 0) || (mask & 2 && r->slot[1] >= 0));
        if (!in)
            break;
        n++;
    }
    return n;
}

static void use(table *t, const path *p) {
    t->clock++;
    for (uint32_t n = 1; n <= p->pages; n++) {
        path part = cut(p, n);
        row *r = find(t, &part);
        if (r)
            r->used = t->clock;
    }
}

static bool has_child(const table *t, const row *r, uint32_t column) {
    for (uint32_t i = 0; i < t->count; i++) {
        const row *c = &t->rows[i];
        if (c->slot[column] >= 0 && c->at.pages == r->at.pages + 1 && begins(t, &c->at, &r->at))
            return true;
    }
    return false;
}

static row *oldest(table *t, uint32_t column) {
    row *best = NULL;
    for (uint32_t i = 0; i < t->count; i++) {
        row *r = &t->rows[i];
        if (r->slot[column] < 0 || leased(t, &r->at) || has_child(t, r, column))
            continue;
        if (!best || r->used < best->used)
            best = r;
    }
    return best;
}

/* ---------------------------------------------------------------- both sides do the same */
static rdx_cursor match(table *t, const path *p, uint32_t readable, rdx_match *m) {
    EXPECT_EQ(rdx_tree_match(t->tree, t->roots[p->root], p->key, p->pages, p->pages, readable, m),
              RDX_OK);
    return m->structural;
}

static void do_match(table *t, const path *p) {
    for (uint32_t readable = 1; readable < 4; readable++) {
        rdx_match m;
        match(t, p, readable, &m);
        EXPECT_EQ(m.structural.pages, standing_pages(t, p));
        EXPECT_EQ(m.hit_pages, covered_pages(t, p, readable));
        EXPECT_EQ(m.device_pages, readable & 1 ? covered_pages(t, p, 1) : 0);
    }
}

static void do_insert(table *t, const path *p, bool with_lease) {
    rdx_match m;
    rdx_cursor at = match(t, p, 1, &m);
    uint32_t from = m.device_pages;
    at.pages = from;
    uint64_t lease = 0;
    if (with_lease)
        EXPECT_EQ(rdx_lease_take(t->tree, at, RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &at), RDX_OK);
    uint32_t n = p->pages - from;
    int32_t slots[DEPTH], canonical[DEPTH];
    uint32_t existing = 0, column = 0;
    for (uint32_t i = 0; i < n; i++) {
        path part = cut(p, from + i + 1);
        slots[i] = t->next_slot++;
        existing += stands(t, &part);
    }
    rdx_insert result;
    EXPECT_EQ(rdx_tree_insert(t->tree, at, p->key + (size_t)from * t->width, n, &column, 1, slots,
                              canonical, lease, &result),
              RDX_OK);
    EXPECT_EQ(result.existing, existing);
    EXPECT_EQ(result.created, n - existing);
    EXPECT_EQ(result.attached, existing);
    EXPECT_EQ(result.duplicates, 0);
    for (uint32_t i = 0; i < n; i++) {
        path part = cut(p, from + i + 1);
        find_or_add(t, &part)->slot[0] = slots[i];
        EXPECT_EQ(canonical[i], slots[i]);
    }
    use(t, p);
    if (lease)
        EXPECT_EQ(rdx_lease_release(t->tree, lease, 0), RDX_OK);
}

static void do_evict(table *t, uint32_t n) {
    int32_t slots[ROWS];
    uint8_t keys[ROWS * WIDTH];
    uint32_t freed;
    EXPECT_EQ(rdx_evict(t->tree, 0, n, UINT64_MAX, slots, keys, &freed), RDX_OK);
    for (uint32_t i = 0; i < freed; i++) {
        row *r = oldest(t, 0);
        EXPECT(r != NULL);
        EXPECT_EQ(slots[i], r->slot[0]);
        EXPECT(memcmp(keys + (size_t)i * t->width, r->at.key + (size_t)(r->at.pages - 1) * t->width,
                      t->width) == 0);
        r->slot[0] = RDX_NO_SLOT;
    }
    EXPECT(freed == n || oldest(t, 0) == NULL);
}

/* The second tier: a copy arrives, then blocks of it go; only what may go does. */
static void do_second_tier(table *t, const path *p) {
    rdx_match m;
    rdx_cursor at = match(t, p, 3, &m);
    int32_t slots[DEPTH], canonical[DEPTH], gone[4];
    uint32_t attached, freed;
    for (uint32_t i = 0; i < at.pages; i++)
        slots[i] = t->next_slot++;
    EXPECT_EQ(rdx_slots_attach(t->tree, at, 1, 0, at.pages, slots, canonical, 0, &attached),
              RDX_OK);
    for (uint32_t i = 0; i < at.pages; i++) {
        path part = cut(p, i + 1);
        row *r = find_or_add(t, &part);
        if (canonical[i] != RDX_NO_SLOT && r->slot[1] < 0)
            r->slot[1] = slots[i];
        EXPECT_EQ(canonical[i], r->slot[1]);
    }
    EXPECT_EQ(rdx_evict(t->tree, 1, random_below(4), UINT64_MAX, gone, NULL, &freed), RDX_OK);
    for (uint32_t i = 0; i < freed; i++) {
        row *r = t->rows;
        while (r->slot[1] != gone[i])
            EXPECT(++r < t->rows + t->count);
        EXPECT(!leased(t, &r->at) && !has_child(t, r, 1));
        r->slot[1] = RDX_NO_SLOT;
    }
}

static void do_lease(table *t, const path *p) {
    uint32_t i = random_below(LEASES);
    if (t->lease[i]) {
        int stamp = (int)random_below(2);
        EXPECT_EQ(rdx_lease_release(t->tree, t->lease[i], stamp), RDX_OK);
        EXPECT_EQ(rdx_lease_release(t->tree, t->lease[i], stamp), RDX_ELEASE);
        if (stamp)
            use(t, &t->leased[i]);
        t->lease[i] = 0;
        return;
    }
    rdx_match m;
    rdx_cursor at = match(t, p, 3, &m), end;
    at.pages = at.pages ? random_below(at.pages + 1) : 0;
    EXPECT_EQ(rdx_lease_take(t->tree, at, RDX_EVERY_GROUP, RDX_BY_RULE, &t->lease[i], &end),
              RDX_OK);
    EXPECT_EQ(end.pages, at.pages);
    t->leased[i] = cut(p, end.pages);
}

static void do_touch(table *t, const path *p) {
    rdx_match m;
    rdx_cursor at = match(t, p, 3, &m);
    EXPECT_EQ(rdx_touch(t->tree, at), RDX_OK);
    path touched = cut(p, at.pages);
    use(t, &touched);
}

/* ---------------------------------------------------------------- distributions of keys */
typedef void (*fill_page)(uint8_t *page, uint32_t width, uint32_t depth);

static void few(uint8_t *page, uint32_t width, uint32_t depth) {
    memset(page, 0, width);
    page[width - 4] = (uint8_t)random_below(3); /* the low byte of the last token */
    (void)depth;
}

static void any(uint8_t *page, uint32_t width, uint32_t depth) {
    random_fill(page, width);
    for (uint32_t i = 3; i < width; i += 4)
        page[i] &= 0x7f; /* ids stay below 2^31 */
    (void)depth;
}

/* A long trunk that all share, and a tail that seldom parts from it. */
static void trunk(uint8_t *page, uint32_t width, uint32_t depth) {
    memset(page, (int)depth, width);
    if (random_below(depth + 1) > DEPTH / 2)
        page[random_below(width) & ~3u] ^= 1;
}

static void check(table *t) {
    char what[256];
    if (rdx_check(t->tree, 1, what, sizeof what) != RDX_OK) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
    rdx_tree_stats stats;
    rdx_tree_get_stats(t->tree, &stats);
    uint32_t standing = 0;
    for (uint32_t i = 0; i < t->count; i++)
        standing += stands(t, &t->rows[i].at);
    EXPECT_EQ(stats.pages, standing);
}

static void step(table *t, fill_page fill) {
    path p = {.root = random_below(2), .pages = random_below(DEPTH + 1)};
    for (uint32_t i = 0; i < p.pages; i++)
        fill(p.key + (size_t)i * t->width, t->width, i);
    uint32_t what = random_below(20);
    if (what < 7 && t->count + DEPTH < ROWS)
        do_insert(t, &p, random_below(2));
    else if (what < 11)
        do_evict(t, random_below(12));
    else if (what < 14)
        do_lease(t, &p);
    else if (what < 16)
        do_second_tier(t, &p);
    else if (what < 18)
        do_touch(t, &p);
    do_match(t, &p);
    check(t);
    for (uint32_t i = 0; i < t->count; i++) /* rows of what is gone make room */
        if (!stands(t, &t->rows[i].at))
            t->rows[i--] = t->rows[--t->count];
}

static void drain(table *t) {
    for (uint32_t i = 0; i < LEASES; i++)
        if (t->lease[i])
            EXPECT_EQ(rdx_lease_release(t->tree, t->lease[i], 1), RDX_OK);
    int32_t slots[ROWS];
    uint32_t freed;
    for (uint32_t column = 0; column < COLUMNS; column++)
        EXPECT_EQ(rdx_evict(t->tree, column, ROWS, UINT64_MAX, slots, NULL, &freed), RDX_OK);
    rdx_tree_stats stats;
    rdx_tree_get_stats(t->tree, &stats);
    EXPECT_EQ(stats.nodes, 2);
    EXPECT_EQ(stats.buffers, 0);
    for (uint32_t root = 0; root < 2; root++)
        EXPECT_EQ(rdx_root_free(t->tree, t->roots[root]), RDX_OK);
}

static void run(uint32_t width, bool tokens, fill_page fill, uint32_t steps) {
    static table t;
    memset(&t, 0, sizeof t);
    t.width = width;
    rdx_tree_config config = {.page_bytes = width,
                              .check_ids = tokens,
                              .groups = 1,
                              .tiers = COLUMNS,
                              .key_bytes = 0,
                              .seed = random_u64()};
    EXPECT_EQ(rdx_tree_new(&config, NULL, &t.tree), RDX_OK);
    for (uint32_t root = 0; root < 2; root++)
        EXPECT_EQ(rdx_root_new(t.tree, NULL, &t.roots[root]), RDX_OK);
    for (uint32_t i = 0; i < steps; i++)
        step(&t, fill);
    drain(&t);
    rdx_tree_free(t.tree);
}

int main(int argc, char **argv) {
    uint32_t steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 250;
    const fill_page fills[] = {few, any, trunk};
    const uint32_t widths[] = {4, 16, 32};
    for (int compare = 0; compare < 3; compare++) {
        if (rdx_dispatch_set(compare) != RDX_OK)
            continue;
        for (uint32_t w = 0; w < 3; w++)
            for (uint32_t f = 0; f < 3; f++)
                run(widths[w], f != 1 || w % 2, fills[f], steps);
        run(5, false, few, steps); /* an opaque key whose slots need padding */
    }
    return 0;
}
