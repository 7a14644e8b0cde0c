"""Storms of three tenants, under every order of eviction, with weights, quotas and floors that
change while requests run: the bytes are right, the books of each tenant add up after each step
(I12, I17), and nobody holds more than his quota but for what lay there when it was lowered.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from radix.keys import Namespace
from radix.ownership import Ownership
from radix.tenants import Tenant, Tenants, salt_of
from tests.cachemachine import CacheMachine, DiskMachine, MemoryMachine
from tests.ownpolicies import OwnLfu
from tests.storms import disk_storm, memory_storm

POLICIES = ("lru", "fifo", "lfu", "slru", "s3fifo", "arc", "hit_density", "priority", OwnLfu)
SPACES = (None, Namespace(salt=b"blue"), Namespace(salt=b"red"), Namespace("other", salt=b"red"))


def terms(rng: random.Random, tiers: tuple[str, ...]) -> Tenants:
    """Terms that the smallest tiers can keep."""

    def amounts(most: float, odds: float) -> dict[str, int | float]:
        return {name: rng.uniform(0.1, most) for name in tiers if rng.random() < odds}

    known = {
        name: Tenant(rng.choice((0.5, 1, 3)), amounts(0.9, 0.5), amounts(0.3, 0.4))
        for name in ("blue", "red")
        if rng.random() < 0.8
    }
    return Tenants(known, Tenant(1, amounts(0.9, 0.3)), salt_of)


class Watched:
    """Sets other terms now and then, and looks at quotas after each step."""

    def __init__(self, machine: CacheMachine, rng: random.Random) -> None:
        self.machine, self.rng = machine, rng
        machine.spaces = SPACES
        self.over: dict[tuple[str, int], int] = {}  # blocks that stood above a quota when it came
        self.seen = {"quota": 0, "refused": 0, "evicted": 0, "over": 0}

    def begin(self, tiers: tuple[str, ...]) -> None:
        self.machine.options["tenants"] = terms(self.rng, tiers)

    def look(self) -> None:
        """After each step."""
        cache = self.machine.rig.cache
        if self.rng.random() < 0.05:
            cache.set_tenants(terms(self.rng, tuple(cache.residency.shares._names)))
            self.over = self.above(cache)
        above = self.above(cache)
        for place, blocks in above.items():
            assert blocks <= self.over.get(place, 0), f"{place} stands {blocks} above its quota"
        self.over = above
        for use in cache.tenant_use().values():
            self.seen["refused"] += use.refused > 0
            for share in use.tiers.values():
                self.seen["quota"] += share.quota_bytes is not None
                self.seen["evicted"] += share.evicted > 0

    def lift(self) -> None:
        """No terms any more: everybody can have everything again."""
        self.machine.options["tenants"] = Tenants(of=salt_of)
        self.machine.rig.cache.set_tenants(Tenants(of=salt_of))

    def above(self, cache: Any) -> dict[tuple[str, int], int]:
        """By tenant and pool the blocks that stand above a quota."""
        shares, found = cache.residency.shares, {}
        for name, number in shares._numbers.items():
            for column in range(cache.tree.tiers * cache.tree.groups):
                if over := shares.over(number, column):
                    found[name, column] = over
        self.seen["over"] += len(found)
        return found


def storm(seed: int, steps: int, *, mixed: bool) -> Watched:
    """One world and its traffic of one seed."""
    rng, machine = random.Random(seed), MemoryMachine()
    watched = Watched(machine, rng)
    machine.options["write"] = rng.choice(("write_through", "write_back", "write_after"))
    policy = POLICIES[seed % len(POLICIES)]
    machine.options["policy"] = policy if isinstance(policy, str) else policy()
    begin = machine.begin

    def named(**world: Any) -> None:
        tiers = world["tiers"]
        first = ("device", "host", "deep")
        if world["ownership"] is Ownership.BORROWED:
            tiers, first = max(1, tiers - 1), first[1:]
        watched.begin(first[:tiers])
        begin(**world)

    machine.begin = named
    memory_storm(machine, rng, seed, steps, mixed=mixed, after=watched.look, at_end=watched.lift)
    return watched


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_tenants_in_a_storm_keep_their_books(seed: int, mixed: bool) -> None:
    storm(seed, 80, mixed=mixed)


@pytest.mark.parametrize("seed", range(4))
def test_tenants_over_a_disk_keep_their_books(seed: int) -> None:
    rng, machine = random.Random(seed), DiskMachine()
    watched = Watched(machine, rng)
    tiers = ("device", "host", "disk")
    watched.begin(tiers)
    reopen = machine.reopen

    def under_other_terms() -> None:
        watched.lift()  # the engine of the test ends with a prompt that takes the whole device
        watched.begin(tiers)
        reopen()

    machine.reopen = under_other_terms
    disk_storm(machine, rng, seed, 60, mixed=seed % 2 == 1, at_end=watched.lift)


def test_storms_meet_every_bound() -> None:
    """Quotas that bind, room that is refused, blocks that go, or they show nothing."""
    seen: dict[str, int] = {}
    for seed in range(100, 110):
        for what, count in storm(seed, 60, mixed=seed % 2 == 0).seen.items():
            seen[what] = seen.get(what, 0) + count
    assert all(seen.values()), seen
