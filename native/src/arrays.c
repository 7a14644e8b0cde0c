/* arrays.c: which kinds of arrays are read where they lie, and what may be a prompt (arrays.h). */
#include "arrays.h"

rdx_array_kind rdx_array_kinds[RDX_ARRAY_KINDS];

bool rdx_array_learn(const void *array, rdx_span run, char format) {
    const rdx_array *a = array;
    const uint32_t flags = RDX_ARRAY_RUN | RDX_ARRAY_WRITE;
    uint32_t itemsize = (uint32_t)(run.bytes / 6);
    bool lies = a->data == run.at && a->nd == 2 && a->dims[0] == 2 && a->dims[1] == 3 &&
                a->strides[0] == 3 * (int64_t)itemsize && a->strides[1] == itemsize &&
                ((uint32_t)a->flags & flags) == flags;
    for (uint32_t k = 0; lies && k < RDX_ARRAY_KINDS; k++) {
        rdx_array_kind *kind = &rdx_array_kinds[k];
        if (kind->type && kind->type != a->head[1]) {
            return false;
        }
        if (!kind->type || kind->dtype == a->dtype) {
            *kind = (rdx_array_kind){a->head[1], a->dtype, itemsize, format};
            return true;
        }
    }
    return false;
}

bool rdx_prompt_of_array(const rdx_tree *tree, const void *object, rdx_prompt *out) {
    rdx_span run;
    const rdx_array_kind *kind = rdx_array_of(object, 0, &run);
    if (!kind || kind->format != 'i' || ((const rdx_array *)object)->nd != 1 ||
        !rdx_tree_checks_ids(tree)) {
        return false;
    }
    *out = (rdx_prompt){run.at, run.bytes / 4, (uint32_t)(run.bytes / rdx_tree_page_bytes(tree))};
    return true;
}

const char *rdx_prompt_of_buffer(const rdx_tree *tree, uint64_t bytes, rdx_buffer_kind *kind,
                                 rdx_prompt *out) {
    uint64_t page_bytes = rdx_tree_page_bytes(tree);
    const char *f = kind->format;
    f += *f == '<' || *f == '=' || *f == '@';
    bool tokens = rdx_tree_checks_ids(tree);
    kind->other = tokens && (kind->itemsize != 4 || (f[0] != 'i' && f[0] != 'l') || f[1] != 0);
    if (kind->other) {
        return "tokens must be int32";
    }
    if (tokens && kind->ndim != 1) {
        return "tokens must have one dimension";
    }
    if (!tokens && bytes % page_bytes) {
        return "keys must be whole pages of the tree";
    }
    if (bytes / page_bytes > INT32_MAX) {
        return "pages must be fewer than 2^31";
    }
    out->tokens = bytes / 4;
    out->pages = (uint32_t)(bytes / page_bytes);
    return NULL;
}
