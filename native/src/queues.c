/* queues.c: arrays of nodes that grow and shrink at their end, many of them in the room of one.
 * Together they hold each node once, but which of them holds how many nobody can say before: so
 * they are made of sheets of one size, and what all may need is reserved ahead.
 *
 *     queue --> top sheet --> | 0 | 1 | 2 | - |     200 nodes: two sheets below the top one
 *                               |   |
 *                        nodes 0-127  128-199
 */
#include "queues.h"

#define MOST_LEVELS 5

static uint32_t levels_for(uint64_t count) {
    uint32_t levels = 0;
    while (levels < MOST_LEVELS && (levels ? 1ull << levels * SPAN_BITS : 0) < count) {
        levels++;
    }
    return levels;
}

uint64_t rdx_stock_need(uint64_t nodes, uint64_t queues) {
    return nodes / (SPAN - 1) + queues * levels_for(nodes) + 1;
}

int rdx_stock_reserve(stock *s, uint64_t sheets) {
    if (sheets <= s->sheets) {
        return RDX_OK;
    }
    uint64_t half = s->sheets + (uint64_t)s->sheets / 2;
    uint64_t room = sheets > half ? sheets : half; /* tenants come one by one */
    uint32_t *places =
        room < NIL ? rdx_realloc(s->places, (size_t)room * SPAN * sizeof(*places)) : NULL;
    if (!places) {
        return RDX_ENOMEM;
    }
    s->free = s->sheets ? s->free : NIL;
    s->places = places;
    s->sheets = (uint32_t)room;
    return RDX_OK;
}

static uint32_t take_sheet(stock *s) {
    uint32_t sheet = s->free;
    s->taken++;
    if (sheet == NIL) {
        return s->used++;
    }
    s->free = s->places[(size_t)sheet * SPAN];
    return sheet;
}

static void give_sheet(stock *s, uint32_t sheet) {
    s->places[(size_t)sheet * SPAN] = s->free;
    s->free = sheet;
    s->taken--;
}

/* Whether place `at` is the first that is found through a sheet so many levels above the last. */
static bool begins(uint32_t at, uint32_t level) {
    return (at & ((1ull << (level + 1) * SPAN_BITS) - 1)) == 0;
}

void rdx_queue_grow(stock *s, queue *q) {
    uint32_t at = q->count++;
    if (levels_for(q->count) > q->levels) {
        uint32_t top = take_sheet(s);
        if (q->levels) {
            s->places[(size_t)top * SPAN] = q->top;
        }
        q->top = top;
        q->levels++;
    }
    uint32_t sheet = q->top;
    for (uint32_t level = q->levels; level-- > 1;) {
        uint32_t *below = &s->places[(size_t)sheet * SPAN + (at >> level * SPAN_BITS) % SPAN];
        if (begins(at, level - 1)) {
            *below = take_sheet(s);
        }
        sheet = *below;
    }
}

void rdx_queue_shrink(stock *s, queue *q) {
    uint32_t path[MOST_LEVELS];
    uint32_t at = --q->count;
    path[q->levels - 1] = q->top;
    for (uint32_t level = q->levels; level-- > 1;) {
        const uint32_t *sheet = &s->places[(size_t)path[level] * SPAN];
        path[level - 1] = sheet[(at >> level * SPAN_BITS) % SPAN];
    }
    for (uint32_t level = 0; level < q->levels && begins(at, level); level++) {
        give_sheet(s, path[level]);
    }
    if (levels_for(q->count) < q->levels) {
        uint32_t top = q->top;
        q->levels--;
        if (q->levels) {
            q->top = s->places[(size_t)top * SPAN];
            give_sheet(s, top);
        }
    }
}

uint64_t rdx_queue_sheets(uint32_t count) {
    uint64_t sheets = 0;
    for (uint32_t level = levels_for(count); level-- > 0;) {
        sheets += (((uint64_t)count - 1) >> (level + 1) * SPAN_BITS) + 1;
    }
    return sheets;
}
