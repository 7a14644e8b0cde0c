"""Nothing is shared, stored, loaded into or given out again before the fence that guards it has
passed: the fence of what is computed, of what is replaced, of what ends (C64, C68, C71).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.events import RequestState
from radix.lifecycle import Fences
from tests.cacherig import Point, Rig, build
from tests.mixes import full, window
from tests.ticktier import peek

PROMPT = list(range(10))
LONGER = [*PROMPT, 7, 7, 7, 7]


@pytest.mark.parametrize("asked", [False, True])
def test_page_is_seen_by_nobody_and_stored_nowhere_before_its_fence(asked: bool) -> None:
    """C64, sglang#38319; C68, vllm#46278: a page was matched, or copied down, before the kernel
    had written it. The kernel here writes when its fence passes, and the copy is read as it lies.
    """
    rig = build(below=(32,))
    live = rig.admit(PROMPT)
    fence = rig.point() if asked else rig.fence()
    rig.compute(live, 10, fence)
    for _ in range(3):
        rig.poll()
    assert rig.cache.explain(LONGER).hit_tokens == 0
    assert not rig.cache.transfers.jobs, "a store began before the fence"
    assert rig.cache.metrics.total("store") == 0
    if isinstance(fence, Point):
        rig.pass_point(fence)
    else:
        rig.pass_step()
    rig.poll()
    assert rig.cache.explain(LONGER).hit_tokens == 8
    rig.poll()
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 2
    rig.walk()  # the bytes below are the final ones
    rig.end(live)
    rig.finish_all()


def test_abort_before_the_fence_still_shares_what_the_fence_covers() -> None:
    rig = build(below=(32,))
    live = rig.admit(PROMPT)
    rig.compute(live, 8, rig.fence())
    rig.end(live, abort=True)
    rig.poll()
    assert live.request.state.value == "generation done", "its pages are not written yet"
    rig.pass_step()
    rig.settle()
    assert rig.cache.explain(LONGER).hit_tokens == 8
    rig.finish_all()


def _takes_all(rig: Rig) -> None:
    """Another request that needs every slot that it can get, and writes into each."""
    cache = rig.cache
    room = cache.residency.available(0, 0)
    other = rig.admit([9] * (4 * room - 3), new_tokens=3)
    rig.until_ready(other)
    for slot in other.request.slots():
        peek(cache.tiers[0], 0, slot)[:] = 0xEE
    rig.end(other, abort=True)


def test_what_a_finished_request_still_reads_stays_until_its_fence() -> None:
    """A request's last kernel reads its whole prefix, private and shared. Shared pages were given
    to eviction as soon as the request had finished, and overwritten under the kernel.
    """
    rig = build(device=6)
    rig.serve(PROMPT)
    live = rig.until_ready(rig.admit(LONGER))
    rig.compute(live, len(LONGER))
    assert live.request.hit_tokens == 8
    rig.end(live, fence=rig.fence())
    rig.poll()
    assert live.request.state.value == "released"
    _takes_all(rig)
    assert rig.cache.residency.available(0, 0) == 2, "four pages are read until the fence"
    rig.cache.check()
    rig.pass_step()  # the kernel reads here; then the fence passes
    rig.poll()
    assert rig.cache.residency.available(0, 0) == 6
    rig.finish_all()


def test_slots_of_an_aborted_request_are_quarantined_until_its_fence() -> None:
    """C71, rtx6kpro#47: a load went into blocks that queued kernels still used."""
    rig = build(device=4)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=6))
    rig.end(live, abort=True, fence=rig.fence())
    rig.poll()
    assert rig.cache.residency.available(0, 0) == 0
    assert rig.cache.usage()["device"].used_blocks == (4,), "quarantined slots count as used"
    rig.cache.check()
    rig.pass_step()
    assert rig.cache.residency.available(0, 0) == 0, "a fence is looked at by poll"
    rig.poll()
    assert rig.cache.residency.available(0, 0) == 4
    rig.finish_all()


def test_slots_replaced_by_equal_blocks_wait_for_their_fence() -> None:
    """C3, mini-sglang#142: pages found twice were freed while a page table still named them. The
    order is: pin the canonical blocks, remap, then free our own behind the fence.
    """
    rig = build(device=8)
    first = rig.until_ready(rig.admit(PROMPT[:8], new_tokens=1))
    second = rig.until_ready(rig.admit(PROMPT[:8], new_tokens=1))
    own = second.request.slots().tolist()
    rig.compute(first, 8)
    rig.write(second, 0, 2)
    rig.step += 1
    second.request.computed(8, fence=None, reuse=rig.step)
    assert second.request.slots()[:2].tolist() == first.request.slots()[:2].tolist()
    third = rig.until_ready(rig.admit([5] * 8))
    assert not set(third.request.slots().tolist()) & set(own[:2])
    rig.cache.check()
    rig.cache.passed(rig.step)
    rig.poll()
    assert rig.cache.residency.available(0, 0) == 8 - 2 - 1 - 1 - 2
    second.told = 8
    rig.read(second, 2, "after the remap")
    rig.finish_all()


