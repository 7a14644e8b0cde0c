"""Models in small: groups of every retention, windows of several lengths beside each other, blocks
of more than a page, checkpoint grids coprime to the page. One place for the worlds of the tests.
"""

from __future__ import annotations

import random

from radix.groups import Group, Retention
from radix.layout import Layout


def full(name: str = "kv", block_bytes: int = 64, **more: int) -> Group:
    """Attention over everything."""
    return Group(name, Layout.opaque(block_bytes), **more)


def window(tokens: int, name: str = "near", block_bytes: int = 24, extra: int = 0) -> Group:
    """Attention over the last ``tokens`` tokens."""
    return Group(name, Layout.opaque(block_bytes), Retention("window", tokens, extra))


def chunked(tokens: int, name: str = "chunk", block_bytes: int = 16) -> Group:
    """Attention inside chunks of ``tokens`` tokens."""
    return Group(name, Layout.opaque(block_bytes), Retention("chunked", tokens))


def state(grid: int | None = None, name: str = "state", block_bytes: int = 40) -> Group:
    """One snapshot a length, at multiples of ``grid``."""
    return Group(name, Layout.opaque(block_bytes), Retention("state"), grid_tokens=grid)


def mix(rng: random.Random, page_tokens: int) -> tuple[Group, ...]:
    """A model of a seed: at least one group that keeps everything, and any of the others."""
    page = page_tokens
    blocks = rng.choice((1, 1, 1, 2))
    ahead = rng.choice((0, 0, 0, 1)) if blocks == 1 else 0
    groups = [full(grid_tokens=blocks * page), full("draft", 32, lookahead=1)][: 1 + ahead]
    if rng.random() < 0.6:
        groups.append(window(rng.choice((1, page, page + 1, 3 * page))))
    if rng.random() < 0.25:
        groups.append(window(2 * page + 1, "far"))
    if rng.random() < 0.25:
        groups.append(chunked(rng.choice((page, 3 * page))))
    if rng.random() < 0.5:
        groups.append(state(rng.choice((None, 1, 2, 3, 5))))
    rng.shuffle(groups)
    return tuple(groups)
