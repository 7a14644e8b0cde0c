/* arrays.h: an array of numpy, read where it lies. Asking it for a buffer costs 70 ns, a third of
 * what a match of nothing took: it writes its format down anew each time. The layout is that of
 * numpy's documented PyArrayObject; it is believed only once an array of the same type and dtype
 * was found to be what its own buffer says (rdx_array_learn). Not public. */
#ifndef RDX_ARRAYS_H
#define RDX_ARRAYS_H
#include "calls.h"

#include <stdbool.h>

#define RDX_ARRAY_KINDS 4
#define RDX_ARRAY_RUN 1u /* no gaps between its rows */
#define RDX_ARRAY_WRITE 0x400u

typedef struct rdx_array {
    const void *head[2]; /* references, type */
    uint8_t *data;
    int nd;
    const int64_t *dims;
    const int64_t *strides;
    const void *base;
    const void *dtype; /* one object for all arrays of a plain kind */
    int flags;
} rdx_array;

typedef struct rdx_array_kind {
    const void *type;
    const void *dtype;
    uint32_t itemsize;
    char format;
} rdx_array_kind;

extern rdx_array_kind rdx_array_kinds[RDX_ARRAY_KINDS];

/* Whether it is one of those at all; nothing of Python runs where its buffer is asked for. */
static inline bool rdx_is_array(const void *object) {
    return ((const rdx_array *)object)->head[1] == rdx_array_kinds[0].type;
}

/* The kind of an array whose bytes can be read (and with RDX_ARRAY_WRITE in `flags` written) in one
 * run of fewer than 2^29 items, and the run; NULL: ask for its buffer. */
static inline const rdx_array_kind *rdx_array_of(const void *object, uint32_t flags,
                                                 rdx_span *run) {
    const rdx_array *a = object;
    for (uint32_t k = 0; k < RDX_ARRAY_KINDS; k++) {
        const rdx_array_kind *kind = &rdx_array_kinds[k];
        if (a->head[1] != kind->type) {
            return NULL; /* they are learnt of one type, in order */
        }
        if (a->dtype != kind->dtype) {
            continue;
        }
        flags |= RDX_ARRAY_RUN;
        if (a->nd < 1 || a->nd > 2 || ((uint32_t)a->flags & flags) != flags) {
            return NULL;
        }
        uint64_t items = (uint64_t)a->dims[0] * (a->nd == 2 ? (uint64_t)a->dims[1] : 1);
        *run = (rdx_span){a->data, items * kind->itemsize};
        return items < 1u << 29 ? kind : NULL;
    }
    return NULL;
}

/* Takes note of the kind of an array of two rows of three, if it lies as said above: `run` and
 * `format` are what its buffer tells. */
bool rdx_array_learn(const void *array, rdx_span run, char format);

/* Pages of a tree: int32 tokens of one dimension. False, as always for opaque rows: ask for its
 * buffer. */
bool rdx_prompt_of_array(const rdx_tree *tree, const void *object, rdx_prompt *out);

typedef struct rdx_buffer_kind {
    const char *format; /* as the struct module writes it */
    int64_t itemsize;
    int ndim;
    bool other; /* set: what is wrong is the type */
} rdx_buffer_kind;
/* The same of a buffer of so many bytes without gaps; `run` is set. What was expected, or NULL. */
const char *rdx_prompt_of_buffer(const rdx_tree *tree, uint64_t bytes, rdx_buffer_kind *kind,
                                 rdx_prompt *out);
#endif
