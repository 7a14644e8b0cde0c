"""Who is given the descriptor of a sealed pool reads it, and can do nothing else: neither write,
nor map it writable by any way, nor cut, grow or punch it. Through a plain memory file every one of
these works.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from radix._native import lib
from radix.errors import ClosedError, TierUnavailableError
from radix.groups import Group
from radix.service.sharing import SharedView
from tiers.host import HostTier
from tiers.memory import F_ADD_SEALS, SharedMemory, memory_file

NBYTES = 1 << 20
PUNCH = 1 | 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def pool() -> Iterator[HostTier]:
    tier = HostTier(NBYTES, sealed=True)
    tier.attach((Group.full("kv", 4096),), 16, None)
    yield tier
    tier.close()


def _reopened(descriptor: int) -> None:
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        os.pwrite(again, b"x", 0)
    finally:
        os.close(again)


def _made_writable(descriptor: int) -> None:
    view = mmap.mmap(descriptor, NBYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    address = np.frombuffer(view, np.uint8).ctypes.data
    if LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), 3):
        raise OSError(ctypes.get_errno(), "mprotect")


def _punched(descriptor: int) -> None:
    if LIBC.fallocate(descriptor, PUNCH, ctypes.c_long(0), ctypes.c_long(4096)):
        raise OSError(ctypes.get_errno(), "fallocate")


WAYS: dict[str, Callable[[int], object]] = {
    "write": lambda f: os.pwrite(f, b"x", 0),
    "map": lambda f: mmap.mmap(f, NBYTES),
    "map and make writable": _made_writable,
    "open again and write": _reopened,
    "cut": lambda f: os.ftruncate(f, 0),
    "grow": lambda f: os.ftruncate(f, 2 * NBYTES),
    "punch": _punched,
    "seal further": lambda f: fcntl.fcntl(f, F_ADD_SEALS, 8),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_holder_of_the_descriptor_cannot_change_a_byte(pool: HostTier, way: str) -> None:
    slots = pool.reserve(0, 1)
    planes = pool.planes(0)
    view = mmap.mmap(pool.descriptor, NBYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    ctypes.memset(int(planes[0]["base"]), 7, 4096)
    assert view[:4096] == bytes([7]) * 4096  # the owner writes, the other sees it
    with pytest.raises(OSError):
        WAYS[way](pool.descriptor)
    assert view[:4096] == bytes([7]) * 4096
    assert os.fstat(pool.descriptor).st_size == NBYTES
    pool.abort(0, slots)
    pool.check()


@pytest.mark.parametrize("way", ["write", "map", "open again and write"])
def test_a_memory_file_that_clients_write_cannot_be_cut(way: str) -> None:
    descriptor = memory_file("staging", NBYTES)
    try:
        WAYS[way](descriptor)
        for cut in ("cut", "grow"):
            with pytest.raises(OSError):
                WAYS[cut](descriptor)
    finally:
        os.close(descriptor)


def test_bytes_that_are_not_to_be_had_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tier = HostTier(NBYTES, sealed=True)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TierUnavailableError, match="No space left"):
        tier.attach((Group.full("kv", 4096),), 16, None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_sealed_memory_has_no_name_and_no_descriptor_once_closed(pool: HostTier) -> None:
    with pytest.raises(ValueError, match="sealed memory has no file_name"):
        HostTier(NBYTES, sealed=True, file_name="x")
    assert pool.capability.shared
    plain = HostTier(NBYTES)
    plain.attach((Group.full("kv", 4096),), 16, None)
    assert plain.descriptor == -1
    plain.close()
    with pytest.raises(ClosedError, match="closed"):
        _ = plain.descriptor


def test_others_map_it_where_huge_pages_can_stand() -> None:
    """Both sides: beside a multiple of 2 MiB even huge pages of a file are mapped as small ones.
    Whether it has any is the kernel's to say.
    """
    nbytes = 5 << 20
    memory = SharedMemory("host", nbytes, None, 2, sealed=True)
    try:
        assert memory.address % lib.RDX_HUGE_BYTES == 0
        assert memory.residence().huge_bytes in (0, 2 << 20, 4 << 20)
        own = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(memory.address))
        own[:] = np.arange(nbytes, dtype=np.int64).astype(np.uint8)
        view = SharedView(os.dup(memory.descriptor), writable=False)
        assert view.address % lib.RDX_HUGE_BYTES == 0
        assert view.nbytes == len(view.array) == nbytes
        assert view.address == view.array.ctypes.data
        assert np.array_equal(view.array, own)
        assert not view.array.flags.writeable
    finally:
        memory.close()
