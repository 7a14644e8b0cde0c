/* fastcall.c: the short calls of calls.h, as METH_FASTCALL functions of the cffi module. They keep
 * the GIL (a cffi call gives it up, which costs tens of microseconds beside a busy thread).
 * Arguments and buffers only; every decision is made behind rdx.h. The only file that knows Python.
 */
#include <Python.h>

#include "arrays.h"

#define CAPSULE "rdx_tree"

static PyObject *raiser; /* called with a status and an index of a batch; raises the class */
static PyTypeObject *types[RDX_GIVES_INSERT + 1]; /* NULL: a plain tuple */

/* One call, and the buffers that it holds until it is left. */
typedef struct taken {
    rdx_call call;
    PyObject *given[6], **items; /* what the views are of, or NULL, and the prompts */
    char kinds[6];               /* the letters (calls.h) */
    Py_buffer views[6];
    Py_buffer *prompts; /* of a batch; with all that is kept of each, one allocation */
    rdx_cursor *cursors;
    int numbers, buffers;
} taken;

static int refuse(PyObject *kind, const char *expected, const Py_buffer *view) {
    PyErr_Format(kind, "%s, not %zd bytes of format %s in %d dimensions", expected, view->len,
                 view->format ? view->format : "B", view->ndim);
    return -1;
}

/* Pages of a tree. The view is to be released, also after -1, which comes with an exception. */
static int take_prompt(const rdx_tree *tree, PyObject *object, Py_buffer *view, rdx_prompt *p) {
    if (rdx_prompt_of_array(tree, object, p)) {
        return 0;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) < 0) {
        return -1;
    }
    rdx_buffer_kind kind = {view->format ? view->format : "B", view->itemsize, view->ndim, false};
    p->run = view->buf;
    const char *wanted = rdx_prompt_of_buffer(tree, (uint64_t)view->len, &kind, p);
    return wanted ? refuse(kind.other ? PyExc_TypeError : PyExc_ValueError, wanted, view) : 0;
}

static int take_prompts(taken *t, PyObject *given) {
    rdx_call *c = &t->call;
    size_t each = sizeof(Py_buffer) + sizeof(PyObject *) + RDX_PROMPT_BYTES;
    Py_ssize_t m = PySequence_Size(given);
    t->prompts = m < 0 || m > INT32_MAX ? NULL : PyMem_Malloc((size_t)m * each);
    if (!t->prompts) {
        return m < 0 ? -1 : (PyErr_NoMemory(), -1);
    }
    t->items = (PyObject **)(void *)(t->prompts + m);
    rdx_call_room(c, t->items + m, (uint32_t)m);
    for (uint32_t k = 0; k == c->many && k < (uint32_t)m; k++) {
        t->prompts[k].obj = NULL;
        t->items[k] = PySequence_GetItem(given, k);
        c->many = k + (t->items[k] != NULL);
    }
    return c->many < (uint32_t)m ? -1 : 0;
}

static int take_buffer(taken *t, int at, PyObject *given, char kind) {
    rdx_span *span = &t->call.v[at];
    Py_buffer *view = &t->views[at];
    if (kind == 'k') {
        return take_prompt(t->call.tree, given, view, &t->call.prompt);
    }
    int writable = strchr("ABSO", kind) != NULL, width = strchr("sSO", kind) ? 4 : 1;
    if (given == Py_None && strchr("aAO", kind)) {
        *span = (rdx_span){NULL, 0};
        return 0;
    }
    const rdx_array_kind *known = rdx_array_of(given, writable ? RDX_ARRAY_WRITE : 0, span);
    if (known && (width == 1 || known->itemsize == 4)) {
        return 0;
    }
    if (PyObject_GetBuffer(given, view, PyBUF_ND | (writable ? PyBUF_WRITABLE : 0)) < 0) {
        return -1;
    }
    if (width == 4 && view->itemsize != 4 && view->itemsize != 1) {
        return refuse(PyExc_TypeError, "columns and slots must be 32 bits wide", view);
    }
    *span = (rdx_span){view->buf, (uint64_t)view->len};
    return 0;
}

/* The buffers of arrays, or of all that is none. What is read where it lies must not move before it
 * was: arrays are taken when nothing of Python runs any more, as another's buffer may. */
