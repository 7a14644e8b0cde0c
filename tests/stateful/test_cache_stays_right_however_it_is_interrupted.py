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


def _storm(seed: int, steps: int, *, mixed: bool = False) -> None:
    rng = random.Random(seed)
    machine = InterruptedMachine()
    machine.begin(
        page_tokens=rng.choice((1, 2, 4)),
        groups=random.Random(seed) if mixed else rng.randint(1, 2),
        blocks=(rng.randint(8, 16), rng.randint(4, 40), rng.randint(4, 64)),
        tiers=rng.randint(1, 3),
        seed=seed,
        faults=rng.random() < 0.6,
        bytes_=rng.random() < 0.8,
        ownership=rng.choice(list(Ownership)),
    )
    try:
        for number in range(steps):
            machine.step(rng)
            machine.rig.cache.check()
            if number % 4 == 0:
                machine.rig.walk()
        machine.teardown()
    except BaseException as error:
        error.add_note(f"seed {seed}, mixed {mixed}")
        raise


@pytest.mark.parametrize("seed", range(24))
def test_cache_that_is_interrupted_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 120)


@pytest.mark.parametrize("seed", range(24))
def test_cache_of_mixed_groups_that_is_interrupted_keeps_its_invariants(seed: int) -> None:
    _storm(seed, 120, mixed=True)


def _disk_storm(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    machine = InterruptedDiskMachine()
    machine.begin(
        page_tokens=rng.choice((1, 4)),
        blocks=(rng.randint(8, 16), rng.randint(4, 24)),
        seed=seed,
        faults=rng.random() < 0.5,
        payload=rng.choice(("slab", "lmdb")),
        groups=random.Random(seed) if seed % 2 else 1,
    )
    try:
        for number in range(steps):
            if rng.random() < 0.03:
                machine.reopen()
            machine.step(rng)
            machine.rig.cache.check()
            if number % 4 == 0:
                machine.rig.walk()
        machine.teardown()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


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
