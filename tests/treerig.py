"""A TreeCore with a rule for each group, and pages that are tokens of one kind: what the tests of
windows, chunks and snapshots share. Slots are counted up, so that each names one block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from radix._native import Match, lib
from radix.groups import Rule
from radix.tree import BY_RULE, EVERY_GROUP, NO_SLOT, Cursor, TreeCore


def full(block_pages: int = 1, *, lookahead_pages: int = 0, lookup: bool = True) -> Rule:
    """Every block of [0, n)."""
    return Rule(lib.RDX_RULE_FULL, block_pages, 0, lookahead_pages, lookup, 1)


def window(pages: int, block_pages: int = 1, *, lookahead_pages: int = 0) -> Rule:
    """The last ``pages`` pages before n."""
    return Rule(lib.RDX_RULE_WINDOW, block_pages, pages, lookahead_pages, True, 1)


def chunked(pages: int, block_pages: int = 1) -> Rule:
    """The chunk of ``pages`` pages that n lies in."""
    return Rule(lib.RDX_RULE_CHUNKED, block_pages, pages, 0, True, 1)


def state(grid_pages: int = 1, *, lookup: bool = True) -> Rule:
    """One snapshot at n, a multiple of ``grid_pages``."""
    return Rule(lib.RDX_RULE_STATE, grid_pages, 0, 0, lookup, 1)


class Rig:
    """A tree of one-token pages; a prompt is a sequence of tokens."""

    def __init__(self, *rules: Rule, tiers: int = 1) -> None:
        self.tree = TreeCore(4, groups=rules, tiers=tiers, page_tokens=1)
        self.root = self.tree.root(b"n" * 16)
        self.start = Cursor(self.root, self.root, 0)
        self.tiers = tiers
        self.columns = range(len(rules) * tiers)
        self.given = 0

    def match(self, tokens: Iterable[int], readable: int = 0xFFFFFFFF) -> Match:
        """How much of a prompt is there."""
        return self.tree.match(self.root, np.array(list(tokens), np.int32), 0, readable)

    def find(self, tokens: Iterable[int]) -> Cursor:
        """Where a prompt ends, as far as it is there."""
        found = self.match(tokens)
        return Cursor(self.root, found.node, found.structural_pages)

    def put(
        self,
        tokens: Sequence[int],
        rows: dict[int, Iterable[int]],
        *,
        at: Cursor | None = None,
        lease: int = 0,
    ) -> Cursor:
        """Inserts tokens behind ``at``; ``rows``: the pages that each column gets."""
        at = at or self.start
        slots = np.full((len(rows), len(tokens)), NO_SLOT, np.int32)
        for row, pages in enumerate(rows.values()):
            for page in pages:
                slots[row, page - at.pages] = self.given = self.given + 1
        columns = np.array(list(rows), np.uint32)
        end = self.tree.insert(at, np.array(tokens, np.int32), columns, slots, None, lease)
        self.tree.check(device=False)
        return Cursor(self.root, end.node, end.pages)

    def attach(self, tokens: Sequence[int], column: int, *pages: int) -> list[int]:
        """A copy arrives at pages of a prompt; the pages that took it."""
        slots = np.full(len(tokens), NO_SLOT, np.int32)
        for page in pages:
            slots[page] = self.given = self.given + 1
        got = self.tree.attach(self.find(tokens), column, 0, slots)
        self.tree.check(device=False)
        return [page for page in pages if got[page] == slots[page]]

    def lease(self, tokens: Iterable[int], mask: int = EVERY_GROUP, first: int = BY_RULE) -> int:
        """Pins a prompt that is there."""
        lease = self.tree.lease(self.find(tokens), mask, first)[0]
        self.tree.check(device=False)
        return lease

    def held(self, tokens: Sequence[int], column: int) -> list[int]:
        """The pages of a prompt that are in a column."""
        return self.tree.entries(self.find(tokens), column).tolist()

    def evict(self, column: int, count: int = 99, upto: int | None = None) -> list[int]:
        """The slots that go."""
        slots = np.empty(count, np.int32)
        bound = {} if upto is None else {"upto": upto}
        gone = slots[: self.tree.evict(column, slots, **bound)].tolist()
        self.tree.check(device=False)
        return gone

    def pinned(self, column: int) -> int:
        """Blocks of a column that cannot go."""
        return self.tree.column_stats(column).protected

    def slot(self, tokens: Sequence[int], column: int, page: int) -> int:
        """The slot of a page of a prompt."""
        return int(self.tree.slots(self.find(tokens), column, page, 1)[0])

    def everything(self) -> object:
        """All that can be asked, but for the bytes in hand."""
        nodes = self.tree.nodes(self.root)
        rows = []
        for view in nodes[1:]:
            end = Cursor(self.root, view.node, view.start + view.pages)
            for column in self.columns:
                rows.append(self.tree.interval(view.node, column))
                rows.append(tuple(self.tree.slots(end, column, view.start, view.pages).tolist()))
        orders = [(self.tree.order(c), self.tree.column_stats(c)) for c in self.columns]
        return nodes, rows, orders, self.tree.stats()._replace(bytes=0)
