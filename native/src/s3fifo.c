/* s3fifo.c: the policy of three queues, of which none is ordered by use.
 *
 *     came -> | small, a tenth of the blocks | -- used twice there --> | main | -> gone
 *                         |                                  ^            |
 *                         v                                  +-- used ----+
 *                       | keys of what went | -- came back --> main
 *
 * A leaf at the head of a queue goes, or stays for its uses: out of the small queue with two, back
 * to the end of the main one with one less of at most three. What comes back while its key is
 * remembered, as many blocks as are there, comes to the main queue. Each turn takes a use away, so
 * a victim costs as many turns as there were uses.
 */
#include "policy.h"

#define MOST_USES 3

static void enqueue(rdx_tree *t, uint32_t i, uint32_t column, uint32_t queue, uint32_t uses) {
    mark_at(t, i, column)->uses = uses;
    rdx_policy_move(t, i, column, queue, ++ranking_at(t, i, column)->turns);
}

static void s3fifo_came(rdx_tree *t, uint32_t i, uint32_t column) {
    bool back = rdx_ghosts_recall(t, &ranking_at(t, i, column)->gone[0], i, column);
    enqueue(t, i, column, back ? 1 : 0, 0);
}

static void s3fifo_used(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old) {
    (void)again, (void)old;
    mark *m = mark_at(t, i, column);
    m->uses = m->uses < MOST_USES ? m->uses : MOST_USES;
}

static uint32_t s3fifo_choose(rdx_tree *t, uint32_t column, uint32_t tenant) {
    const ranking *r = ranking_of(t, tenant, column);
    for (;;) {
        uint32_t queue = r->resident[0] * 10 > r->resident[0] + r->resident[1] ? 0 : 1;
        uint32_t i = rdx_policy_head(t, column, tenant, queue);
        i = i != NIL ? i : rdx_policy_head(t, column, tenant, 1 - queue);
        if (i == NIL) {
            return NIL;
        }
        const mark *m = mark_at(t, i, column);
        if (m->queue == 0 && m->uses > 1) {
            enqueue(t, i, column, 1, 0);
        } else if (m->queue == 1 && m->uses > 0) {
            enqueue(t, i, column, 1, m->uses - 1);
        } else {
            return i;
        }
    }
}

static void s3fifo_going(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n) {
    ranking *r = ranking_at(t, i, column);
    r->victim = NIL; /* with fewer blocks another may go first */
    ghosts *gone = &r->gone[0];
    ghost run = rdx_ghost_of(t, i, column, n);
    rdx_ghosts_take(gone, run.key);
    if (mark_at(t, i, column)->queue == 0) {
        rdx_ghosts_push(gone, run, rdx_policy_memory(t, 0));
    }
    while (gone->blocks > rdx_tenant_blocks(t, rdx_tenant_of(t, i), column)) {
        rdx_ghosts_shift(gone);
    }
}

static const char *s3fifo_fault(const rdx_tree *t, uint32_t column, uint32_t tenant) {
    const ranking *r = ranking_of(t, tenant, column);
    for (uint32_t i = 0; i < t->node_used; i++) {
        const mark *m = mark_at(t, i, column);
        bool own = node_at(t, i)->flags & NODE_LIVE && rdx_tenant_of(t, i) == tenant;
        if (own && (m->uses > MOST_USES || m->key > r->turns)) {
            return "a node stays for more uses than count, or stands behind the end of its queue";
        }
    }
    return NULL;
}

const policy rdx_policy_s3fifo = {.came = s3fifo_came,
                                  .used = s3fifo_used,
                                  .going = s3fifo_going,
                                  .choose = s3fifo_choose,
                                  .fault = s3fifo_fault,
                                  .memory = {2, 0}};
