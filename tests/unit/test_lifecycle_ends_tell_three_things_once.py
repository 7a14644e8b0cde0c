"""However a request ends, and whatever happens meanwhile, "no more tokens", "no more stores" and
"all transfers done" are told once each and in order, what filled is stored before the second, and a
slot is given to nobody before the fence that ends its use (C54-C59, C64, I30). Each where the end
is known at once, and where it is known one step late: the last step's kernel has not run by then.
"""

from __future__ import annotations

import itertools
import warnings

import pytest

from radix.errors import CapacityError, ClosedError, RequestError
from radix.events import RequestState
from radix.tier import TierMode
from tests.cacherig import ORDER, Live, Rig, build
from tests.resetting import reset, served_again
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(12))
DONE, FINAL, RELEASED = ORDER[2:]
SCHEDULES = pytest.mark.parametrize("late", [False, True], ids=["synchronous", "asynchronous"])


def _told(rig: Rig, live: Live) -> list[RequestState]:
    """Of the three events those that were told."""
    return [state for state in rig.states.get(live.request.id, []) if state in ORDER[2:]]


def _run_to_end(
    rig: Rig, tokens: int, late: bool, *, abort: bool = False, sampled: int = 1
) -> Live:
    """A request of so many tokens, the last ones sampled, that ends as they are computed."""
    live = rig.until_ready(rig.admit(PROMPT[: tokens - sampled], new_tokens=sampled))
    live.request.append(PROMPT[tokens - sampled : tokens])
    fence = rig.fence() if late else None
    rig.compute(live, tokens, fence)
    rig.end(live, abort=abort, fence=fence)
    if late:
        rig.poll()
        assert _told(rig, live) == [DONE], "what the last step fills is not stored yet"
    return live


def _pass(rig: Rig, late: bool) -> None:
    if late:
        rig.pass_step()
    rig.poll()


@SCHEDULES
def test_block_that_the_last_token_fills_is_stored_before_the_request_is_final(late: bool) -> None:
    """C55, vllm#48596: the planner of stores ran before the step that finished."""
    rig = build(below=(32,), device=2)
    rig.ticks[0].pace = 0.0
    live = _run_to_end(rig, 8, late)
    _pass(rig, late)
    assert _told(rig, live) == [DONE, FINAL]
    (job,) = rig.cache.transfers.jobs.values()
    assert job.move.blocks == 2, "both blocks are on their way down"
    with pytest.raises(CapacityError):
        rig.admit([9] * 4)
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    rig.end(rig.until_ready(rig.admit([9] * 8)), abort=True)
    rig.settle()
    assert served_again(rig, [*PROMPT[:8], 0]) == 8
    rig.finish_all()


@SCHEDULES
def test_block_that_the_last_token_leaves_partial_is_given_back_and_not_stored(late: bool) -> None:
    rig = build(below=(32,), device=3)
    live = _run_to_end(rig, 10, late)
    if late:
        with pytest.raises(CapacityError):
            rig.admit([9] * 4)  # the kernel still writes the last one
    _pass(rig, late)
    rig.settle()
    assert _told(rig, live) == list(ORDER[2:])
    assert rig.cache.metrics.total("store", "blocks") == 2
    assert rig.cache.tiers[0].free_blocks(0) == 1
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("hops", [1, 2])
def test_stores_in_flight_at_the_end_come_before_the_last_event(late: bool, hops: int) -> None:
    """C54, C56, vllm#49671, #46027: of two hops both, and not the first alone."""
    rig = build(below=(32, 32)[:hops])
    rig.ticks[-1].pace = 0.0
    live = _run_to_end(rig, 12, late)
    _pass(rig, late)
    for _ in range(4):
        rig.poll()
        assert _told(rig, live) == [DONE, FINAL]
    rig.ticks[-1].pace = 1.0
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    assert rig.cache.metrics.total("store", "blocks") == 3 * hops
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("between", ["nothing", "reset", "off"])
def test_store_put_off_by_back_pressure_is_settled_before_the_request_is_final(
    late: bool, between: str
) -> None:
    """C54, C57, vllm#41945: it is offered at each poll, with or without a step; a reset, or a tier
    that is switched off, settles it too.
    """
    plan = FaultPlan(script={"store": dict.fromkeys(range(1, 4), Fault.REFUSE)})
    rig = build(below=(32,), plans=(plan,))
    live = _run_to_end(rig, 8, late)
    if late:
        rig.pass_step()
    if between == "reset":
        rig.poll()
        assert _told(rig, live) == [DONE]
        reset(rig)
    elif between == "off":
        rig.cache.set_mode("host", TierMode.OFF)
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    assert rig.cache.metrics.total("store", "blocks") == (2 if between == "nothing" else 0)
    rig.finish_all()


