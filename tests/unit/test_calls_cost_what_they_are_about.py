"""What a call costs goes by what it is about, not by how much else is under way: a scheduler calls
in every step, and runs hundreds of requests.

The faults: a poll went through all requests that run, though nothing was due for them; a load
looked through the rows of every other load under way, and each poll took every load further that
could not go on. What is counted here are calls of Python functions, which no other process
disturbs; how long it takes, ``python -m bench run running`` shows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radix import FlatStore, Group, Layout, Ownership, PrefixCache, Retention
from radix.events import KeysDone
from tests.counting import calls_of
from tests.ticktier import TickTier
from tiers.host import AdoptedTier
from tiers.index import IndexTier

PAGE = 4
KEY_BYTES = 8


def _keys(first: int, end: int) -> npt.NDArray[np.generic]:
    return np.arange(first, end, dtype=np.int64)[:, None].view(np.uint8)


def _flat(loads: int) -> tuple[FlatStore, TickTier, list[int]]:
    """So many loads under way of one key each, and one key that nobody loads: the last."""
    rows = np.zeros((2 * loads + 2, PAGE), np.uint8)
    below = TickTier(loads + 1, "below")
    memory = AdoptedTier([[rows]], "memory")
    lent = Ownership.BORROWED
    store = FlatStore(
        [Group.full("kv", PAGE)], [memory, below], key_bytes=KEY_BYTES, ownership=lent
    )
    store.store(_keys(0, loads + 1), np.arange(loads + 1, dtype=np.int32))
    store.flush()
    below.pace = 0.0
    for at in range(loads):
        store.load(_keys(at, at + 1), np.array([loads + 1 + at], np.int32))
    store.poll()
    return store, below, [transfer.job for transfer, *_ in below._waiting]


def _flat_calls(loads: int) -> dict[str, int]:
    store, below, jobs = _flat(loads)
    with store:
        counts = {"poll, nothing ended": calls_of(store.poll)}
        row = np.array([2 * loads + 1], np.int32)
        counts["load"] = calls_of(lambda: store.load(_keys(loads, loads + 1), row))
        store.poll()
        below.pace, below.held = 1.0, {*jobs[1:], *(t.job for t, *_ in below._waiting)}
        below.held.discard(jobs[0])
        counts["poll, one ended"] = calls_of(store.poll)
        store.check()
        below.held.clear()
        done = [event for event in store.flush() if isinstance(event, KeysDone)]
        assert len(done) == loads and all(event.good.all() for event in done)
        store.check()
    return counts


def test_a_load_costs_its_keys_however_many_others_are_under_way() -> None:
    assert _flat_calls(4) == _flat_calls(300)


def _prompt(number: int, pages: int) -> npt.NDArray[np.generic]:
    return np.arange(number * pages * PAGE, (number + 1) * pages * PAGE, dtype=np.int32)


def _running_calls(requests: int) -> dict[str, int]:
    with PrefixCache(
        [Group.full("kv", PAGE)], [IndexTier(4 * (requests + 2))], page_tokens=PAGE
    ) as cache:
        others = [cache.admit(_prompt(at, 3)) for at in range(requests)]
        cache.poll()
        counts = {"poll, nothing is due": calls_of(cache.poll)}
        one = []
        counts["admit"] = calls_of(lambda: one.append(cache.admit(_prompt(requests, 3))))
        counts["computed"] = calls_of(lambda: one[0].computed(3 * PAGE))
        counts["poll, one has computed"] = calls_of(cache.poll)
        counts["finish"] = calls_of(one[0].finish)
        counts["poll, one has ended"] = calls_of(cache.poll)
        cache.check()
        for other in others:
            other.finish()
        cache.poll()
        cache.check()
    return counts


def test_a_request_costs_its_own_pages_however_many_others_run() -> None:
    assert _running_calls(4) == _running_calls(300)


def _fenced_calls(requests: int) -> dict[str, int]:
    with PrefixCache(
        [Group.full("kv", PAGE)], [IndexTier(4 * (requests + 2))], page_tokens=PAGE
    ) as cache:
        others = [cache.admit(_prompt(at, 3)) for at in range(requests)]
        for other in others:
            other.computed(3 * PAGE, fence=7)
        cache.passed(6)
        cache.poll()
        counts = {"poll, no step has passed": calls_of(cache.poll)}
        one = cache.admit(_prompt(requests, 3))
        one.computed(3 * PAGE, fence=6)
        assert cache.match(_prompt(requests, 3), leave=0)[0].hit_pages == 3
        counts["poll after one of a step that has"] = calls_of(cache.poll)
        assert not cache.match(_prompt(0, 3), leave=0)[0].hit_pages
        cache.passed(7)
        cache.poll()
        assert cache.match(_prompt(0, 3), leave=0)[0].hit_pages == 3
        for request in (one, *others):
            request.finish(fence=8)
        cache.poll()
        cache.passed(8)
        cache.poll()
        cache.check()
    return counts


def test_what_waits_for_a_step_costs_a_poll_nothing_until_it_has_passed() -> None:
    """The fault: each poll asked every fence, though no step had passed since it asked them all."""
    assert _fenced_calls(4) == _fenced_calls(300)


def _loading_calls(requests: int) -> dict[str, int]:
    below = TickTier(4 * (requests + 2), "below")
    device = TickTier(4 * (requests + 2), "device")
    with PrefixCache([Group.full("kv", PAGE)], [device, below], page_tokens=PAGE) as cache:
        for at in range(requests + 1):
            with cache.admit(_prompt(at, 3)) as request:
                request.computed(3 * PAGE)
        cache.flush()
        cache.residency.make_room(0, 0, device.capacity_blocks(0))  # all of it is below, only
        below.pace = 0.0
        others = [cache.admit(_prompt(at, 3)) for at in range(requests)]
        cache.poll()
        jobs = [transfer.job for transfer, *_ in below._waiting]
        assert len(jobs) == requests
        counts = {"poll, nothing ended": calls_of(cache.poll)}
        one = []
        counts["admit"] = calls_of(lambda: one.append(cache.admit(_prompt(requests, 3))))
        cache.poll()
        below.pace = 1.0
        below.held = {*(t.job for t, *_ in below._waiting)} - {jobs[0]}
        counts["poll, one ended"] = calls_of(cache.poll)
        counts["abort"] = calls_of(one[0].abort)
        cache.check()
        below.held.clear()
        cache.flush()
        assert all(other.ready for other in others)
        for other in others:
            other.finish()
        cache.flush()
        cache.check()
    return counts


def test_a_load_of_a_request_costs_its_own_pages_however_many_others_load() -> None:
    assert _loading_calls(4) == _loading_calls(300)


def test_a_step_slides_over_what_it_left_and_not_over_the_whole_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: each decoded token went through each window's page table from its beginning."""
    seen: list[int] = []
    plain = np.flatnonzero

    def measured(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        seen.append(len(mask))
        return plain(mask)

    window = Group("window", Layout.opaque(PAGE), Retention("window", tokens=4 * PAGE))
    groups = [Group.full("kv", PAGE), window]
    with PrefixCache(groups, [IndexTier(1000)], page_tokens=PAGE) as cache:
        request = cache.admit(_prompt(0, 200), new_tokens=40 * PAGE)
        request.computed(200 * PAGE)
        monkeypatch.setattr("radix.keeping.np.flatnonzero", measured)
        for token in range(40 * PAGE):
            request.append(np.array([token], np.int32))
            request.computed(len(request))
        monkeypatch.undo()
        cache.check()
        held = plain(request.slots(1) != -1)
        assert seen and max(seen) <= 8, "a step looked at more than a window"
        assert held[0] >= 230, "what lies behind the window was kept"
        request.finish()
        cache.poll()
        cache.check()


def _kept_calls(keeps: int) -> dict[str, int]:
    with PrefixCache(
        [Group.full("kv", PAGE)], [IndexTier(8 * (keeps + 2))], page_tokens=PAGE
    ) as cache:
        for at in range(keeps + 1):
            with cache.admit(_prompt(at, 2)) as request:
                request.computed(2 * PAGE)
        cache.poll()
        held = [cache.keep(_prompt(at, 2), seconds=1000.0 + at) for at in range(keeps)]
        counts = {"poll, none is over": calls_of(cache.poll)}
        counts["keep"] = calls_of(lambda: held.append(cache.keep(_prompt(keeps, 2), steps=3)))
        cache.passed(3)
        counts["poll, one is over"] = calls_of(cache.poll)
        assert [keep.held for keep in held] == [True] * keeps + [False]
    return counts


def test_a_keep_costs_a_poll_nothing_until_it_is_over() -> None:
    assert _kept_calls(4) == _kept_calls(300)
