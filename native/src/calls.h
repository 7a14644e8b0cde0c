/* calls.h: the calls that Python makes without giving up its lock, as plain values: what each takes
 * and gives, and where it goes. fastcall.c fills a call in, by the letters of its entry, and makes
 * an object of what it gives. Not public. */
#ifndef RDX_CALLS_H
#define RDX_CALLS_H
#include "rdx.h"

#define RDX_NO_ROOM (-1) /* beside the statuses: a buffer is too small for what it is to hold */

typedef struct rdx_span {
    void *at; /* NULL: none was given */
    uint64_t bytes;
} rdx_span;

typedef struct rdx_prompt {
    const void *run;
    uint64_t tokens; /* as many as its bytes would be */
    uint32_t pages;  /* whole ones */
} rdx_prompt;

typedef struct rdx_call {
    rdx_tree *tree;
    rdx_pool *pool;
    rdx_cursor at;
    rdx_prompt prompt;
    uint64_t n[6]; /* numbers, in order */
    rdx_span v[6]; /* buffers, in order */
    uint32_t many; /* prompts of a batch */
    const void **runs;
    uint64_t *tokens;
    uint32_t *counts;
    uint32_t *limits; /* room for as many */
    uint64_t out[6];  /* what it gives */
    uint32_t bad;     /* whose fault it is, in a batch */
} rdx_call;

/* What a call keeps of each prompt of a batch, in one piece of memory. */
#define RDX_PROMPT_BYTES (sizeof(void *) + sizeof(uint64_t) + 2 * sizeof(uint32_t))
void rdx_call_room(rdx_call *call, void *at, uint32_t prompts);
void rdx_call_prompt(rdx_call *call, uint32_t k, const rdx_prompt *prompt);

typedef enum rdx_gives {
    RDX_GIVES_NOTHING,
    RDX_GIVES_TREE,
    RDX_GIVES_NUMBER,
    RDX_GIVES_THREE, /* from here on: numbers */
    RDX_GIVES_MATCH,
    RDX_GIVES_INSERT
} rdx_gives;

/* takes: a letter an argument.
 *     t    a tree                       p    the address of a pool
 *     n u  a number; one of 32 bits     c    a cursor
 *     k K  a prompt; many of them       b a  bytes to read; or none
 *     s    numbers of 32 bits to read   B A  bytes to write; or none
 *     C    cursors, bytes to read       S O  numbers of 32 bits to write; or none */
typedef struct rdx_entry {
    const char *name;
    const char *takes;
    int (*run)(rdx_call *);
    rdx_gives gives;
} rdx_entry;

#define RDX_ENTRIES 20
extern const rdx_entry rdx_entries[RDX_ENTRIES];
#endif