def test_step_fences_pass_in_any_order_that_steps_are_told() -> None:
    fences, ran = Fences(), []
    fences.after(3, lambda: ran.append(3))
    fences.after(1, lambda: ran.append(1))
    fences.after(None, lambda: ran.append(0))
    assert ran == [0]
    fences.step = 1
    fences.run()
    assert ran == [0, 1]
    fences.step = 7
    fences.run()
    assert ran == [0, 1, 3] and len(fences) == 0


def test_action_that_fails_costs_the_others_nothing() -> None:
    """A bad action behind one fence lost every action behind it in the same round."""
    fences, ran = Fences(), []

    def fail() -> None:
        raise RuntimeError("as planned")

    fences.after(5, lambda: ran.append("early"))
    fences.after(1, fail)
    fences.after(1, lambda: ran.append("late"))
    fences.step = 1
    with pytest.raises(RuntimeError):
        fences.run()
    fences.run()
    assert ran == ["late"]
    fences.step = 5
    fences.run()
    assert ran == ["late", "early"]


class Broken:
    """A fence that cannot be asked: the stream that it is of has failed."""

    def __init__(self) -> None:
        self.failing = True

    def query(self) -> bool:
        if self.failing:
            raise RuntimeError("as planned")
        return True


def test_fence_that_cannot_be_asked_is_told_and_costs_nobody_else_anything() -> None:
    """A query that raised left the call half done: a request whose ``computed`` had failed so
    waited for ever for a fence that nobody had kept, slots of one that ended were nobody's, and no
    fence behind it was asked any more.
    """
    fences, ran, broken = Fences(), [], Broken()
    fences.after(broken, lambda: ran.append("broken"))
    fences.after(1, lambda: ran.append("late"))
    fences.step = 1
    with pytest.raises(RuntimeError, match="as planned"):
        fences.run()
    assert ran == ["late"]
    broken.failing = False
    fences.run()
    assert ran == ["late", "broken"] and len(fences) == 0


@pytest.mark.parametrize("call", ["computed", "reuse", "finish", "preempt"])
def test_request_ends_once_its_fences_can_be_asked_again(call: str) -> None:
    rig, broken = build(below=(16,), device=8), Broken()
    live = rig.until_ready(rig.admit(PROMPT))
    other = rig.until_ready(rig.admit([9] * 8))
    if call in ("computed", "reuse"):
        rig.write(live, 0, 2)
        live.request.computed(10, **{"fence" if call == "computed" else call: broken})
    rig.compute(other, 8, rig.fence())
    if call == "preempt":
        rig.preempt(live, broken)
    else:
        rig.end(live, fence=broken)
    rig.cache.check()
    rig.pass_step()
    with pytest.raises(RuntimeError, match="as planned"):
        rig.cache.poll()
    rig.cache.check()
    assert other.work.computed == 8, "its own fence has passed"
    rig.end(other)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="as planned"):
            rig.cache.poll()
    assert other.request.state is RequestState.RELEASED
    broken.failing = False
    rig._fenced.clear()
    rig.finish_all()


class Passing:
    """A point that passes between two questions."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_slots_of_a_window_stay_the_requests_though_their_fence_passes_meanwhile() -> None:
    """The fence was asked twice, and slots for which it passed in between were given to all: the
    request whose pages were to reuse them had to reserve, where others had taken everything (R1).
    """
    rig = build(groups=[full(), window(4)], page_tokens=1, device=[64, 16])
    live = rig.until_ready(rig.admit(list(range(30)), chunk_tokens=4))
    held = len(live.work.held[1].private())
    for upto in range(4, 25, 4):
        live.request.prepare(4)
        rig.write(live, upto - 4, upto)
        live.request.computed(upto, reuse=Passing())
        rig.cache.check()
        assert len(live.work.held[1].private()) == held, "a slot of its own is anybody's"
    rig.finish_all()


@pytest.mark.parametrize("fence", ["7", 1.5, True, object()])
def test_fence_that_is_none_is_refused_by_name(fence: object) -> None:
    rig = build()
    live = rig.until_ready(rig.admit(PROMPT))
    for call in (
        lambda: live.request.computed(10, fence=fence),
        lambda: live.request.computed(10, reuse=fence),
        lambda: live.request.finish(fence=fence),
    ):
        with pytest.raises(TypeError, match="step number"):
            call()
    assert live.request.ready
    rig.write(live, 0, 2)
    live.request.computed(10, fence=np.int64(0))
    rig.cache.passed(np.int32(0))
    rig.poll()
    assert rig.cache.explain(LONGER).hit_tokens == 8
    rig.finish_all()
