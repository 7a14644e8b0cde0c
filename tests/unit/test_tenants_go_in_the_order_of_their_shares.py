"""With tenants a block that goes is the next of the tenant that has most for its weight: the order
is that of one tree a tenant, of which somebody asks, block by block, who stands furthest above its
share. Dead blocks go first, whose ever they are, and what a floor keeps goes to nobody else (I17).
"""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from radix._native import lib
from radix.groups import Group, Rule
from radix.keys import Namespace
from radix.shares import ANYBODY, ONCE, OWN, Claim, Shares
from radix.tenants import Tenant, Tenants
from radix.tree import Cursor, TreeCore
from radix.treeparts import Price
from tests.treerig import chunked, full, state, window
from tiers.index import IndexTier

MAX_STAMP = (1 << 64) - 1
NAMES = ("blue", "green", "red")


class Forest:
    """One tree of all tenants, and one of each, in which the same happens."""

    def __init__(
        self, rules: tuple[Rule, ...], seed: int, *, shared: bool, policy: str = "lru"
    ) -> None:
        self.rng = random.Random(seed)
        self.tree = TreeCore(4, groups=rules, tiers=1, page_tokens=1, policy=policy)
        self.alone = [
            TreeCore(4, groups=rules, tiers=1, page_tokens=1, policy=policy) for _ in NAMES
        ]
        self.step_by_step = policy != "lru" or len(rules) > 2
        self.sizes = [self.rng.randrange(1, 9) * 8 for _ in rules]
        groups = [Group.full(f"g{number}", size) for number, size in enumerate(self.sizes)]
        tier = IndexTier(1000)
        if shared:
            tier = IndexTier(limit_bytes=8000)
        tier.attach(tuple(groups), 4, None)
        for tree in (self.tree, *self.alone):
            if policy == "cost":
                pool = [0 if shared else column for column in range(len(rules))]
                tree.price([Price(3.0, 0.5, *of) for of in zip(self.sizes, pool, strict=True)])
        weights = [self.rng.choice((0.5, 1, 2, 3.5)) for _ in NAMES]
        floors = [self.rng.choice((0, 0, 40, 200)) for _ in NAMES]
        known = {
            name: Tenant(weight, floor={"device": floor} if floor else {})
            for name, weight, floor in zip(NAMES, weights, floors, strict=True)
        }
        self.shared = shared
        self.shares = Shares(self.tree, groups, [tier], Tenants(known, of=lambda ns: ns.model))
        self.shares.opened()
        self.weights = [Fraction(str(weight)) for weight in weights]
        self.roots: list[int] = []
        self.own_roots: list[int] = []
        for number, name in enumerate(NAMES):
            key = bytes([number]) * 16
            self.roots.append(self.tree.root(key))
            self.shares.assign(self.roots[-1], _named(name))
            self.own_roots.append(self.alone[number].root(key))
        self.numbers = [self.shares.number(root) for root in self.roots]
        self.reserved = [[0] * len(rules) for _ in NAMES]
        self.columns = np.arange(len(rules), dtype=np.uint32)
        self.leases: list[tuple[int, int, int]] = []
        self.slot = 0

    # ------------------------------------------------------------ what happens
    def step(self) -> None:
        """Something happens to one tenant, in the tree of all and in its own."""
        who = self.rng.randrange(len(NAMES))
        what = self.rng.random()
        if what < 0.6:
            self.insert(who)
        elif what < 0.75 and self.leases:
            self.release(self.leases.pop(self.rng.randrange(len(self.leases))))
        elif what < 0.9:
            self.lease(who)
        else:
            column = self.rng.randrange(len(self.sizes))
            more = self.rng.randrange(-self.reserved[who][column], 4)
            self.reserved[who][column] += more
            self.shares.take(self.numbers[who], column, more)
        for tree, root in zip(self.alone, self.own_roots, strict=True):
            while tree.stats().clock < self.tree.stats().clock:  # so that the same stamps are equal
                tree.touch(Cursor(root, root, 0))

    def prompt(self) -> np.ndarray:
        length = self.rng.randrange(1, 9)
        return np.array([self.rng.randrange(3) for _ in range(length)], np.int32)

    def insert(self, who: int) -> None:
        tokens = self.prompt()
        slots = np.arange(len(self.sizes) * len(tokens), dtype=np.int32) + self.slot
        self.slot += slots.size
        slots = slots.reshape(len(self.sizes), -1)
        for tree, root in self.both(who):
            tree.insert(Cursor(root, root, 0), tokens, self.columns, slots)

    def lease(self, who: int) -> None:
        tokens, taken = self.prompt(), []
        for tree, root in self.both(who):
            found = tree.match(root, tokens, 0)
            taken.append(tree.lease(Cursor(root, found.node, found.structural_pages))[0])
        self.leases.append((who, *taken))

    def release(self, lease: tuple[int, int, int]) -> None:
        who, in_all, in_own = lease
        self.tree.release(in_all)
        self.alone[who].release(in_own)

    def both(self, who: int) -> list[tuple[TreeCore, int]]:
        return [(self.tree, self.roots[who]), (self.alone[who], self.own_roots[who])]

    # ------------------------------------------------------------ who goes
    def used(self, who: int, column: int) -> int:
        columns = range(len(self.sizes)) if self.shared else (column,)
        return sum(
            (self.alone[who].column_stats(c).resident + self.reserved[who][c]) * self.sizes[c]
            for c in columns
        )

    def floor(self, who: int, column: int) -> int:
        return self.shares._bounds[self.numbers[who]].floor[column]

    def next(self, column: int, claim: int, own: bool) -> int | None:
        """Whose block goes, by asking each."""
        heads = {who: self.alone[who].next_victim(column) for who in range(len(NAMES))}
        able = [who for who, stamp in heads.items() if stamp is not None]
        if own:
            return claim if claim in able else None
        dead = [who for who in able if heads[who] == 0]
        if dead:
            return min(dead, key=lambda who: (-self.used(who, column) / self.weights[who], who))
        size = self.sizes[column]
        above = {who for who in able if self.used(who, column) >= size + self.floor(who, column)}
        if not above and claim != ANYBODY:
            return claim if claim in able else None
        most = [who for who in able if who in above or not above]
        order = {who: (-self.used(who, column) / self.weights[who], who) for who in most}
        return min(order, key=order.__getitem__) if order else None

    def take(self, column: int, count: int, claim: Claim) -> list[bytes]:
        """Evicts from the tree of all. Where groups are mixed, who looks at a list may change what
        equal stamps mean there: everybody's is looked at before each block, as in ``evict``.
        """
        gone: list[bytes] = []
        step = 1 if self.step_by_step else count
        while len(gone) < count:
            for number in self.numbers:
                self.shares.head(column, Claim(number, OWN))
            slots, ids = np.empty(step, np.int32), np.empty((step, 16), np.uint8)
            freed = self.shares.evict(column, claim, MAX_STAMP, slots, ids)
            gone += [row.tobytes() for row in ids[:freed]]
            if freed < step:
                break
        return gone

    def evict(self, column: int, count: int, claim: int, own: bool) -> list[bytes]:
        """The same from one tree a tenant."""
        gone: list[bytes] = []
        while len(gone) < count and (who := self.next(column, claim, own)) is not None:
            ids = np.empty((1, 16), np.uint8)
            assert self.alone[who].evict(column, np.empty(1, np.int32), ids) == 1
            gone.append(ids.tobytes())
        return gone


