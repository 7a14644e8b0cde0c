"""The offline optimum equals the best of all possible eviction choices, tried one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.replay.chains import Chains, encode_chains
from radix.replay.optimal import next_uses, optimal_hits
from radix.replay.traces import Trace

Cache = frozenset[tuple[int, ...]]


def chains_of(prompts: list[list[int]]) -> Chains:
    return encode_chains(
        Trace(
            name="made",
            unit="block",
            page_tokens=1,
            block_tokens=0,
            timestamps=np.zeros(len(prompts)),
            tokens=np.array([block for prompt in prompts for block in prompt], dtype=np.int32),
            offsets=np.cumsum([0] + [len(prompt) for prompt in prompts], dtype=np.int64),
            lengths=np.zeros(len(prompts), dtype=np.int64),
            outputs=np.empty(0, dtype=np.int32),
            output_offsets=np.zeros(len(prompts) + 1, dtype=np.int64),
            streams=np.full(len(prompts), -1),
            sessions=np.full(len(prompts), -1),
            tenants=(),
        )
    )


def best_by_trying_everything(prompts: list[list[int]], capacity: int) -> int:
    """Keep, after each request, every set of prefixes that fits; return the most hits."""
    best: dict[Cache, int] = {frozenset(): 0}
    for prompt in prompts:
        chain = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        reached: dict[Cache, int] = {}
        for cache, hits in best.items():
            served = next((i for i, block in enumerate(chain) if block not in cache), len(chain))
            available = sorted(cache.union(chain))
            for size in range(min(capacity, len(available)) + 1):
                for kept in combinations(available, size):
                    after = frozenset(kept)
                    if all(len(block) == 1 or block[:-1] in after for block in after):
                        reached[after] = max(reached.get(after, 0), hits + served)
        best = reached
    return max(best.values())


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=5), st.integers(1, 4))
def test_optimum_equals_the_best_of_all_choices(prompts: list[list[int]], capacity: int) -> None:
    chains = chains_of(prompts)
    hits = optimal_hits(chains, next_uses(chains), capacity)
    assert len(hits) == len(prompts)
    assert all(0 <= hit <= len(prompt) for hit, prompt in zip(hits, prompts, strict=True))
    assert hits.sum() == best_by_trying_everything(prompts, capacity)


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=30))
def test_unbounded_optimum_misses_each_block_once(prompts: list[list[int]]) -> None:
    chains = chains_of(prompts)
    following = next_uses(chains)
    totals = [int(optimal_hits(chains, following, c).sum()) for c in range(1, chains.blocks + 2)]
    assert totals == sorted(totals)
    assert totals[-1] == chains.blocks - chains.unique_blocks


def test_capacity_of_no_blocks_is_refused() -> None:
    chains = chains_of([[1, 2], [1, 2]])
    with pytest.raises(ValueError, match="capacity_blocks must be at least 1, got 0"):
        optimal_hits(chains, next_uses(chains), 0)
