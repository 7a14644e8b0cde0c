"""R0: what the pools can't hold alone is refused when it is submitted, by name and whatever is
cached, and never stands at the head of the queue; a step that is too long becomes shorter (I29).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radix import (
    Largest,
    NeverFitsError,
    Ownership,
    PrefixCache,
    RequestError,
    Waiting,
    pool_sizes,
)
from radix.plan import Demand
from radix.tier import View
from tests.cacherig import build
from tests.mixes import full, window
from tests.queuerig import close, end, let_in, queue
from tiers.host import HostTier
from tiers.index import IndexTier

A_VIEW = Demand(view=View((0, 1), (0, 1)))


def test_request_that_never_fits_is_refused_when_it_comes_and_holds_up_nobody() -> None:
    """The schedule that hung elsewhere: one that can never run stands first, and all wait behind
    it for ever.
    """
    waiting = queue(8)
    for more in ({"new_tokens": 8}, {"most_tokens": 9}):
        with pytest.raises(NeverFitsError) as never:
            waiting.submit([1], **more)
        assert (never.value.needed, never.value.capacity) == (9, 8)
    assert waiting.queue() == ()
    behind = waiting.submit(list(range(8)))
    assert let_in(waiting) == [behind.age]
    close(waiting)


def test_what_is_cached_makes_nothing_fit_that_did_not() -> None:
    """A hit spares the window behind it; it may be gone once the request is let in."""
    groups = (full(), window(3))
    waiting = queue((64, 6), groups=groups)
    first = waiting.submit(list(range(6)))
    let_in(waiting)
    end(waiting, first)
    waiting.tick()
    with pytest.raises(NeverFitsError):
        waiting.submit(list(range(9)))
    assert waiting.submit(list(range(9)), chunk_tokens=2).chunk_tokens == 2
    close(waiting)


def test_step_that_no_pool_holds_becomes_as_long_as_one_does() -> None:
    groups = (full(), window(4))
    waiting = queue((64, 9), groups=groups)
    long = waiting.submit(list(range(40)), chunk_tokens=32)
    assert long.chunk_tokens == 4 and pool_sizes(groups, 1, Largest(40, 4))[1] <= 9
    assert let_in(waiting) == [long.age]
    end(waiting, long)
    close(waiting)


class Shrinking(IndexTier):
    """A first tier that can come to hold less than it did."""

    most = 8

    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """What it can hold from now on."""
        return self.most


@pytest.mark.parametrize("tokens", [5, 6])
def test_what_no_division_of_the_segments_holds_is_refused_at_once(tokens: int) -> None:
    """Groups share a slab by whole segments. Bytes alone were counted, so that a request that no
    division of the segments holds was told to wait, for ever.
    """
    groups = tuple(full(name, 4096 * size) for name, size in (("a", 1), ("b", 3), ("c", 5)))
    host = HostTier(4 * 16 * 4096, "host", segment_bytes=16 * 4096)
    cache = PrefixCache(groups, [host], page_tokens=1)
    bytes_needed = tokens * sum(group.block_bytes for group in groups)
    assert bytes_needed <= host.limit_bytes, "by the byte it fits"
    if tokens == 5:  # one segment for a, one for b, two for c
        request = cache.admit(list(range(tokens)))
        assert request.ready
        request.abort()
    else:  # b needs a second
        with pytest.raises(NeverFitsError, match="beside the others"):
            cache.admit(list(range(tokens)))
    cache.poll()
    cache.check()
    cache.close()


def test_waiter_that_comes_to_fit_nowhere_leaves_the_queue_with_its_reason() -> None:
    first = Shrinking(8)
    waiting = queue(8, first=first)
    runs = waiting.submit([1] * 4)
    let_in(waiting)
    large, small = waiting.submit([2] * 8), waiting.submit([3] * 2)
    assert let_in(waiting) == [small.age]
    first.most = 6
    turn = waiting.tick()
    assert [waiter for waiter, _ in turn.refused] == [large] and waiting.queue() == ()
    assert turn.refused[0][1].capacity == 6
    for waiter in (runs, small):
        end(waiting, waiter)
    close(waiting)


def test_what_means_nothing_is_refused_by_name_and_changes_nothing() -> None:
    """A view that no admission takes stood in the queue, where every tick raised for it: nobody was
    let in any more.
    """
    waiting = queue(8)
    for call, kind, message in (
        (lambda: waiting.submit([]), ValueError, "an empty prompt"),
        (lambda: waiting.submit([1, 2], most_tokens=1), ValueError, "most_tokens is 1, expected"),
        (lambda: waiting.submit([1], chunk_tokens=0), ValueError, "chunk_tokens must be at least"),
        (lambda: waiting.submit([1], boundaries=[2]), ValueError, "boundaries"),
        (lambda: waiting.submit([1], namespace=3), TypeError, "namespace"),
        (lambda: waiting.submit([1], demand=A_VIEW), ValueError, "demand: a view of blocks"),
        (lambda: Waiting(waiting._cache, bypass=-1), ValueError, "bypass must not be negative"),
        (lambda: Waiting(waiting._cache, tries=0), ValueError, "tries must be at least 1"),
        (lambda: Waiting(3), TypeError, "cache must be a PrefixCache"),
    ):
        with pytest.raises(kind, match=message):
            call()
    waiter = waiting.submit([1])
    with pytest.raises(RequestError, match="does not run"):
        waiting.append(waiter, [1])
    let_in(waiting)
    with pytest.raises(RequestError, match="does not wait"):
        waiting.withdraw(waiter)
    with pytest.raises(ValueError, match="expected at most the 1 that were submitted"):
        waiting.append(waiter, [1])
    close(waiting)


def test_queue_over_lent_slots_is_refused() -> None:
    rig = build(below=(8,), ownership=Ownership.BORROWED)
    with pytest.raises(ValueError, match="lent by the engine"):
        Waiting(rig.cache)
    rig.cache.close()
