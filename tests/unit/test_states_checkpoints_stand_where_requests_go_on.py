"""Snapshots are taken where a later request may go on: at the branch point that the tree shows, at
the boundaries that the engine passed, and on the grid while the end of the turn is unknown, two of
which roll; the end keeps the last (C35, C49, C110; I28; issue 3, item 3).
"""

from __future__ import annotations

import math

import pytest

from radix.cache import PrefixCache
from radix.policy.checkpoint import Checkpoints
from tests.cacherig import Live, Rig, build
from tests.mixes import full, state, window
from tiers.index import IndexTier

STATE = 1


def rig_of(page: int = 1, grid: int | None = 2, **more: object) -> Rig:
    """Attention over everything beside one state."""
    return build(page_tokens=page, groups=(full(), state(grid)), device=(128, 16), **more)


def checkpoints(rig: Rig, tokens: list[int]) -> list[int]:
    """Lengths on the path of these tokens at which a snapshot stands."""
    rig.cache.check()
    cursor = rig.cache.match(tokens, leave=0)[1]
    tree, page = rig.cache.tree, rig.cache.page_tokens
    return [(int(at) + 1) * page for at in tree.entries(cursor, tree.column(STATE, 0))]


def used(rig: Rig) -> int:
    """Slots of the state's pool in use, whoever has them."""
    return rig.cache.usage()["device"].used_blocks[STATE]


def serve(rig: Rig, tokens: list[int], **more: object) -> Live:
    """A whole request; the rig stops where the cache asks, and looks at every byte of its hit."""
    live = rig.until_ready(rig.admit(tokens, **more))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    return live


def test_checkpoint_is_left_where_a_prompt_leaves_a_known_path() -> None:
    """C35, sglang#22935: the state stood at the old end alone, so that a prompt which shared the
    first part hit nothing, for ever. The hit is none now, but the branch point is told and kept:
    the third request of its kind hits.
    """
    rig = rig_of()
    serve(rig, [1, 2, 3, 4, 5, 6, 7])
    assert checkpoints(rig, [1, 2, 3, 4, 5, 6]) == [6]
    told = rig.cache.explain([1, 2, 3, 4, 9])
    assert (told.hit_tokens, told.structural_tokens, told.branch_tokens) == (0, 4, 4)
    assert told.reason == "no checkpoint"
    live = rig.until_ready(rig.admit([1, 2, 3, 4, 9, 9, 9]))
    assert (live.request.hit_tokens, live.request.branch_tokens) == (0, 4)
    assert live.request.cuts(7) == [4, 6]
    rig.compute(live, 7)
    assert checkpoints(rig, [1, 2, 3, 4, 5, 6]) == [4, 6], "already while it runs"
    assert rig.cache.explain([1, 2, 3, 4, 7]).hit_tokens == 4
    rig.end(live)
    rig.settle()
    third = serve(rig, [1, 2, 3, 4, 8, 8])
    assert (third.request.hit_tokens, third.request.branch_tokens) == (4, 0)
    assert rig.cache.explain([1, 2, 3, 4, 5, 6, 1]).hit_tokens == 6, "the old one is still there"
    rig.finish_all()


@pytest.mark.parametrize(("grid", "branch"), [(1, 5), (2, 4), (3, 3), (4, 4), (7, 0)])
def test_branch_point_lies_on_the_grid(grid: int, branch: int) -> None:
    rig = rig_of(grid=grid)
    serve(rig, list(range(1, 16)))
    told = rig.cache.explain([1, 2, 3, 4, 5, 9, 9])
    assert (told.structural_tokens, told.branch_tokens) == (5, branch)
    live = rig.until_ready(rig.admit([1, 2, 3, 4, 5, 9, 9]))
    assert live.request.branch_tokens == branch
    cuts = live.request.cuts(7)
    assert (branch in cuts or not branch) and all(cut % grid == 0 for cut in cuts)
    rig.end(live, abort=True)
    rig.finish_all()


@pytest.mark.parametrize("page", [1, 2, 4])
def test_second_request_that_diverges_hits_at_once_where_a_boundary_was_passed(page: int) -> None:
    """The end of the system prompt and of the tools, told at admission, rounded down to the
    grid.
    """
    rig = rig_of(page=page, grid=2 * page)
    prompt = list(range(11 * page))
    first = rig.until_ready(rig.admit(prompt, boundaries=[4 * page, 9 * page]))
    assert first.request.cuts(len(prompt)) == [4 * page, 8 * page, 10 * page]
    rig.compute(first, len(prompt))
    rig.end(first)
    rig.settle()
    assert checkpoints(rig, prompt) == [4 * page, 8 * page, 10 * page]
    for length in (4, 8):
        live = serve(rig, [*prompt[: length * page], *[99] * (page + 1)])
        assert live.request.hit_tokens == length * page
        assert live.request.branch_tokens == 0
    rig.finish_all()


