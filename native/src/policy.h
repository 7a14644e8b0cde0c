/* policy.h: orders of eviction other than by last use alone. Not public. */
#ifndef RDX_POLICY_H
#define RDX_POLICY_H
#include "ghosts.h"
#include "queues.h"

#define QUEUES 2

/* What a policy knows of one node in one column; zero where the column has no data of it. */
typedef struct mark {
    uint64_t key;   /* of a queue the least goes first, of equal ones what was used longer ago */
    uint64_t last;  /* the clock at its last use, or when it came */
    uint32_t uses;  /* since it came, each time that a request ended apart from the one before */
    uint32_t place; /* in its queue; NIL: in none */
    uint32_t queue;
    uint32_t fresh; /* it came in a call that has not stamped it yet */
} mark;

struct density;
struct given;
struct hinted;

/* What the entries of a column save, for a policy that goes by it. */
typedef struct price {
    double linear; /* FLOPs of a token, and more of them for each token before it */
    double quadratic;
    double bytes;  /* of one entry */
    uint32_t pool; /* columns of one pool make room for each other, and age together */
} price;

typedef struct policy_column { /* of all tenants */
    struct given *given;       /* what waits for keys from outside */
    struct hinted *hinted;     /* what requests said */
    price price;
    uint64_t turned; /* times that every order of the column may have changed */
} policy_column;

/* How the blocks of one tenant in one column are ordered, as if they were alone there. */
typedef struct ranking {
    queue queues[QUEUES];      /* what the list of the living holds, heaps unless drawn */
    uint64_t resident[QUEUES]; /* blocks of nodes whose mark names the queue, listed or not */
    uint64_t came;             /* nodes that came so far */
    uint64_t age;              /* the key of the last victim */
    uint32_t victim;           /* found last, and nothing has changed since; or NIL */
    uint64_t found;            /* `turned` of the column at that time */
    struct density *density;   /* what hit_density knows */
    uint64_t target;           /* blocks that arc leaves to the first queue */
    uint64_t turns;            /* of s3fifo: nodes that came to the end of a queue */
    ghosts gone[QUEUES];       /* what went of a queue, where the policy remembers it */
} ranking;

typedef struct policy {
    /* Node i has its first data. Sets key and queue. */
    void (*came)(rdx_tree *t, uint32_t i, uint32_t column);
    /* Node i was used; `again`: for the first time since the request came that used it. `old`: the
     * mark as it was before. */
    void (*used)(rdx_tree *t, uint32_t i, uint32_t column, bool again, const mark *old);
    /* What follows may be NULL. A whole path of a tenant was used. */
    void (*settle)(rdx_tree *t, uint32_t column, uint32_t tenant);
    /* The upper half of what was one node has its mark, too. */
    void (*split)(rdx_tree *t, uint32_t upper, uint32_t lower, uint32_t column);
    /* Up to n blocks of node i go. */
    void (*going)(rdx_tree *t, uint32_t i, uint32_t column, uint32_t n);
    /* Node i has more blocks, or fewer. */
    void (*resident)(rdx_tree *t, uint32_t i, uint32_t column, int64_t more);
    /* Node i has no data any more. */
    void (*left)(rdx_tree *t, uint32_t i, uint32_t column);
    /* A request said so of node i; `own`: nothing else goes on from where it ends. */
    void (*hint)(rdx_tree *t, uint32_t i, uint32_t column, const rdx_hint *said, bool own);
    /* The time has moved on. */
    void (*time)(rdx_tree *t, uint32_t column);
    /* A tenant's victim; NULL: the head of the first queue that has one. */
    uint32_t (*choose)(rdx_tree *t, uint32_t column, uint32_t tenant);
    int (*reserve)(rdx_tree *t, uint32_t column, uint32_t nodes);
    void (*free)(rdx_tree *t, uint32_t column);
    uint64_t (*bytes)(const rdx_tree *t, uint32_t column); /* beside marks and queues */
    /* Nothing is known of a tenant; where something was, this cannot fail. */
    int (*begin)(ranking *r);
    void (*end)(ranking *r);
    const char *(*fault)(const rdx_tree *t, uint32_t column, uint32_t tenant);
    size_t known;            /* bytes of each tenant's ranking beside it */
    uint32_t memory[QUEUES]; /* runs for each node that are remembered when they went: it needs to
                                know pages again */
    bool drawn;              /* queues have no order: their nodes are drawn from */
    bool every;              /* it orders columns that are not full, too */
    bool price;              /* it goes by what entries save */
} policy;

struct policy_state {
    const policy *rule;
    uint64_t ordered; /* columns that it orders; the others go by last use */
    uint64_t ranked;  /* columns of which keys can be compared with each other's */
    uint64_t now;     /* as last told */
    uint32_t nodes;   /* room for marks */
    uint32_t tenants; /* room for rankings */
    mark *marks;      /* [node * columns + column] */
    policy_column *columns;
    ranking *rankings; /* [tenant * columns + column] */
    stock stock;       /* of the queues, where tenants are told apart */
};

static inline mark *mark_at(const rdx_tree *t, uint32_t i, uint32_t column) {
    return &t->policy->marks[(size_t)i * t->columns + column];
}

static inline ranking *ranking_of(const rdx_tree *t, uint32_t tenant, uint32_t column) {
    return &t->policy->rankings[(size_t)tenant * t->columns + column];
}
/* That of node i's tenant. */
static inline ranking *ranking_at(const rdx_tree *t, uint32_t i, uint32_t column) {
    return ranking_of(t, rdx_tenant_of(t, i), column);
}
/* The node at a place of a queue. */
static inline uint32_t queued_at(const rdx_tree *t, const ranking *r, uint32_t queue, uint32_t at) {
    return *rdx_queue_at(&t->policy->stock, &r->queues[queue], at);
}
/* Gives node i a new key and queue, wherever it stands. */
void rdx_policy_move(rdx_tree *t, uint32_t i, uint32_t column, uint32_t queue, uint64_t key);
/* The leaf of a tenant that goes first of a queue, or NIL. */
uint32_t rdx_policy_head(rdx_tree *t, uint32_t column, uint32_t tenant, uint32_t queue);
/* The runs of a queue that are remembered at most when they went. */
uint64_t rdx_policy_memory(const rdx_tree *t, uint32_t queue);

extern const policy rdx_policy_fifo;
extern const policy rdx_policy_lfu;
extern const policy rdx_policy_slru;
extern const policy rdx_policy_density;
extern const policy rdx_policy_s3fifo;
extern const policy rdx_policy_arc;
extern const policy rdx_policy_given;
extern const policy rdx_policy_priority;
extern const policy rdx_policy_cost;
#endif
