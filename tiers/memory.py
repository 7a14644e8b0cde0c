"""Memory that a tier owns: one mapping of exactly the asked size, and how much this process may
take at all. Named memory can be mapped by several processes; only slot numbers need to cross
between them. Memory without a name can be sealed instead: whoever is given its descriptor reads it,
and can neither write, resize nor punch it. Keeps no invariant of its own; the caller keeps I25
(bytes <= limit).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from radix._native import ffi, lib
from radix.errors import TierUnavailableError
from tiers.placement import (
    Residence,
    ask_for_huge_pages,
    close_page,
    map_aligned,
    nodes_with_memory,
    prefer_node,
    residence_of,
)

SHARED_FOLDER = Path("/dev/shm")
# Of Linux; the module fcntl names them from Python 3.12 on only in part.
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 1, 2, 4, 16
_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_LIMIT = 1 << 60


def memory_limit_bytes(
    process: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> tuple[int, str]:
    """The most memory that this process may take, and what sets it.

    The smallest of the physical memory and the limits of the control groups above this process,
    version 2 or 1. Cost: a few small files.
    """
    best = (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the physical memory")
    for path in _cgroup_files(process, mount):
        try:
            text = path.read_text().strip()
        except OSError:
            continue  # not every group has the file, and not every process may read it
        if text.isdigit() and int(text) < min(best[0], _NO_LIMIT):
            best = (int(text), f"the control group's limit in {path}")
    return best


def _cgroup_files(process: Path, mount: Path) -> Iterator[Path]:
    """The limit files of the groups that this process is in, from its own up to the root."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        here = root / group.lstrip("/")
        # In a container the path may be the host's; the group then stands at the mount's root.
        folders = [here, *here.parents]
        yield from (folder / name for folder in folders if folder.is_relative_to(root))


