"""Block copies between pools that are cut differently move exactly the bytes of the blocks.

Oracle: numpy, block by block. The whole target memory is compared, gaps between slots included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix._native import ffi, lib

Bytes = npt.NDArray[np.uint8]
PLANE = np.dtype([("base", "<u8"), ("stride", "<u8"), ("bytes", "<u8")])
PATHS = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]
lib.rdx_dispatch_set(PATHS[-1])


@pytest.fixture(autouse=True)
def _path_as_before() -> Iterator[None]:
    before = lib.rdx_dispatch_get()
    yield
    lib.rdx_dispatch_set(before)


class Pool:
    """Memory that holds ``slots`` blocks in planes of the given widths, each with a gap."""

    def __init__(self, widths: list[int], gap: int, slots: int) -> None:
        strides = [width + gap for width in widths]
        starts = np.concatenate([[0], np.cumsum([stride * slots for stride in strides])])
        self.memory: Bytes = np.zeros(max(1, int(starts[-1])), np.uint8)
        self.planes = np.zeros(len(widths), PLANE)
        self.planes["base"] = self.memory.ctypes.data + starts[:-1].astype(np.uint64)
        self.planes["stride"] = strides
        self.planes["bytes"] = widths

    def shift(self, offset: int) -> None:
        """Moves the whole pool to an address that is ``offset`` over a multiple of 64."""
        longer = np.zeros(len(self.memory) + 128, np.uint8)
        first = -longer.ctypes.data % 64 + offset
        place = longer[first : first + len(self.memory)]
        inside = self.planes["base"] - np.uint64(self.memory.ctypes.data)
        self.planes["base"] = inside + np.uint64(place.ctypes.data)
        self.memory = place

    def parts(self, slot: int) -> list[Bytes]:
        first = self.memory.ctypes.data
        starts = [int(p["base"]) - first + slot * int(p["stride"]) for p in self.planes]
        widths = [int(p["bytes"]) for p in self.planes]
        return [self.memory[s : s + w] for s, w in zip(starts, widths, strict=True)]

    def read(self, slot: int) -> Bytes:
        return np.concatenate(self.parts(slot))

    def write(self, slot: int, block: Bytes) -> None:
        at = 0
        for part in self.parts(slot):
            part[:] = block[at : at + len(part)]
            at += len(part)


def copy_blocks(
    dst: Pool, dst_slots: npt.NDArray[np.int32], src: Pool, src_slots: npt.NDArray[np.int32]
) -> int:
    return int(
        lib.rdx_copy_blocks(
            *(ffi.from_buffer("rdx_plane[]", dst.planes), len(dst.planes)),
            ffi.from_buffer("int32_t[]", dst_slots),
            *(ffi.from_buffer("rdx_plane[]", src.planes), len(src.planes)),
            ffi.from_buffer("int32_t[]", src_slots),
            len(src_slots),
        )
    )


def check_copy(src: Pool, dst: Pool, slots: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    src.memory[:] = rng.integers(0, 256, len(src.memory), dtype=np.uint8)
    count = int(rng.integers(0, slots + 1))
    src_slots = rng.permutation(slots)[:count].astype(np.int32)
    dst_slots = rng.permutation(slots)[:count].astype(np.int32)
    dst.memory[:] = 0xEE
    assert copy_blocks(dst, dst_slots, src, src_slots) == lib.RDX_OK
    found = dst.memory.copy()
    dst.memory[:] = 0xEE
    for source, target in zip(src_slots, dst_slots, strict=True):
        dst.write(int(target), src.read(int(source)))
    assert np.array_equal(found, dst.memory)


WIDTHS = st.lists(st.integers(0, 90), min_size=1, max_size=5)


def recut(widths: list[int], cuts: list[int]) -> list[int]:
    """Cut the same number of bytes elsewhere."""
    total = sum(widths)
    ends = sorted({cut % (total + 1) for cut in cuts} | {total})
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@given(
    widths=WIDTHS.filter(sum),
    cuts=st.lists(st.integers(0, 500), max_size=5),
    gaps=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    slots=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    path=st.sampled_from(PATHS),
)
def test_copy_between_any_cuts_equals_a_naive_copy(
    widths: list[int], cuts: list[int], gaps: tuple[int, int], slots: int, seed: int, path: int
) -> None:
    lib.rdx_dispatch_set(path)
    src, dst = Pool(widths, gaps[0], slots), Pool(recut(widths, cuts), gaps[1], slots)
    check_copy(src, dst, slots, seed)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("gap", [0, 13])
def test_large_copies_equal_a_naive_copy(path: int, gap: int) -> None:
    """Over 4 MiB the stores pass by the cache; gaps make the heads and tails unaligned."""
    lib.rdx_dispatch_set(path)
    src, dst = Pool([65536] * 4, gap, 64), Pool([200_001, 62_143], gap, 64)
    for seed in range(3):
        check_copy(src, dst, 64, seed)
        check_copy(dst, src, 64, seed)


@given(
    segment=st.sampled_from([512, 1023, 1024, 1153, 4096, 4100, 16384, 20000]),
    layers=st.integers(1, 9),
    offsets=st.tuples(st.integers(0, 63), st.integers(0, 63)),
    gap=st.sampled_from([0, 1, 64]),
    megabytes=st.sampled_from([1, 5]),
    path=st.sampled_from(PATHS),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40)
def test_layers_and_pages_at_any_alignment_equal_a_naive_copy(
    segment: int,
    layers: int,
    offsets: tuple[int, int],
    gap: int,
    megabytes: int,
    path: int,
    seed: int,
) -> None:
    """As many fragments of one length as go in step, and what is left over of them: below 4 MiB
    through the cache, beyond it past the cache.
    """
    lib.rdx_dispatch_set(path)
    slots = (megabytes << 20) // (segment * layers) + 2
    pools = [Pool([segment] * layers, gap, slots), Pool([segment * layers], gap, slots)]
    for pool, offset in zip(pools, offsets, strict=True):
        pool.shift(offset)
    check_copy(pools[0], pools[1], slots, seed)
    check_copy(pools[1], pools[0], slots, seed)


@pytest.mark.parametrize("path", PATHS)
def test_checksum_does_not_depend_on_the_cut(path: int) -> None:
    lib.rdx_dispatch_set(path)
    widths = [3, 64, 0, 250, 4096]
    src, dst = Pool(widths, 5, 6), Pool([sum(widths)], 0, 6)
    src.memory[:] = np.random.default_rng(1).integers(0, 256, len(src.memory), dtype=np.uint8)
    slots = np.arange(6, dtype=np.int32)
    assert copy_blocks(dst, slots, src, slots) == lib.RDX_OK
    sums = [np.zeros(6, np.uint64), np.zeros(6, np.uint64)]
    for pool, out in zip((src, dst), sums, strict=True):
        planes = ffi.from_buffer("rdx_plane[]", pool.planes)
        numbers = ffi.from_buffer("int32_t[]", slots)
        out_values = ffi.from_buffer("uint64_t[]", out)
        status = lib.rdx_checksum_blocks(planes, len(pool.planes), numbers, 6, out_values)
        assert status == lib.RDX_OK
    whole = [lib.rdx_xxh3_64(ffi.from_buffer(src.read(i)), sum(widths)) for i in range(6)]
    assert sums[0].tolist() == sums[1].tolist() == whole


def test_unequal_sides_and_null_slots_are_refused_untouched() -> None:
    src, dst, larger = Pool([8, 8], 0, 2), Pool([16], 0, 2), Pool([17], 0, 2)
    src.memory[:] = 1
    good = np.array([0, 1], np.int32)
    null = np.array([0, -1], np.int32)
    assert copy_blocks(larger, good, src, good) == lib.RDX_EARG
    assert copy_blocks(dst, null, src, good) == lib.RDX_EARG
    assert copy_blocks(dst, good, src, null) == lib.RDX_EARG
    assert not dst.memory.any()
    assert not larger.memory.any()


def test_prefault_keeps_what_is_there() -> None:
    memory = np.random.default_rng(2).integers(0, 256, 3 << 20, dtype=np.uint8)
    before = memory.copy()
    for threads in (1, 2, 5):
        assert lib.rdx_prefault(memory.ctypes.data + 1, memory.nbytes - 1, threads) == lib.RDX_OK
    assert np.array_equal(memory, before)
    assert lib.rdx_prefault(memory.ctypes.data, memory.nbytes, 0) == lib.RDX_EARG
