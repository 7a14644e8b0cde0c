"""Ours as a child of the protocol, in the same process shape as every peer:
``python -m bench.peers.radix_child tree|cache``.

``tree`` is TreeCore alone, the tree and the order in which it evicts; ``cache`` is the facade,
PrefixCache over a tier of slots without bytes: it also takes slots, commits them and gives them
back. With ``window_tokens`` or ``states`` in the sizes, groups of these kinds stand beside the full
one.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import radix
from bench.peers.child import Sizes, Work, serve
from bench.peers.treework import Timed, Tree, TreeWork, timed
from bench.workloads import Prompts
from radix.arguments import int32
from radix.cache import PrefixCache
from radix.groups import Group, Retention, rule_of
from radix.layout import Layout
from radix.lease import Lease
from radix.plan import Cursor
from radix.tree import NO_SLOT, TreeCore
from tiers.index import IndexTier


def _groups(sizes: Sizes) -> list[Group]:
    """The full group, and what the sizes ask for beside it."""
    one = Layout.opaque(1)
    found = [Group.full("kv", 1)]
    if sizes.get("window_tokens"):
        found.append(Group("near", one, Retention("window", sizes["window_tokens"])))
    if sizes.get("states"):
        found.append(Group("state", one, Retention("state")))
    return found


class _Ours:
    """What both have alike."""

    page = 0

    def versions(self) -> Mapping[str, str]:
        """This package's and what it stands on."""
        return {
            "radix": radix.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }

    def key(self, tokens: Prompts) -> Prompts:
        """A prompt is taken as it is: int32."""
        return tokens


