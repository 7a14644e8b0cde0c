"""Slots without bytes keep the same books as every other tier."""

from __future__ import annotations

from radix.groups import Group
from radix.tier import Tier
from tiers.index import IndexTier
from tiers.testing import TierConformance


class TestIndexTier(TierConformance):
    """As a lower tier: it acknowledges and moves nothing."""

    moves_bytes = False

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return IndexTier(blocks, "index")
