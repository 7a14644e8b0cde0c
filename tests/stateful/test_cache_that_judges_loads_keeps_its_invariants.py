"""Caches that decide by cost what they load and write, with rates that are learned from a clock of
their own: the invariants hold after each step, and what is served has the bytes of its prompt.
"""

from __future__ import annotations

import random

import pytest

from radix.policy.cost import Economy
from radix.policy.rates import Rate
from tests.cachemachine import MemoryMachine
from tests.storms import memory_storm

NAMES = ("host", "deep")


def storm(seed: int, steps: int, *, mixed: bool) -> MemoryMachine:
    """One world and its traffic of one seed."""
    rng, now = random.Random(seed), [0]
    machine = MemoryMachine()

    def clock() -> int:
        now[0] += rng.choice((0, 0, 10**6, 10**9))
        return now[0]

    rates = {name: Rate(rng.choice((0.0, 1.0)), 10.0 ** rng.randint(0, 6)) for name in NAMES}
    if rng.random() < 0.7:  # tiers that are written, and whose loads turn out to be slow
        rates = {name: Rate(0.0, 10.0 ** rng.randint(3, 9)) for name in NAMES}
    machine.options |= {
        "economy": Economy(10.0 ** rng.randint(1, 4), rates, rng.choice((8, 64, 1024))),
        "write": rng.choice(("write_through", "write_back", "write_after")),
        "clock": clock,
    }

    def forget() -> None:
        if rng.random() < 0.25:
            machine.rig.empty(0)  # what is hit then lies below

    memory_storm(machine, rng, seed, steps, mixed=mixed, least_tiers=2, after=forget)
    return machine


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_cache_that_judges_in_a_storm_keeps_its_invariants(seed: int, mixed: bool) -> None:
    storm(seed, 100, mixed=mixed)


def test_storms_meet_every_decision() -> None:
    """Loads that are decided, cut short for their cost, and measured, or they show nothing."""
    wanted = {("economy", "loads decided"): 0, ("match", "miss", "cheaper to compute"): 0}
    measured = refused = 0
    for seed in range(12, 40):
        cache = storm(seed, 60, mixed=seed % 2 == 0).rig.cache
        for name in wanted:
            wanted[name] += cache.metrics.total(*name)
        assert cache._judge is not None
        measured += sum(each.observations for each in cache._judge._rates._tiers.values())
        refused += sum(not verdict.keep for verdict in cache._judge._verdicts.values())
        if all(wanted.values()) and measured and refused:
            return
    raise AssertionError(f"never met: {wanted}, measured {measured}, refused {refused}")


@pytest.mark.long
def test_cache_that_judges_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 1400):
        storm(seed, 120, mixed=bool(seed % 2))
