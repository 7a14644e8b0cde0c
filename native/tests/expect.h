/* expect.h: what the native test programs stand on: a check that names its line, and a stream of
 * numbers that is the same in every run. */
#ifndef RDX_TESTS_EXPECT_H
#define RDX_TESTS_EXPECT_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define EXPECT_EQ(found, wanted)                                                                   \
    do {                                                                                           \
        long long found_value = (long long)(found), wanted_value = (long long)(wanted);            \
        if (found_value != wanted_value) {                                                         \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #found,           \
                    found_value, wanted_value);                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t random_state = UINT64_C(0x9E3779B97F4A7C15);

/* xorshift64*: good enough to pick cases. */
static inline uint64_t random_u64(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(0x2545F4914F6CDD1D);
}

static inline uint32_t random_below(uint32_t n) { return (uint32_t)((random_u64() >> 32) % n); }

static inline void random_fill(void *memory, uint64_t bytes) {
    uint8_t *at = memory;
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(random_u64() >> 56);
}
#endif
