"""A tier that fails again and again is taken out, so that it costs nothing more, and tried again
later; what the owner switches himself stays as he wants it (design section 8; I33).
"""

from __future__ import annotations

import pytest

from radix.events import Event, TierEvent
from radix.groups import Group
from radix.metrics import Metrics
from radix.policy.breaker import Breakers
from radix.policy.limits import Breaker, Limits, Moment, Patience
from radix.store import FlatStore
from radix.tier import TierMode
from tests.cacherig import Rig, build
from tests.ticktier import TickTier
from tiers.faults import Fault, FaultPlan
from tiers.index import IndexTier

PAGE = 4
PROMPT = [1] * 16 + [2]
STEP = Limits(breaker=Breaker(failures=3, retry=Patience(steps=4), most_doublings=3))


def _prompt(number: int) -> list[int]:
    return [10 + number] * 16 + [0]


def _rig(call: str, fault: Fault, until: int, limits: Limits = STEP) -> Rig:
    plan = FaultPlan(script={call: dict.fromkeys(range(1, until), fault)})
    return build(below=(32,), plans=(plan,), limits=limits)


def _modes(events: list[Event]) -> list[str]:
    return [event.mode for event in events if isinstance(event, TierEvent)]


def _serve(rig: Rig, tokens: list[int]) -> list[Event]:
    events: list[Event] = []
    live = rig.admit(tokens)
    while not live.checked:
        events += rig.poll()
    rig.compute(live, len(tokens))
    rig.end(live)
    for _ in range(4):
        events += rig.poll()
    return events


def test_tier_whose_loads_fail_is_off_until_it_is_tried_again() -> None:
    """Three loads in a row fail: off, told by an event. After as many steps as were given it is on;
    what it holds is hit again, for it was never lost.
    """
    rig = _rig("load", Fault.FAIL, 4)
    rig.serve(PROMPT)
    host = rig.cache.tiers[1]
    for number in range(3):
        rig.empty(0)
        assert host.mode is TierMode.ON, f"after {number} failures"
        events = _serve(rig, [*PROMPT[:-1], number])
    assert host.mode is TierMode.OFF and _modes(events) == ["off"]
    assert rig.cache.metrics.get("tier", "taken out", "host") == 1
    rig.empty(0)
    before = rig.cache.metrics.get("load", "failed", "host", "kv")
    _serve(rig, PROMPT)
    assert rig.cache.metrics.get("load", "failed", "host", "kv") == before, "it costs nothing now"
    assert rig.cache.explain(PROMPT).tiers.get("host", 0) == 0
    events = []
    for _ in range(6):
        rig.pass_step()
        events += rig.poll()
    assert host.mode is TierMode.ON and _modes(events) == ["on"]
    rig.empty(0)
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 16
    rig.finish_all()


def test_tier_whose_stores_fail_is_read_only_and_what_it_holds_is_hit() -> None:
    """Failed stores say nothing against loads."""
    plan = FaultPlan(script={"store": dict.fromkeys((2, 3, 4), Fault.FAIL)})
    rig = build(below=(32,), plans=(plan,), limits=STEP)
    rig.serve(PROMPT)
    for number in range(3):
        _serve(rig, _prompt(number))
    assert rig.cache.tiers[1].mode is TierMode.READ_ONLY
    rig.empty(0)
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 16
    assert rig.cache.usage()["host"].used_blocks == (4,), "a failed store leaves no trace"
    rig.finish_all()


def test_each_retry_that_fails_doubles_the_time_to_the_next() -> None:
    """On probation one failure is enough; the steps between tries double up to a bound, and one
    success forgets them.
    """
    tick = TickTier(4, "host")
    breakers = Breakers([tick], STEP.breaker, Metrics())
    step, gaps, since = 0, [], 0
    for _ in range(3):
        breakers.ended(0, storing=False, good=False)
    for _ in range(6):
        assert tick.mode is TierMode.OFF
        breakers.run(Moment(step, 0, 0))
        since = step
        while tick.mode is not TierMode.ON:
            step += 1
            breakers.run(Moment(step, 0, 0))
        gaps.append(step - since)
        breakers.ended(0, storing=False, good=False)
    assert gaps == [4, 8, 16, 32, 32, 32]
    while tick.mode is not TierMode.ON:
        step += 1
        breakers.run(Moment(step, 0, 0))
    breakers.ended(0, storing=False, good=True)
    for _ in range(2):
        breakers.ended(0, storing=False, good=False)
    assert tick.mode is TierMode.ON, "three in a row again"


