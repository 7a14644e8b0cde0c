"""The schedules that hung elsewhere finish here, by the same queue and pools (I29): each test says
what went wrong there.
"""

from __future__ import annotations

import pytest

from radix import NeverFitsError
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
