"""Drafts of a window are room beside it and slide nothing before they are accepted; an entry that
depends on the token behind it is matched only where that token is known.
"""

from __future__ import annotations

import pytest

from radix.drafts import ROOT
from tests.draftrig import attention, build, path_to, private, window

PROMPT = [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("page", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 5, 12])
def test_window_slides_by_what_was_accepted_alone(page: int, tokens: int) -> None:
    rig = build([attention("full", page), window("near", page, tokens)], page)
    run = rig.start(PROMPT, 9)
    for turn in range(4):
        table = run.request.slots(1)
        stage = run.request.stage()
        first = rig.add(run, stage, ROOT, [10, 11, 12, 13, 14])
        second = rig.add(run, stage, first[1], [20, 21])
        assert (run.request.slots(1) == table).all(), "drafts push nothing out of the window"
        rig.verify(run, stage)
        path = path_to(stage, (first if turn % 2 else second)[-1])
        rig.accept(run, stage, path, 30)
        rig.cache.check()
    held = int((run.request.slots(1) >= 0).sum())
    span = tokens - 1 + 1  # and the token that is not computed yet
    assert held <= -(-span // page) + 2, "what fell behind gave its slots back"
    run.request.finish()
    rig.settle()


def test_window_with_room_for_drafts_keeps_that_much_more() -> None:
    sizes = []
    for extra in (0, 8):
        rig = build([attention("full", 1), window("near", 1, 3, extra)], 1)
        run = rig.start([*PROMPT, *PROMPT], 9)
        sizes.append(int((run.request.slots(1) >= 0).sum()))
        stage = run.request.stage()
        first = rig.add(run, stage, ROOT, [10, 11])
        rig.verify(run, stage)
        rig.accept(run, stage, first, None)
        rig.cache.check()
    assert sizes[1] == sizes[0] + 8


def test_pages_that_a_request_reuses_serve_its_drafts_and_come_back() -> None:
    rig = build([attention("full", 2), window("near", 2, 5)], 2)
    run = rig.admit(PROMPT, chunk_tokens=4, new_tokens=12)
    for end in (4, 7):
        run.request.prepare(4)
        rig.compute(run, end)
    run.request.append([9])
    held = private(rig)[1]
    for _ in range(3):
        run.request.prepare(1)
        stage = run.request.stage()
        rig.add(run, stage, ROOT, [10, 11, 12])
        other = rig.add(run, stage, ROOT, [20, 21])
        rig.verify(run, stage)
        rig.accept(run, stage, other, 30)
        rig.cache.check()
    assert private(rig)[1] <= held + 1
    run.request.finish()
    rig.settle()
    assert private(rig)[1] == 0


def test_stage_asks_for_the_page_of_the_last_token_first() -> None:
    rig = build([attention("full", 2), window("near", 2, 3)], 2)
    run = rig.admit([1, 2, 3, 4], chunk_tokens=2, new_tokens=8)
    for end in (2, 4):
        run.request.prepare(2)
        rig.compute(run, end)
    run.request.append([9])
    with pytest.raises(Exception, match="has no slot of 'near' for its last token"):
        run.request.stage()
    run.request.prepare(1)
    run.request.stage().rollback()


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("ahead", [1, 2])
def test_entry_that_depends_on_the_next_token_is_matched_once_that_is_known(
    page: int, ahead: int
) -> None:
    """The drafter of one branch writes what is wrong for another: whoever asks later gets what was
    written for the tokens that were accepted, and no entry whose next token is open.
    """
    rig = build([attention("full", page), attention("ahead", page, lookahead=ahead)], page)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12], eager=True)
    second = rig.add(run, stage, first[0], [20, 21, 22], eager=True)
    rig.verify(run, stage)
    rig.accept(run, stage, path_to(stage, second[-1]), 30)
    run.request.finish()
    rig.settle()
    text = [*PROMPT, 9, 10, 20, 21, 22]
    again = rig.admit([*text, 30, 1, 2, 3])  # looks at every entry of the hit
    assert 0 < again.told <= len(text) - ahead
    assert again.told >= len(text) - ahead - (-(-ahead // page) * page)
    other = rig.admit([*PROMPT, 9, 10, 11, 12, 1, 2, 3])
    assert other.told <= len(PROMPT) + 2 - ahead
    rig.cache.check()
