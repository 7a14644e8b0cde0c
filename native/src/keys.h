/* keys.h: XXH3-64 over bytes that do not lie in one run (the planes of a block). */
#ifndef RDX_KEYS_H
#define RDX_KEYS_H
#include <stdint.h>

#define RDX_XXH3_BUFFER_BYTES 256 /* a multiple of the 64-byte stripe, beyond the short inputs */

/* While bytes may follow, at least one byte stays in `buffer`: the last stripe of XXH3 is the last
 * 64 bytes of the whole input, which only the end shows. */
typedef struct rdx_xxh3 {
    uint64_t acc[8];
    uint64_t total_bytes;
    uint32_t stripe; /* of the block of 16 stripes that is being filled */
    uint32_t buffered_bytes;
    uint8_t buffer[RDX_XXH3_BUFFER_BYTES];
} rdx_xxh3;

void rdx_xxh3_begin(rdx_xxh3 *state);
void rdx_xxh3_add(rdx_xxh3 *state, const void *data, uint64_t bytes);
uint64_t rdx_xxh3_end(const rdx_xxh3 *state); /* the value of rdx_xxh3_64 over all that was added */
#endif
