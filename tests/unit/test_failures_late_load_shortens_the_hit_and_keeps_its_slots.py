"""A load that does not end: once its deadline passes the hit is shorter, the request goes on, and
what the load may still write into stays its own until it ends, if it ever does (C86, C93; I7, I22).
"""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, InvariantError
from radix.events import RequestState
from radix.groups import Group, Retention
from radix.ownership import Ownership
from radix.policy.limits import Breaker, Limits, Patience
from tests.cacherig import Rig, build
from tests.resetting import reset
from tests.ticktier import TickTier

PAGE = 4
PROMPT = [1] * 16 + [2]
OTHER = [3] * 16 + [4]


def _limits(**patience: int) -> Limits:
    return Limits(load_deadline=Patience(**patience), breaker=Breaker(failures=0))


def _on_host(limits: Limits, **options: object) -> Rig:
    """What PROMPT needs is on the host alone, and no copy ends until somebody says so."""
    rig = build(limits=limits, below=(32,), **options)
    rig.serve(PROMPT)
    rig.empty(0)
    rig.ticks[0].pace = 0.0
    return rig


@pytest.mark.parametrize("unit", ["steps", "ns", "polls"])
def test_load_that_never_ends_becomes_a_miss_at_its_deadline(unit: str) -> None:
    """C93, dynamo#5012: a load from a lower tier never completed; C86, sglang#23309: the time it
    was given grew with the prompt. Here it has one bound: by the owner's steps, clock or polls.
    """
    now = [0]
    rig = _on_host(_limits(**{unit: 10}), clock=lambda: now[0])
    live = rig.admit(PROMPT)
    turns = 0
    while not live.request.ready and turns < 12:
        turns += 1
        now[0] += 1
        rig.pass_step()
        rig.poll()
    assert live.request.ready and live.request.hit_tokens == 0 and turns >= 8
    assert rig.cache.metrics.get("match", "miss", "load late") == 16
    assert rig.cache.metrics.get("load", "late", "host", "kv") == 4
    rig.compute(live, len(PROMPT))
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.finish_all()


def test_slots_of_a_late_load_are_nobodys_until_it_ends() -> None:
    """Its bytes may still come: whoever got the slots would see them change. They come back once,
    when it ends; what it read is still there and is hit by the next.
    """
    rig = _on_host(_limits(polls=3))
    live = rig.until_ready(rig.admit(PROMPT))
    late = next(iter(rig.cache.transfers.jobs.values()))
    taken = set(late.upper_slots.tolist())
    assert not taken & set(live.request.slots().tolist())
    others = [rig.admit([9 + n] * PAGE) for n in range(3)]
    for other in others:
        assert not taken & set(other.request.slots().tolist())
    rig.compute(live, len(PROMPT))
    rig.end(live)
    for _ in range(4):
        rig.poll()
    rig.cache.check()
    assert rig.states[live.request.id][-1] is not RequestState.RUNNING
    used = rig.cache.usage()["device"].used_blocks[0]
    rig.ticks[0].pace = 1.0
    for other in others:
        rig.end(other, abort=True)
    rig.settle()
    assert rig.cache.usage()["device"].used_blocks[0] < used
    rig.empty(0)
    assert rig.serve(PROMPT).told == len(PROMPT)
    assert rig.cache.metrics.get("load", "blocks", "host", "kv") >= 8
    rig.finish_all()


def test_who_waits_for_another_requests_load_goes_on_too() -> None:
    """C79 with a load that is late: the second has waited for the first one's load, and then for
    one of its own, no longer than one more deadline.
    """
    rig = _on_host(_limits(polls=4), device=24)
    first, second = rig.admit(PROMPT), rig.admit(PROMPT)
    for _ in range(12):
        rig.poll()
    assert first.request.ready and second.request.ready
    assert first.request.hit_tokens == second.request.hit_tokens == 0
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.finish_all()


def test_request_that_needs_the_very_slots_waits_and_then_runs() -> None:
    """The device has no others: R0 admitted it, so it runs once the load ends."""
    rig = _on_host(_limits(polls=3), device=5)
    live = rig.admit(PROMPT)
    for _ in range(20):
        rig.poll()
    assert not live.request.ready
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.until_ready(live)
    rig.compute(live, len(PROMPT))
    rig.finish_all()


def test_aborted_request_ends_while_its_load_does_not() -> None:
    """Its three events come, each once, though the load goes on; nothing is lost when it ends. A
    load that was cancelled before its deadline had none any more: its request was never released,
    and a flush never returned.
    """
    rig = _on_host(_limits(polls=5))
    live = rig.admit(PROMPT)
    rig.poll()
    rig.ticks[0].held = set(rig.cache.transfers.jobs)
    rig.end(live, abort=True)
    for _ in range(12):
        rig.poll()
    assert rig.states[live.request.id][-1] is RequestState.RELEASED
    assert rig.cache.transfers.jobs and not rig.cache.transfers.moving()
    rig.cache.check()
    rig.cache.flush()
    rig.ticks[0].held = set()
    rig.ticks[0].pace = 1.0
    rig.finish_all()


