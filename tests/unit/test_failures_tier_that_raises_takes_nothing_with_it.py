"""A tier may raise wherever it is called: the others go on, what it has under way ends once it can
be asked again, what it does not take is not there, and one that only raises is taken out (I8, I22).
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, InvariantError, NeverFitsError, TierUnavailableError
from radix.events import RequestState
from radix.front import FrontTier
from radix.policy.limits import Breaker, Limits, Patience
from radix.tier import Tier, TierMode
from tests.cacherig import GROUPS, ORDER, Rig, build
from tests.ticktier import TickTier
from tiers.device import DeviceTier

PROMPT = list(range(12))
CALLS = ("poll", "wait", "reserve", "commit", "store", "load", "cancel", "set_mode")


class RaisingTier(FrontTier):
    """Raises from the calls that are named in ``raising``, as often as ``rate`` says."""

    def __init__(self, inner: Tier, *raising: str, rate: float = 1.0, seed: int = 0) -> None:
        super().__init__(inner)
        self.raising = set(raising)
        self.raised: Counter[str] = Counter()
        self._rate, self._draw = rate, random.Random(seed)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS or name not in self.raising:
            return found

        def call(*given: Any) -> Any:
            if self._draw.random() < self._rate:
                self.raised[name] += 1
                raise TierUnavailableError(self.name, f"{name} raises as planned")
            return found(*given)

        return call


def _rig(*raising: str, rate: float = 1.0, seed: int = 0, failures: int = 0) -> Rig:
    ticks = [TickTier(12, "host", pace=0.3, seed=seed), TickTier(24, "deep", pace=0.3, seed=seed)]
    below = [RaisingTier(tick, *raising, rate=rate, seed=seed) for tick in ticks]
    device = DeviceTier(blocks=12, device="cpu")
    limits = Limits(breaker=Breaker(failures, Patience(polls=10)), load_deadline=Patience(polls=9))
    cache = PrefixCache(GROUPS[:1], [device, *below], page_tokens=4, events=True, limits=limits)
    rig = Rig(cache, device, tuple(ticks))
    rig.ticks = ticks
    return rig


def test_tier_whose_poll_raises_is_asked_again_and_the_others_go_on() -> None:
    """An error of one tier came out of ``PrefixCache.poll``, which brought nobody any news."""
    rig = _rig()
    host, deep = rig.cache.tiers[1:]
    for tick in rig.ticks:
        tick.pace = 1.0
    deep.raising = {"poll", "wait"}
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    rig.end(live)
    for _ in range(5):
        rig.cache.wait(0.001)
        rig.poll()
        rig.cache.check()
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 3, "the host goes on"
    assert live.request.state is RequestState.FINALIZED
    assert rig.cache.metrics.get("tier", "silent", "deep") == 5
    deep.raising.clear()
    rig.settle()
    assert rig.states[live.request.id] == list(ORDER)
    assert rig.cache.metrics.get("store", "blocks", "deep", "kv") == 3
    assert host.mode is TierMode.ON
    rig.finish_all()


def test_tier_that_only_raises_is_taken_out_and_tried_again() -> None:
    rig = _rig("poll", failures=3)
    for _ in range(3):
        rig.poll()
    assert [tier.mode for tier in rig.cache.tiers] == [TierMode.ON, TierMode.OFF, TierMode.OFF]
    rig.cache.tiers[1].raising.clear()
    for _ in range(12):
        rig.poll()
    assert rig.cache.tiers[1].mode is TierMode.ON, "it answers again"
    rig.cache.tiers[2].raising.clear()
    rig.finish_all()


def test_tier_that_cannot_be_switched_stops_no_poll() -> None:
    """The breaker's own call raised out of the poll that had counted one failure too many."""
    rig = _rig("poll", "set_mode", failures=3)
    for _ in range(40):
        rig.poll()
    assert rig.cache.tiers[1].mode is TierMode.ON
    assert rig.cache.metrics.get("tier", "taken out", "host") == 0
    for tier in rig.cache.tiers[1:]:
        tier.raising = {"poll"}
    rig.poll()
    assert rig.cache.metrics.get("tier", "taken out", "host") == 1
    for tier in rig.cache.tiers[1:]:
        tier.raising = {"set_mode"}
    for _ in range(40):
        rig.poll()
    assert rig.cache.tiers[1].mode is TierMode.OFF, "trying it again did not work"
    for tier in rig.cache.tiers[1:]:
        tier.raising.clear()
    rig.finish_all()


