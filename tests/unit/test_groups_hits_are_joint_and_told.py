"""The hit of a mix of groups is the greatest length that all of them have at once, over the union
of the tiers, and it is told what serves it, how far each tier alone would reach, what has to be
loaded for it, and where the tree's knowledge ends (C10, C18-C21, C42, C51, C52; I26, I28, I34).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.plan import Explanation, Need
from tests.cacherig import Live, Rig, build
from tests.mixes import chunked, full, state, window

KV, NEAR, STATE = 0, 1, 2
PROMPT = list(range(20))


def needs(told: Explanation) -> dict[tuple[str, str], list[int]]:
    """What has to be loaded: pages by group and tier."""
    assert all(isinstance(need, Need) for need in told.needs)
    return {(need.group, need.tier): need.pages.tolist() for need in told.needs}


def serve(rig: Rig, tokens: list[int], **more: object) -> Live:
    """A whole request with options; everything settled."""
    live = rig.until_ready(rig.admit(tokens, **more))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    return live


@pytest.fixture
def rig() -> Rig:
    """Twenty tokens in pages of two: kv, the windows and snapshots at 8 and 20, on two tiers."""
    made = build(
        page_tokens=2, groups=(full(), window(4), state()), device=(32, 16, 16), below=(64,)
    )
    serve(made, [*PROMPT, 0], boundaries=[8])
    return made


def test_hit_of_one_tier_is_told_beside_the_hit_of_all(rig: Rig) -> None:
    told = rig.cache.explain([*PROMPT, 1])
    assert (told.structural_tokens, told.device_tokens, told.hit_tokens) == (20, 20, 20)
    assert told.upto == {"device": 20, "host": 20}
    assert told.tiers == {"device": 20}
    assert needs(told) == {} and told.branch_tokens == 0
    rig.finish_all()


def test_hit_below_needs_every_block_the_last_window_and_one_snapshot(rig: Rig) -> None:
    rig.empty()
    told = rig.cache.explain([*PROMPT, 1])
    assert (told.structural_tokens, told.device_tokens, told.hit_tokens) == (20, 0, 20)
    assert told.upto == {"device": 0, "host": 20}
    assert needs(told) == {
        ("kv", "host"): list(range(10)),
        ("near", "host"): [8, 9],
        ("state", "host"): [9],
    }
    live = rig.until_ready(rig.admit([*PROMPT, 1]))
    assert live.request.hit_tokens == 20
    loads = [rig.cache.metrics.get("load", "blocks", "host", g) for g in ("kv", "near", "state")]
    assert loads == [10, 2, 1], "what was told, and nothing else, was loaded"
    rig.end(live)
    rig.finish_all()


def test_hit_of_the_upper_tier_ends_where_all_groups_have_something(rig: Rig) -> None:
    """C42, DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#26: the least of what each group had counted,
    and windows that had given up their old blocks made it nothing.
    """
    assert rig.evict(KV, 4, 0) == 4
    told = rig.cache.explain([*PROMPT, 1])
    assert told.device_tokens == 8, "six pages of kv, but window and snapshot only at 8"
    assert told.upto == {"device": 8, "host": 20}
    assert needs(told) == {("kv", "host"): [6, 7, 8, 9]}
    assert told.tiers == {"device": 12, "host": 8}
    rig.evict(STATE, 9, 0)
    told = rig.cache.explain([*PROMPT, 1])
    assert (told.device_tokens, told.hit_tokens) == (0, 20)
    assert needs(told) == {("kv", "host"): [6, 7, 8, 9], ("state", "host"): [9]}
    rig.finish_all()


def test_length_that_one_group_lacks_is_the_branch_signal(rig: Rig) -> None:
    with rig.cache.lease(rig.cache.match(PROMPT[:8], leave=0)[1]):
        pass  # the snapshot at 8 was used now
    for tier in (0, 1):
        rig.evict(STATE, 1, tier)
    told = rig.cache.explain([*PROMPT, 1])
    assert (told.structural_tokens, told.branch_tokens) == (20, 20)
    assert told.hit_tokens == 8 and told.reason == "no checkpoint"
    for tier in (0, 1):
        rig.evict(STATE, 9, tier)
    told = rig.cache.explain([*PROMPT[:11], 9, 9])
    assert (told.structural_tokens, told.branch_tokens, told.hit_tokens) == (10, 10, 0)
    rig.finish_all()


def test_two_prompts_of_one_length_each_need_their_own_last_window() -> None:
    """C42: with the windows of eight prompts kept beside one long shared prefix, every one of them
    is hit whole; only its own last tokens are asked for.
    """
    rig = build(page_tokens=1, groups=(full(), window(3)), device=(64, 32))
    shared = list(range(24))
    for tail in range(8):
        serve(rig, [*shared, 90 + tail, 91, 92, 93])
    assert rig.cache.usage()["device"].used_blocks[KV] == 24 + 8 * 4
    for tail in range(8):
        assert rig.cache.explain([*shared, 90 + tail, 91, 92, 93, 1]).hit_tokens == 28
    rig.finish_all()


def test_windows_of_different_length_each_keep_their_own() -> None:
    rig = build(
        page_tokens=2, groups=(full(), window(4), window(9, "far"), chunked(8)), device=(32,) * 4
    )
    serve(rig, [*PROMPT, 1])
    assert rig.cache.usage()["device"].used_blocks == (10, 2, 4, 2), "3 tokens, 8, and from 16 on"
    assert rig.cache.explain([*PROMPT, 1]).hit_tokens == 20
    assert rig.evict(2, 1, 0) == 1
    told = rig.cache.explain([*PROMPT, 1])
    assert told.hit_tokens == 0 and told.reason == "window gap"
    assert told.branch_tokens == 20
    serve(rig, [*PROMPT, 2])
    assert rig.cache.explain([*PROMPT, 1]).hit_tokens == 20
    rig.finish_all()


def test_blocks_of_several_sizes_hit_at_what_they_have_in_common() -> None:
    rig = build(
        page_tokens=1, groups=(full(grid_tokens=2), state(3), full("fine", 32)), device=(32, 8, 32)
    )
    assert rig.cache.align_tokens == 6
    serve(rig, PROMPT)
    assert rig.cache.explain([*PROMPT, 1]).hit_tokens == 18
    assert rig.cache.explain(PROMPT[:15]).hit_tokens == 0
    assert rig.cache.explain(PROMPT[:15]).branch_tokens == 12
    rig.finish_all()


@pytest.mark.parametrize("groups", [(full(),), (full(), window(3)), (full(), window(3), state())])
def test_hits_are_multiples_of_what_the_engine_asks_for(groups: tuple[object, ...]) -> None:
    rig = build(page_tokens=2, groups=groups, device=32, align_tokens=3, below=(64,))
    assert rig.cache.align_tokens == 6
    serve(rig, PROMPT)
    for length, hit in ((21, 18), (19, 18), (18, 12), (12, 6)):
        told = rig.cache.explain([*PROMPT, 1][:length])
        assert told.hit_tokens in ({hit} if len(groups) == 1 else {hit, 0})
        assert told.hit_tokens == hit or told.branch_tokens == hit
        assert told.upto["device"] % 6 == told.device_tokens % 6 == 0
    assert rig.cache.explain([*PROMPT, 1]).hit_tokens == 18
    rig.finish_all()


def test_tokens_left_to_compute_move_the_hit_of_every_group_together() -> None:
    """C51, sglang#29633: a kernel that cannot extend by one token took a hit one page shorter, but
    kept the state of the longer one. The hit goes back to the length before that has a snapshot.
    """
    rig = build(page_tokens=1, groups=(full(), window(3), state(4)), device=32)
    serve(rig, list(range(8)), boundaries=[4])
    for leave, hit in ((1, 8), (2, 4), (5, 4), (6, 0)):
        live = rig.until_ready(rig.admit([*range(8), 9], leave=leave))  # the rig reads every byte
        assert live.request.hit_tokens == hit
        assert (live.request.branch_tokens == 0) == (hit in (4, 8) or leave == 6)
        rig.end(live, abort=True)
        rig.settle()
    found, _ = rig.cache.match([*range(8), 9], leave=2)
    assert found.hit_pages == 4, "and so does an engine that drives itself"
    rig.finish_all()


def test_snapshot_of_a_hit_is_the_one_of_its_own_length() -> None:
    """C52, vllm#55600: the number of a state was the hit over the least block of all groups, 11 of
    24 tokens in pages of two, instead of that of its own grid of eight. Every byte is looked at.
    """
    rig = build(page_tokens=2, groups=(full(), state(8)), device=(32, 16), below=(64,))
    serve(rig, list(range(24)), boundaries=[8, 16])
    rig.empty()
    for length in (24, 16, 8):
        told = rig.cache.explain([*range(length), 99, 99])
        assert told.hit_tokens == length
        assert needs(told)["state", "host"] == [length // 2 - 1]
        live = rig.until_ready(rig.admit([*range(length), 99, 99]))
        assert live.request.hit_tokens == length
        rig.end(live, abort=True)
        rig.settle()
    rig.finish_all()


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)])
def test_hit_beside_windows_and_states_leaves_one_token(length: int, hit: int) -> None:
    """C18-C20, vllm#11186, #17999, #3239, beside groups that can be hit at some lengths only: with
    snapshots and windows at 4 and 8, the hit of n tokens is floor((n-1)/P)*P.
    """
    rig = build(page_tokens=4, groups=(full(), window(5), state()), device=16)
    serve(rig, list(range(9)), boundaries=[4])
    live = rig.until_ready(rig.admit(list(range(length))))
    assert live.request.hit_tokens == hit
    rig.end(live, abort=True)
    rig.finish_all()


@pytest.mark.parametrize(("length", "hit"), [(255, 128), (256, 128), (257, 256)])
def test_prompt_sent_again_beside_states_hits_as_documented(length: int, hit: int) -> None:
    """C21, sglang#27206: 128 of 256 tokens but 256 of 257. What is stored is told beside the hit,
    and where only the snapshot is missing, the branch signal says so; the third time it is there.
    """
    rig = build(page_tokens=128, groups=(full(), window(100), state()), device=8)
    prompt = (np.arange(length) % 7).tolist()
    serve(rig, prompt)
    told = rig.cache.explain(prompt)
    assert told.structural_tokens == length // 128 * 128
    assert hit in (told.hit_tokens, told.branch_tokens)
    serve(rig, prompt)
    assert rig.cache.explain(prompt).hit_tokens == hit
    rig.finish_all()


def test_full_hit_beside_windows_keeps_every_page_cached_once() -> None:
    """C18: the last page is computed again and cached once, under the same key."""
    rig = build(page_tokens=4, groups=(full(), window(4), state()), device=(6, 6, 6))
    for _ in range(3):
        serve(rig, list(range(8)))
    assert rig.cache.usage()["device"].used_blocks[KV] == 2
    assert rig.cache.explain([*range(8), 1]).hit_tokens == 8
    rig.finish_all()


def test_request_does_not_evict_what_any_group_of_its_hit_needs() -> None:
    """C10, vllm#42948: room for a request was made of what it was about to hit, and groups that
    lost their first blocks lost the hit of all. The oldest blocks of all groups are its own hit.
    """
    rig = build(page_tokens=1, groups=(full(), window(3), state()), device=(12, 9, 5))
    serve(rig, list(range(6)))  # the oldest
    serve(rig, [9] * 5)
    live = rig.until_ready(rig.admit([*range(6), 8, 8, 8, 8, 8, 8], chunk_tokens=6))
    assert live.request.hit_tokens == 6
    assert rig.cache.explain([*[9] * 5, 1]).hit_tokens < 5, "the room came from the other one"
    rig.compute(live, 12)
    rig.end(live)
    rig.settle()
    assert rig.cache.explain([*range(6), 8, 8, 8, 8, 8, 8, 1]).hit_tokens == 12
    rig.finish_all()
