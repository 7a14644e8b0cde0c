"""Chunks of bytes into memory and back, and onto a disk and back: the same for every store.

An adapter says how one program does it. Kept here: all chunks are different, lie in memory of the
caller's before, and lie there again after, where the caller asks for that; what came back is
compared with what went in after each pass, not timed; what one pass leaves behind is removed before
the next begins. Put: memory of the caller's or of the store's own, to where the store says that it
is kept; get: to memory that can be read.

    each        one chunk a call, its end awaited
    batches     so many bytes a call, its end awaited; on a disk puts do not await each other
    warm, cold  the operating system has the files in its memory, or has just dropped them
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.peers.child import Found, Sizes, Work, serve

Rows = npt.NDArray[np.uint8]
LOST_CHUNKS = 8
FLIPPED, HALVED = 2, 5  # of these chunks


class Bytes(Protocol):
    """How one store keeps chunks. The caller's memory has two rows for each: row i holds chunk i,
    and a get brings it to row count + i.
    """

    def versions(self) -> Mapping[str, str]:
        """Name and version of each package that takes part."""
        ...

    def open(self, folder: Path, rows: Rows) -> None:
        """Both stores, empty; ``folder`` is there and empty. ``rows``: (2 * count, chunk)."""
        ...

    def put_memory(self, chunks: Sequence[int]) -> None:
        """One call; they are kept when it returns."""
        ...

    def get_memory(self, chunks: Sequence[int]) -> int:
        """One call, into the caller's memory; how many were there."""
        ...

    def clear_memory(self) -> None:
        """Nothing is kept in memory."""
        ...

    def ready_disk(self) -> None:
        """Not timed: all chunks are where a put onto the disk takes them from."""
        ...

    def put_disk(self, batches: Sequence[Sequence[int]]) -> None:
        """One call a batch; all are kept when it returns."""
        ...

    def sync_disk(self) -> None:
        """Makes durable what is kept; nothing to do where it is."""
        ...

    def get_disk(self, chunks: Sequence[int]) -> int:
        """One call; how many were there. The caller's memory has them once ``settle`` returned."""
        ...

    def settle(self) -> None:
        """Not timed: what ``get_disk`` brought into memory of the store's own is copied on."""
        ...

    def clear_disk(self) -> None:
        """Nothing is kept on the disk."""
        ...

    def reopen(self) -> int:
        """Closes the store on disk and opens it again; how many chunks it has then."""
        ...

    def place_of(self, chunk: int) -> tuple[Path, int]:
        """The file and where in it a chunk begins."""
        ...

    def close(self) -> None:
        """Gives all back."""
        ...


