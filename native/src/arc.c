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

static uint64_t widened(const ranking *r, uint32_t side, uint64_t blocks) {
    uint64_t own = r->gone[side].blocks + blocks; /* as it was before they came back */
    uint64_t other = r->gone[1 - side].blocks;
    return other > own ? blocks * other / own : blocks;
}

static void arc_came(rdx_tree *t, uint32_t i, uint32_t column) {
    ranking *r = ranking_at(t, i, column);
    uint32_t once = rdx_ghosts_recall(t, &r->gone[0], i, column);
    uint32_t often = once ? 0 : rdx_ghosts_recall(t, &r->gone[1], i, column);
    if (once) {
        uint64_t most = rdx_tenant_blocks(t, rdx_tenant_of(t, i), column);
        uint64_t target = r->target + widened(r, 0, once);
        r->target = target < most ? target : most;
    } else if (often) {
        uint64_t less = widened(r, 1, often);
        r->target = r->target > less ? r->target - less : 0;
    }
    rdx_policy_move(t, i, column, once || often ? 1 : 0, t->clock);
}

static void arc_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)old;
    rdx_policy_move(t, i, column, again ? 1 : mark_at(t, i, column)->queue, t->clock);
}

static uint32_t arc_choose(rdx_tree *t, uint32_t column, uint32_t tenant) {
    const ranking *r = ranking_of(t, tenant, column);
    uint32_t queue = r->resident[0] > r->target ? 0 : 1;
    uint32_t i = rdx_policy_head(t, column, tenant, queue);
    return i != NIL ? i : rdx_policy_head(t, column, tenant, 1 - queue);
}

static void arc_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    ranking *r = ranking_at(t, i, column);
    r->victim = NIL; /* with fewer blocks another may go first */
    uint32_t side = mark_at(t, i, column)->queue;
    uint64_t all = rdx_tenant_blocks(t, rdx_tenant_of(t, i), column);
    ghost run = rdx_ghost_of(t, i, column, n);
    rdx_ghosts_take(&r->gone[0], run.key);
    rdx_ghosts_take(&r->gone[1], run.key);
    rdx_ghosts_push(&r->gone[side], run, rdx_policy_memory(t, side));
    uint64_t once = r->resident[0] - (side == 0 ? run.pages : 0);
    while (r->gone[0].blocks && r->gone[0].blocks + once > all) {
        rdx_ghosts_shift(&r->gone[0]);
    }
    while (r->gone[0].blocks + r->gone[1].blocks > all) {
        rdx_ghosts_shift(&r->gone[r->gone[1].blocks ? 1 : 0]);
    }
}

static const char *arc_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    for (uint32_t i = 0; i < t->node_used; i++) {
        const mark *m = mark_at(t, i, column);
        bool own = node_at(t, i)->flags & NODE_LIVE && rdx_tenant_of(t, i) == tenant;
        if (own && m->queue == 0 && m->uses) {
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
