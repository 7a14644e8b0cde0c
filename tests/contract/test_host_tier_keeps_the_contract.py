"""Host memory keeps the contract: one slab for all groups, with and without verification, under
a name, with segments in which slots leave a rest; and pools adopted from foreign memory.
"""

from __future__ import annotations

import os

import numpy as np

from radix.groups import Group
from radix.tier import Tier
from tiers.host import AdoptedTier, HostTier
from tiers.slab import stride_bytes
from tiers.testing import TierConformance


def _limit(groups: tuple[Group, ...], blocks: int) -> int:
    return sum(blocks * stride_bytes(group.block_bytes) for group in groups)


class TestHostTier(TierConformance):
    """As most caches use it."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return HostTier(_limit(groups, blocks))


class TestVerifyingHostTier(TierConformance):
    """With a checksum of every block, in segments with a rest: 20 KiB hold two slots of 8 KiB."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        limit = 2 * _limit(groups, blocks)
        return HostTier(limit, segment_bytes=5 * 4096, verify=True)


class TestNamedHostTier(TierConformance):
    """Under a name that other processes could attach to."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return HostTier(_limit(groups, blocks), file_name=f"radix-contract-{os.getpid()}")


class TestAdoptedTier(TierConformance):
    """Rows of foreign arrays, each block in two fragments and wider apart than it is long."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        fragments = []
        for group in groups:
            first, size = group.block_bytes // 3, group.block_bytes
            memory = np.zeros((blocks, 2, size + 5), np.uint8)
            fragments.append([memory[:, 1, :first], memory[:, 0, : size - first]])
        return AdoptedTier(fragments)
