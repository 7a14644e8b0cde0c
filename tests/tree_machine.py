"""The state machine that does everything to a TreeCore and to the model at once, and compares the
two in full after each step. Hypothesis drives it, or a loop with a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radix._native import lib
from radix.tree import NO_SLOT, Cursor, TreeCore
from tests.model import Model, Page, Path, prefixes
from tests.strategies import World, pages, runs, tokens, worlds

T = TypeVar("T")
NAMESPACES = ("a", "b")
EVERY_TIER = 0xFFFFFFFF
pick = st.integers(0, 1 << 16)
small = st.integers(0, 8)
fails = st.sampled_from((0, 0, 0, 0, 1, 2, 3))
gap_lists = st.lists(st.booleans(), max_size=8)
DEEPEST = 9


def dump(tree: TreeCore, roots: dict[str, int]) -> object:
    """Everything that can be asked about a tree, but for the bytes that it has in hand."""
    columns = range(tree.groups * tree.tiers)
    nodes = [view for root in roots.values() for view in tree.nodes(root)]
    cells = [(view.node, c, tree.interval(view.node, c)) for view in nodes for c in columns]
    orders = [tree.order(column) for column in columns]
    return nodes, cells, orders, tree.stats()._replace(bytes=0), _slots(tree, roots)


def _slots(tree: TreeCore, roots: dict[str, int]) -> dict[tuple[Path, int], int]:
    """The slot of every page in every column; -1 in column -1 marks the page itself."""
    found: dict[tuple[Path, int], int] = {}
    for name, root in roots.items():
        for view in tree.nodes(root)[1:]:
            at = Cursor(root, view.node, view.start + view.pages)
            path: Path = (name, *_path(tree, at))
            columns = {
                c: tree.slots(at, c, view.start, view.pages)
                for c in range(tree.groups * tree.tiers)
            }
            for depth in range(view.start + 1, view.start + view.pages + 1):
                found[path[: depth + 1], -1] = view.protect
                for column, slots in columns.items():
                    if slots[depth - 1 - view.start] != NO_SLOT:
                        found[path[: depth + 1], column] = int(slots[depth - 1 - view.start])
    return found


def _path(tree: TreeCore, at: Cursor) -> list[Page]:
    """The pages that lead to a cursor, as the tree has them."""
    rows = tree.pages(at, 0, at.pages)
    return [tuple(row.view(np.int32).tolist()) for row in rows]


class TreeMachine(RuleBasedStateMachine):
    """Rules do one thing to both sides each; the invariant compares the sides."""

    @initialize(world=worlds(), seed=st.integers(0, 3))
    def build(self, world: World, seed: int) -> None:
        self.world = world
        self.model = Model(world.groups, world.tiers)
        self.tree = TreeCore(
            world.page_tokens * 4,
            groups=world.groups,
            tiers=world.tiers,
            keep_keys=world.keep_keys,
            seed=seed,
        )
        self.roots = {name: self.tree.root(name.encode() * 16) for name in NAMESPACES}
        self.device = [group * world.tiers for group in range(world.groups)]
        self.lower = [c for c in range(world.groups * world.tiers) if c not in self.device]
        self.cursors: list[tuple[Cursor, Path]] = []
        self.given = 0
        self.fail = 0

    # ------------------------------------------------------------ how a call is made
    def call(self, work: Callable[[], T]) -> T:
        """Runs one call with the drawn allocation failing; a failed call changed nothing."""
        if not self.fail:
            return work()
        before = dump(self.tree, self.roots)
        lib.rdx_alloc_fail_at(self.fail)
        try:
            return work()
        except MemoryError:
            lib.rdx_alloc_fail_at(0)
            assert dump(self.tree, self.roots) == before
            return work()
        finally:
            lib.rdx_alloc_fail_at(0)

    def fresh(self, count: int) -> list[int]:
        """Slots that nobody had before."""
        self.given += count
        return list(range(self.given - count, self.given))

    def cursor(self, choice: int) -> tuple[Cursor, Path]:
        """A cursor from some time ago, and the path that it can stand for now."""
        cursor, path = self.cursors[choice % len(self.cursors)]
        now = self.tree.resolve(cursor)
        alive = {view.node for view in self.tree.nodes(cursor.root)}
        expected = len(path) - 1 if cursor.node in alive else 0
        assert now.pages == expected
        found: Path = (path[0], *_path(self.tree, now))
        assert found == path[: now.pages + 1]
        return cursor, found

    def lease_at(self, choice: int) -> tuple[int, Path]:
        """One of the leases that are out."""
        return list(self.model.leases.items())[choice % len(self.model.leases)]

    def end_of(self, lease: int) -> Cursor:
        """Where a lease ends."""
        return self.tree.lease_end(self.roots[str(self.model.leases[lease][0])], lease)

    def take(self, cursor: Cursor, path: Path) -> int:
        """Leases what a cursor stands for."""
        lease, node, count = self.call(lambda: self.tree.lease(cursor))
        assert count == len(path) - 1
        assert (path[0], *_path(self.tree, Cursor(cursor.root, node, count))) == path
        self.model.leases[lease] = path
        return lease

    # ------------------------------------------------------------ rules
    @rule(name=st.sampled_from(NAMESPACES), run=runs(), keep=small, mask=st.integers(1, 7))
    def match(self, name: str, run: list[int], keep: int, mask: int) -> None:
        path: Path = (name, *pages(run, self.world.page_tokens))
        found = self.tree.match(
            self.roots[name], tokens(path[1:]), keep * self.world.page_tokens, mask
        )
        standing = self.model.structural(path)
        limit = max(0, len(run) - keep)
        tiers = [tier for tier in range(self.world.tiers) if mask >> tier & 1]
        reach = self.model.reach(path, tiers)
        assert found.structural_pages == len(standing) - 1
        assert found.limit_pages == limit
        assert found.device_pages == min(limit, self.model.reach(path, [0]) if mask & 1 else 0)
        assert found.hit_pages == min(limit, reach)
        stop = 0 if reach >= limit else 2 if reach < len(standing) - 1 else 1
        assert found.stop == stop
        self.remember(Cursor(self.roots[name], found.node, len(standing) - 1), standing)

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, cut=small, fail=fails)
    def lease(self, choice: int, cut: int, fail: int) -> None:
        self.fail = fail
        cursor, path = self.cursor(choice)
        depth = min(cut, len(path) - 1) if cut % 2 else len(path) - 1
        if depth < len(path) - 1:
            cursor = cursor._replace(pages=depth)
        self.take(cursor, path[: depth + 1])

    @precondition(lambda self: self.model.leases)
    @rule(choice=pick, stamp=st.booleans())
    def release(self, choice: int, stamp: bool) -> None:
        lease, path = self.lease_at(choice)
        self.tree.release(lease, stamp=stamp)
        del self.model.leases[lease]
        if stamp:
            self.model.use(path)

    @precondition(lambda self: self.model.leases)
    @rule(choice=pick, cut=small, fail=fails)
    def move_up(self, choice: int, cut: int, fail: int) -> None:
        self.fail = fail
        lease, path = self.lease_at(choice)
        to = self.end_of(lease)._replace(pages=min(cut, len(path) - 1))
        assert self.call(lambda: self.tree.move(lease, to)) == to.pages
        self.model.leases[lease] = path[: to.pages + 1]
        if to.pages < len(path) - 1:
            self.model.use(path)

    @precondition(lambda self: self.model.leases and self.cursors)
    @rule(choice=pick, where=pick, fail=fails)
    def move_down(self, choice: int, where: int, fail: int) -> None:
        self.fail = fail
        lease, path = self.lease_at(choice)
        cursor, target = self.cursor(where)
        if target[: len(path)] == path:
            assert self.call(lambda: self.tree.move(lease, cursor)) == len(target) - 1
            self.model.leases[lease] = target

    @rule(
        name=st.sampled_from(NAMESPACES),
        run=runs(),
        leased=st.booleans(),
        gaps=gap_lists,
        tiers=st.integers(0, 3),
        fail=fails,
    )
    def insert(
        self, name: str, run: list[int], leased: bool, gaps: list[bool], tiers: int, fail: int
    ) -> None:
        path: Path = (name, *pages(run, self.world.page_tokens))
        self.insert_path(path, leased, gaps, tiers, fail)

    @precondition(lambda self: self.cursors)
    @rule(where=pick, cut=small, run=runs(3), leased=st.booleans(), gaps=gap_lists, fail=fails)
    def insert_more(
        self, where: int, cut: int, run: list[int], leased: bool, gaps: list[bool], fail: int
    ) -> None:
        """A prompt that goes on from some point of an earlier one."""
        path = self.cursors[where % len(self.cursors)][1]
        path = path[: max(1, min(len(path) - cut, DEEPEST - len(run)))]
        path = (*path, *pages(run, self.world.page_tokens))
        self.insert_path(path, leased, gaps, where % 4, fail)

    def insert_path(
        self, path: Path, leased: bool, gaps: list[bool], tiers: int, fail: int
    ) -> None:
        """Insert as an engine does: behind what the first tier holds; other tiers with gaps."""
        name = str(path[0])
        root = self.roots[name]
        self.fail = 0
        for column in self.device:
            most = self.world.capacity - len(path)
            self.evict(column, max(0, len(self.model.resident(column)) - most))
        found = self.tree.match(root, tokens(path[1:]), 0, 1)
        depth = found.device_pages
        at = Cursor(root, found.node, depth)
        self.fail = fail
        lease = self.take(at, path[: depth + 1]) if leased else 0
        if leased:
            at = self.end_of(lease)
        else:
            at = self.tree.resolve(at)
        columns = self.device + [c for c in self.lower if tiers >> (c % self.world.tiers) & 1]
        rest = path[depth + 1 :]
        offered = np.full((len(columns), len(rest)), NO_SLOT, np.int32)
        for row, column in enumerate(columns):
            for k in range(len(rest)):
                if column in self.device or not (k < len(gaps) and gaps[k]):
                    offered[row, k] = self.fresh(1)[0]
        canonical = np.empty_like(offered)
        result = self.call(
            lambda: self.tree.insert(
                at, tokens(rest), np.array(columns, np.uint32), offered, canonical, lease
            )
        )
        assert result.pages == len(path) - 1
        assert result.existing == max(0, len(self.model.structural(path)) - 1 - depth)
        assert result.created == len(rest) - result.existing
        self.settle(path, depth, columns, offered, canonical)
        self.model.use(path)
        if leased:
            self.model.leases[lease] = path
        self.remember(Cursor(root, result.node, result.pages), self.model.structural(path))

    def settle(
        self,
        path: Path,
        first: int,
        columns: list[int],
        offered: np.ndarray,
        canonical: np.ndarray,
    ) -> None:
        """Books what was attached. A slot may be refused only beside another interval."""
        for row, column in enumerate(columns):
            for k, (offer, got) in enumerate(zip(offered[row], canonical[row], strict=True)):
                page = path[: first + k + 2]
                have = self.model.slot(page, column)
                if have != NO_SLOT or offer == NO_SLOT:
                    assert got == have
                elif got == NO_SLOT:
                    assert column in self.lower
                    self.refused(page, column)
                else:
                    assert got == offer
                    self.model.place(page, column, int(got))

    def refused(self, page: Path, column: int) -> None:
        """The page's edge holds pages of the column elsewhere, with a gap between."""
        depth = len(page) - 1
        root = self.roots[str(page[0])]
        run = tokens(page[1:])
        node = self.tree.match(root, run, 0, EVERY_TIER).node
        view = next(view for view in self.tree.nodes(root) if view.node == node)
        lo, hi = self.tree.interval(node, column)
        at = depth - 1 - view.start
        assert lo < hi and not lo - 1 <= at <= hi

    @precondition(lambda self: self.lower and self.cursors)
    @rule(choice=pick, where=pick, first=small, gaps=st.lists(st.booleans(), max_size=6))
    def attach_below(self, choice: int, where: int, first: int, gaps: list[bool]) -> None:
        """A copy to a lower tier arrives, whatever happened to its path meanwhile."""
        cursor, path = self.cursor(where)
        column = self.lower[choice % len(self.lower)]
        first = min(first, len(path) - 1)
        count = len(path) - 1 - first
        offered = np.array(
            [NO_SLOT if k < len(gaps) and gaps[k] else self.fresh(1)[0] for k in range(count)],
            np.int32,
        )
        canonical = self.tree.attach(cursor, column, first, offered)
        self.settle(path, first, [column], offered[None, :], canonical[None, :])

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, upto=small)
    def attach_device(self, choice: int, where: int, upto: int) -> None:
        """A load arrives: behind what the column holds already, so that no hole appears (I21)."""
        cursor, path = self.cursor(where)
        column = self.device[choice % len(self.device)]
        first = 0
        while first < len(path) - 1 and self.model.slot(path[: first + 2], column) != NO_SLOT:
            first += 1
        count = min(upto, len(path) - 1 - first)
        offered = np.array(self.fresh(count), np.int32)
        cursor = cursor._replace(pages=first + count)
        path = path[: first + count + 1]
        canonical = self.tree.attach(cursor, column, first, offered, touch=True)
        self.settle(path, first, [column], offered[None, :], canonical[None, :])
        self.model.use(path)

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, back=small, fail=fails)
    def drop(self, choice: int, where: int, back: int, fail: int) -> None:
        """A block is found corrupt. On the first tier all that stands on it went before."""
        self.fail = fail
        cursor, path = self.cursor(where)
        column = choice % (self.world.groups * self.world.tiers)
        if len(path) == 1:
            return
        page = (len(path) - 2 - back) % (len(path) - 1)
        victim = path[: page + 2]
        above = [other[:-1] for other in self.model.resident(column)]
        if column in self.device and victim in above:
            return
        slot = self.call(lambda: self.tree.drop(cursor, column, page))
        assert slot == self.model.drop(victim, column)

    @rule(choice=pick, count=small, fail=fails)
    def evict_some(self, choice: int, count: int, fail: int) -> None:
        self.fail = fail
        self.evict(choice % (self.world.groups * self.world.tiers), count)

    def evict(self, column: int, count: int) -> None:
        """Exactly the model's victims on the first tier, permitted ones below (I16, I17)."""
        free = [p for p in self.model.resident(column) if not self.model.leased(p)]
        slots = np.empty(count, np.int32)
        got = slots[: self.call(lambda: self.tree.evict(column, slots))].tolist()
        assert len(got) == min(count, len(free))
        if column in self.device:
            assert got == [slot for _, slot in self.model.evict(column, count)]
        else:
            where = {slot: path for (path, c), slot in self.model.slots.items() if c == column}
            for slot in got:
                assert self.model.may_go(where[slot], column)
                self.model.drop(where[slot], column)
        self.age_cursors()

    def remember(self, cursor: Cursor, path: Path) -> None:
        """Keeps a cursor for later, unless it names nothing from the start."""
        if len(path) > 1 or not self.cursors:
            self.cursors.append((cursor, path))

    def age_cursors(self) -> None:
        """What a cursor lost it does not get back, even if the same pages come again."""
        aged = [(cursor, self.model.structural(path)) for cursor, path in self.cursors]
        lost = [pair for pair in aged if len(pair[1]) == 1]
        self.cursors = lost[-2:] + [pair for pair in aged if len(pair[1]) > 1][-12:]

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, first=small)
    def forget(self, choice: int, where: int, first: int) -> None:
        """Give up the end of a path, as far as nothing stands on it."""
        cursor, path = self.cursor(where)
        column = choice % (self.world.groups * self.world.tiers)
        before = {page: self.model.slot(page, column) for page in prefixes(path)}
        slots = np.empty(len(path), np.int32)
        freed = slots[: self.tree.forget(cursor, column, first, slots, None)].tolist()
        where_is = {slot: page for page, slot in before.items() if slot != NO_SLOT}
        for slot in freed:
            assert len(where_is[slot]) - 2 >= first
            assert self.model.may_go(where_is[slot], column)
            self.model.drop(where_is[slot], column)
        if column in self.device and self.ends_a_node(cursor, path):
            left = [page for page in prefixes(path)[first:] if self.model.may_go(page, column)]
            assert not left

    def ends_a_node(self, cursor: Cursor, path: Path) -> bool:
        """Whether the path goes nowhere on inside its last edge."""
        longer = [p for p in self.model.paths() if p[: len(path)] == path and len(p) > len(path)]
        return not longer

    @precondition(lambda self: self.cursors)
    @rule(where=pick)
    def touch(self, where: int) -> None:
        cursor, path = self.cursor(where)
        self.tree.touch(cursor)
        self.model.use(path)

    # ------------------------------------------------------------ what always holds
    @invariant()
    def both_sides_agree(self) -> None:
        self.tree.check()
        standing = self.model.paths()
        found = _slots(self.tree, self.roots)
        assert {path for path, column in found if column == -1} == standing
        for path in standing:
            assert (found.pop((path, -1)) > 0) == self.model.leased(path)
        assert found == self.model.slots
        stats = self.tree.stats()
        assert (stats.pages, stats.leases) == (len(standing), len(self.model.leases))
        for column in range(self.world.groups * self.world.tiers):
            resident = self.model.resident(column)
            kept = [path for path in resident if self.model.leased(path)]
            assert self.tree.column_stats(column)[:2] == (len(resident), len(kept))
        self.age_cursors()

    def teardown(self) -> None:
        """Everything can be given back, and then nothing is left (C12)."""
        if not hasattr(self, "tree"):
            return
        for lease in list(self.model.leases):
            self.tree.release(lease)
        for column in range(self.world.groups * self.world.tiers):
            self.tree.evict(column, np.empty(1 << 12, np.int32))
        self.tree.check()
        stats = self.tree.stats()
        assert (stats.nodes, stats.pages, stats.buffers, stats.leases) == (2, 0, 0, 0)
