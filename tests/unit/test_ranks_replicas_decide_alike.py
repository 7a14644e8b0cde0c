"""I33 over ranks: replicas of the control plane whose clocks, seeds, pools, completion orders and
faults differ stay identical through the agreement step, in every tree, decision and event, and what
each of them serves is right on its own rank (I24).
"""

from __future__ import annotations

import random

import pytest

from radix.ownership import Ownership
from tests.ranksrig import Meeting, ReplicaMachine, replicated

RANKS = 3


def _storm(seed: int, steps: int, *, mixed: bool, **options: object) -> list[int]:
    def one(rank: int, meeting: Meeting) -> int:
        machine = ReplicaMachine(rank, meeting)
        machine.start(seed, 2 + seed % 2, mixed=mixed, **options)
        rng = random.Random(seed)
        for number in range(steps):
            machine.step(rng)
            machine.rig.cache.check()
            if number % 8 == 0:
                machine.rig.walk()
        machine.teardown()
        return meeting.steps

    try:
        return replicated(RANKS, one)
    except BaseException as error:
        error.add_note(f"seed {seed}, mixed {mixed}, {options}")
        raise


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_replicas_in_a_storm_stay_identical(seed: int, mixed: bool) -> None:
    assert min(_storm(seed, 70, mixed=mixed)) > 5, "the ranks hardly met"


@pytest.mark.parametrize("ownership", [Ownership.SHARED, Ownership.BORROWED])
def test_replicas_whose_engine_owns_the_slots_stay_identical(ownership: Ownership) -> None:
    for seed in (10, 14):
        _storm(seed, 60, mixed=True, ownership=ownership)


def test_replicas_that_write_back_stay_identical() -> None:
    for seed in (20, 21):
        _storm(seed, 60, mixed=True, write="write_back")
