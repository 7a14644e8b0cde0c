"""A state that is updated in place is a private copy, made before the request writes and counted at
admission; two requests of one checkpoint never see each other's writes, and every slot of it comes
back, however the request ends (C2, C13, C37; I28, I29).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, NeverFitsError
from tests.cacherig import Live, Rig, build
from tests.mixes import full, state, window
from tests.ticktier import peek
from tiers.index import IndexTier

KV, STATE = 0, 1


def rig_of(states: int, **more: object) -> Rig:
    """Pages of one token, snapshots at even lengths, so many slots for them."""
    return build(page_tokens=1, groups=(full(), state(2)), device=(64, states), **more)


def serve(rig: Rig, tokens: list[int], **more: object) -> Live:
    """A whole request; every byte of its hit is looked at."""
    live = rig.until_ready(rig.admit(tokens, **more))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    return live


def running(rig: Rig, live: Live) -> np.ndarray:
    """The bytes of a request's running state, a view."""
    return peek(rig.device, STATE, live.request.running(STATE))


def used(rig: Rig) -> int:
    """Slots of the state's pool in use."""
    return rig.cache.usage()["device"].used_blocks[STATE]


@pytest.mark.parametrize("below", [(), (64,)])
def test_requests_of_one_checkpoint_do_not_see_each_other(below: tuple[int, ...]) -> None:
    """Three go on from one snapshot at once, from the device or each with its own load."""
    rig = rig_of(16, below=below)
    serve(rig, list(range(7)))
    if below:
        rig.empty()
    lives = [rig.until_ready(rig.admit([*range(7), 90 + n])) for n in range(3)]
    assert [live.request.hit_tokens for live in lives] == [6] * 3
    slots = {live.request.running(STATE) for live in lives}
    assert len(slots) == 3
    want = running(rig, lives[0]).copy()
    for number, live in enumerate(lives):
        assert np.array_equal(running(rig, live), want), "not the state at the hit"
        running(rig, live)[:] = number
    assert [int(running(rig, live)[0]) for live in lives] == [0, 1, 2]
    rig.poll()  # the rig looks at the snapshot itself
    late = rig.until_ready(rig.admit([*range(7), 99]))
    assert np.array_equal(running(rig, late), want)
    for live in [*lives, late]:
        rig.compute(live, 8)
        rig.end(live)
    rig.settle()
    assert rig.cache.explain([*range(6), 50]).hit_tokens == 6
    rig.finish_all()


def test_snapshot_is_what_the_state_was_and_not_what_it_becomes() -> None:
    """The cache copies; the forward goes on in the running state at once."""
    rig = rig_of(8)
    live = rig.until_ready(rig.admit(list(range(5)), boundaries=[2]))
    expected = rig.expected(None, live.request.tokens(), STATE)
    for stop in live.request.cuts(5):
        running(rig, live)[:] = expected[stop - 1]
        slots = live.request.snapshot(stop)
        assert list(slots) == ["state"]
        running(rig, live)[:] = 0
        assert np.array_equal(peek(rig.device, STATE, slots["state"]), expected[stop - 1])
    rig.write(live, 0, 5)
    live.request.computed(5)
    live.request.finish()
    rig.live.remove(live)
    rig.known.update((rig.cache.namespace(None), tuple(range(length))) for length in range(1, 6))
    rig.poll()
    assert serve(rig, [0, 1, 9]).request.hit_tokens == 2
    assert serve(rig, [*range(5), 9]).request.hit_tokens == 4
    rig.finish_all()


def test_private_copy_and_rolling_slots_are_counted_at_admission() -> None:
    """C13: what does not fit raises before anything changed, and says which pool is short."""
    for states in (1, 2):
        rig = rig_of(states)
        before = rig.cache.usage(), dict(rig.cache.counters())
        with pytest.raises(NeverFitsError) as never:
            rig.admit([1, 2, 3])
        assert "'state'" in str(never.value)
        assert (never.value.needed, never.value.capacity) == (3, states)
        assert (rig.cache.usage(), dict(rig.cache.counters())) == before
        rig.cache.check()
        rig.cache.close()
    rig = rig_of(5)
    one = rig.until_ready(rig.admit([1, 2, 3]))
    before = rig.cache.usage(), dict(rig.cache.counters()), rig.cache.tree.stats().leases
    with pytest.raises(CapacityError) as short:
        rig.admit([1, 2, 4])
    assert "'state'" in str(short.value)
    assert (short.value.needed, short.value.free, short.value.evictable) == (3, 2, 0)
    after = rig.cache.usage(), dict(rig.cache.counters()), rig.cache.tree.stats().leases
    assert after == before
    rig.end(one, abort=True)
    rig.poll()
    assert used(rig) == 0
    rig.until_ready(rig.admit([1, 2, 4]))
    rig.finish_all()


