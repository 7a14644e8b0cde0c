"""Replay a trace through a cache of slots without bytes: what would an engine's cache have hit?

The cache is the one that engines use: the same facade, the same native tree and policies over an
`IndexTier`, whose slots have no bytes behind them. Kept here: what is counted is the structural hit
of each prompt at its turn, before the rule that one token is left to compute; then the prompt's
blocks are inserted while its path is leased, as far as they fit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from radix.cache import PrefixCache
from radix.groups import Cost, Group
from radix.hints import Hints
from radix.replay.chains import Chains
from radix.replay.hints import tick_s
from radix.replay.progress import Progress
from radix.replay.report import Run, hits_by_tenant
from radix.replay.traces import Trace
from radix.tenants import Tenants
from tiers.index import IndexTier

_STEP = 256
# What more a token costs for each one before it, in the FLOPs of a token: of Llama 3.1 8B.
_PER_TOKEN_BEFORE = 4 * 32 * 32 * 128 / (2 * 8.03e9)
BLOCK_TOKENS = 512


def _cost_of(trace: Trace) -> Cost:
    """What computing one entry of a trace costs, in entries without any before them."""
    entry = 1 if trace.unit == "token" else trace.block_tokens or BLOCK_TOKENS
    return Cost(1.0, entry * _PER_TOKEN_BEFORE)


def replay_index(
    trace: Trace,
    chains: Chains,
    capacity_blocks: int,
    policy: str,
    progress: Progress,
    hints: Sequence[Hints] | None = None,
    tenants: Tenants | None = None,
) -> Run:
    """Run an online policy over a whole trace at one capacity and count its hits.

    Neither trace nor chains are changed. Cost: about 20 us a request and 0.1 us a block.

    Args:
        trace: the prompts; a page is one block id, or `trace.page_tokens` token ids.
        chains: the same trace's blocks, of which only the counts are used.
        capacity_blocks: size of the cache in blocks, at least 1.
        policy: an eviction policy that `PrefixCache` knows.
        progress: told now and then how many requests are done.
        hints: what each request says at its end; None: nothing.
        tenants: how the room is divided among the trace's tenants; None: it is not. Blocks of two
            tenants are never the same ones.

    Raises:
        ValueError: `capacity_blocks` is below 1, or the policy is unknown.
    """
    began = time.perf_counter()
    hits = np.empty(len(trace), np.int64)
    # No group needs fewer bytes than this, and here none is ever touched.
    groups = [replace(Group.full("blocks", 1), cost=_cost_of(trace))]
    times = (trace.timestamps * (tick_s(trace) * 1e9)).astype(np.int64).tolist()
    device, now = IndexTier(capacity_blocks), 0
    requests = zip(trace.prompts(), trace.spaces(), strict=True)
    with PrefixCache(
        *(groups, [device]),
        page_tokens=trace.page_tokens,
        policy=policy,
        clock=lambda: now,
        tenants=tenants,
    ) as cache:
        for number, (prompt, space) in enumerate(requests):
            if number % _STEP == 0:
                progress.reach(number)
            now = times[number]
            found, cursor = cache.match(prompt, namespace=space, leave=0)
            hits[number] = found.structural_pages
            with cache.lease(cursor) as lease:
                cache.insert(prompt, lease, partial=True)
                if hints is not None:
                    lease.release(hints=hints[number])
        use = cache.tenant_use()
    progress.reach(len(trace))
    resident = {name: each.tiers[device.name].blocks for name, each in use.items()}
    return Run(
        policy=policy,
        capacity_blocks=capacity_blocks,
        hit_blocks=int(hits.sum()),
        usable_hit_blocks=int(np.minimum(hits, chains.usable_blocks).sum()),
        total_blocks=chains.blocks,
        seconds=time.perf_counter() - began,
        tenants=hits_by_tenant(trace, chains, hits, resident),
    )
