"""Storms over the machines of a cache: one world and its traffic of one seed, denser than what
rules build up by themselves. Over real threads and a real disk what is ready when is not the seed's
alone; Hypothesis wants the same rules to be possible each time, so there are only storms there.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from radix.ownership import Ownership
from tests.cachemachine import CacheMachine, DiskMachine, MemoryMachine

REOPENS = 0.03  # of the steps over a disk


def _nothing() -> None:
    """What happens between steps where nothing is asked for."""


def memory_storm(
    machine: MemoryMachine,
    rng: random.Random,
    seed: int,
    steps: int,
    *,
    mixed: bool = False,
    least_tiers: int = 1,
    after: Callable[[], None] = _nothing,
    at_end: Callable[[], None] = _nothing,
) -> None:
    """A storm over tiers in memory. ``mixed``: groups of several retentions; ``after``: called
    after each step, ``at_end``: before everything is ended. A failure names its seed.
    """
    machine.begin(
        page_tokens=rng.choice((1, 2, 4)),
        groups=random.Random(seed) if mixed else rng.randint(1, 2),
        blocks=(rng.randint(8, 16), rng.randint(4, 40), rng.randint(4, 64)),
        tiers=rng.randint(least_tiers, 3),
        seed=seed,
        faults=rng.random() < 0.6,
        bytes_=rng.random() < 0.8,
        ownership=rng.choice(list(Ownership)),
    )
    _blow(machine, rng, seed, steps, after=after, at_end=at_end)


def disk_storm(
    machine: DiskMachine,
    rng: random.Random,
    seed: int,
    steps: int,
    *,
    mixed: bool = False,
    at_end: Callable[[], None] = _nothing,
) -> None:
    """A storm over a real host and a real disk, which is closed and opened now and then."""
    machine.begin(
        page_tokens=rng.choice((1, 4)),
        blocks=(rng.randint(8, 16), rng.randint(4, 24)),
        seed=seed,
        faults=rng.random() < 0.5,
        payload=rng.choice(("slab", "lmdb")),
        groups=random.Random(seed) if mixed else 1,
    )

    def reopen() -> None:
        if rng.random() < REOPENS:
            machine.reopen()

    _blow(machine, rng, seed, steps, before=reopen, at_end=at_end)


def _blow(
    machine: CacheMachine,
    rng: random.Random,
    seed: int,
    steps: int,
    *,
    before: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
    at_end: Callable[[], None] = _nothing,
) -> None:
    try:
        for number in range(steps):
            before()
            machine.step(rng)
            after()
            machine.rig.cache.check()
            if number % 4 == 0:
                machine.rig.walk()
        at_end()
        machine.teardown()
    except BaseException as error:
        error.add_note(f"seed {seed}, {steps} steps")
        raise
