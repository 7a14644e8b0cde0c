"""Ours beside block pools and indexes, as a child of the same protocol:
``python -m bench.peers.radix_blocks_child requests|lookups cache|lists|tree``.

``cache`` is the facade, PrefixCache over a tier of slots without bytes; ``lists`` the same, given
lists of Python ints that are converted first; ``tree`` is TreeCore with a SlotPool, evicting where
the pool is empty; ``alone`` is what Python takes of the facade's calls where they do nothing.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import radix
from bench.peers.child import Work, serve
from bench.peers.lookupwork import Index, LookupWork
from bench.peers.requestwork import Blocks, RequestWork, Spans
from bench.workloads import Prompts
from radix._native import Match, tree_match, tree_peek
from radix.cache import PrefixCache
from radix.gate import Gate
from radix.groups import Group
from radix.plan import Cursor
from radix.pool import FREE, RESERVED, USED, SlotPool
from radix.tree import TreeCore
from tiers.index import IndexTier

_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class _Ours:
    """What all have alike."""

    def versions(self) -> Mapping[str, str]:
        """This package's and what it stands on."""
        return {
            "radix": radix.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }


def _timed(cache: Any, prompt: Any) -> tuple[Spans, Any]:
    """The four calls of a request, what each took in microseconds, and what the match found."""
    clock = time.perf_counter_ns
    t0 = clock()
    found, cursor = cache.match(prompt)
    t1 = clock()
    lease = cache.lease(cursor)
    t2 = clock()
    cache.insert(prompt, lease)
    t3 = clock()
    lease.release()
    t4 = clock()
    return ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t3 - t2) / 1e3, (t4 - t3) / 1e3), found


