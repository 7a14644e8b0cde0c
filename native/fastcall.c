/* fastcall.c: the short calls, as METH_FASTCALL functions of the cffi module. They keep the GIL (a
 * cffi call gives it up, which costs tens of microseconds beside a busy thread). Arguments and
 * buffers only; every decision is made behind rdx.h. The only file that knows Python.
 */
#include <Python.h>

#include "rdx.h"

#define CAPSULE "rdx_tree"

static PyObject *raiser; /* called with a status; raises the matching class */
static PyTypeObject *match_type, *insert_type;

static PyObject *fail(int status) {
    Py_XDECREF(raiser ? PyObject_CallFunction(raiser, "i", status) : NULL);
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, rdx_status_text(status));
    }
    return NULL;
}

static rdx_tree *tree_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

/* The tree of a call with `want` arguments; NULL with an error. */
static rdx_tree *enter(PyObject *const *a, Py_ssize_t got, Py_ssize_t want) {
    if (got != want) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", want, got);
        return NULL;
    }
    return tree_of(a[0]);
}

/* Unsigned numbers; -1 in *bad stays there once something was no number or too large. */
static uint64_t u64_of(PyObject *value, int *bad) {
    uint64_t n = PyLong_AsUnsignedLongLong(value);
    if (n == UINT64_MAX && PyErr_Occurred()) {
        *bad = -1;
    }
    return n;
}

static uint32_t u32_of(PyObject *value, int *bad) {
    uint64_t n = u64_of(value, bad);
    if (!*bad && n > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a count or index does not fit in 32 bits");
        *bad = -1;
    }
    return (uint32_t)n;
}

static int refuse(Py_buffer *view, PyObject *kind, const char *expected) {
    PyErr_Format(kind, "%s, not %zd bytes of format %s in %d dimensions", expected, view->len,
                 view->format ? view->format : "B", view->ndim);
    PyBuffer_Release(view);
    return -1;
}

/* Pages of a tree: int32 tokens (one dimension, C-contiguous), or opaque rows. The number of
 * items that are int32 goes to *tokens, of whole pages to *pages. */
static int pages_of(PyObject *object, const rdx_tree *tree, Py_buffer *view, uint64_t *tokens,
                    uint64_t *pages) {
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) < 0) {
        return -1;
    }
    uint32_t page_bytes = rdx_tree_page_bytes(tree);
    const char *f = view->format ? view->format : "B";
    f += *f == '<' || *f == '=' || *f == '@';
    if (!rdx_tree_checks_ids(tree)) {
        if (view->len % page_bytes) {
            return refuse(view, PyExc_ValueError, "keys must be whole pages of the tree");
        }
    } else if (view->itemsize != 4 || (f[0] != 'i' && f[0] != 'l') || f[1] != 0) {
        return refuse(view, PyExc_TypeError, "tokens must be int32");
    } else if (view->ndim != 1) {
        return refuse(view, PyExc_ValueError, "tokens must have one dimension");
    }
    *tokens = (uint64_t)view->len / 4;
    *pages = (uint64_t)view->len / page_bytes;
    if (*pages > INT32_MAX) {
        return refuse(view, PyExc_ValueError, "pages must be fewer than 2^31");
    }
    return 0;
}

/* A flat buffer of n items of `size` bytes at least; numbers of other widths are refused. */
static int room_of(PyObject *object, int writable, uint64_t n, uint64_t size, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_ND | (writable ? PyBUF_WRITABLE : 0)) < 0) {
        return -1;
    }
    if (size == 4 && view->itemsize != 4 && view->itemsize != 1) {
        return refuse(view, PyExc_TypeError, "columns and slots must be 32 bits wide");
    }
    if ((uint64_t)view->len < n * size) {
        return refuse(view, PyExc_ValueError, "columns, slots and ids must have room for all");
    }
    return 0;
}

static PyObject *sequence(PyTypeObject *type, const uint64_t *values, int n) {
    PyObject *result = PyStructSequence_New(type);
    for (int i = 0; result && i < n; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (!value) {
            Py_DECREF(result);
            return NULL;
        }
        PyStructSequence_SetItem(result, i, value);
    }
    return result;
}

static void tree_delete(PyObject *capsule) { rdx_tree_free(tree_of(capsule)); }