def memory_file(name: str, nbytes: int) -> int:
    """A descriptor of ``nbytes`` of zeroed memory that has no name in any file system: its size is
    sealed, so that no holder of it can harm another by cutting it. The caller closes it.

    Raises ``OSError``. Cost: O(1), for pages come as they are touched.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class SharedMemory:
    """``nbytes`` of zeroed memory, mapped once, page aligned, not inherited by a fork.

    ``name`` None: this process has it for itself, and only such memory gets huge pages from
    every kernel. Otherwise a file of that name in /dev/shm: whoever comes first creates it, later
    ones attach, and the creator takes the name away at ``close``. ``sealed``: a file without a
    name, whose ``descriptor`` others may be given: this mapping alone can write it, for good.
    ``address``, ``nbytes``, ``created``, ``locked_bytes`` (0 where the limit on locked memory is
    too small: that is no error). Huge pages, and ``node``, are asked for: ``residence`` tells what
    came of it.
    """

    def __init__(
        self,
        tier: str,
        nbytes: int,
        name: str | None,
        threads: int,
        node: int | None = None,
        *,
        sealed: bool = False,
    ) -> None:
        """Raises: ``TierUnavailableError`` where the memory is not to be had, a file of the name
        has another size, or the machine has no such ``node``. Cost: every page is touched once, by
        ``threads`` threads.
        """
        require_node(tier, node)
        self._tier = tier
        self.nbytes = nbytes
        self.node = node
        self._path = None if name is None else SHARED_FOLDER / name
        self._sealed = sealed
        self._descriptor, self.created = self._open()
        self.locked_bytes = 0
        try:
            self._map, place = self._mapped()
        except (OSError, ValueError) as error:
            self._forget_file()
            raise TierUnavailableError(tier, f"cannot map {nbytes} bytes: {error}") from None
        self._map.madvise(mmap.MADV_DONTFORK)
        self._buffer = ffi.from_buffer(self._map)
        self.address = int(ffi.cast("uintptr_t", self._buffer)) + place
        if self._descriptor < 0:
            close_page(self.address + len(self._map) - mmap.PAGESIZE, mmap.PAGESIZE)
        ask_for_huge_pages(self._map, place + nbytes)
        if node is not None:
            prefer_node(self.address, nbytes, node)
        try:
            status = self._touched(threads)
        except OSError as error:
            self.close()
            raise TierUnavailableError(tier, f"no {nbytes} bytes of memory: {error}") from None
        if status != lib.RDX_OK:
            self.close()
            text = ffi.string(lib.rdx_status_text(status)).decode()
            raise TierUnavailableError(tier, f"cannot touch {nbytes} bytes: {text}")
        if _LIBC.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(nbytes)) == 0:
            self.locked_bytes = nbytes

    @property
    def descriptor(self) -> int:
        """Of the file behind it, -1 where there is none. It stays this object's."""
        return self._descriptor

    def residence(self) -> Residence:
        """Bytes on huge pages, and on the node that was asked for. Nothing after ``close``.

        Cost: the kernel walks the pages of the process.
        """
        return Residence(0, 0) if self._map.closed else residence_of(self.address, self.node)

    def close(self) -> None:
        """Unmaps it. Idempotent. Nobody may use an address in it any more."""
        if self._map.closed:
            return
        ffi.release(self._buffer)
        self._map.close()
        self._forget_file()

    # ------------------------------------------------------------------ inside
    def _mapped(self) -> tuple[mmap.mmap, int]:
        """The mapping, and where in it the memory begins. Without a file one page more, which
        nobody may touch, follows it: so it is a mapping of its own, and the kernel can say what
        became of it.
        """
        if self._sealed:
            found = map_aligned(self._descriptor, self.nbytes, writable=True)
            seals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL  # after the one mapping that may write it
            fcntl.fcntl(self._descriptor, F_ADD_SEALS, seals)
            return found
        if self._descriptor >= 0:
            return mmap.mmap(self._descriptor, self.nbytes), 0
        whole = -(-self.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(-1, whole + mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0

    def _touched(self, threads: int) -> int:
        """Every page is there, sealed ones on huge pages where they are to be had; a status. Of a
        file small pages are reserved first: touching what is not to be had would kill this process.
        """
        if self._sealed:
            lib.rdx_take_huge(self.address, self.nbytes, threads)
            os.posix_fallocate(self._descriptor, 0, self.nbytes)
        return int(lib.rdx_prefault(self.address, self.nbytes, threads))

    def _open(self) -> tuple[int, bool]:
        try:
            if self._sealed:
                return memory_file(self._tier, self.nbytes), True
            if self._path is None:
                return -1, True
            while True:
                opened = self._open_named(self._path)
                if opened is not None:
                    return opened
        except OSError as error:
            raise TierUnavailableError(
                self._tier, f"no {self.nbytes} bytes of shared memory: {error}"
            ) from None

    def _open_named(self, path: Path) -> tuple[int, bool] | None:
        """Creates or attaches; None: the file went away meanwhile, try again.

        Every holder keeps a shared lock; who gets the exclusive one is alone. A file that lies
        there with nobody holding it was left by a process that died.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            created = self._take(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if created is None:
            os.close(descriptor)
            return None
        return descriptor, created

    def _take(self, path: Path, descriptor: int) -> bool | None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            created = True
        except BlockingIOError:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits until the creator has sized it
            created = False
        status = os.fstat(descriptor)
        if not is_at(path, status):
            return None
        if not created and status.st_size == 0:
            return None  # its creator died before it sized it
        if not created and status.st_size == self.nbytes:
            return False
        if not created:
            raise TierUnavailableError(
                self._tier,
                f"{path} is in use with {status.st_size} bytes, asked for {self.nbytes}",
            )
        if status.st_size not in (0, self.nbytes):
            path.unlink()  # never cut: a mapping past the new end would kill its process
            return None
        try:
            self._require_room(path)
            # Reserves the pages: writing to a full /dev/shm would kill this process.
            os.posix_fallocate(descriptor, 0, self.nbytes)
        except (OSError, TierUnavailableError):
            path.unlink()
            raise
        # For a moment nobody holds it: whoever sweeps up what dead processes left may take it away.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return True if is_at(path, status) else None

    def _require_room(self, path: Path) -> None:
        """Looks before it takes: filling the file system would harm others, for nothing."""
        there = os.statvfs(path.parent)
        free = there.f_bavail * there.f_frsize + os.stat(path).st_blocks * 512
        if free < self.nbytes:
            raise TierUnavailableError(
                self._tier,
                f"no {self.nbytes} bytes of shared memory: {path.parent} has room for {free}; "
                "enlarge it (--shm-size of a container), or ask for less",
            )

    def _forget_file(self) -> None:
        if self.created and self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def require_node(tier: str, node: int | None) -> None:
    """Raises ``TierUnavailableError`` where the machine has no memory on NUMA node ``node``."""
    known = nodes_with_memory()
    if node is not None and node not in known:
        raise TierUnavailableError(
            tier, f"no NUMA node {node}: memory is on {', '.join(map(str, known))}"
        )


def is_at(path: Path, status: os.stat_result) -> bool:
    """Whether a path names the file that has this status."""
    try:
        return os.path.samestat(path.stat(), status)
    except FileNotFoundError:
        return False
