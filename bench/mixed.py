"""A window and a state group beside a full one: what they add to a match, a lease and an insert.

Kept here: the same prompts go through both models in turn, round by round, so that the ratio is of
one run. The second model keeps what its rules say: every block of the full group, the last window,
one checkpoint a prompt.
"""

from __future__ import annotations

import time

import numpy as np

from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Row, Sizes, Target, no_collection
from bench.measure import ratio as over
from bench.workloads import Prompts, fresh_prompts, shared_prompts, shuffled
from radix.cache import PrefixCache
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.plan import Cursor
from tiers.index import IndexTier

PAGE_TOKENS = 16
WINDOW_TOKENS = 1024
ALONE, MIXED = "full alone", "with a window and a state"
LEASE, LEASE_AGAIN = "TreeCore.lease", "TreeCore.lease, pinned just before"


def _cache(kind: str, pages: int, prompts: int) -> PrefixCache:
    groups = [Group.full("kv", 1)]
    blocks = [pages]
    if kind == MIXED:
        one = Layout.opaque(1)
        groups.append(Group("near", one, Retention("window", WINDOW_TOKENS)))
        groups.append(Group("state", one, Retention("state")))
        blocks += [prompts * (WINDOW_TOKENS // PAGE_TOKENS + 1), prompts + 1]
    return PrefixCache(groups, [IndexTier(blocks)], page_tokens=PAGE_TOKENS)


def _insert(cache: PrefixCache, prompt: Prompts, ends: list[int]) -> float:
    """us of the insert alone; ``ends``: where a checkpoint stands."""
    lease = cache.lease(cache.match(prompt, leave=0)[1])
    start = time.perf_counter_ns()
    cache.insert(prompt, lease, boundaries=ends)
    span = time.perf_counter_ns() - start
    lease.release()
    return span / 1e3


def _match_us(cache: PrefixCache, rows: list[Prompts]) -> list[float]:
    clock, match = time.perf_counter_ns, cache.match
    spans: list[float] = []
    for row in rows:
        start = clock()
        match(row, leave=0)
        spans.append((clock() - start) / 1e3)
    return spans


def _lease_us(cache: PrefixCache, ends: list[Cursor], *, again: bool) -> list[float]:
    """us of pinning each end, given back at once; ``again``: right after it was pinned before."""
    clock, tree = time.perf_counter_ns, cache.tree
    spans: list[float] = []
    for end in ends:
        if again:
            tree.release(tree.lease(end)[0])
        start = clock()
        lease, _, _ = tree.lease(end)
        spans.append((clock() - start) / 1e3)
        tree.release(lease)
    return spans


def run_mixed(sizes: Sizes, place: Place) -> Outcome:
    """Full hits and pins of a working set, and inserts of prompts that share nothing, in both."""
    count, tokens = sizes["prompts"], sizes["tokens"]
    pages = tokens // PAGE_TOKENS
    rounds, rng = Rounds(), np.random.default_rng(31)
    shared = shared_prompts(count, tokens, sizes["group"], tokens // 2, seed=32)
    rows = [shared[number] for number in range(count)]
    caches = {kind: _cache(kind, count * pages, count) for kind in (ALONE, MIXED)}
    ends = {ALONE: [], MIXED: [pages * PAGE_TOKENS]}
    for kind, cache in caches.items():
        for row in rows:
            _insert(cache, row, ends[kind])
    hits = {
        kind: [cache.match(row, leave=0)[0].hit_pages for row in rows]
        for kind, cache in caches.items()
    }
    with no_collection():
        for _ in range(sizes["rounds"]):
            for kind, cache in caches.items():
                order = [rows[at] for at in shuffled(count, rng)]
                rounds.add_median(f"match, {kind}", OURS, "us", _match_us(cache, order))
                places = [cache.match(row, leave=0)[1] for row in rows]
                for name, again in ((LEASE, False), (LEASE_AGAIN, True)):
                    some = [places[at] for at in shuffled(count, rng)]
                    spans = _lease_us(cache, some, again=again)
                    rounds.add_median(f"{name}, {kind}", OURS, "us", spans)
    fresh = fresh_prompts(count, tokens, seed=33)
    for cache in caches.values():
        cache.close()
    with no_collection():
        for _ in range(sizes["rounds"]):
            for kind in (ALONE, MIXED):
                cache = _cache(kind, count * pages, count)
                order = [fresh[at] for at in shuffled(count, rng)]
                spans = [_insert(cache, row, ends[kind]) for row in order]
                rounds.add_median(f"insert, {kind}", OURS, "us", spans)
                cache.close()
    found: list[Row] = rounds.rows()
    names = [f"{what}, {{}}" for what in ("match", "insert")]
    return Outcome(
        rows=found,
        facts={f"hit_pages, {kind}": sum(counts) for kind, counts in hits.items()},
        ratios=[
            over(found, name.format(MIXED), name.format(ALONE))
            for name in (*names, f"{LEASE}, {{}}", f"{LEASE_AGAIN}, {{}}")
        ],
        targets=[
            Target(f"{name.format(MIXED)} / {name.format(ALONE)}", "at most", 2.0) for name in names
        ],
    )


BENCHMARKS = (
    Benchmark(
        "mixed",
        "What a window and a state group add to a match, a lease and an insert",
        run_mixed,
        smoke={"prompts": 20, "tokens": 2048, "group": 5, "rounds": 2},
        full={"prompts": 1000, "tokens": 4096, "group": 20, "rounds": 7},
    ),
)