/* (page_bytes, check_ids, rdx_group[groups], tiers, key_bytes, page_tokens, seed) -> capsule */
static PyObject *tree_new(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    Py_buffer groups;
    if (n != 7 || room_of(a[2], 0, 0, 4, &groups) < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "expected 7 arguments");
    }
    uint32_t count = (uint32_t)((size_t)groups.len / sizeof(rdx_group));
    rdx_tree_config c = {u32_of(a[0], &bad), u32_of(a[1], &bad), count,
                         u32_of(a[3], &bad), u32_of(a[4], &bad), u32_of(a[5], &bad),
                         u64_of(a[6], &bad)};
    rdx_tree *tree = NULL;
    int status = bad ? 0 : rdx_tree_new(&c, groups.buf, &tree);
    PyBuffer_Release(&groups);
    if (bad) {
        return NULL;
    }
    return status ? fail(status) : PyCapsule_New(tree, CAPSULE, tree_delete);
}

static PyObject *tree_address(PyObject *self, PyObject *capsule) {
    rdx_tree *tree = tree_of(capsule);
    return tree ? PyLong_FromVoidPtr(tree) : NULL;
}

/* (tree, root, tokens, leave, readable) -> Match; the last `leave` tokens never count as hit. */
static PyObject *tree_match(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    rdx_tree *tree = enter(a, n, 5);
    if (!tree) {
        return NULL;
    }
    uint64_t root = u64_of(a[1], &bad);
    uint64_t leave = u64_of(a[3], &bad);
    uint32_t readable = u32_of(a[4], &bad);
    Py_buffer view;
    uint64_t tokens, pages;
    if (bad || pages_of(a[2], tree, &view, &tokens, &pages) < 0) {
        return NULL;
    }
    uint64_t kept = tokens > leave ? (tokens - leave) * 4 / rdx_tree_page_bytes(tree) : 0;
    uint64_t limit = leave ? kept : pages;
    rdx_match m;
    int status =
        rdx_tree_match(tree, root, view.buf, (uint32_t)pages, (uint32_t)limit, readable, &m);
    PyBuffer_Release(&view);
    if (status) {
        return fail(status);
    }
    const uint64_t values[] = {m.device_pages, m.hit_pages, m.structural.pages,
                               m.limit_pages,  m.stop,      m.structural.node};
    return sequence(match_type, values, 6);
}

/* (tree, root, node, pages, mask, first) -> (lease, node and pages of what is really pinned) */
static PyObject *lease_take(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    rdx_tree *tree = enter(a, n, 6);
    if (!tree) {
        return NULL;
    }
    rdx_cursor at = {u64_of(a[2], &bad), u64_of(a[1], &bad), u32_of(a[3], &bad)};
    uint64_t mask = u64_of(a[4], &bad);
    uint32_t first = u32_of(a[5], &bad);
    rdx_cursor end;
    uint64_t lease;
    if (bad) {
        return NULL;
    }
    int status = rdx_lease_take(tree, at, mask, first, &lease, &end);
    return status ? fail(status)
                  : Py_BuildValue("(KKI)", (unsigned long long)lease, (unsigned long long)end.node,
                                  end.pages);
}

/* (tree, lease, stamp) -> None */
static PyObject *lease_release(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    rdx_tree *tree = enter(a, n, 3);
    uint64_t lease = tree ? u64_of(a[1], &bad) : 0;
    uint64_t stamp = tree ? u64_of(a[2], &bad) : 0;
    if (!tree || bad) {
        return NULL;
    }
    int status = rdx_lease_release(tree, lease, stamp != 0);
    return status ? fail(status) : Py_NewRef(Py_None);
}

/* (tree, root, node, pages, tokens, columns u32[c], slots i32[c*n], canonical i32[c*n] or None,
 * lease or 0) -> Insert; only whole pages of `tokens` go in */
