"""The end of a request is three events, each told once and in order, however it ends: no more
tokens, no more stores, no more transfers (I30).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import RequestError
from radix.events import RequestState
from tests.cacherig import ORDER, Live, Rig, build
from tests.ticktier import peek
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(10))


def _states(rig: Rig, live: Live) -> list[RequestState]:
    return rig.states[live.request.id]


def _running(rig: Rig, tokens: list[int], **more: int) -> Live:
    return rig.until_ready(rig.admit(tokens, **more))


def test_page_that_fills_at_the_end_is_stored_before_the_request_is_final() -> None:
    """C55, vllm#48596: the store planner ran before the step that finished, so the last page was
    never stored; and its slot could be reused before the copy was done.
    """
    rig = build(below=(32,), device=3)
    rig.ticks[0].pace = 0.0
    live = _running(rig, PROMPT[:6], new_tokens=2)
    live.request.append([6, 7])
    rig.compute(live, 8)
    page_slots = live.request.slots()
    rig.end(live)
    rig.poll()
    assert _states(rig, live) == list(ORDER[:4]), "final, but transfers run"
    assert len(rig.cache.evict(0, 8)) == 0, "a slot goes while it is copied"
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert _states(rig, live) == list(ORDER)
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 2
    assert sorted(rig.cache.evict(0, 8).tolist()) == sorted(page_slots[:2].tolist())
    rig.finish_all()


@pytest.mark.parametrize("deep", [False, True])
def test_released_comes_after_the_last_hop(deep: bool) -> None:
    """C54, C56, vllm#49671, #46027: 'finished' meant different things at different layers."""
    rig = build(below=(32, 32) if deep else (32,))
    rig.ticks[-1].pace = 0.0
    live = _running(rig, PROMPT)
    rig.compute(live, 10)
    rig.end(live)
    for _ in range(5):
        rig.poll()
    assert _states(rig, live)[-1] is RequestState.FINALIZED
    rig.ticks[-1].pace = 1.0
    rig.settle()
    assert _states(rig, live)[-1] is RequestState.RELEASED
    rig.finish_all()


@pytest.mark.parametrize("stores", ["none", "two", "one failed"])
def test_every_count_of_stores_reaches_the_end(stores: str) -> None:
    """C58, dynamo#3730: a predicate of expected against done never came true for some counts."""
    script = {1: Fault.FAIL} if stores == "one failed" else {}
    plan = FaultPlan(script={"store": script}, delay_polls=3, reorder=True, seed=5)
    rig = build(below=(32,), plans=(plan,))
    tokens = PROMPT[:3] if stores == "none" else PROMPT
    live = _running(rig, tokens)
    for upto in range(1, len(tokens) + 1):
        rig.compute(live, upto)
    rig.end(live)
    rig.settle()
    assert _states(rig, live) == list(ORDER)
    counted = rig.cache.metrics.total("store", "blocks") + rig.cache.metrics.total(
        "store", "failed"
    )
    assert counted == len(tokens) // 4
    rig.finish_all()


def test_failed_store_leaves_no_block_and_is_offered_at_the_next_hit() -> None:
    """C81, LMCache#4991: a store that failed stayed visible. Here the page is not there below, and
    the next request that hits it on the device offers it again.
    """
    plan = FaultPlan(script={"store": {1: Fault.PART}})
    rig = build(below=(32,), plans=(plan,))
    rig.serve(PROMPT)
    rig.empty()
    assert rig.cache.explain(PROMPT).tiers == {"host": 4}, "the first half is there, and no more"
    rig.serve(PROMPT)
    rig.empty()
    assert rig.cache.explain(PROMPT).tiers == {"host": 8}
    rig.finish_all()


def test_abort_stores_no_page_that_was_not_computed() -> None:
    """C59, vllm#49889: keys existed for pages allocated ahead, and abort stored those too."""
    rig = build(below=(32,))
    live = _running(rig, PROMPT, new_tokens=6)
    rig.compute(live, 5)
    rig.end(live, abort=True)
    rig.settle()
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 1
    assert rig.cache.explain(PROMPT).hit_tokens == 4
    rig.finish_all()


