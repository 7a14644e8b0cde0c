/* Trees of windows, chunks, snapshots and blocks of several pages against a truth table: a list of
 * rows, one a page, each with its path and a slot for each column. Random mixes of groups; what is
 * resident, what a hit is, what is pinned and what may go are found by trying everything. rdx_check
 * after every step. */
#include "expect.h"
#include "rdx.h"

#include <stdbool.h>
#include <string.h>

#define DEPTH 12
#define GROUPS 4
#define TIERS 2
#define COLUMNS (GROUPS * TIERS)
#define ROWS 512
#define LEASES 5

typedef struct path {
    uint32_t pages;
    int32_t token[DEPTH];
} path;

typedef struct row {
    path at;
    int32_t slot[COLUMNS];
} row;

typedef struct held {
    uint64_t lease; /* 0: none */
    path at;
    uint64_t mask;
    uint32_t first;
} held;

typedef struct table {
    uint32_t page_tokens;
    rdx_group groups[GROUPS];
    uint32_t count;
    row rows[ROWS];
    held leases[LEASES];
    int32_t next_slot;
    rdx_tree *tree;
    rdx_handle root;
} table;

/* ---------------------------------------------------------------- the table */
static bool begins(const path *longer, const path *with) {
    return longer->pages >= with->pages &&
           memcmp(longer->token, with->token, with->pages * sizeof(int32_t)) == 0;
}

static path cut(const path *p, uint32_t pages) {
    path shorter = *p;
    shorter.pages = pages;
    return shorter;
}

static row *find(table *t, const path *p, uint32_t pages) {
    for (uint32_t i = 0; i < t->count; i++)
        if (t->rows[i].at.pages == pages && memcmp(t->rows[i].at.token, p->token, pages * 4) == 0)
            return &t->rows[i];
    return NULL;
}

static int32_t *cell(table *t, const path *p, uint32_t page, uint32_t column) {
    row *found = find(t, p, page + 1);
    if (!found) {
        EXPECT(t->count < ROWS);
        found = &t->rows[t->count++];
        found->at = cut(p, page + 1);
        memset(found->slot, 0xff, sizeof found->slot);
    }
    return &found->slot[column];
}

static bool resident(table *t, const path *p, uint32_t page, uint32_t column) {
    const row *found = find(t, p, page + 1);
    return found && found->slot[column] != RDX_NO_SLOT;
}

static bool on_a_lease(const table *t, const path *p) {
    for (uint32_t i = 0; i < LEASES; i++)
        if (t->leases[i].lease && begins(&t->leases[i].at, p))
            return true;
    return false;
}

static uint32_t standing_pages(const table *t, const path *p) {
    for (uint32_t n = p->pages; n > 0; n--) {
        path part = cut(p, n);
        bool stands = on_a_lease(t, &part);
        for (uint32_t i = 0; i < t->count && !stands; i++)
            for (uint32_t c = 0; c < COLUMNS; c++)
                stands =
                    stands || (t->rows[i].slot[c] != RDX_NO_SLOT && begins(&t->rows[i].at, &part));
        if (stands)
            return n;
    }
    return 0;
}

/* ---------------------------------------------------------------- the rules, token by token */
static bool may_stand(const rdx_group *g, uint32_t page) {
    uint32_t end = page + 1 - g->lookahead_pages;
    return page + 1 > g->lookahead_pages && end % g->block_pages == 0;
}

/* Whether a hit of k pages needs the entry at a page. */
static bool needs(const table *t, const rdx_group *g, uint32_t k, uint32_t page) {
    if (!may_stand(g, page) || page - g->lookahead_pages >= k)
        return false;
    uint32_t last = page - g->lookahead_pages; /* the block is of pages [last + 1 - b, last] */
    uint32_t end = (last + 1) * t->page_tokens, tokens = k * t->page_tokens;
    switch (g->rule) {
    case RDX_RULE_FULL:
        return true;
    case RDX_RULE_STATE:
        return last + 1 == k;
    case RDX_RULE_WINDOW:
        return g->reach_tokens > 0 && end + g->reach_tokens > tokens;
    default:
        return end > tokens - tokens % g->reach_tokens;
    }
}

static bool serves(table *t, const path *p, uint32_t k, uint32_t standing, uint32_t tiers) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        const rdx_group *rule = &t->groups[g];
        if (rule->lookup && k % rule->block_pages)
            return false;
        for (uint32_t page = 0; rule->lookup && page < k + rule->lookahead_pages; page++) {
            bool there = false;
            for (uint32_t tier = 0; tier < TIERS && page < standing; tier++)
                there = there || (tiers >> tier & 1 && resident(t, p, page, g * TIERS + tier));
            if (needs(t, rule, k, page) && !there)
                return false;
        }
    }
    return true;
}

