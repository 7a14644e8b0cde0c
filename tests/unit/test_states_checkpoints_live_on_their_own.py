"""A checkpoint belongs to its position: it survives what splits its path, is attached to a path
that is there, moves through the tiers and is evicted by itself; what no checkpoint makes usable
goes before it, and no request's own path goes for a snapshot's room (C48, C50, C53; I20, I28).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.cache import PrefixCache
from tests.cacherig import Live, Rig, build
from tests.mixes import full, state, window
from tests.ticktier import peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan
from tiers.host import HostTier

KV, STATE = 0, 1


def checkpoints(rig: Rig, tokens: list[int], tier: int = 0) -> list[int]:
    """Lengths on the path of these tokens at which a snapshot stands in a tier."""
    rig.cache.check()
    cursor = rig.cache.match(tokens, leave=0)[1]
    column = rig.cache.tree.column(STATE, tier)
    return [(int(at) + 1) * rig.cache.page_tokens for at in rig.cache.tree.entries(cursor, column)]


def used(rig: Rig, group: int = STATE, tier: str = "device") -> int:
    """Blocks of a group in use, whoever has them."""
    return rig.cache.usage()[tier].used_blocks[group]


def hit(rig: Rig, tokens: list[int]) -> int:
    """The hit of these tokens and one more."""
    return rig.cache.explain([*tokens, 99]).hit_tokens


def serve(rig: Rig, tokens: list[int], **more: object) -> Live:
    """A whole request; every byte of its hit is looked at."""
    live = rig.until_ready(rig.admit(tokens, **more))
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    return live


@pytest.mark.parametrize("page", [1, 2, 4])
def test_checkpoint_survives_every_split_of_its_path(page: int) -> None:
    """C35 in reverse: what diverges above it, right at it, or goes on below it moves it nowhere."""
    rig = build(page_tokens=page, groups=(full(), state()), device=(128, 32), below=(256,))
    prompt = list(range(8 * page + 1))
    serve(rig, prompt, boundaries=[4 * page])
    for cut in (2, 4, 6, 8, 7, 1):
        serve(rig, [*prompt[: cut * page], *[90 + cut] * (page + 1)])
        for tier in (0, 1):
            assert {4 * page, 8 * page} <= set(checkpoints(rig, prompt, tier))
        assert hit(rig, prompt[: 4 * page]) == 4 * page
        assert hit(rig, prompt[: 8 * page]) == 8 * page
    for length in (4, 8):  # the bytes
        assert serve(rig, [*prompt[: length * page], 55]).request.hit_tokens == length * page
    rig.finish_all()


def test_checkpoint_is_attached_later_to_a_path_that_is_there() -> None:
    """Another request computes the same tokens again and leaves what the first did not."""
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16), below=(64,))
    prompt = list(range(11))
    serve(rig, prompt)
    nodes = rig.cache.tree.stats().pages
    rig.evict(STATE, 9, 0)
    rig.evict(STATE, 9, 1)
    assert hit(rig, prompt) == 0
    serve(rig, prompt, boundaries=[4])
    assert checkpoints(rig, prompt) == [4, 10] == checkpoints(rig, prompt, 1)
    assert rig.cache.tree.stats().pages == nodes
    assert used(rig, KV) == 11, "its own copies of what was there went back"
    assert (hit(rig, prompt[:5]), hit(rig, prompt)) == (4, 10)
    rig.finish_all()


def test_checkpoint_is_evicted_alone_and_comes_back_from_below_alone() -> None:
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16), below=(64,))
    prompt = list(range(9))
    serve(rig, prompt, boundaries=[4])
    assert rig.evict(STATE, 9, 0) == 2
    assert (used(rig, KV), used(rig)) == (9, 0)
    told = rig.cache.explain(prompt)
    assert (told.device_tokens, told.hit_tokens) == (0, 8)
    assert told.tiers == {"device": 7, "host": 1}
    assert [(need.group, need.tier, need.pages.tolist()) for need in told.needs] == [
        ("state", "host", [7])
    ]
    live = serve(rig, prompt)
    assert live.request.hit_tokens == 8
    assert rig.cache.metrics.get("load", "blocks", "host", "state") == 1
    assert rig.cache.metrics.get("load", "blocks", "host", "kv") == 0
    rig.finish_all()


def test_hit_falls_back_to_the_checkpoint_before_the_one_that_went() -> None:
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16))
    prompt = list(range(9))
    serve(rig, prompt, boundaries=[4])
    with rig.cache.lease(rig.cache.match(prompt[:4], leave=0)[1]):
        assert rig.evict(STATE, 9, 0) == 1, "the other is leased"
    assert checkpoints(rig, prompt) == [4] and hit(rig, prompt) == 4
    assert rig.cache.explain(prompt).branch_tokens == 8
    rig.finish_all()


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_windows_and_checkpoints_are_found_again_on_disk(tmp_path: Path, payload: str) -> None:
    """Each goes down when it is kept and is linked to its page again at the next start, though
    only the last tokens have a window, and only two lengths a snapshot.
    """
    groups = (full(), state(3), window(5))
    prompt = list(range(23))

    def opened() -> Rig:
        device = DeviceTier(blocks=64, device="cpu")
        host = HostTier(64 * 4096, segment_bytes=4096, verify=True)
        disk = DiskTier(
            tmp_path / "disk", limit_bytes=2 << 20, payload=payload, segment_bytes=1 << 16
        )
        return Rig(
            PrefixCache(groups, [device, host, disk], page_tokens=2, events=True), device, (host,)
        )

    rig = opened()
    assert rig.cache.align_tokens == 6
    serve(rig, prompt, boundaries=[6])
    rig.cache.flush()
    known = rig.known
    rig.finish_all()
    rig.cache.close()

    rig = opened()
    rig.known = known
    rig.poll()
    for length in (18, 6):
        told = rig.cache.explain([*prompt[: length + 1], 99])
        assert told.upto == {"device": 0, "host": 0, "disk": length}
    live = serve(rig, [*prompt[:19], 99])
    assert live.request.hit_tokens == 18
    assert live.request.sources == {"disk": 18}
    rig.empty()
    rig.empty(1)
    live = serve(rig, [*prompt[:7], 98, 98])
    assert (live.request.hit_tokens, live.request.sources) == (6, {"disk": 6})
    rig.finish_all()
    rig.cache.close()


def test_full_blocks_that_no_checkpoint_makes_usable_go_first() -> None:
    """I20: the newer path goes, because nothing of it can be hit; then the older one."""
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16))
    old, new = list(range(7)), [9, 8, 7, 6, 5]
    serve(rig, old)
    serve(rig, new)
    assert (hit(rig, old), hit(rig, new)) == (6, 4)
    rig.cache.lease(rig.cache.match(old[:6], leave=0)[1]).release()
    assert rig.evict(STATE, 1, 0) == 1
    rig.cache.lease(rig.cache.match(new, leave=0)[1]).release()
    assert (hit(rig, old), hit(rig, new)) == (6, 0), "the other snapshot was the oldest"
    assert rig.evict(KV, 1, 0) == 1
    assert used(rig, KV) == 11
    assert rig.evict(KV, 5, 0) == 5
    assert rig.cache.explain(new).structural_tokens == 0, "all of it, though it was used last"
    assert hit(rig, old) == 6
    rig.finish_all()


def test_snapshot_over_blocks_that_are_gone_goes_first() -> None:
    """I20: a snapshot that no hit can end at any more is the first to make room, however new."""
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16))
    old, new = list(range(7)), [9, 8, 7, 6, 5]
    serve(rig, old)
    serve(rig, new, boundaries=[2])
    rig.cache.lease(rig.cache.match(old[:6], leave=0)[1]).release()
    pin, _, _ = rig.cache.tree.lease(rig.cache.match(new[:4], leave=0)[1])
    assert rig.evict(KV, 4, 0) == 4  # what is behind the snapshots, and two blocks under the one
    rig.cache.tree.release(pin, stamp=False)
    assert (hit(rig, old), hit(rig, new), hit(rig, new[:3])) == (0, 4, 2)
    assert used(rig) == 3 and rig.evict(STATE, 1, 0) == 1
    assert (hit(rig, new), hit(rig, new[:3])) == (4, 2), "the newest of the three went"
    rig.finish_all()


def test_room_for_a_snapshot_is_never_made_of_the_path_that_it_belongs_to() -> None:
    """C48, TensorRT-LLM#17926 (and #18095): a commit allocated the snapshot, which evicted, and the
    eviction took the very blocks that were being committed. With every pool full, the snapshot's
    slot comes from the other path, and what the request and a lease hold is still valid.
    """
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(17, 6))
    for story in ([9] * 3, [8] * 3, [7] * 3):
        serve(rig, story)
    assert used(rig) == 3
    live = rig.until_ready(rig.admit(list(range(11)), boundaries=[4, 8]))
    rig.compute(live, 3)
    lease = rig.cache.lease(rig.cache.match(list(range(3)), leave=0)[1])
    for upto in (4, 6, 8, 11):
        rig.compute(live, upto)
        rig.poll()
    assert checkpoints(rig, list(range(11))) == [4, 8]
    assert [hit(rig, [story] * 3) for story in (9, 8, 7)].count(2) <= 1, "the room came from these"
    assert lease.pages == 3
    rig.evict(KV, 99, 0)
    assert rig.cache.explain(list(range(11))).structural_tokens >= 10
    lease.release()
    rig.end(live)
    rig.settle()
    assert hit(rig, list(range(11))) == 10
    rig.finish_all()


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.FAIL, Fault.CORRUPT, Fault.LOSE])
def test_load_that_does_not_come_leaves_no_slot_behind(fault: Fault) -> None:
    """C50, sglang#30986: a slot was allocated and put on the request before it was known whether
    the load goes on. The hit falls back to the snapshot before, and nothing stays taken.
    """
    refused = fault is Fault.REFUSE
    rig = build(
        page_tokens=1,
        groups=(full(), state(2)),
        device=(64, 8),
        below=(64,),
        # the first is of kv; a refused one is offered again when that has come
        plans=(FaultPlan(script={"load": {2: fault, **({3: fault} if refused else {})}}),),
    )
    prompt = list(range(9))
    serve(rig, prompt, boundaries=[4])
    rig.empty()
    live = rig.until_ready(rig.admit(prompt))
    assert live.request.hit_tokens == 4
    assert used(rig) == 3, "the running one and the two that roll, as at every admission"
    assert rig.cache.metrics.get("admit", "hit shortened") >= 1
    rig.compute(live, 9)
    rig.end(live)
    rig.settle()
    assert hit(rig, prompt) == 8
    rig.finish_all()


def test_snapshot_of_a_host_that_is_gone_is_no_hit_at_all() -> None:
    """C50: no checkpoint left: the whole is computed, with the state from nothing."""
    rig = build(
        page_tokens=1,
        groups=(full(), state(2)),
        device=(64, 8),
        below=(64,),
        plans=(FaultPlan(rates={"load": {Fault.REFUSE: 1.0}}),),
    )
    serve(rig, list(range(9)))
    rig.empty()
    live = serve(rig, list(range(9)))
    assert live.request.hit_tokens == 0
    assert not live.request.loaded(STATE).any()
    assert hit(rig, list(range(9))) == 8
    rig.finish_all()


def test_request_whose_surroundings_are_evicted_goes_on_where_it_was() -> None:
    """C53, TensorRT-LLM#17145: a live request committed under a parent that an eviction had
    orphaned. Everything that may go goes before each step; its own path never does.
    """
    rig = build(page_tokens=1, groups=(full(), state(2), window(3)), device=(64, 8, 32))
    serve(rig, [*range(4), 90, 91, 92])
    serve(rig, list(range(5)))
    live = rig.until_ready(rig.admit([*range(4), *range(20, 32)]))
    assert live.request.hit_tokens == 4
    for upto in (5, 8, 11, 14, 16):
        rig.compute(live, upto)
        rig.empty()
        rig.cache.check()
        assert rig.cache.explain([*range(4), *range(20, 32)]).structural_tokens == upto
    rig.end(live)
    rig.settle()
    assert hit(rig, [*range(4), *range(20, 32)]) == 16
    rig.finish_all()


def test_checkpoint_of_one_request_serves_another_while_the_first_runs() -> None:
    """The boundary is shared as soon as it is computed, with its bytes."""
    rig = build(page_tokens=1, groups=(full(), state(2)), device=(64, 16))
    first = rig.until_ready(rig.admit(list(range(12)), boundaries=[6]))
    rig.compute(first, 7)
    second = rig.until_ready(rig.admit([*range(6), 50, 51]))
    assert second.request.hit_tokens == 6
    peek(rig.device, STATE, second.request.running(STATE))[:] = 0
    rig.poll()  # the rig looks at every shared byte
    rig.compute(second, 8)
    rig.end(second)
    rig.compute(first, 12)
    rig.end(first)
    rig.settle()
    assert checkpoints(rig, list(range(12))) == [6, 10, 12]
    rig.finish_all()
