"""R4, R5: a request that waits holds no slot, no pin and no transfer, in any pool, however often it
was tried; what is short is told; and what is cached never keeps one out that would be let in alone
(I8, I14, I29).
"""

from __future__ import annotations

import pytest

from radix import CapacityError, Ownership, PrefixCache, Waiting
from tests.mixes import full, state, window
from tests.queuerig import close, end, held, let_in, queue
from tiers.index import IndexTier


def test_waiter_holds_nothing_however_often_it_is_tried() -> None:
    groups = (full(), window(3), state())
    waiting = queue((16, 16, 5), IndexTier(64, "host"), groups=groups)
    cache = waiting._cache
    runs = waiting.submit(list(range(6)))
    waiter = waiting.submit([*range(4), 9, 9])
    assert let_in(waiting) == [runs.age]
    before = [held(waiting, group) for group in range(3)], cache.tree.stats().leases
    for _ in range(5):
        turn = waiting.tick()
        assert turn.admitted == () and isinstance(turn.short, CapacityError)
        assert "'state'" in str(turn.short), "the one budget that is short"
        assert (turn.short.needed, turn.short.free, turn.short.clean, turn.short.dirty) == (
            3,
            2,
            0,
            0,
        )
        now = [held(waiting, group) for group in range(3)], cache.tree.stats().leases
        assert now == before and not cache.transfers.jobs
    end(waiting, runs)
    assert let_in(waiting, 2) == [waiter.age]
    close(waiting)


def test_attempt_in_vain_evicts_nothing() -> None:
    waiting = queue((8, 4), groups=(full(), window(2)))
    cached = waiting.submit([5] * 4)
    let_in(waiting)
    end(waiting, cached)
    waiting.tick()
    runs = waiting.submit([1] * 3)
    let_in(waiting)
    tree = waiting._cache.tree
    kept = tree.column_stats(tree.column(0, 0)).resident
    waiting.submit([2] * 4)
    for _ in range(3):
        assert let_in(waiting) == []
    assert tree.column_stats(tree.column(0, 0)).resident == kept == 4, "of the group with room"
    end(waiting, runs)
    assert let_in(waiting, 2) != []
    close(waiting)


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_cached_prefix_keeps_out_nobody_who_is_let_in_alone(chunk: int | None) -> None:
    """R5: pools of exactly one request; the hit pins a window and a snapshot beside what the
    request has to have.
    """
    waiting = queue((12, 12, 3), groups=(full(), window(4), state()))
    for _ in range(4):
        waiter = waiting.submit([1] * 12, chunk_tokens=chunk)
        assert let_in(waiting, 2) == [waiter.age]
        end(waiting, waiter)
    close(waiting)


def test_clean_and_dirty_are_told_apart_by_what_is_short() -> None:
    """Dirty blocks may go too, once a copy below is acknowledged; clean ones go at once."""
    waiting = queue(8, IndexTier(16, "host"), write="write_back")
    first = waiting.submit([1] * 8)
    let_in(waiting)
    end(waiting, first)
    waiting.tick()
    waiter = waiting.submit([2] * 8)
    short = waiting.tick().short
    assert isinstance(short, CapacityError) and (short.dirty, short.clean, short.free) == (8, 0, 0)
    assert "8 of them dirty" in str(short) and waiting.wait(30.0)
    assert let_in(waiting, 2) == [waiter.age], "the copies were acknowledged"
    close(waiting)


def test_waiter_over_shared_slots_is_let_in_once_the_engine_offers_enough() -> None:
    """The engine's own allocator is the pool: what it has not offered is not there."""
    tier = IndexTier(8)
    cache = PrefixCache((full(),), [tier], page_tokens=1, ownership=Ownership.SHARED)
    waiting = Waiting(cache)
    waiter = waiting.submit([1] * 4)
    cache.offer(0, [0, 1, 2])
    assert let_in(waiting, 3) == [] and cache.tree.stats().leases == 0
    cache.offer(0, [3, 4])
    assert let_in(waiting) == [waiter.age]
    end(waiting, waiter)
    waiting.tick()
    assert len(cache.spare(0)) == 1, "the fifth; four are cached"
    cache.close()
