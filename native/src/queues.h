/* queues.h: what may go, in the order of a policy, for each tenant of each column. Not public. */
#ifndef RDX_QUEUES_H
#define RDX_QUEUES_H
#include "tree.h"

#define SPAN_BITS 7
#define SPAN (1u << SPAN_BITS) /* places of a sheet */

/* An array that grows and shrinks at its end: in one piece that has room for all nodes, or in
 * sheets of a stock that many share. */
typedef struct queue {
    uint32_t *whole; /* the piece, or NULL */
    uint32_t count;
    uint32_t top;    /* the sheet from which the others are found; its places name sheets */
    uint32_t levels; /* of sheets: so many are passed to a place; 0: there is none */
} queue;

/* Sheets of one size, so many that all queues together never lack one. */
typedef struct stock {
    uint32_t *places; /* [sheet * SPAN + place]; of one that is free the first names the next */
    uint32_t sheets;
    uint32_t used; /* high-water mark */
    uint32_t free;
    uint32_t taken;
} stock;

/* The sheets that `queues` queues of together `nodes` places may need. */
uint64_t rdx_stock_need(uint64_t nodes, uint64_t queues);
/* Room for so many sheets. RDX_ENOMEM: as before. */
int rdx_stock_reserve(stock *s, uint64_t sheets);
/* One place more at the end of a queue in sheets, or one less. */
void rdx_queue_grow(stock *s, queue *q);
void rdx_queue_shrink(stock *s, queue *q);
/* Sheets that a queue of so many places has. */
uint64_t rdx_queue_sheets(uint32_t count);

/* Place `at` of a queue, below its count. */
static inline uint32_t *rdx_queue_at(const stock *s, const queue *q, uint32_t at) {
    if (q->whole) {
        return q->whole + at;
    }
    const uint32_t *sheet = s->places + (size_t)q->top * SPAN;
    for (uint32_t level = q->levels; level-- > 1;) {
        sheet = s->places + (size_t)sheet[(at >> level * SPAN_BITS) % SPAN] * SPAN;
    }
    return (uint32_t *)(uintptr_t)(sheet + at % SPAN);
}
#endif
