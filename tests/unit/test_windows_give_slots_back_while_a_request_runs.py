"""What lies behind every window gives its slot back while the request runs, and only then may
another get it; what is admitted is what is held at once; a hit needs the last tokens before it and
nothing else, and they stay (C36-C40, C43-C47; I26, I27, I29).
"""

from __future__ import annotations

import pytest

from radix.errors import CapacityError, NeverFitsError
from tests.cacherig import Live, Rig, build
from tests.mixes import chunked, full, state, window

KV, NEAR = 0, 1


def used(rig: Rig, group: int = NEAR) -> int:
    """Blocks of the group in the first tier, whoever has them."""
    return rig.cache.usage()["device"].used_blocks[group]


def resident(rig: Rig, group: int = NEAR) -> int:
    """Those that the tree has."""
    return rig.cache.tree.column_stats(rig.cache.tree.column(group, 0)).resident


def steps(rig: Rig, live: Live, size: int, *, fenced: bool = False) -> list[int]:
    """Computes the rest in steps of ``size`` tokens; the blocks in use after each."""
    seen = []
    while live.told < len(live.request):
        upto = min(len(live.request), live.told + size)
        rig.compute(live, upto, rig.fence() if fenced else None)
        if fenced:
            rig.pass_step()
        rig.poll()
        seen.append(used(rig))
    return seen


def serve(rig: Rig, tokens: list[int], size: int = 1 << 20, **more: object) -> int:
    """A whole request in steps; its hit."""
    live = rig.until_ready(rig.admit(tokens, **more))
    steps(rig, live, size)
    rig.end(live)
    rig.settle()
    return live.request.hit_tokens