@pytest.mark.parametrize("states", [3, 4, 5])
def test_hit_never_makes_a_request_inadmissible(states: int) -> None:
    """C37, sglang#32379, I29, R5: a request that would be let in alone is let in behind a cached
    prefix, whose pinned snapshot takes one slot more; where there is none, it goes on without.
    """
    rig = rig_of(states)
    serve(rig, list(range(7)))
    assert used(rig) == 1
    live = rig.until_ready(rig.admit(list(range(9))))
    assert live.request.hit_tokens == (6 if states > 3 else 0)
    lost = rig.cache.metrics.get("match", "miss", "no room")
    assert lost == (0 if states > 3 else 6)
    rig.compute(live, 9)
    rig.end(live)
    rig.settle()
    assert rig.cache.explain(list(range(9))).hit_tokens == 8
    rig.finish_all()


@pytest.mark.parametrize("how", ["finish", "abort", "unread", "uncacheable"])
def test_every_private_slot_comes_back(how: str) -> None:
    rig = rig_of(8, below=(64,))
    serve(rig, list(range(7)))
    if how == "unread":
        rig.empty()
        live = rig.admit([*range(7), 9, 9, 9])
        rig.end(live, abort=True)
    else:
        live = rig.until_ready(rig.admit([*range(7), 9, 9, 9]))
        rig.compute(live, 9)
        assert used(rig) == 4
        more = {"cacheable_upto": 6} if how == "uncacheable" else {}
        rig.end(live, abort=how == "abort", **more)
    rig.settle()
    tree = rig.cache.tree
    assert used(rig) == tree.column_stats(tree.column(STATE, 0)).resident
    assert (rig.cache.explain([*range(7), 9, 9, 9]).hit_tokens == 8) == (how in ("finish", "abort"))
    rig.finish_all()


def test_private_slots_rest_behind_the_fence_of_the_end() -> None:
    """The kernels that update the state in place may still run when its request has ended."""
    rig = rig_of(4)
    live = rig.until_ready(rig.admit([1, 2, 3]))
    rig.compute(live, 3)
    rig.end(live, fence=rig.fence())
    rig.poll()
    with pytest.raises(CapacityError):
        rig.admit([5, 6, 7])
    rig.pass_step()
    rig.settle()
    rig.until_ready(rig.admit([5, 6, 7]))
    rig.finish_all()


def test_groups_of_one_budget_make_no_room_of_each_others_hit() -> None:
    """C2, vllm#33775: allocation for an early group took the matched, idle blocks of a later one.
    All of the hit is pinned before anything is reserved, whichever group runs short.
    """
    groups = (full(block_bytes=64), state(2, block_bytes=64), window(3, block_bytes=64))
    cache = PrefixCache(groups, [IndexTier(limit_bytes=24 * 64)], page_tokens=1)

    def run(tokens: list[int]) -> int:
        request = cache.admit(tokens, chunk_tokens=2)
        at = hit = request.hit_tokens
        while at < len(tokens):
            step = min(2, len(tokens) - at)
            request.prepare(step)
            for stop in request.cuts(step):
                request.snapshot(stop)
            at += step
            request.computed(at)
        request.finish()
        cache.poll()
        cache.check()
        return hit

    assert run([0, 1, 2, 3, 4]) == 0
    assert run([9, 9, 9]) == 0
    assert run([0, 1, 2, 3, 5, 6, 7, 8, 9]) == 4, "its hit was the oldest, and everybody was short"
    assert cache.explain([0, 1, 2, 3, 5, 6, 7, 8, 9]).hit_tokens == 8
    assert cache.explain([9, 9, 9]).hit_tokens == 0, "the room came from here"
    cache.close()
