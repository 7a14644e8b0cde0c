/* The checker sees each kind of damage to what a policy keeps beside the lists: queues, counts of
 * blocks, and what is remembered of blocks that went, of one tenant or of each of three. A sound
 * tree is damaged in one place, rdx_check names I17, and the damage is undone. */
#include "expect.h"
#include "policy.h"
#include <math.h>

#define PAGES 6
#define ROOM 40

static void expect(const rdx_tree *t, bool sound) {
    char what[256];
    int status = rdx_check(t, 1, what, sizeof what);
    if (sound) {
        EXPECT_EQ(status, RDX_OK);
        return;
    }
    EXPECT_EQ(status, RDX_EINVARIANT);
    if (strncmp(what, "I17:", 4) != 0) {
        fprintf(stderr, "I17 was expected, found %s\n", what);
        exit(1);
    }
}

#define DAMAGE(t, place, value)                                                                    \
    do {                                                                                           \
        __typeof__(place) was = (place);                                                           \
        (place) = (value);                                                                         \
        expect(t, false);                                                                          \
        (place) = was;                                                                             \
        expect(t, true);                                                                           \
    } while (0)

static void serve(rdx_tree *t, rdx_handle root, uint32_t room) {
    const uint32_t column = 0;
    int32_t run[PAGES], slots[PAGES], gone[PAGES];
    uint32_t n = 1 + random_below(PAGES), freed;
    for (uint32_t i = 0; i < n; i++) {
        run[i] = slots[i] = (int32_t)random_below(3);
    }
    uint64_t used = t->lists[0].resident;
    EXPECT_EQ(rdx_evict(t, 0, used + n > room ? (uint32_t)(used + n - room) : 0, UINT64_MAX, gone,
                        NULL, &freed),
              RDX_OK);
    rdx_insert made;
    EXPECT_EQ(
        rdx_tree_insert(t, (rdx_cursor){root, root, 0}, run, n, &column, 1, slots, NULL, 0, &made),
        RDX_OK);
}

/* Gives every node that waits a key: numbers of both signs, infinities, both zeroes. */
static void answer(rdx_tree *t) {
    static const double keys[] = {0.0, -0.0, 1.5, -1.5, INFINITY, -INFINITY, 1e300, -1e-300};
    rdx_told told[256];
    uint32_t nodes[256], n, asked = 0;
    uint64_t now;
    double given[256];
    EXPECT(rdx_policy_waiting(t, 0) <= 256);
    EXPECT_EQ(rdx_policy_ask(t, 0, told, 256, &n, &now), RDX_OK);
    EXPECT_EQ(now, t->clock);
    for (uint32_t k = 0; k < n; k++) {
        EXPECT(told[k].last <= now && told[k].came <= told[k].last && told[k].blocks > 0);
        if (told[k].kind != RDX_TOLD_WENT) {
            nodes[asked] = told[k].node;
            given[asked++] = keys[random_below(8)];
        }
    }
    if (asked) {
        double sound = given[asked - 1];
        given[asked - 1] = NAN;
        EXPECT_EQ(rdx_policy_answer(t, 0, nodes, given, asked), RDX_EARG);
        given[asked - 1] = sound;
    }
    EXPECT_EQ(rdx_policy_answer(t, 0, nodes, given, asked), RDX_OK);
    EXPECT_EQ(rdx_policy_waiting(t, 0), 0);
}

static const uint64_t NO_FLOORS[1] = {0};

