"""A preempted request gives its slots up as one that ends does, keeps its number and its tokens, is
resumed from what is still cached, and ends once (C60, C107, I30).
"""

from __future__ import annotations

import random

import pytest

from radix.errors import CapacityError, RequestError
from radix.events import RequestState
from tests.cacherig import ORDER, Live, Rig, build
from tests.mixes import mix
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(12))
SCHEDULES = pytest.mark.parametrize("late", [False, True], ids=["synchronous", "asynchronous"])


def _half_way(rig: Rig, late: bool, upto: int = 8) -> Live:
    """A request that computed ``upto`` tokens; late: the last step's kernel has not run yet."""
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=4))
    rig.compute(live, upto, rig.fence() if late else None)
    return live


def _go_on(rig: Rig, live: Live) -> Live:
    again = rig.until_ready(rig.resume(live))
    rig.compute(again, len(again.request))
    return again


@SCHEDULES
def test_preempted_request_resumes_from_its_own_work_and_counts_no_hit(late: bool) -> None:
    """C107, vllm#25780: what a request computed before it was preempted counted as a hit."""
    rig = build(below=(32,), device=8)
    live = _half_way(rig, late)
    number = live.request.id
    rig.preempt(live, fence=rig.fence() if late else None)
    rig.pass_step()
    rig.poll()
    assert live.request.state is RequestState.PREEMPTED and live.request.id == number
    again = _go_on(rig, live)
    assert again.request.id == number and again.request.hit_tokens == 8
    metrics = rig.cache.metrics
    assert metrics.get("match", "resumed_tokens") == 8
    assert metrics.total("match", "hit_tokens") == 0
    assert metrics.get("match", "queried_tokens") == 12
    rig.end(again)
    rig.settle()
    told = [*ORDER[:2], RequestState.PREEMPTED, *ORDER]
    assert rig.states[number] == told, "an end is told once, after the resumption"
    rig.finish_all()


@SCHEDULES
def test_slots_of_a_preempted_request_wait_for_its_stores(late: bool) -> None:
    """C60, vllm#29870: a block was given to another request while its store was pending."""
    rig = build(below=(32,), device=4)
    rig.ticks[0].pace = 0.0
    live = _half_way(rig, late)
    rig.preempt(live, fence=rig.fence() if late else None)
    with pytest.raises(CapacityError):
        rig.admit([9] * 12)
    rig.pass_step()
    rig.poll()
    rig.cache.check()
    with pytest.raises(CapacityError):
        rig.admit([9] * 12)  # two pages are read by the store
    rig.ticks[0].pace = 1.0
    rig.settle()
    other = rig.until_ready(rig.admit([9] * 16))
    rig.compute(other, 12)
    rig.end(other)
    rig.settle()
    again = _go_on(rig, live)
    assert again.request.sources["host"] == 8, "what it computed came back from below"
    rig.end(again)
    rig.finish_all()


def test_transfers_of_before_end_before_the_end_is_told() -> None:
    rig = build(below=(32,), device=16)
    rig.ticks[0].pace = 0.0
    live = _half_way(rig, False)
    rig.preempt(live)
    again = _go_on(rig, live)
    rig.end(again)
    rig.poll()
    assert rig.states[again.request.id][-1] is RequestState.FINALIZED
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert rig.states[again.request.id][-5:] == list(ORDER)
    rig.finish_all()


def test_no_store_of_before_is_submitted_after_the_end_was_told_final() -> None:
    """The kernel of the part that was preempted runs last: what it fills is stored before."""
    rig = build(below=(32,), device=16)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=4))
    fence = rig.fence()
    rig.compute(live, 8, fence)
    rig.preempt(live, fence=fence)
    again = rig.until_ready(rig.resume(live))
    assert again.request.hit_tokens == 0
    rig.end(again)
    for _ in range(3):
        rig.poll()
        assert rig.states[again.request.id][-1] is RequestState.GENERATION_DONE
    rig.pass_step()
    rig.settle()
    assert rig.states[again.request.id][-3:] == list(ORDER[2:])
    assert rig.cache.metrics.total("store", "blocks") == 2
    rig.finish_all()


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("settled", ["at once", "finalized", "released"])
def test_preempted_request_may_end_without_being_resumed(abort: bool, settled: str) -> None:
    """Whatever of its past has happened already, the three events come, once and in order."""
    rig = build(below=(32,), device=8)
    rig.ticks[0].pace = 0.0 if settled == "finalized" else 1.0
    live = _half_way(rig, False)
    rig.preempt(live)
    if settled == "released":
        rig.settle()
    rig.end(live, abort=abort)
    rig.poll()
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert rig.states[live.request.id] == [*ORDER[:2], RequestState.PREEMPTED, *ORDER[2:]]
    with pytest.raises(RequestError, match="released"):
        live.request.finish()
    rig.finish_all()


