"""Write-back: a block goes down only when it has to, and leaves its tier only once the copy below
is acknowledged, was refused, or was waited for long enough (C40; I16, I17, I21-I24).
"""

from __future__ import annotations

import random

import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError
from radix.groups import Group, Retention
from radix.policy.limits import Limits, Patience
from radix.tier import TierMode
from tests.cacherig import Rig, build
from tiers.device import DeviceTier
from tiers.faults import Fault, FaultPlan

PAGE = 4


def _prompt(number: int, pages: int = 4) -> list[int]:
    return [1 + number] * (pages * PAGE) + [0]


def _rig(**options: object) -> Rig:
    options.setdefault("below", (16, 32))
    return build(write="write_back", **options)


def _stored(rig: Rig, tier: str = "host") -> int:
    return rig.cache.metrics.get("store", "blocks", tier, "kv")


def _flush(rig: Rig) -> None:
    for event in rig.cache.flush():
        rig._hear(event)


def _serve(rig: Rig, tokens: list[int]) -> int:
    """Serves one prompt, waiting where room has to be made; the tokens hit."""
    for _ in range(100):
        try:
            live = rig.admit(tokens)
            break
        except CapacityError:
            rig.poll()
    else:
        raise AssertionError("never admitted")
    rig.until_ready(live)
    hit = live.request.hit_tokens
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    rig.cache.check()
    return hit


def test_new_block_stays_where_it_is_until_it_has_to_go() -> None:
    """Nothing is short and nothing is due: nothing is written."""
    rig = _rig()
    for number in range(3):
        _serve(rig, _prompt(number))
    assert _stored(rig) == 0
    assert [(room.clean, room.dirty) for room in rig.cache.room(0)] == [(0, 12)]
    rig.finish_all()


@pytest.mark.parametrize("when", ["copying", "copied"])
def test_victim_that_is_leased_before_it_goes_stays(when: str) -> None:
    """C114, LMCache#2097: a candidate was pinned between the choice and the removal, and went all
    the same. Here its copy is under way, or has ended, when somebody hits it.
    """
    rig = _rig(device=5, below=(16,))
    _serve(rig, _prompt(0))
    rig.ticks[0].pace = 0.0
    assert len(rig.cache.evict(0, 4)) == 0 and rig.cache.transfers.jobs, "chosen: it is on its way"
    if when == "copied":
        rig.ticks[0].pace = 1.0
        rig.settle()
    with rig.cache.lease(rig.cache.match(_prompt(0))[1]) as lease:
        assert lease.pages == 4
        rig.ticks[0].pace = 1.0
        rig.settle()
        assert len(rig.cache.evict(0, 4)) == 0
        rig.cache.check()
        with pytest.raises(CapacityError, match="leased 4"):
            rig.admit(_prompt(1, 3))
    assert len(rig.cache.evict(0, 4)) == 4, "clean, and nobody's"
    rig.poll()
    assert _serve(rig, _prompt(0)) == 16
    rig.finish_all()


def test_evicted_blocks_were_copied_before_and_are_hit_again() -> None:
    """Prompts that fill the device many times: what it lets go is on the host, or on the tier below
    that, with its own bytes.
    """
    rig = _rig()
    for number in range(8):
        assert _serve(rig, _prompt(number)) == 0
    assert _stored(rig) > 0
    assert rig.cache.metrics.total("demote", "dropped") == 0
    for number in range(8):
        assert _serve(rig, _prompt(number)) == 4 * PAGE, f"prompt {number} was lost"
    rig.finish_all()


def test_block_is_not_evicted_before_its_copy_is_acknowledged() -> None:
    """The device is full of dirty blocks and the copies do not end: admission waits, and says so;
    what is there is still hit.
    """
    rig = _rig(below=(16,))
    for number in range(3):
        _serve(rig, _prompt(number))
    rig.ticks[0].pace = 0.0
    with pytest.raises(CapacityError) as short:
        rig.admit(_prompt(9, pages=8))
    assert short.value.dirty > 0
    assert short.value.evictable >= short.value.dirty
    for _ in range(5):
        rig.poll()
        with pytest.raises(CapacityError):
            rig.admit(_prompt(9, pages=8))
    rig.cache.check()
    for number in range(3):
        assert rig.cache.match(_prompt(number))[0].hit_pages == 4
    rig.ticks[0].pace = 1.0
    assert _serve(rig, _prompt(9, pages=8)) == 0
    rig.finish_all()


def test_clean_block_is_evicted_without_a_write() -> None:
    """I23: what came from below, or went down once, is not written again."""
    rig = _rig(below=(32,))
    for number in range(8):
        _serve(rig, _prompt(number))
    _flush(rig)
    before = _stored(rig)
    for number in range(8):
        assert _serve(rig, _prompt(number)) == 4 * PAGE
    rig.empty(0)
    assert _stored(rig) == before
    rig.finish_all()


@pytest.mark.parametrize("unit", ["steps", "ns", "polls"])
def test_block_goes_down_when_its_deadline_passes(unit: str) -> None:
    """By steps, by the owner's clock, or by polls: after it, and not before."""
    now = [0]
    rig = _rig(
        limits=Limits(demote_after=Patience(**{unit: 40})), clock=lambda: now[0], below=(16,)
    )
    rig.pass_step()
    _serve(rig, _prompt(1))
    assert _stored(rig) == 0
    for _ in range(50):
        now[0] += 1
        if unit == "steps":
            rig.pass_step()
        rig.poll()
    rig.settle()
    assert _stored(rig) == 4
    assert rig.cache.room(0)[0].dirty == 0
    rig.finish_all()


