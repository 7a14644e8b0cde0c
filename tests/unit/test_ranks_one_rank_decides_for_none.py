"""What happens on one rank alone changes what all of them do, or nothing: a load that fails there
shortens the hit everywhere, a pool that is smaller there is so small everywhere, a store that is
declined there leaves no block anywhere (I22, I33; sglang#28429, #33442, vllm-ascend#5030).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from radix.errors import CapacityError, InvariantError
from radix.groups import Group
from radix.tier import TierMode
from tests.cacherig import GROUPS, Rig, build
from tests.mixes import full, state, window
from tests.ranksrig import Meeting, picture, replicated
from tiers.faults import Call, Fault, FaultPlan

STORY = [1, 2, 0, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2, 1, 2, 0]
MODELS = {
    "full": GROUPS[:1],
    "window": (full(), window(6)),
    "state": (full(), state(8)),
    "all": (full(), window(3), state(4)),
}


def rigs(
    act: Callable[[Rig, int, Meeting], object],
    *,
    ranks: int = 3,
    wrong: dict[int, dict[Call, dict[int, Fault]]] | None = None,
    device: Sequence[int] = (16, 16, 16),
    host: Sequence[int] = (32, 32, 32),
    groups: Sequence[Group] = GROUPS[:1],
    page_tokens: int = 2,
) -> list[object]:
    """Runs ``act`` on a rig a rank. ``wrong``: by rank, the calls of its host tier that fail."""

    def one(rank: int, meeting: Meeting) -> object:
        script = (wrong or {}).get(rank)
        rig = build(
            page_tokens=page_tokens,
            groups=groups,
            device=device[rank],
            below=(host[rank],),
            plans=(None if script is None else FaultPlan(script=script),),
            agree=meeting.agree(rank),
            seed=rank,
            clock=lambda: 7 * rank,
        )
        rig.ticks[0].pace = (1.0, 0.5, 0.7)[rank]
        told = act(rig, rank, meeting)
        meeting.same(rank, picture(rig.cache), "at the end")
        rig.finish_all()
        rig.cache.close()
        return told

    return replicated(ranks, one)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.PART, Fault.CORRUPT, Fault.LOSE, Fault.OFF])
@pytest.mark.parametrize("model", MODELS)
def test_a_load_that_fails_on_one_rank_shortens_the_hit_on_all(model: str, fault: Fault) -> None:
    """C100, C102: a length that each rank takes from its own answers parts the replicas. The ranks
    whose load went well give their slots back, and no byte of a hit is wrong on any of them.
    """

    def act(rig: Rig, rank: int, meeting: Meeting) -> int:
        rig.serve([*STORY, 1])
        rig.empty()
        live = rig.admit([*STORY, 2])
        planned = live.request.hit_tokens
        rig.until_ready(live)
        assert planned == len(STORY) and live.request.hit_tokens < planned
        return live.request.hit_tokens

    told = rigs(act, wrong={1: {"load": {1: fault}}}, groups=MODELS[model])
    assert len(set(told)) == 1, told


def test_a_block_that_is_wrong_on_one_rank_is_dropped_on_all() -> None:
    def act(rig: Rig, rank: int, meeting: Meeting) -> tuple[int, int]:
        rig.serve([*STORY, 1])
        rig.empty()
        first = rig.until_ready(rig.admit([*STORY, 2])).request.hit_tokens
        again, _ = rig.cache.match(np.array([*STORY, 1], np.int32))
        return first, again.hit_pages * 2

    told = rigs(act, wrong={2: {"load": {1: Fault.CORRUPT}}})
    assert len(set(told)) == 1, told
    assert told[0][0] == told[0][1] < len(STORY), "what is wrong was hit again"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE, Fault.OFF])
@pytest.mark.parametrize("model", MODELS)
def test_a_store_that_fails_on_one_rank_leaves_no_block_on_any(model: str, fault: Fault) -> None:
    def act(rig: Rig, rank: int, meeting: Meeting) -> bool:
        rig.serve([*STORY, 1])
        tree = rig.cache.tree
        return bool(tree.column_stats(tree.column(0, 1)).resident)

    wrong = {0: {"store": {1: fault}}}
    assert rigs(act, wrong=wrong, groups=MODELS[model]) == [False] * 3


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.OFF])
def test_a_reservation_that_one_rank_declines_is_a_store_that_failed(fault: Fault) -> None:
    """C100 (sglang#28429): one rank alone could not allocate in its host pool, returned early, and
    the others waited for it or stored what it does not have.
    """

    def act(rig: Rig, rank: int, meeting: Meeting) -> int:
        rig.serve([*STORY, 1])
        tree = rig.cache.tree
        return int(tree.column_stats(tree.column(0, 1)).resident)

    assert rigs(act, wrong={1: {"reserve": {1: fault}}}) == [0] * 3


def test_a_store_that_waits_in_one_ranks_queue_waits_on_all() -> None:
    """A full queue is no refusal: the rank offers it again, and the others wait for its report."""

    def act(rig: Rig, rank: int, meeting: Meeting) -> int:
        rig.serve([*STORY, 1])
        tree = rig.cache.tree
        return int(tree.column_stats(tree.column(0, 1)).resident)

    assert rigs(act, wrong={1: {"store": {1: Fault.REFUSE}}}) == [len(STORY) // 2] * 3


def test_a_host_of_one_block_less_on_one_rank_is_so_small_on_all() -> None:
    """C100: the capacity differs by one."""

    def act(rig: Rig, rank: int, meeting: Meeting) -> int:
        assert rig.cache.tiers[1].capacity_blocks(0) == 5
        for turn in range(4):
            rig.serve([turn, *STORY[:11]])
            meeting.same(rank, picture(rig.cache), f"turn {turn}")
        assert rig.cache.metrics.get("store", "failed", "host", "kv") == 0
        tree = rig.cache.tree
        return int(tree.column_stats(tree.column(0, 1)).resident)

    assert rigs(act, host=(6, 5, 6)) == [5] * 3


def test_free_pools_that_differ_admit_and_load_alike() -> None:
    """C102 (sglang#33442): rank 0 has 8 free, rank 1 has 4, and 8 are to be loaded."""

    def act(rig: Rig, rank: int, meeting: Meeting) -> int:
        rig.serve([*STORY, 1][:15])
        rig.empty()
        other = rig.admit([2] * 7)  # takes four
        rig.until_ready(other)
        with pytest.raises(CapacityError, match="free 4"):
            rig.admit([*STORY[:14], 0])
        rig.end(other)
        rig.settle()
        return rig.until_ready(rig.admit([*STORY[:14], 0])).request.hit_tokens

    assert rigs(act, device=(12, 8, 9)) == [14] * 3


def test_a_tier_that_fails_on_one_rank_is_off_on_all_until_it_is_on_again() -> None:
    def act(rig: Rig, rank: int, meeting: Meeting) -> list[object]:
        rig.serve([*STORY, 1])
        rig.empty()
        tier, prompt = rig.cache.tiers[1], np.array([*STORY, 2], np.int32)
        modes: list[object] = []
        if rank == 1:
            tier.inner.set_mode(TierMode.OFF)
        live = rig.admit([*STORY, 2])
        modes.append(rig.until_ready(live).request.hit_tokens)
        modes += [tier.mode, rig.cache.match(prompt)[0].hit_pages]
        tier.inner.set_mode(TierMode.ON)
        rig.poll()
        modes += [tier.mode, rig.cache.match(prompt)[0].hit_pages]
        return modes

    told = rigs(act)
    assert told == [[0, TierMode.OFF, 0, TierMode.ON, len(STORY) // 2]] * 3


def test_replicas_that_were_called_differently_are_told() -> None:
    def act(rig: Rig, rank: int, meeting: Meeting) -> str:
        live = rig.admit(STORY[: 9 + 2 * (rank == 1)])
        rig.compute(live, 9)
        with pytest.raises(InvariantError, match="I33"):
            for _ in range(4):
                rig.cache.poll()
                rig.cache.tiers[1].reserve(0, 1 + (rank == 1))
        return "told"

    def one(rank: int, meeting: Meeting) -> object:
        rig = build(page_tokens=2, below=(32,), agree=meeting.agree(rank))
        return act(rig, rank, meeting)

    assert replicated(2, one) == ["told"] * 2


def test_an_idle_cache_meets_nobody() -> None:
    """The agreement costs a step only in polls in which a job is outstanding."""

    def act(rig: Rig, rank: int, meeting: Meeting) -> None:
        rig.serve([*STORY, 1])
        steps = meeting.steps
        for _ in range(5):
            rig.cache.poll()
        meeting.same(rank, meeting.steps, "steps")
        assert meeting.steps == steps

    rigs(act)
