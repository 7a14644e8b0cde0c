"""R7: where one that runs can't go on, the youngest is named to give way, never the oldest; it
keeps its age, and what it gave is for whom it gave way (C46; I29).
"""

from __future__ import annotations

from radix import RequestState, Waiter, Waiting
from tests.queuerig import close, compute, end, let_in, queue


def full_pool() -> tuple[Waiting, list[Waiter]]:
    """Three requests that take all of 12 slots and may become longer."""
    waiting = queue(12)
    three = [waiting.submit([number] * 4, most_tokens=8) for number in range(3)]
    assert let_in(waiting) == [1, 2, 3]
    for waiter in three:
        assert compute(waiting, waiter, 4)
    return waiting, three


def test_youngest_gives_way_whoever_lacks_room() -> None:
    for lacking in range(3):
        waiting, three = full_pool()
        assert not waiting.append(three[lacking], [7])
        assert waiting.tick().retract is None, "a fence or a transfer may make room"
        assert not waiting.append(three[lacking], [7])
        assert waiting.tick().retract is three[2]
        close(waiting)


def test_what_the_youngest_gave_goes_to_whom_it_gave_way() -> None:
    """The livelock that the model found: the youngest came back in the same tick that freed its
    slots, took them again, and was named again, for ever; the oldest never got one.
    """
    waiting, (oldest, _, youngest) = full_pool()
    for _ in range(2):
        assert not waiting.append(oldest, [7])
        turn = waiting.tick()
    assert turn.retract is youngest
    waiting.retract(youngest, fence=1)
    assert youngest.request is not None and youngest.request.state is RequestState.PREEMPTED
    assert youngest.retracted == 1 and waiting.queue() == (youngest,)
    assert let_in(waiting) == [] and not waiting.append(oldest, [7]), "its fence holds"
    waiting._cache.passed(1)
    assert let_in(waiting) == [], "not before the other had its turn"
    assert waiting.append(oldest, [7])
    close(waiting)


def test_it_waits_again_at_its_age_and_goes_on_from_what_is_cached() -> None:
    waiting, three = full_pool()
    later = waiting.submit([8] * 2)
    waiting.retract(three[1])
    assert [waiter.age for waiter in waiting.queue()] == [2, 4]
    assert let_in(waiting, 1) == [2], "older than the one that waited before"
    again = three[1].request
    assert again is not None and again.state is RequestState.RUNNING and again.hit_tokens == 3
    assert len(again) == 4
    end(waiting, three[0])
    assert let_in(waiting, 2) == [later.age]
    close(waiting)


def test_the_only_one_is_never_named() -> None:
    waiting = queue(8)
    waiter = waiting.submit([1] * 4, most_tokens=8)
    let_in(waiting)
    cache = waiting._cache
    assert compute(waiting, waiter, 4)
    outsider = cache.admit([9] * 4)
    for _ in range(6):
        assert not waiting.append(waiter, [7])
        assert waiting.tick().retract is None
    outsider.abort()
    waiting.tick()
    assert waiting.append(waiter, [7] * 4)
    close(waiting)


def test_one_that_the_engine_ended_while_it_waited_is_not_resumed() -> None:
    waiting, three = full_pool()
    waiting.retract(three[2])
    assert three[2].request is not None
    three[2].request.abort()
    assert let_in(waiting, 3) == [] and waiting.queue() == ()
    close(waiting)
