"""I35: with exact LRU and no leases a larger cache holds all that a smaller one holds, and smaller
pages find all that larger ones find; the order in which prompts come decides nothing while all fit.
"""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)
prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=40)


def hit_tokens(trace: list[list[int]], capacity: int, page_tokens: int = 1) -> list[int]:
    """Tokens that each prompt finds in a cache of so many pages."""
    tree = TreeCore(4 * page_tokens, groups=1, tiers=1, keep_keys=False)
    root = tree.root()
    hits = []
    for tokens in trace:
        run = np.array(tokens, np.int32)
        found = tree.match(root, run, 0)
        hits.append(found.structural_pages * page_tokens)
        lease, node, pages = tree.lease(Cursor(root, found.node, found.structural_pages))
        count = len(tokens) // page_tokens - pages
        used = tree.column_stats(0).resident
        tree.evict(0, np.empty(max(0, used + count - capacity), np.int32))
        run = run[pages * page_tokens : (pages + count) * page_tokens]
        tree.insert(Cursor(root, node, pages), run, COLUMN, np.zeros(count, np.int32), None, lease)
        tree.release(lease)
    tree.check()
    return hits


@given(prompts)
def test_larger_caches_never_hit_less(trace: list[list[int]]) -> None:
    found = [hit_tokens(trace, capacity) for capacity in (7, 8, 10, 13, 20, 1000)]
    for smaller, larger in itertools.pairwise(found):
        assert all(few <= many for few, many in zip(smaller, larger, strict=True))


@given(prompts)
def test_smaller_pages_find_all_that_larger_ones_find(trace: list[list[int]]) -> None:
    found = [hit_tokens(trace, 1000, page_tokens) for page_tokens in (1, 2, 4)]
    for fine, coarse in itertools.pairwise(found):
        assert all(many >= few for many, few in zip(fine, coarse, strict=True))


@given(prompts, st.randoms(use_true_random=False))
def test_order_of_inserts_decides_nothing_while_all_fit(
    trace: list[list[int]], rng: object
) -> None:
    shuffled = list(trace)
    rng.shuffle(shuffled)
    ends = [hit_tokens([*order, *trace], 1000)[len(trace) :] for order in (trace, shuffled)]
    assert ends[0] == ends[1] == [len(tokens) for tokens in trace]
