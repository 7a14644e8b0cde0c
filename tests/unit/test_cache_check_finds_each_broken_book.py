"""``check`` is believed by every other test, so it must find what is broken: each kind of damage is
done by hand here, and each is found and named (I7-I10, I22).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radix.errors import InvariantError
from tests.cacherig import Rig, build

PROMPT = list(range(10))


def _leak(rig: Rig) -> None:
    rig.cache.tiers[0].reserve(0, 1)


def _leak_below(rig: Rig) -> None:
    rig.cache.tiers[1].reserve(0, 1)


def _free_a_slot_of_the_tree(rig: Rig) -> None:
    slot = rig.live[0].request._work.table[0][:1]
    rig.cache.tiers[0].free(0, slot)


def _own_a_slot_twice(rig: Rig) -> None:
    table = rig.live[0].request._work.table[0]
    table[2] = table[1]


def _name_another_slot(rig: Rig) -> None:
    table = rig.live[0].request._work.table[0]
    table[0], table[1] = table[1], table[0]


def _forget_a_private_slot(rig: Rig) -> None:
    work = rig.live[0].request._work
    work.held[0].own[-1] = False
    work.held[0].slots[-1] = -1


def _count_too_many_tokens(rig: Rig) -> None:
    rig.live[0].request._work.computed = 99


def _lose_a_job(rig: Rig) -> None:
    rig.cache.transfers.outstanding.clear()


def _keep_a_key_landing(rig: Rig) -> None:
    place = next(iter(rig.cache.transfers._landing))
    rig.cache.transfers._landing[place][bytes(16)] = 77


def _write_elsewhere(rig: Rig) -> None:
    job = next(iter(rig.cache.transfers.jobs.values()))
    job.upper_slots = np.array([13] * len(job.upper_slots), np.int32)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_leak, "I8"),
        (_leak_below, "I8"),
        (_free_a_slot_of_the_tree, "I8"),
        (_own_a_slot_twice, "I7"),
        (_name_another_slot, "I10"),
        (_forget_a_private_slot, "I8"),
        (_count_too_many_tokens, "I9"),
        (_lose_a_job, "I22"),
        (_keep_a_key_landing, "I22"),
        (_write_elsewhere, "I22"),
    ],
)
def test_damage_is_found_and_named(damage: Callable[[Rig], None], name: str) -> None:
    rig = build(below=(16,))
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 10)
    assert rig.cache.transfers.jobs
    rig.cache.check()
    damage(rig)
    with pytest.raises(InvariantError) as error:
        rig.cache.check()
    assert error.value.name == name
