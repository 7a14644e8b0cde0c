/* arc.c: the policy that divides the room by what would have been hit.
 *
 *     keys of what went | used once, by last use   ||   used more often, by last use | keys of ...
 *                       | <------- target -------> ||
 *
 * What comes back while its key is remembered on the one side widens that side by its blocks, or by
 * as many times more as the other side's keys outnumber its own; and it has been used more often.
 * The leaf that was used longest ago goes, of the once used while they take more than their target.
 * The keys of the once used and they themselves are at most as many blocks as are there, and so are
 * the keys of both sides.
 */
#include "policy.h"

static uint64_t widened(const policy_column *c, uint32_t side, uint64_t blocks) {
    uint64_t own = c->gone[side].blocks + blocks; /* as it was before they came back */
    uint64_t other = c->gone[1 - side].blocks;
    return other > own ? blocks * other / own : blocks;
}

static void arc_came(rdx_tree *t, uint32_t i, uint32_t column) {
    policy_column *c = &t->policy->columns[column];
    uint32_t once = rdx_ghosts_recall(t, &c->gone[0], i, column);
    uint32_t often = once ? 0 : rdx_ghosts_recall(t, &c->gone[1], i, column);
    if (once) {
        uint64_t most = t->lists[column].resident;
        uint64_t target = c->target + widened(c, 0, once);
        c->target = target < most ? target : most;
    } else if (often) {
        uint64_t less = widened(c, 1, often);
        c->target = c->target > less ? c->target - less : 0;
    }
    rdx_policy_move(t, i, column, once || often ? 1 : 0, t->clock);
}

static void arc_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)old;
    rdx_policy_move(t, i, column, again ? 1 : mark_at(t, i, column)->queue, t->clock);
}

static uint32_t arc_choose(rdx_tree *t, uint32_t column) {
    const policy_column *c = &t->policy->columns[column];
    uint32_t queue = c->resident[0] > c->target ? 0 : 1;
    uint32_t i = rdx_policy_head(t, column, queue);
    return i != NIL ? i : rdx_policy_head(t, column, 1 - queue);
}

static void arc_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    policy_column *c = &t->policy->columns[column];
    c->victim = NIL; /* with fewer blocks another may go first */
    uint32_t side = mark_at(t, i, column)->queue;
    uint64_t all = t->lists[column].resident;
    ghost run = rdx_ghost_of(t, i, column, n);
    rdx_ghosts_take(&c->gone[0], run.key);
    rdx_ghosts_take(&c->gone[1], run.key);
    rdx_ghosts_push(&c->gone[side], run);
    uint64_t once = c->resident[0] - (side == 0 ? run.pages : 0);
    while (c->gone[0].blocks && c->gone[0].blocks + once > all) {
        rdx_ghosts_shift(&c->gone[0]);
    }
    while (c->gone[0].blocks + c->gone[1].blocks > all) {
        rdx_ghosts_shift(&c->gone[c->gone[1].blocks ? 1 : 0]);
    }
}

static const char *arc_fault(const rdx_tree *t, uint32_t column) {
    for (uint32_t i = 0; i < t->node_used; i++) {
        const mark *m = mark_at(t, i, column);
        if (node_at(t, i)->flags & NODE_LIVE && m->queue == 0 && m->uses) {
            return "a node was used again and stands with the once used";
        }
    }
    return NULL;
}

const policy rdx_policy_arc = {.came = arc_came,
                               .used = arc_used,
                               .going = arc_going,
                               .choose = arc_choose,
                               .fault = arc_fault,
                               .memory = {2, 2}};