@SCHEDULES
def test_slot_of_a_request_that_ended_is_reused_only_after_its_last_kernel(late: bool) -> None:
    """C60: the next request wants the same slots at once."""
    rig = build(device=3)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=0))
    rig.compute(live, 4)
    slots = live.request.slots().tolist()
    rig.end(live, fence=rig.fence() if late else None)
    if late:
        with pytest.raises(CapacityError):
            rig.admit([9] * 12)
        rig.poll()
        with pytest.raises(CapacityError):
            rig.admit([9] * 12)
        rig.pass_step()
        rig.poll()
    other = rig.until_ready(rig.admit([9] * 12))
    assert sorted(other.request.slots().tolist()) == sorted(slots)
    assert _told(rig, live) == ([DONE, FINAL, RELEASED] if late else [])  # not polled yet
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("keep", [None, 0])
def test_request_that_stores_nothing_ends_like_any_other(late: bool, keep: int | None) -> None:
    """C58, dynamo#3730: with no store there was nothing whose end ended the request."""
    rig = build(below=(32,))
    tokens = 3 if keep is None else 12
    live = rig.until_ready(rig.admit(PROMPT[:tokens], cacheable_upto=keep))
    rig.compute(live, tokens, rig.fence() if late else None)
    rig.end(live, fence=rig.fence() if late else None)
    _pass(rig, late)
    rig.poll()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    assert rig.cache.metrics.total("store", "blocks") == 0
    assert rig.cache.tiers[0].usage().used_blocks == (0,)
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.PART, Fault.LOSE])
def test_last_store_that_fails_ends_the_request_and_leaves_no_trace(
    late: bool, fault: Fault
) -> None:
    """C58, C81: counted as failed, not found below, and still there above."""
    plan = FaultPlan(script={"store": {1: fault}}, delay_polls=2)
    rig = build(below=(32,), plans=(plan,))
    live = _run_to_end(rig, 8, late)
    _pass(rig, late)
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    below = rig.cache.tree.column_stats(rig.cache.tree.column(0, 1)).resident
    assert below == rig.cache.metrics.total("store", "blocks") < 2
    assert served_again(rig, [*PROMPT[:8], 0]) == 8
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("mode", [TierMode.OFF, TierMode.READ_ONLY])
@pytest.mark.parametrize("when", ["before", "during", "loading"])
def test_tier_that_is_taken_away_ends_no_request_badly(
    late: bool, mode: TierMode, when: str
) -> None:
    rig = build(below=(32, 32))
    rig.ticks[0].pace = 0.0 if when == "during" else 1.0
    if when == "loading":
        rig.serve(PROMPT[:8])
        rig.empty()
        rig.ticks[0].pace = 0.0
        live = rig.admit([*PROMPT[:8], 7])
        rig.cache.set_mode("host", mode)
        rig.ticks[0].pace = 1.0
        rig.until_ready(live)
        rig.compute(live, 9, rig.fence() if late else None)
        rig.end(live, fence=rig.fence() if late else None)
    else:
        if when == "before":
            rig.cache.set_mode("host", mode)
        live = _run_to_end(rig, 8, late)
        if when == "during":
            rig.cache.set_mode("host", mode)
            rig.ticks[0].pace = 1.0
    _pass(rig, late)
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("when", ["idle", "storing", "loading"])
def test_cache_closes_with_everything_under_way(late: bool, when: str) -> None:
    """Its tiers close with it: what is under way is over, and no call finds it half open."""
    rig = build(below=(32, 32))
    rig.serve(PROMPT[:8])
    if when == "loading":
        rig.empty()
    rig.ticks[0].pace = 1.0 if when == "idle" else 0.0
    live = rig.admit([*PROMPT[:8], 7, 7, 7, 7, 7])
    if when != "loading":
        rig.until_ready(live)
        rig.compute(live, 13, rig.fence() if late else None)
        rig.end(live, fence=rig.fence() if late else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if when != "loading" else "ignore")
        rig.cache.close()
    for call in (rig.cache.poll, live.request.finish, rig.cache.reset):
        with pytest.raises(ClosedError):
            call()