@pytest.mark.parametrize("mode", [TierMode.READ_ONLY, TierMode.OFF])
def test_block_that_the_lower_tier_refuses_is_dropped_and_counted(mode: TierMode) -> None:
    """A tier that takes nothing must not stop the one above it."""
    rig = _rig(below=(16,))
    rig.cache.set_mode("host", mode)
    for number in range(6):
        _serve(rig, _prompt(number))
    assert rig.cache.metrics.get("demote", "dropped", "device", "kv") > 0
    rig.finish_all()


def test_copy_that_cannot_begin_is_not_waited_for_for_ever() -> None:
    """A queue that refuses each time: the block is dropped once ``drop_after`` has gone by."""
    plan = FaultPlan(rates={"store": {Fault.REFUSE: 1.0}})
    limits = Limits(drop_after=Patience(polls=6))
    rig = _rig(below=(16,), plans=(plan,), limits=limits)
    for number in range(6):
        _serve(rig, _prompt(number))
    assert rig.cache.metrics.get("demote", "dropped", "device", "kv") > 0
    assert _stored(rig) == 0
    rig.finish_all()


def test_failed_copy_leaves_no_trace_and_demotes_nothing() -> None:
    """C81: the first copies fail: the block stays, dirty, and its next copy counts."""
    plan = FaultPlan(script={"store": {1: Fault.FAIL, 2: Fault.PART, 3: Fault.LOSE}})
    rig = _rig(below=(32,), plans=(plan,))
    for number in range(8):
        _serve(rig, _prompt(number))
    assert rig.cache.metrics.get("store", "failed", "host", "kv") > 0
    for number in range(8):
        assert _serve(rig, _prompt(number)) == 4 * PAGE, f"prompt {number} was lost"
    rig.finish_all()


def test_flush_sends_every_dirty_block_to_the_last_tier() -> None:
    """What is stored is durable after a flush, wherever it was."""
    rig = _rig()
    for number in range(3):
        _serve(rig, _prompt(number))
    _flush(rig)
    assert _stored(rig, "host") == 12 and _stored(rig, "deep") == 12
    assert all(room.dirty == 0 for tier in (0, 1) for room in rig.cache.room(tier))
    rig.finish_all()


def test_window_of_an_inner_node_goes_down_before_the_device_lets_it_go() -> None:
    """C40, sglang#28468 (and #29204): write-back. The window part of an inner node was dropped
    before it had been copied. Here the boundary is hit again from below, with its window.
    """
    groups = (
        Group.full("kv", 64),
        Group("near", Group.full("near", 24).layout, Retention("window", tokens=2 * PAGE)),
    )
    rig = _rig(groups=groups, device=(12, 8), below=((32, 32),))
    shared = [7] * (4 * PAGE)
    for number in range(2):
        tokens = [*shared, *[number + 1] * (2 * PAGE), 0]
        live = rig.until_ready(rig.admit(tokens, boundaries=[len(shared)]))
        rig.compute(live, len(tokens))
        rig.end(live)
        rig.settle()
    for number in range(4):
        _serve(rig, _prompt(20 + number))
    for tier in (0,):
        for group in range(2):
            for _ in range(4):
                rig.evict(group, 64, tier)
                rig.settle()
    assert rig.cache.metrics.total("demote", "dropped") == 0
    live = rig.until_ready(rig.admit([*shared, 90, 91, 92, 93, 94]))
    assert live.request.hit_tokens == len(shared)
    rig.finish_all()


@pytest.mark.parametrize("seed", range(6))
def test_no_prompt_is_lost_or_wrong_whatever_is_evicted_between(seed: int) -> None:
    """Random prompts that share prefixes, evictions, slow copies and both deadlines; each byte of a
    hit is looked at by the rig, every slot is accounted for after each step.
    """
    rng = random.Random(seed)
    rig = _rig(
        device=12,
        below=(16, 64),
        limits=Limits(demote_after=Patience(polls=rng.choice((3, 30)))),
    )
    for tick in rig.ticks:
        tick.pace = rng.choice((0.3, 1.0))
    served: set[tuple[int, ...]] = set()
    for step in range(60):
        tokens = [x for _ in range(rng.randint(1, 4)) for x in [rng.randint(1, 2)] * PAGE] + [0]
        hit = _serve(rig, tokens)
        known = max(
            (n for n in range(0, len(tokens), PAGE) if tuple(tokens[:n]) in served), default=0
        )
        assert hit == known, f"seed {seed}, step {step}: hit {hit} of {known}"
        served |= {tuple(tokens[:n]) for n in range(0, len(tokens), PAGE)}
        if rng.random() < 0.3:
            rig.evict(0, rng.randint(1, 8), rng.randint(0, 1))
            rig.settle()
    assert rig.cache.metrics.total("demote", "dropped") == 0, f"seed {seed}"
    rig.finish_all()


def test_policy_of_writing_and_limits_are_refused_by_name() -> None:
    """A bad argument names itself, and nothing is open then."""
    group = (Group.full("kv", 64),)
    for more, error, name in (
        ({"write": "write_black"}, ValueError, "write"),
        ({"limits": 7}, TypeError, "limits"),
    ):
        with pytest.raises(error, match=name):
            PrefixCache(group, [DeviceTier(blocks=4, device="cpu")], **more)
    for bad in ({"steps": -1}, {"polls": True}):
        with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
            Patience(**bad)
    for bad in ({"stores": 0}, {"demote_after": 3}, {"breaker": None}):
        with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
            Limits(**bad)
