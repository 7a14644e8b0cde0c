/* rules.c: what a hit at some length needs of each group, in pages. The arithmetic of I15, I26 and
 * I28; radix/groups.py has the same for the layers above.
 */
#include "tree.h"

uint32_t rdx_first_page(const rdx_tree *t, const rdx_group *g, uint32_t k) {
    if (g->rule == RDX_RULE_FULL || k == 0) {
        return 0;
    }
    if (g->rule == RDX_RULE_STATE) {
        return k - 1;
    }
    if (g->rule == RDX_RULE_SCRATCH) {
        return k;
    }
    uint64_t tokens = (uint64_t)k * t->page_tokens;
    uint64_t reach = g->reach_tokens;
    uint64_t first = tokens / (reach ? reach : 1) * reach;
    if (g->rule == RDX_RULE_WINDOW) {
        first = tokens > reach ? tokens - reach : 0;
    }
    if (first >= tokens) {
        return k;
    }
    return rdx_round_down((uint32_t)(first / t->page_tokens), g->block_pages);
}

uint32_t rdx_first_entry(const rdx_tree *t, const rdx_group *g, uint32_t end) {
    uint64_t first = (uint64_t)rdx_first_page(t, g, end) + g->lookahead_pages;
    return first < end ? (uint32_t)first : end;
}

static bool is_valid(const rdx_group *g) {
    bool reaches = g->rule == RDX_RULE_WINDOW || g->rule == RDX_RULE_CHUNKED;
    bool ahead = g->rule == RDX_RULE_FULL || g->rule == RDX_RULE_WINDOW;
    return g->rule < RDX_RULE_COUNT && g->block_pages >= 1 && g->block_pages < NIL / 4 &&
           (reaches || g->reach_tokens == 0) &&
           (g->rule != RDX_RULE_CHUNKED || g->reach_tokens >= 1) &&
           (g->lookahead_pages == 0 || (ahead && g->block_pages == 1)) &&
           g->lookahead_pages < NIL / 4 && g->lookup <= 1 &&
           !(g->rule == RDX_RULE_SCRATCH && g->lookup);
}

int rdx_rules_new(rdx_tree *t, const rdx_group *groups) {
    t->plain = true;
    t->rows = t->columns;
    for (uint32_t g = 0; g < t->groups; g++) {
        rdx_group full = {.rule = RDX_RULE_FULL, .block_pages = 1, .lookup = 1};
        const rdx_group *rule = groups ? &groups[g] : &full;
        if (!is_valid(rule)) {
            return RDX_EARG;
        }
        t->rules[g] = *rule;
        if (rule->rule != RDX_RULE_FULL && rule->rule != RDX_RULE_SCRATCH) {
            t->pin_row[g] = t->rows++;
            t->mixed = true;
        }
        t->plain = t->plain && rule->rule == RDX_RULE_FULL && rule->block_pages == 1 &&
                   rule->lookahead_pages == 0 && rule->lookup;
        bool asks =
            rule->rule == RDX_RULE_STATE || (rule->rule == RDX_RULE_WINDOW &&
                                             rule->reach_tokens >= 1 && rule->lookahead_pages == 0);
        if (rule->lookup && rule->rule == RDX_RULE_FULL) {
            t->fulls[t->nfulls++] = (uint8_t)g;
        } else if (rule->lookup && asks) {
            t->asked[t->nasked++] = (uint8_t)g;
        }
        for (uint32_t c = g * t->tiers; c < (g + 1) * t->tiers; c++) {
            t->group_of[c] = (uint8_t)g;
            bool everywhere = rule->block_pages == 1 && rule->lookahead_pages == 0;
            t->sparse |= rule->rule == RDX_RULE_FULL ? 0 : 1ull << c;
            t->placed |= rule->rule == RDX_RULE_FULL && everywhere ? 0 : 1ull << c;
        }
    }
    return RDX_OK;
}
