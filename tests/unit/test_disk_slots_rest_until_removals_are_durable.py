"""A slot is written again only once the removal of its record is durable: else a crash would leave
a record that names other bytes (I22, I24).
"""

from __future__ import annotations

import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest

from radix.errors import TierError, TierFullError
from tests.crash.diskrig import DiskRig


def _fill(rig: DiskRig) -> int:
    number = 0
    while rig.tier.free_blocks(0):
        rig.store([number])
        number += 1
    return number


def test_freed_slots_are_not_reused_before_the_commit(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        number = _fill(rig)
        gate = threading.Event()

        def wait(step: str) -> None:
            if step != "begin":
                return
            assert gate.wait(5)

        rig.tier._disk.index.hook = wait
        freed = {rig.slots[n] for n in range(4)}
        rig.free(range(4))
        books = rig.tier._books
        assert books.leaving(0) == 4
        headroom = rig.tier.reserve(0, 4)
        assert not freed & set(headroom.tolist()), "a slot was reused too early"
        rig.tier.check()
        gate.set()
        rig.tier.abort(0, headroom)
        rig.tier.flush()
        assert books.leaving(0) == 0
        again = rig.tier.reserve(0, 4)
        assert freed & set(again.tolist())
        rig.tier.abort(0, again)
        rig.tier.check()
        assert rig.store([number]).good.all()


def test_a_removal_that_fails_keeps_its_slot_for_ever(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        number = _fill(rig)

        def fail(step: str) -> None:
            raise lmdb.DiskError("injected")

        rig.tier._disk.index.hook = fail
        freed = {rig.slots[n] for n in range(6)}
        rig.free(range(6))
        rig.tier.flush()
        with pytest.raises(TierFullError):
            rig.tier.reserve(0, 6)
        taken = rig.tier.reserve(0, 1)
        assert not freed & set(taken.tolist())
        rig.tier.abort(0, taken)
        rig.tier.check()
        rig.tier._disk.index.hook = lambda step: None
        rig.tier.flush()
        assert rig.tier.free_blocks(0) == 6
    with DiskRig(tmp_path / "d") as rig:
        assert set(rig.adopt(range(number))) == set(range(6, number))


def test_reserve_waits_for_the_commit_when_headroom_is_used_up(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        number = _fill(rig)
        for _ in range(3):
            rig.free(list(rig.slots)[:20])
            assert rig.tier.free_blocks(0) == 20
            for first in range(number, number + 20, 10):
                assert rig.store(range(first, first + 10)).good.all()
            number += 20
            assert rig.tier.free_blocks(0) == 0
            rig.tier.check()
        assert set(rig.verify(rig.slots)) == set(rig.slots)


def test_a_durable_block_that_is_aborted_goes_from_the_index(tmp_path: Path) -> None:
    """Another copy was there first: the tier has acknowledged this one, and must forget it."""
    with DiskRig(tmp_path / "d") as rig:
        slots = rig.tier.reserve(0, 2)
        rig.start_store([1, 2], slots)
        (done,) = rig.settle()
        assert done.good.all()
        rig.tier.commit(0, slots[:1])
        rig.tier.abort(0, slots[1:])
        rig.tier.check()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt([1, 2]) == [1]


def test_fenced_blocks_go_when_the_fence_is_lifted(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(4))
        fenced = np.array([rig.slots[0], rig.slots[1]], np.int32)
        rig.tier.fence(0, fenced)
        with pytest.raises(TierError):
            rig.tier.free(0, fenced)
        rig.tier.lift(0, fenced)
        with pytest.raises(TierError):
            rig.tier.lift(0, fenced)
        rig.tier.check()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(4)) == [2, 3]