def test_boundary_off_the_grid_is_kept_at_the_last_place_before_it() -> None:
    rig = rig_of(page=2, grid=3)
    assert rig.cache.align_tokens == 6
    serve(rig, list(range(20)), boundaries=[5, 7, 16])
    assert checkpoints(rig, list(range(20))) == [6, 12, 18]
    rig.finish_all()


def test_stops_are_absolute_and_only_of_the_coming_chunk() -> None:
    rig = rig_of()
    live = rig.until_ready(rig.admit(list(range(13)), boundaries=[4, 8], new_tokens=6))
    request = live.request
    assert [request.cuts(3), request.cuts(4), request.cuts(11)] == [[], [4], [4, 8]]
    assert request.cuts(12) == [4, 8, 12] == request.cuts(12), "asking changes nothing"
    rig.compute(live, 5)
    assert [request.cuts(2), request.cuts(3), request.cuts(7)] == [[], [8], [8, 12]]
    rig.compute(live, 13)
    rig.append(live, [90, 91, 92, 93])
    assert request.cuts(0) == [] and request.cuts(4) == [14, 16]
    rig.compute(live, 17)
    rig.end(live)
    rig.settle()
    assert checkpoints(rig, request.tokens().tolist()) == [4, 8, 16]
    rig.finish_all()


def test_length_that_has_its_snapshot_is_asked_for_no_more() -> None:
    """It was named until it was told computed: an engine that asks before each part of a step, or
    after drafts whose states were kept, took a snapshot twice, which is refused.
    """
    rig = build(groups=[full(), state()], page_tokens=4, device=16)
    live = rig.until_ready(rig.admit(list(range(13))))
    assert live.request.cuts(13) == [12]
    live.request.snapshot(12)
    assert live.request.cuts(13) == []
    with pytest.raises(ValueError, match="has a snapshot already"):
        live.request.snapshot(12)
    rig.end(live, abort=True)
    rig.finish_all()


def test_two_snapshots_roll_while_decoding_and_the_end_keeps_the_last() -> None:
    """A state cannot be rolled back, and the end of the turn is not known: every place of the grid
    behind the prompt is a candidate, in two slots that were charged at admission.
    """
    rig = rig_of(grid=3)
    live = rig.until_ready(rig.admit([1, 2, 3, 4], new_tokens=40))
    assert used(rig) == 3, "the running one and the two that roll"
    rig.compute(live, 4)
    for length in range(5, 45):
        rig.append(live, [length])
        rig.compute(live, length)
        assert used(rig) == 3
        assert checkpoints(rig, live.request.tokens().tolist()) == [], "none is shared yet"
    rig.end(live)
    rig.settle()
    said = live.request.tokens().tolist()
    assert checkpoints(rig, said) == [42] and used(rig) == 1
    assert rig.cache.explain([*said, 9]).hit_tokens == 42
    rig.finish_all()


def test_end_that_may_not_be_kept_keeps_the_snapshot_before_it() -> None:
    """C109 beside states: where the newest snapshot lies beyond what may be kept, the other one."""
    rig = rig_of(grid=2)
    live = rig.until_ready(rig.admit([1, 2, 3], new_tokens=9))
    rig.compute(live, 3)
    for length in range(4, 12):
        rig.append(live, [length])
        rig.compute(live, length)
    rig.end(live, cacheable_upto=9)
    rig.settle()
    assert checkpoints(rig, live.request.tokens().tolist()[:9]) == [8]
    assert rig.cache.explain(live.request.tokens().tolist()).hit_tokens == 8
    rig.finish_all()


def test_end_on_the_grid_keeps_what_the_same_prompt_can_hit_too() -> None:
    """C41: sent again, a prompt leaves one token to compute, and cannot hit at its own end."""
    rig = rig_of(grid=2)
    serve(rig, list(range(8)))
    assert checkpoints(rig, list(range(8))) == [6, 8]
    assert rig.cache.explain(list(range(8))).hit_tokens == 6
    assert rig.cache.explain([*range(8), 9]).hit_tokens == 8
    rig.finish_all()


