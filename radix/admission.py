"""Admission: one transaction over all groups of the first tier. Match, pin, reserve; or give
everything back and say which budget is short (R0, R1, R4). ``blocks_needed`` is the formula that
admission and the sizing of pools share.
"""

from __future__ import annotations

from radix.errors import NeverFitsError
from radix.residency import Residency
from radix.tier import Slots


def blocks_needed(tokens: int, page_tokens: int) -> int:
    """Blocks a group that a request of ``tokens`` tokens, generated ones included, fills."""
    return -(-tokens // page_tokens)


def check_fits(residency: Residency, pages: int) -> None:
    """R0: ``NeverFitsError`` at once for what no waiting can make fit."""
    for group, spec in enumerate(residency.groups):
        capacity = residency.tiers[0].capacity_blocks(group)
        if pages > capacity:
            raise NeverFitsError(
                f"tier {residency.tiers[0].name!r}, group {spec.name!r}",
                needed=pages,
                capacity=capacity,
            )


def reserve_all(residency: Residency, count: int) -> list[Slots]:
    """``count`` slots of the first tier in every group, or none at all (R4)."""
    taken: list[Slots] = []
    try:
        for group in range(len(residency.groups)):
            taken.append(residency.reserve(0, group, count))
    except BaseException:
        for group, slots in enumerate(taken):
            residency.tiers[0].abort(group, slots)
        raise
    return taken
