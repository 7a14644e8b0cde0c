"""Why a prompt hits as far as it does, and why no further: each miss has one reason (I34)."""

from __future__ import annotations

import numpy as np

from radix._native import Match, lib
from radix.content import Prompt
from radix.plan import Cursor, Explanation, Need, Pages
from radix.residency import Residency
from radix.tier import TierMode
from radix.tree import NO_SLOT

_GAPS = {lib.RDX_STOP_WINDOW: "window gap", lib.RDX_STOP_STATE: "no checkpoint"}


def aligned(residency: Residency, root: int, match: Match, step: int) -> Match:
    """The match with hits that are multiples of ``step`` pages."""
    at = Cursor(root, match.node, match.structural_pages)
    readable = residency.readable()
    device = stepped(residency, at, match.device_pages, step, readable & 1)
    hit = stepped(residency, at, match.hit_pages, step, readable)
    return Match(device, hit, match.structural_pages, match.limit_pages, match.stop, match.node)


def stepped(residency: Residency, at: Cursor, pages: int, step: int, readable: int) -> int:
    """The greatest joint hit up to ``pages``, itself one, that is a multiple of ``step``."""
    while pages % step:
        pages, _ = residency.tree.joint(at, pages // step * step, readable)
    return pages


def miss_reason(residency: Residency, match: Match, prompt: Prompt) -> str:
    """Why the match is not longer: the reason of its first missing page. Changes nothing.

    Cost: O(1), and one more match where a tier is off.
    """
    if match.stop == lib.RDX_STOP_LIMIT:
        return "below one page"
    at = Cursor(prompt.root, match.node, match.structural_pages)
    first = match.structural_pages
    if match.stop in (lib.RDX_STOP_HOLE, *_GAPS):
        off = any(tier.mode is TierMode.OFF for tier in residency.tiers)
        if off:
            whole = residency.tree.match_upto(prompt.root, prompt.pages, match.limit_pages)
            if whole.hit_pages > match.hit_pages:
                return "tier out"
        if match.stop in _GAPS:
            return _GAPS[match.stop]
        first = match.hit_pages
    if first >= len(prompt.pages):
        return "below one page"
    if not residency.tree.key_bytes:
        return "cold"
    why = residency.why_gone(residency.parent_key(at, first), prompt.pages[first].tobytes())
    if why is not None:
        return why
    return "evicted" if match.stop == lib.RDX_STOP_HOLE else "cold"


def known_pages(residency: Residency, match: Match, step: int) -> int:
    """The last length, a multiple of ``step`` pages, at which a prompt that goes on otherwise could
    be hit: where the tree's knowledge ends, or before the pages there that a group looks ahead to.
    """
    known = match.structural_pages - lookahead_pages(residency)
    return max(0, min(known, match.limit_pages)) // step * step


def lookahead_pages(residency: Residency) -> int:
    """Pages behind a length that must be in the tree before that length can be hit."""
    return max((rule.lookahead_pages for rule in residency.rules if rule.lookup), default=0)


def explain(
    residency: Residency,
    match: Match,
    prompt: Prompt,
    page_tokens: int,
    align_tokens: int,
    kept_tokens: int,
) -> Explanation:
    """What serves the hit, and why it is not longer. Changes nothing. Cost: the hit."""
    at = Cursor(prompt.root, match.node, match.structural_pages)
    hit, step = match.hit_pages, align_tokens // page_tokens
    lowest = np.zeros(hit, np.int64)
    needs: list[Need] = []
    for group, rule in enumerate(residency.rules):
        ends, source = sources(residency, at, group, hit)
        for back in range(1 if rule.per_position else rule.block_pages):
            np.maximum.at(lowest, ends - back, source)
        for number in range(1, len(residency.tiers)):
            if (pages := ends[source == number]).size:
                name = residency.tiers[number].name
                needs.append(Need(residency.groups[group].name, name, pages))
    known = known_pages(residency, match, step)
    return Explanation(
        prompt_tokens=len(prompt.tokens),
        structural_tokens=match.structural_pages * page_tokens,
        device_tokens=match.device_pages * page_tokens,
        hit_tokens=hit * page_tokens,
        tiers={
            tier.name: count * page_tokens
            for number, tier in enumerate(residency.tiers)
            if (count := int((lowest == number).sum()))
        },
        reason=miss_reason(residency, match, prompt),
        upto={
            tier.name: pages * page_tokens
            for tier, pages in zip(
                residency.tiers, hits_down_to(residency, at, match.limit_pages, step), strict=True
            )
        },
        branch_tokens=known * page_tokens if known > hit else 0,
        needs=tuple(needs),
        kept_tokens=kept_tokens,
    )


def sources(residency: Residency, at: Cursor, group: int, hit: int) -> tuple[Pages, Pages]:
    """The blocks that a hit of so many pages needs of a group, by the page with which each ends,
    and the uppermost readable tier of each (-1: none). Cost: the hit.
    """
    rule = residency.rules[group]
    ends = np.arange(rule.block_pages - 1, hit, rule.block_pages, dtype=np.int64)
    ends = ends[ends >= rule.first_page(hit)] if rule.lookup else ends[:0]
    source = np.full(len(ends), -1, np.int64)
    for number, tier in reversed(list(enumerate(residency.tiers))):
        if tier.mode is not TierMode.OFF and len(ends):
            have = residency.blocks(at, group, number, 0, hit)[ends] != NO_SLOT
            source[have] = number
    return ends, source


def hits_down_to(residency: Residency, at: Cursor, limit_pages: int, step: int) -> list[int]:
    """By tier the pages that hit, multiples of ``step``, if only those down to it are read."""
    found: list[int] = []
    for number in range(len(residency.tiers)):
        readable = residency.readable() & ((2 << number) - 1)
        pages, _ = residency.tree.joint(at, limit_pages, readable)
        found.append(stepped(residency, at, pages, step, readable))
    return found
