"""The same storms over a cache that writes back, gives loads and copies deadlines, bounds what
moves, takes failing tiers out and fetches ahead: every page that is called a hit holds the right
bytes, every slot has one owner, and the books add up (I7, I8, I14, I22-I24, I30, I32, I34).
"""

from __future__ import annotations

import random

import pytest

from radix.policy.limits import Breaker, Limits, Patience
from radix.prefetching import Prefetch
from tests.cachemachine import STORIES, DiskMachine, MemoryMachine
from tests.storms import disk_storm, memory_storm


def limits_of(rng: random.Random) -> Limits:
    """Bounds so tight that each of them is met."""
    none = Patience()
    return Limits(
        demote_after=rng.choice((none, Patience(polls=3), Patience(steps=2))),
        drop_after=Patience(polls=rng.choice((2, 30))),
        load_deadline=rng.choice((none, Patience(polls=2), Patience(polls=8))),
        prefetch_deadline=Patience(polls=rng.choice((3, 40))),
        prefetch_blocks=rng.choice((None, 3)),
        stores=rng.choice((None, 1, 3)),
        loads=rng.choice((None, 1, 3)),
        prefetches=rng.choice((None, 1)),
        breaker=Breaker(failures=rng.choice((0, 1)), retry=Patience(polls=6), most_doublings=2),
    )


def ahead(machine: MemoryMachine, rng: random.Random) -> Prefetch:
    """Asks for a story, the tier that it is to come to being empty mostly."""
    rig, story = machine.rig, rng.choice(STORIES)
    goal = rig.cache._ahead.goal
    for group in range(len(rig.cache.groups) if rng.random() < 0.8 else 0):
        if goal < len(rig.cache.residency.tiers):
            rig.evict(group, 64, goal)
    return rig.cache.prefetch(story[: rng.randint(len(story) // 2, len(story))])


def storm(seed: int, steps: int, *, mixed: bool) -> MemoryMachine:
    """One world and its traffic of one seed."""
    rng = random.Random(seed)
    machine = MemoryMachine()
    machine.options |= {
        "write": rng.choice(("write_back", "write_back", "write_through", "write_after")),
        "limits": limits_of(rng),
    }
    handles: list[Prefetch] = []

    def fetch() -> None:
        if rng.random() < 0.2:
            handles.append(ahead(machine, rng))
        if handles and rng.random() < 0.1:
            handles.pop(rng.randrange(len(handles))).release()

    def release() -> None:
        for handle in handles:
            handle.release()

    memory_storm(machine, rng, seed, steps, mixed=mixed, least_tiers=2, after=fetch, at_end=release)
    return machine


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_cache_that_writes_back_in_a_storm_keeps_its_invariants(seed: int, mixed: bool) -> None:
    storm(seed, 100, mixed=mixed)


def test_storms_meet_every_bound() -> None:
    """What is bounded is met by some of the storms, or they show nothing."""
    totals: dict[tuple[str, ...], int] = {}
    wanted = (
        ("demote", "dropped"),
        ("load", "late"),
        ("prefetch", "blocks"),
        ("prefetch", "expired"),
        ("tier", "taken out"),
        ("tier", "tried again"),
    )
    for seed in range(12, 30):
        metrics = storm(seed, 60, mixed=seed % 2 == 0).rig.cache.metrics
        for name in wanted:
            totals[name] = totals.get(name, 0) + metrics.total(*name)
        if all(totals.values()):
            return
    raise AssertionError(f"never met: {totals}")


def storm_over_disk(seed: int, steps: int) -> None:
    """Over real threads and a real disk, which is closed and opened now and then."""
    rng = random.Random(seed)
    machine = DiskMachine()
    machine.options |= {"write": "write_back", "limits": limits_of(rng)}
    disk_storm(machine, rng, seed, steps, mixed=bool(seed % 2))


@pytest.mark.parametrize("seed", range(8))
def test_cache_that_writes_back_to_a_disk_keeps_its_invariants(seed: int) -> None:
    """A flush ends whatever fails: a copy that failed each time was once offered for ever."""
    storm_over_disk(seed, 80)


@pytest.mark.parametrize("seed", range(6))
def test_cache_with_a_budget_of_writes_keeps_its_invariants(seed: int) -> None:
    """Over a real disk whose budget is used up and filled again, and what is worth a write."""
    rng, now = random.Random(seed), [0]

    def clock() -> int:
        now[0] += rng.choice((0, 0, 10**9, 10**11))
        return now[0]

    machine = DiskMachine()
    machine.options |= {
        "write": rng.choice(("write_expected", "write_back", "write_through")),
        "clock": clock,
        "limits": Limits(
            demote_after=Patience(polls=3),
            drop_after=Patience(polls=8),
            write_expected=rng.choice((0.1, 0.5)),
            write_budget_bytes_per_day=rng.choice((1, 1 << 20, 1 << 30)),
            write_burst_bytes=rng.choice((1, 1 << 16)),
        ),
    }
    disk_storm(machine, rng, seed, 80, mixed=bool(seed % 2))


@pytest.mark.long
def test_cache_that_writes_back_in_many_storms_keeps_its_invariants() -> None:
    for seed in range(1000, 1600):
        storm(seed, 200, mixed=seed % 2 == 0)
