"""What lies in a directory of the disk tier: entries, sizes and ages by namespace and group, room,
and, if asked for, whether every block still has its checksums. All in bounded memory: records are
counted as they pass, blocks are read a few megabytes at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.errors import TierUnavailableError
from radix.groups import Group
from radix.keys import Namespace
from tiers.copies import plane_array
from tiers.disk_survivors import sound
from tiers.inspection import NAME, DiskReader, in_order
from tiers.lmdb_index import Records
from tiers.slab import stride_bytes
from tiers.slab_files import SlabFiles
from tiers.views import run_sums

AGES = 10
MOST_FAULTS = 20
_BUFFER_BYTES = 16 << 20
Reach = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class GroupEntries:
    """Entries of one group in one namespace, and the bytes of their blocks."""

    group: str
    entries: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class NamespaceEntries:
    """A namespace: who may use it, its entries, and the ids of its oldest and newest (ids grow with
    every block stored). ``tenant``: the salt, as text where it is some, else hexadecimal.
    """

    number: int
    model: str
    revision: str
    adapter: str
    tenant: str
    groups: tuple[GroupEntries, ...]
    oldest_id: int
    newest_id: int

    @property
    def entries(self) -> int:
        """Entries of all groups."""
        return sum(group.entries for group in self.groups)


@dataclass(frozen=True, slots=True)
class Fault:
    """A block that does not verify. ``what``: "corrupt" or "short"."""

    record: int
    namespace: int
    group: str
    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What reading every block came to. ``gone``: removed by an owner at work meanwhile;
    ``faults``: the first 20 of ``corrupt`` and ``short``.
    """

    blocks: int
    nbytes: int
    good: int
    corrupt: int
    short: int
    gone: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class DiskReport:
    """A directory. ``entries`` are those that its owner would find again; beside them ``stale`` of
    older epochs, ``unusable`` (group, namespace or length that mean nothing), ``damaged`` records
    and ``foreign`` ones of another layout, which the next owner removes.

    ``ages``: entries by tenths of the ids in use, the oldest first. ``limit_bytes``: of the last
    owner, None where it did not say. ``slab_bytes``: that the file systems count;
    ``index_bytes``: of the index, ``index_used_bytes`` without its free pages. ``free_bytes``: of
    the file system of the first path.
    """

    directory: str
    format_version: int
    payload: str
    paths: tuple[str, ...]
    segment_bytes: int
    owner: str | None
    epoch: int
    page_bytes: int | None
    limit_bytes: int | None
    entries: int
    payload_bytes: int
    stale: int
    unusable: int
    damaged: int
    foreign: int
    oldest_id: int
    newest_id: int
    ages: tuple[int, ...]
    namespaces: tuple[NamespaceEntries, ...]
    index_bytes: int
    index_used_bytes: int
    slab_bytes: int
    free_bytes: int
    verified: Verified | None


def inspect_disk(
    paths: Sequence[Path], verify: bool = False, reach: Reach = lambda done: None
) -> DiskReport:
    """Read one directory, of several paths in any order. Changes nothing.

    ``verify``: read every block and compare its checksums; ``reach`` is told how many entries are
    done. Cost: the index; with ``verify`` every block, 16 MiB of memory.

    Raises ``TierUnavailableError``: what ``DiskReader`` raises, paths of different tiers or not all
    of them, or ``verify`` where the last owner did not say how its blocks are divided.
    """
    ordered = in_order(paths)
    with DiskReader(ordered[0]) as reader:
        reader.check_paths(ordered, whole=verify)
        if verify:
            _check_described(reader)
        counts = _Counts(reader)
        verifying = Verifying(reader, ordered) if verify else None
        done = 0
        try:
            for rows, damaged in reader.records():
                usable = counts.take(rows, damaged)
                if verifying is not None:
                    verifying.read(usable)
                done += len(rows) + damaged
                reach(done)
        finally:
            if verifying is not None:
                verifying.close()
        return counts.report(ordered, verifying.result() if verifying is not None else None)


def _check_described(reader: DiskReader) -> None:
    if reader.description is None and reader.entries():
        raise TierUnavailableError(
            NAME,
            f"{reader.directory} was written by a version that did not say how its blocks are "
            "divided; open it once with its own groups, then verify",
        )


