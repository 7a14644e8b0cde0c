"""A layout, a place in a run or a buffer that cannot be meant is refused by name, at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radix.errors import LayoutMismatchError, UnsupportedError
from radix.groups import Group
from radix.layout import Layout, Part
from radix.shards import Parallelism, Shards
from tests.shardrig import every_group, group, heads, recurrent
from tiers.device_buffers import buffer_of

KV = group("kv", heads(8))
AXES = (("layer", 2), ("head", 6))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"shard_axis": "head", "distinct_shards": 4}, ValueError, "4 shards do not divide axis"),
        (
            {"shard_axis": "layer", "distinct_shards": 2},
            ValueError,
            "shard_axis must not be 'layer'",
        ),
        ({"shard_axis": "token"}, ValueError, "'token' is not an axis"),
        ({"distinct_shards": 2}, ValueError, "distinct_shards needs a shard_axis"),
        ({"first_layer": -1}, ValueError, "first_layer must not be negative, not -1"),
        ({"first_layer": 1.0}, TypeError, "first_layer must be an int"),
        ({"axes": (("head", 0),)}, ValueError, "'head' must be at least 1"),
        ({"axes": (("head", 1), ("head", 1))}, ValueError, "two axes of one name"),
        ({"dtype": "fp8"}, ValueError, "dtype 'fp8' is not one of"),
    ],
)
def test_a_part_that_cannot_be_is_refused(
    fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Part(**{"name": "key", "dtype": "uint8", "axes": AXES, **fields})


@pytest.mark.parametrize(("distinct", "store_shards"), [(6, 4), (4, 6), (3, 8)])
def test_store_shards_that_do_not_divide_are_refused(distinct: int, store_shards: int) -> None:
    parts = (Part("key", "uint8", (("head", 12),), "head", distinct),)
    with pytest.raises(ValueError, match=f"'key': its {distinct} distinct shards.*{store_shards}"):
        Layout(parts, store_shards)


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ({"layers": (0, 5)}, r"layers must be a range within \[0, 4\), not \[0, 5\)"),
        ({"layers": (2, 2)}, "layers must be a range"),
        ({"layers": (3, 1)}, "layers must be a range"),
        ({"shards": (-1, 1)}, "shards must be a range"),
        ({"shards": (0, 9)}, r"shards must be a range within \[0, 8\)"),
    ],
)
def test_a_view_beyond_the_layout_is_refused(ranges: dict[str, tuple[int, int]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        KV.layout.view(**ranges)


@pytest.mark.parametrize(
    ("kinds", "error", "says"),
    [
        ({"expert": 2}, UnsupportedError, "parallelism expert: a layout knows tensor, pipeline"),
        ({"decode_context": 2, "data": 2}, UnsupportedError, "parallelism data, decode_context"),
        ({"tensor": 0}, ValueError, "tensor parallel degree must be at least 1, not 0"),
        ({"pipeline": -1}, ValueError, "pipeline parallel degree"),
        ({"context": 1.5}, TypeError, "context parallel degree must be an int"),
        ({"tensor": True}, TypeError, "tensor parallel degree must be an int"),
    ],
)
def test_a_parallelism_that_no_layout_knows_is_refused(
    kinds: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Parallelism(**kinds)


@pytest.mark.parametrize(
    ("some", "run", "error", "says"),
    [
        (Group.full("kv", 64), Parallelism(2), UnsupportedError, "'kv': its layout says only"),
        (Group.full("kv", 64), Parallelism(1, 2), UnsupportedError, "'kv': its layout says only"),
        (group("s", recurrent()), Parallelism(1, 1, 2), UnsupportedError, "'s': context"),
        (KV, Parallelism(3), ValueError, "'kv': part 'key': its 8 distinct shards.* 3 shards"),
        (KV, Parallelism(1, 3), ValueError, "'kv': 3 pipeline stages do not divide 4 layers"),
        (group("kv", heads(8), 4), Parallelism(8), UnsupportedError, "no whole pieces.*shards 4"),
        (group("kv", heads(12), 4), Parallelism(3), UnsupportedError, "no whole pieces"),
    ],
)
def test_a_parallelism_that_this_layout_does_not_know_is_refused(
    some: Group, run: Parallelism, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Shards(some, run)


@pytest.mark.parametrize(
    "stages", [((0, 4),), ((0, 2), (3, 4)), ((0, 3), (2, 4)), ((2, 4), (0, 2)), ((0, 2), (2, 5))]
)
def test_stages_that_are_not_the_layers_in_order_are_refused(
    stages: tuple[tuple[int, int], ...],
) -> None:
    with pytest.raises(ValueError, match="'kv': stages must be 2 ranges"):
        Shards(KV, Parallelism(1, 2), stages=stages)


@pytest.mark.parametrize("rank", [-1, 8, 1000])
def test_a_rank_out_of_range_is_refused_by_every_question(rank: int) -> None:
    shards = Shards(KV, Parallelism(4, 2))
    asked = [shards.shard, shards.span, shards.layers_of, shards.reads, shards.written]
    for ask in asked:
        with pytest.raises(ValueError, match=rf"rank must be in \[0, 8\), not {rank}"):
            ask(rank)
    for ask_of in (shards.holds, shards.writes):
        with pytest.raises(ValueError, match="rank must be in"):
            ask_of(rank, [0])
    with pytest.raises(TypeError, match="rank must be an int"):
        shards.shard(1.0)  # type: ignore[arg-type] # a wrong type is what is tested


@pytest.mark.parametrize(
    ("blocks", "error"), [([-1], ValueError), ([0.5], TypeError), ([[1]], TypeError)]
)
def test_block_numbers_that_are_none_are_refused(blocks: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="blocks must be"):
        Shards(KV, Parallelism(2)).writes(0, blocks)


@pytest.mark.parametrize(
    ("shape", "dtype", "axes", "part", "says"),
    [
        ((3, 2, 4, 8, 4), "bfloat16", "layer token head dim", "key", "axes"),
        ((3, 4, 4, 8, 4), "bfloat16", "layer token head dim", "key", "axes"),
        ((3, 4, 4, 4, 4), "bfloat16", "layer token head row", "key", "axes"),
        ((3, 4, 4, 4, 4), "float16", "layer token head dim", "key", "is of bfloat16"),
        ((3, 4, 4, 4, 4), "bfloat16", "layer token head dim", "query", "no part 'query'"),
    ],
)
def test_a_tensor_that_is_not_what_the_layout_says_is_refused(
    shape: tuple[int, ...], dtype: str, axes: str, part: str, says: str
) -> None:
    shards = Shards(group("kv", heads(8)[:1]), Parallelism(2))
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    with pytest.raises(LayoutMismatchError, match=says):
        buffer_of(tensor, axes.split(), part, shards, 0)


def test_a_tensor_with_unnamed_dimensions_or_of_another_stage_is_refused() -> None:
    some = every_group()["latent and two-head layers"]
    shards = Shards(some, Parallelism(1, 2))
    with pytest.raises(ValueError, match="whose first dimension is the slot"):
        buffer_of(torch.zeros(3, 2, 4, 6), ("layer", "token"), "latent", shards, 0)
    tensor = torch.zeros(3, 2, 4, 6, dtype=torch.bfloat16)
    with pytest.raises(LayoutMismatchError, match=r"rank 1 holds layers \(2, 4\), part 'latent'"):
        buffer_of(tensor, ("layer", "token", "dim"), "latent", shards, 1)
