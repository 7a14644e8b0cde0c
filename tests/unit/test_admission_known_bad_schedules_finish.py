"""The schedules that hung elsewhere finish here, by the same queue and pools (I29): each test says
what went wrong there.
"""

from __future__ import annotations

import pytest

from radix import Largest, NeverFitsError, pool_sizes
from radix.admission import leave_windows
from tests.mixes import full, window
from tests.queuerig import close, compute, end, let_in, queue

GROUPS = (full(), window(4))


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_window_that_the_prefix_brings_is_not_charged_twice(chunk: int) -> None:
    """C37, sglang#32379, R1: a pool of two windows, the prefix cached; a whole window was charged
    beside the one that was locked, and the same request was turned away in each pass.
    """
    waiting = queue((64, 8), groups=GROUPS)
    cached = waiting.submit(list(range(8)))
    let_in(waiting)
    end(waiting, cached)
    waiting.tick()
    again = waiting.submit(list(range(9)), new_tokens=2, chunk_tokens=chunk)
    assert let_in(waiting) == [again.age]
    assert again.request is not None and again.request.hit_tokens == 8, "3 new ones, 4 free"
    assert compute(waiting, again, 9)
    for token in (1, 2):
        assert waiting.append(again, [token]) and compute(waiting, again, len(again.request))
    close(waiting)


def test_one_that_never_fits_stands_at_no_head() -> None:
    """It was put first, tried in each pass, and everybody waited behind it."""
    waiting = queue((64, 8), groups=GROUPS, bypass=0)
    runs = waiting.submit([1] * 8)
    let_in(waiting)
    with pytest.raises(NeverFitsError):
        waiting.submit([2] * 65, chunk_tokens=1)
    behind = waiting.submit([3] * 8)
    assert let_in(waiting) == []
    end(waiting, runs)
    assert let_in(waiting, 2) == [behind.age]
    close(waiting)


def test_what_fell_out_of_a_window_is_free_before_anybody_is_admitted() -> None:
    """C44, sglang#36458, R3: slots behind the window of a running request were given up only by
    its own next allocation, hence after an admission that nobody passed.
    """
    waiting = queue((64, 12), groups=GROUPS)
    runs = waiting.submit(list(range(12)))  # takes all of the window's pool
    assert let_in(waiting) == [runs.age]
    waiter = waiting.submit([9] * 5)
    assert let_in(waiting) == []
    assert compute(waiting, runs, 12, fence=1)  # its window moves on, behind a fence
    assert let_in(waiting) == [], "kernels may still read them"
    waiting._cache.passed(1)
    assert let_in(waiting) == [waiter.age], "no call of the running request came between"
    close(waiting)


def test_chunked_prompt_goes_on_in_the_slots_of_its_own_window() -> None:
    """C44: pool of 13, window 4, steps of 8 and 5; each next step makes progress at each tick."""
    waiting = queue((64, 13), groups=GROUPS)
    waiter = waiting.submit(list(range(45)), chunk_tokens=8)
    let_in(waiting)
    told = 0
    while told < 45:
        step = waiting.prepare(waiter, 8 if told % 2 else 5)
        assert step > 0, f"starved at {told}"
        told += step
        assert waiter.request is not None
        waiter.request.computed(told)
        waiting.tick()
    close(waiting)


def test_prompt_of_a_hundred_tokens_needs_window_and_step() -> None:
    """C45, vllm#39866: the whole prompt was charged to the window's pool of 10."""
    waiting = queue((200, 10), groups=GROUPS)
    waiter = waiting.submit([1] * 100, chunk_tokens=4)
    assert let_in(waiting) == [waiter.age]
    end(waiting, waiter)
    close(waiting)


@pytest.mark.parametrize("stops", ["limit", "reset", "revision"])
@pytest.mark.parametrize(
    ("reach", "page", "chunk", "spare"),
    [(4, 2, 4, 1), (5, 1, 4, 3), (5, 2, 4, 0), (9, 1, 2, 5), (9, 2, 1, 3)],
)
def test_request_that_shares_no_more_goes_on_in_the_pools_that_admitted_it(
    stops: str, reach: int, page: int, chunk: int, spare: int
) -> None:
    """What may not be kept, a reset or other weights ended its lease for good, and that pinned the
    window of the hit beside the one that was read: the only request waited for itself for ever.
    """
    groups, most = [full(), window(reach)], 40
    every, last = pool_sizes(groups, page, Largest(most, chunk))
    waiting = queue((every + 20, last + spare), groups=groups, page=page)
    cached = waiting.submit(list(range(12)), chunk_tokens=chunk)
    let_in(waiting)
    end(waiting, cached)
    waiting.tick()
    limit = {"cacheable_upto": 12} if stops == "limit" else {}
    waiter = waiting.submit(list(range(20)), most_tokens=most, chunk_tokens=chunk, **limit)
    let_in(waiting)
    assert waiter.request is not None and waiter.request.hit_tokens == 12
    if stops == "reset":
        waiting._cache.reset()
    elif stops == "revision":
        waiting._cache.set_revision("others")
    for upto in range(20, most + 1, 4):
        assert compute(waiting, waiter, upto), f"it waits for itself before {upto}"
        waiting._cache.check()
        assert upto == most or waiting.append(waiter, [upto] * 4)
        waiting.tick()
    waiter.request.finish()
    close(waiting)


def test_window_that_is_left_in_parts_is_pinned_where_it_is_read() -> None:
    """Of the window at the end of the lease only what lies behind goes: the rest is still read."""
    groups = [full(), window(9)]
    waiting = queue((64, 18), groups=groups)
    cache = waiting._cache
    cached = waiting.submit(list(range(12)), chunk_tokens=1)
    let_in(waiting)
    end(waiting, cached)
    waiting.tick()
    waiter = waiting.submit(list(range(30)), chunk_tokens=1, cacheable_upto=8)
    let_in(waiting)
    assert waiter.request is not None
    work, hit = waiter.request._work, waiter.request.hit_tokens
    for upto in range(hit + 1, 31):
        assert compute(waiting, waiter, upto)
        left = leave_windows(work, cache.residency, cache.transfers, [1])
        if left is not None:
            left.settle()
        assert bool(work.apart) == (upto < hit + 8), "what is left of it is held on its own"
        cache.check()
        cache.evict(1, 100)  # as somebody else who needs room would
        cache.check()
        held = work.held[1]
        read = held.rule.first_page(upto)
        assert (held.slots[read:upto] >= 0).all(), f"a page that is read before {upto} is gone"
    waiter.request.finish()
    close(waiting)