@SCHEDULES
def test_page_is_found_only_once_its_kernel_has_run_whatever_the_request_did(late: bool) -> None:
    """C64, sglang#38319: a page could be hit before its bytes were final, and freed under the hit
    when its request was retracted.
    """
    rig = build(device=12)
    live = rig.until_ready(rig.admit(PROMPT[:9]))
    rig.compute(live, 8, rig.fence())
    assert served_again(rig, PROMPT) == 0
    rig.end(live, abort=True, fence=rig.fence() if late else None)
    other = rig.until_ready(rig.admit(PROMPT))
    assert other.request.hit_tokens == 0
    rig.pass_step()
    rig.poll()
    assert served_again(rig, PROMPT) == 8
    rig.compute(other, 12)
    rig.end(other)
    rig.settle()
    rig.finish_all()


def test_abort_stores_no_page_that_was_not_computed() -> None:
    """C59, vllm#49889: keys existed for pages that were allocated ahead."""
    rig = build(below=(32,), device=8)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=8))
    rig.compute(live, 5, rig.fence())
    rig.end(live, abort=True)
    rig.pass_step()
    rig.settle()
    assert rig.cache.metrics.total("store", "blocks") == 1
    rig.finish_all()


# ---------------------------------------------------------------- any interleaving
STEPS = ("preempt", "reset", "end", "kernel", "transfers")


def _interleaved(order: tuple[str, ...], abort: bool, late: bool, loads: bool) -> None:
    """One request, and the five things that can happen to it in this order."""
    rig = build(below=(32, 32), device=16)
    if loads:
        rig.serve(PROMPT[:9])
        rig.empty(0)
    for tick in rig.ticks:
        tick.pace = 0.0
    live = rig.admit(PROMPT, new_tokens=4)
    if live.checked:
        rig.compute(live, 8)
        rig.compute(live, 12, rig.fence())
    for step in order:
        fence = rig.fence() if late and "kernel" in order[order.index(step) :] else None
        if step == "preempt" and live in rig.live:
            rig.preempt(live, fence=fence)
        elif step == "reset":
            reset(rig)
        elif step == "end":
            rig.end(live, abort=abort, **({} if live in rig.parked else {"fence": fence}))
            with pytest.raises(RequestError):
                live.request.finish()
        elif step == "kernel":
            rig.pass_step()
        elif step == "transfers":
            for tick in rig.ticks:
                tick.pace = 1.0
        rig.poll()
        rig.cache.check()
        if live in rig.parked and step != "preempt":
            live = rig.resume(live)
            rig.cache.check()
    rig.settle()
    assert _told(rig, live) == [DONE, FINAL, RELEASED]
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("loads", [False, True], ids=["running", "loading"])
@pytest.mark.parametrize("abort", [False, True], ids=["finish", "abort"])
def test_every_order_of_five_things_tells_the_end_once(
    late: bool, loads: bool, abort: bool
) -> None:
    """Preemption with its resumption, a reset, the end, the last kernel and the transfers: all 120
    orders of them.
    """
    for order in itertools.permutations(STEPS):
        try:
            _interleaved(order, abort, late, loads)
        except BaseException as error:
            error.add_note(f"order {order}, abort {abort}, late {late}, loads {loads}")
            raise
