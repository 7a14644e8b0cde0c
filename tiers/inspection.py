"""A directory of the disk tier, read without opening the tier: by people, beside its owner or long
after it has gone. Nothing in it is ever changed but LMDB's own table of readers, without which an
owner that writes could take pages away under a reader. Keeps no invariant; it counts what breaks
them.

Records are read in short transactions, so that an owner at work can reuse what it frees. What is
removed meanwhile is not counted as damage: a slot is written anew only once its removal is durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import lmdb
import numpy as np

from radix.errors import TierUnavailableError
from tiers.description import Description, read_description
from tiers.format import Geometry, path_number, read_format, record_dtype
from tiers.index_pages import damage_of
from tiers.lmdb_index import DESCRIPTION, MAX_TABLES, PAGE_BYTES, Ids, Records, guards
from tiers.views import runs_of

_CHUNK = 4096  # records a transaction
_DEPTH = 4  # folders below which no further directory is looked for
_RECORDS = b"records-"
NAME = "disk"


@dataclass(frozen=True, slots=True)
class Owner:
    """What the ``lock`` file says of who holds a directory now."""

    text: str


def directories_in(folder: Path) -> list[Path]:
    """The first paths of disk tiers in ``folder`` or at most four folders below it, sorted: the
    service has one for each domain and kind of store, some engines have one for each rank.
    """
    if (folder / "format").is_file():
        return [folder]
    found: list[Path] = []
    level = [folder]
    for _ in range(_DEPTH):
        level = [entry for each in level for entry in _folders(each)]
        found += [each for each in level if (each / "format").is_file()]
        level = [each for each in level if not (each / "format").is_file()]
    return sorted(each for each in found if _path_number(each) == 0)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    return []


def _path_number(directory: Path) -> int:
    """Raises ``TierUnavailableError`` for what is no path of a tier."""
    read_format(directory, NAME)
    return path_number(directory)


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Paths of a tier, the first of them first. ``TierUnavailableError`` where the first is not
    among them, or one is none.
    """
    ordered = sorted(paths, key=_path_number)
    numbers = [_path_number(path) for path in ordered]
    if numbers != list(range(len(numbers))):
        what = f"paths {numbers} of a tier: give the first, then the others"
        raise TierUnavailableError(NAME, f"{ordered[0]}: {what}")
    return ordered


