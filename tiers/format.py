"""What a directory of the disk tier says about itself: the ``format`` file, the lock of its one
owner, the width of a record, and how a byte limit is divided between index and blocks. A newer
format is refused before anything is touched. Keeps the planning half of I25 (bytes <= limit).

    directory/            0700
      format              name, version, geometry, path, epoch (one line of JSON)
      lock                flock of the owner; says who holds it
      data.mdb lock.mdb   LMDB, the source of truth
      slab-0000 ...       segments of blocks (payload="slab"); the only file kind of further paths
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from radix.errors import TierUnavailableError
from radix.groups import Group
from tiers.slab import ALIGNMENT_BYTES, stride_bytes
from tiers.views import runs_of

FORMAT_NAME = "radix-disk"
FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)  # 1: as 2 where every block is one run, other layouts start cold
LMDB_FORMAT = "0.9"
PAYLOADS = ("slab", "lmdb")
OVERHEAD_BYTES = 64 << 10  # format, lock and LMDB's reader table
LEAST_MAP_BYTES = 256 << 10  # what LMDB needs to turn round in, whatever it holds
MAP_HEADROOM = 1.1
INLINE_BYTES = 2000  # a longer value gets pages of its own in LMDB
LMDB_PAGE_BYTES = 4096
LEAST_SEGMENTS = 8

HAS_PAGES = 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """What must not change while a directory keeps its blocks."""

    tier_id: str
    payload: str
    paths: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class SpacePlan:
    """How ``limit_bytes`` is divided: the map of LMDB, and segments of blocks."""

    map_bytes: int
    segment_bytes: int
    segments: int


def record_dtype(page_bytes: int, runs: int) -> np.dtype[np.void]:
    """One record, packed; ``guard`` is the xxh3-64 of all that stands before it.

    ``present``: a bit for each shard piece; ``checksums``: one for each (piece, layer), as many as
    the group with the most ``runs`` has, in the order of the block. The page bytes stand inside the
    record, so that opening needs one scan of one table.
    """
    return np.dtype(
        [
            ("id", "<u8"),
            ("position", "<i8"),
            ("epoch", "<u8"),
            ("slot", "<i4"),
            ("namespace", "<u4"),
            ("length", "<u4"),
            ("present", "<u4"),
            ("group", "<u2"),
            ("key_bytes", "u1"),
            ("flags", "u1"),
            ("key", "u1", (32,)),
            ("parent", "u1", (16,)),
            ("checksums", "<u8", (runs,)),
            ("page", "u1", (page_bytes,)),
            ("guard", "<u8"),
        ]
    )


def fingerprint(groups: Sequence[Group], page_bytes: int, geometry: Geometry) -> bytes:
    """16 bytes that differ wherever the same record would mean other bytes: layouts, groups and
    their order, page size, and where a slot number points. Blocks of one run each lie as they did
    in version 1, and are found again.
    """
    version = 1 if all(runs_of(group.layout) == 1 for group in groups) else 2
    text = [
        f"{FORMAT_NAME}-{version};{page_bytes}",
        f"{geometry.payload};{geometry.paths};{geometry.segment_bytes}",
    ]
    text += [f"{len(g.name)}:{g.name}={g.layout.fingerprint.hex()}" for g in groups]
    return hashlib.sha256("|".join(text).encode()).digest()[:16]


# ---------------------------------------------------------------------- space


def _record_cost(record_bytes: int) -> int:
    """Bytes of map that a record may take. LMDB joins a page with its neighbour only below a
    quarter, so pages that were full and from which three of four records went stay as they are.
    """
    if record_bytes > INLINE_BYTES:
        return stride_bytes(record_bytes + 16) + LMDB_PAGE_BYTES // _least_in_page(16)
    return LMDB_PAGE_BYTES // _least_in_page(record_bytes)


def _least_in_page(value_bytes: int) -> int:
    node_bytes = value_bytes + 18  # header, key of 8 bytes, place in the page's table
    return max(1, LMDB_PAGE_BYTES // 4 // node_bytes)


def stored_bytes(block_bytes: int, payload: str) -> int:
    """Bytes that a block takes where it is kept: LMDB puts a header before a long value."""
    return block_bytes if payload == "slab" else block_bytes + 16


def plan_space(
    limit_bytes: int,
    block_bytes: Sequence[int],
    record_bytes: int,
    payload: str,
    segment_bytes: int,
    *,
    fixed_segment: bool,
) -> SpacePlan:
    """Divides the limit so that map and segments together never exceed it, with 10 % headroom in
    the map. A segment is made smaller where the limit would hold too few (``fixed_segment``: it
    stays, because blocks lie in it). Raises ``ValueError`` for a limit too small.
    """
    strides = [stride_bytes(stored_bytes(size, payload)) for size in block_bytes]
    cost = _record_cost(record_bytes) / min(strides)
    usable = limit_bytes - OVERHEAD_BYTES
    if payload == "slab":
        budget = (usable - MAP_HEADROOM * LEAST_MAP_BYTES) / (1 + MAP_HEADROOM * cost)
    else:
        budget = (usable / MAP_HEADROOM - LEAST_MAP_BYTES) / (1 + cost)
    segment = segment_bytes
    if not fixed_segment:
        widest = max(strides)
        wanted = int(max(0.0, budget)) // max(LEAST_SEGMENTS, 2 * len(strides))
        if wanted < segment:
            segment = max(widest, wanted // widest * widest)
        segment = max(segment, widest) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    segments = int(budget // segment) if budget > 0 else 0
    if segments < len(strides) or segment < max(strides):
        raise ValueError(
            f"limit_bytes {limit_bytes} is too small: {len(strides)} groups need at least a "
            f"segment of {segment} bytes each beside the index"
        )
    entries = segments * (segment // min(strides))
    room = LEAST_MAP_BYTES + entries * _record_cost(record_bytes)
    if payload == "lmdb":
        room += segments * segment
    map_bytes = stride_bytes(int(room * MAP_HEADROOM))
    return SpacePlan(min(map_bytes, usable // 4096 * 4096), segment, segments)


# ---------------------------------------------------------------------- format file


def read_format(directory: Path, tier: str) -> Geometry | None:
    """The geometry that stands in ``format``; None for a directory that is new or empty.

    Raises ``TierUnavailableError`` for a newer version, another kind of directory, or one that
    cannot be read; nothing is touched.
    """
    path = directory / "format"
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        strangers = _strangers(directory)
        if strangers:
            raise TierUnavailableError(
                tier, f"{directory} holds {strangers[0]!r} but no format file: not a disk tier"
            ) from None
        return None
    except OSError as error:
        raise TierUnavailableError(tier, f"{path}: {error.strerror}") from error
    try:
        fields = json.loads(text)
        name, version = fields["format"], fields["version"]
    except (ValueError, KeyError, TypeError):
        raise TierUnavailableError(tier, f"{path} is not a format file of a disk tier") from None
    if name != FORMAT_NAME:
        raise TierUnavailableError(tier, f"{path} says {name!r}, expected {FORMAT_NAME!r}")
    if version not in READABLE_VERSIONS:
        raise TierUnavailableError(
            tier,
            f"{directory} has format {FORMAT_NAME} version {version}, this library reads "
            f"versions {READABLE_VERSIONS[0]} to {FORMAT_VERSION}; it was left untouched",
        )
    try:
        return Geometry(
            str(fields["tier_id"]),
            str(fields["payload"]),
            int(fields["paths"]),
            int(fields["segment_bytes"]),
        )
    except (ValueError, KeyError, TypeError):
        raise TierUnavailableError(tier, f"{path} lacks a field") from None


def path_number(directory: Path) -> int:
    """Which of its tier's paths a directory is, of what its ``format`` file, which was read, says;
    0 is the first.
    """
    return _said(directory, "path")


def epoch_said(directory: Path) -> int:
    """The newest epoch that a directory's ``format`` file, which was read, knows of; 0 where it
    says none: the first.
    """
    return _said(directory, "epoch")


def _said(directory: Path, field: str) -> int:
    fields = json.loads((directory / "format").read_text(encoding="ascii", errors="replace"))
    number = fields.get(field, 0)
    return number if isinstance(number, int) and 0 <= number < 1 << 63 else 0


def _strangers(directory: Path) -> list[str]:
    """What a directory holds that a tier whose creation was cut short would not have left."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [name for name in names if name not in ("lock", "format.new", "lost+found")]


