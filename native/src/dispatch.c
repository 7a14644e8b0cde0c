/* dispatch.c: finds the widest path that this processor has, once. */
#include "dispatch.h"

#include "rdx.h"

_Atomic int rdx_path_now = -1;

static int path_is_present(int path) {
    if (path == RDX_PATH_SCALAR)
        return 1;
#if RDX_HAVE_AVX2
    if (path == RDX_PATH_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
#endif
#if RDX_HAVE_NEON
    if (path == RDX_PATH_NEON)
        return 1;
#endif
    return 0;
}

int rdx_path_detect(void) {
    int path = RDX_PATH_SCALAR;
    if (path_is_present(RDX_PATH_AVX2))
        path = RDX_PATH_AVX2;
    else if (path_is_present(RDX_PATH_NEON))
        path = RDX_PATH_NEON;
    atomic_store_explicit(&rdx_path_now, path, memory_order_relaxed);
    return path;
}

int rdx_dispatch_get(void) { return rdx_path(); }

int rdx_dispatch_set(int path) {
    if (!path_is_present(path))
        return RDX_EARG;
    atomic_store_explicit(&rdx_path_now, path, memory_order_relaxed);
    return RDX_OK;
}
