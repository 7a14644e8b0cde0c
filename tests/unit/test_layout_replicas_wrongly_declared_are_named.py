"""A write is left to another rank only on a declared replica set, and a declaration that does not
hold is found by comparing checksums: it is refused with group, block, part and ranks. In one
process and between processes that gather what each computed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radix.errors import LayoutMismatchError
from radix.groups import Group
from radix.layout import Part
from radix.replicas import sampled, verify_replicas
from radix.shards import Blocks, Parallelism, Shards
from tests.shardrig import (
    DEGREES,
    buffer_planes,
    checksums,
    every_group,
    flip,
    group,
    latent,
    rank_of,
    whole_state,
)

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = np.arange(6)
GROUPS = every_group()


class Run:
    """Every rank of a run with real tensors; ``ask`` computes a rank's checksums of them."""

    def __init__(self, some: Group, run: Parallelism) -> None:
        self.shards = Shards(some, run)
        whole = whole_state(some, len(BLOCKS), seed=11)
        self.ranks = [rank_of(self.shards, r, whole, r, filled=True) for r in range(run.ranks)]
        self.asked: list[tuple[int, list[int]]] = []

    def ask(self, rank: int, blocks: Blocks) -> np.ndarray:
        """Checksums (blocks, runs) of what a rank holds."""
        self.asked.append((rank, blocks.tolist()))
        layout, view = self.shards.group.layout, self.shards.reads(rank)
        sums = np.empty((len(blocks), len(view)), np.uint64)
        for column in range(len(view)):
            one = view[column : column + 1]
            planes = buffer_planes(layout, one, self.ranks[rank].buffers)
            sums[:, column] = checksums(planes, blocks)
        return sums


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("degree", DEGREES)
def test_replicas_that_hold_the_same_are_passed(name: str, degree: int) -> None:
    run = Run(GROUPS[name], Parallelism(degree))
    compared = verify_replicas(run.shards, BLOCKS, run.ask)
    readers = [0] * run.shards.group.layout.pieces * run.shards.group.layout.layers
    for rank in range(degree):
        for piece, layer, _, _ in run.shards.reads(rank).tolist():
            readers[piece * run.shards.group.layout.layers + layer] += 1
    assert compared == len(BLOCKS) * sum(count for count in readers if count > 1)
    assert [rank for rank, _ in run.asked] == list(range(degree))


def test_a_state_of_each_rank_declared_replicated_is_named() -> None:
    """C101 (vllm#49499): one factor for all groups made a replica of a recurrent state that every
    rank keeps its own part of; three quarters of it were never written.
    """
    declared = group("gdn", (Part("state", "float32", (("layer", 2), ("head", 2), ("dim", 3))),))
    run = Run(declared, Parallelism(4))
    assert run.shards.factor == 4
    rng = np.random.default_rng(0)
    for rank in run.ranks:
        rank.tensors["state"][:] = rank.tensors["state"].new_tensor(rng.random((6, 2, 2, 3)))
    with pytest.raises(LayoutMismatchError) as refused:
        verify_replicas(run.shards, BLOCKS, run.ask)
    assert str(refused.value) == (
        "group 'gdn' is declared replicated and is not: ranks (0) and (1) and (2) and (3) hold "
        "different bytes of block 0, part 'state', layer 0"
    )


def test_one_byte_of_one_rank_names_block_layer_and_sides() -> None:
    run = Run(GROUPS["two heads"], Parallelism(4, 2))
    flip(run.ranks[7].tensors["value"], 4, 1, 2, 0, 3)
    with pytest.raises(LayoutMismatchError) as refused:
        verify_replicas(run.shards, BLOCKS, run.ask)
    assert str(refused.value) == (
        "group 'two heads' is declared replicated and is not: ranks (6) and (7) hold different "
        "bytes of block 4, part 'key', 'value', layer 3"
    )


def test_a_shared_part_of_a_group_of_factor_1_is_compared_too() -> None:
    """The group writes every block on every rank, but its shared part is written by one of them."""
    run = Run(GROUPS["recurrent with a shared part"], Parallelism(4))
    assert run.shards.factor == 1
    flip(run.ranks[2].tensors["bc"], 5, 1, 0)
    with pytest.raises(
        LayoutMismatchError, match=r"ranks \(0, 1, 3\) and \(2\).*block 5, part 'bc'"
    ):
        verify_replicas(run.shards, BLOCKS, run.ask)


def test_context_ranks_are_compared_on_the_blocks_that_they_hold() -> None:
    run = Run(GROUPS["latent"], Parallelism(2, context=2))
    assert verify_replicas(run.shards, BLOCKS, run.ask) == 2 * len(BLOCKS) * 4
    assert run.asked == [(0, [0, 2, 4]), (1, [0, 2, 4]), (2, [1, 3, 5]), (3, [1, 3, 5])]


def test_a_sample_is_the_same_everywhere_and_as_large_as_asked() -> None:
    blocks = np.arange(100_000)
    for rate in (0.01, 0.25, 0.9):
        chosen = sampled(blocks, rate, seed=7)
        assert abs(len(chosen) / len(blocks) - rate) < 0.01
        assert np.array_equal(sampled(blocks[::-1], rate, seed=7)[::-1], chosen)
        assert not np.array_equal(sampled(blocks, rate, seed=8), chosen)
    assert np.array_equal(sampled(blocks, 1.0, seed=7), blocks)


def test_over_time_a_sample_finds_what_is_wrong_everywhere() -> None:
    run = Run(GROUPS["latent"], Parallelism(2))
    for block in BLOCKS.tolist():
        flip(run.ranks[1].tensors["rope"], block, 2, 3, 1)
    found = 0
    for seed in range(40):
        try:
            verify_replicas(run.shards, BLOCKS, run.ask, rate=0.1, seed=seed)
        except LayoutMismatchError:
            found += 1
    assert 5 < found < 35, f"{found} of seeds 0..39"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rate": 0.0}, "rate must be above 0 and at most 1, not 0.0"),
        ({"rate": 1.5}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be above 0"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 1 << 64}, "seed must be in"),
        ({"blocks": [-1]}, "blocks must be numbered from 0 on"),
        ({"checksums": lambda rank, blocks: np.zeros(3, np.uint64)}, "checksums of rank 0 must be"),
        ({"checksums": lambda rank, blocks: np.zeros((6, 4))}, "must be uint64 of shape"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(fields: dict[str, object], says: str) -> None:
    run = Run(group("kv", latent()), Parallelism(2))
    given = {"shards": run.shards, "blocks": BLOCKS, "checksums": run.ask, **fields}
    with pytest.raises(ValueError, match=says):
        verify_replicas(**given)  # type: ignore[arg-type] # wrong values are what is tested


def test_processes_that_gather_checksums_all_name_the_same_ranks(tmp_path: Path) -> None:
    """Four processes, each with its own tensors, over gloo on the loopback interface."""
    command = [sys.executable, str(ROOT / "tests" / "replica_ranks.py"), str(tmp_path), "4"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    answers = [(tmp_path / f"rank{rank}").read_text().splitlines() for rank in range(4)]
    for answer in answers:
        assert answer == [
            "two heads: compared 96",
            "group 'gdn' is declared replicated and is not: ranks (0) and (1) and (2) and (3) "
            "hold different bytes of block 0, part 'state', layer 0",
            "group 'two heads' is declared replicated and is not: ranks (2) and (3) hold "
            "different bytes of block 3, part 'key', 'value', layer 2",
        ]
