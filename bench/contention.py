"""Demand loads while the disk is busy with stores, beside the same loads on an idle disk.

Kept here: the same blocks are loaded in both halves of each round, by one tier with its default
threads; a load counts from the call to its acknowledgement, checksums included. Saturated: as many
batches of stores as are given are under way at every moment of a load, each begun again as soon as
one ends; what was stored is freed, so that the disk neither fills nor grows. In between stores end
and are counted, so that a saturation that is none shows.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.disk import MIB, PAGE_BYTES, Rows, aligned_rows
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
from radix.tier import Records, Transfer, TransferDone, Urgency
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import AdoptedTier

IDLE, BUSY = "idle disk", "saturated by stores"
STORED = "stores meanwhile"
LATE = "99th of 100"
Numbers = npt.NDArray[np.int32]


class Disk:
    """A disk tier under a row of memory: the first rows are loaded, the others stored again and
    again.
    """

    def __init__(self, folder: Path, rows: Rows, kept: int, batch: int) -> None:
        group = Group.full("kv", rows.shape[1])
        self._upper = AdoptedTier([[rows]], "memory")
        self._upper.attach((group,), PAGE_BYTES, None)
        limit = limit_for([group], len(rows) * 3, PAGE_BYTES)
        self._tier = DiskTier(folder, limit_bytes=limit)
        self._tier.attach((group,), PAGE_BYTES, self._upper)
        self._job, self._kept, self._batch = 0, kept, batch
        self._stores: dict[int, Numbers] = {}
        self._next = 0
        self._batches = (len(rows) - kept) // batch
        self.stored = 0
        self.slots: Numbers = np.empty(0, np.int32)

    def fill(self) -> None:
        """Stores what is loaded later."""
        for first in range(0, self._kept, self._batch):
            self._begin(np.arange(first, min(first + self._batch, self._kept), dtype=np.int32))
            self.slots = np.concatenate((self.slots, *self._stores.values()))
            done = self._until(self._job)
            if not done.good.all():
                raise RuntimeError(f"a store failed: {done.error}")
            self._tier.commit(0, self._stores.pop(done.job))

    def _begin(self, rows: Numbers) -> None:
        slots = self._tier.reserve(0, len(rows))
        self._job += 1
        keys = np.zeros((len(rows), 16), np.uint8)
        keys[:, :8] = np.full((len(rows), 1), self._job, np.uint64).view(np.uint8)
        keys[:, 8:12] = rows[:, None].view(np.uint8)
        records = Records(
            namespace=b"bench",
            keys=keys,
            parents=np.zeros((len(rows), 16), np.uint8),
            pages=np.zeros((len(rows), PAGE_BYTES), np.uint8),
            positions=rows.astype(np.int64),
        )
        self._tier.store(Transfer(self._job, 0, rows, slots, Urgency.STORE, records), self._upper)
        self._stores[self._job] = slots

    def saturate(self, batches: int) -> None:
        """So many batches of stores are under way."""
        while len(self._stores) < batches:
            first = self._kept + self._next * self._batch
            self._next = (self._next + 1) % self._batches
            self._begin(np.arange(first, first + self._batch, dtype=np.int32))

    def load_ms(self, pick: Numbers, batches: int) -> float:
        """Milliseconds of one demand load, stores being kept under way."""
        self.saturate(batches)
        start = time.perf_counter()
        self._job += 1
        self._tier.load(
            Transfer(self._job, 0, pick, self.slots[pick], Urgency.DEMAND, None), self._upper
        )
        done = self._until(self._job, batches)
        span = time.perf_counter() - start
        if not done.good.all():
            raise RuntimeError(f"a load failed: {done.error}")
        return span * 1e3

    def load_all(self, picks: Sequence[Numbers], in_flight: int) -> None:
        """Loads blocks, ``in_flight`` lots of them being under way at a time."""
        under_way = 0
        for pick in picks:
            self._job += 1
            self._tier.load(
                Transfer(self._job, 0, pick, self.slots[pick], Urgency.DEMAND, None), self._upper
            )
            under_way += 1
            while under_way == in_flight:
                under_way -= self._settle_loads()
        while under_way:
            under_way -= self._settle_loads()

    def _settle_loads(self) -> int:
        self._tier.wait(10.0)
        done = self._tier.poll()
        for each in done:
            if not each.good.all():
                raise RuntimeError(f"a load failed: {each.error}")
        return len(done)

    @property
    def loaded(self) -> int:
        """Blocks that were loaded and verified."""
        return self._tier.counts.loaded

    def _until(self, job: int, batches: int = 0) -> TransferDone:
        """Waits for one job; stores that end meanwhile are begun again."""
        while True:
            self._tier.wait(10.0)
            found = None
            for done in self._tier.poll():
                if done.job == job:
                    found = done
                else:
                    self._stored(done)
            if found is not None:
                return found
            self.saturate(batches)

    def _stored(self, done: TransferDone) -> None:
        if not done.good.all():
            raise RuntimeError(f"a store failed: {done.error}")
        slots = self._stores.pop(done.job)
        self.stored += len(slots)
        self._tier.commit(0, slots)
        self._tier.free(0, slots)

    def rest(self) -> None:
        """Ends every store."""
        while self._stores:
            self._tier.wait(10.0)
            for done in self._tier.poll():
                self._stored(done)
        self._tier.flush()

    def close(self) -> None:
        """Closes the tier."""
        self._tier.close()
        self._upper.close()


def run_contention(sizes: Sizes, place: Place) -> Outcome:
    """ms of a demand load on an idle disk and on one that stores as fast as it can."""
    rounds = Rounds()
    block, load = sizes["block_kib"] << 10, sizes["load_blocks"]
    batch = sizes["batch_bytes"] // block
    kept = sizes["kept_blocks"]
    rng = np.random.default_rng(sizes["block_kib"])
    loads = 0
    with ExitStack() as stack:
        rows = stack.enter_context(aligned_rows(kept + batch * sizes["batches"], block, seed=1))
        stack.enter_context(no_collection())
        disk = stack.enter_context(closing(Disk(place.data / "contention", rows, kept, batch)))
        disk.fill()
        for _ in range(sizes["rounds"]):
            for name, batches in ((IDLE, 0), (BUSY, sizes["batches"])):
                spans: list[float] = []
                before, start = disk.stored, time.perf_counter()
                for _ in range(sizes["loads"]):
                    pick = np.sort(rng.choice(kept, load, replace=False)).astype(np.int32)
                    spans.append(disk.load_ms(pick, batches))
                loads += len(spans)
                rounds.add_median(name, OURS, "ms", spans)
                late = float(np.quantile(spans, 0.99))
                rounds.add(f"{name}, {LATE}", OURS, "ms", late)
                disk.rest()
                if batches:
                    seconds = time.perf_counter() - start
                    moved = (disk.stored - before) * block / 1e6
                    rounds.add(STORED, OURS, "MB/s", moved / seconds)
    shutil.rmtree(place.data / "contention")
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"loads": loads},
        ratios=[ratio(found, BUSY, IDLE), ratio(found, f"{BUSY}, {LATE}", f"{IDLE}, {LATE}")],
        targets=[
            Target(f"{BUSY} / {IDLE}", "at most", 2.0),
            Target(f"{BUSY}, {LATE} / {IDLE}, {LATE}", "at most", 3.0),
        ],
    )


BENCHMARKS = (
    Benchmark(
        "contention",
        "Demand loads beside stores",
        run_contention,
        smoke={
            "rounds": 1,
            "loads": 3,
            "load_blocks": 2,
            "block_kib": 64,
            "kept_blocks": 8,
            "batch_bytes": 512 << 10,
            "batches": 2,
        },
        full={
            "rounds": 5,
            "loads": 300,
            "load_blocks": 8,
            "block_kib": 512,
            "kept_blocks": 256,
            "batch_bytes": 8 * MIB,
            "batches": 4,
        },
    ),
)
