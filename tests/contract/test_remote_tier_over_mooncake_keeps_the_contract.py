"""The remote tier keeps the contract of tiers over a real Mooncake Store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from radix.groups import Group
from radix.tier import Tier
from tests.remoterig import mooncake_master
from tiers.remote import RemoteTier
from tiers.remote_mooncake import MooncakeBackend
from tiers.testing import TierConformance

_made = itertools.count()


class Kept(MooncakeBackend):
    """A client that several tiers of a process use, one after the other: to join takes seconds."""

    def close(self) -> None:
        """A tier has done with it."""


@pytest.fixture(scope="module")
def client() -> Iterator[MooncakeBackend]:
    """One master, and one client with memory, for the file."""
    with mooncake_master() as master:
        kept = Kept.of(f"{master.url}?segment_bytes={64 << 20}")
        yield kept
        MooncakeBackend.close(kept)


class TestRemoteTierOverMooncakeKeepsTheContract(TierConformance):
    """Each tier in a prefix of its own: of what stands under another it knows nothing."""

    @pytest.fixture(autouse=True)
    def _place(self, client: MooncakeBackend) -> None:
        self.client = client

    def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        return RemoteTier(
            self.client,
            blocks=blocks,
            prefix=f"contract-{next(_made)}",
            deadline_s=10.0,
            staging_bytes=1 << 20,
        )
