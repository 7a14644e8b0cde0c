"""A prefetch brings a hit of the lower tiers nearer before the request is admitted: in a budget,
behind demand loads, cancelled at any moment, and nothing is tried or given back twice (C61-C63,
C83-C86; I7, I22).
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from radix.errors import CapacityError
from radix.policy.limits import Breaker, Limits, Patience
from radix.prefetching import Prefetch, PrefetchState
from radix.tier import TierMode, Urgency
from tests.cacherig import Rig, build
from tiers.faults import Fault, FaultPlan

PAGE = 4


def _prompt(number: int, pages: int = 4) -> list[int]:
    return [10 + number] * (pages * PAGE) + [0]


def _on_deep(count: int = 2, pages: int = 4, **options: object) -> Rig:
    """``count`` prompts that only the lowest of three tiers holds."""
    options.setdefault("below", (16, 64))
    rig = build(**options)
    for number in range(count):
        rig.serve(_prompt(number, pages))
        rig.empty(0)
        rig.empty(1)
    for number in range(count):
        assert rig.cache.explain(_prompt(number, pages)).tiers == {"deep": pages * PAGE}
    return rig


def _until(rig: Rig, handle: Prefetch, polls: int = 200) -> Prefetch:
    for _ in range(polls):
        if handle.settled:
            return handle
        rig.poll()
        rig.cache.check()
    raise AssertionError("the prefetch never settled")


def _host(rig: Rig) -> int:
    return rig.cache.usage()["host"].used_blocks[0]


def test_prefetched_hit_is_loaded_from_the_tier_above() -> None:
    """It lies one tier higher, pinned until it is released, and is then hit from there."""
    rig = _on_deep()
    with rig.cache.prefetch(_prompt(0)) as handle:
        assert handle.tokens == 4 * PAGE
        _until(rig, handle)
        assert handle.state is PrefetchState.DONE
        assert rig.cache.explain(_prompt(0)).tiers == {"host": 4 * PAGE}
        assert not rig.evict(0, 64, 1), "pinned"
        before = rig.cache.metrics.get("load", "blocks", "deep", "kv")
        live = rig.until_ready(rig.admit(_prompt(0)))
        assert live.request.hit_tokens == 4 * PAGE
        assert rig.cache.metrics.get("load", "blocks", "deep", "kv") == before == 4
    assert handle.state is PrefetchState.OVER
    rig.finish_all()


def test_nothing_is_taken_for_a_prompt_that_hits_nothing_lower() -> None:
    """C85, sglang#31402: registered and allocated before it was known that there is a hit."""
    rig = _on_deep()
    for tokens in (_prompt(7), [1, 2], _prompt(0)[:PAGE]):
        handle = rig.cache.prefetch(tokens)
        assert handle.settled and not rig.cache.transfers.jobs and _host(rig) == 0
    with _until(rig, rig.cache.prefetch(_prompt(0))):
        again = rig.cache.prefetch(_prompt(0))
        assert again.settled and _host(rig) == 4, "it is there already"
    rig.finish_all()


def test_promotions_stay_within_their_budget() -> None:
    """C83, vllm#49902: 50 waiting requests promoted 10 pages each into a host of 20. Here what
    they hold at once is bounded, those next in line go first, and all are served in the end.
    """
    rig = _on_deep(
        count=10, pages=5, below=(20, 64), limits=Limits(prefetch_blocks=10, prefetches=None)
    )
    handles = [rig.cache.prefetch(_prompt(n % 10, 5)) for n in range(50)]
    served = 0
    for _ in range(400):
        rig.poll()
        pinned = rig.cache.tree.column_stats(rig.cache.tree.column(0, 1)).protected
        assert rig.cache._ahead.held(0) <= 10 and pinned <= 10
        done = [h.state is PrefetchState.DONE for h in handles]
        states = [h.state for h in handles if h.state is not PrefetchState.OVER]
        waiting = [s is PrefetchState.WAITING for s in states]
        assert waiting == sorted(waiting), "one that came later went before"
        if any(done):
            served += 1
            handles[done.index(True)].release()
            rig.evict(0, 64, 1)
        if all(h.settled for h in handles):
            break
    assert served >= 10
    rig.finish_all()


def test_prefetch_ends_at_a_poll_whatever_is_blocked_before_it() -> None:
    """C84, sglang#32724: one that had ended was finalised only at its turn in the queue."""
    rig = _on_deep(count=4, limits=Limits(prefetch_blocks=16, prefetches=None))
    handles = [rig.cache.prefetch(_prompt(number)) for number in range(4)]
    rig.ticks[1].held = {job for job, item in rig.cache.transfers.jobs.items() if item.owner > -4}
    _until(rig, handles[3])
    assert [handle.settled for handle in handles] == [False, False, False, True]
    rig.ticks[1].held = set()
    for handle in handles:
        _until(rig, handle).release()
    rig.finish_all()


@pytest.mark.parametrize("when", ["waiting", "running", "half", "done", "over"])
def test_cancelled_prefetch_gives_everything_back_once(when: str) -> None:
    """C61, sglang#30053: a counter was taken back on one of two ways to abort only. C62,
    sglang#13483: the tail that did not come was freed twice. C63: released in any state.
    """
    rig = _on_deep(limits=Limits(prefetch_blocks=4))
    first = rig.cache.prefetch(_prompt(0)) if when == "waiting" else None
    rig.ticks[1].pace = 0.0
    handle = rig.cache.prefetch(_prompt(1))
    if when == "waiting":
        assert handle.state is PrefetchState.WAITING
    elif when in ("half", "done", "over"):
        rig.ticks[1].pace = 1.0
        if when != "half":
            _until(rig, handle)
    for _ in range(2):
        handle.release()
        rig.cache.check()
    assert handle.state is PrefetchState.OVER
    rig.ticks[1].pace = 1.0
    if first is not None:
        first.release()
    rig.settle()
    assert rig.cache._ahead.held(0) == 0 and not rig.cache._ahead.open
    rig.finish_all()


