"""The clairvoyant optimum: the most block hits that any policy could reach on a trace.

Blocks have equal size, so each reuse is an interval from one use of a block to its next one, and a
cache of C blocks can serve a set of reuses exactly when no more than C of their intervals overlap
at any point. Going through the trace and, whenever more than C overlap, giving up the interval that
ends last keeps the largest such set. This is farthest-next-use eviction with bypass: a block that
is needed later than everything kept never enters. Kept here: a block of a prefix is needed before
the blocks that follow it, so what is kept is always a set of prefixes, and each hit counted is part
of a hit from the root.
"""

from __future__ import annotations

from heapq import heappush, heappushpop

import numpy as np

from radix.replay.chains import Chains
from radix.replay.traces import Int64Array


def next_uses(chains: Chains) -> Int64Array:
    """Return for each block use the position of its block's next use, or 0 where there is none.

    Cost: one sort of the block uses. Depends on the trace only: compute it once for many
    capacities.
    """
    ids = chains.ids
    following = np.zeros(len(ids), dtype=np.int64)
    if len(ids):
        order = np.argsort(ids, kind="stable")
        same = ids[order[1:]] == ids[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
    return following


def optimal_hits(chains: Chains, following: Int64Array, capacity_blocks: int) -> Int64Array:
    """Return the blocks that the clairvoyant optimum hits in each request, at one capacity.

    Cost: O(reuses x log reuses), about 0.4 us a block use.

    Args:
        chains: the trace's blocks.
        following: what `next_uses` returned for them.
        capacity_blocks: size of the cache in blocks, at least 1.

    Raises:
        ValueError: `capacity_blocks` is below 1.
    """
    if capacity_blocks < 1:
        raise ValueError(f"capacity_blocks must be at least 1, got {capacity_blocks}")
    hits = bytearray(len(chains.ids))
    # The heap holds the ends of kept intervals, farthest first. Ends that have passed stay in it:
    # they lie below every end still to come and so are never popped while one is live.
    heap: list[int] = []
    live = 0
    for here, after in enumerate(following.tolist()):
        if hits[here]:
            live -= 1
        if not after:
            continue
        hits[after] = 1
        if live < capacity_blocks:
            heappush(heap, -after)
            live += 1
        else:
            hits[-heappushpop(heap, -after)] = 0
    running = np.zeros(len(hits) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(hits, dtype=np.uint8), out=running[1:])
    return np.diff(running[chains.offsets])
