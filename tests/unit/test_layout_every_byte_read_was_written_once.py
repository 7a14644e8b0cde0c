"""Whatever the degrees, every (block, run) that some rank reads was written by exactly one rank, of
a replica set or not, and a block is counted once (C101, C103, C104).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from radix.groups import Group
from radix.shards import Parallelism, Shards
from tests.shardrig import DEGREES, every_group, group, heads, latent, recurrent

BLOCKS = np.arange(17)
GROUPS = every_group()
RUNS = [
    Parallelism(tensor, pipeline, context)
    for tensor, pipeline, context in product(DEGREES, (1, 2, 4), (1, 2, 3))
]


def stages_of(some: Group, run: Parallelism) -> tuple[tuple[int, int], ...]:
    """Equal stages; where they do not divide the layers, the first stages have them all."""
    layers = some.layout.layers
    if layers % run.pipeline == 0:
        return ()
    return tuple((min(s, layers), min(s + 1, layers)) for s in range(run.pipeline))


def count(shards: Shards, *, written: bool) -> np.ndarray:
    """How many ranks write (or read) each (block, piece, layer)."""
    layout = shards.group.layout
    times = np.zeros((len(BLOCKS), layout.pieces, layout.layers), np.int64)
    for rank in range(shards.parallelism.ranks):
        view = shards.written(rank) if written else shards.reads(rank)
        rows = shards.writes(rank, BLOCKS) if written else shards.holds(rank, BLOCKS)
        times[:, view["piece"], view["layer"]] += rows[:, None]
    return times


@pytest.mark.parametrize("name", GROUPS)
def test_each_run_that_is_read_was_written_by_exactly_one_rank(name: str) -> None:
    some = GROUPS[name]
    runs = [run for run in RUNS if run.context == 1 or some.retention.rule != "state"]
    for run, number in product(runs, (0, 1, 5)):
        shards = Shards(some, run, number, stages_of(some, run))
        written, read = count(shards, written=True), count(shards, written=False)
        held = some.layout.runs[:, :, 1] > 0
        assert (written[:, held] == 1).all(), (name, run, number, "written once, by one replica")
        assert (written[:, ~held] == 0).all(), (name, run, number)
        assert (read[:, held] >= 1).all(), (name, run, number)


@pytest.mark.parametrize("name", GROUPS)
def test_more_ranks_write_no_more_bytes(name: str) -> None:
    """C103 (vllm#48906): who does not write is told by nobody, and capacity is counted once."""
    some = GROUPS[name]
    for run in RUNS:
        if run.context > 1 and some.retention.rule == "state":
            continue
        shards = Shards(some, run, 2, stages_of(some, run))
        total = sum(
            int(shards.writes(rank, BLOCKS).sum()) * int(shards.written(rank)["bytes"].sum())
            for rank in range(run.ranks)
        )
        assert total == len(BLOCKS) * some.block_bytes, (name, run)


def test_replicas_write_equal_shares_also_under_context_parallelism() -> None:
    """Turns count the blocks that a context rank holds; by absolute numbers one replica of two
    would write all even blocks, that is every block of its context rank.
    """
    shards = Shards(GROUPS["two heads"], Parallelism(4, context=2))
    turns = [int(shards.writes(rank, np.arange(64)).sum()) for rank in range(8)]
    assert turns == [16] * 8


def test_a_state_of_each_rank_is_written_by_all_beside_keys_that_replicas_share() -> None:
    """C101 (vllm#49499): one factor for all groups took a recurrent state that each rank has its
    own part of for a replica, because the keys beside it were; the answers were wrong after a load.
    """
    run = Parallelism(4)
    keys, state = Shards(group("kv", latent()), run, 0), Shards(group("s", recurrent()), run, 1)
    assert (keys.factor, state.factor) == (4, 1)
    for block in range(8):
        assert len(keys.writers(block)) == 1
        assert state.writers(block) == (0, 1, 2, 3)


def test_the_writer_of_a_block_is_a_function_of_its_number_alone() -> None:
    """C104 (vllm-ascend#5030): ranks asked the store what to write, and its answers differed."""
    shards = Shards(group("kv", heads(2)), Parallelism(8), 3)
    for rank in range(8):
        at_once = shards.writes(rank, BLOCKS)
        one_by_one = [bool(shards.writes(rank, [block])[0]) for block in BLOCKS[::-1]]
        assert at_once.tolist() == one_by_one[::-1]
        assert [rank in shards.writers(int(block)) for block in BLOCKS] == at_once.tolist()


def test_replicas_of_a_coarse_store_share_its_pieces() -> None:
    """Tensor parallel 8 over 2 store shards: possible where only 2 shards differ."""
    shards = Shards(group("kv", heads(2), store_shards=2), Parallelism(8))
    assert shards.factor == 4
    assert [shards.span(rank) for rank in range(8)] == [(0, 1)] * 4 + [(1, 2)] * 4
    assert (count(shards, written=True) == 1).all()
