"""Takes namespaces out of a directory of the disk tier that no owner has open, for good: their
records durably first, then the bytes of their blocks, which are given back to the file system.
Keeps I25's index half: a record goes before the slot that it names can mean anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from radix.errors import TierUnavailableError
from tiers.format import DirectoryLock
from tiers.inspection import NAME, DiskReader, check_index, in_order
from tiers.lmdb_index import MAX_TABLES
from tiers.slab import stride_bytes
from tiers.slab_files import SlabFiles

_CHUNK = 4096  # records a transaction
_LEAST_MAP_BYTES = 1 << 20
Reach = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Purged:
    """What went: ``namespaces`` whole, ``entries`` with ``payload_bytes`` of blocks."""

    namespaces: int
    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Records that are to go, a column each, and the numbers of their namespaces."""

    marks: bytes
    numbers: tuple[int, ...]
    ids: npt.NDArray[np.uint64]
    slots: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


def purge_disk(
    paths: Sequence[Path], chosen: Callable[[bytes], bool], reach: Reach = lambda done: None
) -> Purged:
    """Removes every entry of the namespaces whose canonical bytes are ``chosen``. Durable when it
    returns; what is interrupted has removed whole entries only, and can be run again.

    ``paths``: those of one tier, in any order. Raises ``TierUnavailableError`` for a directory that
    an owner holds, that is none or another tier's, or of which not all paths are given.
    Cost: the index once, and the entries that go.
    """
    ordered = in_order(paths)
    with ExitStack() as held:
        for path in ordered:
            held.callback(DirectoryLock(path, NAME).release)
        check_index(ordered[0])
        with DiskReader(ordered[0]) as reader:
            reader.check_paths(ordered, whole=True)
            found = _choose(reader, chosen)
            slab, segment_bytes = reader.geometry.payload == "slab", reader.geometry.segment_bytes
        if found.numbers:
            try:
                _remove(ordered[0], found, reach)
                if slab:
                    _erase(ordered, segment_bytes, found)
            except (lmdb.Error, OSError) as error:
                raise TierUnavailableError(NAME, f"{ordered[0]}: {error}") from error
    return Purged(len(found.numbers), len(found.ids), int(found.lengths.sum()))


def _choose(reader: DiskReader, chosen: Callable[[bytes], bool]) -> _Chosen:
    numbers = tuple(n for n, canonical in sorted(reader.namespaces().items()) if chosen(canonical))
    ids, slots, lengths = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows, _ in reader.records() if numbers else ():
        mine = rows[np.isin(rows["namespace"], numbers)]
        ids.append(mine["id"].astype(np.uint64))
        slots.append(mine["slot"].astype(np.int64))
        lengths.append(mine["length"].astype(np.int64))
    return _Chosen(
        marks=reader.mark,
        numbers=numbers,
        ids=np.concatenate(ids),
        slots=np.concatenate(slots),
        lengths=np.concatenate(lengths),
    )


def _remove(directory: Path, found: _Chosen, reach: Reach) -> None:
    """The records, some thousands in a durable transaction each, then their namespaces."""
    size = (directory / "data.mdb").stat().st_size
    environment: Any = lmdb.open(
        str(directory), map_size=max(_LEAST_MAP_BYTES, 2 * size), max_dbs=MAX_TABLES, create=False
    )
    try:
        tables = {
            name: environment.open_db(name, create=False)
            for name in (b"records-" + found.marks, b"payload-" + found.marks, b"namespaces")
        }
        records, payload, namespaces = tables.values()
        keys = found.ids.astype(">u8").tobytes()
        for at in range(0, len(found.ids), _CHUNK):
            with environment.begin(write=True) as txn:
                for each in range(at, min(at + _CHUNK, len(found.ids))):
                    key = keys[8 * each : 8 * each + 8]
                    txn.delete(key, db=records)
                    txn.delete(key, db=payload)
            reach(min(at + _CHUNK, len(found.ids)))
        with environment.begin(write=True) as txn:
            for number in found.numbers:
                txn.delete(number.to_bytes(4, "big"), db=namespaces)
    finally:
        environment.close()


def _erase(paths: Sequence[Path], segment_bytes: int, found: _Chosen) -> None:
    """Gives the bytes of the blocks back, and makes that durable."""
    files = SlabFiles(paths, segment_bytes, direct=False)
    touched: set[int] = set()
    try:
        for slot, length in zip(found.slots.tolist(), found.lengths.tolist(), strict=True):
            stride = stride_bytes(length)
            segment, index = divmod(slot, segment_bytes // stride)
            touched.add(files.erase(segment, index * stride, stride))
        for descriptor in touched:
            os.fsync(descriptor)
    finally:
        files.close()