class FacadeBlocks(_Ours):
    """PrefixCache: match, lease, insert (which takes slots and evicts), release."""

    stages: Sequence[str] = ("match", "lease", "insert", "release")

    def __init__(self) -> None:
        self._cache: PrefixCache | None = None
        self._page = 0

    def open(self, page_tokens: int, blocks: int) -> None:
        """One tier of so many slots."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None
        self._page = page_tokens
        group = Group.full("kv", 1)
        self._cache = PrefixCache([group], [IndexTier(blocks)], page_tokens=page_tokens)

    def prompt(self, tokens: Prompts) -> Any:
        """As it is: int32."""
        return tokens

    def serve(self, prompt: Any) -> tuple[Spans, int]:
        """As an engine that keeps its own page tables calls it."""
        assert self._cache is not None
        us, found = _timed(self._cache, prompt)
        return us, found.hit_pages * self._page


class ListBlocks(FacadeBlocks):
    """The same, of prompts that are lists."""

    stages: Sequence[str] = ("convert", *FacadeBlocks.stages)

    def prompt(self, tokens: Prompts) -> Any:
        """A list of ints."""
        return tokens.tolist()

    def serve(self, prompt: Any) -> tuple[Spans, int]:
        """Converts once and for all four calls."""
        start = time.perf_counter_ns()
        tokens = np.array(prompt, np.int32)
        us = (time.perf_counter_ns() - start) / 1e3
        spans, hit = super().serve(tokens)
        return (us, *spans), hit


class _Pin:
    """An object that a call makes, and another ends."""

    __slots__ = ("calls", "cursor")

    def __init__(self, calls: _Calls, cursor: Cursor) -> None:
        self.calls, self.cursor = calls, cursor

    def release(self, *, hints: object = None) -> None:
        """One empty native call."""
        calls = self.calls
        gate = calls.gate
        gate.take(False)
        try:
            tree_peek(calls.capsule, 0)
        finally:
            gate.leave()


class _Calls:
    """Methods with the parameters, lock and results of the facade, one empty native call each."""

    __slots__ = ("capsule", "gate", "nothing", "root")

    def __init__(self, tree: TreeCore, root: int) -> None:
        self.gate, self.capsule, self.root = Gate(), tree.capsule, root
        self.nothing = np.empty(0, np.int32)

    def match(
        self,
        tokens: object,
        *,
        namespace: object = None,
        leave: int = 1,
        content: object = None,
    ) -> tuple[Match, Cursor]:
        """Of no tokens."""
        gate = self.gate
        gate.take(False)
        try:
            found = tree_match(self.capsule, self.root, self.nothing, leave, 1)
            return found, _tuple(Cursor, (self.root, found[5], found[2]))
        finally:
            gate.leave()

    def lease(self, cursor: Cursor, *, groups: object = None) -> _Pin:
        """Pins nothing."""
        gate = self.gate
        gate.take(False)
        try:
            tree_peek(self.capsule, 0)
            return _Pin(self, cursor)
        finally:
            gate.leave()

    def insert(
        self,
        tokens: object,
        lease: _Pin,
        *,
        slots: object = None,
        partial: bool = False,
        boundaries: Sequence[int] = (),
        content: object = None,
    ) -> tuple[int, int, list[Any]]:
        """Room for no slots, and the end."""
        gate = self.gate
        gate.take(False)
        try:
            kept = np.empty(0, np.int32)
            lease.cursor = _tuple(Cursor, (self.root, tree_peek(self.capsule, 0), 0))
            return 0, 0, [kept]
        finally:
            gate.leave()


class AloneBlocks(FacadeBlocks):
    """No less can be had of four calls from Python; nothing hits."""

    def open(self, page_tokens: int, blocks: int) -> None:
        """An empty tree, that stays so."""
        tree = TreeCore(4 * page_tokens, groups=1, tiers=1, keep_keys=False)
        self._calls = _Calls(tree, tree.root())

    def serve(self, prompt: Any) -> tuple[Spans, int]:
        """As the facade is called."""
        us, _ = _timed(self._calls, prompt)
        return us, 0


class CoreBlocks(_Ours):
    """TreeCore and a pool of slots, without the books of a cache."""

    stages: Sequence[str] = FacadeBlocks.stages

    def __init__(self) -> None:
        self._tree: TreeCore | None = None

    def open(self, page_tokens: int, blocks: int) -> None:
        """A tree of one full group."""
        self._page, self._tree = page_tokens, None
        self._tree = TreeCore(4 * page_tokens, groups=1, tiers=1, keep_keys=False)
        self._root = self._tree.root()
        self._pool = SlotPool(blocks)
        self._columns = np.zeros(1, np.uint32)
        self._gone = np.empty(blocks, np.int32)

    def prompt(self, tokens: Prompts) -> Any:
        """As it is: int32."""
        return tokens

    def serve(self, prompt: Any) -> tuple[Spans, int]:
        """The insert goes on where the lease ends."""
        tree, root, clock, page = self._tree, self._root, time.perf_counter_ns, self._page
        assert tree is not None
        t0 = clock()
        found = tree.match(root, prompt)
        t1 = clock()
        lease, node, pages = tree.lease(Cursor(root, found.node, found.structural_pages))
        t2 = clock()
        new = prompt[pages * page :]
        slots = self._reserved(tree, len(new) // page)
        made = tree.insert(Cursor(root, node, pages), new, self._columns, slots, None, lease)
        self._pool.move(slots, RESERVED, USED)
        t3 = clock()
        tree.release(lease)
        t4 = clock()
        if made.duplicates:
            raise RuntimeError(f"{made.duplicates} blocks were there behind the end of the match")
        us = ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t3 - t2) / 1e3, (t4 - t3) / 1e3)
        return us, found.hit_pages * page

    def _reserved(self, tree: TreeCore, count: int) -> Any:
        pool = self._pool
        if short := max(0, count - pool.count(FREE)):
            gone = self._gone[:short]
            if tree.evict(0, gone) < short:
                raise RuntimeError("no room for a request")
            pool.move(gone, USED, FREE)
        return pool.reserve(count)


class FacadeIndex(_Ours):
    """PrefixCache as an index: all that an insert takes counts as applying."""

    def __init__(self) -> None:
        self._cache: PrefixCache | None = None
        self._page = 0
        self._prompts: list[Prompts] = []

    def prepare(self, page_tokens: int, prompts: Sequence[Prompts]) -> None:
        """The tokens themselves."""
        self._page, self._prompts = page_tokens, list(prompts)
        self._room = sum(len(prompt) // page_tokens for prompt in prompts)

    def build(self) -> tuple[float, int]:
        """Match, lease, insert and release of each prompt."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None
        group = Group.full("kv", 1)
        cache = PrefixCache([group], [IndexTier(self._room)], page_tokens=self._page)
        self._cache = cache
        start = time.perf_counter()
        for prompt in self._prompts:
            lease = cache.lease(cache.match(prompt, leave=0)[1])
            cache.insert(prompt, lease)
            lease.release()
        us = (time.perf_counter() - start) * 1e6
        return us, cache.tree.stats().pages

    def key(self, tokens: Prompts) -> tuple[Any, float]:
        """The tokens; nothing is computed."""
        return tokens, 0.0

    def find(self, key: Any) -> int:
        """The whole prompt, its last token too."""
        assert self._cache is not None
        return self._cache.match(key, leave=0)[0].hit_pages

    def own_bytes(self) -> int:
        """Nodes, tables, edges (the tokens themselves) and slots."""
        assert self._cache is not None
        return self._cache.tree.stats().bytes


