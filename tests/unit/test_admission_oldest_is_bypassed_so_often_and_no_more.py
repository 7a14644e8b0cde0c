"""R6: the oldest waiter may be bypassed so often, then nothing younger is let in until it is."""

from __future__ import annotations

import pytest

from tests.queuerig import close, end, let_in, queue


@pytest.mark.parametrize("bypass", [0, 1, 3])
def test_oldest_waiter_is_bypassed_so_often_and_no_more(bypass: int) -> None:
    """A stream of small requests that would always fit starves one that needs the pool."""
    waiting = queue(8, bypass=bypass)
    running = [waiting.submit([0] * 2)]
    assert let_in(waiting) == [1]
    large = waiting.submit([9] * 8)
    bypassed = 0
    for number in range(12):
        small = waiting.submit([number] * 2)
        turn = waiting.tick()
        if large in turn.admitted:
            break
        bypassed += len(turn.admitted)
        running += turn.admitted
        if small in turn.admitted or number > 3:
            end(waiting, running.pop(0)) if running else None
    assert bypassed == large.bypassed == bypass
    assert large.request is not None
    end(waiting, large)
    while waiting.queue():  # then the others come, the oldest first
        ages = let_in(waiting)
        assert ages == sorted(ages)
        for waiter in waiting.running():
            end(waiting, waiter)
    close(waiting)


def test_each_oldest_waiter_is_counted_for_itself() -> None:
    waiting = queue(8, bypass=1)
    first = waiting.submit([0] * 4)
    let_in(waiting)
    one, other = waiting.submit([1] * 6), waiting.submit([2] * 7)
    small = [waiting.submit([3]) for _ in range(2)]
    assert let_in(waiting, 3) == [small[0].age] and one.bypassed == 1 and other.bypassed == 0
    end(waiting, first)
    assert let_in(waiting, 2) == [one.age, small[1].age] and other.bypassed == 1
    close(waiting)


def test_tick_tries_no_more_waiters_in_vain_than_it_may() -> None:
    waiting = queue(8, tries=2, bypass=9)
    runs = waiting.submit([0] * 7)
    let_in(waiting)
    large = [waiting.submit([1] * 8) for _ in range(2)]
    fits = waiting.submit([2])
    assert let_in(waiting) == [], "two were tried in vain before it"
    waiting.withdraw(large[1])
    assert let_in(waiting) == [fits.age]
    end(waiting, runs)
    close(waiting)
