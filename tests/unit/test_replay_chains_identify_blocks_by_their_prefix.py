"""Two blocks get one chain id exactly when they and everything before them are equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radix.replay.chains import encode_chains
from radix.replay.traces import Trace, Unit

# Few ids and short prompts, so that prefixes meet and part all the time.
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=12)


def make_trace(prompts: list[list[int]], unit: Unit, page_tokens: int) -> Trace:
    offsets = np.cumsum([0] + [len(prompt) for prompt in prompts], dtype=np.int64)
    return Trace(
        name="made",
        unit=unit,
        page_tokens=page_tokens,
        block_tokens=0,
        timestamps=np.zeros(len(prompts)),
        tokens=np.array([token for prompt in prompts for token in prompt], dtype=np.int32),
        offsets=offsets,
        lengths=np.zeros(len(prompts), dtype=np.int64),
        outputs=np.empty(0, dtype=np.int32),
        output_offsets=np.zeros(len(prompts) + 1, dtype=np.int64),
        streams=np.full(len(prompts), -1),
        sessions=np.full(len(prompts), -1),
        tenants=(),
    )


def prefixes(prompts: list[list[int]], page_tokens: int) -> list[tuple[int, ...]]:
    """Name every full page by everything up to its end."""
    return [
        tuple(prompt[:end])
        for prompt in prompts
        for end in range(page_tokens, len(prompt) + 1, page_tokens)
    ]


def check(trace: Trace, prompts: list[list[int]]) -> None:
    page = trace.page_tokens
    chains = encode_chains(trace)
    names = prefixes(prompts, page)
    assert chains.blocks == len(names)
    pairs = set(zip(names, chains.ids.tolist(), strict=True))
    assert len(pairs) == len(set(names)) == chains.unique_blocks
    assert {chain for _, chain in pairs} == set(range(chains.unique_blocks))
    assert np.diff(chains.offsets).tolist() == [len(prompt) // page for prompt in prompts]
    assert chains.usable_blocks.tolist() == [max(0, len(p) - 1) // page for p in prompts]


@given(PROMPTS)
def test_chain_ids_of_a_block_trace_name_whole_prefixes(prompts: list[list[int]]) -> None:
    check(make_trace(prompts, "block", 1), prompts)


@given(PROMPTS)
def test_chain_ids_agree_where_each_block_has_one_predecessor(prompts: list[list[int]]) -> None:
    """Ids that already tell the whole prefix take a shorter way to the same answer."""
    names: dict[tuple[int, ...], int] = {}
    renamed = [
        [names.setdefault(tuple(p[: i + 1]), 7 * len(names)) for i in range(len(p))]
        for p in prompts
    ]
    check(make_trace(renamed, "block", 1), renamed)


@given(PROMPTS, st.integers(1, 4))
def test_chain_ids_of_a_token_trace_name_full_pages(
    prompts: list[list[int]], page_tokens: int
) -> None:
    check(make_trace(prompts, "token", page_tokens), prompts)
