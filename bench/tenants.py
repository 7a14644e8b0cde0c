"""What it costs to select a victim where tenants have shares, by how many there are.

Kept here: the same keys come, in the same order, for every number of tenants, and after each round
no tenant holds more than one block above another.
"""

from __future__ import annotations

import time

import numpy as np

from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Sizes, Target, no_collection
from radix.flat import FlatCore, Handles
from radix.groups import Group
from radix.keys import Namespace
from radix.shares import FOR_ANYBODY, Shares
from radix.tenants import Tenants
from radix.tier import Keys
from radix.tree import TreeCore
from tiers.index import IndexTier

KEY_BYTES = 16
MANY = (1, 16, 1000)
MAX_STAMP = (1 << 64) - 1


class _Houses:
    """Keys of so many tenants, a namespace each; every key is a block of its own."""

    def __init__(self, tenants: int, keys: int) -> None:
        self.tree = TreeCore(KEY_BYTES, groups=1, tiers=1, check_ids=False, keep_keys=False)
        group, tier = Group.full("kv", 64), IndexTier(2 * keys)
        tier.attach((group,), 1, None)
        self.shares = Shares(self.tree, [group], [tier], Tenants())
        self.shares.opened()
        self.cores = []
        for number in range(tenants):
            root = self.tree.root()
            self.shares.assign(root, Namespace(salt=b"%d" % number).canonical())
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
        """us of each look at the next victim, the call from Python included."""
        spans, clock, look = [], time.perf_counter_ns, self.shares.head
        for _ in range(count):
            start = clock()
            look(0, FOR_ANYBODY)
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
    """The same evictions for each number of tenants, in turn, round by round."""
    houses = {many: _Houses(many, sizes["keys"]) for many in MANY}
    rounds, count, facts = Rounds(), sizes["victims"], dict.fromkeys(MANY, 0)
    for house in houses.values():
        house.evict_us(count)  # the first call touches memory for the first time
    with no_collection():
        for _ in range(sizes["rounds"]):
            for many, house in houses.items():
                span, went = house.evict_us(count)
                facts[many] += went
                rounds.add_median(f"select, {many} tenants", OURS, "us", house.select_us(count))
                rounds.add(f"evict, {many} tenants", OURS, "us", span)
    for house in houses.values():
        house.tree.check()
        blocks = [use.tiers["device"].blocks for use in house.shares.use().values()]
        if max(blocks) - min(blocks) > 1 + count // len(blocks):
            raise AssertionError(
                f"tenants of one weight hold {min(blocks)} to {max(blocks)} blocks"
            )
    return Outcome(
        rows=rounds.rows(),
        facts={f"bytes of keys that went, {many} tenants": total for many, total in facts.items()},
        targets=[Target(f"evict, {many} tenants", "at most", 1.0) for many in MANY],
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