def owner_of(directory: Path) -> Owner | None:
    """Who holds the directory; None for nobody. The lock is tried shared and let go at once."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = f"{directory / 'lock'}: {error.strerror}"
        raise TierUnavailableError(NAME, what) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return None
    except BlockingIOError:
        text = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip()
        return Owner(text or "a process that gives no name")
    finally:
        os.close(descriptor)


def check_index(directory: Path) -> None:
    """``TierUnavailableError`` where the index, which nobody else has open, does not hold together:
    LMDB would not survive it. Cost: its pages.
    """
    try:
        why = damage_of(directory / "data.mdb")
    except OSError as error:
        why = str(error)
    if why:
        raise TierUnavailableError(NAME, f"{directory}: its index cannot be read: {why}")


class DiskReader:
    """The records of one directory, for reading. ``geometry``, ``owner``, ``description`` (None
    where its last owner was of a version that wrote none), ``epoch``, ``mark`` (the end of the
    names of its tables).

    Read: ``records``, ``still_there``, ``blocks``, ``namespaces``. Ask: ``entries``,
    ``foreign_entries``, ``index_bytes``, ``index_used_bytes``, ``check_paths``. End: ``close``.
    """

    def __init__(self, directory: Path) -> None:
        """Raises ``TierUnavailableError``: no such directory, a newer format, an index that cannot
        be read, or an owner at work whose table of readers this user may not write.
        """
        self.directory = directory
        geometry = read_format(directory, NAME) if directory.is_dir() else None
        if geometry is None:
            raise TierUnavailableError(NAME, f"{directory} is no directory of a disk tier")
        self.geometry: Geometry = geometry
        self.version = int(json.loads((directory / "format").read_text())["version"])
        self.owner = owner_of(directory)
        if self.owner is None:  # an owner looked when it opened it, and changes it all the while
            try:
                check_index(directory)
            except TierUnavailableError:
                self.owner = owner_of(directory)  # since then: what was read is of two moments
                if self.owner is None:
                    raise
        self._env: Any = self._open()
        try:
            self._look()
        except BaseException:
            self._env.close()
            raise

    def check_paths(self, paths: Sequence[Path], *, whole: bool) -> None:
        """``TierUnavailableError`` where one of ``paths``, in order, is another tier's, or, of the
        ``whole`` tier, one is missing.
        """
        for path in paths[1:]:
            found = read_format(path, NAME)
            if found is None or found.tier_id != self.geometry.tier_id:
                raise TierUnavailableError(NAME, f"{path} belongs to another tier than {paths[0]}")
        if whole and len(paths) < self.geometry.paths:
            what = f"its blocks lie on {self.geometry.paths} paths; give all of them"
            raise TierUnavailableError(NAME, f"{paths[0]}: {what}")

    def _open(self) -> Any:
        table = self.directory / "lock.mdb"
        registered = table.exists() and os.access(table, os.W_OK)
        if self.owner is not None and not registered:
            raise TierUnavailableError(
                NAME,
                f"{self.directory} is held by {self.owner.text}, and this user may not write "
                f"{table.name}, where readers beside an owner must stand: run it as the owner's "
                "user, or when the owner has ended",
            )
        try:
            return lmdb.open(
                str(self.directory),
                readonly=True,
                lock=registered,
                create=False,
                max_dbs=MAX_TABLES,
                readahead=False,
            )
        except (lmdb.Error, OSError) as error:
            raise TierUnavailableError(NAME, f"{self.directory}: {error}") from error

    def _look(self) -> None:
        with self._reading() as txn:
            names = [bytes(key) for key, _ in txn.cursor()]
        # Only a transaction of their own makes the handles last beyond it.
        tables = {name: self._env.open_db(name, create=False) for name in names}
        with self._reading() as txn:
            self.epoch, self.description = 0, None
            state = tables.get(b"state")
            if state is not None:
                self.epoch = int.from_bytes(bytes(txn.get(b"epoch", b"", db=state)), "little")
                text = bytes(txn.get(DESCRIPTION, b"", db=state))
                self.description = read_description(text)
            marks = sorted(name[len(_RECORDS) :] for name in tables if name.startswith(_RECORDS))
            told = self.description and self.description.fingerprint.hex().encode()
            if told and told not in marks:
                self.description = told = None
            mark = told or (marks[0] if marks else b"")
            self._records = tables.get(_RECORDS + mark)
            self._payload = tables.get(b"payload-" + mark)
            self._namespaces = tables.get(b"namespaces")
            self.mark = mark
            self._mark = bytes.fromhex(mark.decode())
            width = 0
            if self._records is not None:
                with txn.cursor(db=self._records) as cursor:
                    width = len(cursor.value()) if cursor.first() else 0
            stats = {name: txn.stat(table) for name, table in tables.items()}
        self.dtype = _dtype(self.description, width)
        self.foreign_entries = sum(
            stats[_RECORDS + each]["entries"] for each in marks if each != mark
        )
        used = sum(
            each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"]
            for each in stats.values()
        )
        self.index_used_bytes = (used + 2) * PAGE_BYTES
        self.index_bytes = int((self._env.info()["last_pgno"] + 1) * PAGE_BYTES)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        try:
            with self._env.begin(buffers=True) as txn:
                yield txn
        except lmdb.Error as error:
            raise TierUnavailableError(NAME, f"{self.directory}: {error}") from error

    def entries(self) -> int:
        """Records in the table now."""
        if self._records is None:
            return 0
        with self._reading() as txn:
            return int(txn.stat(self._records)["entries"])

    def id_range(self) -> tuple[int, int]:
        """The least and the greatest id in the table; 0 and 0 where it is empty."""
        if self._records is None:
            return 0, 0
        with self._reading() as txn, txn.cursor(db=self._records) as cursor:
            if not cursor.first():
                return 0, 0
            first = int.from_bytes(bytes(cursor.key()), "big")
            cursor.last()
            return first, int.from_bytes(bytes(cursor.key()), "big")

    def records(self) -> Iterator[tuple[Records, int]]:
        """Sound records in order of their ids, some thousands at once, and how many beside them
        were damaged. Cost: the table; a short transaction for each.
        """
        if self._records is None or self.dtype is None:
            return
        width, start = self.dtype.itemsize, b""
        while True:
            with self._reading() as txn, txn.cursor(db=self._records) as cursor:
                rows: list[bytes] = []
                there = cursor.set_range(start) if start else cursor.first()
                last = b""
                while there and len(rows) < _CHUNK:
                    last = bytes(cursor.key())
                    rows.append(bytes(cursor.value()))
                    there = cursor.next()
            if not rows:
                return
            whole = b"".join(row for row in rows if len(row) == width)
            found = np.frombuffer(whole, self.dtype)
            found = found[guards(found) == found["guard"]]
            yield found, len(rows) - len(found)
            if not there:
                return
            start = (int.from_bytes(last, "big") + 1).to_bytes(8, "big")

    def still_there(self, ids: Ids) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which records are there now. Cost: the ids."""
        keys = ids.astype(">u8").tobytes()
        with self._reading() as txn:
            return np.array(
                [
                    txn.get(keys[at : at + 8], db=self._records) is not None
                    for at in range(0, len(keys), 8)
                ],
                np.bool_,
            )

    def blocks(self, ids: Ids) -> list[bytes | None]:
        """Copies of blocks that LMDB keeps; None where one is not there. Cost: their bytes."""
        keys = ids.astype(">u8").tobytes()
        with self._reading() as txn:
            found = [txn.get(keys[at : at + 8], db=self._payload) for at in range(0, len(keys), 8)]
            return [None if value is None else bytes(value) for value in found]

    def namespaces(self) -> dict[int, bytes]:
        """Canonical bytes of each namespace number."""
        if self._namespaces is None:
            return {}
        size = len(self._mark)
        with self._reading() as txn, txn.cursor(db=self._namespaces) as cursor:
            return {
                int.from_bytes(key, "big"): bytes(value[size:])
                for key, value in cursor
                if bytes(value[:size]) == self._mark
            }

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _dtype(description: Description | None, width: int) -> np.dtype[np.void] | None:
    """How a record of ``width`` bytes is read; None where there is none. Without a description all
    stands where it always does but the checksums, of which one is taken.
    """
    if description is not None:
        runs = max(runs_of(group.layout) for group in description.groups)
        return record_dtype(description.page_bytes, runs)
    least = record_dtype(0, 1).itemsize
    return record_dtype(width - least, 1) if width >= least else None
