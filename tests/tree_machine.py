"""The state machine that does everything to a TreeCore and to the model at once (``Pair``), with
cursors however stale and any allocation failing. Hypothesis drives it, or a loop with a seed.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radix.tree import Cursor
from tests.model import Held, Path
from tests.strategies import World, mixed_worlds, pages, runs, worlds
from tests.tree_pair import EVERY_TIER, NAMESPACES, Pair

pick = st.integers(0, 1 << 16)
small = st.integers(0, 8)
masks = st.integers(1, 7)
groups = st.integers(0, 15)
fails = st.sampled_from((0, 0, 0, 0, 1, 2, 3))
gap_lists = st.lists(st.booleans(), max_size=8)
DEEPEST = 9


class TreeMachine(RuleBasedStateMachine):
    """Rules do one thing to both sides each; the invariant compares the sides."""

    @initialize(world=worlds(), seed=st.integers(0, 3))
    def build(self, world: World, seed: int) -> None:
        self.pair = Pair(world, seed)
        self.cursors: list[tuple[Cursor, Path]] = []

    @property
    def leases(self) -> dict[int, Held]:
        """The leases that are out."""
        return self.pair.model.leases

    @property
    def mixed(self) -> list[int]:
        """The columns whose blocks need no block before them."""
        return [column for column in self.pair.columns if not self.pair.model.whole(column)]

    def cursor(self, choice: int) -> tuple[Cursor, Path]:
        """A cursor from some time ago, and the path that it can stand for now."""
        cursor, path = self.cursors[choice % len(self.cursors)]
        return cursor, self.pair.standing(cursor, path)

    def lease_at(self, choice: int) -> tuple[int, Path]:
        """One of the leases that are out."""
        lease, held = list(self.leases.items())[choice % len(self.leases)]
        return lease, held.path

    def column(self, choice: int) -> int:
        """Some column."""
        return choice % len(self.pair.columns)

    def remember(self, cursor: Cursor, path: Path) -> None:
        """Keeps a cursor for later, unless it names nothing from the start."""
        path = self.pair.model.structural(path)
        if len(path) > 1 or not self.cursors:
            self.cursors.append((cursor, path))

    def age_cursors(self) -> None:
        """What a cursor lost it does not get back, even if the same pages come again."""
        structural = self.pair.model.structural
        aged = [(cursor, structural(path)) for cursor, path in self.cursors]
        lost = [pair for pair in aged if len(pair[1]) == 1]
        self.cursors = lost[-2:] + [pair for pair in aged if len(pair[1]) > 1][-12:]

    # ------------------------------------------------------------ looking
    @rule(name=st.sampled_from(NAMESPACES), run=runs(), keep=small, mask=masks)
    def match(self, name: str, run: list[int], keep: int, mask: int) -> None:
        path: Path = (name, *pages(run, self.pair.world.page_tokens))
        self.remember(self.pair.match(path, keep, mask), path)

    @precondition(lambda self: self.cursors)
    @rule(where=pick, cut=small, mask=masks)
    def match_again(self, where: int, cut: int, mask: int) -> None:
        """A prompt that came before, longer or shorter."""
        path = self.cursors[where % len(self.cursors)][1]
        more = pages([cut % 5], self.pair.world.page_tokens) if where % 2 else ()
        self.pair.match((*path, *more), cut % 3, mask if where % 3 else EVERY_TIER)

    @precondition(lambda self: self.cursors)
    @rule(where=pick, limit=small, mask=masks)
    def joint(self, where: int, limit: int, mask: int) -> None:
        cursor, path = self.cursor(where)
        self.pair.joint(cursor, path, limit if where % 2 else len(path) - 1, mask)

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, first=small)
    def entries(self, choice: int, where: int, first: int) -> None:
        cursor, path = self.cursor(where)
        self.pair.entries(cursor, path, self.column(choice), first)

    # ------------------------------------------------------------ leases
    @precondition(lambda self: self.cursors)
    @rule(choice=pick, cut=small, mask=groups, first=small, fail=fails)
    def lease(self, choice: int, cut: int, mask: int, first: int, fail: int) -> None:
        self.pair.fail = fail
        cursor, path = self.cursor(choice)
        depth = min(cut, len(path) - 1) if cut % 2 else len(path) - 1
        if depth < len(path) - 1:
            cursor = cursor._replace(pages=depth)
        named = min(first, depth) if choice % 3 == 0 else None
        self.pair.lease(cursor, path[: depth + 1], mask, named)

    @precondition(lambda self: self.leases)
    @rule(choice=pick, mask=groups)
    def narrow(self, choice: int, mask: int) -> None:
        self.pair.narrow(self.lease_at(choice)[0], mask)

    @precondition(lambda self: self.leases)
    @rule(choice=pick, stamp=st.booleans())
    def release(self, choice: int, stamp: bool) -> None:
        self.pair.release(self.lease_at(choice)[0], stamp)

    @precondition(lambda self: self.leases)
    @rule(choice=pick, cut=small, fail=fails)
    def move_up(self, choice: int, cut: int, fail: int) -> None:
        self.pair.fail = fail
        lease, path = self.lease_at(choice)
        to = self.pair.end_of(lease)._replace(pages=min(cut, len(path) - 1))
        self.pair.move(lease, to, path[: to.pages + 1])

    @precondition(lambda self: self.leases and self.cursors)
    @rule(choice=pick, where=pick, fail=fails)
    def move_down(self, choice: int, where: int, fail: int) -> None:
        self.pair.fail = fail
        lease, path = self.lease_at(choice)
        cursor, target = self.cursor(where)
        if target[: len(path)] == path:
            self.pair.move(lease, cursor, target)

    # ------------------------------------------------------------ what comes
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
        path: Path = (name, *pages(run, self.pair.world.page_tokens))
        self.insert_path(path, leased, gaps, tiers, fail)

    @precondition(lambda self: self.cursors)
    @rule(where=pick, cut=small, run=runs(3), leased=st.booleans(), gaps=gap_lists, fail=fails)
    def insert_more(
        self, where: int, cut: int, run: list[int], leased: bool, gaps: list[bool], fail: int
    ) -> None:
        """A prompt that goes on from some point of an earlier one."""
        path = self.cursors[where % len(self.cursors)][1]
        path = path[: max(1, min(len(path) - cut, DEEPEST - len(run)))]
        path = (*path, *pages(run, self.pair.world.page_tokens))
        self.insert_path(path, leased, gaps, where % 4, fail)

    def insert_path(
        self, path: Path, leased: bool, gaps: list[bool], tiers: int, fail: int
    ) -> None:
        """Insert as an engine does: behind what the first tier holds; elsewhere with gaps."""
        pair, model, world = self.pair, self.pair.model, self.pair.world
        pair.fail = 0
        for column in pair.columns:
            if column % world.tiers == 0:
                most = world.capacity - len(path)
                pair.evict(column, max(0, len(model.resident(column)) - most))
        self.age_cursors()
        depth = min(model.reach(path, 0), len(model.structural(path)) - 1)
        if tiers == 3:
            depth = min(depth, model.joint(path[: depth + 1], depth, [0]))
        root = pair.roots[str(path[0])]
        node = pair.match(path[: depth + 1], 0, 1).node
        pair.fail = fail
        at = Cursor(root, node, depth)
        lease = pair.lease(at, path[: depth + 1]) if leased else 0
        columns = [c for c in pair.columns if not c % world.tiers or tiers >> (c % world.tiers) & 1]
        self.remember(pair.insert(path, depth, lease, columns, gaps), path)

    @precondition(lambda self: self.pair.loose and self.cursors)
    @rule(choice=pick, where=pick, first=small, gaps=gap_lists, touch=st.booleans(), fail=fails)
    def attach_below(
        self, choice: int, where: int, first: int, gaps: list[bool], touch: bool, fail: int
    ) -> None:
        """A copy to a lower tier, a window or a checkpoint arrives, whatever happened meanwhile."""
        self.pair.fail = fail
        cursor, path = self.cursor(where)
        column = self.pair.loose[choice % len(self.pair.loose)]
        self.pair.attach(cursor, path, column, min(first, len(path) - 1), gaps, touch)

    @precondition(lambda self: self.pair.solid and self.cursors)
    @rule(choice=pick, where=pick, upto=small)
    def attach_device(self, choice: int, where: int, upto: int) -> None:
        """A load arrives: behind what the column holds already, so that no hole appears (I21)."""
        self.pair.fail = 0
        cursor, path = self.cursor(where)
        column = self.pair.solid[choice % len(self.pair.solid)]
        first = 0
        while first < len(path) - 1 and not self.pair.lacks(path[: first + 2], column):
            first += 1
        count = min(upto, len(path) - 1 - first)
        path = path[: first + count + 1]
        self.pair.attach(cursor._replace(pages=first + count), path, column, first, [], True)

    @precondition(lambda self: self.pair.world.keep_keys and self.cursors)
    @rule(choice=pick, where=pick, gaps=gap_lists)
    def restore(self, choice: int, where: int, gaps: list[bool]) -> None:
        """Records of a path come back from a disk."""
        self.pair.fail = 0
        cursor, path = self.cursor(where)
        below = [c for c in self.pair.loose if c % self.pair.world.tiers]
        if below:
            self.pair.restore(cursor, path, below[choice % len(below)], gaps)

    # ------------------------------------------------------------ what goes
    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, back=small, fail=fails)
    def drop(self, choice: int, where: int, back: int, fail: int) -> None:
        self.pair.fail = fail
        cursor, path = self.cursor(where)
        if len(path) > 1:
            page = (len(path) - 2 - back) % (len(path) - 1)
            self.pair.drop(cursor, path, self.column(choice), page)

    @precondition(lambda self: self.mixed and self.cursors)
    @rule(choice=pick, where=pick, first=small, count=small, fail=fails)
    def drop_span(self, choice: int, where: int, first: int, count: int, fail: int) -> None:
        self.pair.fail = fail
        cursor, path = self.cursor(where)
        first = min(first, len(path) - 1)
        column = self.mixed[choice % len(self.mixed)]
        self.pair.drop_span(cursor, path, column, first, min(count, len(path) - 1 - first))

    @rule(choice=pick, count=small, fail=fails)
    def evict_some(self, choice: int, count: int, fail: int) -> None:
        self.pair.fail = fail
        self.pair.evict(self.column(choice), count)

    @rule(choice=pick, count=small, ago=small)
    def evict_old(self, choice: int, count: int, ago: int) -> None:
        """Only what was not used for a while."""
        self.pair.fail = 0
        self.pair.evict(self.column(choice), count, max(0, self.pair.now() - ago))

    @precondition(lambda self: self.cursors)
    @rule(choice=pick, where=pick, first=small)
    def forget(self, choice: int, where: int, first: int) -> None:
        cursor, path = self.cursor(where)
        self.pair.forget(cursor, path, self.column(choice), first)

    @precondition(lambda self: self.cursors)
    @rule(where=pick)
    def touch(self, where: int) -> None:
        cursor, path = self.cursor(where)
        self.pair.tree.touch(cursor)
        self.pair.model.use(path, self.pair.now())

    # ------------------------------------------------------------ what always holds
    @invariant()
    def both_sides_agree(self) -> None:
        self.pair.agree()
        self.age_cursors()

    def teardown(self) -> None:
        """Everything can be given back, and then nothing is left (C12)."""
        if hasattr(self, "pair"):
            self.pair.drain()


class MixedTreeMachine(TreeMachine):
    """The same over mixes of groups of every kind."""

    @initialize(world=mixed_worlds(), seed=st.integers(0, 3))
    def build(self, world: World, seed: int) -> None:
        self.pair = Pair(world, seed)
        self.cursors = []
