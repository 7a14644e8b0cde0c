"""The disk tier keeps the contract of tiers, in both ways of keeping the bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.groups import Group
from radix.tier import Tier
from tiers.disk import DiskTier
from tiers.testing import TierConformance


class TestDiskInSlabFilesKeepsTheContract(TierConformance):
    """Blocks in slab files."""

    payload = "slab"

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.made = 0

    def _open(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return DiskTier(
            self.folder / f"disk-{self.made}",
            limit_bytes=3 << 20,
            payload=self.payload,
            segment_bytes=32768,
        )

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        self.made += 1
        return self._open(groups, blocks)

    def reopen_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return self._open(groups, blocks)


class TestDiskInValuesKeepsTheContract(TestDiskInSlabFilesKeepsTheContract):
    """Blocks in LMDB values."""

    payload = "lmdb"
