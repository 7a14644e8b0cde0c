"""Who holds, reads and writes what of a block, written down as numbers: they are what ranks of one
run agree on without a word, and what a stored block means to every later run. They never change.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from radix.layout import Layout
from radix.shards import Parallelism, Shards, shards_of
from tests.shardrig import every_group, group, heads, latent, recurrent

GROUPS = every_group()
# Tensor parallel 4 with 2 KV heads.
FACTORS = {
    "latent": 4,
    "two heads": 2,
    "eight heads": 1,
    "recurrent": 1,
    "latent and two-head layers": 2,
    "recurrent with a shared part": 1,
    "two heads with shared scales": 2,
    "one layer": 1,
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_at_tensor_parallel_4(name: str) -> None:
    shards = Shards(GROUPS[name], Parallelism(4))
    assert shards.factor == FACTORS[name]
    assert [shards.shard(rank) for rank in range(4)] == [r // FACTORS[name] for r in range(4)]


def test_a_group_of_mixed_factors_none_of_which_divides_takes_what_divides_all() -> None:
    """2 and 3 distinct shards over 6 ranks, factors 3 and 2: no two ranks hold the same of both."""
    parts = (heads(2)[0], heads(3)[1])
    shards = Shards(group("odd", parts, store_shards=6), Parallelism(6))
    assert shards.factor == 1
    assert {shards.writers(block) for block in range(6)} == {(0, 2, 3, 4)}


def test_turns_of_replicas_follow_the_block_and_the_group() -> None:
    """With d = r mod f, block i of group g is written when i mod f == (d + g) mod f."""
    groups = [GROUPS[name] for name in ("latent", "two heads", "recurrent", "latent")]
    shards = shards_of(groups, Parallelism(4))
    turns = [[each.writers(block) for block in range(5)] for each in shards]
    assert turns == [
        [(0,), (1,), (2,), (3,), (0,)],
        [(1, 3), (0, 2), (1, 3), (0, 2), (1, 3)],
        [(0, 1, 2, 3)] * 5,
        [(1,), (2,), (3,), (0,), (1,)],
    ]


def test_context_ranks_hold_whole_blocks_in_turn_and_replicas_still_alternate() -> None:
    shards = Shards(GROUPS["two heads"], Parallelism(tensor=4, context=2))
    assert [shards.writers(block) for block in range(5)] == [
        *((0, 2), (4, 6)),
        *((1, 3), (5, 7)),
        (0, 2),
    ]
    assert shards.holds(5, np.arange(6)).tolist() == [False, True] * 3


def test_stages_hold_ranges_of_layers() -> None:
    """Ranks count tensor first, then context, then stages."""
    even = Shards(GROUPS["two heads"], Parallelism(2, pipeline=2))
    assert [even.layers_of(rank) for rank in range(4)] == [(0, 2), (0, 2), (2, 4), (2, 4)]
    given = Shards(GROUPS["two heads"], Parallelism(1, 3), stages=((0, 3), (3, 3), (3, 4)))
    assert [given.layers_of(rank) for rank in range(3)] == [(0, 3), (3, 3), (3, 4)]
    assert [len(given.reads(rank)) for rank in range(3)] == [6, 0, 2]
    assert given.writers(0) == (0, 2)
    assert Parallelism(2, 3, 4).place(23) == (2, 3, 1)


def test_ranks_read_their_own_pieces_and_those_that_they_share() -> None:
    """Store shards 4: the state in pieces 0 to 3, keys of 2 heads in 4 and 5, the latent in 6."""
    parts = (*recurrent(), *heads(2), *latent())
    some = group("mixed", parts, store_shards=4)
    assert some.layout.spans == ((0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4), (0, 4))

    def pieces(tensor: int, rank: int, written: bool) -> list[int]:
        shards = Shards(some, Parallelism(tensor))
        view = shards.written(rank) if written else shards.reads(rank)
        return sorted(set(view["piece"].tolist()))

    assert [pieces(4, r, False) for r in range(4)] == [[0, 4, 6], [1, 4, 6], [2, 5, 6], [3, 5, 6]]
    assert [pieces(4, r, True) for r in range(4)] == [[0, 4, 6], [1], [2, 5], [3]]
    assert [pieces(2, r, False) for r in range(2)] == [[0, 1, 4, 6], [2, 3, 5, 6]]
    assert [pieces(2, r, True) for r in range(2)] == [[0, 1, 4, 6], [2, 3, 5]]
    assert pieces(1, 0, True) == [0, 1, 2, 3, 4, 5, 6]


def test_bytes_of_a_block_lie_where_they_always_did() -> None:
    layout = group("mixed", (*recurrent(), *heads(2), *latent()), 4).layout
    assert layout.runs[:, 0].tolist() == [
        *([0, 72], [288, 72], [576, 72], [864, 72]),
        *([1152, 64], [1408, 64]),
        [1664, 64],
    ]
    digest = hashlib.sha256(layout.runs.tobytes()).hexdigest()
    assert digest.startswith("60cbce38f12d80ed"), digest


def test_fingerprints_are_the_same_for_ever() -> None:
    """A layout of one piece and one layer keeps the fingerprint that it had before there were runs:
    what was stored under it lies as it did.
    """
    found = {name: some.layout.fingerprint.hex() for name, some in every_group(4).items()}
    found["opaque"] = Layout.opaque(64).fingerprint.hex()
    assert found == {
        "latent": "a98cc14c4b0eccb7df21652bf622e53a",
        "two heads": "8409d902e1efc97e59853f48c0d12b07",
        "eight heads": "256d11d992f33f727c65deea3d7da378",
        "recurrent": "06de414b3913d594903a4748711a0cb8",
        "latent and two-head layers": "91896b7b74e173fea6ff3cb8e3127332",
        "recurrent with a shared part": "d28fd79e628307f48113bd2a23962ac3",
        "two heads with shared scales": "803b8ebeee1d9c7cddb429cb7e2a6415",
        "one layer": "346643a8c3d6b8a623e49bff8627d8bd",
        "opaque": "9cfa2e41c592234b78668aa50a766929",
    }
