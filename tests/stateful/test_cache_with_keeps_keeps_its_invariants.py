"""Storms in which prefixes are kept, extended and released: what is held stays where it is, no
longer than it was to be and within its share of each tier; whatever is kept, a request that fits
alone is admitted, and the books add up (I7, I8, I13, I14, I29, I34).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from radix.holding import Keep
from radix.ownership import Ownership
from radix.policy.limits import Limits, Patience
from radix.tier import TierMode
from tests.cachemachine import NAMESPACES, STORIES, MemoryMachine
from tests.storms import memory_storm

SECOND = 1_000_000_000


@dataclass
class Kept:
    """A keep, and when it is over at the latest."""

    keep: Keep
    until_ns: int


class KeepingMachine(MemoryMachine):
    """What the owner of shared slots evicts may have been kept."""

    def evict(self, tier: int, group: int, count: int) -> None:
        cache = self.rig.cache
        number, kind = tier % len(cache.residency.tiers), group % len(cache.groups)
        if cache.ownership is Ownership.SHARED and number == 0 and cache._keeps.open:
            stats = cache.tree.column_stats(cache.tree.column(kind, 0))
            least = min(count, stats.resident - stats.protected)
            assert least <= self.rig.evict(kind, count, 0) or cache.residency.evictor is not None
        else:
            super().evict(tier, group, count)


class Keeping:
    """What a storm does with keeps beside all else."""

    def __init__(self, machine: MemoryMachine, rng: random.Random) -> None:
        self.machine, self.rng, self.ns = machine, rng, 0
        self.kept: list[Kept] = []
        machine.options |= {
            "clock": lambda: self.ns,
            "write": rng.choice(("write_through", "write_back")),
            "limits": Limits(keep_share=rng.choice((0.25, 0.5, 0.9)), drop_after=Patience(polls=4)),
        }

    def step(self) -> None:
        """One turn of theirs."""
        rng, cache = self.rng, self.machine.rig.cache
        self.ns += rng.choice((0, 0, 1, 5)) * SECOND
        if rng.random() < 0.4:
            story, seconds = rng.choice(STORIES), rng.randint(1, 30)
            keep = cache.keep(
                np.array(story[: rng.randint(1, len(story))], np.int32),
                seconds,
                rng.choice((None, None, 300)),
                namespace=rng.choice(NAMESPACES),
                fetch=rng.random() < 0.3,
            )
            self.kept.append(Kept(keep, self.ns + seconds * SECOND))
        held = [item for item in self.kept if item.keep.held]
        if held and rng.random() < 0.1:
            rng.choice(held).keep.release()
        if held and rng.random() < 0.1 and (item := rng.choice(held)).keep.held:
            item.keep.extend(20)
            item.until_ns = self.ns + 20 * SECOND
        self.look()

    def look(self) -> None:
        """What must be true after a poll."""
        rig = self.machine.rig
        rig.poll()
        cache = rig.cache
        for item in self.kept:
            assert not item.keep.held or self.ns < item.until_ns, "held beyond its time"
        held = [item.keep for item in self.kept if item.keep.held]
        assert len(held) == len(cache._keeps.open) <= cache._keeps.leases
        share = cache.transfers.limits.keep_share
        for number, tier in enumerate(cache.residency.tiers):
            parts = [
                cache._keeps.kept(number, group) / tier.capacity_blocks(group)
                for group in range(len(cache.groups))
            ]
            most = sum(parts) if tier.capability.shares_bytes else max(parts)
            assert most <= share + 1e-9, "keeps hold more than their share"
            for group in range(len(cache.groups)):
                pinned = cache.tree.column_stats(cache.tree.column(group, number)).protected
                assert cache._keeps.kept(number, group) <= pinned, "kept and not pinned (I13)"
        if not rig.live and self.rng.random() < 0.3:
            self.alone()

    def alone(self) -> None:
        """Nothing runs: what fits alone gets in, whatever is kept."""
        rig, cache = self.machine.rig, self.machine.rig.cache
        busy = rig.parked or self.machine.leases or cache.requests.works or len(cache.fences)
        owned = cache.ownership is Ownership.OWNED and cache.requests.placed
        if busy or not owned or cache.tiers[0].mode is not TierMode.ON:
            return
        rig.settle()
        room = min(
            cache.tiers[0].capacity_blocks(group) * rule.block_pages
            for group, rule in enumerate(cache.residency.rules)
            if not rule.per_position
        )
        tokens = [*self.rng.choice(STORIES), *[1] * (room * cache.page_tokens)]
        rig.alone(tokens[: room * cache.page_tokens]).abort()
        rig.settle()
        cache.check()

    def end(self) -> None:
        """Gives up what is left of them."""
        for item in self.kept:
            item.keep.release()


def storm(seed: int, steps: int, *, mixed: bool) -> MemoryMachine:
    """One world and its traffic of one seed."""
    rng = random.Random(seed)
    machine = KeepingMachine()
    keeping = Keeping(machine, rng)
    memory_storm(
        *(machine, rng, seed, steps),
        mixed=mixed,
        least_tiers=1,
        after=keeping.step,
        at_end=keeping.end,
    )
    return machine


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_cache_with_keeps_in_a_storm_keeps_its_invariants(seed: int, mixed: bool) -> None:
    storm(seed, 100, mixed=mixed)


def test_storms_meet_every_end_of_a_keep() -> None:
    """Each end but a reset is met by some of the storms, or they show nothing."""
    wanted = dict.fromkeys(("started", "expired", "released", "gave_way", "over_its_share"), 0)
    for seed in range(12, 40):
        metrics = storm(seed, 60, mixed=seed % 2 == 0).rig.cache.metrics
        for name in wanted:
            wanted[name] += metrics.get("keep", name)
        if all(wanted.values()):
            return
    raise AssertionError(f"never met: {wanted}")


@pytest.mark.long
def test_cache_with_keeps_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 1400):
        storm(seed, 150, mixed=seed % 2 == 0)
