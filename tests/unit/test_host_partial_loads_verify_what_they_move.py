"""Host memory that verifies holds each run against its own checksum: damage costs only the loads
that need the run. What a tier below wrote into a slot in parts is given out once it is whole (I24).
"""

from __future__ import annotations

import ctypes
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radix.errors import CorruptBlockError, TierError
from radix.tier import Slots, Tier, Transfer, TransferDone, Urgency, View
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.rig import PAGE_BYTES, Rig, bytes_of, content_of, groups_of_runs

GROUPS = groups_of_runs()
MIXED = 1  # of three dtypes, 4 shards in 7 pieces, 4 layers
LAYOUT = GROUPS[MIXED].layout
WHOLE = View((0, LAYOUT.layers), (0, LAYOUT.store_shards))
COUNT = 3


class _Host(Rig):
    """A host tier that verifies, below plain memory."""

    def __init__(self) -> None:
        super().__init__(HostTier(1 << 20, verify=True), GROUPS, first=False)

    def load(self, slots: Slots, view: View, *, by_layer: bool = False) -> TransferDone:
        """Loads a part into the first rows, over bytes that are known to be others."""
        self.rows[MIXED][:] = 0xA5
        rows = np.arange(len(slots), dtype=np.int32)
        self.start(MIXED, rows, slots, into=False, part=view, by_layer=by_layer)
        (done,) = self.settle()
        return done

    def flip(self, slot: int, piece: int, layer: int) -> None:
        """Turns a bit over in the middle of one run of a slot."""
        plane = self.tier.planes(MIXED)[0]
        offset, size = (int(value) for value in LAYOUT.runs[piece, layer])
        place = int(plane["base"]) + int(slot) * int(plane["stride"]) + offset + size // 2
        ctypes.c_uint8.from_address(place).value ^= 4


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_flipped_bit_costs_the_loads_that_need_its_run(by_layer: bool) -> None:
    with closing(_Host()) as rig:
        content = content_of(1, MIXED, COUNT, GROUPS[MIXED].block_bytes)
        slots = rig.tier.reserve(MIXED, COUNT)
        rig.write(MIXED, slots, content)
        rig.tier.commit(MIXED, slots)
        shared = len(LAYOUT.spans) - 1  # held by every rank, in layer 2 alone
        for piece, layer in ((1, 2), (shared, 2)):
            rig.flip(slots[1], piece, layer)
            for view in (View((low, low + 1), (s, s + 1)) for low in range(4) for s in range(4)):
                done = rig.load(slots, view, by_layer=by_layer)
                runs = LAYOUT.view(view.layers, view.shards)
                needs = bool(((runs["piece"] == piece) & (runs["layer"] == layer)).any())
                good = np.arange(COUNT) != 1 if needs else np.ones(COUNT, np.bool_)
                assert np.array_equal(done.good, good) and np.array_equal(done.corrupt, ~good)
                assert isinstance(done.error, CorruptBlockError) == needs
                mine = bytes_of(LAYOUT, view)
                assert done.nbytes == good.sum() * len(mine)
                assert np.array_equal(
                    rig.rows[MIXED][:COUNT][good][:, mine], content[good][:, mine]
                )
            rig.flip(slots[1], piece, layer)
        assert rig.load(slots, WHOLE).good.all()


def test_bytes_moved_are_those_asked_for_between_each_pair_of_tiers(tmp_path: Path) -> None:
    """A consumer of one shard of two layers: disk to host and host to its memory, each counted."""
    host = HostTier(1 << 20, verify=True)
    disk = DiskTier(tmp_path / "d", limit_bytes=3 << 20, segment_bytes=32768)
    with closing(_Host()) as source, closing(Rig(disk, GROUPS, first=False)) as below:
        content = content_of(2, MIXED, COUNT, GROUPS[MIXED].block_bytes)
        on_disk = disk.reserve(MIXED, COUNT)
        below.write(MIXED, on_disk, content)
        disk.commit(MIXED, on_disk)
        host.attach(GROUPS, PAGE_BYTES, source.neighbour)
        rows = host.reserve(MIXED, COUNT)
        part = View((1, 3), (2, 3))
        rank = source.rank([None, part, None, None])
        mine = bytes_of(LAYOUT, part)
        from_disk = _carry(disk, host, rows, on_disk, part)
        assert from_disk.good.all() and from_disk.nbytes == COUNT * len(mine)
        assert from_disk.verified_blocks == COUNT
        with pytest.raises(TierError, match="only some parts have arrived"):
            host.commit(MIXED, rows)
        to_rank = _carry(host, rank.tier, np.arange(COUNT, dtype=np.int32), rows, None)
        assert to_rank.good.all() and to_rank.nbytes == COUNT * len(mine)
        assert np.array_equal(rank.rows[MIXED][:COUNT], content[:, mine])
        more = _carry(host, source.neighbour, np.arange(COUNT, dtype=np.int32), rows, None)
        assert more.corrupt.all() and more.nbytes == 0, "runs that never came were given out"
        rank.rows[MIXED][:] = 0
        rest = [View((0, 1), (0, 4)), View((3, 4), (0, 4)), View((1, 3), (0, 2))]
        for view in [*rest, View((1, 3), (3, 4))]:
            assert _carry(disk, host, rows, on_disk, view).good.all()
        host.commit(MIXED, rows)
        to_rank = _carry(host, rank.tier, np.arange(COUNT, dtype=np.int32), rows, None)
        assert to_rank.verified_blocks == COUNT
        assert np.array_equal(rank.rows[MIXED][:COUNT], content[:, mine])
        host.check()
        host.close()


def _carry(lower: Tier, upper: Tier, above: Slots, below: Slots, part: View | None) -> TransferDone:
    transfer = Transfer(1, MIXED, above, below, Urgency.DEMAND, None, part)
    lower.load(transfer, upper)
    while not (done := lower.poll()):
        lower.wait(5.0)
    return done[0]
