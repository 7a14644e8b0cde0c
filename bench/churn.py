"""Durable writes into a tier that is nearly full: each batch takes the place of as many older
blocks, whose removal is committed with it, in an index of many records.

Kept here: the same batches are stored by a tier of the same kind that is empty, in turn, with as
many under way. Records of the blocks that go stand in many pages of the index, between those of
another group, in runs, as a cache evicts leaves.
"""

from __future__ import annotations

import mmap
import shutil
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.disk import PAGE_BYTES, QUEUED, Rows, aligned_rows
from bench.measure import (
    OURS,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Target,
    no_collection,
    ratio,
)
from radix.groups import Group
from radix.tier import Records, Transfer, Urgency
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

EMPTY, FULL = "empty tier", "at 80 % full, under churn"
FULL_PERCENT = 80
SMALL_BYTES = 512
RUN_BLOCKS = 16  # of a victim: a leaf
BIG, SMALL = 0, 1
Slots = npt.NDArray[np.int32]


class ChurnedTier:
    """A disk tier of two groups under two rows of memory, the second of small blocks that only make
    the index large.
    """

    def __init__(self, folder: Path, rows: Rows, sizes: Sizes) -> None:
        groups = (Group.full("kv", rows.shape[1]), Group.full("small", SMALL_BYTES))
        smalls = np.frombuffer(mmap.mmap(-1, sizes["small_batch"] * 4096), np.uint8)
        self._upper = AdoptedTier([[rows], [smalls.reshape(-1, 4096)[:, :SMALL_BYTES]]], "memory")
        self._upper.attach(groups, PAGE_BYTES, None)
        self._tier = DiskTier(
            folder, limit_bytes=sizes["limit_bytes"], segment_bytes=sizes["segment_bytes"]
        )
        self._tier.attach(groups, PAGE_BYTES, self._upper)
        self._count = len(rows)
        self._batch: int = sizes["batch_bytes"] // rows.shape[1]
        self._in_flight = sizes["in_flight"]
        self._rng = np.random.default_rng(3)
        self._runs: list[Slots] = []  # oldest first
        self._job = self._under_way = self.stored = 0

    def _store(self, group: int, first: int, count: int) -> Slots:
        rows = np.arange(first, first + count, dtype=np.int32)
        slots = self._tier.reserve(group, count)
        self._job += 1
        keys = np.zeros((count, 16), np.uint8)
        keys[:, :8] = np.full((count, 1), self._job, np.uint64).view(np.uint8)
        keys[:, 8:12] = rows[:, None].view(np.uint8)
        records = Records(
            namespace=b"bench",
            keys=keys,
            parents=np.zeros((count, 16), np.uint8),
            pages=np.zeros((count, PAGE_BYTES), np.uint8),
            positions=rows.astype(np.int64),
        )
        transfer = Transfer(self._job, group, rows, slots, Urgency.STORE, records)
        self._tier.store(transfer, self._upper)
        self._under_way += 1
        self._settle(self._in_flight - 1)
        return slots

    def _settle(self, most: int) -> None:
        """Until no more than ``most`` stores are under way."""
        while self._under_way > most:
            self._tier.wait(10.0)
            for done in self._tier.poll():
                if not done.good.all():
                    raise RuntimeError(f"a store failed: {done.error}")
                self._under_way -= 1
                self.stored += len(done.good)

    def fill(self, small_blocks: int, small_batch: int) -> int:
        """Stores until the tier is as full as it is to be, between as many small blocks; blocks
        of both.
        """
        room = self._tier.capacity_blocks(BIG, [0, small_blocks])
        batches = room * FULL_PERCENT // 100 // self._batch
        smalls = 0
        for number in range(batches):
            slots = self._store(BIG, number * self._batch % self._count, self._batch)
            wanted = small_blocks * (number + 1) // batches - smalls
            kept = []
            while wanted:
                kept.append(self._store(SMALL, 0, min(wanted, small_batch)))
                wanted -= len(kept[-1])
                smalls += len(kept[-1])
            self._settle(0)
            self._keep(slots)
            for each in kept:
                self._tier.commit(SMALL, each)
        return batches * self._batch + smalls

    def _keep(self, slots: Slots) -> None:
        self._tier.commit(BIG, slots)
        self._runs += [slots[at : at + RUN_BLOCKS] for at in range(0, len(slots), RUN_BLOCKS)]

    def rest(self, seconds: float) -> None:
        """Waits until nothing was zeroed ahead for ``seconds``."""
        before = -1
        while seconds and (now := self._tier.usage().used_bytes) != before:
            before = now
            self._tier.poll()
            time.sleep(seconds)

    def write(self) -> float:
        """Stores every row in place of older blocks, if there are any; MB/s."""
        kept: list[Slots] = []
        start = time.perf_counter()
        for first in range(0, self._count, self._batch):
            if self._runs:
                self._evict(self._batch)
            kept.append(self._store(BIG, first, self._batch))
        self._settle(0)
        seconds = time.perf_counter() - start
        for slots in kept:
            self._keep(slots)
        return self._count * self.block_bytes / 1e6 / seconds

    @property
    def block_bytes(self) -> int:
        """Bytes of a block that is written."""
        return int(self._upper.planes(BIG)["bytes"][0])

    def _evict(self, blocks: int) -> None:
        """Frees runs of the older half."""
        while blocks > 0:
            run = self._runs.pop(int(self._rng.integers(1 + len(self._runs) // 2)))
            self._tier.free(BIG, run)
            blocks -= len(run)

    def close(self) -> None:
        """Closes the tier."""
        self._tier.close()
        self._upper.close()


def run_churn(sizes: Sizes, place: Place) -> Outcome:
    """MB/s of durable writes into an empty tier and into one that is nearly full."""
    rounds = Rounds()
    count = sizes["round_bytes"] // (sizes["block_kib"] << 10)
    stored = 0
    with ExitStack() as stack:
        rows = stack.enter_context(aligned_rows(count, sizes["block_kib"] << 10, seed=2))
        stack.enter_context(no_collection())
        full = stack.enter_context(closing(ChurnedTier(place.data / "full", rows, sizes)))
        records = full.fill(sizes["small_blocks"], sizes["small_batch"])
        for number in range(sizes["rounds"] + 1):  # the first round of either is not kept
            with closing(ChurnedTier(place.data / "empty", rows, sizes)) as empty:
                empty.rest(sizes["rest_ms"] / 1e3)
                found = (empty.write(), full.write())
                stored += empty.stored
            shutil.rmtree(place.data / "empty")
            for name, rate in zip((EMPTY, FULL), found, strict=True):
                if number:
                    rounds.add(name, OURS, "MB/s", rate)
        stored += full.stored
    shutil.rmtree(place.data / "full")
    rows_found = rounds.rows()
    return Outcome(
        rows=rows_found,
        facts={"records": records, "stored_blocks": stored},
        ratios=[ratio(rows_found, FULL, EMPTY)],
        targets=[Target(f"{FULL} / {EMPTY}", "at least", 0.7)],
    )


BENCHMARKS = (
    Benchmark(
        "churn",
        f"Durable writes into a full tier, 8 MiB a batch, {QUEUED.partition(', ')[2]}",
        run_churn,
        smoke={
            "rounds": 1,
            "round_bytes": 2 << 20,
            "batch_bytes": 1 << 20,
            "block_kib": 64,
            "limit_bytes": 24 << 20,
            "segment_bytes": 1 << 20,
            "small_blocks": 600,
            "small_batch": 128,
            "in_flight": 4,
            "rest_ms": 0,
        },
        full={
            "rounds": 7,
            "round_bytes": 128 << 20,
            "batch_bytes": 8 << 20,
            "block_kib": 64,
            "limit_bytes": 2750 << 20,
            "segment_bytes": 64 << 20,
            "small_blocks": 200_000,
            "small_batch": 2048,
            "in_flight": 4,
            "rest_ms": 100,
        },
    ),
)
