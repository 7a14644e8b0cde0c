"""A scheduler's step: what 64 requests cost in one crossing each of match, lease, insert and
release, and call by call; and what the calls of the facade cost beside a busy thread.

Kept here: both ways serve the same requests in the same order, in turn round by round, each from an
empty cache; every figure is of one request. Between the calls of a step nothing else is timed.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Sizes, Target, no_collection
from bench.measure import ratio as over
from bench.scale import spin
from bench.workloads import Prompts, fresh_prompts, shared_prompts, shuffled
from radix.cache import PrefixCache
from radix.groups import Group
from radix.lease import Lease
from radix.plan import Cursor
from radix.tree import TreeCore
from tiers.index import IndexTier

PAGE_TOKENS = 16
CALLS = ("match", "lease", "insert", "release")
EACH, STEP = "{}.{}, one by one", "{}.{}, a step"
COLUMNS = np.zeros(1, np.uint32)


def _cache(blocks: int) -> PrefixCache:
    return PrefixCache([Group.full("kv", 1)], [IndexTier(blocks)], page_tokens=PAGE_TOKENS)


class _Clock:
    """Microseconds a request of each call, summed over the steps."""

    def __init__(self) -> None:
        self.us = dict.fromkeys(CALLS, 0.0)

    def time(self, call: str, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What ``work`` gives; its time is added to that of ``call``."""
        start = time.perf_counter_ns()
        result = work(*given, **named)
        self.us[call] += (time.perf_counter_ns() - start) / 1e3
        return result

    def each(self, call: str, work: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> Any:
        """What ``work`` gives for each of many, in one span."""
        start = time.perf_counter_ns()
        results = [work(*one) for one in given]
        self.us[call] += (time.perf_counter_ns() - start) / 1e3
        return results


def _cache_each(cache: PrefixCache, steps: list[list[Prompts]], clock: _Clock) -> int:
    """All steps, call by call; pages that were created."""
    made, match = 0, partial(cache.match, leave=0)
    for rows in steps:
        found = clock.each("match", match, [(row,) for row in rows])
        leases = clock.each("lease", cache.lease, [(cursor,) for _, cursor in found])
        done = clock.each("insert", cache.insert, list(zip(rows, leases, strict=True)))
        clock.each("release", Lease.release, [(lease,) for lease in leases])
        made += sum(one.created_pages for one in done)
    return made


def _cache_step(cache: PrefixCache, steps: list[list[Prompts]], clock: _Clock) -> int:
    """The same, four calls a step."""
    made = 0
    for rows in steps:
        found = clock.time("match", cache.match_many, rows, leave=0)
        leases = clock.time("lease", cache.lease_many, found)
        done = clock.time("insert", cache.insert_many, rows, leases)
        clock.time("release", cache.release_many, leases)
        made += int(done.created_pages.sum())
    return made


def _tree() -> tuple[TreeCore, int]:
    tree = TreeCore(PAGE_TOKENS * 4, groups=1, tiers=1, keep_keys=False)
    return tree, tree.root()


def _tree_each(tree: TreeCore, root: int, steps: list[list[Prompts]], clock: _Clock) -> int:
    """All steps on the tree alone, call by call."""
    made = 0
    for rows in steps:
        slots = np.arange(len(rows[0]) // PAGE_TOKENS, dtype=np.int32)
        found = clock.each("match", tree.match, [(root, row, 0) for row in rows])
        at = [(Cursor(root, match.node, match.structural_pages),) for match in found]
        leases = clock.each("lease", tree.lease, at)
        work = [
            (Cursor(root, node, pages), row[pages * PAGE_TOKENS :], COLUMNS, slots, None, lease)
            for row, (lease, node, pages) in zip(rows, leases, strict=True)
        ]
        done = clock.each("insert", tree.insert, work)
        clock.each("release", tree.release, [(lease,) for lease, _, _ in leases])
        made += sum(one.created for one in done)
    return made


def _tree_step(tree: TreeCore, root: int, steps: list[list[Prompts]], clock: _Clock) -> int:
    """The same, four crossings a step."""
    made = 0
    for rows in steps:
        roots = np.full(len(rows), root, np.uint64)
        slots = np.arange(len(rows) * len(rows[0]) // PAGE_TOKENS, dtype=np.int32)
        found = clock.time("match", tree.match_many, roots, rows, 0)
        leases, ends = clock.time("lease", tree.lease_many, found)
        done = clock.time("insert", tree.insert_many, ends, rows, COLUMNS, slots, None, leases)
        clock.time("release", tree.release_many, leases)
        made += int(done["created"].sum())
    return made


def run_step(sizes: Sizes, place: Place) -> Outcome:
    """Requests that share half of their prompts with others, all served, step by step."""
    count, tokens = sizes["prompts"], sizes["tokens"]
    prompts = shared_prompts(count, tokens, sizes["group"], tokens // 2, seed=51)
    rounds, rng = Rounds(), np.random.default_rng(52)
    made: dict[str, int] = {}
    with no_collection():
        for _ in range(sizes["rounds"]):
            order = [prompts[at] for at in shuffled(count, rng)]
            width = sizes["requests"]
            steps = [order[first : first + width] for first in range(0, count, width)]
            for name, run in (("cache", (_cache_each, _cache_step)), ("tree", None)):
                for which, label in enumerate((EACH, STEP)):
                    gc.collect()  # what the last one held is taken again: no fresh memory
                    clock = _Clock()
                    if run is not None:
                        with _cache(count * tokens // PAGE_TOKENS) as cache:
                            pages = run[which](cache, steps, clock)
                    else:
                        tree, root = _tree()
                        pages = (_tree_each, _tree_step)[which](tree, root, steps, clock)
                    made[label.format(name, "insert")] = pages
                    whose = "PrefixCache" if run else "TreeCore"
                    for call in CALLS:
                        row = label.format(whose, call)
                        rounds.add(row, OURS, "us", clock.us[call] / count)
    found = rounds.rows()
    pairs = [
        (STEP.format(whose, call), EACH.format(whose, call))
        for whose in ("PrefixCache", "TreeCore")
        for call in CALLS
    ]
    return Outcome(
        rows=found,
        facts={f"created_pages, {name}": pages for name, pages in made.items()},
        ratios=[over(found, *pair) for pair in pairs],
        targets=[Target(" / ".join(pair), "at most", 1.0) for pair in pairs],
    )


# ---------------------------------------------------------------------- beside a busy thread


def _mean_us(call: Callable[[Any], Any], given: Sequence[Any]) -> tuple[float, list[Any]]:
    """Wall time a call, on average, and what the calls gave."""
    start = time.perf_counter_ns()
    results = [call(each) for each in given]
    return (time.perf_counter_ns() - start) / 1e3 / len(given), results


def run_facade_busy(sizes: Sizes, place: Place) -> Outcome:
    """The engine-driven calls of the facade while another thread of Python computes all the time.

    A round evicts a set of prompts and inserts it again, so that the cache is full throughout. Hits
    are asked for so often that the other thread gets its turns in every round, or a round would
    have one of five milliseconds or none.
    """
    count, tokens = sizes["prompts"], sizes["tokens"]
    pages = tokens // PAGE_TOKENS
    rows = list(fresh_prompts(count, tokens, seed=53))
    rounds, ended = Rounds(), threading.Event()
    busy = threading.Thread(target=spin, args=(ended,), daemon=True)
    hits = 0
    with _cache(count * pages) as cache, no_collection():
        for row in rows:
            with cache.lease(cache.match(row, leave=0)[1]) as lease:
                cache.insert(row, lease)
        busy.start()
        try:
            for _ in range(sizes["rounds"]):
                asked = rows[: sizes["asked"]] * (sizes["calls"] // sizes["asked"])
                match_us, found = _mean_us(lambda row: cache.match(row, leave=0), asked)
                hits += sum(match.hit_pages for match, _ in found)
                evict_us, _ = _mean_us(lambda row: cache.evict(0, pages), rows)
                starts = [cache.match(row, leave=0)[1] for row in rows]
                lease_us, leases = _mean_us(cache.lease, starts)
                pairs = list(zip(rows, leases, strict=True))
                insert_us, _ = _mean_us(lambda pair: cache.insert(*pair), pairs)
                release_us, _ = _mean_us(lambda lease: lease.release(), leases)
                spans = (match_us, lease_us, insert_us, release_us)
                for call, us in zip((*CALLS, "evict"), (*spans, evict_us), strict=True):
                    rounds.add(f"PrefixCache.{call} beside a busy thread", OURS, "us", us)
        finally:
            ended.set()
            busy.join()
    return Outcome(
        rows=rounds.rows(),
        facts={"hit_pages": hits},
        targets=[Target("PrefixCache.match beside a busy thread", "at most", 5.0)],
    )


BENCHMARKS = (
    Benchmark(
        "step",
        "A step of 64 requests in four crossings, and call by call",
        run_step,
        smoke={"prompts": 24, "tokens": 256, "group": 6, "requests": 8, "rounds": 2},
        full={"prompts": 1024, "tokens": 4096, "group": 20, "requests": 64, "rounds": 7},
    ),
    Benchmark(
        "facade-busy",
        "The calls of a cache while another thread of Python computes",
        run_facade_busy,
        smoke={"prompts": 20, "tokens": 256, "asked": 10, "calls": 20, "rounds": 2},
        full={"prompts": 1000, "tokens": 4096, "asked": 40, "calls": 20_000, "rounds": 7},
    ),
)