/* A tree whose blocks went and came back for a while; of so many tenants, or 0: it knows none. */
static rdx_tree *build(uint32_t policy, uint32_t tenants) {
    const rdx_group full = {RDX_RULE_FULL, 1, 0, 0, 1};
    rdx_tree_config config = {.page_bytes = 4,
                              .check_ids = 1,
                              .groups = 1,
                              .tiers = 1,
                              .key_bytes = 16,
                              .page_tokens = 1};
    const uint64_t sizes[1] = {1};
    const uint32_t pools[1] = {0};
    rdx_tree *t;
    rdx_handle roots[3];
    EXPECT_EQ(rdx_tree_new(&config, &full, &t), RDX_OK);
    EXPECT_EQ(rdx_policy_set(t, policy), RDX_OK);
    EXPECT_EQ(rdx_policy_set(t, policy), RDX_EARG);
    EXPECT_EQ(tenants ? rdx_tenants_enable(t, sizes, pools) : RDX_OK, RDX_OK);
    for (uint32_t k = 0; k < (tenants ? tenants : 1); k++) {
        uint8_t key[16] = {(uint8_t)k};
        EXPECT_EQ(rdx_root_new(t, key, &roots[k]), RDX_OK);
        EXPECT_EQ(k ? rdx_tenant_set(t, k, 1, NO_FLOORS) : RDX_OK, RDX_OK);
        EXPECT_EQ(k ? rdx_root_assign(t, roots[k], k) : RDX_OK, RDX_OK);
    }
    for (uint32_t k = 0; k < 600; k++) {
        serve(t, roots[tenants ? random_below(tenants) : 0], tenants ? ROOM * tenants : ROOM);
        if (policy == RDX_POLICY_GIVEN && k % 3 == 0) {
            answer(t);
        }
        if (k % 16 == 0) {
            expect(t, true);
        }
    }
    return t;
}

static void test_damage_to_queues(rdx_tree *t, uint32_t tenant) {
    ranking *r = ranking_of(t, tenant, 0);
    uint32_t q = r->queues[0].count ? 0 : 1;
    mark *m = mark_at(t, queued_at(t, r, q, 0), 0);
    DAMAGE(t, m->queue, 1 - m->queue);
    DAMAGE(t, m->place, m->place + 1);
    DAMAGE(t, m->last, t->clock + 1);
    DAMAGE(t, r->queues[q].count, r->queues[q].count - 1);
    DAMAGE(t, r->resident[0], r->resident[0] + 1);
    DAMAGE(t, r->resident[1], r->resident[1] - 1);
    DAMAGE(t, t->policy->stock.taken, t->policy->stock.taken + 1);
}

static void test_damage_to_what_went(rdx_tree *t, uint32_t tenant, uint32_t side, uint64_t most) {
    ghosts *g = &ranking_of(t, tenant, 0)->gone[side];
    EXPECT(g->runs > 0);
    ghost *run = &g->ring[g->first & (g->room - 1)];
    while (run->pages == 0) {
        run = run + 1 < g->ring + g->room ? run + 1 : g->ring;
    }
    DAMAGE(t, run->key, run->key + 1);
    DAMAGE(t, run->pages, run->pages + 1);
    DAMAGE(t, g->blocks, g->blocks + 1);
    DAMAGE(t, g->runs, g->runs - 1);
    EXPECT(g->blocks <= most);
}

/* Keys that all want one place of the index, taken out in another order than they came. */
static void test_what_went_is_known_again(void) {
    ghosts g = {0};
    bool there[1000] = {false};
    EXPECT_EQ(rdx_ghosts_reserve(&g, 10), RDX_OK);
    for (uint64_t k = 0; k < 1000; k++) {
        ghost out = rdx_ghosts_push(&g, (ghost){.key = k << 32, .pages = 1 + (uint32_t)k % 3}, 0);
        if (out.pages) {
            EXPECT(there[out.key >> 32]);
            there[out.key >> 32] = false;
        }
        there[k] = true;
        uint64_t back = k - random_below(k < 40 ? (uint32_t)k + 1 : 40);
        EXPECT_EQ(rdx_ghosts_take(&g, back << 32).pages, there[back] ? 1 + back % 3 : 0);
        there[back] = false;
        EXPECT(rdx_ghosts_fault(&g) == NULL);
        if (k == 500) {
            EXPECT_EQ(rdx_ghosts_reserve(&g, 200), RDX_OK);
        }
    }
    uint32_t left = 0;
    for (uint64_t k = 0; k < 1000; k++) {
        left += there[k];
    }
    EXPECT_EQ(left, g.runs);
    while (rdx_ghosts_shift(&g).pages) {
        left--;
    }
    EXPECT_EQ(left, 0);
    EXPECT_EQ(g.blocks, 0);
    rdx_ghosts_free(&g);
}