static int take_buffers(taken *t, bool arrays) {
    for (int at = 0; at < t->buffers; at++) {
        PyObject *given = t->given[at];
        if (given && rdx_is_array(given) == arrays && take_buffer(t, at, given, t->kinds[at]) < 0) {
            return -1;
        }
    }
    for (uint32_t k = 0; k < t->call.many; k++) {
        if (rdx_is_array(t->items[k]) == arrays) {
            rdx_prompt p;
            if (take_prompt(t->call.tree, t->items[k], &t->prompts[k], &p) < 0) {
                return -1;
            }
            rdx_call_prompt(&t->call, k, &p);
        }
    }
    return 0;
}

/* A number; where it returns more than `most` an exception stands. */
static uint64_t number(PyObject *value, uint64_t most) {
    int over = 1; /* what fits 63 bits goes the short way */
    long long few = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &over) : -1;
    PyObject *index = over || few < 0 ? PyNumber_Index(value) : NULL;
    uint64_t n = !over && few >= 0 ? (uint64_t)few : UINT64_MAX;
    n = index ? PyLong_AsUnsignedLongLong(index) : n;
    Py_XDECREF(index);
    if (n > most && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_OverflowError, "a count or index does not fit in 32 bits");
    }
    return n;
}

/* A cursor is a tuple (root, node, pages). */
static int take_cursor(PyObject *given, rdx_cursor *at) {
    if (!PyTuple_Check(given) || PyTuple_Size(given) != 3) {
        PyErr_SetString(PyExc_TypeError, "a cursor must be a tuple (root, node, pages)");
        return -1;
    }
    at->root = number(PyTuple_GetItem(given, 0), UINT64_MAX);
    at->node = number(PyTuple_GetItem(given, 1), UINT64_MAX);
    at->pages = (uint32_t)number(PyTuple_GetItem(given, 2), UINT32_MAX);
    return PyErr_Occurred() ? -1 : 0;
}

static int take_cursors(taken *t, PyObject *given) {
    Py_ssize_t m = PySequence_Size(given);
    t->cursors = m < 0 ? NULL : PyMem_Calloc((size_t)m + 1, sizeof(rdx_cursor));
    if (!t->cursors) {
        return m < 0 ? -1 : (PyErr_NoMemory(), -1);
    }
    t->views[t->buffers].obj = t->given[t->buffers] = NULL;
    t->call.v[t->buffers++] = (rdx_span){t->cursors, (uint64_t)m * sizeof(rdx_cursor)};
    int failed = 0;
    for (Py_ssize_t k = 0; k < m && !failed; k++) {
        PyObject *item = PySequence_GetItem(given, k);
        failed = item ? take_cursor(item, &t->cursors[k]) : -1;
        Py_XDECREF(item);
    }
    return failed;
}

/* One argument, by its letter (calls.h); of buffers only which there are. */
static int take(taken *t, char kind, PyObject *given) {
    rdx_call *c = &t->call;
    uint64_t most = UINT64_MAX;
    switch (kind) {
    case 't':
        c->tree = PyCapsule_GetPointer(given, CAPSULE);
        return c->tree ? 0 : -1;
    case 'p':
        c->pool = PyLong_AsVoidPtr(given);
        return c->pool ? 0 : -1;
    case 'u':
        most = UINT32_MAX; /* fall through */
    case 'n':
        c->n[t->numbers] = number(given, most);
        return c->n[t->numbers++] > UINT32_MAX && PyErr_Occurred() ? -1 : 0;
    case 'c':
        return take_cursor(given, &c->at);
    case 'K':
        return take_prompts(t, given);
    default:
        if (kind == 'C' && !PyObject_CheckBuffer(given)) {
            return take_cursors(t, given);
        }
        t->views[t->buffers].obj = NULL;
        t->kinds[t->buffers] = kind;
        t->given[t->buffers++] = given;
        return 0;
    }
}

static PyObject *sequence(PyTypeObject *type, const uint64_t *values, int n) {
    PyObject *result = type ? PyType_GenericAlloc(type, n) : PyTuple_New(n);
    for (int i = 0; result && i < n; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (!value || PyTuple_SetItem(result, i, value) < 0) {
            Py_CLEAR(result);
        }
    }
    return result;
}

static void tree_delete(PyObject *capsule) {
    rdx_tree_free(PyCapsule_GetPointer(capsule, CAPSULE));
}

static PyObject *give(const rdx_call *c, rdx_gives what) {
    if (what >= RDX_GIVES_THREE) {
        return sequence(types[what], c->out, what == RDX_GIVES_THREE ? 3 : 6);
    }
    return what == RDX_GIVES_TREE     ? PyCapsule_New(c->tree, CAPSULE, tree_delete)
           : what == RDX_GIVES_NUMBER ? PyLong_FromUnsignedLongLong(c->out[0])
                                      : Py_NewRef(Py_None);
}

