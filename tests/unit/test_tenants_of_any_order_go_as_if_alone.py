"""Under every order of eviction a block that goes is the next of its own tenant's, as a naive
reference has it that knows that tenant alone; whose turn it is, shares decide (I17). What one
tenant does teaches a policy nothing about another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from radix._native import lib
from radix.gate import Gate
from radix.groups import Group
from radix.keys import Namespace
from radix.metrics import Metrics
from radix.policy.eviction import EvictionPolicy, check_policy
from radix.policy.given import ask_policy
from radix.shares import ANYBODY, OWN, Claim, Shares
from radix.tenants import Tenant, Tenants
from radix.tree import Cursor, TreeCore
from radix.treeparts import Price
from tests.ownpolicies import NONSENSE, Failing
from tests.ownpolicies import OWN as OWN_POLICIES
from tests.policypair import COLUMN, Pair, some_hints
from tests.policytraces import agents
from tests.refpolicies import REFERENCES, Cost
from tiers.index import IndexTier

T = TypeVar("T")
NAMES = ("blue", "green", "red")
POLICIES = (*sorted(REFERENCES), "hit_density")
MAX_STAMP = (1 << 64) - 1


class House(Pair):
    """One tenant of an estate: its root in the tree of all, and a reference of its own."""

    def __init__(self, estate: Estate, reference: str, name: str) -> None:
        self.estate, self.tree, self.room = estate, estate.tree, estate.room
        self.reference = REFERENCES[reference]()
        self.root = estate.tree.root(name.encode().ljust(16))
        estate.shares.assign(self.root, Namespace(name).canonical())
        self.number = estate.shares.number(self.root)
        self.used, self.numbers, self.open = 0, self.number << 24, []
        self.hears = estate.hears

    def follow(self) -> None:
        """What others did took time."""
        self.reference.clock = self.tree.stats().clock

    def evict(self, count: int) -> int:
        return self.estate.evict(count, Claim(self.number, 0))

    def _insert(self, prompt: tuple[int, ...], *rest: object) -> None:
        """Room is made first, for all that others hold, too."""
        while (short := self.estate.used + len(prompt) - self.reference.match(prompt)) > self.room:
            if not self.evict(short - self.room):
                return
        super()._insert(prompt, *rest)


class Estate:
    """A tree of several tenants, of ``room`` pages, and a reference of each."""

    def __init__(
        self,
        policy: str,
        room: int,
        weights: tuple[float, ...],
        own: EvictionPolicy | None = None,
    ) -> None:
        """``own``: a user's policy, whose order must be that of ``policy``."""
        self.tree = TreeCore(4, groups=1, tiers=1, policy=check_policy(own or policy))
        self.metrics = Metrics()
        ask_policy(self.tree, own or policy, self.metrics, Gate())
        if policy == "cost":
            self.tree.price([Price(*Cost.price[:3], 0)])
        self.room, self.hears = room, own is None
        self.weights = weights
        known = {name: Tenant(weight) for name, weight in zip(NAMES, weights, strict=False)}
        self.shares = shares_of(self.tree, Tenants(known, of=lambda namespace: namespace.model))
        self.houses = [House(self, policy, name) for name in NAMES[: len(weights)]]

    @property
    def used(self) -> int:
        """Pages of all."""
        return sum(house.used for house in self.houses)

    def next(self, claim: Claim) -> House | None:
        """Whose block goes, by looking at each."""
        able = [house for house in self.houses if any(map(house.reference.leaves, (0, 1)))]
        if claim.how & OWN:
            able = [house for house in able if house.number == claim.tenant]
        weight = dict(zip((house.number for house in self.houses), self.weights, strict=True))
        order = {house.number: (-house.used / weight[house.number], house.number) for house in able}
        return min(able, key=lambda house: order[house.number], default=None)

    def evict(self, count: int, claim: Claim) -> int:
        """Block by block both take the same."""
        for freed in range(count):
            whose, slots = self.next(claim), np.zeros(1, np.int32)
            head = self.shares.head(0, claim)
            gone = self.shares.evict(0, claim, MAX_STAMP, slots, None)
            if whose is None:
                assert (gone, head) == (0, None)
                return freed
            assert (gone, slots.tolist()) == (1, whose.reference.evict(1))
            assert head is not None and head.tenant == whose.number
            whose.used -= 1
        return count

    def check(self) -> None:
        """Nothing is wrong, and each has what its reference has."""
        self.tree.check()
        for house in self.houses:
            own = self.shares.use()[NAMES[house.number - 1]].tiers["device"]
            held = sum(len(run.pages) for run in house.reference.runs())
            assert own.blocks == house.used == held

    def end(self) -> None:
        """All leases go, then all blocks."""
        for house in self.houses:
            while house.open:
                house.follow()
                house.finish(0, True)
        self.evict(self.used, Claim(ANYBODY, 0))
        self.check()
        assert self.used == 0

    def step(self, random: np.random.Generator) -> None:
        """Something that any of them does."""
        house, kind = self.houses[int(random.integers(len(self.houses)))], random.random()
        prompt = tuple(int(n) for n in random.integers(0, 3, random.integers(1, 13)))
        house.follow()
        if kind < 0.5:
            house.serve(prompt)
        elif kind < 0.65:
            house.begin(prompt)
        elif kind < 0.8:
            house.finish(int(random.integers(9)), bool(random.random() < 0.8))
        elif kind < 0.85:
            house.hint(prompt, some_hints(random))
        elif kind < 0.9:
            seconds = int(random.integers(1, 5))
            for each in self.houses:
                each.reference.tell(each.reference.now + seconds)
            self.tree.tell_time(house.reference.now)
        elif kind < 0.95:
            house.touch(prompt)
        else:
            numbers = (ANYBODY, *(each.number for each in self.houses))
            number = numbers[int(random.integers(len(numbers)))]
            how = OWN if number != ANYBODY and random.random() < 0.6 else 0
            self.evict(int(random.integers(1, 9)), Claim(number, how))
        while len(house.open) > 3:
            house.follow()
            house.finish(0, True)


