"""However a stage of drafts ends, by a path, a rollback, or the end of its request, every slot that
it took is the request's or free again, behind the fence it was told, and counted once.
"""

from __future__ import annotations

import pytest

from radix import CapacityError, NeverFitsError, RequestError
from radix.cache import PrefixCache
from radix.drafts import ROOT
from radix.events import RequestState
from radix.ownership import Ownership
from radix.stages import Stage
from tests.draftrig import Drafting, Run, attention, books, build, private
from tiers.device import DeviceTier
from tiers.index import IndexTier

PROMPT = [1, 2, 3, 4, 5, 6]


def staged(rig: Drafting, run: Run) -> tuple[Stage, list[int], list[int]]:
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12, 13, 14])
    return stage, first, rig.add(run, stage, first[1], [20, 21, 22])


@pytest.mark.parametrize("page", [1, 2, 4])
def test_rollback_gives_back_all_that_was_staged(page: int) -> None:
    rig = build([attention("kv", page), attention("wide", page, pages=2)], page)
    run = rig.start(PROMPT, 9)
    before = books(rig, run)
    stage, _, _ = staged(rig, run)
    assert private(rig) != before[-2]
    stage.rollback()
    assert books(rig, run)[:-1] == before[:-1]
    assert not stage.open
    rig.cache.check()


@pytest.mark.parametrize("page", [1, 2, 4])
def test_accepted_path_leaves_only_what_its_tokens_fill(page: int) -> None:
    rig = build([attention("kv", page)], page)
    run = rig.start(PROMPT, 9)
    stage, first, second = staged(rig, run)
    rig.verify(run, stage)
    rig.accept(run, stage, [*first[:2], *second], None)
    shared = 12 // page
    assert private(rig)[0] == -(-12 // page) - shared
    assert rig.cache.usage()["device"].used_blocks == (-(-12 // page),)
    rig.cache.check()


def test_what_was_not_accepted_rests_until_its_fence() -> None:
    rig = build([attention("kv", 1)], 1, blocks=16)
    run = rig.start(PROMPT, 9)
    stage, first, _ = staged(rig, run)
    rig.verify(run, stage)
    rig.accept(run, stage, first[:1], None, fence=5)
    assert rig.cache.usage()["device"].used_blocks == (8 + 7,)
    rig.cache.check()
    rig.cache.passed(5)
    rig.cache.poll()
    assert rig.cache.usage()["device"].used_blocks == (8,)
    rig.cache.check()


def test_page_that_a_path_replaces_rests_until_its_fence() -> None:
    rig = build([attention("kv", 4)], 4)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    rig.add(run, stage, ROOT, [10])
    other = rig.add(run, stage, ROOT, [20])
    rig.verify(run, stage)
    tail = run.request.slots()[-1]
    rig.accept(run, stage, other, None, fence=5)
    assert run.request.slots()[1] != tail
    assert rig.cache.usage()["device"].used_blocks == (3,), "kernels may still read the old page"
    rig.cache.passed(5)
    rig.cache.poll()
    assert rig.cache.usage()["device"].used_blocks == (2,)
    rig.cache.check()


def test_rollback_rests_until_its_fence() -> None:
    rig = build([attention("kv", 1)], 1)
    run = rig.start(PROMPT, 9)
    stage, _, _ = staged(rig, run)
    stage.rollback(fence=5)
    assert rig.cache.usage()["device"].used_blocks == (7 + 8,)
    rig.cache.check()
    rig.cache.passed(5)
    rig.cache.poll()
    assert rig.cache.usage()["device"].used_blocks == (7,)


@pytest.mark.parametrize("how", ["finish", "abort"])
def test_end_of_the_request_rolls_back_its_open_stage(how: str) -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    stage, first, _ = staged(rig, run)
    getattr(run.request, how)(fence=5)
    assert not stage.open
    rig.cache.check()
    with pytest.raises(RequestError, match="accept: the stage of request 1 is closed"):
        stage.accept(first)
    rig.cache.passed(5)
    rig.settle()
    assert run.request.state is RequestState.RELEASED
    assert private(rig) == [0]
    assert rig.cache.explain([*PROMPT, 9, 10, 11]).hit_tokens == 6


def test_stage_that_is_closed_refuses_everything_that_needs_it() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    for end in ("accept", "rollback"):
        stage, first, _ = staged(rig, run)
        rig.verify(run, stage)
        if end == "accept":
            rig.accept(run, stage, first[:1], None)
        else:
            stage.rollback()
        before = books(rig, run)
        for call in (
            lambda stage=stage: stage.accept([]),
            lambda stage=stage: stage.rollback(),
            lambda stage=stage: stage.add(ROOT, [1]),
            lambda stage=stage: stage.slots(),
            lambda stage=stage: stage.states(),
            lambda stage=stage: stage.writes(),
            lambda stage=stage: stage.copies(),
        ):
            with pytest.raises(RequestError, match="the stage of request 1 is closed"):
                call()
        assert books(rig, run) == before
        assert stage.tokens.tolist()[:5] == [10, 11, 12, 13, 14], "what it was can still be seen"


def test_leaving_the_block_rolls_back_what_is_open() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    before = books(rig, run)
    with pytest.raises(KeyError), run.request.stage() as stage:
        rig.add(run, stage, ROOT, [1, 2, 3])
        raise KeyError
    assert books(rig, run)[:-1] == before[:-1]
    with run.request.stage() as stage:
        drafts = rig.add(run, stage, ROOT, [1, 2, 3])
        rig.verify(run, stage)
        rig.accept(run, stage, drafts, None)
    assert len(run.request) == 10
    with run.request.stage() as stage:
        rig.add(run, stage, ROOT, [1, 2, 3])
        rig.cache.close()


def test_drafts_take_slots_in_all_groups_or_none() -> None:
    rig = build([attention("kv", 2), attention("latent", 2)], 2, blocks=(16, 5))
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12])
    before = books(rig, run)
    with pytest.raises(CapacityError, match="latent"):
        stage.add(first[0], [20, 21, 22, 23])
    assert books(rig, run) == before
    assert len(stage) == 3
    rig.cache.check()
    rig.verify(run, stage)
    rig.accept(run, stage, first, None)


def test_bonus_without_a_page_is_refused_and_the_path_goes_in_without_it() -> None:
    rig = build([attention("kv", 2)], 2, blocks=6)
    rig.admit([50])  # holds the last block
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12])
    rig.verify(run, stage)
    before = books(rig, run)
    with pytest.raises(CapacityError):
        stage.accept(first, 30)
    assert books(rig, run) == before
    assert stage.open
    rig.cache.check()
    rig.accept(run, stage, first, None)
    rig.cache.check()