static PyObject *fail(const rdx_call *c, int status) {
    bool known = raiser && status != RDX_NO_ROOM;
    Py_XDECREF(known ? PyObject_CallFunction(raiser, "iI", status, c->bad) : NULL);
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "columns, slots and ids must have room for all");
    }
    return NULL;
}

/* Every function of the table; self is its place there. */
static PyObject *enter(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    const rdx_entry *e = &rdx_entries[PyLong_AsSize_t(self)];
    taken t;
    t.prompts = NULL;
    t.cursors = NULL;
    t.numbers = t.buffers = 0;
    t.call.many = 0;
    t.call.bad = UINT32_MAX;
    size_t want = strlen(e->takes);
    if ((size_t)n != want) {
        return PyErr_Format(PyExc_TypeError, "expected %zu arguments, got %zd", want, n);
    }
    int failed = 0;
    for (size_t i = 0; i < want && !failed; i++) {
        failed = take(&t, e->takes[i], a[i]);
    }
    failed = failed || take_buffers(&t, false) || take_buffers(&t, true);
    int status = failed ? RDX_OK : e->run(&t.call);
    while (t.buffers) {
        PyBuffer_Release(&t.views[--t.buffers]);
    }
    for (uint32_t k = 0; k < t.call.many; k++) {
        PyBuffer_Release(&t.prompts[k]);
        Py_DECREF(t.items[k]);
    }
    PyMem_Free(t.prompts);
    PyMem_Free(t.cursors);
    return failed ? NULL : status != RDX_OK ? fail(&t.call, status) : give(&t.call, e->gives);
}

/* (callable): called with a status and an index, it raises */
static PyObject *set_raiser(PyObject *self, PyObject *callable) {
    Py_XDECREF(raiser);
    raiser = Py_NewRef(callable);
    return Py_NewRef(Py_None);
}

/* (array of two rows of three): such arrays are read where they lie from now on. False: not. */
static PyObject *know_array(PyObject *self, PyObject *array) {
    Py_buffer v;
    if (PyObject_GetBuffer(array, &v, PyBUF_ND | PyBUF_FORMAT | PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    rdx_span run = {v.buf, (uint64_t)v.len};
    bool known = sizeof(PyObject) == sizeof(void *[2]) && rdx_array_learn(array, run, *v.format);
    PyBuffer_Release(&v);
    return PyBool_FromLong(known);
}

static PyMethodDef methods[RDX_ENTRIES]; /* filled in from the table */
static PyMethodDef others[] = {{"set_raiser", set_raiser, METH_O, NULL},
                               {"know_array", know_array, METH_O, NULL},
                               {NULL, NULL, 0, NULL}};

/* A class of tuples; a struct sequence would look its own size up by name, twice in its life. */
static PyTypeObject *new_class(PyObject *module, const char *name, const char *fields) {
    PyObject *from = PyImport_ImportModule("collections"), *home = PyModule_GetNameObject(module);
    PyObject *made = from ? PyObject_CallMethod(from, "namedtuple", "ss", name, fields) : NULL;
    int failed = !made || !home || PyObject_SetAttrString(made, "__module__", home) < 0 ||
                 PyModule_AddObjectRef(module, name, made) < 0;
    Py_XDECREF(from);
    Py_XDECREF(home);
    return failed ? NULL : (PyTypeObject *)made;
}

static PyObject *rdx_add_methods(PyObject *module) {
    const char *of_match = "device_pages hit_pages structural_pages limit_pages stop node";
    const char *of_insert = "node pages existing created attached duplicates";
    types[RDX_GIVES_MATCH] = module ? new_class(module, "Match", of_match) : NULL;
    types[RDX_GIVES_INSERT] = module ? new_class(module, "Insert", of_insert) : NULL;
    int failed = !types[RDX_GIVES_MATCH] || !types[RDX_GIVES_INSERT] ||
                 PyModule_AddFunctions(module, others) < 0;
    for (size_t i = 0; i < RDX_ENTRIES && !failed; i++) {
        PyCFunction call = (PyCFunction)(void (*)(void))enter;
        methods[i] = (PyMethodDef){rdx_entries[i].name, call, METH_FASTCALL, NULL};
        PyObject *place = PyLong_FromSize_t(i);
        PyObject *function = place ? PyCFunction_NewEx(&methods[i], place, NULL) : NULL;
        failed = !function || PyModule_AddObjectRef(module, methods[i].ml_name, function) < 0;
        Py_XDECREF(function);
        Py_XDECREF(place);
    }
    return failed ? NULL : module;
}
