"""Why a prompt hits as far as it does, and why no further: each miss has one reason (I34)."""

from __future__ import annotations

import numpy as np

from radix._native import Match, lib
from radix.keys import Tokens
from radix.plan import Cursor, Explanation
from radix.residency import Residency
from radix.tier import TierMode
from radix.tree import NO_SLOT


def miss_reason(
    residency: Residency, match: Match, root: int, tokens: Tokens, page_tokens: int
) -> str:
    """Why the match is not longer: the reason of its first missing page. Changes nothing.

    Cost: O(1), and one more match where a tier is off.
    """
    if match.stop == lib.RDX_STOP_LIMIT:
        return "below one page"
    at = Cursor(root, match.node, match.structural_pages)
    first = match.structural_pages
    if match.stop == lib.RDX_STOP_HOLE:
        off = any(tier.mode is TierMode.OFF for tier in residency.tiers)
        if off and residency.tree.match(root, tokens, 1).hit_pages > match.hit_pages:
            return "tier out"
        first = match.hit_pages
    span = tokens[first * page_tokens : (first + 1) * page_tokens]
    if len(span) < page_tokens:
        return "below one page"
    if not residency.tree.key_bytes:
        return "cold"
    why = residency.why_gone(residency.parent_key(at, first), span.tobytes())
    if why is not None:
        return why
    return "evicted" if match.stop == lib.RDX_STOP_HOLE else "cold"


def explain(
    residency: Residency, match: Match, root: int, tokens: Tokens, page_tokens: int
) -> Explanation:
    """What serves the hit, and why it is not longer. Changes nothing. Cost: the hit."""
    at = Cursor(root, match.node, match.structural_pages)
    served: dict[str, int] = {}
    lowest = np.full(match.hit_pages, -1, np.int64)
    for group in range(len(residency.groups)):
        source = np.full(match.hit_pages, -1, np.int64)
        for number, tier in reversed(list(enumerate(residency.tiers))):
            if tier.mode is not TierMode.OFF:
                have = residency.slots(at, group, number, 0, match.hit_pages) != NO_SLOT
                source[have] = number
        lowest = np.maximum(lowest, source)
    for number, tier in enumerate(residency.tiers):
        if count := int((lowest == number).sum()):
            served[tier.name] = count * page_tokens
    return Explanation(
        prompt_tokens=len(tokens),
        structural_tokens=match.structural_pages * page_tokens,
        device_tokens=match.device_pages * page_tokens,
        hit_tokens=match.hit_pages * page_tokens,
        tiers=served,
        reason=miss_reason(residency, match, root, tokens, page_tokens),
    )
