"""What it costs to select a victim where tenants have shares, by how many there are and by policy.

Kept here: the same keys come, in the same order, for every number of tenants and every policy, and
after each round no tenant holds more than one block above another.
"""

from __future__ import annotations

import time

import numpy as np

from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Sizes, Target, no_collection
from radix.flat import FlatCore, Handles
from radix.groups import Group
from radix.keys import Namespace
from radix.policy.eviction import NATIVE_POLICIES
from radix.shares import FOR_ANYBODY, Shares
from radix.tenants import Tenants
from radix.tier import Keys
from radix.tree import TreeCore
from tiers.index import IndexTier

KEY_BYTES = 16
MANY = (1, 16, 1000)
OTHERS = tuple(policy for policy in NATIVE_POLICIES if policy != "lru")
MAX_STAMP = (1 << 64) - 1


class _Houses:
    """Keys of so many tenants, a namespace each; every key is a block of its own."""

    def __init__(self, tenants: int, keys: int, policy: str = "lru") -> None:
        self.tree = TreeCore(
            KEY_BYTES, groups=1, tiers=1, check_ids=False, keep_keys=False, policy=policy
        )
        group, tier = Group.full("kv", 64), IndexTier(2 * keys)
        tier.attach((group,), 1, None)
        self.shares = Shares(self.tree, [group], [tier], Tenants())
        self.shares.opened()
        self.cores: list[FlatCore] = []
        self._of: dict[int, int] = {}  # the core of a root
        for number in range(tenants):
            root = self.tree.root()
            self.shares.assign(root, Namespace(salt=b"%d" % number).canonical())
            self._of[root] = number
            self.cores.append(FlatCore(self.tree, root))
        self._rng = np.random.default_rng(43)
        self.add(keys)

    def add(self, count: int) -> None:
        """So many new keys, of the tenants in turn."""
        keys: Keys = self._rng.integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)
        for number, core in enumerate(self.cores):
            own = keys[number :: len(self.cores)]
            if len(own):
                core.insert(own, 0, np.arange(len(own), dtype=np.int32))

    def select_us(self, count: int) -> list[float]:
        """us of each look at the next victim, the call from Python included, after a use by the
        tenant whose turn it is, which makes its policy forget the last one.
        """
        spans, clock, look = [], time.perf_counter_ns, self.tree.next_victim
        for _ in range(count):
            head = self.shares.head(0, FOR_ANYBODY)
            if head is None:
                raise AssertionError("nothing may go of all keys")
            self.cores[self._of[head.root]].touch(np.array([head.node], np.uint64))
            start = clock()
            look(0)
            spans.append((clock() - start) / 1e3)
        return spans

    def evict_us(self, count: int) -> tuple[float, int]:
        """us a victim of one call, and a number that tells which went; as many new keys come."""
        slots, keys = np.empty(count, np.int32), np.empty((count, KEY_BYTES), np.uint8)
        roots: Handles = np.empty(count, np.uint64)
        start = time.perf_counter_ns()
        freed = self.shares.evict(0, FOR_ANYBODY, MAX_STAMP, slots, keys, roots)
        span = time.perf_counter_ns() - start
        self.add(count)
        return span / 1e3 / count, int(keys[:freed].astype(np.uint64).sum())


def run_tenants(sizes: Sizes, place: Place) -> Outcome:
    """The same evictions for each number of tenants and each policy, in turn, round by round."""
    houses = {f"{many} tenants": _Houses(many, sizes["keys"]) for many in MANY}
    for policy in OTHERS:
        houses[f"{policy}, {MANY[-1]} tenants"] = _Houses(MANY[-1], sizes["keys"], policy)
    rounds, count, facts = Rounds(), sizes["victims"], dict.fromkeys(houses, 0)
    for house in houses.values():
        house.evict_us(count)  # the first call touches memory for the first time
    with no_collection():
        for _ in range(sizes["rounds"]):
            for name, house in houses.items():
                span, went = house.evict_us(count)
                facts[name] += went
                rounds.add_median(f"select, {name}", OURS, "us", house.select_us(count))
                rounds.add(f"evict, {name}", OURS, "us", span)
    for house in houses.values():
        house.tree.check()
        blocks = [use.tiers["device"].blocks for use in house.shares.use().values()]
        if max(blocks) - min(blocks) > 1 + count // len(blocks):
            raise AssertionError(
                f"tenants of one weight hold {min(blocks)} to {max(blocks)} blocks"
            )
    return Outcome(
        rows=rounds.rows(),
        facts={f"bytes of keys that went, {name}": total for name, total in facts.items()},
        targets=[
            *(Target(f"evict, {many} tenants", "at most", 1.0) for many in MANY),
            *(Target(f"select, {name}", "at most", 1.0) for name in houses),
        ],
    )


BENCHMARKS = (
    Benchmark(
        "tenants",
        "What tenants with shares add to selecting and evicting a victim",
        run_tenants,
        smoke={"keys": 2000, "victims": 50, "rounds": 3},
        full={"keys": 100_000, "victims": 1000, "rounds": 41},
    ),
)
