"""What is written can be read: whatever the page, the window and the grid of the states, a prompt
that one request computed is hit by the next one as far as the grids allow, and never further than
every group's own rule, tried length by length, says (C41, I26, I28).
"""

from __future__ import annotations

import math

import pytest

from radix.cache import PrefixCache
from radix.groups import Group
from radix.plan import Cursor
from tests.mixes import chunked, full, state, window
from tiers.index import IndexTier

LENGTHS = range(1, 41)


def run(cache: PrefixCache, prompt: list[int], *, step: int = 1 << 20) -> int:
    """A whole request in steps; its hit."""
    request = cache.admit(prompt)
    hit = at = request.hit_tokens
    states = any(rule.per_position for rule in cache.residency.rules)
    while at < len(prompt):
        size = min(step, len(prompt) - at)
        for stop in request.cuts(size) if states else ():
            request.snapshot(stop)
        at += size
        request.computed(at)
    request.finish()
    cache.poll()
    return hit


def valid(group: Group, there: set[int], page: int, length: int) -> bool:
    """Whether a hit of ``length`` tokens has what the group's retention asks for, block by block:
    ``there`` are the pages with which its resident blocks end.
    """
    retention = group.retention
    if retention.rule == "state":
        return length // page - 1 in there and length % (group.grid_tokens or 1) == 0
    block = group.grid_tokens or page
    low = 0
    if retention.rule == "window":
        low = max(0, length - (retention.tokens - 1) - retention.extra)
    if retention.rule == "chunked":
        low = length // retention.tokens * retention.tokens
    needed = {token // block * block for token in range(low, length)}
    return length % block == 0 and {(at + block) // page - 1 for at in needed} <= there


def most(cache: PrefixCache, prompt: list[int]) -> int:
    """The longest hit that every group allows, by trying every length."""
    found = cache.match(prompt, leave=0)[1]
    end = Cursor(found.root, found.node, found.pages)
    page, best = cache.page_tokens, 0
    there = [
        set(cache.tree.entries(end, cache.tree.column(group, 0)).tolist())
        for group in range(len(cache.groups))
    ]
    for length in range(page, min(found.pages * page, len(prompt) - 1) + 1, page):
        each = zip(cache.groups, there, strict=True)
        if all(valid(group, have, page, length) for group, have in each):
            best = length
    return best


def check(groups: tuple[Group, ...], page: int, *, step: int) -> None:
    """Stores and reads again prompts of every length, each below a first token of its own."""
    cache = PrefixCache(groups, [IndexTier(4096)], page_tokens=page)
    unit = cache.align_tokens
    mix = [(group.retention.rule, group.retention.tokens, group.grid_tokens) for group in groups]
    for n in LENGTHS:
        prompt, what = [n, *range(100, 99 + n)], f"{page=} {mix} {n=} {step=}"
        assert run(cache, prompt, step=step) == 0, what
        more = [*prompt, *[7] * page]
        told = cache.explain(more)
        assert told.hit_tokens == n // unit * unit == most(cache, more), what
        # sent again, one token is left to compute: the hit is at most one unit shorter
        again = cache.explain(prompt)
        assert again.hit_tokens == (n - 1) // unit * unit == most(cache, prompt), what
        assert run(cache, prompt, step=step) == again.hit_tokens, what
        assert cache.explain(more).hit_tokens == told.hit_tokens, what
    cache.check()
    for group in range(len(groups)):
        stats = cache.tree.column_stats(cache.tree.column(group, 0))
        assert stats.protected == 0
        assert cache.usage()["device"].used_blocks[group] == stats.resident
    cache.close()


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("page", [1, 2, 4])
def test_prompt_that_was_stored_is_hit_as_far_as_the_grids_allow(page: int, grid: int) -> None:
    """C41, vllm#44082: the mask of what was written and the gate of what may be read lay on two
    grids, so that some mixes wrote blocks that no request could ever hit.
    """
    for length in range(1, 3 * page + 2):
        check((full(), window(length), state(grid)), page, step=3 if length % 2 else 1 << 20)


@pytest.mark.parametrize("page", [1, 2, 4])
def test_windows_chunks_and_larger_blocks_are_hit_as_far_as_their_blocks_are_whole(
    page: int,
) -> None:
    """C41 without states: where nothing is updated in place every page may end a hit."""
    for length in range(1, 3 * page + 2):
        for more in ((), (chunked(length, "chunk"),), (window(2 * length, "far"),)):
            check((full(), window(length), *more), page, step=3)
        check((full(grid_tokens=3 * page), window(length), full("half", 32)), page, step=5)


def test_grid_that_no_page_ends_on_still_hits() -> None:
    """C49, sglang#34780: the page grew from 64 to 512 tokens and the grid of the states stayed 64:
    the places where a state may stand are the multiples of both.
    """
    cache = PrefixCache((full(), state(3)), [IndexTier(256)], page_tokens=8)
    assert cache.align_tokens == math.lcm(8, 3)
    prompt = list(range(60))
    run(cache, prompt)
    assert cache.explain([*prompt, 1]).hit_tokens == 48
    assert cache.usage()["device"].used_blocks == (7, 1)
    cache.close()