class CoreTree(_Ours):
    """TreeCore: structure, residency, leases and order; slots are the caller's."""

    def __init__(self) -> None:
        self._tree: TreeCore | None = None

    def open(self, sizes: Sizes, capacity_tokens: int) -> None:
        """A tree of one tier; slots are numbers counted up."""
        self.page = page = sizes["page_tokens"]
        groups = _groups(sizes)
        rules = [rule_of(group, page) for group in groups]
        self._tree = None  # its memory first, as in every peer
        self._tree = TreeCore(4 * page, groups=rules, tiers=1, page_tokens=page, keep_keys=False)
        self._columns = np.arange(len(groups), dtype=np.uint32)
        self._root = self._tree.root()
        self._start = Cursor(self._root, self._root, 0)
        pages = max(sizes.get("tokens", 0), sizes.get("turns", 0) * sizes.get("turn_tokens", 0))
        pages //= page
        self._gone = np.empty(pages, np.int32)
        self._needed = [_needed_pages(group, page, pages) for group in groups]
        self._next = 0

    def _slots(self, count: int) -> Any:
        """(groups, count) slots of new pages: of a window its last, of states the last one."""
        rows = np.full((len(self._needed), count), NO_SLOT, np.int32)
        first, self._next = self._next, self._next + count
        for row, needed in zip(rows, self._needed, strict=True):
            lost = max(0, count - needed)
            row[lost:] = np.arange(first + lost, first + count)
        return rows

    def conversions(self) -> Mapping[str, Callable[[Any], Any]]:
        """The tree takes int32 buffers: numpy makes them."""
        convert = partial(np.asarray, dtype=np.int32)
        return dict.fromkeys(("list", "int64", "int32"), convert)

    def insert(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """From the root: the tree finds by itself what is there already."""
        assert self._tree is not None
        page, start, columns = self.page, self._start, self._columns
        arguments = [(start, key, columns, self._slots(len(key) // page)) for key in keys]
        spans, made = timed(self._tree.insert, arguments)
        return spans, page * sum(each.existing for each in made)

    def insert_behind(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """From the cursor of the match, the tokens behind it alone."""
        tree = self._tree
        assert tree is not None
        page, root, columns, clock = self.page, self._root, self._columns, time.perf_counter_ns
        spans: list[float] = []
        before = 0
        for key in keys:
            found = tree.match(root, key, 0)
            at = Cursor(root, found.node, found.structural_pages)
            new = key[at.pages * page :]
            slots = self._slots(len(new) // page)
            start = clock()
            tree.insert(at, new, columns, slots)
            spans.append((clock() - start) / 1e3)
            before += at.pages
        return spans, before * page

    def match(self, keys: Sequence[Any]) -> tuple[list[float], int, list[Any]]:
        """The whole prompt, from the root."""
        assert self._tree is not None
        root = self._root
        spans, found = timed(self._tree.match, [(root, key, 0) for key in keys])
        hit = self.page * sum(each.hit_pages for each in found)
        return spans, hit, [Cursor(root, each.node, each.structural_pages) for each in found]

    def lease(self, ends: Sequence[Any]) -> Timed:
        """The path to each end."""
        assert self._tree is not None
        return timed(self._tree.lease, [(end,) for end in ends])

    def release(self, leases: Sequence[Any]) -> list[float]:
        """By number."""
        assert self._tree is not None
        return timed(self._tree.release, [(lease[0],) for lease in leases])[0]

    def evict(self, tokens: int, times: int) -> tuple[list[float], int]:
        """Of the full group."""
        assert self._tree is not None
        gone = self._gone[: tokens // self.page]
        spans, freed = timed(self._tree.evict, [(0, gone)] * times)
        return spans, self.page * sum(freed)

    def turn(self, key: Any) -> tuple[tuple[float, float, float, float], int]:
        """The insert goes on where the match ended, and moves the lease."""
        assert self._tree is not None
        tree, root, clock, page = self._tree, self._root, time.perf_counter_ns, self.page
        t0 = clock()
        found = tree.match(root, key, 0)
        t1 = clock()
        lease, node, pages = tree.lease(Cursor(root, found.node, found.structural_pages))
        t2 = clock()
        at = Cursor(root, node, pages)
        new = key[pages * page :]
        slots = self._slots(len(new) // page)
        t3 = clock()
        tree.insert(at, new, self._columns, slots, None, lease)
        t4 = clock()
        tree.release(lease)
        t5 = clock()
        us = ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t4 - t3) / 1e3, (t5 - t4) / 1e3)
        return us, found.hit_pages * page


def _needed_pages(group: Group, page: int, pages: int) -> int:
    """How many of its last pages a prompt's hit needs in this group."""
    if group.retention.rule == "window":
        return -(-(group.retention.tokens - 1) // page)
    return 1 if group.retention.rule == "state" else pages


class FacadeTree(_Ours):
    """PrefixCache, as an engine that keeps its own page tables calls it."""

    def __init__(self) -> None:
        self._cache: PrefixCache | None = None

    def open(self, sizes: Sizes, capacity_tokens: int) -> None:
        """A cache of one tier without bytes, with room for all."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        self.page = page = sizes["page_tokens"]
        groups = _groups(sizes)
        blocks = [capacity_tokens // page] * len(groups)
        self._states = bool(sizes.get("states"))
        self._cache = PrefixCache(groups, [IndexTier(blocks)], page_tokens=page)

    def conversions(self) -> Mapping[str, Callable[[Any], Any]]:
        """What the facade does by itself with whatever it is given."""
        return dict.fromkeys(("list", "int64", "int32"), int32)

    def _boundaries(self, tokens: int) -> Sequence[int]:
        """Where a state is saved: at the end of the prompt's last whole page."""
        return [tokens // self.page * self.page] if self._states else ()

    def insert(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """Behind the lease of a match, neither of which is timed here."""
        cache, clock = self._cache, time.perf_counter_ns
        assert cache is not None
        spans: list[float] = []
        before = 0
        for key in keys:
            lease = cache.lease(cache.match(key, leave=0)[1])
            before += lease.pages
            ends = self._boundaries(len(key))
            start = clock()
            cache.insert(key, lease, boundaries=ends)
            spans.append((clock() - start) / 1e3)
            lease.release()
        return spans, before * self.page

    insert_behind = insert  # there is no other way

    def match(self, keys: Sequence[Any]) -> tuple[list[float], int, list[Any]]:
        """The whole prompt, its last token too."""
        assert self._cache is not None
        match = partial(self._cache.match, leave=0)
        spans, found = timed(match, [(key,) for key in keys])
        hit = self.page * sum(each[0].hit_pages for each in found)
        return spans, hit, [each[1] for each in found]

    def lease(self, ends: Sequence[Any]) -> Timed:
        """An object that is released once."""
        assert self._cache is not None
        return timed(self._cache.lease, [(end,) for end in ends])

    def release(self, leases: Sequence[Any]) -> list[float]:
        """By the lease's own method."""
        return timed(Lease.release, [(lease,) for lease in leases])[0]

    def evict(self, tokens: int, times: int) -> tuple[list[float], int]:
        """Of the full group; the slots go back to the tier."""
        assert self._cache is not None
        spans, freed = timed(self._cache.evict, [(0, tokens // self.page)] * times)
        return spans, self.page * sum(len(each) for each in freed)

    def turn(self, key: Any) -> tuple[tuple[float, float, float, float], int]:
        """Each step goes on from what the one before returned."""
        cache, clock, ends = self._cache, time.perf_counter_ns, self._boundaries(len(key))
        assert cache is not None
        t0 = clock()
        found, cursor = cache.match(key, leave=0)
        t1 = clock()
        lease = cache.lease(cursor)
        t2 = clock()
        cache.insert(key, lease, boundaries=ends)
        t3 = clock()
        lease.release()
        t4 = clock()
        us = ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t3 - t2) / 1e3, (t4 - t3) / 1e3)
        return us, found.hit_pages * self.page


KINDS: dict[str, Callable[[], Tree]] = {"tree": CoreTree, "cache": FacadeTree}


def make(arguments: Sequence[str]) -> Work:
    """The work of one of ours. ``ValueError`` for another name."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        raise ValueError(f"give one of {', '.join(KINDS)}, not {list(arguments)}")
    return TreeWork(KINDS[arguments[0]]())


if __name__ == "__main__":
    sys.exit(serve(make))
