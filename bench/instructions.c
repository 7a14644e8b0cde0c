/* instructions.c: one full match, and of each prompt an insert and a release that stamps nothing,
 * for callgrind to count. No Python: what is counted is rdx_tree_match, rdx_tree_insert and
 * rdx_lease_release with all that they call.
 *
 *     usage: instructions PROMPTS TOKENS PAGE_TOKENS GROUPS; prints the pages that the match found
 *
 * GROUPS 1: everything is kept; 3: beside it a window of 1,024 tokens and a snapshot at the end.
 */
#include "rdx.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t next_id(uint64_t *state) { /* any ids do, as long as they are always the same */
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 40);
}

#define GROUPS 3u
#define WINDOW_TOKENS 1024u

static const rdx_group rules[GROUPS] = {
    {.rule = RDX_RULE_FULL, .block_pages = 1, .lookup = 1},
    {.rule = RDX_RULE_WINDOW, .block_pages = 1, .reach_tokens = WINDOW_TOKENS - 1, .lookup = 1},
    {.rule = RDX_RULE_STATE, .block_pages = 1, .lookup = 1},
};

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    uint32_t prompts = (uint32_t)atoi(arguments[1]);
    uint32_t tokens = (uint32_t)atoi(arguments[2]);
    uint32_t page_tokens = (uint32_t)atoi(arguments[3]);
    uint32_t pages = tokens / page_tokens;
    uint32_t groups = (uint32_t)atoi(arguments[4]);
    uint32_t window = (WINDOW_TOKENS + page_tokens - 2) / page_tokens;
    const uint32_t columns[GROUPS] = {0, 1, 2};
    uint64_t state = 1;
    rdx_tree_config config = {.page_bytes = 4 * page_tokens,
                              .check_ids = 1,
                              .groups = groups,
                              .tiers = 1,
                              .key_bytes = 0,
                              .page_tokens = page_tokens,
                              .seed = 1};
    rdx_tree *tree;
    rdx_handle root;
    rdx_match found;
    rdx_insert made;
    int32_t *prompt = malloc(tokens * sizeof *prompt);
    int32_t *slots = malloc(GROUPS * pages * sizeof *slots);
    rdx_cursor *ends = malloc(prompts * sizeof *ends);
    if (groups < 1 || groups > GROUPS || prompt == NULL || slots == NULL || ends == NULL ||
        rdx_tree_new(&config, rules, &tree) != RDX_OK || rdx_root_new(tree, NULL, &root) != RDX_OK)
        return 1;
    for (uint32_t p = 0; p < prompts; p++) {
        for (uint32_t i = 0; i < tokens; i++)
            prompt[i] = (int32_t)next_id(&state);
        for (uint32_t i = 0; i < pages; i++) {
            slots[i] = (int32_t)(p * pages + i);
            slots[pages + i] = i + window >= pages ? slots[i] : RDX_NO_SLOT;
            slots[2 * pages + i] = i + 1 == pages ? (int32_t)p : RDX_NO_SLOT;
        }
        rdx_cursor from = {root, root, 0};
        if (rdx_tree_insert(tree, from, prompt, pages, columns, groups, slots, NULL, 0, &made) !=
            RDX_OK)
            return 1;
        ends[p] = made.end;
    }
    for (uint32_t p = 0; p < prompts; p++) {
        uint64_t lease;
        rdx_cursor end;
        if (rdx_lease_take(tree, ends[p], RDX_EVERY_GROUP, RDX_BY_RULE, &lease, &end) != RDX_OK ||
            rdx_lease_release(tree, lease, 0) != RDX_OK)
            return 1;
    }
    if (rdx_tree_match(tree, root, prompt, pages, pages, 1, &found) != RDX_OK)
        return 1;
    printf("%u\n", found.hit_pages);
    rdx_tree_free(tree);
    free(prompt);
    free(slots);
    free(ends);
    return 0;
}
