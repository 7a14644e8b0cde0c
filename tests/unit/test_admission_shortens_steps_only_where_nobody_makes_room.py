"""R2: a step becomes shorter only where no running request, no transfer and no fence could make
room; under mere pressure it waits (C43, sglang#32700: the escape meant for what can never run fired
whenever little was free just now). A step of no tokens is never asked for (C46).
"""

from __future__ import annotations

from tests.mixes import full, window
from tests.queuerig import close, compute, end, let_in, queue

GROUPS = (full(), window(4))


def test_admission_waits_for_its_step_while_somebody_runs() -> None:
    waiting = queue((64, 14), groups=GROUPS)
    runs = waiting.submit(list(range(6)))
    assert let_in(waiting) == [runs.age]
    waiter = waiting.submit([9] * 30, chunk_tokens=8)
    assert waiter.chunk_tokens == 8, "the pool holds that step: R <= B < C"
    assert let_in(waiting, 5) == [] and waiter.chunk_tokens == 8
    end(waiting, runs)
    assert let_in(waiting, 2) == [waiter.age] and waiter.chunk_tokens == 8
    close(waiting)


def test_admission_takes_a_shorter_step_where_only_an_outsider_holds_the_rest() -> None:
    """An engine's own lease pins a window, and nobody's end gives it back."""
    waiting = queue((64, 14), groups=GROUPS)
    cached = waiting.submit(list(range(6)))
    let_in(waiting)
    end(waiting, cached)
    waiting.tick()
    cache = waiting._cache
    with cache.lease(cache.match(list(range(6)), leave=0)[1]):
        waiter = waiting.submit([9] * 30, chunk_tokens=8)
        assert let_in(waiting) == [waiter.age] and waiter.chunk_tokens == 4
        end(waiting, waiter)
    close(waiting)


def test_running_request_sits_a_step_out_while_a_fence_holds_its_slots() -> None:
    """What it gives back comes behind a fence; a shorter step now is one more step later."""
    waiting = queue((64, 9), groups=GROUPS)
    waiter = waiting.submit(list(range(30)), chunk_tokens=4)
    let_in(waiting)
    sat_out, lengths, step = 0, [], 0
    while waiter.request is not None and (told := waiter.request._work.told) < 30:
        step += 1
        assert step < 200, "it hangs"
        count = waiting.prepare(waiter, 30 - told)
        sat_out += count == 0
        if count:
            lengths.append(count)
            waiter.request.computed(told + count, fence=step + 1, reuse=step + 1)
        waiting._cache.passed(max(0, step - 1))
        assert waiting.tick().retract is None, "it is the only one"
    assert sat_out > 0 and set(lengths[:-1]) == {4}, lengths
    close(waiting)


def test_steps_end_where_the_tokens_end() -> None:
    waiting = queue((64, 9), groups=GROUPS)
    waiter = waiting.submit([1, 2, 3], chunk_tokens=2)
    let_in(waiting)
    assert waiting.prepare(waiter, 0) == 0 and waiter.stalled == 0
    assert compute(waiting, waiter, 3)
    close(waiting)
