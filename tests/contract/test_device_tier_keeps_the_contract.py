"""The device tier keeps the contract: mapped on the CPU, and through the gather, the buffers and
the scatter that CUDA uses, which run on the CPU too.
"""

from __future__ import annotations

import pytest
import torch

from radix.groups import Group
from radix.tier import Tier
from tiers.device import DeviceTier
from tiers.faults import FaultPlan, FaultyTier
from tiers.testing import TierConformance


class TestMappedDeviceTier(TierConformance):
    """The CPU as the device, memory of our own."""

    first = True

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return DeviceTier(blocks=blocks, device="cpu")


class TestStagedDeviceTier(TierConformance):
    """The CPU as the device, moved as CUDA is."""

    first = True

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return DeviceTier(blocks=blocks, device="cpu", staged=True)


class TestStagedDeviceBehindAFront(TierConformance):
    """Seen through a tier that stands before it: the tier below finds what moves the blocks."""

    first = True

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return FaultyTier(DeviceTier(blocks=blocks, device="cpu", staged=True), FaultPlan())


class TestEngineTensors(TierConformance):
    """Layer-first tensors of an engine, whose rows are not contiguous and wider apart than long."""

    first = True
    staged = False

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        tensors = {}
        for group in groups:
            last = group.block_bytes // 2 // 2
            rest = group.block_bytes - 2 * last
            layer = torch.zeros((2, blocks, last + 3), dtype=torch.uint8)[:, :, :last]
            tensors[group.name] = [
                layer.transpose(0, 1),
                torch.zeros((blocks, rest), dtype=torch.uint8),
            ]
        return DeviceTier(tensors, staged=self.staged)


class TestStagedEngineTensors(TestEngineTensors):
    """The same tensors, moved as CUDA is."""

    staged = True


@pytest.mark.gpu
class TestCudaDeviceTier(TierConformance):
    """On a real device."""

    first = True

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return DeviceTier(blocks=blocks, device="cuda")
