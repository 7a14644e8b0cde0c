"""Fault: after an engine's insert nothing could be hit at its end, often nothing at all. Mechanism:
of a window it kept what a hit at the very end of the prompt needs; where hits end on a grid (the
engine's, or that of groups whose blocks have several pages), or a group looks ahead, the longest
hit ends before that, and the pages that it needs of the window had no slot. Source: storms that
look at what an insert can be hit at.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.ownership import Ownership
from tiers.index import IndexTier

PAGE = 2
LONGEST = 14  # pages
KV = Group.full("kv", 64)
PAIRS = Group("pairs", Layout.opaque(64), grid_tokens=2 * PAGE)
AHEAD = Group("ahead", Layout.opaque(64), lookahead=1)


def near(tokens: int) -> Group:
    """A window of so many tokens."""
    return Group("near", Layout.opaque(64), Retention("window", tokens))


def chunk(tokens: int) -> Group:
    """Chunks of so many tokens."""
    return Group("chunk", Layout.opaque(64), Retention("chunked", tokens))


MODELS = {
    "a window": ([KV, near(2)], 1),
    "hits on a grid": ([KV, near(2)], 6),
    "hits on a grid, a window of some pages": ([near(5), KV], 6),
    "beside what looks ahead": ([KV, AHEAD, near(2)], 1),
    "beside what looks ahead, on a grid": ([KV, AHEAD, near(4)], 4),
    "beside blocks of several pages": ([PAIRS, near(2)], 1),
    "beside blocks of several pages, on a grid": ([PAIRS, near(5)], 6),
    "chunks on a grid": ([KV, chunk(6)], 4),
    "chunks of a page on a grid": ([KV, chunk(2)], 6),
}


@pytest.mark.parametrize("many", [False, True], ids=["single", "step"])
@pytest.mark.parametrize("shared", [False, True], ids=["owned", "shared"])
@pytest.mark.parametrize("model", MODELS)
def test_the_longest_hit_of_what_was_inserted_is_there(
    model: str, shared: bool, many: bool
) -> None:
    groups, align = MODELS[model]
    for first in range(1, LONGEST):
        ownership = Ownership.SHARED if shared else Ownership.OWNED
        cache = PrefixCache(
            *(groups, [IndexTier(64)]),
            page_tokens=PAGE,
            align_tokens=align,
            ownership=ownership,
        )
        free = list(range(64))
        with cache, cache.lease(cache.match([])[1]) as lease:
            for pages in range(first, LONGEST):  # it goes on by a page each
                prompt = np.arange(pages * PAGE, dtype=np.int32)
                rows = [free[lease.pages : pages]] * len(groups) if shared else None
                if many:
                    given = None if rows is None else [rows]
                    cache.insert_many([prompt], [lease], slots=given)
                else:
                    cache.insert(prompt, lease, slots=rows)
                cache.check()
                ahead = max(group.lookahead for group in groups)
                longest = (pages - ahead) * PAGE // cache.align_tokens * cache.align_tokens
                hit = cache.match(prompt, leave=0)[0].hit_pages * PAGE
                assert hit == longest, f"{first} pages, then to {pages}"
