"""Closing a cache tells which requests and leases its owner left open, and takes everything back
all the same; requests and caches are contexts (item 7 of a request's life).
"""

from __future__ import annotations

import warnings

import pytest

from radix.errors import ClosedError
from radix.events import RequestState
from tests.cacherig import ORDER, build

PROMPT = list(range(12))


def test_requests_and_leases_left_open_are_named() -> None:
    rig = build(below=(16,), device=16)
    rig.serve(PROMPT)
    first = rig.until_ready(rig.admit(PROMPT))
    rig.empty()
    lease = rig.cache.lease(rig.cache.match(PROMPT)[1])
    parked = rig.until_ready(rig.admit([3] * 8))
    rig.preempt(parked)
    with pytest.warns(ResourceWarning) as caught:
        rig.cache.close()
    text = str(caught[0].message)
    assert f"request {first.request.id} (running)" in text and "1 lease left open" in text
    assert f"request {parked.request.id}" not in text, "it holds nothing"
    with pytest.raises(ClosedError):
        first.request.finish()
    lease.release()


def test_nothing_is_said_where_everything_was_given_back() -> None:
    rig = build(below=(16,), device=16)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    rig.end(live, fence=rig.fence())  # stores and a fence are the cache's own business
    with rig.cache.lease(rig.cache.match(PROMPT)[1]):
        pass
    dropped = rig.cache.lease(rig.cache.match(PROMPT)[1])
    del dropped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with rig.cache:
            pass
        rig.cache.close()


def test_request_as_a_context_is_finished_or_aborted() -> None:
    rig = build(device=16)
    with rig.cache.admit(PROMPT) as request:
        request.computed(12)
    assert request.state in ORDER[2:]
    with pytest.raises(KeyError), rig.cache.admit([5] * 12) as failed:
        failed.computed(4)
        raise KeyError("the engine's")
    assert failed.state in ORDER[2:]
    with rig.cache.admit([6] * 8) as paused:
        paused.preempt()
    assert paused.state in ORDER[2:]
    with rig.cache.admit([7] * 8) as done:
        done.finish()
    for each in (request, failed, paused, done):
        rig.cache.poll()
        assert each.state is RequestState.RELEASED
    rig.cache.close()


def test_request_as_a_context_of_a_cache_that_was_closed_raises_nothing() -> None:
    rig = build(device=16)
    with pytest.warns(ResourceWarning, match="request 1"), rig.cache.admit(PROMPT):
        rig.cache.close()