@pytest.mark.parametrize("page", [1, 2, 4])
@pytest.mark.parametrize("kind", [window(9), chunked(8), window(8, extra=3)])
def test_long_decode_holds_no_more_than_the_window(page: int, kind: object) -> None:
    """Without ``chunk_tokens`` the prompt is held whole until its steps are over, then the window;
    with them never more than window and step together.
    """
    for chunk in (None, 4):
        rig = build(page_tokens=page, groups=(full(), kind), device=(256, 64), events=False)
        live = rig.until_ready(rig.admit(list(range(24)), chunk_tokens=chunk))
        first = used(rig)
        steps(rig, live, 4)
        most = []
        for token in range(150):
            rig.append(live, [token % 3])
            rig.compute(live, len(live.request))
            most.append(used(rig) - resident(rig))
        bound = -(-(10 + 4 + page - 1) // page) + 1  # reach, step, and the last place before
        assert max(most) <= bound, f"{max(most)} blocks, {chunk=}"
        assert max(most[-40:]) <= max(most[:40]), "no more at the end than at the start"
        assert chunk is None or first <= bound
        assert used(rig, KV) == -(-174 // page)
        rig.end(live)
        rig.finish_all()


def test_decode_longer_than_the_pool_of_its_window_never_fails() -> None:
    """C45, vllm#39866: the budget of a window group counted the whole prompt. Window 4, steps of 4,
    a pool of 10 blocks, a prompt of 100 tokens, 100 more sampled.
    """
    rig = build(page_tokens=1, groups=(full(), window(4)), device=(256, 10), events=False)
    prompt = [token % 7 for token in range(100)]
    live = rig.until_ready(rig.admit(prompt, chunk_tokens=4))
    assert max(steps(rig, live, 4)) <= 10
    for token in range(100):
        rig.append(live, [token % 5])
        rig.compute(live, len(live.request))
    rig.end(live)
    rig.settle()
    assert rig.cache.explain([*live.request.tokens(), 1]).hit_tokens == 200
    rig.finish_all()


def test_own_slots_behind_the_window_serve_the_next_step_of_a_full_pool() -> None:
    """C44, sglang#36458: a chunked prompt starved by slots that it held itself: what was behind its
    window was given up inside allocation, hence after an admission that it could not pass. Pool of
    13, window 4, steps of 8 and 5; the next steps take what the first ones gave back.
    """
    rig = build(page_tokens=1, groups=(full(), window(4)), device=(64, 13))
    live = rig.until_ready(rig.admit(list(range(45)), chunk_tokens=8))
    for size in (8, 5, 8, 8, 8, 8):
        rig.compute(live, live.told + size)
        rig.poll()
        assert used(rig) <= 13
    assert live.told == 45
    rig.end(live)
    rig.settle()
    assert serve(rig, [*range(45), 1, 2], chunk_tokens=8) == 45
    rig.finish_all()


def test_slots_behind_the_window_rest_until_their_readers_are_done() -> None:
    """C46, sglang-jax#1524: what a window gives up comes some steps later, behind the fence of the
    kernels that read it; a step that finds too few slots is refused whole, and goes on afterwards.
    """
    rig = build(page_tokens=2, groups=(full(), window(4)), device=(64, 6))
    live = rig.until_ready(rig.admit(list(range(40)), chunk_tokens=4))
    ran = refused = 0
    while live.told < 40:
        before = live.request.slots(NEAR).tolist(), used(rig), rig.cache.tree.stats().leases
        try:
            live.request.prepare(4)
        except CapacityError:
            refused += 1
            assert (live.request.slots(NEAR).tolist(), used(rig)) == before[:2]
            assert rig._later, "nothing rests, yet there is no slot"
            rig.pass_step()
            rig.poll()
            continue
        rig.compute(live, live.told + 4, rig.step + 3)
        ran += 1
        rig.cache.check()
    assert ran == 10 and refused > 0
    for _ in range(3):
        rig.pass_step()
    rig.poll()
    rig.end(live)
    rig.settle()
    assert rig.cache.explain([*range(40), 1]).hit_tokens == 40
    rig.finish_all()


def test_step_of_no_tokens_is_never_asked_for() -> None:
    """C46: a chunk of length zero went round for ever. A bound of zero is refused; a step of zero
    stops nowhere and changes nothing.
    """
    rig = build(page_tokens=2, groups=(full(), window(4)), device=16)
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1"):
        rig.admit([1, 2, 3], chunk_tokens=0)
    live = rig.until_ready(rig.admit([1, 2, 3], chunk_tokens=2))
    before = live.request.slots(NEAR).tolist(), used(rig)
    assert live.request.cuts(0) == []
    live.request.prepare(0)
    assert (live.request.slots(NEAR).tolist(), used(rig)) == before
    rig.finish_all()


def test_many_requests_of_a_small_pool_are_admitted_as_far_as_each_can_go_on() -> None:
    """C46: more requests were let in than could go on together, and retracting them went round.
    Each is charged window and step; whoever is in runs to its end without another's slot.
    """
    rig = build(page_tokens=2, groups=(full(), window(4)), device=(128, 12))
    running: list[Live] = []
    for number in range(6):
        try:
            running.append(rig.admit([number, *range(23)], chunk_tokens=4))
        except CapacityError as error:
            assert error.needed > error.free + error.evictable
    assert 2 <= len(running) < 6
    for live in running:
        rig.until_ready(live)
    while any(live.told < 24 for live in running):
        for live in running:
            rig.compute(live, min(24, live.told + 4))
        rig.poll()
    for live in running:
        rig.end(live)
    rig.settle()
    rig.finish_all()


@pytest.mark.parametrize("chunk", [None, 2])
def test_resume_behind_a_cached_window_is_admitted(chunk: int | None) -> None:
    """C37, sglang#32379: a resume whose prefix was cached wedged for ever at the head of the line:
    a whole window was reserved for it beside the one that its prefix brought along. Pool of 8,
    window 4, 8 tokens cached, 1 to compute and 2 to sample: 3 new blocks beside the 3 of the hit.
    """
    rig = build(page_tokens=1, groups=(full(), window(4)), device=(64, 8))
    serve(rig, list(range(8)))
    live = rig.until_ready(rig.admit(list(range(9)), new_tokens=2, chunk_tokens=chunk))
    assert live.request.hit_tokens == 8
    assert used(rig) <= 8
    rig.compute(live, 9)
    for token in (1, 2):
        rig.append(live, [token])
        rig.compute(live, len(live.request))
    rig.end(live)
    rig.finish_all()


def test_too_large_now_is_told_from_too_large_for_ever() -> None:
    """C43, sglang#32700: an escape meant for what can never run fired under mere pressure. A
    request that is short of what is free now waits; one beyond the pool is refused at once, and by
    name (C47, sglang#35158: nothing said at the start that one request could not fit).
    """
    rig = build(page_tokens=1, groups=(full(), window(6), state()), device=(64, 10, 6))
    live = rig.until_ready(rig.admit(list(range(6))))
    before = rig.cache.usage(), dict(rig.cache.counters())
    with pytest.raises(CapacityError) as waits:
        rig.admit([9] * 6)
    assert "'near'" in str(waits.value)
    assert (waits.value.needed, waits.value.free, waits.value.evictable) == (6, 4, 0)
    with pytest.raises(NeverFitsError) as never:
        rig.admit([9] * 11)
    assert "'near'" in str(never.value)
    assert (never.value.needed, never.value.capacity) == (11, 10)
    assert (rig.cache.usage(), dict(rig.cache.counters())) == before
    rig.compute(live, 6)
    rig.end(live)
    rig.settle()
    assert serve(rig, [9] * 6) == 0
    rig.finish_all()


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_last_tokens_of_a_request_keep_their_window(tokens: int) -> None:
    """C39, sglang#29351: "outside the window" was decided for a leaf as a whole, and vetoed its
    keys and values too. Everything of the full group stays, and of the window the pages of the last
    W - 1 tokens.
    """
    rig = build(page_tokens=2, groups=(full(), window(tokens)), device=16)
    serve(rig, list(range(17)))
    assert rig.cache.usage()["device"].used_blocks == (8, -(-(tokens - 1) // 2))
    assert rig.cache.explain([*range(16), 1]).hit_tokens == 16
    assert used(rig) == resident(rig)
    rig.finish_all()


def test_insert_is_hit_by_the_next_match_whatever_was_missing_before() -> None:
    """C36, sglang#29349: an insert went by the tokens alone and gave up its own blocks, where the
    next match, for want of a window in the middle, ended before them. What a request computed again
    is taken where it was missing, and only the copies of what was there go back.
    """
    rig = build(page_tokens=1, groups=(full(), window(3)), device=(16, 16))
    serve(rig, list(range(9)), boundaries=[4])
    with rig.cache.lease(rig.cache.match(list(range(4)), leave=0)[1]):
        assert rig.evict(NEAR, 9, 0) == 3, "those at 8 and 9 become tombstones"
    assert rig.cache.explain(list(range(9))).hit_tokens == 4
    assert serve(rig, list(range(9))) == 4
    assert rig.cache.explain([*range(9), 1]).hit_tokens == 9
    assert used(rig) == resident(rig) and used(rig, KV) == 9
    rig.finish_all()


def test_slot_that_went_on_to_another_page_is_not_freed_through_its_old_one() -> None:
    """C38, sglang#27586: a tombstone kept its old mapping, and recovering it freed the slot that
    meanwhile was another node's. The window pool is so small that every slot is used again.
    """
    rig = build(page_tokens=1, groups=(full(), window(3)), device=(64, 6), below=(64,))
    one, other = list(range(6)), [9, *range(5)]
    for _ in range(3):
        serve(rig, one)
        serve(rig, other)
        rig.evict(NEAR, 4, 0)
        rig.poll()  # the rig looks at every byte of every slot
    live = rig.until_ready(rig.admit([*one, 1, 1], chunk_tokens=2))
    assert live.request.hit_tokens == 6
    other_hit = rig.cache.explain([*other, 1]).hit_tokens
    rig.compute(live, 8)
    rig.end(live)
    rig.settle()
    assert rig.cache.explain([*other, 1]).hit_tokens == other_hit == 6
    rig.finish_all()


def test_window_of_an_inner_length_comes_back_from_below() -> None:
    """C40, sglang#28468 (and #29204): the window of an inner node was dropped before it had been
    copied down. What is kept goes down when it is kept, not when it goes.
    """
    rig = build(page_tokens=1, groups=(full(), window(3)), device=(16, 8), below=(32,))
    serve(rig, list(range(8)), boundaries=[4])
    serve(rig, [*range(4), 9, 9, 9])
    assert rig.evict(NEAR, 9, 0) >= 4
    rig.empty()
    told = rig.cache.explain([*range(4), 7, 7])
    assert told.upto == {"device": 0, "host": 4}
    live = rig.until_ready(rig.admit([*range(4), 7, 7]))
    assert live.request.hit_tokens == 4 and live.request.loaded(NEAR).sum() == 2
    rig.end(live, abort=True)
    rig.finish_all()