class CoreIndex(_Ours):
    """TreeCore alone; slots are numbers counted up."""

    def __init__(self) -> None:
        self._tree: TreeCore | None = None

    def prepare(self, page_tokens: int, prompts: Sequence[Prompts]) -> None:
        """The tokens themselves."""
        self._page, self._prompts = page_tokens, list(prompts)
        self._slots = np.arange(max(len(prompt) for prompt in prompts), dtype=np.int32)

    def build(self) -> tuple[float, int]:
        """From the root: the tree finds by itself what is there already."""
        self._tree = None
        self._tree = tree = TreeCore(4 * self._page, groups=1, tiers=1, keep_keys=False)
        self._root = tree.root()
        begin, columns, page = Cursor(self._root, self._root, 0), np.zeros(1, np.uint32), self._page
        start = time.perf_counter()
        for prompt in self._prompts:
            tree.insert(begin, prompt, columns, self._slots[: len(prompt) // page])
        us = (time.perf_counter() - start) * 1e6
        return us, tree.stats().pages

    def key(self, tokens: Prompts) -> tuple[Any, float]:
        """The tokens; nothing is computed."""
        return tokens, 0.0

    def find(self, key: Any) -> int:
        """The whole prompt, its last token too."""
        assert self._tree is not None
        return self._tree.match(self._root, key, 0).hit_pages

    def own_bytes(self) -> int:
        """Nodes, tables, edges (the tokens themselves) and slots."""
        assert self._tree is not None
        return self._tree.stats().bytes


POOLS: dict[str, Callable[[], Blocks]] = {
    "cache": FacadeBlocks,
    "lists": ListBlocks,
    "tree": CoreBlocks,
    "alone": AloneBlocks,
}
INDEXES: dict[str, Callable[[], Index]] = {"cache": FacadeIndex, "tree": CoreIndex}


def make(arguments: Sequence[str]) -> Work:
    """The work of one of ours. ``ValueError`` for another name."""
    match list(arguments):
        case ["requests", kind] if kind in POOLS:
            return RequestWork(POOLS[kind]())
        case ["lookups", kind] if kind in INDEXES:
            return LookupWork(INDEXES[kind]())
        case other:
            raise ValueError(f"give requests or lookups, and a kind, not {other}")


if __name__ == "__main__":
    sys.exit(serve(make))
