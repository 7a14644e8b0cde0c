"""What waits to go down (write-back), and what was fetched ahead, is of the epoch in which it was
made: after a reset neither brings anything of before back (I31).
"""

from __future__ import annotations

import pytest

from radix.errors import CapacityError
from tests.cacherig import Live, Rig, build
from tests.resetting import reset, served_again

PROMPT = list(range(12))


def _admitted(rig: Rig, tokens: list[int]) -> Live:
    for _ in range(50):
        try:
            return rig.until_ready(rig.admit(tokens))
        except CapacityError:  # what is dirty goes down first
            rig.poll()
            rig.ticks[0].pace = 1.0
    raise AssertionError("never admitted")


@pytest.mark.parametrize("pace", [0.0, 1.0])
def test_dirty_blocks_of_before_never_go_down(pace: float) -> None:
    rig = build(below=(32,), device=8, write="write_back")
    rig.serve(PROMPT)
    rig.ticks[0].pace = pace
    reset(rig)
    for tokens in ([5] * 12, [6] * 12, [7] * 12):  # what is dirty now has to go for the next
        live = _admitted(rig, tokens)
        rig.ticks[0].pace = 1.0
        rig.compute(live, 12)
        rig.end(live)
        rig.poll()
        rig.cache.check()
    rig.settle()
    assert served_again(rig, PROMPT) == 0
    for event in rig.cache.flush():
        rig._hear(event)
    rig.poll()
    assert served_again(rig, PROMPT) == 0 and served_again(rig, [7] * 12) == 8
    rig.finish_all()


def test_copies_on_their_way_down_arrive_in_no_newer_epoch() -> None:
    rig = build(below=(32,), device=4, write="write_back")
    rig.serve(PROMPT)
    rig.ticks[0].pace = 0.0
    rig.evict(0, 8, 0)
    reset(rig)
    rig.cache.check()
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert served_again(rig, PROMPT) == 0
    rig.finish_all()


@pytest.mark.parametrize("arrived", [False, True])
def test_what_was_fetched_ahead_is_forgotten(arrived: bool) -> None:
    rig = build(below=(32, 32), device=8)
    rig.serve(PROMPT)
    rig.empty(0)
    rig.empty(1)
    rig.ticks[0].pace = rig.ticks[1].pace = 1.0 if arrived else 0.0
    ahead = rig.cache.prefetch(PROMPT)
    for _ in range(3):
        rig.poll()
    assert ahead.settled == arrived
    reset(rig)
    rig.cache.check()
    assert ahead.settled
    rig.ticks[0].pace = rig.ticks[1].pace = 1.0
    rig.settle()
    for _ in range(3):
        rig.poll()
    rig.cache.check()
    assert served_again(rig, PROMPT) == 0 and not rig.cache.transfers.jobs
    ahead.release()
    rig.finish_all()
