"""R8: a transfer pins what somebody waits for no longer than its deadline, in ticks, and its end
wakes who waits (I22, I29).
"""

from __future__ import annotations

import pytest

from tests.livelock import HangingTier
from tests.queuerig import close, compute, end, let_in, queue
from tiers.index import IndexTier


def test_store_that_hangs_frees_its_source_at_the_deadline() -> None:
    """A copy that never ends pinned its blocks, and whoever needed the room waited for ever."""
    host = HangingTier(64, "host", 1.0, 0)
    waiting = queue(8, host, deadline_ticks=5)
    first = waiting.submit([1] * 8)
    let_in(waiting)
    end(waiting, first)
    for _ in range(20):
        waiting.tick()
    assert host.stuck, "nobody lacked room: it may take its time"
    waiter = waiting.submit([2] * 8)
    assert let_in(waiting, 3) == [waiter.age] and not host.stuck
    close(waiting)


@pytest.mark.parametrize("deadline", [1, 7])
def test_load_that_hangs_becomes_a_shorter_hit_at_the_deadline(deadline: int) -> None:
    host = HangingTier(64, "host", 0.0, 0)
    waiting = queue(8, host, deadline_ticks=deadline)
    first = waiting.submit([1] * 8)
    let_in(waiting)
    end(waiting, first)
    for _ in range(3):
        waiting.tick()
    waiting._cache.evict(0, 8)
    host._hangs = 1.0
    again = waiting.submit([1] * 8)
    assert let_in(waiting) == [again.age] and again.request is not None
    ticks = 0
    while not again.request.ready:
        ticks += 1
        assert ticks <= deadline + 2, "it hangs"
        waiting.tick()
    assert again.request.hit_tokens == 0 and ticks >= deadline - 1
    end(waiting, again)
    host._hangs = 0.0
    close(waiting)


def test_wait_blocks_while_a_transfer_is_under_way_and_not_otherwise() -> None:
    waiting = queue(8, IndexTier(8, "host"))
    assert not waiting.wait(30.0), "only computing goes on from here"
    waiter = waiting.submit([1] * 4)
    let_in(waiting)
    assert compute(waiting, waiter, 4)
    assert waiting.wait(30.0), "the copy has ended"
    waiting.tick()
    assert not waiting.wait(30.0)
    close(waiting)
