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
# bytes a token: 4.6 of the tree, a slot a page, and where pages have keys 16 bytes for each
WITHOUT_KEYS = 4.6 + 4 / PAGE_TOKENS
WITH_KEYS = WITHOUT_KEYS + 16 / PAGE_TOKENS
NOTHING = "PrefixCache.match of no tokens"
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
    rows = [prompts[number] for number in range(count)]
    root = cache.match(rows[0])[1].root
    limit = _Compare(prompts, sizes["group"], shared)
    rounds, rng = Rounds(), np.random.default_rng(2)
    with no_collection():
        for _ in range(sizes["rounds"]):
            order = [rows[at] for at in shuffled(count, rng)]
            rounds.add_median("tree_match", OURS, "us", _match_us(cache.tree, root, order))
            order = [rows[at] for at in shuffled(count, rng)]
            rounds.add_median("PrefixCache.match", OURS, "us", _facade_us(cache, order))
            order = [rows[at] for at in shuffled(count, rng)]
            spans = _facade_us(cache, order, read=True)
            rounds.add_median("PrefixCache.match, prompt just read", OURS, "us", spans)
            at_random = shuffled(count, rng)
            nothing = [rows[0][:0]] * count
            rounds.add_median(NOTHING, PLAIN, "us", _facade_us(cache, nothing))
            rounds.add_median(MEMCMP, LIMIT, "us", limit.measure_us(at_random))
            empty = limit.measure_us(at_random, nothing=True)
            rounds.add_median("memcmp of no bytes, two calls", PLAIN, "us", empty)
    hit = sum(cache.match(row, leave=0)[0].hit_pages for row in rows)
    stats = cache.tree.stats()
    cache.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"hit_pages": hit, "nodes": stats.nodes, "pages": stats.pages},
        ratios=[ratio(found, name, MEMCMP) for name in ("tree_match", "PrefixCache.match")],
        targets=[Target("tree_match", "at most", 2.0), Target("PrefixCache.match", "at most", 2.0)],
    )


def _match_us(tree: TreeCore, root: int, rows: list[Prompts]) -> list[float]:
    """us of the native entry for each prompt."""
    clock, match, capsule = time.perf_counter_ns, _native.tree_match, tree.capsule
    spans: list[int] = []
    for row in rows:
        start = clock()
        match(capsule, root, row, 0, 1)
        spans.append(clock() - start)
    return [span / 1e3 for span in spans]


def _facade_us(cache: PrefixCache, rows: list[Prompts], *, read: bool = False) -> list[float]:
    """us of the facade's match; ``read``: after the prompt was brought into the processor's cache,
    as a prompt that was just tokenized is.
    """
    clock, match = time.perf_counter_ns, cache.match
    spans: list[int] = []
    for row in rows:
        if read:
            row.max()
        start = clock()
        match(row)
        spans.append(clock() - start)
    return [span / 1e3 for span in spans]


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
    """A prompt of which nothing is there, into a full cache from which one of its size was just
    evicted (not timed): two sets of prompts take turns.
    """
    half, tokens = sizes["prompts"] // 2, sizes["tokens"]
    pages = tokens // PAGE_TOKENS
    prompts = fresh_prompts(2 * half, tokens, seed=3)
    halves = [[prompts[at] for at in range(first, first + half)] for first in (0, half)]
    target = np.zeros((half, tokens), np.int32)
    rounds, rng = Rounds(), np.random.default_rng(4)
    cache, core = _cache(half * pages), _Core(pages)
    with no_collection():
        for number in range(sizes["rounds"] + 1):
            work = halves[number % 2]
            spans = core.insert([work[at] for at in shuffled(half, rng)], evict=number > 0)
            facade = _facade_inserts(cache, [work[at] for at in shuffled(half, rng)], pages, number)
            given = [(target[at], work[at]) for at in shuffled(half, rng)]
            copied = call_us(np.copyto, given)
            if number:  # the first time through fills the caches
                rounds.add_median("TreeCore.insert", OURS, "us", spans)
                rounds.add_median("PrefixCache.insert", OURS, "us", facade)
                rounds.add_median(COPY, LIMIT, "us", copied)
    stats = cache.tree.stats()
    cache.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={"pages": stats.pages, "removed_nodes": stats.removed_nodes, "made": core.made},
        ratios=[ratio(found, name, COPY) for name in ("TreeCore.insert", "PrefixCache.insert")],
        targets=[
            Target("TreeCore.insert", "at most", 12.0),
            Target("PrefixCache.insert", "at most", 12.0),
        ],
    )


class _Core:
    """A tree of its own, without the books of a cache."""

    def __init__(self, pages: int) -> None:
        self._tree = TreeCore(PAGE_TOKENS * 4, groups=1, tiers=1, keep_keys=False)
        self._root = self._tree.root()
        self._gone = np.empty(pages, np.int32)
        self._slots = np.arange(pages, dtype=np.int32)
        self.made = 0

    def insert(self, rows: list[Prompts], *, evict: bool) -> list[float]:
        """us of each insert; ``evict``: one prompt goes before each."""
        tree, columns, clock = self._tree, np.zeros(1, np.uint32), time.perf_counter_ns
        start = Cursor(self._root, self._root, 0)
        spans: list[float] = []
        for row in rows:
            if evict:
                tree.evict(0, self._gone)
            begin = clock()
            result = tree.insert(start, row, columns, self._slots)
            spans.append((clock() - begin) / 1e3)
            self.made += result.created
        return spans


def _facade_inserts(
    cache: PrefixCache, rows: list[Prompts], pages: int, number: int
) -> list[float]:
    """us of each insert behind a lease; but in round 0 one prompt goes before each."""
    clock = time.perf_counter_ns
    spans: list[float] = []
    for row in rows:
        if number:
            cache.evict(0, pages)
        lease = cache.lease(cache.match(row, leave=0)[1])
        start = clock()
        cache.insert(row, lease)
        spans.append((clock() - start) / 1e3)
        lease.release()
    return spans


# ---------------------------------------------------------------------- evict


def run_evict(sizes: Sizes, place: Place) -> Outcome:
    """One call that evicts one whole leaf, least recently used first, until a quarter are gone."""
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
        targets=[
            Target(row.name, "at most", WITH_KEYS if "keys" in row.name else WITHOUT_KEYS)
            for row in rows
            if row.subject == OURS
        ],
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
