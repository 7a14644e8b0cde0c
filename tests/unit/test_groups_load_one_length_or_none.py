"""A hit is loaded for all groups at one length, whichever of them is short of room or does not
come; what two requests compute at once is kept once (C3, C78-C80, C102; I10, I21, I22).
"""

from __future__ import annotations

import pytest

from radix.groups import Group
from radix.tier import TierMode
from tests.cacherig import Live, Rig, build
from tests.mixes import chunked, full, state, window
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(13))
MIXES = {
    "window and state": (full(), window(4), state(2)),
    "two windows": (window(3), full(), window(7, "far")),
    "chunks and blocks of two pages": (full(grid_tokens=2), chunked(6), full("fine", 32)),
    "looks ahead": (full(), full("draft", 32, lookahead=1), state(3), window(4)),
}


def serve(rig: Rig, tokens: list[int], **more: object) -> Live:
    """A whole request; every byte of its hit is looked at."""
    live = rig.until_ready(rig.admit(tokens, **more))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    return live


def whole(rig: Rig, tokens: list[int]) -> None:
    """Every block in use is the tree's, and the books are right."""
    for group in range(len(rig.cache.groups)):
        stats = rig.cache.tree.column_stats(rig.cache.tree.column(group, 0))
        assert rig.cache.usage()["device"].used_blocks[group] == stats.resident
    assert rig.cache.explain(tokens).hit_tokens <= len(tokens) - 1
    rig.cache.check()


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.FAIL, Fault.PART, Fault.LOSE, Fault.CORRUPT])
@pytest.mark.parametrize("name", MIXES)
def test_load_that_fails_for_one_group_shortens_the_hit_of_all(name: str, fault: Fault) -> None:
    """C78-C80, vllm#49176, #37827, dynamo#15079, where several groups load: whichever load it is,
    every group goes on from the same length, at which every byte is right, and the next request
    hits as far as before, or as what was lost allows.
    """
    groups: tuple[Group, ...] = MIXES[name]
    for number in range(1, 6):
        rig = build(
            page_tokens=1,
            groups=groups,
            device=32,
            below=(64,),
            plans=(FaultPlan(script={"load": {number: fault, number + 1: fault}}),),
        )
        serve(rig, PROMPT, boundaries=[6])
        served = rig.cache.explain([*PROMPT, 1]).hit_tokens
        rig.empty()
        live = rig.until_ready(rig.admit([*PROMPT, 1]))  # the rig looks at every byte of the hit
        assert 0 <= live.request.hit_tokens <= served
        assert live.request.hit_tokens % rig.cache.align_tokens == 0
        rig.compute(live, len(live.request))
        rig.end(live)
        rig.settle()
        assert rig.cache.explain([*PROMPT, 1, 1]).hit_tokens >= served, f"{name}, load {number}"
        whole(rig, PROMPT)
        rig.finish_all()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_tier_that_is_short_for_one_group_loads_one_length_for_all(short: int, held: bool) -> None:
    """C102, sglang#33442: what was loaded back differed by a page between those that decided each
    for itself from its own free pool. One of three groups has room for three blocks on the host,
    through which all come up from below; or for none at all, while others lease what stands there.
    """
    host = [64, 64, 64]
    host[short] = 3
    groups = (full(), full("other", 32), window(3))
    rig = build(page_tokens=1, groups=groups, device=40, below=(host, 96))
    for end in (3, 6, 9, 13):  # all goes down, through what room there is
        for _ in range(2):
            serve(rig, PROMPT[:end], boundaries=[3] if end > 3 else [])
            rig.empty(1)
    serve(rig, [*PROMPT, 5])
    rig.empty(1)
    rig.empty()
    served = rig.cache.explain([*PROMPT, 6]).hit_tokens
    assert served == 13
    lease = None
    if held:
        serve(rig, [90, 91, 92, 93])
        lease = rig.cache.lease(rig.cache.match([90, 91, 92, 93])[1]._replace(pages=3))
        rig.empty(1)
        rig.empty()
    live = rig.until_ready(rig.admit([*PROMPT, 6]))
    hit, request = live.request.hit_tokens, live.request
    assert (hit < 13) == held
    assert [int(request.loaded(group)[:hit].sum()) for group in range(3)] == [hit, hit, min(2, hit)]
    if lease is not None:
        lease.release()
    rig.compute(live, 14)
    rig.end(live)
    rig.settle()
    whole(rig, PROMPT)
    rig.finish_all()


@pytest.mark.parametrize("name", MIXES)
def test_two_requests_that_compute_the_same_keep_it_once(name: str) -> None:
    """C3, mini-sglang#142, in every group: the second's own slots go back after its page table
    names those that count, and not before.
    """
    rig = build(page_tokens=1, groups=MIXES[name], device=64)
    lives = [rig.until_ready(rig.admit(PROMPT, boundaries=[6])) for _ in range(3)]
    for upto in (5, 8, 13):
        for live in lives:
            rig.compute(live, upto)
            rig.cache.check()
            rig.poll()
    alone = build(page_tokens=1, groups=MIXES[name], device=64)
    serve(alone, PROMPT, boundaries=[6])
    for live in lives:
        rig.end(live)
    rig.settle()
    assert rig.cache.usage()["device"].used_blocks == alone.cache.usage()["device"].used_blocks
    told = [each.cache.explain([*PROMPT, 1]).hit_tokens for each in (rig, alone)]
    assert told[0] == told[1] >= 12
    whole(rig, PROMPT)
    rig.finish_all()
    alone.finish_all()


def test_tier_that_is_off_serves_no_group() -> None:
    """The hit is what the other tiers have of all groups, and the reason names the tier."""
    rig = build(page_tokens=1, groups=MIXES["window and state"], device=32, below=(64,))
    serve(rig, PROMPT, boundaries=[6])
    rig.evict(0, 4, 0)
    assert rig.cache.explain(PROMPT).upto == {"device": 6, "host": 12}
    rig.cache.set_mode("host", TierMode.OFF)
    told = rig.cache.explain(PROMPT)
    assert told.upto == {"device": 6, "host": 6} and told.needs == ()
    assert told.reason == "tier out"
    assert told.branch_tokens == 12
    rig.cache.set_mode("host", TierMode.ON)
    assert serve(rig, PROMPT).request.hit_tokens == 12
    rig.finish_all()
