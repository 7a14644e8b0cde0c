"""A window is kept where a later request may go on: at the branch point that the tree shows, at the
boundaries that the engine names, where the same prompt can hit, and at the end of the turn; between
them it gives its slots back (C36, C40, C41, C110; I26, I27; issue 3, items 2 and 3).
"""

from __future__ import annotations

import pytest

from radix.groups import Group
from tests.cacherig import Live, Rig, build
from tests.mixes import chunked, full, window

NEAR = 1
KINDS = {"window": window(4), "drafts": window(3, extra=2), "chunks": chunked(6)}
REACH = {"window": 3, "drafts": 4}


def rig_of(kind: Group, page: int = 1, **more: object) -> Rig:
    """Attention over everything beside one group that keeps the last tokens."""
    return build(page_tokens=page, groups=(full(), kind), device=(128, 64), **more)


def kept(rig: Rig, tokens: list[int]) -> list[int]:
    """Pages of the path with a resident window block."""
    rig.cache.check()
    cursor = rig.cache.match(tokens, leave=0)[1]
    return rig.cache.tree.entries(cursor, rig.cache.tree.column(NEAR, 0)).tolist()


def serve(rig: Rig, tokens: list[int], step: int = 1 << 20, **more: object) -> Live:
    """A whole request in steps; every byte of its hit is looked at."""
    live = rig.until_ready(rig.admit(tokens, **more))
    while live.told < len(tokens):
        rig.compute(live, min(len(tokens), live.told + step))
    rig.end(live)
    rig.settle()
    return live


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
@pytest.mark.parametrize("name", KINDS)
def test_boundary_keeps_the_window_before_it_and_the_second_request_hits(
    name: str, step: int
) -> None:
    """Whatever the steps, the boundary's window is kept when it is passed, and nothing between."""
    rig = rig_of(KINDS[name])
    prompt = list(range(20))
    live = serve(rig, prompt, step, boundaries=[9])
    assert live.request.hit_tokens == 0
    if name in REACH:
        want = {*range(9 - REACH[name], 9), *range(19 - REACH[name], 20)}
        assert kept(rig, prompt) == sorted(want)
    second = serve(rig, [*prompt[:9], 99, 98])
    assert (second.request.hit_tokens, second.request.branch_tokens) == (9, 0)
    assert rig.cache.explain(prompt).hit_tokens == 19
    rig.finish_all()


@pytest.mark.parametrize("step", [1, 3, 1 << 20])
@pytest.mark.parametrize("name", KINDS)
def test_branch_without_a_window_is_told_and_the_third_request_hits(name: str, step: int) -> None:
    """C36: what every token of the prompt's beginning has in the tree was no hit, for ever."""
    rig = rig_of(KINDS[name])
    prompt = list(range(20))
    serve(rig, prompt, step)
    live = rig.until_ready(rig.admit([*prompt[:9], 99, 98]))
    hit = live.request.hit_tokens  # chunks can be hit where one begins
    assert hit == (6 if name == "chunks" else 0)
    assert live.request.branch_tokens == 9
    assert 9 in live.request.cuts(11)
    while live.told < 11:
        rig.compute(live, min(11, live.told + step))
    assert rig.cache.explain([*prompt[:9], 97]).hit_tokens == 9, "already while it runs"
    rig.end(live)
    rig.settle()
    third = serve(rig, [*prompt[:9], 97, 97])
    assert (third.request.hit_tokens, third.request.branch_tokens) == (9, 0)
    rig.finish_all()


def test_stops_of_windows_are_the_branch_the_boundaries_and_where_the_prompt_can_be_hit() -> None:
    """The grid while decoding is of states alone: a window can be kept at the end as it is."""
    rig = rig_of(window(4), page=2)
    prompt = list(range(21))
    serve(rig, prompt)
    live = rig.until_ready(
        rig.admit([*prompt[:11], *[99] * 10], boundaries=[5, 15, 20], new_tokens=9)
    )
    assert live.request.branch_tokens == 10
    assert live.request.cuts(21) == [4, 10, 14, 20]
    rig.compute(live, 12)
    assert live.request.cuts(9) == [14, 20]
    rig.compute(live, 21)
    rig.append(live, [5] * 8)
    assert live.request.cuts(8) == []
    rig.compute(live, 29)
    rig.end(live)
    rig.settle()
    said = live.request.tokens().tolist()
    for length, hit in ((5, 4), (11, 10), (15, 14), (21, 20), (29, 28)):
        assert rig.cache.explain([*said[:length], 77]).hit_tokens == hit
    rig.finish_all()


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("page", [1, 2, 4])
def test_each_turn_hits_where_the_turn_before_it_ended(
    name: str, page: int, chunk: int | None
) -> None:
    """C110, omlx#2876, for windows: with steps of any size, and slots that pages gave back."""
    rig = rig_of(KINDS[name], page, below=(256,))
    said = [7]
    for turn in range(7):
        live = rig.until_ready(
            rig.admit([*said, turn, turn, turn], new_tokens=5, chunk_tokens=chunk)
        )
        assert live.request.hit_tokens == (len(said) // page * page if turn else 0)
        while live.told < len(live.request):
            rig.compute(live, min(len(live.request), live.told + (chunk or 64)))
        for token in range(1 + turn % 5):
            rig.append(live, [token])
            rig.compute(live, len(live.request))
        said = live.request.tokens().tolist()
        rig.end(live)
        rig.settle()
        rig.evict(NEAR, 99, 0) if turn % 2 else rig.empty()
    rig.finish_all()


def test_window_that_the_path_has_already_is_not_kept_twice() -> None:
    """A second request to the same length shares what is there; its own slots go back."""
    rig = rig_of(window(4))
    prompt = list(range(12))
    serve(rig, prompt, boundaries=[6])
    before = kept(rig, prompt), rig.cache.usage()
    for boundary in (6, 12):
        serve(rig, [*prompt[:11], 11], boundaries=[boundary])
        assert (kept(rig, prompt), rig.cache.usage()) == before
    rig.finish_all()


def test_end_that_may_not_be_kept_keeps_the_last_window_that_may() -> None:
    """C109 beside windows: told at admission the window there is kept in passing; told at the end
    it may have been given back, and then the branch signal says where it is missing.
    """
    for early in (True, False):
        rig = rig_of(window(4))
        more = {"cacheable_upto": 7} if early else {}
        live = rig.until_ready(rig.admit(list(range(20)), **more))
        for upto in range(1, 21):
            rig.compute(live, upto)
        rig.end(live, **({} if early else {"cacheable_upto": 7}))
        rig.settle()
        told = rig.cache.explain(list(range(20)))
        assert told.structural_tokens == 7
        assert (told.hit_tokens, told.branch_tokens) == ((7, 0) if early else (0, 7))
        assert rig.cache.usage()["device"].used_blocks == (7, 3 if early else 0)
        rig.finish_all()