def _named(name: str) -> bytes:
    return Namespace(name).canonical()


MIXES = {
    "one group": (full(),),
    "several groups": (full(), full(2)),
    "a window and a state": (full(), window(3), state()),
}


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("rules", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_victims_equal_asking_each_tenant(
    policy: str, seed: int, rules: tuple[Rule, ...], shared: bool
) -> None:
    forest = Forest(rules, seed, shared=shared, policy=policy)
    went = 0
    for _ in range(250):
        forest.step()
        if forest.rng.random() < 0.3:
            column, count = forest.rng.randrange(len(rules)), forest.rng.randrange(1, 9)
            who = forest.rng.choice((None, 0, 1, 2))
            own = who is not None and forest.rng.random() < 0.4
            claim = Claim(ANYBODY if who is None else forest.numbers[who], OWN if own else 0)
            stands = forest.shares.head(column, claim)
            gone = forest.take(column, count, claim)
            wanted = forest.evict(column, count, ANYBODY if who is None else who, own)
            assert gone == wanted
            assert (stands is None) == (not wanted)
            went += len(gone)
        forest.tree.check(device=False)
    assert went > 100


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("seed", range(8))
def test_windows_and_states_of_tenants_go_by_what_they_save(seed: int, shared: bool) -> None:
    """Queues, lists and sums stay whole (I12, I17, I18), and what is asked for goes."""
    rules = (full(), window(3), state(), chunked(4))
    forest = Forest(rules, seed, shared=shared, policy="cost")
    for _ in range(300):
        forest.step()
        if forest.rng.random() < 0.3:
            column, count = forest.rng.randrange(len(rules)), forest.rng.randrange(1, 9)
            before = forest.tree.column_stats(column).resident
            gone = len(forest.take(column, count, Claim(ANYBODY, 0)))
            assert forest.tree.column_stats(column).resident == before - gone
        forest.tree.check(device=False)
    while forest.leases:
        forest.release(forest.leases.pop())
    for column in range(len(rules)):
        forest.take(column, 5000, Claim(ANYBODY, 0))
        assert forest.tree.column_stats(column).resident == 0
        forest.tree.check(device=False)


def test_a_place_that_another_took_leads_nowhere() -> None:
    """Where a node stood is remembered by its neighbour there, which may be gone, and another
    tenant's since: to be looked for from there would enter the list of that one.
    """
    forest = Forest((full(),), 2, shared=False)
    forest.shares.set(Tenants(of=forest.shares.tenants.of))
    tree, (blue, green, _) = forest.tree, forest.roots

    def put(root: int, number: int) -> None:
        tokens, slots = np.array([number], np.int32), np.array([[number]], np.int32)
        tree.insert(Cursor(root, root, 0), tokens, forest.columns, slots)

    for number in range(200, 204):  # older than all of the others
        put(green, number)
    for number in range(40):
        put(blue, number)
    found = tree.match(blue, np.array([20], np.int32), 0)
    pin, _, _ = tree.lease(Cursor(blue, found.node, 1))  # its neighbour is 21
    for number in (19, 21):
        at = tree.match(blue, np.array([number], np.int32), 0)
        assert tree.drop(Cursor(blue, at.node, 1), 0, 0) == number
    for number in range(100, 140):  # two of these are where the neighbours were
        put(green, number)
    tree.release(pin, stamp=False)
    tree.check(device=False)
    slots = np.empty(39, np.int32)
    blues = Claim(forest.numbers[0], OWN)
    assert forest.shares.evict(0, blues, MAX_STAMP, slots, None) == 38
    assert slots[:38].tolist() == [n for n in range(40) if n not in (19, 21)]


def test_one_turn_ends_where_another_tenant_is_next() -> None:
    forest = Forest((full(),), 1, shared=False)
    forest.shares.set(Tenants(of=forest.shares.tenants.of))
    for who, pages in ((0, 30), (1, 20)):
        tokens, columns = np.arange(pages, dtype=np.int32), forest.columns
        slots = np.arange(pages, dtype=np.int32).reshape(1, -1)
        root = forest.roots[who]
        forest.tree.insert(Cursor(root, root, 0), tokens, columns, slots)
    slots = np.empty(40, np.int32)
    turn = Claim(forest.numbers[1], ONCE)
    assert forest.shares.evict(0, turn, MAX_STAMP, slots, None) == 11  # to 19 of 20
    assert forest.shares.evict(0, turn, MAX_STAMP, slots, None) == 1


@pytest.mark.parametrize("shared", (False, True))
def test_failing_allocations_change_nothing(shared: bool) -> None:
    forest = Forest((full(), window(2)), 3, shared=shared)
    failures = 0
    for number in range(40):
        for nth in range(1, 99):
            before = forest.tree.stats()
            lib.rdx_alloc_fail_at(nth)
            try:
                root = forest.tree.root(bytes([number + 10]) * 16)
                forest.shares.assign(root, _named(f"new {number}"))
                break
            except MemoryError:
                lib.rdx_alloc_fail_at(0)
                failures += 1
                if forest.tree.stats().roots > before.roots:
                    assert forest.tree.drop_root(root)
                assert forest.tree.stats().roots == before.roots
                forest.tree.check(device=False)
            finally:
                lib.rdx_alloc_fail_at(0)
        else:
            raise AssertionError("it never worked")
        forest.roots.append(root)
        forest.step()
        forest.tree.check(device=False)
    assert failures > 10
    assert set(forest.shares.use()) == {*NAMES, *(f"new {number}" for number in range(40))}
