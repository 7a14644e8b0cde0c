/* dispatch.h: which of the compiled code paths runs. Every path is compiled into every build and
 * picked at run time; all give the same results, bit for bit. */
#ifndef RDX_DISPATCH_H
#define RDX_DISPATCH_H

#define RDX_PATH_SCALAR 0
#define RDX_PATH_AVX2 1
#define RDX_PATH_NEON 2

#if defined(__x86_64__) && defined(__GNUC__)
#define RDX_HAVE_AVX2 1
#define RDX_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define RDX_HAVE_AVX2 0
#endif
#if defined(__aarch64__)
#define RDX_HAVE_NEON 1
#else
#define RDX_HAVE_NEON 0
#endif

#include <stdatomic.h>

extern _Atomic int rdx_path_now; /* -1 until first asked */
int rdx_path_detect(void);

/* The path in force. A call of any other thread sees a change at its next call. */
static inline int rdx_path(void) {
    int path = atomic_load_explicit(&rdx_path_now, memory_order_relaxed);
    return path >= 0 ? path : rdx_path_detect();
}
#endif