@pytest.mark.parametrize("unit", ["steps", "ns", "polls"])
def test_stalled_prefetch_ends_at_its_deadline(unit: str) -> None:
    """C86, sglang#23309: a prefetch of a long prompt stalled without a cap. Here it has one that
    does not grow; the request then computes, or loads, as if nothing had been asked for.
    """
    now = [0]
    limits = Limits(
        prefetch_deadline=Patience(**{unit: 8}),
        load_deadline=Patience(**{unit: 8}),
        breaker=Breaker(failures=0),
    )
    rig = _on_deep(limits=limits, clock=lambda: now[0], device=24)
    rig.ticks[1].pace = 0.0
    handle = rig.cache.prefetch(_prompt(0))
    for _ in range(12):
        now[0] += 1
        rig.pass_step()
        rig.poll()
        rig.cache.check()
    assert handle.state is PrefetchState.OVER
    live = rig.admit(_prompt(0))
    for _ in range(12):
        now[0] += 1
        rig.pass_step()
        rig.poll()
    assert live.request.ready and live.request.hit_tokens == 0
    rig.ticks[1].pace = 1.0
    rig.finish_all()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.PART, Fault.CORRUPT, Fault.REFUSE, Fault.OFF])
def test_prefetch_that_fails_is_not_tried_again(fault: Fault) -> None:
    """C78 for prefetches: what does not come is left out; a later admission decides anew."""
    rig = _on_deep(count=1, plans=(None, FaultPlan(script={"load": {1: fault}})))
    handle = _until(rig, rig.cache.prefetch(_prompt(0)))
    assert handle.state is PrefetchState.DONE
    loads = rig.cache.metrics.total("load")
    for _ in range(5):
        rig.poll()
    assert rig.cache.metrics.total("load") == loads
    handle.release()
    rig.finish_all()


def test_waiting_request_that_finds_its_blocks_on_the_way_takes_them_when_they_come() -> None:
    """The admission comes while the prefetch still moves: nothing is loaded twice into one tier."""
    rig = _on_deep()
    rig.ticks[1].pace = 0.0
    with rig.cache.prefetch(_prompt(0)):
        live = rig.admit(_prompt(0))
        assert len(rig.cache.transfers.jobs) == 1
        rig.ticks[1].pace = 1.0
        rig.until_ready(live)
        assert live.request.hit_tokens == 4 * PAGE
    assert rig.cache.metrics.get("load", "blocks", "deep", "kv") == 4
    rig.finish_all()


def test_prefetches_are_of_their_own_class_and_few_at_a_time() -> None:
    """They are told apart from demand loads below, and leave a queue's places to those."""
    seen: list[Urgency] = []
    rig = _on_deep(count=6, limits=Limits(prefetches=2, prefetch_blocks=16), below=(32, 64))
    deep, load = rig.ticks[1], rig.ticks[1].load

    def spy(transfer: object, upper: object) -> None:
        seen.append(transfer.urgency)
        load(transfer, upper)

    deep.load = spy
    deep.pace = 0.0
    handles = [rig.cache.prefetch(_prompt(number)) for number in range(6)]
    for _ in range(5):
        rig.poll()
    assert seen == [Urgency.PREFETCH] * 2
    live = rig.admit(_prompt(5))
    assert seen[-1] is Urgency.DEMAND
    deep.pace = 1.0
    rig.until_ready(live)
    for handle in handles:
        handle.release()
    rig.finish_all()


@pytest.mark.parametrize("seed", range(4))
def test_slots_have_one_owner_whatever_prefetches_do(seed: int) -> None:
    """Prefetches, admissions, cancels, evictions, faults and switched tiers in any order."""
    rng = random.Random(seed)
    plans = (
        FaultPlan(rates={"load": {Fault.FAIL: 0.1}, "store": {Fault.REFUSE: 0.1}}, seed=seed),
        FaultPlan(rates={"load": {Fault.CORRUPT: 0.1, Fault.PART: 0.1}}, seed=seed),
    )
    rig = build(
        groups=2,
        device=24,
        below=(16, 48),
        plans=plans,
        write=rng.choice(("write_through", "write_back")),
        limits=Limits(prefetch_blocks=6, load_deadline=Patience(polls=9)),
    )
    handles: list[Prefetch] = []
    for step in range(120):
        where = f"seed {seed}, step {step}"
        tokens = [x for _ in range(rng.randint(1, 4)) for x in [rng.randint(1, 2)] * PAGE] + [0]
        for tick in rig.ticks:
            tick.pace = rng.choice((0.1, 0.6, 1.0))
        what = rng.random()
        if what < 0.3:
            handles.append(rig.cache.prefetch(tokens))
        elif what < 0.5 and len(rig.live) < 2:
            with suppress(CapacityError):
                rig.admit(tokens)
        elif what < 0.6 and handles:
            handles.pop(rng.randrange(len(handles))).release()
        elif what < 0.7:
            rig.evict(rng.randint(0, 1), rng.randint(1, 8), rng.randint(0, 2))
        elif what < 0.75:
            rig.cache.set_mode(rng.choice(("host", "deep")), rng.choice(list(TierMode)))
        for live in list(rig.live):
            if live.checked and rng.random() < 0.5:
                rig.compute(live, live.request._work.count)
                rig.end(live)
        rig.poll()
        rig.cache.check()
        for group in range(2):
            assert rig.cache._ahead.held(group) <= 6, where
    for handle in handles:
        handle.release()
    for tick in rig.ticks:
        tick.pace = 1.0
    rig.finish_all()
