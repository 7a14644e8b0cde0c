"""Over several paths a batch is written to all of them, also after a restart, and its pieces go to
them in turn, so that no drive waits for another.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix._native import lib
from radix.groups import Group
from radix.tier import Slots, Transfer, Urgency
from tests.crash.diskrig import aligned_rows, records_of
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.disk_moves import file_order
from tiers.host import AdoptedTier

NBYTES = 256 << 10
GROUP = Group.full("kv", NBYTES)
ROWS = 8


def opened(paths: list[Path], upper: AdoptedTier) -> DiskTier:
    disk = DiskTier(paths, limit_bytes=48 << 20, segment_bytes=4 << 20)
    disk.attach((GROUP,), 64, upper)
    return disk


def stored(disk: DiskTier, upper: AdoptedTier, job: int, numbers: list[int]) -> Slots:
    slots = disk.reserve(0, ROWS)
    rows = np.arange(ROWS, dtype=np.int32)
    disk.store(Transfer(job, 0, rows, slots, Urgency.STORE, records_of(numbers)), upper)
    disk.flush()
    (done,) = disk.poll()
    assert done.good.all()
    disk.commit(0, slots)
    return slots


def test_a_batch_lies_on_every_drive_also_after_a_restart(tmp_path: Path) -> None:
    rows = aligned_rows(ROWS, NBYTES)
    upper = AdoptedTier([[rows]])
    upper.attach((GROUP,), 64, None)
    paths = [tmp_path / "a", tmp_path / "b"]
    kept: list[tuple[list[int], Slots]] = []
    for opening in range(2):
        disk = opened(paths, upper)
        for batch in range(3):
            numbers = list(range(ROWS * (3 * opening + batch), ROWS * (3 * opening + batch + 1)))
            rows[:] = expand(np.array(numbers, np.uint64), NBYTES)
            kept.append((numbers, stored(disk, upper, batch + 1, numbers)))
            segments, _ = disk._books.slab.place(0, kept[-1][1])
            assert np.bincount(segments % 2).tolist() == [ROWS // 2, ROWS // 2], opening
        for numbers, slots in kept:
            rows[:] = 0
            order = np.arange(ROWS, dtype=np.int32)
            disk.load(Transfer(100 + numbers[0], 0, order, slots, Urgency.DEMAND, None), upper)
            disk.flush()
            (done,) = disk.poll()
            assert done.good.all()
            assert np.array_equal(rows, expand(np.array(numbers, np.uint64), NBYTES))
        disk.check()
        disk.close()


def test_pieces_of_several_files_go_in_turn() -> None:
    half = int(lib.RDX_PIECE_BYTES) // 2
    fds = np.array([5, 4, 4, 5, 4, 4, 5, 4], np.int32)
    places = np.array([0, 3, 0, 1, 1, 2, 2, 4], np.uint64)
    assert file_order(fds, places, half).tolist() == [2, 4, 0, 3, 5, 1, 6, 7]
    alone = np.full(8, 4, np.int32)
    assert (
        file_order(alone, places[::-1].copy(), half).tolist()
        == np.lexsort((places[::-1], alone)).tolist()
    )
    assert file_order(fds[:0], places[:0], half).tolist() == []
