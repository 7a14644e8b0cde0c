"""Where the memory of a tier lies: on huge pages where the kernel gives them, and on the NUMA node
that is asked for. Both are wishes to the kernel; what came of them is read back, never assumed.
Linux alone; elsewhere nothing is asked and nothing is found. Keeps no invariant of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from radix._native import ffi, lib

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
]
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # of Linux; Python names neither everywhere
_MBIND = {"x86_64": 237, "aarch64": 235}.get(platform.machine())  # glibc has no wrapper
_PREFER = 1  # MPOL_PREFERRED: another node, rather than no memory
_MOVE = 2  # MPOL_MF_MOVE: also what was touched already, by this process alone
_NODES = Path("/sys/devices/system/node")
_PROCESS = Path("/proc/self")
_PCI = Path("/sys/bus/pci/devices")
_HUGE = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")


@dataclass(frozen=True, slots=True)
class Residence:
    """Bytes of a mapping that lie on huge pages, and on its node (0 where none was asked for)."""

    huge_bytes: int
    node_bytes: int


@runtime_checkable
class Placed(Protocol):
    """A device that knows the NUMA node it is next to; None: it does not say."""

    @property
    def numa_node(self) -> int | None:
        """Its node."""
        ...


def nodes_with_memory(folder: Path = _NODES) -> tuple[int, ...]:
    """The NUMA nodes that have memory, ascending; a kernel that knows none has node 0."""
    try:
        text = (folder / "has_memory").read_text().strip()
    except OSError:
        return (0,)
    spans = [part.split("-") for part in text.split(",") if part]
    return tuple(node for span in spans for node in range(int(span[0]), int(span[-1]) + 1))


def node_of_pci(domain: int, bus: int, device: int, folder: Path = _PCI) -> int | None:
    """The node with memory next to a PCI device; None: not known."""
    try:
        node = int((folder / f"{domain:04x}:{bus:02x}:{device:02x}.0" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node in nodes_with_memory() else None


def ask_for_huge_pages(memory: mmap.mmap, nbytes: int) -> bool:
    """Whether the kernel took the wish for the first ``nbytes``; what it does is up to it."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE, 0, nbytes)
    except (AttributeError, OSError, ValueError):  # no Linux, no such kernel
        return False
    return True


def map_aligned(descriptor: int, nbytes: int, *, writable: bool) -> tuple[mmap.mmap, int]:
    """A mapping, shared with all who map the file, and where in it the file begins: at an address
    that huge pages can stand at. What lies before and behind it is of nobody. Raises ``OSError``.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    room = mmap.mmap(-1, nbytes + lib.RDX_HUGE_BYTES, private, prot)
    buffer = ffi.from_buffer(room)
    begin = int(ffi.cast("uintptr_t", buffer))
    ffi.release(buffer)
    place = -begin % lib.RDX_HUGE_BYTES
    where = _LIBC.mmap(begin + place, nbytes, prot, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0)
    if where != begin + place:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return room, place


def prefer_node(address: int, nbytes: int, node: int) -> bool:
    """Whether the pages of this range come from ``node``, as long as it has free ones; those that
    are there already move. ``address`` at the begin of a page.
    """
    if _MBIND is None:
        return False
    words = node // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    mask[node // 64] = 1 << node % 64
    result = _LIBC.syscall(
        ctypes.c_long(_MBIND),
        ctypes.c_void_p(address),
        ctypes.c_ulong(nbytes),
        ctypes.c_ulong(_PREFER),
        ctypes.byref(mask),
        ctypes.c_ulong(words * 64 + 1),  # the kernel takes one bit less than it is told
        ctypes.c_ulong(_MOVE),
    )
    return bool(result == 0)


def close_page(address: int, nbytes: int) -> None:
    """Forbids every access to these whole pages: what lies below them is a mapping by itself, and
    who writes beyond its end is stopped.
    """
    _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 0)


def residence_of(address: int, node: int | None, process: Path = _PROCESS) -> Residence:
    """What the kernel says of the mapping that begins at ``address``. Cost: it walks the pages of
    the whole process, once.
    """
    return Residence(_huge_bytes(address, process), _node_bytes(address, node, process))


def _huge_bytes(address: int, process: Path) -> int:
    total, inside = 0, False
    try:
        with open(process / "smaps") as lines:
            for line in lines:
                first, _, rest = line.partition(" ")
                if first in _HUGE and inside:
                    total += int(rest.split()[0]) * 1024
                elif "-" in first:  # the head of a mapping
                    inside = int(first.split("-")[0], 16) == address
    except OSError:
        return 0
    return total


def _node_bytes(address: int, node: int | None, process: Path) -> int:
    if node is None:
        return 0
    try:
        lines = (process / "numa_maps").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        words = line.split()
        if int(words[0], 16) != address:
            continue
        found = dict(word.split("=", 1) for word in words if "=" in word)
        pages, kilobytes = found.get(f"N{node}", "0"), found.get("kernelpagesize_kB", "4")
        return int(pages) * int(kilobytes) * 1024
    return 0