def test_request_goes_on_after_a_reset_though_its_load_never_ends() -> None:
    """The reset cancelled the load, and what was cancelled had no deadline any more: the request
    loaded for ever.
    """
    rig = _on_host(_limits(polls=5))
    live = rig.admit(PROMPT)
    rig.poll()
    rig.ticks[0].held = set(rig.cache.transfers.jobs)
    reset(rig)
    for _ in range(12):
        rig.poll()
    assert live.request.ready and live.request.hit_tokens == 0
    assert rig.cache.transfers.jobs and not rig.cache.transfers.moving()
    rig.compute(live, len(PROMPT))
    rig.cache.check()
    rig.ticks[0].held = set()
    rig.ticks[0].pace = 1.0
    rig.finish_all()


def test_all_groups_go_on_at_one_shorter_length_when_one_is_late() -> None:
    """The load of one group is late, the others came: all of them take the length without it. And
    where all are late at once: the first was given up and the hit laid anew over slots of the
    second, which were then taken from it, so that the request computed into none.
    """
    groups = (
        Group.full("kv", 64),
        Group("near", Group.full("near", 24).layout, Retention("window", tokens=2 * PAGE)),
        Group("state", Group.full("state", 32).layout, Retention("state"), per_sequence=True),
        Group.full("latent", 24),
    )
    for late in (0, 1, 2, 3, None):
        rig = build(groups=groups, device=(24, 24, 12, 24), below=(32,), limits=_limits(polls=4))
        live = rig.until_ready(rig.admit(PROMPT, boundaries=[16]))
        rig.compute(live, len(PROMPT))
        rig.end(live)
        rig.settle()
        rig.empty(0)
        live = rig.admit(PROMPT)
        rig.ticks[0].held = {
            number
            for number, job in rig.cache.transfers.jobs.items()
            if late in (job.move.group, None)
        }
        assert rig.ticks[0].held, f"group {late} has nothing to load"
        rig.until_ready(live)
        assert live.request.hit_tokens == 0, f"group {late}"
        rig.cache.check()
        rig.compute(live, len(PROMPT))
        rig.cache.check()
        rig.ticks[0].held = set()
        rig.finish_all()


def test_late_load_of_borrowed_slots_stays_in_the_ledger() -> None:
    """The engine's slots cannot be exchanged for others: the load is cancelled, and until it has
    ended the ledger says so and the request does not run.
    """
    engine, host = TickTier(16, "device"), TickTier(16, "host")
    cache = PrefixCache(
        (Group.full("kv", 64),),
        [engine, host],
        page_tokens=PAGE,
        ownership=Ownership.BORROWED,
        limits=_limits(polls=3),
    )
    tokens = np.array(PROMPT, np.int32)
    request = cache.admit(tokens, slots=[[0, 1, 2, 3, 4]])
    request.computed(len(PROMPT))
    request.finish()
    for _ in range(4):
        cache.poll()
    host.pace = 0.0
    request = cache.admit(tokens, slots=[[5, 6, 7, 8, 9]])
    for _ in range(10):
        cache.poll()
    assert [slots.tolist() for slots in cache.borrowed().values()] == [[5, 6, 7, 8]]
    assert not request.ready
    host.pace = 1.0
    cache.poll()
    assert not cache.borrowed()
    cache.close()


@pytest.mark.parametrize("seed", range(4))
def test_slots_have_one_owner_whenever_loads_are_late_and_end(seed: int) -> None:
    """Prompts over two lower tiers whose copies end late or never: after each step every slot has
    one owner, each hit its own bytes, and in the end nothing is held.
    """
    rng = random.Random(seed)
    rig = build(device=24, below=(16, 32), limits=_limits(polls=rng.choice((1, 3, 8))))
    for step in range(80):
        where = f"seed {seed}, step {step}"
        for tick in rig.ticks:
            tick.pace = rng.choice((0.0, 0.2, 1.0))
        tokens = [x for _ in range(rng.randint(1, 4)) for x in [rng.randint(1, 2)] * PAGE] + [0]
        if len(rig.live) < 2 and rng.random() < 0.5:
            with suppress(CapacityError):
                rig.admit(tokens)
        for live in list(rig.live):
            if live.checked and rng.random() < 0.5:
                rig.compute(live, live.request._work.count)
                rig.end(live, abort=rng.random() < 0.3)
            elif rng.random() < 0.05:
                rig.end(live, abort=True)
        if rng.random() < 0.3:
            rig.evict(0, rng.randint(1, 8), rng.randint(0, 1))
        rig.poll()
        try:
            rig.cache.check()
        except InvariantError as error:
            raise AssertionError(where) from error
    for tick in rig.ticks:
        tick.pace = 1.0
    rig.finish_all()
