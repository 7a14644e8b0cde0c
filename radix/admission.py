"""Admission: one transaction over all groups of the first tier. Match, pin, reserve; or give
everything back and say which budget is short (R0, R1, R4). ``blocks_needed`` is the formula that
admission and the sizing of pools share.
"""

from __future__ import annotations

from collections.abc import Sequence

from radix.errors import NeverFitsError
from radix.groups import Rule
from radix.policy.checkpoint import ROLLING
from radix.residency import Residency
from radix.tier import Slots


def blocks_needed(
    rule: Rule,
    tokens: int,
    chunk_tokens: int | None = None,
    behind_tokens: int = 1,
    hit_pages: int = 0,
) -> int:
    """Blocks of one group that a request of ``tokens`` tokens, generated ones included, holds at
    once in the first tier.

    Every block, one a token run of the grid, but for those that lie behind the window of a hit of
    ``hit_pages``; where only the last tokens count and a step computes at most ``chunk_tokens``,
    what a window and a chunk overlap, and the window of the last length that can be hit, at most
    ``behind_tokens`` behind what is computed; of a state the running one and the two that roll.
    """
    if rule.per_position:
        return 1 + ROLLING
    blocks = -(-tokens // rule.grid_tokens)
    if rule.everywhere or not rule.kept:
        return blocks
    if chunk_tokens is None:
        return blocks - min(hit_pages, rule.first_page(hit_pages)) // rule.block_pages
    span = rule.reach_tokens + chunk_tokens + behind_tokens
    return min(blocks, -(-(span - 1) // rule.grid_tokens) + 1)


def check_fits(residency: Residency, needed: Sequence[int]) -> None:
    """R0: ``NeverFitsError`` at once for what no waiting can make fit. ``needed``: by group the
    blocks that the request holds at once.
    """
    for group, spec in enumerate(residency.groups):
        capacity = residency.tiers[0].capacity_blocks(group)
        if needed[group] > capacity:
            raise NeverFitsError(
                f"tier {residency.tiers[0].name!r}, group {spec.name!r}",
                needed=needed[group],
                capacity=capacity,
            )


def reserve_all(residency: Residency, counts: Sequence[int]) -> list[Slots]:
    """``counts[group]`` slots of the first tier in every group, or none at all (R4): where one
    group is short, nothing of another is evicted for it.
    """
    alone = not residency.tiers[0].capability.shares_bytes
    for group, count in enumerate(counts):
        if alone and count and count > residency.available(0, group):
            raise residency.shortage(0, group, count)
    taken: list[Slots] = []
    try:
        for group, count in enumerate(counts):
            taken.append(residency.reserve(0, group, count))
    except BaseException:
        for group, slots in enumerate(taken):
            residency.tiers[0].abort(group, slots)
        raise
    return taken
