/* The checker sees each kind of damage to what is kept for windows, chunks and snapshots: a sound
 * tree is damaged in one place, rdx_check names the invariant, and the damage is undone. */
#include "expect.h"
#include "tree.h"

#define PAGES 12
enum { FULL, WINDOW, STATE }; /* groups, and columns: there is one tier */

typedef struct world {
    rdx_tree *tree;
    uint32_t end; /* node */
} world;

static void expect(const world *w, const char *invariant) {
    char what[256];
    int status = rdx_check(w->tree, 1, what, sizeof what);
    if (invariant == NULL) {
        EXPECT_EQ(status, RDX_OK);
        return;
    }
    EXPECT_EQ(status, RDX_EINVARIANT);
    size_t length = strlen(invariant);
    if (strncmp(what, invariant, length) != 0 || what[length] != ':') {
        fprintf(stderr, "%s was expected, found %s\n", invariant, what);
        exit(1);
    }
}

/* Sets a place to a value, expects the invariant to be named, and sets it back. */
#define DAMAGE(w, place, value, invariant)                                                         \
    do {                                                                                           \
        __typeof__(place) sound = (place);                                                         \
        (place) = (value);                                                                         \
        expect(w, invariant);                                                                      \
        (place) = sound;                                                                           \
        expect(w, NULL);                                                                           \
    } while (0)

/* A path of 12 pages with windows of 3 pages at 5 and at 12, and snapshots at 8 and at 12. */
static world build(void) {
    const rdx_group groups[] = {
        {RDX_RULE_FULL, 1, 0, 0, 1}, {RDX_RULE_WINDOW, 1, 3, 0, 1}, {RDX_RULE_STATE, 4, 0, 0, 1}};
    rdx_tree_config config = {.page_bytes = 4,
                              .check_ids = 1,
                              .groups = 3,
                              .tiers = 1,
                              .key_bytes = 16,
                              .page_tokens = 1};
    world w;
    rdx_handle root;
    EXPECT_EQ(rdx_tree_new(&config, groups, &w.tree), RDX_OK);
    EXPECT_EQ(rdx_root_new(w.tree, NULL, &root), RDX_OK);
    int32_t run[PAGES], slots[3][PAGES];
    const uint32_t columns[] = {FULL, WINDOW, STATE};
    memset(slots, 0xff, sizeof slots);
    for (int32_t i = 0; i < PAGES; i++) {
        run[i] = i;
        slots[FULL][i] = i;
        if ((i >= 2 && i < 5) || i >= 9)
            slots[WINDOW][i] = i;
    }
    slots[STATE][7] = slots[STATE][11] = 1;
    rdx_cursor from = {root, root, 0};
    rdx_insert result;
    EXPECT_EQ(rdx_tree_insert(w.tree, from, run, PAGES, columns, 3, &slots[0][0], NULL, 0, &result),
              RDX_OK);
    w.end = (uint32_t)result.end.node;
    expect(&w, NULL);
    return w;
}

static void test_damage_to_intervals(const world *w) {
    cell *window = cell_at(w->tree, w->end, WINDOW);
    cell *state = cell_at(w->tree, w->end, STATE);
    const node *x = node_at(w->tree, w->end);
    DAMAGE(w, window->hi, x->len + 1, "I3");
    DAMAGE(w, slots_at(w->tree, x, WINDOW)[window->lo], RDX_NO_SLOT, "I27");
    DAMAGE(w, state->lo, state->lo - 1, "I28");
    DAMAGE(w, w->tree->rules[STATE].block_pages, 5, "I28");
    DAMAGE(w, w->tree->lists[WINDOW].resident, 99, "I12");
    DAMAGE(w, cell_at(w->tree, x->parent, STATE)->kids, 7, "I16");
}

static void test_damage_to_lists(const world *w) {
    cell *window = cell_at(w->tree, w->end, WINDOW);
    DAMAGE(w, window->listed, 0, "I16");
    DAMAGE(w, window->listed, LISTED_DEAD, "I20");
    DAMAGE(w, window->stamp, window->stamp + 99, NULL); /* the last of the list may be younger */
    DAMAGE(w, window->stamp, 0, "I18");
    DAMAGE(w, window->prev, w->end, "I18");
    DAMAGE(w, w->tree->lists[w->tree->columns + WINDOW].listed, 1, "I18");
}

static void test_damage_to_pins(const world *w) {
    rdx_cursor at = cursor_at(w->tree, w->end, PAGES), end;
    const node *x = node_at(w->tree, w->end);
    uint64_t lease;
    EXPECT_EQ(rdx_lease_take(w->tree, at, RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &end), RDX_OK);
    expect(w, NULL);
    DAMAGE(w, pins_at(w->tree, x, WINDOW)[x->len - 1], 2, "I15");
    DAMAGE(w, pins_at(w->tree, x, WINDOW)[0], 1, "I15");
    DAMAGE(w, w->tree->leases[0].mask, 0, "I15");
    DAMAGE(w, w->tree->leases[0].first, 0, "I15");
    DAMAGE(w, w->tree->lists[STATE].shielded, 0, "I12");
    DAMAGE(w, cell_at(w->tree, w->end, STATE)->listed, LISTED_LIVE, "I18");
    EXPECT_EQ(rdx_lease_release(w->tree, lease, 1), RDX_OK);
    expect(w, NULL);
}

int main(void) {
    world w = build();
    test_damage_to_intervals(&w);
    test_damage_to_lists(&w);
    test_damage_to_pins(&w);
    rdx_tree_free(w.tree);
    return 0;
}
