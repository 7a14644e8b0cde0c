"""Slab files: where the segments of the disk tier lie. A file holds 64 segments of one path, so
that a terabyte needs a few hundred descriptors; segments go round the paths in turn. Bytes of a
segment that is given back are punched out or cut off, so that I25 (bytes <= limit) holds on the
medium, not only in the books. Keeps no other invariant: what a file holds is for the index to say.

    path 0   slab-0000 [seg 0][seg 2][seg 4] ...      path 1   slab-0000 [seg 1][seg 3] ...
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tiers.format import sync_directory
from tiers.slab import ALIGNMENT_BYTES

SEGMENTS_PER_FILE = 64
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
_NAME = re.compile(r"slab-\d{4,}")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def has_direct_io(directory: Path) -> bool:
    """Whether the file system takes O_DIRECT; asked with a file of its own, which is removed.

    Raises ``OSError`` where no file can be written at all.
    """
    probe = directory / "format.new"
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(probe, flags, 0o600)
        os.close(descriptor)
        descriptor = os.open(probe, flags | os.O_DIRECT, 0o600)
    except OSError:
        if probe.exists():
            probe.unlink()
            return False
        raise
    try:
        with mmap.mmap(-1, ALIGNMENT_BYTES) as page:
            return os.pwrite(descriptor, page, 0) == ALIGNMENT_BYTES
    except OSError:
        return False
    finally:
        os.close(descriptor)
        probe.unlink()


class SlabFiles:
    """Files of segments over one or more paths; ``failed`` holds the numbers of dead paths.

    Place: ``descriptors``. Grow and shrink: ``extend``, ``discard``,
    ``erase``, ``keep_only``. Ask:
    ``path_of``, ``bytes_on_disk``.
    """

    def __init__(
        self, paths: Sequence[Path], segment_bytes: int, *, direct: bool, writable: bool = True
    ) -> None:
        """Opens nothing yet. ``direct``: with O_DIRECT; ``writable``: else for reading alone, and
        a file that is not there is an error.
        """
        self.segment_bytes = segment_bytes
        self.direct = direct
        self._writable = writable
        self.failed: set[int] = set()
        self._paths = tuple(paths)
        self._open: dict[tuple[int, int], int] = {}

    def path_of(self, segment: int) -> int:
        """The number of the path that a segment lies on."""
        return segment % len(self._paths)

    def _where(self, segment: int) -> tuple[int, int, int]:
        """Path number, file number, byte offset in the file."""
        path, local = self.path_of(segment), segment // len(self._paths)
        file, index = divmod(local, SEGMENTS_PER_FILE)
        return path, file, index * self.segment_bytes

    def _file(self, path: int, file: int) -> Path:
        return self._paths[path] / f"slab-{file:04d}"

    def _descriptor(self, path: int, file: int) -> int:
        descriptor = self._open.get((path, file))
        if descriptor is None:
            name = self._file(path, file)
            fresh = self._writable and not name.exists()
            access = os.O_RDWR | os.O_CREAT if self._writable else os.O_RDONLY
            flags = access | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)
            descriptor = os.open(name, flags, 0o600)
            self._open[path, file] = descriptor
            if fresh:  # syncing a file does not make its name durable
                sync_directory(name.parent)
        return descriptor

    def descriptors(
        self, segments: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """File descriptor and file offset of each segment named; opens what is not open yet.

        Cost: the segments, Python only for distinct ones. Raises ``OSError``.
        """
        if len(segments) == 1:
            path, file, offset = self._where(int(segments[0]))
            descriptor = self._descriptor(path, file)
            return np.array([descriptor], np.int32), np.array([offset], np.uint64)
        distinct, inverse = np.unique(segments, return_inverse=True)
        fds = np.empty(len(distinct), np.int32)
        offsets = np.empty(len(distinct), np.uint64)
        for index, segment in enumerate(distinct.tolist()):
            path, file, offset = self._where(segment)
            fds[index] = self._descriptor(path, file)
            offsets[index] = offset
        return fds[inverse], offsets[inverse]

    def extend(self, segment: int) -> None:
        """Makes the file long enough for a segment, without taking space. Raises ``OSError``."""
        path, file, offset = self._where(segment)
        descriptor = self._descriptor(path, file)
        end = offset + self.segment_bytes
        if os.fstat(descriptor).st_size < end:
            os.ftruncate(descriptor, end)

    def discard(self, segment: int) -> None:
        """Gives the bytes of a segment back to the file system. Raises ``OSError``."""
        path, file, offset = self._where(segment)
        if path not in self.failed and self._file(path, file).exists():
            self._discard_range(self._descriptor(path, file), offset, self.segment_bytes)

    def erase(self, segment: int, offset: int, length: int) -> int:
        """Gives bytes inside a segment back to the file system: nobody can read them again. The
        file's descriptor, for a sync. Raises ``OSError``.
        """
        path, file, begin = self._where(segment)
        descriptor = self._descriptor(path, file)
        self._discard_range(descriptor, begin + offset, length)
        return descriptor

    def _discard_range(self, descriptor: int, offset: int, length: int) -> None:
        size = os.fstat(descriptor).st_size
        if offset >= size:
            return
        if offset + length >= size:
            os.ftruncate(descriptor, offset)
            return
        mode = _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE
        if _LIBC.fallocate(descriptor, mode, offset, length) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"punch hole: {os.strerror(number)}")

    def keep_only(self, segments: Iterable[int]) -> None:
        """Removes every file and frees every segment that is not named. Raises ``OSError``."""
        live: dict[tuple[int, int], set[int]] = {}
        for segment in segments:
            path, file, offset = self._where(segment)
            live.setdefault((path, file), set()).add(offset)
        for number, directory in enumerate(self._paths):
            if number in self.failed:
                continue
            for name in sorted(os.listdir(directory)):
                if not _NAME.fullmatch(name):
                    continue
                file = int(name.removeprefix("slab-"))
                offsets = live.get((number, file))
                if offsets is None:
                    self._forget(number, file)
                    (directory / name).unlink(missing_ok=True)
                else:
                    self._keep_offsets(self._descriptor(number, file), offsets)

    def _keep_offsets(self, descriptor: int, offsets: set[int]) -> None:
        for index in reversed(range(SEGMENTS_PER_FILE)):
            offset = index * self.segment_bytes
            if offset not in offsets:
                self._discard_range(descriptor, offset, self.segment_bytes)
        # What lies behind the last place is not ours to keep either: it is a damaged file.
        end = SEGMENTS_PER_FILE * self.segment_bytes
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)

    def bytes_on_disk(self) -> int:
        """Bytes that the file systems say our files take. Cost: the files."""
        total = 0
        for number, directory in enumerate(self._paths):
            if number in self.failed:
                continue
            with contextlib.suppress(OSError):
                for entry in os.scandir(directory):
                    if _NAME.fullmatch(entry.name):
                        total += entry.stat().st_blocks * 512
        return total

    def _forget(self, path: int, file: int) -> None:
        descriptor = self._open.pop((path, file), None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes every file. Idempotent; nothing may be reading or writing them."""
        for key in list(self._open):
            self._forget(*key)
