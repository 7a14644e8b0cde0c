"""Until a path is accepted no draft is a token of its request: nothing matches it, shares it or
stores it; then its slots take the place of the request's own, and nothing is copied.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.drafts import ROOT
from radix.events import BlocksStored
from radix.stages import Stage
from radix.tier import Slots
from tests.draftrig import Drafting, Run, attention, build, path_to, private
from tests.ticktier import TickTier, peek
from tiers.device import DeviceTier

PROMPT = [1, 2, 3, 4, 5, 6]


def tree(rig: Drafting, run: Run) -> tuple[Stage, list[int], list[int]]:
    """Two branches that part inside a block, of drafts that nobody verified."""
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12, 13, 14])
    second = rig.add(run, stage, first[0], [20, 21, 22])
    return stage, first, second


@pytest.mark.parametrize("page", [1, 2, 4])
def test_drafts_match_nothing_and_go_nowhere(page: int) -> None:
    rig = build([attention("kv", page)], page, below=64)
    run = rig.start(PROMPT, 9)
    rig.cache.flush()
    before = rig.cache.counters()
    stage, first, second = tree(rig, run)
    rig.verify(run, stage)
    verified = [*PROMPT, 9]
    for path in (path_to(stage, first[-1]), path_to(stage, second[-1])):
        text = [*verified, *stage.tokens[path].tolist(), 0]
        found = rig.cache.explain(text)
        assert found.structural_tokens <= len(PROMPT)
        assert found.hit_tokens <= len(PROMPT)
    assert rig.cache.poll() == []
    assert not rig.cache.transfers.jobs
    after = {key: count for key, count in rig.cache.counters().items() if "draft" not in key}
    assert after == {key: count for key, count in before.items() if "draft" not in key}
    assert run.request.tokens().tolist() == verified
    assert len(run.request) == len(verified)
    rig.cache.check()
    stage.rollback()


def test_drafts_that_were_rejected_match_nothing_afterwards() -> None:
    rig = build([attention("kv", 1)], 1)
    run = rig.start(PROMPT, 9)
    stage, first, second = tree(rig, run)
    rig.verify(run, stage)
    rig.accept(run, stage, [first[0], *second], 30)
    run.request.finish()
    rig.settle()
    kept = [*PROMPT, 9, 10, 20, 21, 22]
    assert rig.cache.explain([*kept, 30, 1]).hit_tokens == len(kept), "the bonus is not computed"
    assert rig.cache.explain([*PROMPT, 9, 10, 11, 12]).hit_tokens == len(PROMPT) + 2


class Counting(DeviceTier):
    """A device that counts the blocks that it copies inside itself."""

    cloned = 0

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Counts, and copies."""
        self.cloned += len(sources)
        super().clone(group, sources, targets)


@pytest.mark.parametrize("page", [1, 2, 4])
def test_accepting_a_path_copies_nothing_and_reads_as_the_whole_prefix(page: int) -> None:
    groups = [attention("kv", page), attention("latent", page)]
    device = Counting(blocks=32, device="cpu")
    rig = Drafting(PrefixCache(groups, [device], page_tokens=page), device)
    run = rig.start(PROMPT, 9)
    for turn in range(3):
        stage, first, second = tree(rig, run)
        rig.verify(run, stage)
        staged = sum(len(stage.copies(group)[0]) for group in range(2))
        assert device.cloned == staged
        assert page > 1 or staged == 0, "blocks of one token are never copied"
        path = path_to(stage, (first if turn == 1 else second)[-1])
        rig.accept(run, stage, path, 30 + turn)
        assert device.cloned == staged, "accepting copied"
        device.cloned = 0
    assert len(run.request) == 7 + (4 + 1) + (5 + 1) + (4 + 1)
    rig.cache.check()


def test_first_branch_uses_what_the_admission_reserved() -> None:
    rig = build([attention("kv", 4)], 4)
    run = rig.start(PROMPT, 9, new_tokens=10)
    held = private(rig)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10] * 9)
    assert private(rig) == held, "sixteen tokens were reserved, sixteen are used"
    rig.verify(run, stage)
    rig.accept(run, stage, first, None)
    assert private(rig)[0] < held[0], "full pages are shared now"
    rig.cache.check()


