"""A tier behind a plan of faults keeps the contract where the plan breaks nothing of it: with
acknowledgements that come late and in any order.
"""

from __future__ import annotations

from radix.groups import Group
from radix.tier import Tier
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
