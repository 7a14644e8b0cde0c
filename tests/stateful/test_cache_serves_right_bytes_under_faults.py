"""The facade against a small engine, step by step: whatever fails, comes late, is refused, switched
off or dropped, every page that is called a hit holds the right bytes, every slot has one owner, and
the books add up (I7, I8, I14, I22, I24, I30, I32, I34).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from radix.ownership import Ownership
from tests.cachemachine import CacheMachine, DiskMachine, MemoryMachine
from tests.storms import disk_storm, memory_storm


def _run(machine: type[CacheMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def _storm(seed: int, steps: int, *, mixed: bool = False) -> None:
    memory_storm(MemoryMachine(), random.Random(seed), seed, steps, mixed=mixed)


@pytest.mark.parametrize("seed", range(30))
def test_cache_in_a_storm_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 100)


@pytest.mark.parametrize("seed", range(30))
def test_cache_of_mixed_groups_in_a_storm_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 100, mixed=True)


def test_storm_of_one_seed_is_the_same_storm() -> None:
    """What fails can be run again (I33): the same seed gives the same counts."""

    def run() -> Mapping[str, int]:
        machine = MemoryMachine()
        machine.begin(4, 2, (12, 20, 40), 3, 5, True, True, Ownership.OWNED)
        rng = random.Random(5)
        for _ in range(120):
            machine.step(rng)
        machine.teardown()
        return machine.rig.cache.counters()

    assert run() == run()


@pytest.mark.long
def test_cache_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 2000):
        _storm(seed, 250)


def test_cache_over_memory_keeps_its_invariants() -> None:
    _run(MemoryMachine, 25, 50)


def _disk_storm(seed: int, steps: int, *, mixed: bool = False) -> None:
    disk_storm(DiskMachine(), random.Random(seed), seed, steps, mixed=mixed)


@pytest.mark.parametrize("seed", range(10))
def test_cache_over_a_disk_keeps_its_invariants(seed: int) -> None:
    _disk_storm(seed, 80)


@pytest.mark.parametrize("seed", range(10))
def test_cache_of_mixed_groups_over_a_disk_keeps_its_invariants(seed: int) -> None:
    _disk_storm(seed, 80, mixed=True)


@pytest.mark.long
def test_cache_of_mixed_groups_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 2000):
        _storm(seed, 150, mixed=True)


@pytest.mark.long
def test_cache_over_memory_keeps_its_invariants_for_long() -> None:
    _run(MemoryMachine, 2000, 100)


@pytest.mark.long
def test_cache_over_a_disk_keeps_its_invariants_for_long() -> None:
    for seed in range(1000, 1200):
        _disk_storm(seed, 250)
