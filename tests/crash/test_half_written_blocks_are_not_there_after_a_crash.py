"""A block that ranks write in parts is there after a crash only if every part had come and its
record was durable, whichever step of a write failed or whenever the process was killed (C81, C101;
I22, I24).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radix._native import lib
from radix.errors import TierError
from radix.tier import Records, Transfer, TransferDone, Urgency, View
from tests.crash.diskrig import key_of, records_of
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.rig import PAGE_BYTES, Rank, bytes_of, groups_of_runs

ROOT = Path(__file__).resolve().parents[2]
GROUPS = groups_of_runs()[:1]
LAYOUT = GROUPS[0].layout
SHARDS = LAYOUT.store_shards
COUNT = 3
PAYLOADS = ["slab", "lmdb"]


class Ranks:
    """Four ranks over one disk tier, each with its shard of numbered blocks."""

    def __init__(self, folder: Path, payload: str) -> None:
        self.tier = DiskTier(folder, limit_bytes=2 << 20, payload=payload, segment_bytes=32768)
        views = [View((0, LAYOUT.layers), (s, s + 1)) for s in range(SHARDS)]
        self.ranks = [Rank(GROUPS, [view]) for view in views]
        self.whole = Rank(GROUPS, [None])
        self.places = [bytes_of(LAYOUT, view) for view in views]
        self.tier.attach(GROUPS, PAGE_BYTES, self.whole.tier)
        self.found = {
            part.records.keys[i].tobytes(): int(part.slots[i])
            for part in self.tier.restore()
            for i in range(len(part.slots))
        }
        self.jobs = 0

    def store(self, shard: int, numbers: list[int], slots: np.ndarray) -> np.ndarray:
        """One rank brings its share of blocks; which of them arrived."""
        content = expand(np.array(numbers, np.uint64), GROUPS[0].block_bytes)
        self.ranks[shard].rows[0][: len(numbers)] = content[:, self.places[shard]]
        return self._move(self.ranks[shard], slots, records_of(numbers)).good

    def holds(self, numbers: list[int]) -> list[bool]:
        """Which blocks are there; those that are must be right."""
        here = [n for n in numbers if key_of(n) in self.found]
        slots = np.array([self.found[key_of(n)] for n in here], np.int32)
        if here:
            done = self._move(self.whole, slots, None)
            assert done.good.all(), f"{done}"
            expected = expand(np.array(here, np.uint64), GROUPS[0].block_bytes)
            assert np.array_equal(self.whole.rows[0][: len(here)], expected)
        return [n in here for n in numbers]

    def _move(self, rank: Rank, slots: np.ndarray, records: Records | None) -> TransferDone:
        self.jobs += 1
        rows = np.arange(len(slots), dtype=np.int32)
        urgency = Urgency.DEMAND if records is None else Urgency.STORE
        transfer = Transfer(self.jobs, 0, rows, slots, urgency, records)
        (self.tier.load if records is None else self.tier.store)(transfer, rank.tier)
        while not (done := self.tier.poll()):
            self.tier.wait(5.0)
        return done[0]

    def close(self) -> None:
        """The tier, then the memory above."""
        self.tier.close()
        for rank in (self.whole, *self.ranks):
            rank.tier.close()


def test_each_file_operation_may_fail_while_ranks_write(tmp_path: Path) -> None:
    for k in range(1, 100):
        folder = tmp_path / str(k)
        numbers = list(range(COUNT))
        with closing(Ranks(folder, "slab")) as ranks:
            ranks.tier._transfers.engine.fail_at(k, lib.RDX_EIO)
            slots = ranks.tier.reserve(0, COUNT)
            good = np.ones(COUNT, np.bool_)
            for shard in range(SHARDS):
                try:
                    good &= ranks.store(shard, numbers, slots)
                except TierError:  # read-only by now
                    good[:] = False
            if good.any():
                ranks.tier.commit(0, slots[good])
            for slot in slots[~good]:
                with pytest.raises(TierError):
                    ranks.tier.commit(0, np.array([slot], np.int32))
            ranks.tier.abort(0, slots[~good])
            ranks.tier.check()
        with closing(Ranks(folder, "slab")) as ranks:
            assert ranks.holds(numbers) == good.tolist(), f"operation {k}"
            ranks.tier.check()
        if good.all():
            assert k > SHARDS, "fewer operations failed than ranks write"
            return
    raise AssertionError("the stores never came through")


def write_and_die(folder: Path, payload: str, shards: int) -> None:
    """Stores some blocks by all ranks, others by the first ``shards`` alone, and is killed."""
    ranks = Ranks(folder, payload)
    for numbers, writers in (([0, 1, 2], SHARDS), ([3, 4, 5], shards)):
        slots = ranks.tier.reserve(0, COUNT)
        for shard in range(writers):
            assert ranks.store(shard, numbers, slots).all()
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_block_that_was_half_written_at_a_kill_is_not_there(tmp_path: Path, payload: str) -> None:
    for shards in range(SHARDS + 1):
        folder = tmp_path / str(shards)
        code = (
            "import pathlib; from tests.crash.test_half_written_blocks_are_not_there_after_a_crash "
            f"import write_and_die; write_and_die(pathlib.Path({str(folder)!r}), {payload!r}, "
            f"{shards})"
        )
        writer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
        assert writer.returncode == -signal.SIGKILL
        with closing(Ranks(folder, payload)) as ranks:
            there = ranks.holds(list(range(6)))
            assert there == [True] * 3 + [shards == SHARDS] * 3, f"{shards} of {SHARDS} ranks"
            ranks.tier.check()
