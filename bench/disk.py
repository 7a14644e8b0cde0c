"""Durable writes: the disk tier's slabs beside LMDB values, the tier's own LMDB payload and plain
writes of the same bytes to the same file system.

Kept here: a batch counts once it is durable; all writers go over space that was written before,
from the same memory, and take turns; LMDB alone is let off syncing its meta page (metasync=False).
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
import numpy.typing as npt

from bench.measure import (
    LIMIT,
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

PAGE_BYTES = 64
MIB = 1 << 20
LMDB = "lmdb"
BASELINE = "LMDB values"
QUEUED = "slabs, two batches under way"  # as the cache runs it: the next batch waits for no commit
COMPARED = ("slabs, one batch at a time", QUEUED)
Rows = npt.NDArray[np.uint8]


class Writer(Protocol):
    """Writes all rows durably, batch by batch, over the space of the last time."""

    def write(self) -> None:
        """One round."""
        ...

    def clear(self) -> None:
        """Between two rounds, not timed."""
        ...

    def close(self) -> None:
        """Gives everything back."""
        ...


class TierWriter:
    """The disk tier, with ``in_flight`` batches under way at a time."""

    def __init__(
        self, folder: Path, rows: Rows, batch: int, in_flight: int, payload: str = "slab"
    ) -> None:
        group = Group.full("kv", rows.shape[1])
        self._rows, self._batch, self._in_flight = rows, batch, in_flight
        self._upper = AdoptedTier([[rows]], "memory")
        self._upper.attach((group,), PAGE_BYTES, None)
        limit = limit_for([group], len(rows) * 2, PAGE_BYTES, payload=payload)
        self._tier = DiskTier(folder, limit_bytes=limit, payload=payload)
        self._tier.attach((group,), PAGE_BYTES, self._upper)
        self._slots = np.empty(0, np.int32)
        self._job = 0
        self.stored = 0

    def write(self) -> None:
        """Stores every row; each batch is acknowledged once it is durable."""
        kept: list[npt.NDArray[np.int32]] = []
        waiting = 0
        for first in range(0, len(self._rows), self._batch):
            kept.append(self._store(first))
            waiting += 1
            while waiting >= self._in_flight:
                waiting -= self._settle()
        while waiting:
            waiting -= self._settle()
        self._slots = np.concatenate(kept)

    def _store(self, first: int) -> npt.NDArray[np.int32]:
        rows = np.arange(first, min(first + self._batch, len(self._rows)), dtype=np.int32)
        slots = self._tier.reserve(0, len(rows))
        self._job += 1
        records = _records(self._job, rows)
        transfer = Transfer(self._job, 0, rows, slots, Urgency.STORE, records)
        self._tier.store(transfer, self._upper)
        return slots

    def _settle(self) -> int:
        self._tier.wait(10.0)
        done = self._tier.poll()
        for each in done:
            _demand_good(each)
            self.stored += len(each.good)
        return len(done)

    def clear(self) -> None:
        """Frees what was stored; the removal is durable when this returns."""
        self._tier.commit(0, self._slots)
        self._tier.free(0, self._slots)
        self._tier.flush()

    def close(self) -> None:
        """Closes the tier."""
        self._tier.close()
        self._upper.close()


def _records(job: int, rows: npt.NDArray[np.int32]) -> Records:
    """Keys that no other batch has."""
    keys = np.zeros((len(rows), 16), np.uint8)
    keys[:, :8] = np.full((len(rows), 1), job, np.uint64).view(np.uint8)
    keys[:, 8:12] = rows[:, None].view(np.uint8)
    return Records(
        namespace=b"bench",
        keys=keys,
        parents=np.zeros((len(rows), 16), np.uint8),
        pages=np.zeros((len(rows), PAGE_BYTES), np.uint8),
        positions=rows.astype(np.int64),
    )


def _demand_good(done: TransferDone) -> None:
    if done.error is not None or not done.good.all():
        raise RuntimeError(f"a store failed: {done.error}")


class ValueWriter:
    """Blocks as values of LMDB, one transaction a batch, its meta page not synced."""

    def __init__(self, folder: Path, rows: Rows, batch: int) -> None:
        folder.mkdir()
        self._rows, self._batch = rows, batch
        self._env: Any = lmdb.open(
            str(folder), map_size=rows.nbytes * 4 + 64 * MIB, metasync=False, meminit=False
        )

    def write(self) -> None:
        """Puts every row under an ascending key; equal ones are written over."""
        for first in range(0, len(self._rows), self._batch):
            with self._env.begin(write=True) as txn:
                for number in range(first, min(first + self._batch, len(self._rows))):
                    txn.put(number.to_bytes(8, "big"), self._rows[number].data)

    def clear(self) -> None:
        """Removes the values, so that their pages are used again."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(txn=txn), delete=False)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class PlainWriter:
    """Direct writes of whole batches to one file, synced after each: no records, no checksums."""

    def __init__(self, folder: Path, rows: Rows, batch: int) -> None:
        self._rows, self._batch = rows, batch
        flags = os.O_RDWR | os.O_CREAT
        try:
            self._file = os.open(folder, flags | os.O_DIRECT, 0o600)
        except OSError:  # the file system has no direct writes
            self._file = os.open(folder, flags, 0o600)

    def write(self) -> None:
        """Writes and syncs."""
        for first in range(0, len(self._rows), self._batch):
            part = self._rows[first : first + self._batch]
            os.pwrite(self._file, part.data, first * self._rows.shape[1])
            os.fdatasync(self._file)

    def clear(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


@contextmanager
def aligned_rows(count: int, block_bytes: int, seed: int) -> Iterator[Rows]:
    """(count, block_bytes) random bytes that begin on a memory page."""
    memory = mmap.mmap(-1, count * block_bytes)
    rows = np.frombuffer(memory, np.uint8).reshape(count, block_bytes)
    np.copyto(rows, np.random.default_rng(seed).integers(0, 256, rows.shape, dtype=np.uint8))
    yield rows


def _writers(folder: Path, rows: Rows, batch: int) -> dict[str, tuple[str, Writer]]:
    """Every writer by its name, with whose it is."""
    return {
        "slabs, one batch at a time": (OURS, TierWriter(folder / "one", rows, batch, 1)),
        QUEUED: (OURS, TierWriter(folder / "two", rows, batch, 2)),
        "LMDB payload": (OURS, TierWriter(folder / "payload", rows, batch, 1, payload=LMDB)),
        BASELINE: (LMDB, ValueWriter(folder / "values", rows, batch)),
        "plain direct writes": (LIMIT, PlainWriter(folder / "plain", rows, batch)),
    }


def run_writes(sizes: Sizes, place: Place) -> Outcome:
    """MB/s of each writer at each size of block, durable."""
    rounds = Rounds()
    stored = 0
    pairs: list[tuple[str, str]] = []
    for kib in (sizes["small_kib"], sizes["middle_kib"], sizes["large_kib"]):
        with aligned_rows(sizes["round_bytes"] // (kib << 10), kib << 10, seed=kib) as rows:
            stored += _measure(rounds, rows, kib, sizes, place.data / f"writes-{kib}")
        pairs += [(f"{kib} KiB: {name}", f"{kib} KiB: {BASELINE}") for name in COMPARED]
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"stored_blocks": stored},
        ratios=[ratio(found, name, baseline) for name, baseline in pairs],
        targets=[
            Target(f"{name} / {baseline}", "at least", 1.5)
            for name, baseline in pairs
            if name.endswith(QUEUED)
        ],
    )


