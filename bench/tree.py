"""The tree through Python: match, insert, evict, and the memory that it takes.

Kept here: every call is timed by itself with its prompt cold (the working set is passed in random
order), and beside each figure stands what the machine does with the same bytes and no tree.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from bench.measure import (
    LIMIT,
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Row,
    Sizes,
    Target,
    call_us,
    no_collection,
    ratio,
)
from bench.workloads import Prompts, fresh_prompts, shared_prompts, shuffled
from radix import _native
from radix.cache import PrefixCache
from radix.groups import Group
from radix.plan import Cursor
from radix.tree import TreeCore
from tiers.index import IndexTier

PAGE_TOKENS = 16
ROUNDS = 7
MEMCMP = "memcmp of the same bytes, two calls"
COPY = "np.copyto of the same bytes"


def _cache(blocks: int) -> PrefixCache:
    """A cache of one tier without bytes: what is left is the tree and the books."""
    return PrefixCache([Group.full("kv", 1)], [IndexTier(blocks)], page_tokens=PAGE_TOKENS)


def _insert(cache: PrefixCache, prompt: Prompts) -> None:
    with cache.lease(cache.match(prompt, leave=0)[1]) as lease:
        cache.insert(prompt, lease)


# ---------------------------------------------------------------------- match


def run_match(sizes: Sizes, place: Place) -> Outcome:
    """A full hit of each prompt of a working set, in random order."""
    count, tokens, shared = sizes["prompts"], sizes["tokens"], sizes["shared_tokens"]
    prompts = shared_prompts(count, tokens, sizes["group"], shared, seed=1)
    cache = _cache(count * tokens // PAGE_TOKENS)
    for prompt in prompts:
        _insert(cache, prompt)
    tree, rows = cache.tree, [prompts[number] for number in range(count)]
    root = cache.match(rows[0])[1].root
    limit = _Compare(prompts, sizes["group"], shared)
    rounds, rng = Rounds(), np.random.default_rng(2)
    hit = 0
    with no_collection():
        for _ in range(sizes["rounds"]):
            order = shuffled(count, rng)
            native = [(tree.capsule, root, rows[at], 0, 1) for at in order]
            rounds.add_median("tree_match", OURS, "us", call_us(_native.tree_match, native))
            order = shuffled(count, rng)
            core = [(root, rows[at], 0, 1) for at in order]
            rounds.add_median("TreeCore.match", OURS, "us", call_us(tree.match, core))
            order = shuffled(count, rng)
            alone = [(rows[at],) for at in order]
            rounds.add_median("PrefixCache.match", OURS, "us", call_us(cache.match, alone))
            order = shuffled(count, rng)
            rounds.add_median(MEMCMP, LIMIT, "us", limit.measure_us(order))
            empty = limit.measure_us(order, nothing=True)
            rounds.add_median("memcmp of no bytes, two calls", PLAIN, "us", empty)
        for row in rows:
            hit += cache.match(row, leave=0)[0].hit_pages
    stats = tree.stats()
    cache.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"hit_pages": hit, "nodes": stats.nodes, "pages": stats.pages},
        ratios=[
            ratio(found, name, MEMCMP)
            for name in ("tree_match", "TreeCore.match", "PrefixCache.match")
        ],
        targets=[Target("tree_match", "at most", 2.0), Target("PrefixCache.match", "at most", 2.0)],
    )


class _Compare:
    """memcmp of each prompt with what a tree would hold: shared beginnings once, own ends."""

    def __init__(self, prompts: Prompts, group: int, shared: int) -> None:
        self._call = ctypes.CDLL(None).memcmp
        self._call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        heads, tails = prompts[::group, :shared].copy(), prompts[:, shared:].copy()
        self._kept = (heads, tails)
        self._pairs: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []
        for at, prompt in enumerate(prompts):
            head, tail = heads[at // group], tails[at]
            self._pairs.append(
                (
                    (prompt.ctypes.data, head.ctypes.data, head.nbytes),
                    (prompt[shared:].ctypes.data, tail.ctypes.data, tail.nbytes),
                )
            )

    def measure_us(self, order: list[int], *, nothing: bool = False) -> list[float]:
        """Two calls for each prompt; with ``nothing`` the same calls over no bytes."""
        call, clock = self._call, time.perf_counter_ns
        spans: list[float] = []
        for at in order:
            (a, b, head), (c, d, tail) = self._pairs[at]
            if nothing:
                head = tail = 0
            start = clock()
            differ = call(a, b, head) or call(c, d, tail)
            spans.append((clock() - start) / 1e3)
            if differ:
                raise AssertionError("the copies differ")
        return spans


# ---------------------------------------------------------------------- insert


def run_insert(sizes: Sizes, place: Place) -> Outcome:
    """A prompt of which nothing is there, into memory that evictions gave back."""
    count, tokens = sizes["prompts"], sizes["tokens"]
    pages = tokens // PAGE_TOKENS
    prompts = fresh_prompts(count, tokens, seed=3)
    rows = [prompts[number] for number in range(count)]
    slots = np.arange(count * pages, dtype=np.int32).reshape(count, pages)
    rounds, rng = Rounds(), np.random.default_rng(4)
    created = 0
    target = np.empty((count, tokens + pages), np.int32)
    cache = _cache(count * pages)
    tree = _Trees(pages)
    with no_collection():
        for number in range(sizes["rounds"] + 1):
            order = shuffled(count, rng)
            core = tree.insert([(rows[at], slots[at]) for at in order])
            order = shuffled(count, rng)
            facade, made = _facade_inserts(cache, [rows[at] for at in order])
            created += made
            order = shuffled(count, rng)
            given = [(target[at, :tokens], rows[at]) for at in order]
            copied = call_us(np.copyto, given)
            if number == 0:
                continue  # the first time through, memory is touched and warms up
            rounds.add_median("TreeCore.insert", OURS, "us", core)
            rounds.add_median("PrefixCache.insert", OURS, "us", facade)
            rounds.add_median(COPY, LIMIT, "us", copied)
    cache.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"created_pages": created, "tree_pages": tree.pages},
        ratios=[ratio(found, name, COPY) for name in ("TreeCore.insert", "PrefixCache.insert")],
        targets=[
            Target("TreeCore.insert", "at most", 12.0),
            Target("PrefixCache.insert", "at most", 12.0),
        ],
    )


class _Trees:
    """One tree that is filled and emptied again and again."""

    def __init__(self, pages: int) -> None:
        self._tree = TreeCore(PAGE_TOKENS * 4, groups=1, tiers=1, keep_keys=False)
        self._root = self._tree.root()
        self._gone = np.empty(pages, np.int32)
        self.pages = 0

    def insert(self, work: list[tuple[Prompts, Prompts]]) -> list[float]:
        """us of each insert, in a tree that is empty at the start and at the end."""
        tree, columns = self._tree, np.zeros(1, np.uint32)
        start = Cursor(self._root, self._root, 0)
        spans = call_us(tree.insert, [(start, row, columns, slots) for row, slots in work])
        self.pages += tree.stats().pages
        while tree.evict(0, self._gone):
            pass
        return spans


def _facade_inserts(cache: PrefixCache, rows: list[Prompts]) -> tuple[list[float], int]:
    """us of each insert behind a lease; pages made. The cache is empty again at the end."""
    clock = time.perf_counter_ns
    spans: list[float] = []
    made = 0
    for row in rows:
        lease = cache.lease(cache.match(row, leave=0)[1])
        start = clock()
        result = cache.insert(row, lease)
        spans.append((clock() - start) / 1e3)
        made += result.created_pages
        lease.release()
    while len(cache.evict(0, 4096)):
        pass
    return spans, made


# ---------------------------------------------------------------------- evict


def run_evict(sizes: Sizes, place: Place) -> Outcome:
    """One call that evicts one whole leaf, least recently used first, until half are gone."""
    count, tokens, shared = sizes["prompts"], sizes["tokens"], sizes["shared_tokens"]
    prompts = shared_prompts(count, tokens, sizes["group"], shared, seed=5)
    leaf = (tokens - shared) // PAGE_TOKENS
    cache = _cache(count * tokens // PAGE_TOKENS)
    gone = np.empty(leaf, np.int32)
    source = np.arange(leaf, dtype=np.int32)
    rounds = Rounds()
    freed = 0
    with no_collection():
        for _ in range(sizes["rounds"]):
            for prompt in prompts:
                _insert(cache, prompt)
            before = cache.tree.stats().pages
            calls = [(0, gone)] * (count // 4)
            rounds.add_median("TreeCore.evict", OURS, "us", call_us(cache.tree.evict, calls))
            freed += before - cache.tree.stats().pages
            copies = [(gone, source)] * (count // 4)
            rounds.add_median("np.copyto of the slots", LIMIT, "us", call_us(np.copyto, copies))
            cache.close()
            cache = _cache(count * tokens // PAGE_TOKENS)
            for prompt in prompts:
                _insert(cache, prompt)
            facade = [(0, leaf)] * (count // 4)
            rounds.add_median("PrefixCache.evict", OURS, "us", call_us(cache.evict, facade))
            cache.close()
            cache = _cache(count * tokens // PAGE_TOKENS)
    cache.close()
    return Outcome(
        rows=rounds.rows(),
        facts={"freed_pages": freed},
        targets=[Target("TreeCore.evict", "at most", 1.0)],
    )


# ---------------------------------------------------------------------- memory


def run_memory(sizes: Sizes, place: Place) -> Outcome:
    """Bytes a distinct token for nodes, tables, edges and columns, as the tree counts them."""
    count, tokens = sizes["prompts"], sizes["tokens"]
    kinds = {
        "shared": shared_prompts(count, tokens, sizes["group"], sizes["shared_tokens"], seed=6),
        "fresh": fresh_prompts(count, tokens, seed=7),
    }
    rows: list[Row] = []
    facts: dict[str, int] = {}
    for kind, prompts in kinds.items():
        for keys in (False, True):
            tree = TreeCore(PAGE_TOKENS * 4, groups=1, tiers=1, keep_keys=keys)
            root = tree.root(bytes(16))
            slots = np.zeros(tokens // PAGE_TOKENS, np.int32)
            columns = np.zeros(1, np.uint32)
            for prompt in prompts:
                tree.insert(Cursor(root, root, 0), prompt, columns, slots)
            stats = tree.stats()
            name = f"{kind} prompts, one device column" + (", page keys" if keys else "")
            rows.append(
                Row(name, OURS, "bytes/token", (stats.bytes / (stats.pages * PAGE_TOKENS),))
            )
            facts[f"{kind} {keys}"] = stats.pages
    rows.append(Row("tokens and slots alone", LIMIT, "bytes/token", (4 + 4 / PAGE_TOKENS,)))
    return Outcome(
        rows=rows,
        facts=facts,
        targets=[Target(row.name, "at most", 6.0) for row in rows if row.subject == OURS],
    )


_SHARED = {"prompts": 2000, "tokens": 4096, "group": 20, "shared_tokens": 2048}
_SMALL = {"prompts": 40, "tokens": 256, "group": 20, "shared_tokens": 128}

BENCHMARKS = (
    Benchmark(
        "match",
        "Full hit of a 4,096-token prompt, working set of 2,000 prompts",
        run_match,
        smoke={**_SMALL, "rounds": 2},
        full={**_SHARED, "rounds": ROUNDS},
    ),
    Benchmark(
        "insert",
        "Insert of a fresh 4,096-token prompt",
        run_insert,
        smoke={"prompts": 20, "tokens": 256, "rounds": 2},
        full={"prompts": 1000, "tokens": 4096, "rounds": ROUNDS},
    ),
    Benchmark(
        "evict",
        "Eviction of one leaf of 2,048 tokens",
        run_evict,
        smoke={**_SMALL, "rounds": 2},
        full={**_SHARED, "rounds": ROUNDS},
    ),
    Benchmark(
        "memory",
        "Memory of the tree and one device column",
        run_memory,
        smoke=_SMALL,
        full=_SHARED,
    ),
)