def test_blocks_that_a_tier_does_not_commit_are_not_there() -> None:
    """The tree named slots that the tier had not taken, and the job stayed for ever: its request
    was never released, and the slots had two owners.
    """
    rig = _rig("commit")
    live = rig.serve(PROMPT)
    rig.cache.check()
    assert rig.states[live.request.id] == list(ORDER)
    assert rig.cache.metrics.get("tier", "refused", "host") == 3
    assert rig.cache.usage()["host"].used_blocks == (0,)
    rig.cache.tiers[1].raising.clear()
    again = rig.serve([*PROMPT, 0])
    assert again.request.hit_tokens == 12
    assert rig.cache.usage()["host"].used_blocks == (3,), "it is offered again"
    rig.finish_all()


def test_job_that_is_acknowledged_twice_is_told_and_costs_nobody_else() -> None:
    """I22: a second answer was a ``KeyError`` of the books."""
    rig = build(below=(16,))
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    (job,) = rig.cache.transfers.jobs.values()
    rig.poll()
    rig.ticks[0]._done.append(job.done)
    with pytest.raises(InvariantError, match="I22: job 1 is acknowledged and not under way"):
        rig.cache.poll()
    rig.end(live)
    rig.settle()
    assert rig.states[live.request.id] == list(ORDER)
    rig.finish_all()


def test_admission_that_fails_within_tells_its_end_in_order() -> None:
    """An end that began with "finalized" followed an admission that raised (I30)."""
    rig = build(below=(16,))
    rig.serve(PROMPT)
    rig.empty()

    def load(*given: object) -> None:
        raise MemoryError("as planned")

    rig.ticks[0].load = load
    with pytest.raises(MemoryError):
        rig.cache.admit([*PROMPT, 0])
    rig.settle()
    rig.cache.check()
    assert rig.states[2] == [ORDER[0], *ORDER[2:]]
    del rig.ticks[0].load
    rig.finish_all()


def _step(rig: Rig, rng: random.Random, stories: list[list[int]]) -> None:
    running = [live for live in rig.live if live.checked]
    match rng.choice(("admit", "admit", "compute", "end", "poll", "empty", "preempt", "resume")):
        case "admit" if len(rig.live) < 3:
            if rng.random() < 0.5:  # what it hits comes from below
                rig.evict(0, 12, 0)
            rig.admit(rng.choice(stories)[: rng.randint(9, 20)], new_tokens=rng.randint(0, 3))
        case "compute" if running:
            live = rng.choice(running)
            rig.compute(live, len(live.request), rig.fence() if rng.random() < 0.4 else None)
        case "end" if rig.live:
            rig.end(rng.choice(rig.live), abort=rng.random() < 0.5)
        case "empty":
            rig.evict(0, 12, 1)
        case "preempt" if rig.live and len(rig.parked) < 2:
            rig.preempt(rng.choice(rig.live))
        case "resume" if rig.parked:
            rig.resume(rng.choice(rig.parked))
        case _:
            rig.pass_step()
            rig.cache.wait(0.0)
            rig.poll()


@pytest.mark.parametrize("call", CALLS)
def test_any_traffic_over_tiers_that_raise_now_and_then(call: str) -> None:
    """Nothing of it reaches the engine."""
    raised = 0
    for seed in range(6):
        rng = random.Random(f"{call} {seed}")
        rig = _rig(call, "poll", rate=0.15, seed=seed, failures=rng.choice((0, 2)))
        stories = [[rng.randrange(3) for _ in range(20)] for _ in range(3)]
        try:
            for _ in range(200):
                with suppress(CapacityError, NeverFitsError):
                    _step(rig, rng, stories)
                rig.cache.check()
            for tier in rig.cache.tiers[1:]:
                raised += tier.raised[call]
                tier.raising.clear()
            rig.finish_all()
        except BaseException as error:
            error.add_note(f"{call}, seed {seed}")
            raise
    assert raised, "the call was never made"