def shares_of(tree: TreeCore, tenants: Tenants) -> Shares:
    """The tenants of a tree of one column of blocks of a byte."""
    group, tier = Group.full("kv", 8), IndexTier(1 << 20)
    tier.attach((group,), 4, None)
    shares = Shares(tree, [group], [tier], tenants)
    shares.opened()
    return shares


@pytest.mark.parametrize("policy", sorted(REFERENCES))
@pytest.mark.parametrize("seed", range(6))
def test_each_tenants_blocks_go_as_its_reference_says(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = tuple(float(w) for w in random.choice((0.5, 1, 2, 3.5), 3))
    estate = Estate(policy, int(random.integers(24, 70)), weights)
    for number in range(500):
        estate.step(random)
        if number % 10 == 0:
            estate.check()
    assert all(use.tiers["device"].evicted > 50 for use in estate.shares.use().values())
    estate.end()


@pytest.mark.parametrize("reference", sorted(OWN_POLICIES))
def test_a_policy_in_python_orders_each_tenants_blocks(reference: str) -> None:
    random = np.random.default_rng(7)
    estate = Estate(reference, 40, (1, 2, 1), OWN_POLICIES[reference]())
    for _ in range(400):
        estate.step(random)
    estate.end()
    assert estate.metrics.get("policy", "failed") == 0


def test_where_a_policy_in_python_fails_each_tenants_oldest_goes() -> None:
    random = np.random.default_rng(8)
    estate = Estate("lru", 40, (1, 2, 1), Failing("used", NONSENSE["one nan"], 5))
    with pytest.warns(RuntimeWarning, match="asked no more"):
        for _ in range(400):
            estate.step(random)
    estate.end()
    assert estate.metrics.get("policy", "failed") == 1


def test_a_scan_teaches_a_policy_nothing_about_others() -> None:
    """`hit_density` draws its victims and learns: of one tenant the same blocks go, in the same
    order, whether the time between its requests is spent by another's scan or by nothing.
    """
    runs = [density_beside(scan) for scan in (False, True)]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 5000
    assert runs[0] != density_beside(False, policy="lru")


def density_beside(scan: bool, policy: str = "hit_density") -> list[int]:
    """Slots of one tenant in the order in which they went, in a room of 120."""
    tree = TreeCore(4, groups=1, tiers=1, policy=policy)
    shares = shares_of(tree, Tenants(of=lambda namespace: namespace.model))
    roots = [tree.root(bytes(15) + bytes([number])) for number in range(2)]
    for root, name in zip(roots, NAMES, strict=False):
        shares.assign(root, Namespace(name).canonical())
    mine, other = (Claim(shares.number(root), OWN) for root in roots)
    used, numbers, gone, out = 0, 0, [], np.zeros(120, np.int32)
    for at, request in enumerate(agents(1, 1500)):
        if scan:
            tokens = np.arange(at * 3, at * 3 + 3, dtype=np.int32)
            tree.insert(Cursor(roots[1], roots[1], 0), tokens, COLUMN, tokens[None, :])
            shares.evict(0, other, MAX_STAMP, out[: 3 if at > 40 else 0], None)
        else:
            tree.touch(Cursor(roots[1], roots[1], 0))
        prompt = np.array(request, np.int32)
        match = tree.match(roots[0], prompt, 0)
        lease, node, pages = tree.lease(Cursor(roots[0], match.node, match.structural_pages))
        freed = shares.evict(
            0, mine, MAX_STAMP, out[: max(0, used + len(prompt) - pages - 120)], None
        )
        gone += out[:freed].tolist()
        used -= freed
        count = min(len(prompt) - pages, 120 - used)
        if count:
            slots = np.arange(numbers, numbers + count, dtype=np.int32)
            run = prompt[pages : pages + count]
            tree.insert(Cursor(roots[0], node, pages), run, COLUMN, slots[None, :], None, lease)
            numbers, used = numbers + count, used + count
        tree.release(lease)
        if at % 97 == 0:
            tree.check()
    return gone


@pytest.mark.parametrize("policy", POLICIES)
def test_a_name_that_is_new_knows_nothing_of_the_one_before(policy: str) -> None:
    """A tenant that is gone leaves its number to the next, and nothing that a policy learned."""

    def run(first: str) -> list[int]:
        tree = TreeCore(4, groups=1, tiers=1, policy=policy)
        shares = shares_of(tree, Tenants(of=lambda namespace: namespace.model))
        random, gone, out = np.random.default_rng(3), [], np.zeros(40, np.int32)
        for name in (first, "second"):
            root = tree.root(name.encode().ljust(16))
            shares.assign(root, Namespace(name).canonical())
            claim = Claim(shares.number(root), OWN)
            assert claim.tenant == 1
            gone.clear()
            for number in range(300 if name != "idle" else 0):
                prompt = random.integers(0, 3, random.integers(1, 13)).astype(np.int32)
                match = tree.match(root, prompt, 0)
                cursor = Cursor(root, match.node, match.structural_pages)
                slots = np.arange(number * 16, number * 16 + len(prompt), dtype=np.int32)
                rest = prompt[cursor.pages :]
                if len(rest):
                    tree.insert(cursor, rest, COLUMN, slots[None, cursor.pages :])
                over = max(0, tree.column_stats(0).resident - 20)
                gone += out[: shares.evict(0, claim, MAX_STAMP, out[:over], None)].tolist()
            shares.evict(0, claim, MAX_STAMP, out, None)
            tree.check()
            random = np.random.default_rng(4)
            assert tree.drop_root(root)
            shares.release(root)
        return gone

    after, alone = run("first"), run("idle")
    assert len(alone) > 500
    if policy != "hit_density":  # it goes by how long ago, and that first one took time
        assert after == alone


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_that_lacks_memory_changes_nothing_of_any_tenant(policy: str) -> None:
    """I11: every allocation of every call fails once, and the call goes through afterwards."""
    tree = TreeCore(4, groups=1, tiers=2, policy=policy)
    group, tiers = Group.full("kv", 8), [IndexTier(1 << 20), IndexTier(1 << 20, "host")]
    for tier in tiers:
        tier.attach((group,), 4, None)
    shares = Shares(tree, [group], tiers, Tenants(of=lambda namespace: namespace.model))
    failures = 0

    def through(call: Callable[[], T]) -> T:
        nonlocal failures
        for number in range(1, 40):
            lib.rdx_alloc_fail_at(number)
            try:
                return call()
            except MemoryError:
                failures += 1
                lib.rdx_alloc_fail_at(0)
                tree.check(device=False)
            finally:
                lib.rdx_alloc_fail_at(0)
        raise AssertionError("memory never sufficed")

    shares.opened()
    random = np.random.default_rng(3)
    for number in range(40):
        root = through(lambda n=number: tree.root(bytes(15) + bytes([n])))
        through(lambda n=number, r=root: shares.assign(r, Namespace(f"t{n}").canonical()))
        for _ in range(8):
            prompt = random.integers(0, 9, random.integers(1, 13)).astype(np.int32)
            slots = np.arange(len(prompt), dtype=np.int32)
            at = Cursor(root, root, 0)
            through(lambda p=prompt, s=slots, a=at: tree.insert(a, p, COLUMN, s[None, :]))
        tree.check(device=False)
    assert failures > 60
    assert shares.evict(0, Claim(ANYBODY, 0), MAX_STAMP, np.empty(2000, np.int32), None) > 500
    tree.check(device=False)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "lru"])
def test_tenants_are_told_apart_or_all_is_as_before(policy: str) -> None:
    """I11: where memory lacks for tenants, the tree goes on without them."""
    for number in range(1, 40):
        tree = TreeCore(4, groups=1, tiers=1, policy=policy)
        lib.rdx_alloc_fail_at(number)
        try:
            shares_of(tree, Tenants())
            break
        except MemoryError:
            lib.rdx_alloc_fail_at(0)
            root, tokens = tree.root(), np.arange(9, dtype=np.int32)
            tree.insert(Cursor(root, root, 0), tokens, COLUMN, tokens[None, :])
            assert tree.evict(0, np.empty(9, np.int32)) == 9
            tree.check()
        finally:
            lib.rdx_alloc_fail_at(0)
    assert 5 < number < 39
