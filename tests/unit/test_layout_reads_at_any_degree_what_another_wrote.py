"""What is written at one degree of parallelism is read at every other as the same tensors, byte for
byte, by moving exactly the bytes that each reader holds; each run of them is verified by itself
(I24). Real tensors, real host memory, the native copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch

from radix.errors import LayoutMismatchError
from radix.groups import Group
from radix.layout import Part
from radix.shards import Parallelism, Shards
from tests.shardrig import (
    DEGREES,
    Rank,
    buffer_planes,
    checksums,
    copy,
    every_group,
    group,
    heads,
    rank_of,
    same,
    store_planes,
    whole_state,
)
from tiers.device_buffers import buffer_of
from tiers.host import HostTier
from tiers.transfer import PLANE, Planes

BLOCKS = 5
GROUPS = every_group()
SLOTS = np.arange(BLOCKS, dtype=np.int32)


@contextmanager
def store_of(group: Group) -> Iterator[tuple[Planes, np.ndarray]]:
    """Host memory for the blocks of a group: its planes and slots, all bytes of them set."""
    tier = HostTier(BLOCKS * (group.block_bytes + 4096) + (1 << 16))
    try:
        tier.attach((group,), 16, None)
        slots = tier.reserve(0, BLOCKS)
        yield tier.planes(0), slots
    finally:
        tier.close()


def write(shards: Shards, whole: dict[str, torch.Tensor], store: Planes, rows: np.ndarray) -> int:
    """Every rank writes what is its turn; the bytes that all of them moved."""
    moved = 0
    for number in range(shards.parallelism.ranks):
        rank = rank_of(shards, number, whole, number, filled=True)
        turn = shards.writes(number, SLOTS)
        view = shards.written(number)
        if not turn.any():
            continue
        planes = buffer_planes(shards.group.layout, view, rank.buffers)
        moved += copy(store_planes(store, view), rows[turn], planes, SLOTS[turn])
    return moved


def read(
    shards: Shards, number: int, whole: dict[str, torch.Tensor], store: Planes, rows: np.ndarray
) -> tuple[Rank, int]:
    """One rank loads every block that it holds into tensors of zeros; the bytes that moved."""
    rank = rank_of(shards, number, whole, 100 + number, filled=False)
    view = shards.reads(number)
    held = shards.holds(number, SLOTS)
    planes = buffer_planes(shards.group.layout, view, rank.buffers)
    moved = copy(planes, SLOTS[held], store_planes(store, view), rows[held])
    assert moved == int(view["bytes"].sum()) * int(held.sum())
    return rank, moved


def expect_share(rank: Rank, whole: dict[str, torch.Tensor]) -> None:
    """The rank holds of its blocks what it would hold of the whole state, zeros of the others."""
    held = torch.from_numpy(rank.shards.holds(rank.number, SLOTS))
    expected = rank_of(rank.shards, rank.number, whole, 7, filled=True)
    for name, tensor in rank.tensors.items():
        what = (rank.shards.group.name, rank.shards.parallelism, rank.number, name)
        assert same(tensor[held], expected.tensors[name][held]), what
        assert not tensor[~held].contiguous().unsqueeze(-1).view(torch.uint8).any(), what


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("written", DEGREES)
def test_tensors_read_at_every_degree_are_those_written(name: str, written: int) -> None:
    some = GROUPS[name]
    whole = whole_state(some, BLOCKS, seed=written)
    writer = Shards(some, Parallelism(written), number=1)
    with store_of(some) as (store, rows):
        moved = write(writer, whole, store, rows)
        assert moved == BLOCKS * some.block_bytes, "each byte of a block is written once"
        for degree in DEGREES:
            reader = Shards(some, Parallelism(degree))
            for number in range(degree):
                rank, moved = read(reader, number, whole, store, rows)
                assert moved == BLOCKS * rank.slot_bytes, "a reader moves what it holds, no more"
                expect_share(rank, whole)


@pytest.mark.parametrize(
    "name", ["two heads", "latent and two-head layers", "two heads with shared scales"]
)
def test_stages_and_context_ranks_read_what_tensor_ranks_wrote(name: str) -> None:
    """A rank of a stage moves the layers of its stage only, of the blocks of its context rank."""
    some = GROUPS[name]
    runs = [Parallelism(4), Parallelism(2, 2), Parallelism(2, 4, 2), Parallelism(1, 1, 3)]
    for source, target in product(runs, runs):
        whole = whole_state(some, BLOCKS, seed=source.ranks)
        with store_of(some) as (store, rows):
            moved = write(Shards(some, source), whole, store, rows)
            assert moved == BLOCKS * some.block_bytes, (source, "each byte is written once")
            reader = Shards(some, target)
            for number in range(target.ranks):
                rank, moved = read(reader, number, whole, store, rows)
                assert moved == int(reader.holds(number, SLOTS).sum()) * rank.slot_bytes
                expect_share(rank, whole)


@pytest.mark.parametrize("name", GROUPS)
def test_each_run_is_verified_by_itself_on_either_side(name: str) -> None:
    """The checksum of a run is one number, whether taken of a rank's tensors or of the store."""
    some = GROUPS[name]
    whole = whole_state(some, BLOCKS, seed=3)
    with store_of(some) as (store, rows):
        write(Shards(some, Parallelism(4)), whole, store, rows)
        for degree in DEGREES:
            shards = Shards(some, Parallelism(degree))
            for number in range(degree):
                rank = rank_of(shards, number, whole, number, filled=True)
                view = shards.reads(number)
                for index in range(len(view)):
                    one = view[index : index + 1]
                    held = checksums(buffer_planes(some.layout, one, rank.buffers), SLOTS)
                    assert np.array_equal(held, checksums(store_planes(store, one), rows)), one