def test_bonus_beyond_every_pool_is_refused_for_good() -> None:
    rig = build([attention("kv", 2)], 2, blocks=5)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12])
    rig.verify(run, stage)
    before = books(rig, run)
    with pytest.raises(NeverFitsError):
        stage.accept(first, 30)
    assert books(rig, run) == before
    rig.accept(run, stage, first, None)
    rig.cache.check()


def test_drafted_and_accepted_tokens_are_counted_apart() -> None:
    rig = build([attention("kv", 1)], 1)
    run = rig.start(PROMPT, 9)
    for path in ([0, 1], [], [0]):
        stage, _, _ = staged(rig, run)
        rig.verify(run, stage)
        rig.accept(run, stage, path, 7)
    stage, _, _ = staged(rig, run)
    stage.rollback()
    counters = rig.cache.counters()
    assert counters["draft.drafted"] == 4 * 8
    assert counters["draft.accepted"] == 3
    assert counters["draft.rounds"] == 3, "of each round what was accepted: the acceptance length"


def test_request_with_an_open_stage_takes_no_other_tokens_and_no_second_stage() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    stage, _, _ = staged(rig, run)
    before = books(rig, run)
    with pytest.raises(RequestError, match="append: request 1 has an open stage"):
        run.request.append([1])
    with pytest.raises(RequestError, match="stage: request 1 has an open stage"):
        run.request.stage()
    assert books(rig, run) == before
    stage.rollback()
    run.request.append([1])


def test_request_that_does_not_run_has_no_stage() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    run.request.finish()
    with pytest.raises(RequestError, match="stage: request 1 is"):
        run.request.stage()


def test_drafts_of_borrowed_slots_are_refused_by_name() -> None:
    cache = PrefixCache(
        [attention("kv", 2)],
        [DeviceTier(blocks=8, device="cpu"), IndexTier(8, "host")],
        page_tokens=2,
        ownership=Ownership.BORROWED,
        write="none",
    )
    request = cache.admit([1, 2, 3], slots=[[0, 1]])
    assert request.ready
    with pytest.raises(RequestError, match="so drafts are the engine's too"):
        request.stage()


def test_shared_slots_of_drafts_are_the_engine_s_again() -> None:
    device = DeviceTier(blocks=16, device="cpu")
    cache = PrefixCache([attention("kv", 2)], [device], page_tokens=2, ownership=Ownership.SHARED)
    rig = Drafting(cache, device)
    cache.offer(0, [5, 6, 7, 8, 9, 10, 11, 12])
    run = rig.start(PROMPT, 9, slots=[[0, 1, 2]])
    stage, first, second = staged(rig, run)
    rig.verify(run, stage)
    rig.accept(run, stage, [*first[:2], *second], None)
    held = run.request.slots().tolist()
    spare = cache.spare(0).tolist()
    assert sorted(held + spare) == [0, 1, 2, *range(5, 13)], "each slot has one owner"
    cache.check()
