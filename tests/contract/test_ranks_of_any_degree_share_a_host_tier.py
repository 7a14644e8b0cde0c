"""The tensors of ranks, as device tiers that hold a view, over one host tier: written at one degree
of parallelism and read at every other through the transfers that a cache starts, they are the same
byte for byte, and the bytes counted are those that each rank holds (I22, I24).
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch

from radix.errors import TierError
from radix.groups import Group
from radix.shards import Parallelism, Shards
from radix.tier import Transfer, TransferDone, Urgency, View
from tests.shardrig import DEGREES, Rank, every_group, rank_of, same, whole_state
from tiers.device import DeviceTier
from tiers.device_buffers import rows_of
from tiers.host import HostTier

BLOCKS = 4
SLOTS = np.arange(BLOCKS, dtype=np.int32)
ALL = np.ones(BLOCKS, np.bool_)
GROUPS = every_group()
PATIENCE_S = 60.0


class Host:
    """A host tier that verifies every run, with reserved slots for the blocks of a group, and the
    ranks over it; they live as long as it does.
    """

    def __init__(self, some: Group) -> None:
        self.tier = HostTier(BLOCKS * (some.block_bytes + 4096) + (1 << 16), verify=True)
        self.devices: list[DeviceTier] = []
        self.tier.attach((some,), 16, None)
        self.rows = self.tier.reserve(0, BLOCKS)

    def device(self, rank: Rank, *, staged: bool = False) -> DeviceTier:
        """The tensors of a rank as a tier that holds its view."""
        shards, number = rank.shards, rank.number
        rows = rows_of(shards.group.layout, shards.reads(number), rank.buffers)
        view = View(shards.layers_of(number), shards.span(number))
        tier = DeviceTier(rows, owned=False, staged=staged, views=view)
        self.devices.append(tier)
        tier.attach((shards.group,), 16, None)
        return tier

    def move(self, device: DeviceTier, chosen: np.ndarray, *, storing: bool) -> TransferDone:
        """One transfer of these blocks, followed to its end."""
        transfer = Transfer(1, 0, SLOTS[chosen], self.rows[chosen], Urgency.DEMAND, None)
        (self.tier.store if storing else self.tier.load)(transfer, device)
        self.tier.wait(PATIENCE_S)
        (done,) = self.tier.poll()
        assert done.error is None and done.good.all(), done
        return done

    def write(self, shards: Shards, whole: dict[str, torch.Tensor]) -> None:
        """Every rank stores the blocks whose turn it is; then they are there."""
        for number in range(shards.parallelism.ranks):
            turn = shards.writes(number, SLOTS)
            if turn.any():
                rank = rank_of(shards, number, whole, number, filled=True)
                self.move(self.device(rank), turn, storing=True)
        self.tier.commit(0, self.rows)

    def close(self) -> None:
        """The lower tier first: it may still be reading."""
        for tier in (self.tier, *self.devices):
            tier.close()


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("name", GROUPS)
def test_what_ranks_store_other_ranks_load(name: str, staged: bool) -> None:
    some = GROUPS[name]
    for written in (4,) if staged else DEGREES:  # the buffers of staged copies cost time to make
        whole = whole_state(some, BLOCKS, seed=written)
        with closing(Host(some)) as host:
            host.write(Shards(some, Parallelism(written)), whole)
            for degree in DEGREES:
                shards = Shards(some, Parallelism(degree))
                for number in range(degree):
                    rank = rank_of(shards, number, whole, 50 + number, filled=False)
                    done = host.move(host.device(rank, staged=staged), ALL, storing=False)
                    assert done.nbytes == BLOCKS * rank.slot_bytes, (written, degree, number)
                    expected = rank_of(shards, number, whole, 9, filled=True)
                    for part, tensor in rank.tensors.items():
                        what = (written, degree, number, part)
                        assert same(tensor, expected.tensors[part]), what


def test_a_block_of_which_one_rank_has_not_written_its_shard_is_not_there() -> None:
    """C101 (vllm#49499): a hit needs every shard that its reader needs."""
    some = GROUPS["recurrent"]
    shards, whole = Shards(some, Parallelism(4)), whole_state(some, BLOCKS, seed=0)
    with closing(Host(some)) as host:
        for number in (0, 1, 3):
            rank = rank_of(shards, number, whole, number, filled=True)
            host.move(host.device(rank), ALL, storing=True)
        with pytest.raises(TierError):
            host.tier.commit(0, host.rows)
        rank = rank_of(shards, 2, whole, 2, filled=True)
        host.move(host.device(rank), ALL, storing=True)
        host.tier.commit(0, host.rows)