def _measure(rounds: Rounds, rows: Rows, kib: int, sizes: Sizes, folder: Path) -> int:
    """All writers in turn, each round in another order; blocks that our tiers stored."""
    folder.mkdir()
    rng = np.random.default_rng(kib)
    writers = _writers(folder, rows, sizes["batch_bytes"] // rows.shape[1])
    names = list(writers)
    with no_collection():
        for number in range(sizes["rounds"] + 1):
            order = rng.permutation(len(names)) if number > 1 else range(len(names))
            for name in [names[at] for at in order]:
                subject, writer = writers[name]
                start = time.perf_counter()
                writer.write()
                seconds = time.perf_counter() - start
                writer.clear()
                if number:  # the first round gives out the space
                    rate = rows.nbytes / 1e6 / seconds
                    rounds.add(f"{kib} KiB: {name}", subject, "MB/s", rate)
    stored = 0
    for _, writer in writers.values():
        writer.close()
        stored += writer.stored if isinstance(writer, TierWriter) else 0
    shutil.rmtree(folder)
    return stored


BENCHMARKS = (
    Benchmark(
        "writes",
        "Durable writes, 8 MiB a batch",
        run_writes,
        smoke={
            "rounds": 1,
            "round_bytes": 4 * MIB,
            "batch_bytes": 2 * MIB,
            "small_kib": 64,
            "middle_kib": 256,
            "large_kib": 1024,
        },
        full={
            "rounds": 5,
            "round_bytes": 128 * MIB,
            "batch_bytes": 8 * MIB,
            "small_kib": 64,
            "middle_kib": 512,
            "large_kib": 4096,
        },
    ),
)
