"""What it costs to select a victim, policy by policy.

Kept here: all policies order the same keys after the same calls, and those that learn have learned.
A selection is timed alone, after a use that made the policy forget the last one; an eviction is one
native call that takes many, with all that goes with a block that goes.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from bench.measure import OURS, Benchmark, Outcome, Place, Rounds, Sizes, Target, no_collection
from radix.flat import FlatCore, evict
from radix.gate import Gate
from radix.metrics import Metrics
from radix.policy.eviction import NATIVE_POLICIES, EvictionPolicy, Nodes, check_policy
from radix.policy.given import ask_policy
from radix.tier import Keys
from radix.tree import TreeCore

KEY_BYTES = 16
# Further uses and turns of the whole, so that what learns decides by what it learned.
USES, TURNS = 1500, 3
OWN = "lru in Python"


class _OwnLru:
    """What a user would write; the orders it says cost nothing to say."""

    def came(self, nodes: Nodes) -> npt.NDArray[np.float64]:
        """The time of the last use."""
        return nodes.last.astype(np.float64)

    used = came

    def went(self, nodes: Nodes) -> None:
        """Nothing to remember."""


class _Order:
    """Keys under one policy; every key is a block of its own."""

    def __init__(self, policy: str | EvictionPolicy, keys: int) -> None:
        name = check_policy(policy)
        self.tree = TreeCore(
            KEY_BYTES, groups=1, tiers=1, check_ids=False, keep_keys=False, policy=name
        )
        ask_policy(self.tree, policy, Metrics(), Gate())
        self.core, self.keys = FlatCore(self.tree, self.tree.root()), keys
        self._rng = np.random.default_rng(41)
        self._last = self._fresh(keys)
        self.add(self._last)
        for _ in range(TURNS):
            self.use(USES // TURNS)
            self._last = self._fresh(keys // 2)
            evict(self.tree, 0, keys // 2)
            self.add(self._last)

    def _fresh(self, count: int) -> Keys:
        return self._rng.integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)

    def add(self, keys: Keys) -> None:
        """New keys with slots."""
        self.core.insert(keys, 0, np.arange(len(keys), dtype=np.int32))

    def use(self, count: int) -> None:
        """Some of the newest, at random."""
        found = self.core.find(self._last[self._rng.integers(0, len(self._last), count)])
        self.core.touch(found[found != 0])

    def select_us(self, count: int) -> list[float]:
        """us of each look at the next victim, the call from Python included."""
        spans, clock, look = [], time.perf_counter_ns, self.tree.next_victim
        for _ in range(count):
            self.use(1)
            start = clock()
            look(0)
            spans.append((clock() - start) / 1e3)
        return spans

    def evict_us(self, count: int) -> tuple[float, int]:
        """us a victim of one call, and a number that tells which went; as many new keys come."""
        start = time.perf_counter_ns()
        gone = evict(self.tree, 0, count)[1]
        span = time.perf_counter_ns() - start
        self.use(8)
        self.add(self._fresh(count))
        return span / 1e3 / count, int(gone.astype(np.uint64).sum())


def run_policies(sizes: Sizes, place: Place) -> Outcome:
    """The same evictions under every policy, in turn, round by round."""
    orders = {name: _Order(name, sizes["keys"]) for name in NATIVE_POLICIES}
    orders[OWN] = _Order(_OwnLru(), sizes["keys"])
    rounds, count = Rounds(), sizes["victims"]
    facts = dict.fromkeys(orders, 0)
    for order in orders.values():
        order.evict_us(count)  # the first call touches memory for the first time
    with no_collection():
        for _ in range(sizes["rounds"]):
            for name, order in orders.items():
                span, went = order.evict_us(count)
                facts[name] += went
                rounds.add_median(f"select, {name}", OURS, "us", order.select_us(count))
                rounds.add(f"evict, {name}", OURS, "us", span)
    for order in orders.values():
        order.tree.check()
    if facts[OWN] != facts["lru"]:
        raise AssertionError("the policy in Python took others than the native one")
    return Outcome(
        rows=rounds.rows(),
        facts={f"bytes of keys that went, {name}": total for name, total in facts.items()},
        targets=[Target(f"select, {name}", "at most", 1.0) for name in NATIVE_POLICIES],
    )


BENCHMARKS = (
    Benchmark(
        "policies",
        "What a policy takes to select a victim, and to evict it",
        run_policies,
        smoke={"keys": 1000, "victims": 50, "rounds": 3},
        full={"keys": 100_000, "victims": 1000, "rounds": 41},
    ),
)
