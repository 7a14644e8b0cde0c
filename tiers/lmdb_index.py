"""The index of the disk tier: one record a block in LMDB, the source of truth. Records are keyed by
a monotonic id, so that writing them is appending and reading them in order is a scan. Whatever
LMDB shows as a view is copied or used up within its transaction, and no transaction outlives a
call. Keeps I25's index half: what a commit names is durable when it returns, all of it or nothing.

    table              key                  value
    records-<print>    id, 8 bytes, BE      one packed record (tiers.format.record_dtype)
    payload-<print>    id, 8 bytes, BE      the block (payload="lmdb")
    namespaces         number, 4 bytes, BE  fingerprint, canonical bytes, whence the number
    state              name                 epoch, 8 bytes, LE; the description of the groups

Each layout fingerprint has tables of its own: those of another one are dropped whole at opening.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.tier import Slots
from tiers.copies import plane_array
from tiers.transfer import Planes
from tiers.views import Cut, checksums, copy_blocks, cut_planes, run_sums

PAGE_BYTES = 4096
MAX_TABLES = 128
DESCRIPTION = b"description"  # in the table of states
DAMAGED = "damaged"  # a file beside an index that LMDB found damaged: it starts cold next time
UNREADABLE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError)
SCAN_CHUNK = 200  # values alive at once: more of them cost the memory allocator time
LEAST_NUMBER = 1 << 16  # of a namespace; smaller ones are of before they followed from its bytes
_MOST_NUMBER = (1 << 31) - 1
_PLACES = 64  # from the first that a namespace may have
Records = npt.NDArray[np.void]
Ids = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Additions:
    """Records of one store that are to be committed, and their blocks where LMDB keeps those."""

    records: Records
    blocks: Sequence[Any]


class LmdbIndex:
    """Records on disk. One thread writes (``commit``); any thread may read.

    Open: the constructor, ``close``. Read: ``scan``, ``namespaces``, ``copy_out``. Write:
    ``commit``, ``renew``, ``compact``. Ask: ``file_bytes``, ``used_share``, ``epoch``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        map_bytes: int,
        fingerprint: bytes,
        dtype: np.dtype[np.void],
        keeps_blocks: bool,
        readers: int,
    ) -> None:
        """Opens or creates the index. Raises ``lmdb.Error``, ``OSError``."""
        self._directory = directory
        self._fingerprint = fingerprint
        self._dtype = dtype
        self._keeps_blocks = keeps_blocks
        self.unsound = 0
        # For tests: called before every step of a commit with the step's name; may raise.
        self.hook: Callable[[str], None] = _no_hook
        self._env: Any = lmdb.open(
            str(directory),
            map_size=map_bytes,
            max_dbs=MAX_TABLES,
            max_readers=readers,
            subdir=True,
            sync=True,
            metasync=True,
            writemap=False,
            map_async=False,
            meminit=False,
            mode=0o600,
        )
        try:
            # Readers of a process that was killed would keep old pages for ever.
            self._env.reader_check()
            self._open_tables()
        except BaseException:
            self._env.close()
            raise

    def _open_tables(self) -> None:
        mark = self._fingerprint.hex().encode()
        self.reclaimed = 0  # entries of foreign layouts that were dropped
        with self._env.begin(write=True) as txn:
            with txn.cursor() as cursor:
                names = [bytes(key) for key in cursor.iternext(keys=True, values=False)]
            kept = (b"records-" + mark, b"payload-" + mark, b"namespaces", b"state")
            for name in names:
                if name not in kept:
                    foreign = self._env.open_db(name, txn=txn, create=False)
                    if name.startswith(b"records-"):
                        self.reclaimed += txn.stat(foreign)["entries"]
                    txn.drop(foreign, delete=True)
            self._records, self._payload, self._namespaces, self._state = (
                self._env.open_db(name, txn=txn) for name in kept
            )
            epoch = txn.get(b"epoch", db=self._state)
            self.epoch = int.from_bytes(epoch, "little") if epoch else 0

    # ------------------------------------------------------------------ reading

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        """A read transaction whose values are views. A full table of readers is cleared of dead
        ones and tried once more.
        """
        try:
            txn = self._env.begin(buffers=True)
        except lmdb.ReadersFullError:
            self._env.reader_check()
            txn = self._env.begin(buffers=True)
        with txn:
            yield txn

    def scan(self) -> Records:
        """A copy of every sound record, oldest first. Cost: the table, once.

        Records whose guard is wrong are left out: their bytes are not what was written. They are
        counted in ``unsound``, and ``drop_unsound`` removes them.
        """
        width = self._dtype.itemsize
        count = at = 0
        with self._env.begin() as txn, txn.cursor(db=self._records) as cursor:
            out = np.empty(txn.stat(self._records)["entries"] * width, np.uint8)
            view = out.data
            values = cursor.iternext(keys=False, values=True)
            while chunk := list(itertools.islice(values, SCAN_CHUNK)):
                count += len(chunk)
                joined = b"".join(chunk)
                if len(joined) != width * len(chunk):
                    joined = b"".join(value for value in chunk if len(value) == width)
                view[at : at + len(joined)] = joined
                at += len(joined)
        records = out[:at].view(self._dtype)
        sound = guards(records) == records["guard"]
        if not sound.all():
            records = records[sound]
        self.unsound = count - len(records)
        return records

    def drop_unsound(self) -> None:
        """Removes the records that ``scan`` found damaged, durably. Cost: the table, if any."""
        if not self.unsound:
            return
        damaged = []
        with self._reading() as txn, txn.cursor(db=self._records) as cursor:
            for key, value in cursor:
                row = np.frombuffer(bytes(value).ljust(self._dtype.itemsize, b"\0"), self._dtype, 1)
                if len(value) != self._dtype.itemsize or guards(row)[0] != row["guard"][0]:
                    damaged.append(bytes(key))
            del key, value
        with self._env.begin(write=True) as txn:
            for name in damaged:
                txn.delete(name, db=self._records)
                txn.delete(name, db=self._payload)

    def namespaces(self) -> dict[int, bytes]:
        """Canonical bytes of each namespace number of this layout. An entry whose bytes are not
        those that its number follows from is left out: nobody gets the blocks of another.
        """
        size = len(self._fingerprint)
        with self._reading() as txn, txn.cursor(db=self._namespaces) as cursor:
            found = {
                int.from_bytes(key, "big"): bytes(value[size:])
                for key, value in cursor
                if bytes(value[:size]) == self._fingerprint
            }
        return {
            number: canonical
            for number, canonical in found.items()
            if number < LEAST_NUMBER or number in self._places(canonical)
        }

    def number_for(self, canonical: bytes, known: dict[bytes, int]) -> int:
        """The number of a namespace, entered in ``known`` where it has none yet. It follows from
        the bytes, so that records that name it never mean another namespace, whatever becomes of
        the table of them.
        """
        if canonical not in known:
            taken = set(known.values())
            places = itertools.chain(self._places(canonical), itertools.count(1))
            known[canonical] = next(number for number in places if number not in taken)
        return known[canonical]

    def _places(self, canonical: bytes) -> range:
        digest = hashlib.sha256(self._fingerprint + canonical).digest()
        most = _MOST_NUMBER - LEAST_NUMBER - _PLACES
        first = LEAST_NUMBER + int.from_bytes(digest[:8], "little") % most
        return range(first, first + _PLACES)

    def copy_out(
        self, ids: Ids, expected: npt.NDArray[np.uint64], cut: Cut, target: Planes, slots: Slots
    ) -> npt.NDArray[np.int32]:
        """Copies the runs of ``cut`` to memory, of each block only if all of them have their
        checksums; a status a block. ``expected``: (n, runs); ``target``: planes of these runs
        alone. Cost: the bytes, in the calling thread.
        """
        size = int(cut.below[-1] + cut.sizes[-1])
        statuses = np.full(len(ids), lib.RDX_ESHORT, np.int32)
        origin = np.zeros(1, np.int32)
        with self._reading() as txn:
            for index, key in enumerate(_keys(ids)):
                view = txn.get(key, db=self._payload)
                if view is None or len(view) < size:
                    continue
                with ffi.from_buffer(view) as pointer:
                    value = plane_array([(int(ffi.cast("uintptr_t", pointer)), 0, len(view))])
                    found = run_sums(value[0], cut.below, cut.sizes, origin)
                    if (found[0] != expected[index]).any():
                        statuses[index] = lib.RDX_ECORRUPT
                        continue
                    source = cut_planes(value, cut.below, cut.sizes)
                    place = slots[index : index + 1]
                    statuses[index] = copy_blocks(target, place, source, origin)
                del view
        return statuses

    # ------------------------------------------------------------------ writing

    def commit(
        self,
        additions: Sequence[Additions],
        removals: Ids,
        namespaces: dict[int, bytes],
    ) -> None:
        """One durable transaction: all removals, all additions, in this order, or nothing.

        Cost: the records, and a sync of the file. Raises ``lmdb.Error``, ``OSError``; an index that
        is damaged is marked, because every later commit would fail at the same place.
        """
        try:
            self._commit(additions, removals, namespaces)
        except UNREADABLE:
            with contextlib.suppress(OSError):
                (self._directory / DAMAGED).touch(0o600)
            raise

    def _commit(
        self, additions: Sequence[Additions], removals: Ids, namespaces: dict[int, bytes]
    ) -> None:
        self.hook("begin")
        txn = self._env.begin(write=True)
        try:
            for key in _keys(np.sort(removals)):
                self.hook("delete")
                txn.delete(key, db=self._records)
                if self._keeps_blocks:
                    txn.delete(key, db=self._payload)
            for number, canonical in namespaces.items():
                self.hook("namespace")
                txn.put(
                    number.to_bytes(4, "big"), self._fingerprint + canonical, db=self._namespaces
                )
            for item in additions:
                self._add(txn, item)
            self.hook("commit")
            txn.commit()
        except BaseException:
            txn.abort()
            raise

    def _add(self, txn: Any, item: Additions) -> None:
        keys = list(_keys(item.records["id"]))
        if self._keeps_blocks:
            self.hook("payload")
            self._append(txn, self._payload, list(zip(keys, item.blocks, strict=True)))
        self.hook("put")
        packed = memoryview(item.records.tobytes())
        width = self._dtype.itemsize
        rows = [packed[at : at + width] for at in range(0, len(packed), width)]
        self._append(txn, self._records, list(zip(keys, rows, strict=True)))

    def _append(self, txn: Any, table: Any, items: list[tuple[bytes, Any]]) -> None:
        with txn.cursor(db=table) as cursor:
            _, added = cursor.putmulti(items, dupdata=False, append=True)
        if added != len(items):
            raise lmdb.Error(f"{len(items) - added} of {len(items)} ids are not new")

    def describe(self, text: bytes) -> None:
        """Says in the directory what its blocks are, durably; the same text again writes nothing.
        Raises ``lmdb.Error``.
        """
        with self._reading() as txn:
            if bytes(txn.get(DESCRIPTION, b"", db=self._state)) == text:
                return
        with self._env.begin(write=True) as txn:
            txn.put(DESCRIPTION, text, db=self._state)

    def renew(self, epoch: int) -> None:
        """Begins an epoch, durably: what has a record of another one is not found at the next
        opening. Raises ``lmdb.Error``.
        """
        self.hook("epoch")
        with self._env.begin(write=True) as txn:
            txn.put(b"epoch", epoch.to_bytes(8, "little"), db=self._state)
        self.epoch = epoch

    def turn_over(self) -> None:
        """Two commits of next to nothing: pages that a commit frees can be written again only by
        the second one after it. Raises ``lmdb.Error``.
        """
        for turn in (b"a", b"b"):
            with self._env.begin(write=True) as txn:
                txn.put(b"turn", turn, db=self._state)

    def forget_namespaces(self, kept: set[int]) -> None:
        """Removes the namespaces that no record names. Raises ``lmdb.Error``."""
        with self._env.begin(write=True) as txn:
            with txn.cursor(db=self._namespaces) as cursor:
                numbers = [int.from_bytes(key, "big") for key in cursor.iternext(values=False)]
            for number in numbers:
                if number not in kept:
                    txn.delete(number.to_bytes(4, "big"), db=self._namespaces)

    def clear(self) -> None:
        """Drops every record and block. Raises ``lmdb.Error``. Cost: the pages of the tables."""
        with self._env.begin(write=True) as txn:
            for table in (self._records, self._payload, self._namespaces):
                txn.drop(table, delete=False)

    def compact_into(self, path: Path) -> None:
        """Writes a copy without free pages to the folder ``path``. Raises ``lmdb.Error``."""
        self._env.copy(str(path), compact=True)

    # ------------------------------------------------------------------ questions

    def last_id(self) -> int:
        """The greatest id ever committed that is still there; 0 in an empty table."""
        with self._reading() as txn, txn.cursor(db=self._records) as cursor:
            return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def entries(self) -> int:
        """Records in the table of this layout."""
        with self._reading() as txn:
            return int(txn.stat(self._records)["entries"])

    def file_bytes(self) -> int:
        """Bytes of the map that are in use on the disk, free pages included."""
        return int((self._env.info()["last_pgno"] + 1) * PAGE_BYTES)

    def close(self) -> None:
        """Closes the environment. Idempotent; no other thread may be in a call."""
        self._env.close()


def guards(records: Records) -> npt.NDArray[np.uint64]:
    """The xxh3-64 of each record without its guard. Cost: the bytes."""
    if not len(records):
        return np.zeros(0, np.uint64)
    width = records.dtype.itemsize
    records = np.ascontiguousarray(records)
    plane = plane_array([(records.ctypes.data, width, width - 8)])
    return checksums(plane, np.arange(len(records), dtype=np.int32))


def _keys(ids: Ids) -> Iterator[bytes]:
    packed = ids.astype(">u8").tobytes()
    return (packed[at : at + 8] for at in range(0, len(packed), 8))


def _no_hook(step: str) -> None:
    """Nothing fails."""
