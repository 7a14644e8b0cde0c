"""Whatever happens to the files, a damaged block is reported as corrupt and never as good, and all
others are right (C78, C82, C87, C88, C92; I24, I25).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from radix.errors import CorruptBlockError
from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Transfer, Urgency
from tests.crash.diskrig import BLOCK_BYTES, DiskRig
from tests.oracle import expand

COUNT = 24
KNOWN = range(COUNT)
SHARDED = Group("kv", Layout((Part("kv", "uint8", (("head", 4), ("byte", 4096)), "head", 4),), 4))


def _filled(folder: Path, **options: object) -> dict[int, int]:
    with DiskRig(folder, **options) as rig:
        for first in range(0, COUNT, 8):
            assert rig.store(range(first, first + 8)).good.all()
        return dict(rig.slots)


def _flip(path: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)
    with path.open("r+b") as file:
        size = path.stat().st_size
        for _ in range(count):
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def _hurt(rig: DiskRig, at_least: int) -> list[int]:
    """Loads everything; the numbers that came back corrupt. Freed, they are gone for good."""
    good = set(rig.verify(rig.slots))
    bad = sorted(set(rig.slots) - good)
    assert len(bad) >= at_least and rig.tier.counts.corrupt == len(bad)
    rig.tier.check()
    return bad


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_in_a_slab_are_found(tmp_path: Path, seed: int) -> None:
    _filled(tmp_path / "d")
    _flip(tmp_path / "d" / "slab-0000", seed, 6)
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(KNOWN) == list(KNOWN)
        bad = _hurt(rig, 1)
        assert len(bad) <= 6
        rig.free(bad)
        assert rig.store(range(100, 104)).good.all()
    with DiskRig(tmp_path / "d") as rig:
        assert set(rig.adopt(range(104))) == (set(KNOWN) - set(bad)) | set(range(100, 104))
        assert set(rig.verify(rig.slots)) == set(rig.slots)


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_in_the_index_give_out_nothing_wrong(
    tmp_path: Path, seed: int, payload: str
) -> None:
    """LMDB has no checksums of its own: a record or a block that it hands out may be anything."""
    _filled(tmp_path / "d", payload=payload)
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        rows = {int(row["position"]): row.tobytes() for row in rig.tier._disk.index.scan()}
    path = tmp_path / "d" / "data.mdb"
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    hurt = rng.sample(KNOWN, 8)
    for number in hurt:
        # One bit of the record, in every whole copy of it that LMDB has left.
        distance, bit = rng.randrange(len(rows[number])), 1 << rng.randrange(8)
        at = data.find(rows[number])
        assert at >= 0
        while at >= 0:
            data[at + distance] ^= bit
            at = data.find(rows[number], at + 1)
    path.write_bytes(data)
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert rig.adopt(KNOWN) == [n for n in KNOWN if n not in hurt]
        assert rig.tier.counts.dropped == len(hurt)
        assert rig.verify(rig.slots) == list(rig.slots)
        rig.tier.check()
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert len(rig.adopt(KNOWN)) == COUNT - len(hurt) and rig.tier.counts.dropped == 0


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("first", [0, 8192])
def test_an_index_that_lmdb_cannot_read_starts_cold(
    tmp_path: Path, payload: str, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a cache: a broken table costs the hits, and is said."""
    _filled(tmp_path / "d", payload=payload)
    path = tmp_path / "d" / "data.mdb"
    path.write_bytes(path.read_bytes()[:first] + bytes(path.stat().st_size - first))
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert rig.restored == [] and "starts cold" in caplog.text
        assert rig.store(range(8)).good.all()
        rig.tier.check()
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert rig.adopt(KNOWN) == list(range(8))
        assert rig.verify(range(8)) == list(range(8))


def test_flipped_bits_in_a_value_are_found(tmp_path: Path) -> None:
    _filled(tmp_path / "d", payload="lmdb")
    path = tmp_path / "d" / "data.mdb"
    data = bytearray(path.read_bytes())
    for number in (3, 11):
        at = data.find(expand([number], BLOCK_BYTES).tobytes())
        assert at >= 0
        data[at + 5000] ^= 4
    path.write_bytes(data)
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.adopt(KNOWN)
        assert _hurt(rig, 2) == [3, 11]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.77])