def test_a_store_of_many_planes_gives_the_same_runs() -> None:
    """Blocks of a store may be cut anywhere: runs begin and end inside planes, or cover several."""
    some = GROUPS["recurrent with a shared part"]
    whole = whole_state(some, BLOCKS, seed=9)
    total, rng = some.block_bytes, np.random.default_rng(5)
    for pieces in (1, 2, 7, 40):
        ends = np.sort(rng.choice(np.arange(1, total), pieces - 1, replace=False))
        widths = np.diff([0, *ends, total])
        memory = [np.zeros((BLOCKS, width), np.uint8) for width in widths]
        planes = np.array([(m.ctypes.data, m.shape[1], m.shape[1]) for m in memory], PLANE)
        assert write(Shards(some, Parallelism(8)), whole, planes, SLOTS) == BLOCKS * total
        reader = Shards(some, Parallelism(2))
        rank, _ = read(reader, 1, whole, planes, SLOTS)
        expect_share(rank, whole)


# ---------------------------------------------------------------------- tags, not shapes
def test_with_one_token_the_tag_decides_and_not_the_shape() -> None:
    """Tensor parallel 2 and one token: keys cut by the head, a latent that every rank holds and
    keys cut by another axis all have the shape (slots, 1, 1, 4) on a rank.

    A gather along the wrong dimension once went unseen, because with one token the shapes fit.
    """
    token, dim = ("token", 1), ("dim", 4)
    parts = (
        Part("key", "float32", (token, ("head", 2), dim), "head", 2),
        Part("latent", "float32", (token, ("head", 1), dim)),
        Part("wide", "float32", (token, ("head", 1), ("dim", 8)), "dim", 2),
    )
    some = group("one token", parts, store_shards=2)
    whole = whole_state(some, BLOCKS, seed=1)
    two, one = Shards(some, Parallelism(2)), Shards(some, Parallelism(1))
    ranks = [rank_of(two, number, whole, number, filled=True) for number in range(2)]
    for rank in ranks:
        assert {tuple(t.shape) for t in rank.tensors.values()} == {(BLOCKS, 1, 1, 4)}
    with store_of(some) as (store, rows):
        assert write(two, whole, store, rows) == BLOCKS * some.block_bytes
        rank, moved = read(one, 0, whole, store, rows)
        assert moved == BLOCKS * some.block_bytes
        expect_share(rank, whole)
        for number in range(2):
            rank, _ = read(two, number, whole, store, rows)
            expect_share(rank, whole)


def test_tensors_of_one_shape_are_not_taken_for_one_another() -> None:
    """Two tokens of one head and one token of two heads are one shape and 16 bytes each."""
    tokens = Part("key", "float32", (("token", 2), ("head", 1), ("dim", 2)), "head")
    many = Part("key", "float32", (("token", 1), ("head", 2), ("dim", 2)), "head", 2)
    first, second = (group("kv", (part,), 1) for part in (tokens, many))
    tensor = torch.zeros(BLOCKS, 2, 1, 2)
    shards = [Shards(some, Parallelism(1)) for some in (first, second)]
    buffer = buffer_of(tensor, ("token", "head", "dim"), "key", shards[0], 0)
    assert len(buffer_planes(first.layout, first.layout.view(), [buffer])) == 1
    with pytest.raises(LayoutMismatchError, match="its layout is"):
        buffer_planes(second.layout, second.layout.view(), [buffer])
    with pytest.raises(LayoutMismatchError, match="axes"):
        buffer_of(tensor, ("token", "head", "dim"), "key", shards[1], 0)
    right = buffer_of(tensor, ("head", "token", "dim"), "key", shards[1], 0)
    assert len(buffer_planes(second.layout, second.layout.view(), [right])) == 1


def test_a_view_that_no_buffer_holds_is_refused_by_name() -> None:
    some = group("kv", heads(8))
    whole = whole_state(some, 1, seed=0)
    shards = Shards(some, Parallelism(2))
    rank = rank_of(shards, 1, whole, 0, filled=True)
    with pytest.raises(LayoutMismatchError, match="'key': no buffer holds layer 0 of store shards"):
        buffer_planes(some.layout, shards.reads(0), rank.buffers)
    with pytest.raises(LayoutMismatchError, match="'value': no buffer"):
        keys = [buffer for buffer in rank.buffers if buffer.part == "key"]
        buffer_planes(some.layout, shards.reads(1), keys)