def test_finish_while_loading_waits_for_the_loads_and_counts_no_hit() -> None:
    """C61-C63, sglang#30053, #13483: an abort in another state than the usual one leaked a count,
    or gave a slot back twice.
    """
    rig = build(below=(32, 32))
    rig.serve(PROMPT)
    for hops, abort in ((0, True), (0, False), (1, True), (1, False)):
        rig.empty(0)
        rig.empty(1)
        rig.ticks[1].pace, rig.ticks[0].pace = float(hops), 0.0
        live = rig.admit(PROMPT)
        rig.poll()
        rig.end(live, abort=abort)
        assert live.request.state is RequestState.GENERATION_DONE
        rig.poll()
        rig.cache.check()
        rig.ticks[1].pace = rig.ticks[0].pace = 1.0
        rig.settle()
        assert _states(rig, live) == [ORDER[0], *ORDER[2:]]
    assert rig.cache.metrics.get("match", "miss", "aborted") == 4 * 8
    rig.finish_all()


def test_end_can_be_told_once_and_names_the_state() -> None:
    rig = build()
    live = _running(rig, PROMPT)
    rig.end(live)
    for call in (live.request.finish, live.request.abort):
        with pytest.raises(RequestError, match=f"request {live.request.id} is"):
            call()
    with pytest.raises(RequestError, match="append"):
        live.request.append([1])
    with pytest.raises(RequestError, match="computed"):
        live.request.computed(10)
    rig.finish_all()


def test_refused_store_keeps_the_request_from_being_final() -> None:
    """C57, vllm#41945: stores put off were never submitted where no step came. Each poll offers
    them again, and only then is the request final.
    """
    plan = FaultPlan(script={"store": dict.fromkeys(range(1, 6), Fault.REFUSE)})
    rig = build(below=(32,), plans=(plan,))
    live = _running(rig, PROMPT)
    rig.compute(live, 10)
    rig.end(live)
    for _ in range(2):
        rig.poll()
        assert _states(rig, live)[-1] is RequestState.GENERATION_DONE
    rig.settle()
    assert _states(rig, live) == list(ORDER)
    rig.empty()
    assert rig.cache.explain(PROMPT).tiers == {"host": 8}
    rig.finish_all()


def test_store_offered_again_leaves_out_what_came_down_meanwhile() -> None:
    """Two requests with one prefix, both refused once: each then stored the same pages, at once."""
    plan = FaultPlan(script={"store": {1: Fault.REFUSE}})
    rig = build(below=(32,), plans=(plan,))
    first = _running(rig, PROMPT)
    rig.compute(first, 10)
    assert not rig.cache.transfers.jobs
    rig.ticks[0].pace = 0.0
    second = _running(rig, PROMPT)  # hits on the device, and offers what is not below
    rig.cache.check()
    rig.poll()
    rig.cache.check()
    rig.end(first)
    rig.end(second)
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 2
    rig.finish_all()


def test_store_reads_the_slot_only_while_it_is_owned() -> None:
    """C60, vllm#29870: the slots of an ended request were reused under a store that still read."""
    rig = build(below=(32,), device=4)
    rig.ticks[0].pace = 0.0
    live = _running(rig, PROMPT[:8])
    rig.compute(live, 8)
    rig.end(live)
    slots = live.request.slots().tolist()
    other = _running(rig, [9] * 8)
    assert not set(slots) & set(other.request.slots().tolist())
    for slot in other.request.slots():
        peek(rig.cache.tiers[0], 0, slot)[:] = 0xEE
    rig.ticks[0].pace = 1.0
    rig.poll()
    stored = rig.cache.tree
    assert stored.column_stats(stored.column(0, 1)).resident == 2
    rig.end(other, abort=True)
    rig.settle()
    rig.walk()
    assert np.array_equal(live.request.tokens(), PROMPT[:8])
    rig.finish_all()
