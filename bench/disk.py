"""Durable writes: the disk tier's slabs beside LMDB values, the tier's own LMDB payload, fio, and
plain writes of the same bytes to the same file system.

Kept here: a batch counts once it is durable; all writers write as many bytes and take turns; LMDB
alone is let off syncing its meta page (metasync=False). Filling: each round begins with an empty
directory, and with what the tier zeroes ahead when it is idle. Refilling: over space that was
written before and was freed in one piece, which suits LMDB best. fio has the tier's threads, syncs
as often as a batch ends, and writes over a file that was laid out before.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
import numpy.typing as npt

from bench import fio
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
from radix._native import lib
from radix.groups import Group
from radix.tier import Records, Transfer, TransferDone, Urgency
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import AdoptedTier
from tiers.slab import SEGMENT_BYTES

PAGE_BYTES = 64
MIB = 1 << 20
LMDB = "lmdb"
BASELINE = "LMDB values"
SINGLY = "slabs, one batch at a time"
PAIRED = "slabs, two batches under way"
QUEUED = "slabs, four batches under way"  # as the cache runs it: it waits for no commit
PLAINLY = "plain direct writes"
FIO = "fio, two threads, a batch a call"
FIO_PIECES = "fio, two threads, a piece a call"  # of the same 512 KiB of memory each time
FILLING = (SINGLY, PAIRED, QUEUED, "LMDB payload", BASELINE, PLAINLY)
REFILLING = (PAIRED, QUEUED, BASELINE, PLAINLY)
IN_FLIGHT = {SINGLY: 1, PAIRED: 2, QUEUED: 4}
SUBJECTS = {BASELINE: LMDB, PLAINLY: LIMIT}
TARGETS = {BASELINE: 1.7, FIO: 0.8}
LEAST_TIER_BYTES = 8 * SEGMENT_BYTES
THREADS = 2  # the tier's default
PIECE_BYTES = int(lib.RDX_PIECE_BYTES)
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
        self,
        folder: Path | Sequence[Path],
        rows: Rows,
        batch: int,
        in_flight: int,
        payload: str = "slab",
    ) -> None:
        group = Group.full("kv", rows.shape[1])
        self._rows, self._batch, self._in_flight = rows, batch, in_flight
        self._upper = AdoptedTier([[rows]], "memory")
        self._upper.attach((group,), PAGE_BYTES, None)
        # So large that segments are as long as those of a tier of any size, and zeroed ahead.
        blocks = max(2 * len(rows), LEAST_TIER_BYTES // rows.shape[1])
        limit = limit_for([group], blocks, PAGE_BYTES, payload=payload)
        self._tier = DiskTier(folder, limit_bytes=limit, payload=payload)
        self._tier.attach((group,), PAGE_BYTES, self._upper)
        self._slots = np.empty(0, np.int32)
        self._job = 0
        self.stored = self.loaded = 0

    def rest(self, seconds: float) -> None:
        """Waits until nothing was zeroed ahead for ``seconds``."""
        before = -1
        while seconds and (now := self._tier.usage().used_bytes) != before:
            before = now
            self._tier.poll()
            time.sleep(seconds)

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

    def _settle(self, *, loads: bool = False) -> int:
        self._tier.wait(10.0)
        done = self._tier.poll()
        for each in done:
            _demand_good(each)
            self.stored += 0 if loads else len(each.good)
            self.loaded += len(each.good) if loads else 0
        return len(done)

    def read(self, order: npt.NDArray[np.int32]) -> None:
        """Loads these rows from where they were stored, in batches, as many under way."""
        waiting = 0
        for first in range(0, len(order), self._batch):
            rows = order[first : first + self._batch]
            self._job += 1
            slots = self._slots[rows]
            transfer = Transfer(self._job, 0, rows, slots, Urgency.DEMAND, None)
            self._tier.load(transfer, self._upper)
            waiting += 1
            while waiting >= self._in_flight:
                waiting -= self._settle(loads=True)
        while waiting:
            waiting -= self._settle(loads=True)

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
        raise RuntimeError(f"a transfer failed: {done.error}")


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


def _make(name: str, folder: Path, rows: Rows, batch: int) -> Writer:
    """The writer of a name, in a directory of its own."""
    match name:
        case "LMDB payload":
            return TierWriter(folder, rows, batch, 1, payload=LMDB)
        case "LMDB values":
            return ValueWriter(folder, rows, batch)
        case "plain direct writes":
            return PlainWriter(folder, rows, batch)
        case _:
            return TierWriter(folder, rows, batch, IN_FLIGHT[name])


def fio_writes(data: Path, nbytes: int, batch_bytes: int) -> dict[str, fio.Fio]:
    """fio as the tier writes, by row; none where there is none."""
    if not fio.is_there():
        return {}
    calls = {FIO: batch_bytes, FIO_PIECES: min(PIECE_BYTES, batch_bytes)}
    return {
        name: fio.Fio(
            data,
            "write",
            block_bytes=each,
            nbytes=nbytes,
            jobs=THREADS,
            sync_every=batch_bytes // each,
        )
        for name, each in calls.items()
    }


def run_writes(sizes: Sizes, place: Place) -> Outcome:
    """MB/s of each writer at each size of block, durable."""
    rounds = Rounds()
    stored = 0
    pairs: list[tuple[str, str]] = []
    peers = fio_writes(place.data, sizes["round_bytes"], sizes["batch_bytes"])
    bounds = (BASELINE, PLAINLY, *peers)
    for kib in (sizes["small_kib"], sizes["middle_kib"], sizes["large_kib"]):
        with aligned_rows(sizes["round_bytes"] // (kib << 10), kib << 10, seed=kib) as rows:
            batch = sizes["batch_bytes"] // rows.shape[1]
            stored += _fill(rounds, rows, batch, sizes, place.data, peers)
            stored += _refill(rounds, rows, batch, sizes, place.data, peers)
        for pattern_name in ("filling", "refilling"):
            head = f"{kib} KiB, {pattern_name}:"
            pairs.append((f"{head} {PAIRED}", f"{head} {BASELINE}"))
            # the most that any writer of these bytes gains on LMDB here
            pairs += [(f"{head} {bound}", f"{head} {BASELINE}") for bound in bounds[1:]]
            pairs += [(f"{head} {QUEUED}", f"{head} {bound}") for bound in bounds]
    for peer in peers.values():
        peer.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"stored_blocks": stored},
        ratios=[ratio(found, name, baseline) for name, baseline in pairs],
        targets=[
            Target(f"{name} / {baseline}", "at least", TARGETS[baseline.partition(": ")[2]])
            for name, baseline in pairs
            if name.endswith(f" filling: {QUEUED}") and baseline.partition(": ")[2] in TARGETS
        ],
        missing={} if peers else {FIO: fio.WITHOUT},
        versions={"fio": fio.version()} if peers else {},
        commands={name: " ".join(peer.command) for name, peer in peers.items()},
    )


def _timed(rounds: Rounds, name: str, writer: Writer, rows: Rows, *, keep: bool) -> None:
    start = time.perf_counter()
    writer.write()
    seconds = time.perf_counter() - start
    if keep:
        subject = SUBJECTS.get(name.partition(": ")[2], OURS)
        rounds.add(name, subject, "MB/s", rows.nbytes / 1e6 / seconds)


def _fill(
    rounds: Rounds, rows: Rows, batch: int, sizes: Sizes, data: Path, peers: dict[str, fio.Fio]
) -> int:
    """Each writer in turn, each time in a new directory; blocks that our tiers stored."""
    head, stored = f"{rows.shape[1] >> 10} KiB, filling:", 0
    with no_collection():
        for _ in range(sizes["rounds"]):
            for name in FILLING:
                folder = data / "filling"
                with closing(_make(name, folder, rows, batch)) as writer:
                    if isinstance(writer, TierWriter):
                        writer.rest(sizes["rest_ms"] / 1e3)
                    _timed(rounds, f"{head} {name}", writer, rows, keep=True)
                stored += writer.stored if isinstance(writer, TierWriter) else 0
                shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
            for name, peer in peers.items():
                rounds.add(f"{head} {name}", fio.SUBJECT, "MB/s", peer.run())
    return stored


def _refill(
    rounds: Rounds, rows: Rows, batch: int, sizes: Sizes, data: Path, peers: dict[str, fio.Fio]
) -> int:
    """Each writer in turn, over the space of its last time; blocks that our tiers stored."""
    head, stored = f"{rows.shape[1] >> 10} KiB, refilling:", 0
    folder = data / "refilling"
    folder.mkdir()
    with ExitStack() as stack, no_collection():
        writers = {
            name: stack.enter_context(closing(_make(name, folder / name, rows, batch)))
            for name in REFILLING
        }
        for number in range(sizes["rounds"] + 1):  # the first round gives out the space
            for name, writer in writers.items():
                _timed(rounds, f"{head} {name}", writer, rows, keep=number > 0)
                writer.clear()
            for name, peer in peers.items() if number else ():
                rounds.add(f"{head} {name}", fio.SUBJECT, "MB/s", peer.run())
    stored += sum(each.stored for each in writers.values() if isinstance(each, TierWriter))
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
            "rest_ms": 0,
            "small_kib": 64,
            "middle_kib": 256,
            "large_kib": 1024,
        },
        full={
            "rounds": 5,
            "round_bytes": 128 * MIB,
            "batch_bytes": 8 * MIB,
            "rest_ms": 100,
            "small_kib": 64,
            "middle_kib": 512,
            "large_kib": 4096,
        },
    ),
)
