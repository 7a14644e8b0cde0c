"""A TreeCore and the model side by side: each method does one thing to both and compares what came
of it. What is checked of the order is exact where the model can tell it: for full groups in the
first tier, dead blocks among them. For other groups, whose stamps belong to whole nodes, the
victims must be legal, as many as the definition says, dead ones first, the first page of an edge
before the next, and none may go before a block that was surely used earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from radix._native import lib
from radix.tree import NO_SLOT, Cursor, TreeCore
from tests.model import EVERY_GROUP, Held, Model, Path, prefixes
from tests.strategies import World, tokens
from tests.tree_views import Edge, by_page, dump, edges_of, path_of, slots_of

T = TypeVar("T")
NAMESPACES = ("a", "b")
EVERY_TIER = 0xFFFFFFFF
NEVER = 0xFFFFFFFFFFFFFFFF


class Pair:
    """Both sides, the roots of the namespaces, and which columns may have holes."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.model = Model(world.rules, world.tiers)
        self.tree = TreeCore(
            world.page_tokens * 4,
            groups=world.rules,
            page_tokens=world.page_tokens,
            tiers=world.tiers,
            keep_keys=world.keep_keys,
            seed=seed,
        )
        self.roots = {name: self.tree.root(name.encode() * 16) for name in NAMESPACES}
        self.columns = range(self.model.groups * world.tiers)
        first = [column for column in self.columns if column % world.tiers == 0]
        self.solid = [column for column in first if self.model.whole(column)]
        self.loose = [column for column in self.columns if column not in self.solid]
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

    def offer(self, column: int, first: int, count: int, gaps: list[bool]) -> np.ndarray:
        """New slots for pages of a column, but where there is a gap or no block can stand."""
        offered = np.full(count, NO_SLOT, np.int32)
        for k in range(count):
            gap = column in self.loose and bool(gaps) and gaps[(k + column) % len(gaps)]
            if self.model.has_place(column, first + k) and not gap:
                offered[k] = self.fresh(1)[0]
        return offered

    def now(self) -> int:
        """The clock of the tree."""
        return self.tree.stats().clock

    def standing(self, cursor: Cursor, path: Path) -> Path:
        """The part of its path that a cursor from some time ago stands for now."""
        now = self.tree.resolve(cursor)
        alive = {view.node for view in self.tree.nodes(cursor.root)}
        expected = len(path) - 1 if cursor.node in alive else 0
        assert now.pages == expected
        found: Path = (path[0], *path_of(self.tree, now))
        assert found == path[: now.pages + 1]
        return found

    def end_of(self, lease: int) -> Cursor:
        """Where a lease ends."""
        path = self.model.leases[lease].path
        return self.tree.lease_end(self.roots[str(path[0])], lease)

    # ------------------------------------------------------------ looking
    def match(self, path: Path, keep: int, mask: int) -> Cursor:
        """Every number of a match; the cursor where it ended."""
        root = self.roots[str(path[0])]
        found = self.tree.match(root, tokens(path[1:]), keep * self.world.page_tokens, mask)
        standing = self.model.structural(path)
        limit = max(0, len(path) - 1 - keep)
        tiers = self.tiers(mask)
        assert found.structural_pages == len(standing) - 1
        assert found.limit_pages == limit
        assert found.hit_pages == self.model.joint(standing, limit, tiers)
        assert found.device_pages == self.model.joint(standing, limit, [0] if mask & 1 else [])
        assert found.stop in self.model.stops(standing, limit, tiers)
        [again] = self.tree.match_many(
            [root], [tokens(path[1:])], keep * self.world.page_tokens, mask
        )
        assert tuple(again) == tuple(found)
        return Cursor(root, found.node, found.structural_pages)

    def joint(self, cursor: Cursor, path: Path, limit: int, mask: int) -> None:
        """The joint hit on the path to a cursor."""
        pages, stop = self.tree.joint(cursor, limit, mask)
        assert pages == self.model.joint(path, limit, self.tiers(mask))
        assert stop in self.model.stops(path, limit, self.tiers(mask))

    def tiers(self, mask: int) -> list[int]:
        """The tiers of a mask."""
        return [tier for tier in range(self.world.tiers) if mask >> tier & 1]

    def entries(self, cursor: Cursor, path: Path, column: int, first: int) -> None:
        """The pages of a path that have a block in a column."""
        expected = [
            page
            for page, place in enumerate(prefixes(path))
            if page >= first and self.model.slot(place, column) != NO_SLOT
        ]
        assert list(self.tree.entries(cursor, column, first)) == expected

    # ------------------------------------------------------------ leases
    def lease(
        self, cursor: Cursor, path: Path, mask: int = EVERY_GROUP, first: int | None = None
    ) -> int:
        """Leases what a cursor stands for."""
        more = {} if first is None else {"first": first}
        lease, node, count = self.call(lambda: self.tree.lease(cursor, mask=mask, **more))
        assert count == len(path) - 1
        assert (path[0], *path_of(self.tree, Cursor(cursor.root, node, count))) == path
        self.model.leases[lease] = self.model.held(path, mask, first)
        return lease

    def narrow(self, lease: int, mask: int) -> None:
        """The lease keeps the pages of fewer groups."""
        self.tree.narrow(lease, mask)
        held = self.model.leases[lease]
        kept = {group: pages for group, pages in held.pages.items() if mask >> group & 1}
        self.model.leases[lease] = Held(held.path, kept)

    def release(self, lease: int, stamp: bool) -> None:
        """Gives a lease back."""
        self.tree.release(lease, stamp=stamp)
        held = self.model.leases.pop(lease)
        if stamp:
            self.model.use(held.path, self.now(), self.by_rule(held))

    def by_rule(self, held: Held) -> int:
        """The groups of which a lease pins exactly what its end needs: they are stamped, surely."""
        count = len(held.path) - 1
        return sum(1 << g for g, pages in held.pages.items() if pages == self.model.span(g, count))

    def move(self, lease: int, cursor: Cursor, path: Path) -> None:
        """Moves a lease to another end of its path, or below."""
        assert self.call(lambda: self.tree.move(lease, cursor)) == len(path) - 1
        held = self.model.leases[lease]
        mask = sum(1 << group for group in held.pages)
        self.model.leases[lease] = self.model.held(path, mask)
        if len(path) < len(held.path):
            self.model.use(held.path, self.now(), self.by_rule(held))

    # ------------------------------------------------------------ what comes
    def insert(
        self, path: Path, depth: int, lease: int, columns: list[int], gaps: list[bool]
    ) -> Cursor:
        """Inserts what lies behind ``depth`` pages that stand."""
        root = self.roots[str(path[0])]
        found = self.tree.match(root, tokens(path[1 : depth + 1]), 0, 1)
        at = self.end_of(lease) if lease else Cursor(root, found.node, depth)
        rest = path[depth + 1 :]
        offered = np.stack([self.offer(column, depth, len(rest), gaps) for column in columns])
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
        if lease:
            mask = sum(1 << group for group in self.model.leases[lease].pages)
            self.model.leases[lease] = self.model.held(path, mask)
        self.model.use(path, self.now())
        return Cursor(root, result.node, result.pages)

    def settle(
        self,
        path: Path,
        first: int,
        columns: list[int],
        offered: np.ndarray,
        canonical: np.ndarray,
    ) -> None:
        """Books what was attached. A slot may be refused only beside another interval."""
        self.model.clock = self.now()
        for row, column in enumerate(columns):
            for k, (offer, got) in enumerate(zip(offered[row], canonical[row], strict=True)):
                page = path[: first + k + 2]
                have = self.model.slot(page, column)
                if have != NO_SLOT or offer == NO_SLOT:
                    assert got == have
                elif got == NO_SLOT:
                    assert column in self.loose and self.model.whole(column)
                    self.refused(page, column)
                else:
                    assert got == offer
                    self.model.place(page, column, int(got))

    def refused(self, page: Path, column: int) -> None:
        """The page's edge holds blocks of the column elsewhere, with a gap between."""
        edge = by_page(edges_of(self.tree, self.roots)).get(page)
        if edge is None:
            return  # the end of the run held nothing and is gone
        there = [len(other) for other in self.model.resident(column) if other in edge.places]
        step = self.model.rule(column).block_pages
        if all(self.model.whole(other) for other in self.columns):  # nothing split it since
            assert there
        assert len(page) - step not in there and len(page) + step not in there

    def attach(
        self, cursor: Cursor, path: Path, column: int, first: int, gaps: list[bool], touch: bool
    ) -> None:
        """A finished copy arrives for the pages of a path from ``first`` on."""
        count = len(path) - 1 - first
        offered = self.offer(column, first, count, gaps)
        canonical = self.call(lambda: self.tree.attach(cursor, column, first, offered, touch=touch))
        self.settle(path, first, [column], offered[None, :], canonical[None, :])
        if touch:
            self.model.use(path, self.now(), 0)

    def lacks(self, page: Path, column: int) -> bool:
        """Whether the column could hold a block there and does not."""
        return (
            self.model.has_place(column, len(page) - 2) and self.model.slot(page, column) == NO_SLOT
        )

    def restore(self, cursor: Cursor, path: Path, column: int, gaps: list[bool]) -> None:
        """Records for pages of a path, the newest last, shuffled by the clock."""
        count = len(path) - 1
        offered = self.offer(column, 0, count, gaps)
        chosen = [k for k in range(count) if offered[k] != NO_SLOT]
        keys = self.tree.keys(cursor, 0, count)
        root = np.frombuffer(str(path[0]).encode() * 16, np.uint8)
        parents = np.concatenate([root[None, :], keys])[:count]
        rows = self.tree.pages(cursor, 0, count)
        order = sorted(chosen, key=lambda k: (k * 7 + self.now()) % 11)
        linked = self.tree.restore(
            self.roots[str(path[0])],
            column,
            keys[order],
            parents[order],
            rows[order],
            offered[order],
        )
        run = (
            count
            if self.by_key(column)
            else next((k for k in range(count) if offered[k] == NO_SLOT), count)
        )
        offered[run:] = NO_SLOT
        canonical = np.array([self.model.slot(page, column) for page in prefixes(path)], np.int32)
        for k, there in zip(order, linked.tolist(), strict=True):
            assert not there or (canonical[k] == NO_SLOT and offered[k] != NO_SLOT)
            canonical[k] = offered[k] if there else canonical[k]
            if there:  # the edge, whatever else is on it, was used when this record was
                self.model.used_by[path[: k + 2]] = self.now()
        self.settle(path, 0, [column], offered[None, :], canonical[None, :])
        if run and not self.by_key(column):
            self.model.use(path[: run + 1], self.now(), 0)

    def by_key(self, column: int) -> bool:
        """Whether records of the column link to pages that stand, not from the root."""
        rule = self.model.rule(column)
        return not self.model.whole(column) or rule.block_pages > 1 or rule.lookahead_pages > 0

    # ------------------------------------------------------------ what goes
    def drop(self, cursor: Cursor, path: Path, column: int, page: int) -> None:
        """A block is found corrupt. On the first tier all that stands on it went before."""
        victim = path[: page + 2]
        step = self.model.rule(column).block_pages
        behind = [other[:-step] for other in self.model.resident(column)]
        if column in self.solid and victim in behind:
            return
        slot = self.call(lambda: self.tree.drop(cursor, column, page))
        assert slot == self.model.drop(victim, column)

    def drop_span(self, cursor: Cursor, path: Path, column: int, first: int, count: int) -> None:
        """A window slides: what lies in the span and is not pinned goes."""
        places = prefixes(path)[first : first + count]
        expected = [
            NO_SLOT if self.model.pinned(place, column) else self.model.slot(place, column)
            for place in places
        ]
        got = self.call(lambda: self.tree.drop_span(cursor, column, first, count))
        assert list(got) == expected
        for place, slot in zip(places, expected, strict=True):
            if slot != NO_SLOT:
                self.model.drop(place, column)

    def evict(self, column: int, count: int, upto: int = NEVER) -> int:
        """The victims in their order (see above); how many went."""
        free = self.model.evictable(column)
        edges = by_page(edges_of(self.tree, self.roots))
        self.check_next(column, edges)
        slots = np.empty(count, np.int32)
        got = slots[: self.call(lambda: self.tree.evict(column, slots, upto=upto))].tolist()
        assert len(got) <= min(count, free)
        where = {slot: path for (path, c), slot in self.model.slots.items() if c == column}
        for slot in got:
            self.check_turn(where[slot], column, edges, upto)
            self.model.drop(where[slot], column)
        if upto == NEVER:
            assert len(got) == min(count, free)
        elif len(got) < count:
            left = [p for p in self.model.resident(column) if self.model.may_go(p, column)]
            assert all(self.latest(path, column) > upto for path in left)
        return len(got)

    def check_next(self, column: int, edges: dict[Path, Edge]) -> None:
        """What is told of the next victim: whether there is one, and whether it is dead."""
        told = self.tree.next_victim(column)
        legal = [p for p in self.model.resident(column) if self.model.may_go(p, column)]
        assert (told is None) == (not self.model.evictable(column))
        dead = [path for path in legal if self.dead(path, edges, column)]
        if dead and (column in self.solid or not self.model.whole(column)):
            assert told == 0
        if told == 0 and column in self.solid:
            assert dead
        if told == 0:
            assert any(not self.model.useful(path, column) for path in legal)

    def latest(self, path: Path, column: int) -> int:
        """A time at or after the last use of a block that may go."""
        if self.model.whole(column):
            return NEVER  # a leaf that was an inner node before has its place, not its stamp
        return self.model.used_until(path, column)

    def check_turn(self, victim: Path, column: int, edges: dict[Path, Edge], upto: int) -> None:
        """Nothing else had to go before this block."""
        model = self.model
        assert model.may_go(victim, column)
        legal = [path for path in model.resident(column) if model.may_go(path, column)]
        dead = [path for path in legal if self.dead(path, edges, column)]
        if column in self.solid:
            assert victim == min(dead or legal, key=lambda path: (model.used[path], -len(path)))
            assert dead or model.used[victim] <= upto
            assert not dead or not model.useful(victim, column)
        elif not model.whole(column):
            before = [p for p in legal if edges[p] == edges[victim] and len(p) < len(victim)]
            assert not before
            if model.useful(victim, column):
                assert not dead
                since = model.used_since(victim, column)
                assert since <= upto
                older = [p for p in legal if model.used_until(p, column) < since]
                assert not older, (victim, since, [(p, model.used_until(p, column)) for p in older])

    def dead(self, path: Path, edges: dict[Path, Edge], column: int) -> bool:
        """Whether the block's own edge tells that nothing can be hit with it (I20).

        Of a full group: no tier has blocks of it behind the edge, and the edge has no snapshot, or
        no block of a window, at all. Of another: the edge has no block of a full group at all. The
        tree may know more blocks of other groups to be dead. What looks ahead may serve lengths
        that end on another edge.
        """
        rules = self.model.rules
        asked = [g for g, rule in enumerate(rules) if rule.lookup]
        if self.model.rule(column).lookahead_pages:
            return False
        if self.model.whole(column):
            group, edge = column // self.world.tiers, edges[path]
            spread = range(group * self.world.tiers, (group + 1) * self.world.tiers)
            if any(self.bears(edge, edges, c, below=True) for c in spread):
                return False
            kinds = {lib.RDX_RULE_STATE: 0, lib.RDX_RULE_WINDOW: 1}
            missed = [g for g in asked if rules[g].reach_tokens >= kinds.get(rules[g].code, NEVER)]
            missed = [g for g in missed if not rules[g].lookahead_pages]
        else:
            missed = [g for g in asked if self.model.whole_group(g)]
            missed = [g for g in missed if self.may_hold(edges[path], g)]
        return any(not self.holds(edges[path], g) for g in missed)

    def bears(
        self, edge: Edge, edges: dict[Path, Edge], column: int, *, below: bool = False
    ) -> bool:
        """Whether an edge has blocks of a column, or is too short for one and something below has.

        ``below``: only what is behind it counts.
        """
        if not below:
            if any(self.model.slot(place, column) != NO_SLOT for place in edge.places):
                return True
            if self.may_hold(edge, column // self.world.tiers):
                return False
        return any(
            self.bears(other, edges, column)
            for place, other in edges.items()
            if place == other.path and other.view.parent == edge.view.node
        )

    def holds(self, edge: Edge, group: int) -> bool:
        """Whether any tier has a block of the group on an edge."""
        columns = range(group * self.world.tiers, (group + 1) * self.world.tiers)
        return any(self.model.slot(p, c) != NO_SLOT for p in edge.places for c in columns)

    def may_hold(self, edge: Edge, group: int) -> bool:
        """Whether a block of the group can stand on an edge."""
        column = group * self.world.tiers
        return any(self.model.has_place(column, len(place) - 2) for place in edge.places)

    def forget(self, cursor: Cursor, path: Path, column: int, first: int) -> None:
        """Gives up the end of a path, as far as nothing stands on it."""
        before = {self.model.slot(page, column): page for page in prefixes(path)}
        slots = np.empty(len(path), np.int32)
        freed = slots[: self.tree.forget(cursor, column, first, slots, None)].tolist()
        for slot in freed:
            assert slot != NO_SLOT and len(before[slot]) - 2 >= first
            assert self.model.may_go(before[slot], column)
            self.model.drop(before[slot], column)
        longer = [p for p in self.model.paths() if p[:-1] == path]
        if column in self.solid and not longer:
            left = [page for page in prefixes(path)[first:] if self.model.may_go(page, column)]
            assert not left

    # ------------------------------------------------------------ what always holds
    def agree(self) -> None:
        """The content of both sides is the same, and every number that can be recounted."""
        self.tree.check()
        standing = self.model.paths()
        found = slots_of(self.tree, self.roots)
        assert {path for path, column in found if column == -1} == standing
        for path in standing:
            assert (found.pop((path, -1)) > 0) == self.model.leased(path)
        assert found == self.model.slots
        stats = self.tree.stats()
        assert (stats.pages, stats.leases) == (len(standing), len(self.model.leases))
        for column in self.columns:
            resident = self.model.resident(column)
            kept = [path for path in resident if self.model.pinned(path, column)]
            assert self.tree.column_stats(column)[:2] == (len(resident), len(kept))
        orders = {column: self.tree.order(column) for column in self.columns}
        for edge in edges_of(self.tree, self.roots):
            self.lies_well(edge, orders)

    def lies_well(self, edge: Edge, orders: dict[int, list[int]]) -> None:
        """The blocks of an edge stand next to each other; a snapshot stands at its end."""
        for column in self.columns:
            places = [p for p in edge.places if self.model.has_place(column, len(p) - 2)]
            there = [k for k, p in enumerate(places) if self.model.slot(p, column) != NO_SLOT]
            assert there == list(range(there[0], there[-1] + 1)) if there else True
            if there and not self.model.whole(column):
                shut = self.model.pinned(places[there[0]], column)
                assert (edge.view.node in orders[column]) == (not shut)
            if self.model.rule(column).code == lib.RDX_RULE_STATE and there:
                assert [places[k] for k in there] == [edge.path]

    def drain(self) -> None:
        """Everything can be given back, and then nothing is left (C12)."""
        for lease in list(self.model.leases):
            self.tree.release(lease)
        for column in self.columns:
            self.tree.evict(column, np.empty(1 << 12, np.int32))
        self.tree.check()
        stats = self.tree.stats()
        assert (stats.nodes, stats.pages, stats.buffers, stats.leases) == (2, 0, 0, 0)