def test_a_truncated_slab_loses_its_end(tmp_path: Path, keep: float) -> None:
    slots = _filled(tmp_path / "d")
    path = tmp_path / "d" / "slab-0000"
    size = int(max(slots.values()) + 1) * 8192
    os.truncate(path, int(size * keep))
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(KNOWN) == list(KNOWN)
        bad = _hurt(rig, 1)
        assert set(bad) == {n for n in KNOWN if (slots[n] + 1) * 8192 > int(size * keep)}


def test_a_missing_slab_is_a_miss(tmp_path: Path) -> None:
    """C92: an I/O error is normal, never an assertion."""
    _filled(tmp_path / "d")
    (tmp_path / "d" / "slab-0000").unlink()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(KNOWN) == list(KNOWN)
        done = rig.load(rig.slots.values())
        assert done.corrupt.all() and not done.good.any() and done.verified_blocks == 0
        assert isinstance(done.error, CorruptBlockError)
        rig.free(KNOWN)
        assert rig.store(range(100, 108)).good.all()
        assert len(rig.verify(range(100, 108))) == 8


def test_evicting_a_block_whose_file_is_gone_works(tmp_path: Path) -> None:
    """C87: the index said present, removal of the missing file killed the engine."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(8))
        (tmp_path / "d" / "slab-0000").unlink()
        rig.free(range(4))
        rig.tier.flush()
        rig.tier.check()


def test_a_damaged_block_is_reported_once_and_its_neighbours_stay(tmp_path: Path) -> None:
    """C78: after the first failure the verdict is a miss; loads of the rest do not fail again."""
    slots = _filled(tmp_path / "d")
    with (tmp_path / "d" / "slab-0000").open("r+b") as file:
        file.seek(slots[5] * 8192 + 100)
        file.write(b"damage")
    with DiskRig(tmp_path / "d") as rig:
        rig.adopt(KNOWN)
        done = rig.load(rig.slots[n] for n in range(3, 8))
        assert done.good.tolist() == [True, True, False, True, True]
        assert done.corrupt.tolist() == [False, False, True, False, False]
        assert rig.right([3, 4])[:2].all()
        rig.free([5])
        assert rig.verify([3, 4, 6, 7]) == [3, 4, 6, 7]
    with DiskRig(tmp_path / "d") as rig:
        assert 5 not in rig.adopt(KNOWN)


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_block_is_not_readable_while_it_is_written(tmp_path: Path, payload: str) -> None:
    """C82: the key was visible before the data was complete. Here the record comes last."""
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        slots = rig.tier.reserve(0, 2)
        rig.start_store([1, 2], slots)
        rows = np.array([8, 9], np.int32)
        rig.tier.load(Transfer(99, 0, rows, slots, Urgency.DEMAND, None), rig.upper)
        done = {item.job: item for item in rig.settle()}
        assert done[1].good.all()
        assert done[99].corrupt.all() and not done[99].good.any()


def test_an_entry_that_goes_during_a_read_is_a_miss(tmp_path: Path) -> None:
    """C88: a key evicted between the check and the use raised in the reader."""
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.store(range(4))
        index = rig.tier._disk.index
        ids = rig.tier._books.record_ids(0, np.array([rig.slots[2]], np.int32))
        index.commit([], ids, {})
        done = rig.load(rig.slots[n] for n in range(4))
        assert done.good.tolist() == [True, True, False, True]
        assert done.corrupt.tolist() == [False, False, True, False]


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_each_shard_piece_has_a_checksum_of_its_own(tmp_path: Path, payload: str) -> None:
    with DiskRig(tmp_path / "d", groups=(SHARDED,), payload=payload) as rig:
        rig.store(range(6))
        sums = rig.tier._books.sums(0, np.array([rig.slots[3]], np.int32))
        assert sums.shape == (1, 4) and len(set(sums[0].tolist())) == 4
        assert rig.verify(range(6)) == list(range(6))
        slot = rig.slots[3]
    if payload == "slab":
        with (tmp_path / "d" / "slab-0000").open("r+b") as file:
            file.seek(slot * 16384 + 2 * 4096 + 7)
            file.write(b"damage")
        with DiskRig(tmp_path / "d", groups=(SHARDED,)) as rig:
            rig.adopt(range(6))
            assert rig.verify(range(6)) == [0, 1, 2, 4, 5]
