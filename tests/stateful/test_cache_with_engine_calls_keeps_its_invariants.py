"""Storms in which an engine with page tables of its own uses a cache beside requests: its leases
and inserts, single or a step at once, hints and drafts, under every order of eviction, for tenants,
with hits on a grid and checkpoints far apart, interrupted and reset. Every byte that is called a
hit is right (I24), every slot has one owner (I7, I8), no gap is left on the device (I21), and the
books add up (I12, I14, I17, I34).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from radix.ownership import Ownership
from radix.policy.checkpoint import Checkpoints
from radix.policy.cost import Economy
from radix.policy.eviction import NATIVE_POLICIES
from radix.policy.rates import Rate
from radix.tenants import Tenants, salt_of
from tests.enginecalls import Bare, EngineMachine
from tests.ownpolicies import Noise, OwnLfu
from tests.stateful.test_cache_of_tenants_keeps_its_invariants import SPACES, terms
from tests.storms import memory_storm

NAMES = ("device", "host", "deep")
POLICIES = (*NATIVE_POLICIES, OwnLfu, Noise)
WRITES = ("write_through", "write_back", "write_after", "write_expected", "none")


def world(machine: EngineMachine, rng: random.Random, seed: int) -> None:
    """Everything that a cache can be told to be, in any combination."""
    options = machine.options
    policy = POLICIES[seed % len(POLICIES)]
    options["policy"] = policy if isinstance(policy, str) else policy()
    options["write"] = rng.choice(WRITES)
    options["events"] = rng.random() < 0.5
    if policy == "cost" or rng.random() < 0.15:
        rates = {name: Rate(0.0, 10.0 ** rng.randint(0, 6)) for name in NAMES[1:]}
        options["economy"] = Economy(10.0 ** rng.randint(1, 4), rates, rng.choice((8, 64)))
    if rng.random() < 0.5:
        options["clock"] = lambda: machine.now
    if rng.random() < 0.4:
        options["checkpoints"] = Checkpoints(rng.choice((0, 3, 8)), rng.choice((None, 1, 2)))
    if rng.random() < 0.3:
        options["align_tokens"] = rng.choice((2, 4, 6, 12))
    bare, told_apart = rng.random() < 0.75, rng.random() < 0.4
    begin = machine.begin

    def named(**drawn: Any) -> None:
        owner, tiers = drawn["ownership"], drawn["tiers"]
        if owner is Ownership.OWNED and bare:
            machine.device_type = Bare
        if told_apart:
            machine.spaces = SPACES
            lent = owner is Ownership.BORROWED
            options["tenants"] = terms(rng, NAMES[1 : max(2, tiers)] if lent else NAMES[:tiers])
        begin(**drawn)

    machine.begin = named


def storm(seed: int, steps: int) -> Counter[str]:
    """One world and its traffic of one seed; what was met."""
    rng, machine = random.Random(seed), EngineMachine()
    world(machine, rng, seed)

    def lift() -> None:
        if "tenants" in machine.options:  # the storm ends with a prompt that takes the whole device
            machine.rig.cache.set_tenants(Tenants(of=salt_of))

    memory_storm(machine, rng, seed, steps, mixed=rng.random() < 0.65, at_end=lift)
    return machine.seen


@pytest.mark.parametrize("seed", range(33))
def test_cache_with_engine_calls_in_a_storm_keeps_its_invariants(seed: int) -> None:
    storm(seed, 100)


def test_storms_meet_every_call() -> None:
    """Inserts of both kinds, refused for both reasons, drafts accepted and refused, or they show
    nothing.
    """
    wanted = {"inserts", "steps", "CapacityError", "LeaseError", "accepted", "drafts refused"}
    seen: Counter[str] = Counter()
    for seed in range(100, 140):
        seen += storm(seed, 60)
        if wanted <= seen.keys():
            return
    raise AssertionError(f"never met: {wanted - seen.keys()}")


@pytest.mark.long
def test_cache_with_engine_calls_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 1600):
        storm(seed, 160)
