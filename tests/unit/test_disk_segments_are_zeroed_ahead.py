"""While nothing else runs, the next segments are written once with zeros; nobody is lent one that
is being zeroed, no block is overwritten, and the bytes count (I24, I25).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix.groups import Group
from radix.tier import Transfer, Urgency
from tests.crash.diskrig import aligned_rows, records_of
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.disk_ahead import ZeroAhead
from tiers.host import AdoptedTier
from tiers.slab import SlabAllocator
from tiers.slab_files import SlabFiles
from tiers.transfer import TransferEngine

NBYTES = 1 << 20
SEGMENT = 8 << 20
GROUP = Group.full("kv", NBYTES)


def test_zeroing_never_meets_a_block(tmp_path: Path) -> None:
    rows = aligned_rows(4, NBYTES)
    upper = AdoptedTier([[rows]])
    upper.attach((GROUP,), 64, None)
    disk = DiskTier(tmp_path / "d", limit_bytes=100 << 20, segment_bytes=SEGMENT)
    disk.attach((GROUP,), 64, upper)
    transfers = disk._transfers
    capacity = disk.capacity_blocks(0)
    slots: list[int] = []
    seen = 0
    for turn in range(12):
        for _ in range(turn % 4):
            transfers.sleep(0.05)
            assert disk.poll() == []
        seen = max(seen, transfers.ahead.ready_bytes)
        numbers = [4 * turn + i for i in range(4)]
        rows[:] = expand(np.array(numbers, np.uint64), NBYTES)
        given = disk.reserve(0, 4)
        order = np.arange(4, dtype=np.int32)
        disk.store(Transfer(turn, 0, order, given, Urgency.STORE, records_of(numbers)), upper)
        disk.flush()
        (done,) = disk.poll()
        assert done.good.all()
        disk.commit(0, given)
        slots += given.tolist()
        usage = disk.usage()
        assert usage.used_bytes <= usage.limit_bytes
        assert disk.capacity_blocks(0) == capacity
        disk.check()
    assert seen >= SEGMENT, "nothing was zeroed ahead"
    for first in range(0, 48, 4):
        rows[:] = 0
        given = np.array(slots[first : first + 4], np.int32)
        disk.load(Transfer(100 + first, 0, order, given, Urgency.DEMAND, None), upper)
        disk.flush()
        (done,) = disk.poll()
        assert done.good.all()
        assert np.array_equal(rows, expand(np.arange(first, first + 4), NBYTES))
    disk.close()
    upper.close()


def test_a_full_tier_is_not_looked_through_at_every_poll(tmp_path: Path) -> None:
    """The fault: where every segment was lent, as in any tier that has filled up, each poll asked
    every segment in Python for its owner: 16,384 of them at 1 TiB, in the engine's loop.
    """
    asked = 0

    class Counted(SlabAllocator):
        def owner(self, segment: int) -> int:
            nonlocal asked
            asked += 1
            return super().owner(segment)

    def asked_by(slab: Counted, polls: int) -> int:
        nonlocal asked
        engine, files = TransferEngine(1, 4), SlabFiles([tmp_path], SEGMENT, direct=False)
        ahead = ZeroAhead(engine, files, slab, "disk")
        asked = 0
        for _ in range(polls):
            ahead.step()
        assert ahead.job == 0, "a segment that somebody has was zeroed"
        ahead.close()
        engine.close()
        return asked

    full = Counted([NBYTES], limit_bytes=512 * SEGMENT, segment_bytes=SEGMENT)
    full.adopt(0, *range(512))
    assert asked_by(full, 100) < 512, "the segments were asked one by one"
    nearly = Counted([NBYTES], limit_bytes=512 * SEGMENT, segment_bytes=SEGMENT)
    nearly.adopt(0, *range(510))  # the last two are kept for those that ask
    assert asked_by(nearly, 100) < 512
