"""Fault: an insert behind a hit that was shorter than what the tree knew raised `StaleError`, or
left a block over a gap (I21). Mechanism: pages that stand in the tree behind the lease get no
slot, but making room for the others could evict them, and the node that named their end with them.
Source: a replay of conversations over a model with states in a small budget.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix import PrefixCache
from radix.groups import Group, Retention
from radix.layout import Layout
from tiers.index import IndexTier

ATTENTION = Group.full("attention", 1)
STATE = Group("state", Layout.opaque(10), Retention("state"), per_sequence=True)
FIRST = np.array([1, 2, 3, 4], np.int32)
OTHER = np.array([7, 7, 7, 7], np.int32)
DIVERGING = np.array([1, 2, 5, 6, 8, 9], np.int32)


def serve(cache: PrefixCache, prompt: np.ndarray, boundaries: tuple[int, ...]) -> tuple[int, int]:
    """The pages hit and known, before the prompt's own pages are there."""
    found, cursor = cache.match(prompt, leave=0)
    with cache.lease(cursor._replace(pages=found.hit_pages)) as lease:
        cache.insert(prompt, lease, boundaries=boundaries)
    cache.check()
    return found.hit_pages, found.structural_pages


@pytest.mark.parametrize("budget_bytes", range(26, 60))
def test_pages_behind_the_lease_stay_while_room_is_made(budget_bytes: int) -> None:
    with PrefixCache([ATTENTION, STATE], [IndexTier(limit_bytes=budget_bytes)], page_tokens=1) as c:
        serve(c, FIRST, (4,))
        if budget_bytes >= 40:
            serve(c, OTHER, (4,))
        assert serve(c, DIVERGING, (2, 6)) == (0, 2)
        assert serve(c, DIVERGING, ()) == (6, 6)