static PyObject *tree_insert(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    rdx_tree *tree = enter(a, n, 9);
    if (!tree) {
        return NULL;
    }
    rdx_cursor from = {u64_of(a[2], &bad), u64_of(a[1], &bad), u32_of(a[3], &bad)};
    uint64_t lease = u64_of(a[8], &bad);
    Py_buffer run = {0}, columns = {0}, slots = {0}, canonical = {0};
    PyObject *result = NULL;
    uint64_t tokens, pages;
    if (bad || pages_of(a[4], tree, &run, &tokens, &pages) < 0) {
        return NULL;
    }
    if (room_of(a[5], 0, 0, 4, &columns) == 0) {
        uint64_t c = (uint64_t)columns.len / 4;
        if (room_of(a[6], 0, c * pages, 4, &slots) == 0 &&
            (a[7] == Py_None || room_of(a[7], 1, c * pages, 4, &canonical) == 0)) {
            rdx_insert r;
            int status = rdx_tree_insert(tree, from, run.buf, (uint32_t)pages, columns.buf,
                                         (uint32_t)c, slots.buf, canonical.buf, lease, &r);
            const uint64_t values[] = {r.end.node, r.end.pages, r.existing,
                                       r.created,  r.attached,  r.duplicates};
            result = status ? fail(status) : sequence(insert_type, values, 6);
        }
    }
    PyBuffer_Release(&run);
    PyBuffer_Release(&columns);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&canonical);
    return result;
}

/* (tree, column, n, upto, slots i32[n], ids or None) -> blocks freed */
static PyObject *tree_evict(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    int bad = 0;
    rdx_tree *tree = enter(a, n, 6);
    if (!tree) {
        return NULL;
    }
    uint32_t column = u32_of(a[1], &bad), want = u32_of(a[2], &bad), freed = 0;
    uint64_t upto = u64_of(a[3], &bad);
    Py_buffer slots = {0}, ids = {0};
    if (bad || room_of(a[4], 1, want, 4, &slots) < 0) {
        return NULL;
    }
    if (a[5] != Py_None && room_of(a[5], 1, want, rdx_tree_id_bytes(tree), &ids) < 0) {
        PyBuffer_Release(&slots);
        return NULL;
    }
    int status = rdx_evict(tree, column, want, upto, slots.buf, ids.buf, &freed);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&ids);
    return status ? fail(status) : PyLong_FromUnsignedLong(freed);
}

/* (callable): called with a status, it raises */
static PyObject *set_raiser(PyObject *self, PyObject *callable) {
    Py_XDECREF(raiser);
    raiser = Py_NewRef(callable);
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"tree_new", (PyCFunction)(void (*)(void))tree_new, METH_FASTCALL, NULL},
    {"tree_address", tree_address, METH_O, NULL},
    {"tree_match", (PyCFunction)(void (*)(void))tree_match, METH_FASTCALL, NULL},
    {"lease_take", (PyCFunction)(void (*)(void))lease_take, METH_FASTCALL, NULL},
    {"lease_release", (PyCFunction)(void (*)(void))lease_release, METH_FASTCALL, NULL},
    {"tree_insert", (PyCFunction)(void (*)(void))tree_insert, METH_FASTCALL, NULL},
    {"tree_evict", (PyCFunction)(void (*)(void))tree_evict, METH_FASTCALL, NULL},
    {"set_raiser", set_raiser, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

#define FIELDS(a, b, c, d, e, f)                                                                   \
    {                                                                                              \
        {a, 0}, {b, 0}, {c, 0}, {d, 0}, {e, 0}, {f, 0}, { NULL, NULL }                             \
    }
static PyStructSequence_Field match_fields[] =
    FIELDS("device_pages", "hit_pages", "structural_pages", "limit_pages", "stop", "node");
static PyStructSequence_Field insert_fields[] =
    FIELDS("node", "pages", "existing", "created", "attached", "duplicates");
static PyStructSequence_Desc match_desc = {"radix.Match", NULL, match_fields, 6};
static PyStructSequence_Desc insert_desc = {"radix.Insert", NULL, insert_fields, 6};

static PyObject *rdx_add_methods(PyObject *module) {
    if (module) {
        match_type = PyStructSequence_NewType(&match_desc);
        insert_type = PyStructSequence_NewType(&insert_desc);
        if (!match_type || !insert_type || PyModule_AddFunctions(module, methods) < 0 ||
            PyModule_AddType(module, match_type) < 0 || PyModule_AddType(module, insert_type) < 0) {
            return NULL;
        }
    }
    return module;
}
