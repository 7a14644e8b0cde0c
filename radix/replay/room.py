"""What one request may bring into a cache of one budget of bytes for all groups.

An engine under pressure gives up the oldest checkpoints of the request that runs before it cuts the
request. Kept here: what a request is let in with fits into what its leased hit leaves of the
budget; where it can keep a checkpoint at all, it keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from radix._native import lib
from radix.groups import Rule
from radix.replay.checkpoints import Places
from radix.replay.model_trace import ModelTrace
from radix.replay.traces import Int64Array


class Room:
    """The budget of a run. Ask: `fitted`, `needed_bytes`, `leased_bytes`."""

    def __init__(self, work: ModelTrace, budget_bytes: int) -> None:
        """Cost: O(groups)."""
        self._budget_bytes = budget_bytes
        self._groups = [
            (rule, group.block_bytes) for rule, group in zip(work.rules, work.groups, strict=True)
        ]
        self._page_bytes = sum(size for _, size in self._groups)

    def fitted(
        self, places: Places, hit_pages: int, known_pages: int, end_pages: int
    ) -> tuple[int, Int64Array]:
        """Return where a request ends and its checkpoints stand, in pages, so that all of it fits.

        Cost: the places, and its logarithm more where they do not all fit.
        """
        wanted = places.between(hit_pages, known_pages, end_pages)
        room = self._budget_bytes - self.leased_bytes(hit_pages)
        # Most requests are far from the limit, and this bound spares them the sum.
        if (end_pages - hit_pages + len(wanted)) * self._page_bytes <= room:
            return end_pages, wanted

        def last(count: int) -> bool:
            kept = wanted[len(wanted) - count :]
            return self.needed_bytes(hit_pages, end_pages, kept) <= room

        kept = _greatest(0, len(wanted), last)
        if kept > 0 or (kept == 0 and not len(wanted)):
            return end_pages, wanted[len(wanted) - kept :]

        def cut(end: int) -> bool:
            one = places.between(hit_pages, min(known_pages, end), end)[-1:]
            return self.needed_bytes(hit_pages, end, one) <= room

        end_pages = max(hit_pages, _greatest(hit_pages, end_pages, cut))
        return end_pages, places.between(hit_pages, min(known_pages, end_pages), end_pages)[-1:]

    def needed_bytes(self, hit_pages: int, end_pages: int, places: Int64Array) -> int:
        """Bytes of what is inserted behind a hit, with checkpoints at `places`. Cost: these."""
        total = 0
        for rule, size in self._groups:
            if rule.everywhere:
                blocks = end_pages // rule.block_pages - hit_pages // rule.block_pages
            elif rule.per_position:
                blocks = len(places)
            else:
                blocks = _span_blocks(rule, hit_pages, np.append(places, end_pages))
            total += blocks * size
        return total

    def leased_bytes(self, hit_pages: int) -> int:
        """Bytes of what a hit needs, which its lease holds. Cost: O(groups)."""
        total = 0
        for rule, size in self._groups:
            first = rule.first_page(hit_pages)
            if rule.per_position:
                blocks = int(hit_pages > 0)
            else:
                blocks = hit_pages // rule.block_pages - first // rule.block_pages
            total += blocks * size
        return total


def _span_blocks(rule: Rule, hit_pages: int, ends: Int64Array) -> int:
    """Blocks behind the hit that hits at some of `ends`, ascending, need."""
    starts = np.maximum(_first_pages(rule, ends), hit_pages)
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    blocks = ends // rule.block_pages - starts // rule.block_pages
    return int(np.maximum(blocks, 0).sum())


def _first_pages(rule: Rule, ends: Int64Array) -> Int64Array:
    """`rule.first_page` of many lengths, for a rule that reaches back some tokens."""
    if rule.code == lib.RDX_RULE_SCRATCH:
        return ends
    tokens = ends * rule.page_tokens
    if rule.code == lib.RDX_RULE_WINDOW:
        firsts = np.maximum(tokens - rule.reach_tokens, 0)
    else:
        firsts = tokens // rule.reach_tokens * rule.reach_tokens
    pages = firsts // rule.page_tokens // rule.block_pages * rule.block_pages
    return np.where(firsts < tokens, pages, ends)


def _greatest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the greatest count of [low, high] that fits, where less always does; low - 1: none."""
    low -= 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
