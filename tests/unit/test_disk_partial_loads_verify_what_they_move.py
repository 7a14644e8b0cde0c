"""A partial load reads the runs that it needs and holds each against its own checksum: damage
elsewhere in the block costs it nothing, damage in what it needs makes the block corrupt; a block of
which a shard piece is not present is missing for all (I24).
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radix.errors import TierError
from radix.tier import Slots, Transfer, TransferDone, Urgency, View
from tests.crash.diskrig import aligned_rows
from tiers.disk import DiskTier
from tiers.host import AdoptedTier
from tiers.lmdb_index import Additions, guards
from tiers.rig import PAGE_BYTES, Rig, bytes_of, content_of, groups_of_runs, records_of
from tiers.slab_files import has_direct_io

GROUPS = groups_of_runs()
BOTH = 0  # 4 shard pieces, 3 layers
LAYOUT = GROUPS[BOTH].layout
COUNT = 4


class _Disk(Rig):
    """A disk tier of several groups below plain memory."""

    def __init__(self, folder: Path, payload: str = "slab") -> None:
        self.disk = DiskTier(folder, limit_bytes=3 << 20, payload=payload, segment_bytes=32768)
        super().__init__(self.disk, GROUPS, first=False)

    def load(self, slots: Slots, view: View, *, by_layer: bool = False) -> TransferDone:
        """Loads a part into the first rows, over bytes that are known to be others."""
        self.rows[BOTH][:] = 0xA5
        rows = np.arange(len(slots), dtype=np.int32)
        self.start(BOTH, rows, slots, into=False, part=view, by_layer=by_layer)
        (done,) = self.settle()
        return done

    def store(self, slots: Slots, view: View) -> bool:
        """Stores a part of the first rows; whether it arrived."""
        rows = np.arange(len(slots), dtype=np.int32)
        self.start(BOTH, rows, slots, into=True, part=view)
        (done,) = self.settle()
        return bool(done.good.all())


def _filled(folder: Path, payload: str = "slab") -> tuple[Slots, np.ndarray]:
    content = content_of(1, BOTH, COUNT, GROUPS[BOTH].block_bytes)
    with closing(_Disk(folder, payload)) as rig:
        slots = rig.tier.reserve(BOTH, COUNT)
        assert rig.write(BOTH, slots, content).good.all()
        rig.tier.commit(BOTH, slots)
    return slots, content


def _place(slot: int, piece: int, layer: int) -> tuple[int, int]:
    """Where a run of a slot begins and ends in the slab file, whose segments are all of one group
    here.
    """
    offset, size = (int(value) for value in LAYOUT.runs[piece, layer])
    return int(slot) * 4096 + offset, int(slot) * 4096 + offset + size


def _damage(folder: Path, slot: int, piece: int, layer: int) -> None:
    first, end = _place(slot, piece, layer)
    with (folder / "slab-0000").open("r+b") as file:
        file.seek((first + end) // 2)
        byte = file.read(1)[0]
        file.seek((first + end) // 2)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("by_layer", [False, True])
def test_damage_fails_the_loads_that_need_the_run_and_no_other(
    tmp_path: Path, by_layer: bool
) -> None:
    slots, content = _filled(tmp_path / "d")
    _damage(tmp_path / "d", slots[2], piece=1, layer=2)
    parts = {
        View((0, 2), (0, 4)): False,
        View((2, 3), (0, 1)): False,
        View((2, 3), (2, 4)): False,
        View((2, 3), (1, 2)): True,
        View((1, 3), (0, 2)): True,
        View((0, 3), (0, 4)): True,
    }
    with closing(_Disk(tmp_path / "d")) as rig:
        for view, needs in parts.items():
            done = rig.load(slots, view, by_layer=by_layer)
            mine = bytes_of(LAYOUT, view)
            good = np.arange(COUNT) != 2 if needs else np.ones(COUNT, np.bool_)
            assert np.array_equal(done.good, good) and np.array_equal(done.corrupt, ~good), view
            assert (done.error is not None) == needs
            assert done.verified_blocks == good.sum()
            assert needs or done.nbytes == COUNT * len(mine)
            found = rig.rows[BOTH][:COUNT]
            assert np.array_equal(found[good][:, mine], content[good][:, mine])
            rest = np.setdiff1d(np.arange(content.shape[1]), mine)
            assert (found[:, rest] == 0xA5).all()


def test_a_partial_load_touches_only_the_runs_that_it_needs(tmp_path: Path) -> None:
    """The file ends behind them: whoever read more would find it too short."""
    slots, content = _filled(tmp_path / "d")
    last = int(slots.max())
    at = np.flatnonzero(slots == last)
    with closing(_Disk(tmp_path / "d")) as rig:
        os.truncate(tmp_path / "d" / "slab-0000", _place(last, 1, 2)[1])
        half = View((0, 3), (0, 2))
        assert rig.load(slots[at], half).good.all()
        mine = bytes_of(LAYOUT, half)
        assert np.array_equal(rig.rows[BOTH][:1, mine], content[at][:, mine])
        done = rig.load(slots[at], View((0, 1), (2, 3)))
        assert done.corrupt.all() and done.nbytes == 0


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_record_that_lacks_a_piece_is_a_miss_for_all(tmp_path: Path, payload: str) -> None:
    """Whatever wrote it: ``present`` must name every shard piece of the layout."""
    slots, content = _filled(tmp_path / "d", payload)
    with closing(_Disk(tmp_path / "d", payload)) as rig:
        index = rig.disk._disk.index
        rows = index.scan()
        old = rows["id"].copy()
        rows["present"][rows["slot"] == slots[1]] = 0b1011
        rows["id"] += np.uint64(100)
        rows["guard"] = guards(rows)
        blocks = list(content) if payload == "lmdb" else ()
        index.commit([Additions(rows, blocks)], old, {})
    with closing(_Disk(tmp_path / "d", payload)) as rig:
        (found,) = rig.tier.restore()
        assert sorted(found.slots.tolist()) == sorted(slots[[0, 2, 3]].tolist())
        done = rig.load(slots[1:2], View((0, 1), (0, 1)))
        assert done.corrupt.all(), "a piece was given out of a block that is not there"


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_two_writers_of_other_bytes_make_no_block(tmp_path: Path, payload: str) -> None:
    """Whoever brings a run again must bring the same; else nobody knows which of the two holds."""
    with closing(_Disk(tmp_path / "d", payload)) as rig:
        slots = rig.tier.reserve(BOTH, 1)
        rig.rows[BOTH][:1] = content_of(1, BOTH, 1, GROUPS[BOTH].block_bytes)
        assert rig.store(slots, View((0, 3), (0, 2)))
        assert rig.store(slots, View((0, 3), (1, 3))), "the same bytes again"
        rig.rows[BOTH][:1] ^= 0xFF
        rig.store(slots, View((2, 3), (2, 3)))
        rig.rows[BOTH][:1] ^= 0xFF
        assert rig.store(slots, View((0, 3), (3, 4)))
        with pytest.raises(TierError, match="only some parts have arrived"):
            rig.tier.commit(BOTH, slots)
        rig.tier.abort(BOTH, slots)
        rig.tier.flush()
        assert rig.disk._disk.index.entries() == 0
        rig.tier.check()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
def test_runs_of_whole_pages_pass_by_the_page_cache(
    tmp_path: Path, in_place: bool, by_layer: bool
) -> None:
    """Where every run is of whole 4 KiB, parts of blocks are moved with O_DIRECT too, in place or
    through rows of our own; no byte beside them is written.
    """
    pages = GROUPS[2:3]  # 2 layers, 2 shards
    layout, count = pages[0].layout, 3
    memory = aligned_rows(count, layout.block_bytes + 4096)
    rows = memory[:, :-4096] if in_place else memory[:, 5 : 5 + layout.block_bytes]
    upper = AdoptedTier([[rows]])
    upper.attach(pages, PAGE_BYTES, None)
    disk = DiskTier(tmp_path / "d", limit_bytes=3 << 20, segment_bytes=65536)
    disk.attach(pages, PAGE_BYTES, upper)
    with closing(disk):
        assert disk._disk.files.direct == has_direct_io(tmp_path / "d")
        order, slots = np.arange(count, dtype=np.int32), disk.reserve(0, count)
        content = content_of(4, 0, count, layout.block_bytes)
        rows[:] = content
        for job, view in enumerate((View((0, 2), (1, 2)), View((0, 2), (0, 1)))):
            records = records_of(0, 0, count)
            disk.store(Transfer(job, 0, order, slots, Urgency.STORE, records, view), upper)
        while disk.pending():
            disk.wait(5.0)
            assert all(done.good.all() for done in disk.poll())
        disk.commit(0, slots)
        for view in (View((1, 2), (0, 2)), View((0, 2), (1, 2)), View((0, 2), (0, 2))):
            memory[:] = 0xA5
            transfer = Transfer(9, 0, order, slots, Urgency.DEMAND, None, view, by_layer)
            disk.load(transfer, upper)
            while not (done := disk.poll()):
                disk.wait(5.0)
            mine = bytes_of(layout, view)
            assert done[0].good.all() and done[0].nbytes == count * len(mine)
            expected = np.full_like(content, 0xA5)
            expected[:, mine] = content[:, mine]
            assert np.array_equal(rows, expected)
            assert np.count_nonzero(memory != 0xA5) == np.count_nonzero(rows != 0xA5)
