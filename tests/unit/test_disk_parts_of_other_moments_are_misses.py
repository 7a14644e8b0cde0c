"""Drives that do not belong together as they are (one restored from an older copy, given in another
order) and tables that a medium changed cost hits: nobody gets blocks of before a reset, or those of
another namespace (I24, I31).
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from radix.errors import TierUnavailableError
from tests.crash.diskrig import BLOCK_BYTES, DiskRig, key_of, records_of, snapshot
from tests.oracle import expand
from tiers.lmdb_index import LEAST_NUMBER

LIMIT = 2 << 20
BLOCKS = 40


def _weighed(numbers: list[int], weights: int) -> np.ndarray:
    """Blocks whose keys do not say which weights computed them."""
    return expand(np.array(numbers, np.uint64) + np.uint64(weights << 32), BLOCK_BYTES)


def _store(rig: DiskRig, numbers: list[int], weights: int) -> None:
    slots = rig.tier.reserve(0, len(numbers))
    rig.rows[0][: len(numbers)] = _weighed(numbers, weights)
    rig.start_store_of(records_of(numbers), slots)
    (done,) = rig.settle()
    assert done.good.all()
    rig.tier.commit(0, slots)
    rig.slots |= dict(zip(numbers, slots.tolist(), strict=True))


def _good_of(rig: DiskRig, weights: int) -> tuple[int, int]:
    """How many blocks come back, and how many of them are of other weights."""
    by_key = {key_of(n): n for n in range(BLOCKS)}
    found = [
        (by_key[key.tobytes()], int(slot))
        for part in rig.restored
        for key, slot in zip(part.records.keys, part.slots, strict=True)
    ]
    if not found:
        return 0, 0
    done = rig.load(slot for _, slot in found)
    right = _weighed([number for number, _ in found], weights)
    wrong = (rig.rows[0][: len(found)] != right).any(axis=1)
    return int(done.good.sum()), int((done.good & wrong).sum())


@pytest.mark.parametrize("seed", range(6))
def test_a_drive_that_was_restored_from_before_a_reset_brings_nothing_back(
    tmp_path: Path, seed: int
) -> None:
    """The epoch stood in the index alone, so that a first drive restored from before a reset found
    the blocks of the old weights again, those on the other drive with good checksums.
    """
    draw, paths = random.Random(seed), [tmp_path / "a", tmp_path / "b"]
    weights, moments, warm = 0, [], 0
    for turn in range(5):
        with DiskRig(paths, limit_bytes=LIMIT) as rig:
            rig.adopt(range(BLOCKS))
            if turn and draw.random() < 0.5:
                rig.free(list(rig.slots))
                weights += 1
                rig.tier.renew()
            gone = draw.sample(sorted(rig.slots), min(len(rig.slots), 12))
            rig.free(gone)
            rig.tier.flush()
            some = draw.sample([n for n in range(BLOCKS) if n not in rig.slots], 12)
            for at in range(0, len(some), 4):
                _store(rig, some[at : at + 4], weights)
        moments.append(weights)
        for path in paths:
            shutil.copytree(path, tmp_path / f"{path.name}{turn}")
    for first in range(5):
        for second in range(5):
            for path, turn in zip(paths, (first, second), strict=True):
                shutil.rmtree(path)
                shutil.copytree(tmp_path / f"{path.name}{turn}", path)
            for _ in range(2):
                with DiskRig(paths, limit_bytes=LIMIT) as rig:
                    good, wrong = _good_of(rig, max(moments[first], moments[second]))
                    assert not wrong, (first, second)
                    rig.tier.check()
                    warm += good
    assert warm > 100


def test_paths_in_another_order_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    """Given in another order a tier opened cold: the index of the other first path was not there,
    so that every slab file was removed, and the first index stayed beside, with its epochs.
    """
    paths = [tmp_path / "a", tmp_path / "b"]
    with DiskRig(paths, limit_bytes=LIMIT) as rig:
        for first in range(0, 48, 8):
            assert rig.store(range(first, first + 8)).good.all()
    before = snapshot(tmp_path)
    with pytest.raises(TierUnavailableError, match="b is path 1 of its tier and is given as path"):
        DiskRig(paths[::-1], limit_bytes=LIMIT)
    assert snapshot(tmp_path) == before
    with DiskRig(paths, limit_bytes=LIMIT) as rig:
        assert rig.verify(rig.adopt(range(48))) == list(range(48))


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_namespace_that_a_medium_changed_gets_nobodys_blocks(
    tmp_path: Path, payload: str
) -> None:
    """One bit of the table of namespaces gave the blocks of one to another: records have a guard
    and name a number, and nothing held number and name together.
    """
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        rig.store(range(8), namespace=b"model-a")
        rig.store(range(8, 12), namespace=b"model-c")
    path = tmp_path / "d" / "data.mdb"
    data = path.read_bytes()
    assert data.count(b"model-a") >= 1
    path.write_bytes(data.replace(b"model-a", b"model-c"))
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert {part.records.namespace for part in rig.restored} == {b"model-c"}
        assert rig.adopt(range(12)) == list(range(8, 12)) and rig.tier.counts.dropped == 8
        assert rig.store(range(8), namespace=b"model-a").good.all()
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        found = {part.records.namespace: part.records.positions.tolist() for part in rig.restored}
        assert found == {b"model-a": list(range(8)), b"model-c": list(range(8, 12))}


def test_numbers_of_before_they_followed_from_names_are_found_and_kept(tmp_path: Path) -> None:
    """A directory of an earlier version opens warm."""
    with DiskRig(tmp_path / "d") as rig:
        rig.tier._transfers._numbers[b"model-a"] = 1
        rig.store(range(4), namespace=b"model-a")
    with DiskRig(tmp_path / "d") as rig:
        assert rig.verify(rig.adopt(range(4))) == list(range(4))
        rig.store(range(4, 8), namespace=b"model-a")
        rig.store(range(8, 12), namespace=b"model-c")
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(12)) == list(range(12))
        names = rig.tier._disk.namespaces
        assert names[1] == b"model-a" and min(set(names) - {1}) >= LEAST_NUMBER


def test_namespaces_whose_numbers_meet_are_told_apart(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        index = rig.tier._disk.index
        first = index.number_for(b"x", {})
        known = {b"other": first, b"another": first + 1}
        assert index.number_for(b"x", known) == first + 2 == known[b"x"]
        full = {bytes([n]): first + n for n in range(64)}
        assert index.number_for(b"x", full) == 1
