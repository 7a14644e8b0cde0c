"""Whatever the memory above looks like, the same bytes go down and come back: in place where the
file system can reach it, else through rows of our own; a full queue refuses or makes wait (I22,
I24).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tiers.disk_transfers
from radix._native import lib
from radix.errors import TierFullError, UnsupportedError
from radix.groups import Group
from radix.tier import Slots, Tier, Transfer, Urgency
from tests.crash.diskrig import aligned_rows, records_of
from tests.oracle import expand
from tiers.copies import Moved, Planes
from tiers.disk import DiskTier
from tiers.host import AdoptedTier
from tiers.index import IndexTier
from tiers.transfer import TransferEngine
from tiers.views import Offsets, cut_planes

COUNT, NBYTES = 12, 12_288
GROUP = Group.full("kv", NBYTES)
Arrays = list[npt.NDArray[np.uint8]]


class MovingTier(AdoptedTier):
    """Memory that shows no addresses and moves its own blocks, as a GPU does."""

    def __init__(self, fragments: Any) -> None:
        super().__init__(fragments, "moving")
        self._capability = replace(self._capability, address_mapped=False)
        self.own = TransferEngine(1)
        self.fails = False

    def _mine(self, group: int, ranges: Offsets | None) -> Planes:
        planes = self.planes(group)
        return planes if ranges is None else cut_planes(planes, *ranges.T)

    def copy_out(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Its slots to ``lower`` of ``planes``."""
        self.own.submit_copy(job, urgency, planes, lower, self._mine(group, ranges), slots)

    def copy_in(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """``lower`` of ``planes`` to its slots."""
        self.own.submit_copy(job, urgency, self._mine(group, ranges), slots, planes, lower)

    def moved(self) -> list[Moved]:
        """What has ended; with ``fails`` set, badly."""
        ended = self.own.poll()
        return [Moved(e.job, 9 if self.fails else e.status, e.nbytes) for e in ended]

    def register(self, address: int, nbytes: int) -> bool:
        """It reaches nothing directly."""
        return False

    def unregister(self, address: int) -> None:
        """Nothing was registered."""

    def close(self) -> None:
        """Ends its threads too."""
        self.own.close()
        super().close()


def _in_place() -> tuple[Tier, Arrays]:
    rows = aligned_rows(COUNT, NBYTES)
    return AdoptedTier([[rows]]), [rows]


def _far_apart() -> tuple[Tier, Arrays]:
    memory = aligned_rows(COUNT, 4 * 4096)
    return AdoptedTier([[memory[:, :NBYTES]]]), [memory[:, :NBYTES]]


def _unaligned() -> tuple[Tier, Arrays]:
    memory = np.zeros(COUNT * (NBYTES + 3) + 1, np.uint8)
    rows = memory[1:].reshape(COUNT, NBYTES + 3)[:, :NBYTES]
    return AdoptedTier([[rows]]), [rows]


def _layer_first() -> tuple[Tier, Arrays]:
    layers = [np.zeros((COUNT, size), np.uint8) for size in (4096, 1, 8191)]
    return AdoptedTier([layers]), layers


def _moving() -> tuple[Tier, Arrays]:
    rows = np.zeros((COUNT, NBYTES), np.uint8)
    return MovingTier([[rows]]), [rows]


KINDS = {
    "in place": _in_place,
    "far apart": _far_apart,
    "unaligned": _unaligned,
    "layer first": _layer_first,
    "moving": _moving,
}


class _Stack:
    """A disk tier below one of these."""

    def __init__(self, folder: Path, kind: str, payload: str = "slab") -> None:
        self.upper, self.arrays = KINDS[kind]()
        self.upper.attach((GROUP,), 64, None)
        self.disk = DiskTier(folder, limit_bytes=2 << 20, payload=payload, segment_bytes=65536)
        self.disk.attach((GROUP,), 64, self.upper)
        self.jobs = 0

    def write(self, numbers: list[int]) -> None:
        """Puts blocks into the first rows above."""
        at = 0
        content = expand(np.array(numbers, np.uint64), NBYTES)
        for array in self.arrays:
            array[: len(numbers)] = content[:, at : at + array.shape[1]]
            at += array.shape[1]

    def start(self, rows: list[int], slots: Slots, numbers: list[int] | None) -> int:
        """A store of ``numbers``, or a load."""
        self.jobs += 1
        records = None if numbers is None else records_of(numbers)
        urgency = Urgency.DEMAND if numbers is None else Urgency.STORE
        at = np.array(rows, np.int32)
        transfer = Transfer(self.jobs, 0, at, slots, urgency, records)
        (self.disk.load if numbers is None else self.disk.store)(transfer, self.upper)
        return self.jobs

    def settle(self) -> dict[int, Any]:
        """What was acknowledged, by job."""
        done = {}
        while self.disk.pending():
            self.disk.wait(5.0)
            done |= {item.job: item for item in self.disk.poll()}
        return done

    def close(self) -> None:
        """The lower one first."""
        self.disk.close()
        self.upper.close()


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_come_back_in_another_order(tmp_path: Path, kind: str, payload: str) -> None:
    stack = _Stack(tmp_path / "d", kind, payload)
    numbers = list(range(COUNT))
    slots = stack.disk.reserve(0, COUNT)
    stack.write(numbers)
    job = stack.start(numbers, slots[::-1].copy(), numbers)
    assert stack.settle()[job].good.all()
    stack.disk.commit(0, slots)
    for array in stack.arrays:
        array[:] = 0x5A
    order = [7, 0, 11, 3]
    job = stack.start([1, 2, 4, 8], slots[::-1][order].copy(), None)
    done = stack.settle()[job]
    assert done.good.all() and done.verified_blocks == 4
    assert done.nbytes >= 4 * NBYTES
    got = np.concatenate(stack.arrays, axis=1)
    assert np.array_equal(got[[1, 2, 4, 8]], expand(np.array(order, np.uint64), NBYTES))
    assert (got[[0, 3, 5, 6, 7, 9, 10, 11]] == 0x5A).all(), "rows beside them were written"
    stack.disk.check()
    stack.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_transfer_of_nothing_is_acknowledged(tmp_path: Path, kind: str) -> None:
    stack = _Stack(tmp_path / "d", kind)
    none = np.zeros(0, np.int32)
    jobs = [stack.start([], none, None), stack.start([], none, [])]
    assert sorted(stack.settle()) == jobs
    stack.close()


def test_a_tier_above_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    stack = _Stack(tmp_path / "d", "moving")
    assert isinstance(stack.upper, MovingTier)
    slots = stack.disk.reserve(0, 2)
    stack.write([1, 2])
    stack.upper.fails = True
    job = stack.start([0, 1], slots, [1, 2])
    done = stack.settle()[job]
    assert not done.good.any() and not done.corrupt.any()
    stack.disk.abort(0, slots)
    stack.disk.flush()
    assert stack.disk._disk.index.entries() == 0
    stack.disk.check()
    stack.close()


def test_a_tier_above_without_bytes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'none'"):
        upper = IndexTier(4, "none")
        upper.attach((GROUP,), 64, None)
        disk = DiskTier(tmp_path / "d", limit_bytes=2 << 20)
        disk.attach((GROUP,), 64, upper)
        try:
            slots = disk.reserve(0, 1)
            transfer = Transfer(1, 0, slots, slots, Urgency.STORE, records_of([1]))
            disk.store(transfer, upper)
        finally:
            assert disk.pending() == 0
            disk.close()


@pytest.mark.parametrize("kind", ["in place", "unaligned"])
def test_a_full_queue_refuses_and_loses_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a transfer is refused, a later one waits."""
    monkeypatch.setattr(tiers.disk_transfers, "QUEUE_JOBS", 3)
    stack = _Stack(tmp_path / "d", kind)
    slots = stack.disk.reserve(0, COUNT)
    stack.write(list(range(COUNT)))
    good: dict[int, int] = {}
    jobs: dict[int, int] = {}
    refused = 0
    waiting = list(range(COUNT))
    lib.rdx_io_allow(stack.disk._transfers.engine._io, 0)
    while waiting or jobs:
        for number in list(waiting):
            try:
                jobs[stack.start([number], slots[number : number + 1], [number])] = number
                waiting.remove(number)
            except TierFullError as error:
                assert error.retryable
                refused += 1
                lib.rdx_io_allow(stack.disk._transfers.engine._io, 2**64 - 1)
                break
        stack.disk.wait(5.0)
        for done in stack.disk.poll():
            good[jobs.pop(done.job)] = int(done.good.sum())
    assert good == dict.fromkeys(range(COUNT), 1) and refused > 0
    stack.disk.commit(0, slots)
    stack.disk.check()
    stack.close()


def test_a_cancelled_store_leaves_the_tier_on(tmp_path: Path) -> None:
    stack = _Stack(tmp_path / "d", "unaligned")
    slots = stack.disk.reserve(0, COUNT)
    stack.write(list(range(COUNT)))
    jobs = [stack.start([n], slots[n : n + 1], [n]) for n in range(COUNT)]
    for job in jobs[::2]:
        stack.disk.cancel(job)
    done = stack.settle()
    assert sorted(done) == jobs
    good = np.array([done[job].good[0] for job in jobs])
    assert good[1::2].all()
    stack.disk.commit(0, slots[good])
    stack.disk.abort(0, slots[~good])
    stack.disk.flush()
    assert stack.disk._disk.index.entries() == good.sum()
    assert stack.disk.mode.value == "on"
    stack.disk.check()
    stack.close()