class ByteWork:
    """A store at work. Sizes: ``chunk_bytes``, ``total_bytes``, ``batch_bytes``."""

    def __init__(self, make: Callable[[], Bytes], folder: Path) -> None:
        self._make, self._folder = make, folder
        self._versions = make().versions()
        self._store: Bytes | None = None
        self._lost: dict[str, int | str] = {}

    def versions(self) -> Mapping[str, str]:
        """Those of the store's packages."""
        return self._versions

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        """Fills the caller's memory, and finds out what is lost when files are not as they were."""
        if workload != "bytes":
            raise ValueError(f"workload must be bytes, not {workload!r}")
        self.close()
        chunk, self._seed = sizes["chunk_bytes"], seed
        count = sizes["total_bytes"] // chunk
        self._batch = max(1, sizes["batch_bytes"] // chunk)
        self._lost = self._losses(_memory(LOST_CHUNKS, chunk, seed))
        rows = _memory(count, chunk, seed)
        self._source, self._target = rows[:count], rows[count:]
        self._store = self._open(rows)

    def _open(self, rows: Rows) -> Bytes:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        store = self._make()
        store.open(self._folder, rows)
        return store

    def round(self) -> Found:
        """Every way once; us a chunk."""
        store = self._store
        assert store is not None
        count = len(self._source)
        each = [[chunk] for chunk in range(count)]
        batches = [
            list(range(first, min(first + self._batch, count)))
            for first in range(0, count, self._batch)
        ]
        us: dict[str, float] = {}
        good = 0
        for name, calls in (("each", each), ("batches", batches)):
            us[f"memory put, {name}"] = self._timed(partial(_every, store.put_memory, calls))
            us[f"memory get, {name}"], same = self._read(store.get_memory, calls)
            good += same
            store.clear_memory()
        store.ready_disk()
        start = time.perf_counter()
        us["disk put"] = self._timed(lambda: store.put_disk(batches))
        store.sync_disk()
        us["disk put, synced"] = (time.perf_counter() - start) * 1e6 / count
        for temperature in ("warm", "cold"):
            for name, calls in (("each", each), ("batches", batches)):
                if temperature == "cold":
                    _drop_cached(self._folder)
                us[f"disk get, {temperature}, {name}"], same = self._read(store.get_disk, calls)
                good += same
        store.clear_disk()
        return us, {"chunks": count, "good": good, **self._lost}

    def _timed(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6 / len(self._source)

    def _read(
        self, get: Callable[[Sequence[int]], int], calls: Sequence[Sequence[int]]
    ) -> tuple[float, int]:
        """us a chunk, and how many chunks came back as they were."""
        assert self._store is not None
        self._target[:, ::4096] = 0
        us = self._timed(lambda: _every(get, calls))
        self._store.settle()
        return us, int((self._source == self._target).all(axis=1).sum())

    def _losses(self, rows: Rows) -> dict[str, int | str]:
        """What becomes of a few chunks: after a reopening, with a bit flipped, with half a file."""
        chunks = list(range(LOST_CHUNKS))
        store = self._open(rows)
        try:
            store.ready_disk()
            store.put_disk([chunks])
            store.sync_disk()
            _flip(*store.place_of(FLIPPED))
            flipped = _fate(store, FLIPPED, rows)
            path, at = store.place_of(HALVED)
            os.truncate(path, at + rows.shape[1] // 2)
            halved = _fate(store, HALVED, rows)
        finally:
            store.close()
        store = self._open(rows)
        try:
            store.ready_disk()
            store.put_disk([chunks])
            found = store.reopen()
        finally:
            store.close()
        return {"hits_after_reopen": found, "flipped_bit": flipped, "half_file": halved}

    def close(self) -> None:
        """Closes the store and removes its files."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _flip(path: Path, at: int) -> None:
    """One bit of a chunk that begins at ``at``."""
    with path.open("r+b") as file:
        file.seek(at + 100)
        byte = file.read(1)[0]
        file.seek(at + 100)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def _fate(store: Bytes, chunk: int, rows: Rows) -> str:
    """What a get of one chunk gives."""
    there = rows[len(rows) // 2 + chunk]
    there[:] = 0
    if not store.get_disk([chunk]):
        return "a miss"
    store.settle()
    return "right data" if (rows[chunk] == there).all() else "wrong data"


def _every(call: Callable[[Sequence[int]], Any], calls: Sequence[Sequence[int]]) -> None:
    for chunks in calls:
        call(chunks)


def _memory(count: int, chunk: int, seed: int) -> Rows:
    """(2 * count, chunk) bytes that begin on a memory page, the first half of the rows random."""
    rows = np.frombuffer(mmap.mmap(-1, 2 * count * chunk), np.uint8).reshape(2 * count, chunk)
    rng = np.random.default_rng(seed)
    for row in rows[:count]:
        row[:] = np.frombuffer(rng.bytes(chunk), np.uint8)
    rows[count:] = 0
    return rows


def _drop_cached(folder: Path) -> None:
    """Asks the operating system to forget the files of a folder, once they are written."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def serve_bytes(make: Callable[[], Bytes]) -> int:
    """A child's whole life: its one argument is the folder, which is gone when this returns."""
    works: list[ByteWork] = []

    def start(arguments: Sequence[str]) -> Work:
        if len(arguments) != 1:
            raise ValueError(f"give a folder, not {list(arguments)}")
        works.append(ByteWork(make, Path(arguments[0])))
        return works[0]

    status = serve(start)
    for work in works:
        work.close()
    return status