def write_format(directory: Path, geometry: Geometry, path: int, epoch: int) -> None:
    """Replaces the format file of path number ``path`` in one step, durably; an equal one stays.
    ``epoch``: in force, so that an index of before a reset is known for one.
    """
    fields = {"format": FORMAT_NAME, "version": FORMAT_VERSION, "lmdb": LMDB_FORMAT, "path": path}
    fields |= asdict(geometry) | ({"epoch": epoch} if epoch else {})
    text = (json.dumps(fields) + "\n").encode("ascii")
    with contextlib.suppress(FileNotFoundError):
        if (directory / "format").read_bytes() == text:
            return
    temporary = directory / "format.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, directory / "format")
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Makes names that were added to or removed from a directory durable."""
    _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Makes the bytes of a file durable, not its name."""
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- one owner


def host_id() -> str:
    """Names this machine and this boot, to tell whose lock it is."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = "unknown"
    return f"{platform.node()}/{boot[:8]}"


class DirectoryLock:
    """The lock of a directory's one owner: an flock, which the kernel drops when it dies.

    It is given back by name: a child that was just forked has not closed its copy of the
    descriptor yet, and would hold it in its parent's place. Processes of two containers that
    share a directory are told apart by the host id in the message; over a network file system the
    lock is only as good as its flock.
    """

    _open: ClassVar[weakref.WeakSet[DirectoryLock]] = weakref.WeakSet()

    def __init__(self, directory: Path, tier: str) -> None:
        """Takes the lock. Raises ``TierUnavailableError`` naming who holds it."""
        path = directory / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TierUnavailableError(tier, f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"pid {os.getpid()} on {host_id()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise TierUnavailableError(
                tier, f"{directory} is held by {holder or 'a process that gives no name'}"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise TierUnavailableError(tier, f"{path}: {error.strerror}") from error
        DirectoryLock._open.add(self)

    def release(self) -> None:
        """Gives the lock back. Idempotent."""
        if self._descriptor >= 0:
            DirectoryLock._open.discard(self)
            with contextlib.suppress(OSError):  # a copy that a fork made holds nothing then
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def drop_in_child() -> None:
        """Closes the copies that a fork made."""
        for lock in list(DirectoryLock._open):
            with contextlib.suppress(OSError):
                os.close(lock._descriptor)
            lock._descriptor = -1


os.register_at_fork(after_in_child=DirectoryLock.drop_in_child)
