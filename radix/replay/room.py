"""What one request may bring into a cache of one budget of bytes for all groups.

An engine under pressure gives up the oldest checkpoints of the request that runs before it cuts the
request. Kept here: what a request is let in with fits into what its leased hit leaves of the
budget; where it can keep a checkpoint at all, it keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from radix._native import lib
from radix.groups import Rule
from radix.replay.checkpoints import Places
from radix.replay.model_trace import ModelTrace
from radix.replay.traces import Int64Array


class PathEnds(NamedTuple):
    """Where the parts of a request's path end, in pages: its joint hit; what is known of it as far
    as it may hit, without regard to windows and states; what is known of it at all; and all that
    it computes.
    """

    hit_pages: int
    known_pages: int
    held_pages: int
    end_pages: int


class Room:
    """The budget of a run. Ask: `fitted`, `needed_bytes`, `leased_bytes`."""

    def __init__(self, work: ModelTrace, budget_bytes: int) -> None:
        """Cost: O(groups)."""
        self._budget_bytes = budget_bytes
        self._groups = [
            (rule, group.block_bytes) for rule, group in zip(work.rules, work.groups, strict=True)
        ]
        self._page_bytes = sum(size for _, size in self._groups)

    def fitted(self, places: Places, ends: PathEnds) -> tuple[int, Int64Array]:
        """Return where a request ends and its checkpoints stand, in pages, so that all of it fits.

        Cost: the places, and its logarithm more where they do not all fit.
        """
        hit, end = ends.hit_pages, ends.end_pages
        wanted = places.between(hit, ends.known_pages, end)
        room = self._budget_bytes - self.leased_bytes(ends)
        # Most requests are far from the limit, and this bound spares them the sum.
        if (end - hit + len(wanted)) * self._page_bytes <= room:
            return end, wanted

        def last(count: int) -> bool:
            return self.needed_bytes(ends, end, wanted[len(wanted) - count :]) <= room

        kept = _greatest(0, len(wanted), last)
        if kept > 0 or (kept == 0 and not len(wanted)):
            return end, wanted[len(wanted) - kept :]

        def one(cut: int) -> Int64Array:
            return places.between(hit, min(ends.known_pages, cut), cut)[-1:]

        cut = _greatest(hit, end, lambda cut: self.needed_bytes(ends, cut, one(cut)) <= room)
        cut = max(hit, cut)
        return cut, one(cut)

    def needed_bytes(self, ends: PathEnds, end_pages: int, places: Int64Array) -> int:
        """Bytes of what is inserted up to `end_pages`, with checkpoints at `places`. Cost: these.

        Snapshots and windows behind the hit count as new, though some may be there.
        """
        total = 0
        for rule, size in self._groups:
            if rule.everywhere:
                held = ends.held_pages // rule.block_pages
                blocks = max(0, end_pages // rule.block_pages - held)
            elif rule.per_position:
                blocks = len(places)
            else:
                blocks = _span_blocks(rule, ends.hit_pages, np.append(places, end_pages))
            total += blocks * size
        return total

    def leased_bytes(self, ends: PathEnds) -> int:
        """Bytes of what the request's leases hold: what its hit needs, and all that keeps
        everything of what is known behind it. Cost: O(groups).
        """
        total, hit = 0, ends.hit_pages
        for rule, size in self._groups:
            first = rule.first_page(hit)
            if rule.everywhere:
                blocks = ends.held_pages // rule.block_pages
            elif rule.per_position:
                blocks = int(hit > 0)
            else:
                blocks = hit // rule.block_pages - first // rule.block_pages
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
