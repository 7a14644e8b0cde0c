"""The content oracle itself: what it must tell apart differs, what is the same is the same, and its
bytes are fixed, so that data written by another process or day can be checked.
"""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import block_bytes_for, blocks_for, chain_seeds, expand

TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=24)


@given(TOKENS, st.integers(1, 4), st.integers(1, 40))
def test_a_block_depends_on_its_whole_prefix(tokens: list[int], page: int, nbytes: int) -> None:
    blocks = blocks_for(b"n", tokens, page, 0, nbytes)
    assert blocks.shape == (len(tokens) // page, nbytes) and blocks.dtype == np.uint8
    for index, block in enumerate(blocks):
        prefix = tokens[: (index + 1) * page]
        assert block.tobytes() == block_bytes_for(b"n", prefix, 0, nbytes, page)


@given(TOKENS, TOKENS)
def test_other_prefixes_have_other_bytes(one: list[int], other: list[int]) -> None:
    same = one == other
    first, second = (block_bytes_for(b"n", tokens, 0, 32) for tokens in (one, other))
    assert (first == second) == same


def test_namespaces_groups_and_pages_are_told_apart() -> None:
    tokens = np.arange(8)
    seeds = [
        int(chain_seeds(namespace, tokens, page, group)[-1])
        for namespace in (b"", b"a", b"ab")
        for group in (0, 1)
        for page in (1, 2, 4)
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_longer_block_begins_like_a_shorter_one() -> None:
    long = expand([3, 4], 100)
    assert np.array_equal(expand([3, 4], 9), long[:, :9])


def test_the_bytes_are_the_same_everywhere() -> None:
    blocks = blocks_for(b"model-a", np.arange(64), 16, 1, 1000)
    digest = hashlib.sha256(blocks.tobytes()).hexdigest()
    assert digest == "34f7457be3e9382f17f706be9824b9de284d835b0f11f5dc216a90d3470ef6e0"
