"""The tier whose copies come late keeps the contract of tiers too, so that what a test finds with
it is never its own fault.
"""

from __future__ import annotations

from radix.groups import Group
from radix.tier import Tier
from tests.ticktier import TickTier
from tiers.testing import TierConformance


class TestTickTier(TierConformance):
    """Each transfer ends at one of a few polls, in an order of its own."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return TickTier(blocks, "tick", pace=0.5, seed=3)
