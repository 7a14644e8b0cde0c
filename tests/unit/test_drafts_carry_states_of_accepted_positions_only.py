"""A group whose state is updated in place has a slot a draft: the accepted one becomes the running
state without a copy, one that lies where a checkpoint belongs becomes that, and no state of a draft
that was not accepted is ever kept.
"""

from __future__ import annotations

import pytest

from radix import PrefixCache, RequestError
from radix.drafts import ROOT
from radix.tier import Slots
from tests.draftrig import Drafting, Run, attention, books, build, digest, private, recurrent
from tests.ticktier import peek
from tiers.device import DeviceTier

PROMPT = [1, 2, 3, 4, 5]


class Counting(DeviceTier):
    """A device that counts the blocks of each group that it copies inside itself."""

    def __init__(self, **more: int) -> None:
        super().__init__(device="cpu", **more)
        self.cloned = [0, 0]

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Counts, and copies."""
        self.cloned[group] += len(sources)
        super().clone(group, sources, targets)


def counting(grid: int) -> tuple[Drafting, Counting]:
    device = Counting(blocks=32)
    groups = [attention("kv", 1), recurrent("state", grid)]
    return Drafting(PrefixCache(groups, [device], page_tokens=1), device), device


def state_of(rig: Drafting, run: Run) -> bytes:
    return peek(rig.device, 1, run.request.running(1)).tobytes()


def test_state_behind_the_last_accepted_draft_is_the_running_one_without_a_copy() -> None:
    rig, device = counting(grid=100)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12])
    second = rig.add(run, stage, first[0], [20, 21])
    slots = stage.states(1)
    assert len(set(slots.tolist()) | {run.request.running(1)}) == 6
    rig.verify(run, stage)
    before = list(device.cloned)
    rig.accept(run, stage, [first[0], *second], 30)
    assert device.cloned == before
    assert run.request.running(1) == slots[second[-1]]
    assert state_of(rig, run) == digest("state", [*PROMPT, 9, 10, 20, 21])
    assert private(rig)[1] == 3, "the running one and the two that roll"
    rig.cache.check()


def test_state_stays_where_no_draft_is_accepted() -> None:
    rig, _ = counting(grid=100)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    rig.add(run, stage, ROOT, [10, 11])
    rig.verify(run, stage)
    running = run.request.running(1)
    rig.accept(run, stage, [], 30)
    assert run.request.running(1) == running
    assert state_of(rig, run) == digest("state", [*PROMPT, 9])
    assert private(rig)[1] == 3
    rig.cache.check()


def test_drafts_without_states_leave_the_running_one_to_the_engine() -> None:
    rig, _ = counting(grid=100)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    drafts = stage.add(ROOT, [10, 11])
    assert stage.states(1).tolist() == [-1, -1]
    running = run.request.running(1)
    stage.accept(drafts)
    assert run.request.running(1) == running
    assert private(rig)[1] == 3
    rig.cache.check()


def test_state_of_an_accepted_draft_on_the_grid_becomes_the_checkpoint() -> None:
    rig, device = counting(grid=8)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12, 13])
    rig.add(run, stage, first[0], [20, 21])
    rig.verify(run, stage)
    before = device.cloned[1]
    rig.accept(run, stage, first, 30)
    assert device.cloned[1] == before, "its slot is the checkpoint's: nothing is copied"
    rig.cache.check()
    run.request.finish()
    rig.settle()
    again = rig.admit([*PROMPT, 9, 10, 11, 12, 13, 30])
    assert again.told == 8, "the state at 8 tokens was looked at"
    other = rig.admit([*PROMPT, 9, 10, 20, 21])
    assert other.told == 0, "nobody accepted that branch"
    rig.cache.check()


def test_checkpoint_at_the_end_of_the_path_is_a_copy_of_the_running_state() -> None:
    rig, device = counting(grid=8)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11])
    rig.verify(run, stage)
    before = device.cloned[1]
    rig.accept(run, stage, first, 30)
    assert device.cloned[1] == before + 1
    run.request.finish()
    rig.settle()
    assert rig.admit([*PROMPT, 9, 10, 11, 30]).told == 8
    rig.cache.check()


@pytest.mark.parametrize("grid", [1, 2, 3])
def test_path_over_several_places_of_the_grid_keeps_the_last(grid: int) -> None:
    rig, _ = counting(grid)
    run = rig.start(PROMPT, 9)
    for turn in range(3):
        stage = run.request.stage()
        first = rig.add(run, stage, ROOT, [10 + turn] * 7)
        rig.verify(run, stage)
        rig.accept(run, stage, first, 30)
        rig.cache.check()
        assert private(rig)[1] == 3, "two that roll, whatever was crossed"
    run.request.finish()
    rig.settle()
    text = run.request.tokens().tolist()
    assert rig.admit([*text, 1]).told == (len(text) - 1) // grid * grid
    rig.cache.check()


def test_state_of_the_request_s_own_token_is_set_aside_as_always() -> None:
    rig, _ = counting(grid=6)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10])
    assert run.request.cuts(1) == [6]
    rig.verify(run, stage)  # the snapshot at 6 is taken here, the stage being open
    rig.accept(run, stage, first, 30)
    run.request.finish()
    rig.settle()
    assert rig.admit([*PROMPT, 9, 10, 30]).told == 6
    rig.cache.check()


def test_states_are_taken_with_the_drafts_or_neither() -> None:
    rig = build([attention("kv", 1), recurrent("state", 4)], 1, blocks=(32, 5))
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    rig.add(run, stage, ROOT, [10, 11])
    before = books(rig, run)
    with pytest.raises(Exception, match="state"):
        stage.add(ROOT, [20], states=True)
    assert books(rig, run) == before
    assert len(stage) == 2
    stage.add(ROOT, [20])
    stage.rollback()
    assert private(rig)[1] == 3
    rig.cache.check()


def test_groups_are_asked_for_what_they_have() -> None:
    rig, _ = counting(grid=8)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    for ask, group in ((stage.states, 0), (stage.slots, 1), (stage.writes, 1), (stage.copies, 1)):
        with pytest.raises(ValueError, match=f"group is {group}, which keeps a block a"):
            ask(group)
    stage.rollback()
    with pytest.raises(RequestError):
        stage.states(1)