def test_what_may_not_be_kept_goes_though_it_was_preempted_meanwhile() -> None:
    """The limit of the end holds for what was computed before, and never for what others had."""
    rig = build(below=(32,), device=16)
    rig.serve(PROMPT[:5])
    live = _half_way(rig, False, 12)
    rig.preempt(live)
    rig.settle()
    assert rig.cache.explain([*PROMPT, 0]).hit_tokens == 12
    rig.end(live, cacheable_upto=2)
    rig.poll()
    assert rig.cache.explain([*PROMPT, 0]).hit_tokens == 4
    again = rig.until_ready(rig.admit(PROMPT))
    rig.compute(again, 12)
    rig.preempt(again)
    again = _go_on(rig, again)
    assert again.request.hit_tokens == 8, "a page of others, and one of its own"
    rig.end(again, cacheable_upto=4)
    rig.settle()
    assert rig.cache.explain([*PROMPT, 0]).hit_tokens == 4
    rig.finish_all()


def test_request_preempted_while_it_loads_gives_its_slots_back_once() -> None:
    rig = build(below=(32,), device=8)
    rig.serve(PROMPT)
    rig.empty()
    rig.ticks[0].pace = 0.0
    live = rig.admit(PROMPT, new_tokens=4)
    rig.preempt(live)
    rig.poll()
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert rig.cache.metrics.get("match", "miss", "aborted") == 8
    again = _go_on(rig, live)
    assert again.request.hit_tokens == 8
    rig.end(again)
    rig.finish_all()


def test_resumption_without_room_changes_nothing() -> None:
    rig = build(device=4)
    live = _half_way(rig, False)
    rig.preempt(live)
    other = rig.until_ready(rig.admit([9] * 16))
    before = dict(rig.cache.counters())
    for _ in range(2):
        with pytest.raises(CapacityError):
            rig.resume(live)
        assert live.request.state is RequestState.PREEMPTED
        after = dict(rig.cache.counters())
        assert {key: after[key] for key in before if "evict" not in key} == {
            key: before[key] for key in before if "evict" not in key
        }
    rig.end(other)
    rig.settle()
    rig.end(_go_on(rig, live))
    rig.finish_all()


def test_token_of_the_step_under_way_is_the_preempted_requests() -> None:
    """Where the scheduler runs a step ahead, a token is sampled after the preemption."""
    rig = build(device=8)
    live = _half_way(rig, True, 12)
    rig.preempt(live, fence=rig.fence())
    live.request.append([7])
    rig.pass_step()
    rig.poll()
    again = _go_on(rig, live)
    assert again.request.tokens().tolist() == [*PROMPT, 7]
    assert again.request.hit_tokens == 12
    rig.end(again)
    rig.finish_all()


def test_stores_put_off_before_the_preemption_are_offered_until_they_are_taken() -> None:
    plan = FaultPlan(script={"store": dict.fromkeys(range(1, 5), Fault.REFUSE)})
    rig = build(below=(32,), plans=(plan,), device=8)
    live = _half_way(rig, False)
    rig.preempt(live)
    rig.settle()
    rig.empty()
    assert rig.cache.explain(PROMPT).tiers == {"host": 8}
    rig.end(_go_on(rig, live))
    rig.finish_all()


def test_calls_that_need_another_state_name_it() -> None:
    rig = build(device=8)
    live = _half_way(rig, False)
    with pytest.raises(RequestError, match="running, not preempted"):
        live.request.resume()
    rig.preempt(live)
    for call in (live.request.preempt, lambda: live.request.computed(9), live.request.stage):
        with pytest.raises(RequestError, match="preempted"):
            call()
    with pytest.raises(ValueError, match="new_tokens"):
        live.request.resume(new_tokens=-1)
    assert live.request.state is RequestState.PREEMPTED
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("seed", range(4))
def test_windows_and_states_are_resumed_too(seed: int, late: bool) -> None:
    groups = mix(random.Random(seed), 4)
    rig = build(groups=groups, below=(64,), device=48)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=8))
    for upto in (4, 8, 12):
        rig.compute(live, upto, rig.fence() if late else None)
    rig.preempt(live, fence=rig.fence() if late else None)
    rig.pass_step()
    rig.settle()
    rig.cache.check()
    rig.walk()
    again = _go_on(rig, live)
    assert rig.cache.metrics.get("match", "resumed_tokens") == again.request.hit_tokens
    rig.end(again)
    rig.finish_all()