@pytest.mark.parametrize("grid", [1, 2, 3, 5])
@pytest.mark.parametrize("page", [1, 2, 4])
def test_each_turn_hits_where_the_turn_before_it_ended(page: int, grid: int) -> None:
    """C110, omlx#2876: only the snapshot of the previous prompt was served, because places that the
    answer passed were not kept. Every turn hits the last place of the grid in all that was said.
    """
    rig = build(
        page_tokens=page, groups=(full(), window(page + 1), state(grid)), device=(128, 64, 16)
    )
    unit, said = rig.cache.align_tokens, [7]
    assert unit == math.lcm(page, grid)
    for turn in range(8):
        live = rig.until_ready(rig.admit([*said, turn, turn, turn], new_tokens=5))
        assert live.request.hit_tokens == (len(said) // unit * unit if turn else 0)
        rig.compute(live, len(live.request))
        for token in range(1 + turn % 5):
            rig.append(live, [token])
            rig.compute(live, len(live.request))
        said = live.request.tokens().tolist()
        rig.end(live)
        rig.settle()
    rig.finish_all()


def test_page_that_was_widened_moves_every_stop_to_the_common_grid() -> None:
    """C49, sglang#34780: pages of 8, grid of 3: snapshots at multiples of 24 and nowhere else."""
    rig = rig_of(page=8, grid=3)
    live = rig.until_ready(rig.admit(list(range(60)), boundaries=[30], new_tokens=40))
    assert live.request.cuts(60) == [24, 48]
    for position in (8, 16, 32, 40):
        with pytest.raises(ValueError, match="multiple of 24"):
            live.request.snapshot(position)
    rig.compute(live, 60)
    rig.append(live, [1] * 40)
    assert live.request.cuts(40) == [72, 96]
    rig.compute(live, 100)
    rig.end(live)
    rig.settle()
    assert checkpoints(rig, live.request.tokens().tolist()) == [24, 96]
    rig.finish_all()


def test_spacing_thins_the_grid_and_leaves_branches_and_boundaries() -> None:
    rig = rig_of(grid=2, checkpoints=Checkpoints(spacing_tokens=5))
    live = rig.until_ready(rig.admit(list(range(13)), boundaries=[2, 4], new_tokens=20))
    assert live.request.cuts(13) == [2, 4, 12]
    rig.compute(live, 13)
    stops = []
    for length in range(14, 32):
        rig.append(live, [length])
        stops += live.request.cuts(1)
        rig.compute(live, length)
    assert stops == [18, 24, 30]
    rig.end(live)
    rig.settle()
    assert checkpoints(rig, live.request.tokens().tolist()) == [2, 4, 30]
    other = serve(rig, [*range(7), 99])
    assert other.request.branch_tokens == 6, "a branch is kept however near the next one lies"
    assert 6 in checkpoints(rig, [*range(7), 99])
    rig.finish_all()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_path_keeps_no_more_checkpoints_than_asked_for(most: int) -> None:
    """On every tier; the newest is always among them."""
    rig = rig_of(grid=2, checkpoints=Checkpoints(per_path=most), below=(64,))
    said: list[int] = []
    for turn in range(6):
        said += [turn, turn]
        serve(rig, [*said, 9])
        kept = checkpoints(rig, said)
        assert len(kept) == min(most, turn + 1) and kept[-1] == len(said)
        assert [usage.used_blocks[STATE] for usage in rig.cache.usage().values()] == [len(kept)] * 2
    other = serve(rig, [8, 8, 8])
    assert checkpoints(rig, other.request.tokens().tolist()) == [2], "another path counts alone"
    rig.finish_all()


def test_engine_that_inserts_says_where_its_checkpoints_stand() -> None:
    """Boundaries are the only places: no other new page gets a slot of the state."""
    cache = PrefixCache((full(), window(3), state(2)), [IndexTier(64)], page_tokens=1)
    with cache.lease(cache.match([99])[1]) as lease:
        done = cache.insert(list(range(10)), lease, boundaries=[4, 8])
        assert (done.slots[2] >= 0).nonzero()[0].tolist() == [3, 7]
    assert cache.explain([*range(10), 1]).hit_tokens == 8
    assert cache.explain([*range(6), 1]).hit_tokens == 4
    assert cache.explain([*range(6), 1]).branch_tokens == 6
    with cache.lease(cache.match([99])[1]) as lease:  # later, on the path that is there
        done = cache.insert(list(range(6)), lease, boundaries=[6])
        assert (done.existing_pages, done.created_pages) == (6, 0)
    assert cache.explain([*range(6), 1]).hit_tokens == 6
    assert cache.explain([*range(10), 1]).hit_tokens == 8
    assert cache.usage()["device"].used_blocks == (10, 8, 3)
    cache.check()
    cache.close()


def test_request_without_room_for_a_snapshot_goes_on_without() -> None:
    """A boundary is worth a slot that is free or may go, and never a request."""
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 6))
    other = rig.until_ready(rig.admit([8, 8, 8]))
    live = rig.until_ready(rig.admit(list(range(9)), boundaries=[4]))
    assert used(rig) == 6
    assert live.request.cuts(9) == [4, 8]
    assert live.request.snapshot(4) == {}
    assert live.request.cuts(9) == [8]
    rig.compute(live, 9)
    assert rig.cache.metrics.get("checkpoint", "declined") == 1
    rig.end(live)
    rig.poll()
    assert checkpoints(rig, list(range(9))) == [8]
    rig.end(other, abort=True)
    rig.finish_all()
