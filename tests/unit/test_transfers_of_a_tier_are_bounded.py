"""How many transfers of one tier may be under way: stores and loads are bounded each by themselves,
what is over the bound is offered again and nothing is lost for it (design section 8; I22, I30).
"""

from __future__ import annotations

import pytest

from radix.events import RequestState
from radix.policy.limits import Limits
from tests.cacherig import Rig, build

PAGE = 4


def _prompt(number: int, pages: int = 4) -> list[int]:
    return [10 + number] * (pages * PAGE) + [0]


def _most(rig: Rig, *, storing: bool) -> int:
    """Transfers of the tier below the device that are under way now."""
    jobs = rig.cache.transfers.jobs.values()
    return sum(job.storing == storing and job.lower == 1 for job in jobs)


@pytest.mark.parametrize("most", [1, 2])
def test_stores_over_the_bound_are_offered_again_before_the_request_is_finalized(most: int) -> None:
    """Back-pressure declines a store at first; it is retried; only then is the request final."""
    rig = build(device=32, below=(64,), limits=Limits(stores=most))
    rig.ticks[0].pace = 0.0
    requests = []
    for number in range(4):
        live = rig.until_ready(rig.admit(_prompt(number)))
        rig.compute(live, 4 * PAGE + 1)
        rig.end(live)
        requests.append(live.request.id)
        rig.poll()
        assert _most(rig, storing=True) <= most
    final = [RequestState.FINALIZED in rig.states[number] for number in requests]
    assert final == [number < most for number in range(4)]
    rig.ticks[0].pace = 1.0
    for _ in range(12):
        rig.poll()
        assert _most(rig, storing=True) <= most
    assert rig.cache.metrics.get("store", "blocks", "host", "kv") == 16
    assert rig.cache.metrics.get("store", "declined", "host", "kv") == 0
    rig.finish_all()


@pytest.mark.parametrize("most", [1, 2])
def test_loads_over_the_bound_wait_and_hit_what_they_would_have(most: int) -> None:
    """A request that is over it stays LOADING; its hit is as long as without the bound."""
    rig = build(device=32, below=(64,), limits=Limits(loads=most))
    for number in range(5):
        rig.serve(_prompt(number))
        rig.empty(0)
    rig.ticks[0].pace = 0.0
    lives = [rig.admit(_prompt(number)) for number in range(5)]
    for _ in range(3):
        rig.poll()
        assert _most(rig, storing=False) == most
    rig.ticks[0].pace = 0.5
    for _ in range(200):
        rig.poll()
        assert _most(rig, storing=False) <= most
        rig.cache.check()
        if all(live.checked for live in lives):
            break
    assert [live.request.hit_tokens for live in lives] == [4 * PAGE] * 5
    rig.finish_all()


def test_aborted_request_over_the_bound_holds_nothing() -> None:
    """It had begun no load; it ends at once, and the others go on."""
    rig = build(device=32, below=(64,), limits=Limits(loads=1))
    for number in range(3):
        rig.serve(_prompt(number))
        rig.empty(0)
    rig.ticks[0].pace = 0.0
    lives = [rig.admit(_prompt(number)) for number in range(3)]
    rig.end(lives[1], abort=True)
    rig.poll()
    assert rig.states[lives[1].request.id][-1] is RequestState.RELEASED
    rig.ticks[0].pace = 1.0
    for live in (lives[0], lives[2]):
        rig.until_ready(live)
        assert live.request.hit_tokens == 4 * PAGE
    rig.finish_all()