def test_reserved_pages_that_a_path_replaces_are_still_reserved() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start([1, 2, 3], 9, new_tokens=9)
    stage = run.request.stage()
    rig.add(run, stage, ROOT, [10, 11, 12, 13])
    other = rig.add(run, stage, ROOT, [20])
    rig.verify(run, stage)
    rig.accept(run, stage, other, None)
    pages = len(run.request.slots())
    run.request.append([1] * 7)  # up to the twelve tokens of the admission
    assert len(run.request.slots()) == pages
    assert (run.request.slots() >= 0).all()
    rig.cache.check()


def test_drafts_follow_one_another_over_several_calls() -> None:
    """As a draft model makes them, a level at a time, each reading what the one before wrote."""
    rig = build([attention("kv", 4)], 4)
    run = rig.start(PROMPT, 9)
    rig.compute(run, 7)
    stage = run.request.stage()
    level = [ROOT]
    for depth in range(3):
        level = [
            draft
            for parent in level
            for token in (0, 1)
            for draft in rig.add(run, stage, parent, [10 * depth + token], eager=True)
        ]
    sources, targets = stage.copies()
    assert len(targets) == 1 + 0 + 4, "of two children inside a page one goes on, one is a copy"
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        size = 8 if number else 24  # one draft, or three tokens of the request
        found, wanted = (peek(rig.device, 0, slot)[:size] for slot in (target, source))
        assert wanted.any()
        assert np.array_equal(found, wanted), "a draft model reads it before it is verified"
    rig.verify(run, stage)
    rig.accept(run, stage, path_to(stage, level[5]), 3)
    rig.cache.check()


def test_values_beside_drafts_are_shared_and_outlive_the_stage() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    stage.annotate(ROOT, "grammar", 40)
    drafts = stage.add(ROOT, [1, 2], {"grammar": [41, 42], "score": np.array([0.5, 0.25])})
    stage.annotate(drafts[1], "tool", "search")
    assert [stage.annotation(draft, "grammar") for draft in (ROOT, *drafts)] == [40, 41, 42]
    stage.accept(drafts[:1])
    assert stage.annotation(drafts[0], "grammar") == 41, "where the next round begins"
    assert stage.annotation(drafts[1], "tool") == "search"
    assert stage.annotation(drafts[1], "score") == 0.25


def test_arrays_of_the_tree_name_positions_links_and_what_sees_what() -> None:
    rig = build([attention("kv", 2)], 2)
    run = rig.start(PROMPT, 9)
    stage, first, second = tree(rig, run)
    assert len(stage) == 8
    assert stage.parents.tolist() == [ROOT, 0, 1, 2, 3, 0, 5, 6]
    assert stage.tokens.tolist() == [10, 11, 12, 13, 14, 20, 21, 22]
    assert stage.positions.tolist() == [7, 8, 9, 10, 11, 8, 9, 10]
    mask = stage.mask()
    assert np.flatnonzero(mask[second[-1]]).tolist() == [0, 5, 6, 7]
    assert np.flatnonzero(mask[first[-1]]).tolist() == [0, 1, 2, 3, 4]
    stage.rollback()


def test_accepted_pages_are_stored_below_like_any_other() -> None:
    rig = build([attention("kv", 2)], 2, below=64)
    run = rig.start(PROMPT, 9)
    stage, first, second = tree(rig, run)
    rig.verify(run, stage)
    rig.accept(run, stage, [first[0], *second], 30)
    run.request.finish()
    rig.cache.flush()
    rig.settle()
    lower = rig.cache.tiers[1]
    assert isinstance(lower, TickTier)
    assert lower.usage().used_blocks == (5,), "eleven verified tokens are five full pages"
    rig.cache.evict(0, 32)
    again = rig.admit([*PROMPT, 9, 10, 20, 21, 22, 30])
    assert again.told == 10, "loaded, and every byte looked at"
    again.request.finish()
    rig.settle()


def test_stream_of_events_names_verified_pages_alone() -> None:
    device = DeviceTier(blocks=32, device="cpu")
    cache = PrefixCache([attention("kv", 1)], [device], page_tokens=1, events=True)
    rig = Drafting(cache, device)
    run = rig.start(PROMPT, 9)
    cache.poll()
    stage, first, _ = tree(rig, run)
    rig.verify(run, stage)
    assert not any(isinstance(event, BlocksStored) for event in cache.poll())
    rig.accept(run, stage, first[:2], 30)
    stored = [event for event in cache.poll() if isinstance(event, BlocksStored)]
    assert sum(len(event.keys) for event in stored) == 3, "the sampled token and two drafts"
