"""What moves of a block, and where it lies on both sides, against a plain enumeration of bytes:
over random layouts, views and cuts of the memory. Checksums of runs are those of their bytes,
however the runs are numbered.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import tiers.views
from radix._native import ffi, lib
from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import View
from tiers.copies import plane_array
from tiers.rig import bytes_of
from tiers.views import Cuts, copy_blocks, cut_planes, run_sums

SEEDS = range(60)


def _layout(rng: random.Random) -> Layout:
    """Parts of several dtypes, some shared, in some of the layers."""
    store = rng.choice([1, 2, 4])
    parts = []
    for number in range(rng.randint(1, 3)):
        layers, first = rng.randint(1, 3), rng.randint(0, 2)
        distinct = rng.choice([1, 2, 4, 8])
        axes = (("layer", layers), ("head", 8), ("row", rng.randint(1, 5)))
        shard = "head" if distinct > 1 else None
        dtype = rng.choice(["uint8", "bfloat16", "float32"])
        parts.append(Part(f"p{number}", dtype, axes, shard, distinct, first))
    return Layout(tuple(parts), store)


def _span(rng: random.Random, within: tuple[int, int]) -> tuple[int, int]:
    low = rng.randrange(*within)
    return low, rng.randint(low + 1, within[1])


def _memory(rng: random.Random, nbytes: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Zeroed memory of rows, and planes that cut a row in a few places."""
    ends = sorted({0, nbytes, *(rng.randint(0, nbytes) for _ in range(rng.randint(0, 4)))})
    memory = np.zeros((rows, nbytes), np.uint8)
    base, stride = memory.ctypes.data, memory.strides[0]
    return memory, plane_array(
        [(base + low, stride, high - low) for low, high in itertools.pairwise(ends)]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_is_copied_to_where_the_other_side_has_it(seed: int) -> None:
    rng = random.Random(seed)
    layout = _layout(rng)
    group = Group("g", layout)
    held = View(_span(rng, (0, layout.layers)), _span(rng, (0, layout.store_shards)))
    part = View(_span(rng, held.layers), _span(rng, held.shards))
    where, mine = bytes_of(layout, held), bytes_of(layout, part)
    if not len(mine):
        with pytest.raises(ValueError, match="no bytes"):
            Cuts((group,)).find(0, part, held, None, "job 1:")
        return
    cut = Cuts((group,)).find(0, part, held, None, "job 1:")
    assert cut.nbytes == len(mine), f"seed {seed}"
    assert cut.whole == (len(mine) == layout.block_bytes), f"seed {seed}"
    above, planes_above = _memory(rng, len(where), 3)
    below, planes_below = _memory(rng, layout.block_bytes, 3)
    below[:] = np.random.default_rng(seed).integers(0, 256, below.shape, dtype=np.uint8)
    rows = np.array([2, 0], np.int32)
    targets, sources = cut.planes_above(planes_above), cut.planes_below(planes_below)
    assert copy_blocks(targets, rows, sources, rows[::-1].copy()) == lib.RDX_OK
    expected = np.zeros_like(above)
    at = np.searchsorted(where, mine)
    expected[np.ix_([2, 0], at)] = below[np.ix_([0, 2], mine)]
    assert np.array_equal(above, expected), f"seed {seed}"
    steps = cut.by_layer()
    assert [step.view.layers for step in steps] == [(n, n + 1) for n in range(*part.layers)]
    assert sum(step.nbytes for step in steps) == len(mine), f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_stores_of_all_shards_bring_each_byte_once(seed: int) -> None:
    rng = random.Random(seed)
    layout = _layout(rng)
    cuts = Cuts((Group("g", layout),))
    times = np.zeros(layout.block_bytes, np.int64)
    for shard in range(layout.store_shards):
        view = View((0, layout.layers), (shard, shard + 1))
        mine = bytes_of(layout, view, beginning=True)
        if len(mine):
            cut = cuts.find(0, view, None, None, "job 1:", storing=True)
            assert cut.nbytes == len(mine)
        times[mine] += 1
    assert (times == 1).all(), f"seed {seed}"


@pytest.mark.parametrize("most", [2**31 - 1, 40], ids=["numbered", "each a plane"])
@pytest.mark.parametrize("seed", SEEDS)
def test_sums_of_runs_are_those_of_their_bytes(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers.views, "_MOST_NUMBER", most)
    rng = random.Random(seed)
    layout = _layout(rng)
    runs = layout.runs[layout.runs[:, :, 1] > 0]
    memory = np.random.default_rng(seed).integers(0, 256, (5, layout.block_bytes + 3), np.uint8)
    plane = plane_array([(memory.ctypes.data, memory.strides[0], layout.block_bytes)])[0]
    slots = np.array([4, 1, 1, 3], np.int32)
    found = run_sums(plane, runs[:, 0].copy(), runs[:, 1].copy(), slots)
    assert found.shape == (4, len(runs))
    for row, slot in enumerate(slots.tolist()):
        for column, (offset, size) in enumerate(runs.tolist()):
            run = memory[slot, offset : offset + size].tobytes()
            expected = int(lib.rdx_xxh3_64(ffi.from_buffer(run), size))
            assert found[row, column] == expected, f"seed {seed}"
    assert run_sums(plane, runs[:, 0].copy(), runs[:, 1].copy(), slots[:0]).shape == (0, len(runs))


def test_planes_are_cut_in_their_order_and_joined_where_they_touch() -> None:
    planes = plane_array([(1000, 64, 10), (2000, 32, 0), (3000, 16, 20)])
    ranges = np.array([[2, 3], [5, 3], [9, 2], [25, 5]], np.uint64)
    found = cut_planes(planes, ranges[:, 0], ranges[:, 1])
    assert found.tolist() == [(1002, 64, 6), (1009, 64, 1), (3000, 16, 1), (3015, 16, 5)]