static bool pinned(const table *t, const path *p, uint32_t page, uint32_t column) {
    const rdx_group *g = &t->groups[column / TIERS];
    path part = cut(p, page + 1);
    if (g->rule == RDX_RULE_FULL)
        return on_a_lease(t, &part);
    for (uint32_t i = 0; i < LEASES; i++) {
        const held *l = &t->leases[i];
        if (!l->lease || !begins(&l->at, &part) || !(l->mask >> (column / TIERS) & 1))
            continue;
        bool by_rule = l->first == RDX_BY_RULE;
        if (by_rule ? needs(t, g, l->at.pages, page) : page >= l->first)
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- both sides do the same */
static rdx_cursor locate(table *t, const path *p) {
    rdx_match m;
    EXPECT_EQ(rdx_tree_match(t->tree, t->root, p->token, p->pages, p->pages, 3, &m), RDX_OK);
    EXPECT_EQ(m.structural.pages, standing_pages(t, p));
    return m.structural;
}

static void do_match(table *t, const path *p) {
    uint32_t standing = locate(t, p).pages;
    for (uint32_t tiers = 1; tiers < 4; tiers++) {
        rdx_match m;
        uint32_t limit = random_below(p->pages + 2), best = 0, pages, stop;
        for (uint32_t k = 1; k <= standing; k++)
            best = serves(t, p, k, standing, tiers) && k <= limit ? k : best;
        EXPECT_EQ(rdx_tree_match(t->tree, t->root, p->token, p->pages, limit, tiers, &m), RDX_OK);
        EXPECT_EQ(m.hit_pages, best);
        EXPECT_EQ(rdx_joint(t->tree, m.structural, limit, tiers, &pages, &stop), RDX_OK);
        EXPECT_EQ(pages, best);
        EXPECT_EQ(stop, m.stop);
        if (tiers == 1)
            EXPECT_EQ(m.device_pages, best);
    }
}

/* What was offered stands now, unless it may not, or a full group would need a second interval. */
static void settle(table *t, const path *p, uint32_t first, uint32_t n, uint32_t column,
                   const int32_t *offer, const int32_t *got) {
    const rdx_group *g = &t->groups[column / TIERS];
    for (uint32_t i = 0; i < n; i++) {
        int32_t *have = cell(t, p, first + i, column);
        if (*have != RDX_NO_SLOT || offer[i] == RDX_NO_SLOT || !may_stand(g, first + i))
            EXPECT_EQ(got[i], *have);
        else if (got[i] == RDX_NO_SLOT)
            EXPECT_EQ(g->rule, RDX_RULE_FULL);
        else
            EXPECT_EQ(got[i], offer[i]);
        *have = got[i];
    }
}

static void offer_some(table *t, int32_t *slots, uint32_t n) {
    uint32_t odds = 1 + random_below(4);
    for (uint32_t i = 0; i < n; i++)
        slots[i] = random_below(4) < odds ? t->next_slot++ : RDX_NO_SLOT;
}

static void do_insert(table *t, const path *p) {
    rdx_cursor at = locate(t, p);
    at.pages = random_below(at.pages + 1);
    uint32_t depth = at.pages, n = p->pages - depth, columns[COLUMNS], ncolumns = 0;
    int32_t slots[COLUMNS * DEPTH], canonical[COLUMNS * DEPTH];
    held *l = &t->leases[random_below(LEASES)];
    bool leased = !l->lease && random_below(2);
    for (uint32_t c = 0; c < COLUMNS; c++)
        if (random_below(3))
            columns[ncolumns++] = c;
    offer_some(t, slots, ncolumns * n);
    if (leased) {
        EXPECT_EQ(rdx_lease_take(t->tree, at, RDX_EVERY_GROUP, RDX_BY_RULE, &l->lease, &at),
                  RDX_OK);
        l->mask = RDX_EVERY_GROUP;
        l->first = RDX_BY_RULE;
        l->at = *p;
    }
    rdx_insert result;
    EXPECT_EQ(rdx_tree_insert(t->tree, at, p->token + depth, n, columns, ncolumns, slots, canonical,
                              leased ? l->lease : 0, &result),
              RDX_OK);
    for (uint32_t c = 0; c < ncolumns; c++)
        settle(t, p, depth, n, columns[c], slots + c * n, canonical + c * n);
}

static void do_attach(table *t, const path *p) {
    rdx_cursor at = locate(t, p);
    int32_t slots[DEPTH], canonical[DEPTH];
    uint32_t column = random_below(COLUMNS), attached, first = random_below(at.pages + 1);
    offer_some(t, slots, at.pages - first);
    EXPECT_EQ(rdx_slots_attach(t->tree, at, column, first, at.pages - first, slots, canonical,
                               random_below(2), &attached),
              RDX_OK);
    settle(t, p, first, at.pages - first, column, slots, canonical);
}

static void do_lease(table *t, const path *p) {
    held *l = &t->leases[random_below(LEASES)];
    rdx_cursor at = locate(t, p), end;
    at.pages = random_below(at.pages + 1);
    uint32_t pages;
    if (!l->lease) {
        *l = (held){.at = cut(p, at.pages), .mask = random_below(16), .first = RDX_BY_RULE};
        l->first = random_below(3) ? RDX_BY_RULE : random_below(DEPTH);
        EXPECT_EQ(rdx_lease_take(t->tree, at, l->mask, l->first, &l->lease, &end), RDX_OK);
        EXPECT_EQ(end.pages, at.pages);
    } else if (random_below(3) == 0) {
        l->mask &= 5;
        EXPECT_EQ(rdx_lease_narrow(t->tree, l->lease, 5), RDX_OK);
    } else if (begins(p, &l->at) && random_below(2)) {
        EXPECT_EQ(rdx_lease_move(t->tree, l->lease, at, &pages), RDX_OK);
        l->at = cut(p, pages);
        l->first = RDX_BY_RULE;
    } else {
        EXPECT_EQ(rdx_lease_release(t->tree, l->lease, (int)random_below(2)), RDX_OK);
        l->lease = 0;
    }
}

/* Takes a slot out of the table; it may go. */
static void gone(table *t, int32_t slot, uint32_t column) {
    row *r = t->rows;
    while (r->slot[column] != slot)
        EXPECT(++r < t->rows + t->count);
    EXPECT(!pinned(t, &r->at, r->at.pages - 1, column));
    const rdx_group *g = &t->groups[column / TIERS];
    for (uint32_t i = 0; i < t->count && g->rule == RDX_RULE_FULL; i++) {
        const row *c = &t->rows[i];
        bool stands_on = c->at.pages == r->at.pages + g->block_pages && begins(&c->at, &r->at);
        EXPECT(!(stands_on && c->slot[column] != RDX_NO_SLOT));
    }
    r->slot[column] = RDX_NO_SLOT;
}

static void do_evict(table *t) {
    uint32_t column = random_below(COLUMNS), n = random_below(9), freed, could = 0;
    int32_t slots[9];
    for (uint32_t i = 0; i < t->count; i++) {
        const path *p = &t->rows[i].at;
        could += t->rows[i].slot[column] != RDX_NO_SLOT && !pinned(t, p, p->pages - 1, column);
    }
    EXPECT_EQ(rdx_evict(t->tree, column, n, UINT64_MAX, slots, NULL, &freed), RDX_OK);
    EXPECT_EQ(freed, n < could ? n : could);
    for (uint32_t i = 0; i < freed; i++)
        gone(t, slots[i], column);
}

static void do_drop(table *t, const path *p) {
    rdx_cursor at = locate(t, p);
    uint32_t column = random_below(COLUMNS);
    int32_t slots[DEPTH];
    if (!at.pages)
        return;
    uint32_t first = random_below(at.pages), n = random_below(at.pages - first + 1);
    if (t->groups[column / TIERS].rule == RDX_RULE_FULL || random_below(3) == 0) {
        EXPECT_EQ(rdx_slots_drop(t->tree, at, column, first, slots), RDX_OK);
        EXPECT_EQ(slots[0], *cell(t, p, first, column));
        *cell(t, p, first, column) = RDX_NO_SLOT;
        return;
    }
    EXPECT_EQ(rdx_slots_drop_span(t->tree, at, column, first, n, slots), RDX_OK);
    for (uint32_t i = 0; i < n; i++) {
        int32_t *have = cell(t, p, first + i, column);
        EXPECT_EQ(slots[i], pinned(t, p, first + i, column) ? RDX_NO_SLOT : *have);
        *have = slots[i] == RDX_NO_SLOT ? *have : RDX_NO_SLOT;
    }
}

static void check_entries(table *t, const path *p) {
    rdx_cursor at = locate(t, p);
    for (uint32_t c = 0; c < COLUMNS; c++) {
        uint32_t pages[DEPTH], n, seen = 0;
        EXPECT_EQ(rdx_entries_get(t->tree, at, c, 0, pages, DEPTH, &n), RDX_OK);
        for (uint32_t page = 0; page < at.pages; page++)
            if (resident(t, p, page, c))
                EXPECT(seen < n && pages[seen++] == page);
        EXPECT_EQ(seen, n);
        rdx_column_stats stats;
        uint64_t all = 0, kept = 0;
        for (uint32_t i = 0; i < t->count; i++) {
            const path *q = &t->rows[i].at;
            all += t->rows[i].slot[c] != RDX_NO_SLOT;
            kept += t->rows[i].slot[c] != RDX_NO_SLOT && pinned(t, q, q->pages - 1, c);
        }
        rdx_column_get_stats(t->tree, c, &stats);
        EXPECT_EQ(stats.resident, all);
        EXPECT_EQ(stats.protected_blocks, kept);
    }
}

static void step(table *t) {
    path p = {.pages = random_below(DEPTH + 1)};
    for (uint32_t i = 0; i < DEPTH; i++)
        p.token[i] = random_below(5) ? (int32_t)i : (int32_t)random_below(2);
    uint32_t what = random_below(20);
    if (what < 6 && t->count + DEPTH < ROWS)
        do_insert(t, &p);
    else if (what < 9)
        do_attach(t, &p);
    else if (what < 13)
        do_lease(t, &p);
    else if (what < 16)
        do_evict(t);
    else
        do_drop(t, &p);
    char text[256];
    if (rdx_check(t->tree, 0, text, sizeof text) != RDX_OK) {
        fprintf(stderr, "%s\n", text);
        exit(1);
    }
    do_match(t, &p);
    check_entries(t, &p);
    for (uint32_t i = 0; i < t->count; i++) { /* rows of what is gone make room */
        bool empty = true;
        for (uint32_t c = 0; c < COLUMNS; c++)
            empty = empty && t->rows[i].slot[c] == RDX_NO_SLOT;
        if (empty)
            t->rows[i--] = t->rows[--t->count];
    }
}

static void choose(table *t, rdx_group *g) {
    const uint32_t rules[] = {RDX_RULE_FULL, RDX_RULE_WINDOW, RDX_RULE_WINDOW, RDX_RULE_CHUNKED,
                              RDX_RULE_STATE};
    const uint32_t p = t->page_tokens, reaches[] = {1, p, p + 1, 3 * p};
    *g = (rdx_group){.rule = rules[random_below(5)], .block_pages = 1 + random_below(3)};
    if (g->rule == RDX_RULE_WINDOW || g->rule == RDX_RULE_CHUNKED)
        g->reach_tokens = reaches[random_below(4)];
    if (g->rule <= RDX_RULE_WINDOW && g->block_pages == 1)
        g->lookahead_pages = random_below(3) / 2;
    g->lookup = random_below(6) > 0;
}

static void run(uint32_t steps) {
    static table t;
    memset(&t, 0, sizeof t);
    t.page_tokens = 1u << random_below(3);
    for (uint32_t g = 0; g < GROUPS; g++)
        choose(&t, &t.groups[g]);
    rdx_tree_config config = {.page_bytes = 4,
                              .check_ids = 1,
                              .groups = GROUPS,
                              .tiers = TIERS,
                              .key_bytes = 16 * random_below(2),
                              .page_tokens = t.page_tokens};
    EXPECT_EQ(rdx_tree_new(&config, t.groups, &t.tree), RDX_OK);
    EXPECT_EQ(rdx_root_new(t.tree, NULL, &t.root), RDX_OK);
    for (uint32_t i = 0; i < steps; i++)
        step(&t);
    for (uint32_t i = 0; i < LEASES; i++)
        if (t.leases[i].lease)
            EXPECT_EQ(rdx_lease_release(t.tree, t.leases[i].lease, 1), RDX_OK);
    int32_t slots[ROWS];
    uint32_t freed;
    for (uint32_t c = 0; c < COLUMNS; c++)
        EXPECT_EQ(rdx_evict(t.tree, c, ROWS, UINT64_MAX, slots, NULL, &freed), RDX_OK);
    EXPECT_EQ(rdx_root_free(t.tree, t.root), RDX_OK);
    rdx_tree_free(t.tree);
}

int main(int argc, char **argv) {
    uint32_t trees = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 60;
    for (uint32_t i = 0; i < trees; i++)
        run(80);
    return 0;
}