class _Counts:
    """Counts records as they pass."""

    def __init__(self, reader: DiskReader) -> None:
        self._reader = reader
        self._names = reader.namespaces()
        groups = reader.description.groups if reader.description is not None else ()
        self._groups: tuple[Group, ...] = groups
        self._first, self._last = reader.id_range()
        self._ages = np.zeros(AGES, np.int64)
        self._entries: dict[tuple[int, int], list[int]] = {}
        self._ids: dict[int, list[int]] = {}
        self.stale = self.unusable = self.damaged = self.payload_bytes = self.entries = 0

    def take(self, rows: Records, damaged: int) -> Records:
        """Counts rows; those of them that an owner would find."""
        self.damaged += damaged
        current = rows["epoch"] == self._reader.epoch
        self.stale += int((~current).sum())
        rows = rows[current]
        if self._groups:
            known = sound(rows, self._groups, self._reader.epoch, self._names)
        else:
            known = np.isin(rows["namespace"], list(self._names)) & (rows["slot"] >= 0)
        self.unusable += int((~known).sum())
        rows = rows[known]
        self._count(rows)
        return rows

    def _count(self, rows: Records) -> None:
        if not len(rows):
            return
        ids, lengths = rows["id"].astype(np.int64), rows["length"].astype(np.int64)
        self.entries += len(rows)
        self.payload_bytes += int(lengths.sum())
        span = self._last - self._first + 1
        bins = np.clip((ids - self._first) * AGES // span, 0, AGES - 1)
        self._ages += np.bincount(bins, minlength=AGES)
        code = rows["namespace"].astype(np.int64) << 16 | rows["group"]
        for kind in np.unique(code).tolist():
            mine = code == kind
            place = (kind >> 16, kind & 0xFFFF)
            total = self._entries.setdefault(place, [0, 0])
            total[0] += int(mine.sum())
            total[1] += int(lengths[mine].sum())
            ends = self._ids.setdefault(place[0], [int(ids[mine].min()), 0])
            ends[0] = min(ends[0], int(ids[mine].min()))
            ends[1] = max(ends[1], int(ids[mine].max()))

    def report(self, paths: Sequence[Path], verified: Verified | None) -> DiskReport:
        reader = self._reader
        told = reader.description
        files = SlabFiles(paths, reader.geometry.segment_bytes, direct=False, writable=False)
        there = os.statvfs(paths[0])
        return DiskReport(
            directory=str(paths[0]),
            format_version=reader.version,
            payload=reader.geometry.payload,
            paths=tuple(map(str, paths)),
            segment_bytes=reader.geometry.segment_bytes,
            owner=None if reader.owner is None else reader.owner.text,
            epoch=reader.epoch,
            page_bytes=None if told is None else told.page_bytes,
            limit_bytes=None if told is None else told.limit_bytes,
            entries=self.entries,
            payload_bytes=self.payload_bytes,
            stale=self.stale,
            unusable=self.unusable,
            damaged=self.damaged,
            foreign=reader.foreign_entries,
            oldest_id=self._first,
            newest_id=self._last,
            ages=tuple(self._ages.tolist()),
            namespaces=tuple(self._namespaces()),
            index_bytes=reader.index_bytes,
            index_used_bytes=reader.index_used_bytes,
            slab_bytes=files.bytes_on_disk(),
            free_bytes=there.f_bavail * there.f_frsize,
            verified=verified,
        )

    def _namespaces(self) -> Iterator[NamespaceEntries]:
        for number in sorted(self._ids, key=lambda n: -self._ids[n][1]):
            name = namespace_of(self._names[number])
            counts = sorted((g, c) for (n, g), c in self._entries.items() if n == number)
            yield NamespaceEntries(
                number=number,
                model=name.model,
                revision=name.revision,
                adapter=name.adapter,
                tenant=tenant_text(name.salt),
                groups=tuple(
                    GroupEntries(group_name(self._groups, group), *count) for group, count in counts
                ),
                oldest_id=self._ids[number][0],
                newest_id=self._ids[number][1],
            )


def namespace_of(canonical: bytes) -> Namespace:
    """The namespace of canonical bytes; one without a name for bytes that encode none."""
    try:
        return Namespace.parse(canonical)
    except ValueError:
        return Namespace()


def tenant_text(salt: bytes) -> str:
    """A salt as people read it.

    >>> tenant_text(b"acme"), tenant_text(bytes([0, 255]))
    ('acme', '00ff')
    """
    text = salt.decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else salt.hex()


def group_name(groups: Sequence[Group], number: int) -> str:
    """The name of a group; of one that nobody described its number."""
    return groups[number].name if number < len(groups) else f"group {number}"


class Verifying:
    """Reads blocks into one buffer and compares their checksums."""

    def __init__(self, reader: DiskReader, paths: Sequence[Path]) -> None:
        self._reader = reader
        self._slab = reader.geometry.payload == "slab"
        self._groups = reader.description.groups if reader.description is not None else ()
        self._segment = reader.geometry.segment_bytes
        self._files = SlabFiles(paths, self._segment, direct=False, writable=False)
        widest = max((stride_bytes(g.block_bytes) for g in self._groups), default=0)
        self._buffer = np.empty(max(_BUFFER_BYTES, widest), np.uint8)
        self._counts = {"good": 0, "corrupt": 0, "short": 0, "gone": 0}
        self._blocks = self._nbytes = 0
        self._faults: list[Fault] = []

    def read(self, rows: Records) -> None:
        """Verifies rows. Cost: their blocks."""
        for number, group in enumerate(self._groups):
            mine = rows[rows["group"] == number]
            mine = mine[np.argsort(mine["slot"], kind="stable")]
            stride = stride_bytes(group.block_bytes)
            step = len(self._buffer) // stride
            for at in range(0, len(mine), step):
                self._verify(mine[at : at + step], group, stride)

    def _verify(self, rows: Records, group: Group, stride: int) -> None:
        filled = self._fill(rows, group.block_bytes, stride)
        plane = plane_array([(self._buffer.ctypes.data, stride, group.block_bytes)])
        runs = group.layout.runs.reshape(-1, 2)
        sums = run_sums(plane[0], runs[:, 0], runs[:, 1], np.arange(len(rows), dtype=np.int32))
        right = (sums == rows["checksums"][:, : len(runs)])[:, runs[:, 1] > 0].all(axis=1)
        self._blocks += len(rows)
        self._nbytes += len(rows) * group.block_bytes
        wrong = np.flatnonzero(~(filled & right))
        self._counts["good"] += len(rows) - len(wrong)
        if not len(wrong):
            return
        there = self._reader.still_there(rows["id"][wrong])
        for row, is_there in zip(wrong.tolist(), there.tolist(), strict=True):
            what = ("corrupt" if filled[row] else "short") if is_there else "gone"
            self._counts[what] += 1
            if is_there and len(self._faults) < MOST_FAULTS:
                entry = rows[row]
                self._faults.append(
                    Fault(
                        record=int(entry["id"]),
                        namespace=int(entry["namespace"]),
                        group=group.name,
                        position=int(entry["position"]),
                        what=what,
                    )
                )

    def _fill(self, rows: Records, nbytes: int, stride: int) -> npt.NDArray[np.bool_]:
        """Reads each block to its place in the buffer; which of them were read whole."""
        filled = np.zeros(len(rows), np.bool_)
        view = self._buffer.data
        if not self._slab:
            for row, block in enumerate(self._reader.blocks(rows["id"])):
                if block is not None and len(block) >= nbytes:
                    view[row * stride : row * stride + nbytes] = block[:nbytes]
                    filled[row] = True
            return filled
        slots = rows["slot"].astype(np.int64)
        segments, inside = np.divmod(slots, self._segment // stride)
        for row, (segment, index) in enumerate(zip(segments, inside.tolist(), strict=True)):
            target: Any = view[row * stride : row * stride + nbytes]
            try:
                fds, offsets = self._files.descriptors(np.array([segment]))
                read = os.preadv(int(fds[0]), [target], int(offsets[0]) + index * stride)
            except OSError:
                continue
            filled[row] = read == nbytes
        return filled

    def result(self) -> Verified:
        """What it came to so far."""
        return Verified(
            blocks=self._blocks, nbytes=self._nbytes, faults=tuple(self._faults), **self._counts
        )

    def close(self) -> None:
        """Closes the files."""
        self._files.close()
