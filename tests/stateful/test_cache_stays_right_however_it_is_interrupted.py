"""Requests are preempted and resumed, the cache is reset in whole and in part and given other
weights, in any interleaving with everything else: every hit holds the right bytes and was computed
in this epoch, every slot has one owner, each end is told once (I8, I22, I24, I30, I31, I34).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from radix.ownership import Ownership
from tests.interrupting import InterruptedDiskMachine, InterruptedMachine
from tests.storms import disk_storm, memory_storm


def _storm(seed: int, steps: int, *, mixed: bool = False) -> None:
    memory_storm(InterruptedMachine(), random.Random(seed), seed, steps, mixed=mixed)


@pytest.mark.parametrize("seed", range(24))
def test_cache_that_is_interrupted_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 120)


@pytest.mark.parametrize("seed", range(24))
def test_cache_of_mixed_groups_that_is_interrupted_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 120, mixed=True)


def _disk_storm(seed: int, steps: int) -> None:
    mixed = bool(seed % 2)
    disk_storm(InterruptedDiskMachine(), random.Random(seed), seed, steps, mixed=mixed)


@pytest.mark.parametrize("seed", range(10))
def test_cache_over_a_disk_that_is_interrupted_keeps_its_invariants(seed: int) -> None:
    _disk_storm(seed, 100)


def test_interrupted_storm_of_one_seed_is_the_same_storm() -> None:
    def run() -> Mapping[str, int]:
        machine = InterruptedMachine()
        machine.begin(4, 2, (12, 20, 40), 3, 5, True, True, Ownership.OWNED)
        rng = random.Random(5)
        for _ in range(300):
            machine.step(rng)
        machine.teardown()
        return machine.rig.cache.counters()

    first = run()
    assert first == run(), "seed 5"
    assert first["request.preempted"] and first["reset.epochs"]


@pytest.mark.long
def test_cache_that_is_interrupted_keeps_its_invariants_for_long() -> None:
    for seed in range(1000, 2000):
        _storm(seed, 250, mixed=bool(seed % 2))
