"""What an operation costs as the tree grows, as a conversation goes deep, and beside a busy thread.

Kept here: each size has rows of its own, so that a figure drawn from a report shows cost against
size; a tree keeps its size while it is measured, because what was evicted is inserted again; paths
are the same in every run, because the seed decides them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measure import (
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Ratio,
    Rounds,
    Row,
    Sizes,
    Target,
    call_us,
    no_collection,
    ratio,
)
from bench.workloads import VOCABULARY, Prompts, shared_prompts, shuffled
from radix import _native
from radix._native import ffi, lib
from radix.plan import Cursor
from radix.tree import TreeCore

PAGE_TOKENS = 16
FAN = 20  # children of each first page
STEP = 64  # prompts of one batched match
HOPS = 2  # nodes on the way of each prompt


def _core() -> tuple[TreeCore, Cursor]:
    """A tree of one column, and where it begins."""
    tree = TreeCore(PAGE_TOKENS * 4, groups=1, tiers=1, keep_keys=False)
    root = tree.root()
    return tree, Cursor(root, root, 0)


COLUMNS = np.zeros(1, np.uint32)

# ---------------------------------------------------------------------- size


class _Wide:
    """A tree of about ``nodes`` nodes of one page each: first pages, and FAN behind each of them,
    inserted in random order. The oldest go first, and come back as the newest.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        heads = max(1, nodes // (FAN + 1))
        shape = (heads, PAGE_TOKENS)
        self._heads = self._rng.integers(0, VOCABULARY, shape, dtype=np.int32)
        shape = (heads * FAN, PAGE_TOKENS)
        self._tails = self._rng.integers(0, VOCABULARY, shape, dtype=np.int32)
        self._order = self._rng.permutation(len(self._tails))
        self._oldest = 0
        self._slots = np.arange(HOPS, dtype=np.int32)
        self.tree, self.start = _core()
        for first in range(0, len(self._order), 4096):
            for row in self._prompts(self._order[first : first + 4096]):
                self.tree.insert(self.start, row, COLUMNS, self._slots)

    def _prompts(self, numbers: npt.NDArray[np.int64]) -> Prompts:
        """(count, 32) int32: the prompts with these numbers."""
        return np.concatenate((self._heads[numbers // FAN], self._tails[numbers]), axis=1)

    def some(self, count: int) -> Prompts:
        """(count, 32) int32: prompts that are there, at random."""
        return self._prompts(self._rng.integers(0, len(self._tails), count))

    def evict_ns(self, calls: int, leaves: int) -> float:
        """ns a leaf in calls that evict ``leaves`` of them each."""
        gone = np.empty(leaves, np.int32)
        return statistics.median(call_us(self.tree.evict, [(0, gone)] * calls)) * 1e3 / leaves

    def insert_us(self, count: int) -> float:
        """us of an insert of one new leaf, of the ``count`` that are gone."""
        numbers = np.take(self._order, range(self._oldest, self._oldest + count), mode="wrap")
        self._oldest += count
        calls = [(self.start, row, COLUMNS, self._slots) for row in self._prompts(numbers)]
        return statistics.median(call_us(self.tree.insert, calls))


def _match_many_ns(wide: _Wide, prompts: Prompts) -> tuple[float, int]:
    """ns a node of batched matches, the native call alone; and pages that hit."""
    roots = ffi.new("rdx_handle[]", [wide.start.root] * STEP)
    counts = ffi.new("uint32_t[]", [HOPS] * STEP)
    out = ffi.new("rdx_match[]", STEP)
    spans: list[int] = []
    hit = 0
    base, width = ffi.from_buffer(prompts), prompts.strides[0]
    for first in range(0, len(prompts) - STEP + 1, STEP):
        pages = ffi.new("void *[]", [base + (first + at) * width for at in range(STEP)])
        start = time.perf_counter_ns()
        lib.rdx_tree_match_many(wide.tree.native, STEP, roots, pages, counts, counts, 1, out)
        spans.append(time.perf_counter_ns() - start)
        hit += sum(found.hit_pages for found in out)
    return statistics.median(spans) / (STEP * HOPS), hit


def run_scale(sizes: Sizes, place: Place) -> Outcome:
    """Each operation at each size, a power of ten between ``least`` and ``most`` nodes."""
    rounds = Rounds()
    facts: dict[str, int] = {}
    nodes = sizes["least"]
    many, gone = "match_many, a node, of {:,} nodes", "evict, a leaf, of {:,} nodes"
    while nodes <= sizes["most"]:
        wide = _Wide(nodes, seed=41)
        tree, hit = wide.tree, 0
        calls = min(20, nodes // (8 * sizes["leaves"]))
        with no_collection():
            for _ in range(sizes["rounds"]):
                ns, pages = _match_many_ns(wide, wide.some(sizes["asked"]))
                hit += pages
                rounds.add(many.format(nodes), OURS, "ns", ns)
                rounds.add(gone.format(nodes), OURS, "ns", wide.evict_ns(calls, sizes["leaves"]))
                us = wide.insert_us(calls * sizes["leaves"])
                rounds.add(f"insert of a leaf, of {nodes:,} nodes", OURS, "us", us)
                prompts = list(wide.some(sizes["asked"]))
                asked = [(tree.capsule, wide.start.root, row, 0, 1) for row in prompts]
                spans = call_us(_native.tree_match, asked)
                rounds.add_median(f"match, of {nodes:,} nodes", OURS, "us", spans)
                found = [tree.match(wide.start.root, row, 0) for row in prompts]
                ends = [Cursor(wide.start.root, each.node, HOPS) for each in found]
                _leases(rounds, tree, ends, nodes)
        tree.check()
        facts[f"hit, {nodes} nodes"] = hit
        facts[f"left, {nodes} nodes"] = tree.stats().nodes
        nodes *= 10
    most = nodes // 10
    targets = [Target(many.format(most), "at most", 130.0)]
    targets += [Target(gone.format(most // 10), "at most", 300.0)]
    targets += [Target(gone.format(most), "at most", 500.0)]
    return Outcome(rows=rounds.rows(), facts=facts, targets=targets)


def _leases(rounds: Rounds, tree: TreeCore, ends: Sequence[Cursor], nodes: int) -> None:
    """Leases at ``ends``, given back without a stamp, so that the order stays."""
    taken: list[int] = []
    spans = call_us(lambda at: taken.append(tree.lease(at)[0]), [(at,) for at in ends])
    rounds.add_median(f"lease, of {nodes:,} nodes", OURS, "us", spans)
    spans = call_us(lambda lease: tree.release(lease, stamp=False), [(each,) for each in taken])
    rounds.add_median(f"release, of {nodes:,} nodes", OURS, "us", spans)


# ---------------------------------------------------------------------- depth


class _Conversation:
    """One prompt that grows turn by turn behind its own lease."""

    def __init__(self, pages: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pages = pages
        self._slots = np.arange(pages, dtype=np.int32)
        self.tree, self.at = _core()
        self.turns: list[Prompts] = []
        self._lease, node, depth = self.tree.lease(self.at)
        self.at = Cursor(self.at.root, node, depth)

    def go_on_us(self, turns: int) -> list[float]:
        """us of each of so many more turns."""
        tree, clock, spans = self.tree, time.perf_counter_ns, []
        shape = (turns, self._pages * PAGE_TOKENS)
        new = self._rng.integers(0, VOCABULARY, shape, dtype=np.int32)
        self.turns.append(new)
        for turn in new:
            start = clock()
            made = tree.insert(self.at, turn, COLUMNS, self._slots, None, self._lease)
            spans.append((clock() - start) / 1e3)
            self.at = Cursor(self.at.root, made.node, made.pages)
        return spans

    def prompt(self) -> Prompts:
        """All of its tokens, int32."""
        return np.concatenate([turn.reshape(-1) for turn in self.turns])


FIRST, LAST = "a turn, of the first {:,}", "a turn, of the last {:,}"
LONG = "match of {:,} tokens in one piece"


def run_depth(sizes: Sizes, place: Place) -> Outcome:
    """Turns of one conversation, and the whole match of a prompt that is very long."""
    rounds = Rounds()
    turns, part, pages = sizes["turns"], sizes["part"], sizes["pages"]
    first, last = FIRST.format(part), LAST.format(part)
    long = LONG.format(sizes["tokens"])
    facts: dict[str, int] = {}
    with no_collection():
        for _ in range(sizes["rounds"]):
            talk = _Conversation(pages, seed=42)
            begin = time.perf_counter_ns()
            spans = talk.go_on_us(turns)
            whole = (time.perf_counter_ns() - begin) / 1e9
            rounds.add_median(first, OURS, "us", spans[:part])
            rounds.add_median(last, OURS, "us", spans[-part:])
            rounds.add(f"all {turns:,} turns", OURS, "s", whole)
            prompt = talk.prompt()
            found = talk.tree.match(talk.at.root, prompt, 0)
            facts["pages of the conversation"] = found.hit_pages
            facts["its nodes"] = talk.tree.stats().nodes
            del talk
            facts["pages in one piece"] = _long_match(rounds, long, sizes["tokens"])
    found_rows = rounds.rows()
    return Outcome(
        rows=found_rows,
        facts=facts,
        ratios=[ratio(found_rows, last, first)],
        targets=[
            Target(f"{last} / {first}", "at most", 1.5),
            Target(long, "at most", 1000.0),
        ],
    )


def _long_match(rounds: Rounds, name: str, tokens: int) -> int:
    """Adds the us of a full match of one prompt; the pages that hit."""
    prompt = np.random.default_rng(43).integers(0, VOCABULARY, tokens, dtype=np.int32)
    tree, start = _core()
    tree.insert(start, prompt, COLUMNS, np.arange(tokens // PAGE_TOKENS, dtype=np.int32))
    calls = [(start.root, prompt, 0)] * 5
    rounds.add_median(name, OURS, "us", call_us(tree.match, calls))
    return int(tree.match(start.root, prompt, 0).hit_pages)


# ---------------------------------------------------------------------- beside a busy thread

MATCH, EMPTY = "match beside a busy thread", "empty cffi call beside a busy thread"


def _mean_us(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
    """Wall time a call, on average: what the thread waits for the interpreter is part of it."""
    start = time.perf_counter_ns()
    for each in arguments:
        call(*each)
    return (time.perf_counter_ns() - start) / 1e3 / len(arguments)


def run_busy(sizes: Sizes, place: Place) -> Outcome:
    """Full hits while another thread of Python computes all the time, and a call that does nothing
    but give the interpreter up, which is what any ordinary call into C does.
    """
    prompts = shared_prompts(sizes["prompts"], sizes["tokens"], 20, sizes["tokens"] // 2, seed=44)
    tree, start = _core()
    slots = np.arange(sizes["tokens"] // PAGE_TOKENS, dtype=np.int32)
    for row in prompts:
        tree.insert(start, row, COLUMNS, slots)
    order = shuffled(len(prompts), np.random.default_rng(45))
    asked = [(tree.capsule, start.root, prompts[at], 0, 1) for at in order]
    asked *= max(1, sizes["calls"] // len(asked))
    rounds = Rounds()
    ended = threading.Event()
    busy = threading.Thread(target=spin, args=(ended,), daemon=True)
    with no_collection():
        for _ in range(sizes["rounds"]):
            rounds.add("match alone", OURS, "us", _mean_us(_native.tree_match, asked))
        busy.start()
        try:
            for _ in range(sizes["rounds"]):
                rounds.add(MATCH, OURS, "us", _mean_us(_native.tree_match, asked))
                empty = [()] * min(len(asked), sizes["empty_calls"])
                rounds.add(EMPTY, PLAIN, "us", _mean_us(lib.rdx_dispatch_get, empty))
        finally:
            ended.set()
            busy.join()
    rows: list[Row] = rounds.rows()
    hit = sum(tree.match(start.root, row, 0).hit_pages for row in prompts)
    ratios: list[Ratio] = [ratio(rows, MATCH, EMPTY)]
    return Outcome(
        rows=rows,
        facts={"hit_pages": hit},
        ratios=ratios,
        targets=[Target(MATCH, "at most", 5.0)],
    )


def spin(ended: threading.Event) -> None:
    """Computes until ``ended`` is set."""
    n = 0
    while not ended.is_set():
        for _ in range(1000):
            n += 1


BENCHMARKS = (
    Benchmark(
        "scale",
        "Cost of an operation against the size of the tree",
        run_scale,
        smoke={"least": 100, "most": 1000, "leaves": 5, "asked": 128, "rounds": 2},
        full={"least": 1000, "most": 1_000_000, "leaves": 50, "asked": 4096, "rounds": 5},
    ),
    Benchmark(
        "depth",
        "A conversation of 20,000 turns, and a prompt of a million tokens",
        run_depth,
        smoke={"turns": 200, "part": 50, "pages": 4, "tokens": 4096, "rounds": 2},
        full={"turns": 20_000, "part": 1000, "pages": 4, "tokens": 1 << 20, "rounds": 5},
    ),
    Benchmark(
        "busy",
        "A match while another thread of Python computes",
        run_busy,
        smoke={"prompts": 20, "tokens": 256, "calls": 200, "empty_calls": 20, "rounds": 2},
        full={"prompts": 40, "tokens": 4096, "calls": 20_000, "empty_calls": 20_000, "rounds": 5},
    ),
)
