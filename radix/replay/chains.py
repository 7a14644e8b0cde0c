"""Encode a trace's prompts as chains of blocks, once, for every offline computation on it.

A block is identified by its whole chain from the root: two blocks are the same only when all blocks
before them are the same too, and they are of one tenant. Each such block gets one number, its
*chain id*. Kept here: equal chain ids mean equal prefixes, exactly (numbers are given by
comparison, never by a hash that could collide), and the ids in use are 0 to unique_blocks - 1
without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radix.replay.traces import Int32Array, Int64Array, Trace


@dataclass(frozen=True, slots=True)
class Chains:
    """The blocks of all requests: request i is `ids[offsets[i]:offsets[i + 1]]`.

    `usable_blocks[i]` is how many of them a hit may cover when one token is left to compute.
    """

    ids: Int32Array
    offsets: Int64Array
    usable_blocks: Int64Array
    unique_blocks: int

    @property
    def blocks(self) -> int:
        """Number of blocks over all requests. Cost: O(1)."""
        return len(self.ids)


def encode_chains(trace: Trace) -> Chains:
    """Number every block of a trace by its chain; the trace is not changed.

    Cost: O(blocks) where every block id has one predecessor (most block traces), else a sort for
    each depth, or a dictionary look-up for each page of a token trace.
    """
    lengths = np.diff(trace.offsets)
    page_tokens = trace.page_tokens
    counts = lengths // page_tokens
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    if trace.unit == "block":
        ids = _dense(trace.tokens) if not trace.tenants else _by_tenant(trace)
        if not _single_parents(ids, offsets):
            ids = _by_depth(ids, offsets)
    else:
        ids = _by_page(trace, counts)
    return Chains(
        ids=ids,
        offsets=offsets,
        usable_blocks=np.maximum(lengths - 1, 0) // page_tokens,
        unique_blocks=int(ids.max()) + 1 if len(ids) else 0,
    )


def _dense(values: Int32Array) -> Int32Array:
    """Renumber values to 0, 1, 2, ... by rank. Cost: the values, or a sort where they lie far
    apart.
    """
    limit = int(values.max()) + 1 if len(values) else 0
    if limit <= 4 * len(values):
        there = np.zeros(limit, dtype=np.bool_)
        there[values] = True
        return (np.cumsum(there, dtype=np.int32) - 1).astype(np.int32)[values]
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.int32)


def _by_tenant(trace: Trace) -> Int32Array:
    """Renumber the blocks of each tenant apart from those of others. Cost: a sort."""
    names = {name: number for number, name in enumerate(dict.fromkeys(trace.tenants))}
    whose = np.array([names[name] for name in trace.tenants], np.int64)
    pairs = np.repeat(whose, np.diff(trace.offsets)) << 31 | trace.tokens
    ranks: Int64Array = np.unique(pairs, return_inverse=True)[1]
    return ranks.astype(np.int32)


def _single_parents(ids: Int32Array, offsets: Int64Array) -> bool:
    """Tell whether each id always follows the same one, so that it alone tells its whole chain."""
    if not len(ids):
        return True
    parents = np.empty_like(ids)
    parents[1:] = ids[:-1]
    starts = offsets[:-1]
    parents[starts[starts < offsets[1:]]] = -1
    known = np.empty(int(ids.max()) + 1, dtype=np.int32)
    known[ids] = parents
    return bool((known[ids] == parents).all())


def _by_depth(ids: Int32Array, offsets: Int64Array) -> Int32Array:
    """Number blocks depth by depth: a block is new where its (parent, id) is."""
    chains = np.empty_like(ids)
    starts = offsets[:-1]
    counts = np.diff(offsets)
    order = np.argsort(-counts, kind="stable")
    starts, counts = starts[order], counts[order]
    parents = np.zeros(len(starts), dtype=np.int64)
    given = 0
    for depth in range(int(counts[0]) if len(counts) else 0):
        # Requests are ordered by length, so that those which reach this depth stand first.
        alive = int(np.searchsorted(-counts, -depth, side="left"))
        places = starts[:alive] + depth
        pairs = (parents[:alive] << 31) | ids[places]
        unique, ranks = np.unique(pairs, return_inverse=True)
        parents = ranks + given
        chains[places] = parents
        given += len(unique)
    return chains


def _by_page(trace: Trace, counts: Int64Array) -> Int32Array:
    """Number the full pages of token prompts through a dictionary of (parent, page)."""
    known: dict[tuple[int, bytes], int] = {}
    chains: list[int] = []
    roots: dict[str, int] = {}
    tenants = trace.tenants or ("",) * len(trace)
    width = trace.page_tokens * trace.tokens.itemsize
    for prompt, count, tenant in zip(trace.prompts(), counts.tolist(), tenants, strict=True):
        data = prompt.tobytes()
        chain = roots.setdefault(tenant, -1 - len(roots))
        for start in range(0, count * width, width):
            chain = known.setdefault((chain, data[start : start + width]), len(known))
            chains.append(chain)
    return np.array(chains, dtype=np.int32)
