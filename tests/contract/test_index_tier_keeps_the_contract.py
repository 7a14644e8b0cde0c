"""Slots without bytes keep the same books as every other tier."""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import TierFullError
from radix.groups import Group
from radix.tier import Tier
from tiers.index import IndexTier
from tiers.testing import TierConformance


class TestIndexTier(TierConformance):
    """As a lower tier: it acknowledges and moves nothing."""

    moves_bytes = False

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return IndexTier(blocks, "index")


class TestIndexTierOfOneBudget(TierConformance):
    """All groups share one budget of bytes."""

    moves_bytes = False

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return IndexTier(
            name="index", limit_bytes=blocks * sum(group.block_bytes for group in groups)
        )


def test_a_budget_of_bytes_is_shared_by_all_groups() -> None:
    """What one group gives back another may take, to the byte, and no more (I25)."""
    tier = IndexTier(limit_bytes=10_000)
    tier.attach((Group.full("small", 10), Group.full("wide", 3_000)), 64, None)
    assert tier.capability.shares_bytes
    assert [tier.capacity_blocks(0), tier.capacity_blocks(1)] == [1_000, 3]
    wide = tier.reserve(1, 3)
    assert [tier.free_blocks(0), tier.free_blocks(1)] == [100, 0]
    tier.commit(1, wide)
    small = tier.reserve(0, 100)
    with pytest.raises(TierFullError):
        tier.reserve(0, 1)
    assert tier.usage().used_bytes == tier.usage().limit_bytes == 10_000
    tier.free(1, wide[:1])
    assert [tier.free_blocks(0), tier.free_blocks(1)] == [300, 1]
    more = tier.reserve(0, 300)
    assert len(np.unique(np.append(small, more))) == 400
    tier.check()


def test_a_budget_that_holds_no_block_of_a_group_is_refused() -> None:
    """At ``attach``, naming the group; so is no budget, or two."""
    tier = IndexTier(limit_bytes=99)
    with pytest.raises(ValueError, match=r"limit_bytes 99 .*'wide', 100 bytes"):
        tier.attach((Group.full("small", 10), Group.full("wide", 100)), 64, None)
    tier.attach((Group.full("small", 10),), 64, None)
    for blocks in (None, 1):
        with pytest.raises(ValueError, match="either blocks or limit_bytes"):
            IndexTier(blocks, limit_bytes=blocks)
