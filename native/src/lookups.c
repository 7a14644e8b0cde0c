/* lookups.c: the service's shortest way. LOOKUP frames as they stand in a connection's buffer (the
 * header of docs/protocol.md) become answers, without a crossing for each. Whatever is not exactly
 * a good LOOKUP of the one store is left where it stands, for the service to judge.
 *
 *   | "RDXS" version op | flags status store | request | items group | number | keys data bytes |
 *     0      4       6    8     10     12      16        24    28      32       40   44
 *   | argument | reserved |   then the keys, padded to 8
 *     48         56
 */
#include "tree.h"

#define LOOKUP 5
#define TOKENS 1
#define ANSWER 0x8000

typedef struct {
    char magic[4];
    uint16_t version, op, flags, status;
    uint32_t store;
    uint64_t request;
    uint32_t items, group;
    uint64_t number;
    uint32_t keys_bytes, data_bytes;
    int64_t argument;
    uint64_t reserved;
} heading;

_Static_assert(sizeof(heading) == 64, "the header of a frame has no gaps");

/* Whether a frame is a LOOKUP of this store that asks as its keys are made. */
static bool is_plain(const heading *h, uint32_t store, uint32_t width, bool tokens) {
    return memcmp(h->magic, "RDXS", 4) == 0 && h->version == 1 && h->op == LOOKUP &&
           h->status == 0 && h->flags == (tokens ? TOKENS : 0) && h->store == store &&
           h->data_bytes == 0 && h->reserved == 0 && (uint64_t)h->items * width == h->keys_bytes;
}

static void write_answer(uint8_t *out, const heading *asked, const uint32_t reached[2]) {
    heading h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, asked->magic, sizeof h.magic);
    h.version = asked->version;
    h.op = LOOKUP | ANSWER;
    h.store = asked->store;
    h.request = asked->request;
    h.items = reached[0];
    h.number = reached[1];
    memcpy(out, &h, sizeof h);
}

int rdx_flat_lookups(const rdx_tree *t, rdx_handle root, const uint8_t *parent,
                     uint32_t page_tokens, uint64_t groups, uint64_t readable, uint32_t store,
                     const uint8_t *frames, uint64_t bytes, uint32_t most, uint8_t *answers,
                     uint64_t *totals) {
    bool tokens = page_tokens > 0;
    uint32_t width = tokens ? 4 : t->page_bytes, each = tokens ? page_tokens : 1;
    const uint8_t *f = frames, *end = frames + bytes;
    memset(totals, 0, 4 * sizeof *totals);
    for (heading h; totals[1] < most && (size_t)(end - f) >= sizeof h; answers += sizeof h) {
        memcpy(&h, f, sizeof h);
        uint64_t whole = sizeof h + (((uint64_t)h.keys_bytes + 7) & ~7ull);
        if (!is_plain(&h, store, width, tokens) || (uint64_t)(end - f) < whole) {
            break;
        }
        uint64_t left = h.argument > 0 ? (uint64_t)h.argument : 0;
        uint32_t pages = left < h.items ? (uint32_t)(h.items - left) / each : 0, reached[2];
        int status = rdx_flat_reach(t, root, tokens ? parent : NULL, width * each, groups, readable,
                                    f + sizeof h, pages, reached);
        if (status != RDX_OK) {
            return status;
        }
        write_answer(answers, &h, reached);
        f += whole;
        totals[0] = (uint64_t)(f - frames);
        totals[1]++;
        totals[2] += h.items / each;
        totals[3] += reached[0];
    }
    return RDX_OK;
}