/* What requests said of every node: half are expected back, half are reserved. */
static void say(rdx_tree *t, uint64_t now) {
    rdx_policy_time(t, now);
    for (uint32_t i = 0; i < t->node_used; i++) {
        if (node_at(t, i)->flags & NODE_LIVE && !(node_at(t, i)->flags & NODE_ROOT)) {
            rdx_hint said = {.returns = i % 2 ? now + 1 + i : 0,
                             .until = i % 2 ? 0 : now + 7 + i,
                             .says = i % 5 ? 0 : RDX_SAYS_ENDED};
            EXPECT_EQ(rdx_policy_hint(t, cursor_at(t, i, rdx_end_of(t, i)), &said), RDX_OK);
        }
    }
}

static void test_damage_to_what_was_said(void) {
    rdx_tree *t = build(RDX_POLICY_PRIORITY, 0);
    say(t, 1000);
    expect(t, true);
    ranking *r = ranking_of(t, 0, 0);
    EXPECT(r->queues[0].count > 0 && r->queues[1].count > 0);
    for (uint32_t q = 0; q < 2; q++) {
        mark *m = mark_at(t, queued_at(t, r, q, 0), 0);
        DAMAGE(t, m->key, m->key - 1);
    }
    DAMAGE(t, t->policy->now, 5000); /* all timers have ended by then */
    test_damage_to_queues(t, 0);
    rdx_hint bad = {.priority = 101, .says = RDX_SAYS_PRIORITY};
    EXPECT_EQ(rdx_policy_hint(t, (rdx_cursor){0}, &bad), RDX_EARG);
    rdx_policy_time(t, 5000);
    expect(t, true);
    EXPECT_EQ(r->queues[1].count, 0);
    rdx_tree_free(t);
}

static void test_damage_to_what_blocks_save(void) {
    rdx_tree *t = build(RDX_POLICY_COST, 0);
    DAMAGE(t, mark_at(t, queued_at(t, ranking_of(t, 0, 0), 0, 0), 0)->key, UINT64_MAX);
    test_damage_to_queues(t, 0);
    EXPECT_EQ(rdx_policy_price(t, 0, 1, 1, 1, 0), RDX_EARG); /* it has pages */
    rdx_tree_free(t);
}

/* Each tenant has queues in sheets of one stock, and is damaged by itself. */
static void test_damage_to_one_of_several_tenants(void) {
    for (uint32_t policy = 1; policy < RDX_POLICY_COUNT; policy++) {
        rdx_tree *t = build(policy, 3);
        for (uint32_t tenant = 0; tenant < 3; tenant++) {
            test_damage_to_queues(t, tenant);
            for (uint32_t side = 0; side < QUEUES; side++) {
                if (t->policy->rule->memory[side]) {
                    uint64_t most = policy == RDX_POLICY_HIT_DENSITY ? 12 * ROOM : 3 * ROOM;
                    test_damage_to_what_went(t, tenant, side, most);
                }
            }
        }
        ranking *r = ranking_of(t, 1, 0);
        uint32_t q = r->queues[0].count ? 0 : 1;
        DAMAGE(t, *rdx_queue_at(&t->policy->stock, &r->queues[q], 0),
               queued_at(t, ranking_of(t, 2, 0), ranking_of(t, 2, 0)->queues[0].count ? 0 : 1, 0));
        EXPECT_EQ(rdx_tenant_renew(t, 1), RDX_EPINNED);
        int32_t gone[4 * ROOM];
        uint32_t freed;
        EXPECT_EQ(
            rdx_tenant_evict(t, 0, 1, RDX_OWN, 4 * ROOM, UINT64_MAX, gone, NULL, NULL, &freed),
            RDX_OK);
        EXPECT(freed > 0);
        EXPECT_EQ(rdx_tenant_renew(t, 1), RDX_OK);
        EXPECT_EQ(r->gone[0].blocks + r->gone[1].blocks + r->age + r->target + r->turns, 0);
        expect(t, true);
        rdx_tree_free(t);
    }
}

