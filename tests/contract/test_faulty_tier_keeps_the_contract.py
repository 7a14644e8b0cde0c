"""A tier behind a plan of faults keeps the contract where the plan breaks nothing of it: with
acknowledgements that come late and in any order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.groups import Group
from radix.tier import Tier
from tiers.disk import DiskTier
from tiers.faults import FaultPlan, FaultyTier
from tiers.host import HostTier
from tiers.slab import stride_bytes
from tiers.testing import TierConformance


class TestFaultyTier(TierConformance):
    """Late and out of order, and otherwise whole."""

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        limit = sum(blocks * stride_bytes(group.block_bytes) for group in groups)
        plan = FaultPlan(seed=5, delay_polls=4, reorder=True)
        return FaultyTier(HostTier(limit, verify=True), plan)


class TestFaultyDisk(TierConformance):
    """A disk so, over restarts too."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.made = 0

    def reopen_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        folder = self.folder / f"disk-{self.made}"
        disk = DiskTier(folder, limit_bytes=3 << 20, segment_bytes=32768)
        return FaultyTier(disk, FaultPlan(seed=6, delay_polls=3, reorder=True))

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        self.made += 1
        return self.reopen_tier(groups, blocks)
