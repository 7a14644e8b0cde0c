"""The remote tier keeps the contract of tiers over three real nodes of a Redis cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from radix.groups import Group
from radix.tier import Tier
from tests.remoterig import RedisNodes, redis_nodes
from tiers.remote import RemoteTier
from tiers.testing import TierConformance

_made = itertools.count()


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """One cluster for the file."""
    with redis_nodes() as started:
        yield started


class TestRemoteTierOverRedisKeepsTheContract(TierConformance):
    """Each tier in a prefix of its own: of what stands under another it knows nothing."""

    @pytest.fixture(autouse=True)
    def _place(self, nodes: RedisNodes) -> None:
        self.nodes = nodes

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        prefix = f"contract-{next(_made)}"
        return RemoteTier(self.nodes.url, blocks=blocks, prefix=prefix, deadline_s=10.0)
