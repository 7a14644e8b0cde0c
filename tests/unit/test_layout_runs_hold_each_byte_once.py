"""Runs of a layout cover a block without gap or overlap, and a view is the runs that hold a byte of
what its reader asks for, and no others; held against a walk over single elements.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.layout import DTYPE_BYTES, Layout, Part
from tests.shardrig import every_group


def elements(layout: Layout, layers: tuple[int, int], shards: tuple[int, int]) -> int:
    """Bytes that ranks of these store shards hold of these layers, one shard after another."""
    total = 0
    for part in layout.parts:
        cut = min(part.distinct_shards, layout.store_shards)
        held = {shard * cut // layout.store_shards for shard in range(*shards)}
        count = len(set(range(*part.layers)) & set(range(*layers)))
        sizes = [size for name, size in part.axes if name != "layer"]
        total += count * len(held) * int(np.prod(sizes)) * DTYPE_BYTES[part.dtype] // cut
    return total


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of up to four parts that are cut in every way that is allowed."""
    store_shards = draw(st.sampled_from([1, 2, 4, 8]))
    parts = []
    for index in range(draw(st.integers(1, 4))):
        distinct = draw(st.sampled_from([1, 2, 4, 8, 16]))
        axes = [("head", distinct * draw(st.integers(1, 3))), ("dim", draw(st.integers(1, 5)))]
        if draw(st.booleans()):
            axes.insert(draw(st.integers(0, 2)), ("layer", draw(st.integers(1, 4))))
        dtype = draw(st.sampled_from(["uint8", "bfloat16", "float32"]))
        first = draw(st.integers(0, 2))
        axis = None if distinct == 1 and draw(st.booleans()) else "head"
        parts.append(Part(f"part{index}", dtype, tuple(axes), axis, distinct, first))
    return Layout(tuple(parts), store_shards)


@given(layouts())
def test_runs_cover_the_block_once(layout: Layout) -> None:
    assert layout.runs.shape == (layout.pieces, layout.layers, 2)
    runs = layout.runs.reshape(-1, 2)
    assert runs[0, 0] == 0
    assert (runs[1:, 0] == runs[:-1, 0] + runs[:-1, 1]).all()
    assert int(runs[:, 1].sum()) == layout.block_bytes == sum(p.nbytes for p in layout.parts)
    for piece, layer in product(range(layout.pieces), range(layout.layers)):
        assert bool(layout.contents(piece, layer)) == bool(layout.runs[piece, layer, 1])


@given(layouts(), st.data())
def test_a_view_is_what_its_reader_holds(layout: Layout, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, layout.layers - 1))
    high = data.draw(st.integers(low + 1, layout.layers))
    left = data.draw(st.integers(0, layout.store_shards - 1))
    right = data.draw(st.integers(left + 1, layout.store_shards))
    view = layout.view((low, high), (left, right))
    assert int(view["bytes"].sum()) == elements(layout, (low, high), (left, right))
    assert (np.diff(view["offset"].astype(np.int64)) > 0).all()
    assert (view["bytes"] > 0).all()
    at = layout.runs[view["piece"], view["layer"]]
    assert (at == np.stack([view["offset"], view["bytes"]], axis=1)).all()


def test_views_of_all_shards_make_up_the_block() -> None:
    for some in every_group(4).values():
        views = [some.layout.view(shards=(s, s + 1)) for s in range(4)]
        offsets = set(np.concatenate([view["offset"] for view in views]).tolist())
        assert offsets == set(some.layout.view()["offset"].tolist())


def test_an_opaque_block_is_one_run() -> None:
    layout = Layout.opaque(100)
    assert (layout.pieces, layout.layers) == (1, 1)
    assert layout.runs.tolist() == [[[0, 100]]]
    assert layout.view().tolist() == [(0, 0, 0, 100)]
    with pytest.raises(ValueError, match="read-only"):
        layout.runs[0, 0, 0] = 1


def test_layouts_of_one_size_are_told_apart() -> None:
    """C30: a key names dtype, axes, shards and the degree of the store, not a number of bytes."""
    parts = [
        Part("kv", "uint8", (("token", 2), ("head", 4))),
        Part("kv", "uint8", (("token", 4), ("head", 2))),
        Part("kv", "uint8", (("head", 2), ("token", 4))),
        Part("kv", "int8", (("token", 2), ("head", 4))),
        Part("kv", "bfloat16", (("token", 1), ("head", 4))),
        Part("kv", "uint8", (("token", 2), ("head", 4)), "head", 4),
        Part("kv", "uint8", (("token", 2), ("head", 4)), "head", 2),
        Part("kv", "uint8", (("token", 2), ("layer", 4))),
        Part("kv", "uint8", (("token", 2), ("layer", 4)), first_layer=1),
    ]
    found = [Layout((part,), shards) for part in parts for shards in (1, 2)]
    assert {layout.block_bytes for layout in found} == {8}
    assert len({layout.fingerprint for layout in found}) == len(found)