/* Queues of a stock hold what arrays of their own hold, and no sheet that they do not need. */
static void test_queues_of_sheets_are_arrays(void) {
    enum { MANY = 5, MOST = 40000 };
    static uint32_t known[MANY][MOST];
    stock s = {0};
    queue queues[MANY] = {0};
    uint32_t all = 0;
    EXPECT_EQ(rdx_stock_reserve(&s, rdx_stock_need(MOST, MANY)), RDX_OK);
    uint32_t room = s.sheets;
    for (uint32_t round = 0; round < 4000; round++) {
        uint32_t k = random_below(MANY);
        uint32_t n = random_below(round % 7 ? 50 : 3000);
        for (; n && random_below(1000); n--) {
            bool more = (round / 500 + k) % 2 ? all < MOST : queues[k].count == 0 && all < MOST;
            if (more) {
                rdx_queue_grow(&s, &queues[k]);
                uint32_t at = queues[k].count - 1;
                known[k][at] = *rdx_queue_at(&s, &queues[k], at) = random_below(1u << 30);
                all++;
            } else if (queues[k].count) {
                rdx_queue_shrink(&s, &queues[k]);
                all--;
            }
        }
        uint64_t sheets = 0;
        for (uint32_t each = 0; each < MANY; each++) {
            sheets += rdx_queue_sheets(queues[each].count);
        }
        EXPECT_EQ(sheets, s.taken);
        for (uint32_t at = 0; at < queues[k].count; at += 1 + random_below(97)) {
            EXPECT_EQ(known[k][at], *rdx_queue_at(&s, &queues[k], at));
        }
        EXPECT(s.used <= room);
    }
    for (uint32_t k = 0; k < MANY; k++) {
        while (queues[k].count) {
            uint32_t at = queues[k].count - 1;
            EXPECT_EQ(known[k][at], *rdx_queue_at(&s, &queues[k], at));
            rdx_queue_shrink(&s, &queues[k]);
        }
    }
    EXPECT_EQ(s.taken, 0);
    rdx_free_mem(s.places);
}

int main(void) {
    rdx_tree *t = build(RDX_POLICY_S3FIFO, 0);
    test_damage_to_queues(t, 0);
    test_damage_to_what_went(t, 0, 0, ROOM);
    DAMAGE(t, mark_at(t, queued_at(t, ranking_of(t, 0, 0), 1, 0), 0)->uses, 4);
    rdx_tree_free(t);
    t = build(RDX_POLICY_ARC, 0);
    test_damage_to_queues(t, 0);
    test_damage_to_what_went(t, 0, 0, ROOM);
    test_damage_to_what_went(t, 0, 1, ROOM);
    DAMAGE(t, mark_at(t, queued_at(t, ranking_of(t, 0, 0), 0, 0), 0)->uses, 1);
    rdx_tree_free(t);
    test_what_went_is_known_again();
    t = build(RDX_POLICY_GIVEN, 0);
    answer(t);
    expect(t, true);
    int32_t gone[ROOM];
    uint32_t freed;
    rdx_policy_yield(t); /* the order of last use from now on */
    uint64_t stamp = 0;
    while (t->lists[0].resident) {
        EXPECT(rdx_evict_peek(t, 0) >= stamp);
        stamp = rdx_evict_peek(t, 0);
        EXPECT_EQ(rdx_evict(t, 0, 1, UINT64_MAX, gone, NULL, &freed), RDX_OK);
        expect(t, true);
    }
    EXPECT_EQ(rdx_policy_waiting(t, 0), 0);
    rdx_tree_free(t);
    test_damage_to_what_was_said();
    test_damage_to_what_blocks_save();
    test_damage_to_one_of_several_tenants();
    test_queues_of_sheets_are_arrays();
    return 0;
}