def test_success_between_failures_keeps_a_tier_in() -> None:
    """Only failures in a row count, of one kind."""
    breakers = Breakers([TickTier(4, "host")], STEP.breaker, Metrics())
    for _ in range(20):
        for storing in (True, False):
            breakers.ended(0, storing=storing, good=False)
            breakers.ended(0, storing=storing, good=False)
            breakers.ended(0, storing=storing, good=True)
    assert breakers._tiers[0].mode is TierMode.ON


@pytest.mark.parametrize("mode", [TierMode.OFF, TierMode.READ_ONLY])
def test_mode_that_the_owner_asked_for_is_never_undone(mode: TierMode) -> None:
    """He switched it; no retry switches it on."""
    rig = build(below=(32,), limits=STEP)
    rig.serve(PROMPT)
    rig.cache.set_mode("host", mode)
    for _ in range(100):
        rig.pass_step()
        rig.poll()
    assert rig.cache.tiers[1].mode is mode
    rig.finish_all()


def test_tier_that_went_off_by_itself_is_tried_again() -> None:
    """A medium that failed says so by its mode; it is tried again as one that was taken out."""
    rig = build(below=(32,), limits=STEP)
    rig.serve(PROMPT)
    rig.ticks[0].set_mode(TierMode.OFF)
    for _ in range(8):
        rig.pass_step()
        rig.poll()
    assert rig.cache.tiers[1].mode is TierMode.ON
    rig.finish_all()


def test_late_loads_take_a_tier_out_as_failed_ones_do() -> None:
    """A backend that never answers is as good as dead: after three deadlines it is not asked."""
    limits = Limits(load_deadline=Patience(polls=2), breaker=STEP.breaker)
    rig = build(below=(32,), limits=limits, device=40)
    rig.serve(PROMPT)
    rig.empty(0)
    rig.ticks[0].pace = 0.0
    for number in range(3):
        live = rig.until_ready(rig.admit([*PROMPT[:-1], number]))
        rig.end(live, abort=True)
    for _ in range(3):
        rig.poll()
    assert rig.cache.tiers[1].mode is TierMode.OFF
    rig.ticks[0].pace = 1.0
    rig.finish_all()


def test_damaged_blocks_take_no_tier_out() -> None:
    """Rot costs the blocks that rotted; the tier that finds it is well."""
    plan = FaultPlan(rates={"load": {Fault.CORRUPT: 1.0}})
    rig = build(below=(32,), plans=(plan,), limits=STEP)
    for number in range(6):
        rig.serve(_prompt(number))
        rig.empty(0)
        rig.serve(_prompt(number))
        rig.empty(0)
    assert rig.cache.metrics.get("load", "corrupt", "host", "kv") > 0
    assert rig.cache.tiers[1].mode is TierMode.ON
    rig.finish_all()


def test_same_calls_and_failures_give_the_same_modes() -> None:
    """Two caches that see the same at the same steps decide alike (I33)."""
    runs = []
    for _ in range(2):
        plan = FaultPlan(rates={"load": {Fault.FAIL: 0.6}, "store": {Fault.FAIL: 0.6}}, seed=5)
        rig = build(below=(32,), plans=(plan,), limits=STEP)
        seen: list[str] = []
        for number in range(30):
            seen += _modes(_serve(rig, _prompt(number % 4)))
            rig.empty(0)
            rig.pass_step()
        runs.append(seen)
        rig.finish_all()
    assert runs[0] == runs[1] and runs[0]


def test_who_gives_neither_clock_nor_steps_gets_his_tier_back_too() -> None:
    """The fault: the default patience went by steps and time alone. A flat store has no steps, and
    without a clock its time stands: a disk that was away for a moment stayed out for good.
    """
    host = IndexTier(8, name="host")
    with FlatStore([Group.full("kv", PAGE)], [IndexTier(8), host], key_bytes=8) as store:
        for _ in range(Breaker().failures):
            store.transfers.breakers.ended(1, storing=False, good=False)
        store.poll()
        assert host.mode is TierMode.OFF
        polls = 0
        while host.mode is TierMode.OFF and polls < 1 << 17:
            store.poll()
            polls += 1
        assert host.mode is TierMode.ON
        assert polls > 1000, "a tier that fails is not to be tried at every turn"
