"""After a reset nothing of before is found, in no tier, whatever was under way: what runs goes on
by itself, what loads begins anew, what ends late only gives back what it holds (C53, C65-C67, I31).
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from radix.cache import PrefixCache
from radix.errors import LeaseError, TierUnavailableError
from radix.events import BlocksRemoved, RequestState
from radix.ownership import Ownership
from tests.cacherig import GROUPS, ORDER, Rig, build
from tests.mixes import mix
from tests.resetting import reset, served_again
from tests.ticktier import peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.index import IndexTier

PROMPT = list(range(12))
SCHEDULES = pytest.mark.parametrize("late", [False, True], ids=["synchronous", "asynchronous"])


def _empty_books(rig: Rig) -> None:
    cache = rig.cache
    assert not cache.transfers.jobs and not cache.transfers.fenced and not cache.requests.works
    for number, tier in enumerate(cache.residency.tiers):
        for group in range(len(cache.groups)):
            held = cache.tree.column_stats(cache.tree.column(group, number)).resident
            assert tier.usage().used_blocks[group] == held


@SCHEDULES
def test_running_request_goes_on_alone_and_its_slots_stay_until_it_has_ended(late: bool) -> None:
    """C53, TensorRT-LLM#17145: a request went on committing under a parent that was reset."""
    rig = build(below=(32,), device=8)
    live = rig.until_ready(rig.admit(PROMPT, new_tokens=4))
    rig.compute(live, 8)
    rig.poll()
    before = live.request.slots().tolist()
    contents = [peek(rig.cache.tiers[0], 0, slot).copy() for slot in before[:2]]
    reset(rig)
    rig.cache.check()
    assert served_again(rig, PROMPT) == 0
    other = rig.until_ready(rig.admit([9] * 16))
    assert not set(other.request.slots().tolist()) & set(before), "a slot that is read was given"
    rig.compute(other, 16)
    live.request.append([1])
    rig.compute(live, 13, rig.fence() if late else None)
    rig.pass_step()
    rig.poll()
    rig.cache.check()
    for slot, content in zip(before[:2], contents, strict=True):
        assert (peek(rig.cache.tiers[0], 0, slot) == content).all()
    assert served_again(rig, PROMPT) == 0, "what it computes is shared with nobody"
    rig.end(live, fence=rig.fence() if late else None)
    rig.end(other)
    rig.pass_step()
    rig.settle()
    assert rig.states[live.request.id] == list(ORDER)
    assert served_again(rig, PROMPT) == 0
    _empty_books(rig)
    rig.finish_all()


@SCHEDULES
@pytest.mark.parametrize("when", ["store", "cascade", "load", "deep load"])
def test_reset_during_transfers_leaves_nothing_but_what_they_hold(when: str, late: bool) -> None:
    """C65, sglang#26009: queues and counters outlived the reset, and late completions were taken
    for new ones.
    """
    rig = build(below=(32, 32), device=8)
    if when == "cascade":
        rig.ticks[1].pace = 0.0
    if "load" in when:
        rig.serve(PROMPT)
        rig.empty(0)
        if when == "deep load":
            rig.empty(1)
    if when != "cascade":
        rig.ticks[0].pace = rig.ticks[1].pace = 0.0
    live = rig.admit(PROMPT, new_tokens=4)
    if "load" not in when:
        rig.until_ready(live)
        rig.compute(live, 12, rig.fence() if late else None)
        rig.pass_step()
    for _ in range(3):
        rig.poll()
    assert rig.cache.transfers.jobs
    reset(rig)
    rig.cache.check()
    assert served_again(rig, PROMPT) == 0
    rig.ticks[0].pace = rig.ticks[1].pace = 1.0
    rig.until_ready(live)
    if "load" in when:
        assert live.request.hit_tokens == 0 and live.told == 0
        rig.compute(live, 12, rig.fence() if late else None)
        rig.pass_step()
    rig.end(live)
    rig.settle()
    assert served_again(rig, PROMPT) == (8 if "load" in when else 0)
    assert rig.states[live.request.id] == list(ORDER)
    reset(rig)
    _empty_books(rig)
    rig.finish_all()


def test_two_resets_are_one() -> None:
    """C66, vllm#39726: the first reset did nothing while blocks were referenced."""
    rig = build(below=(32,), device=8)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    reset(rig)
    usage, events = rig.cache.usage(), len(rig.poll())
    reset(rig)
    assert rig.cache.usage() == usage and events
    assert not [event for event in rig.poll() if isinstance(event, BlocksRemoved)]
    rig.ticks[0].pace = 1.0
    rig.end(live)
    rig.settle()
    _empty_books(rig)
    rig.finish_all()


def test_events_remove_each_block_that_a_reset_drops() -> None:
    """C67, llm-d-kv-cache#593: "all cleared" was logged and the index kept everything."""
    rig = build(groups=2, below=(32, 32), device=16)
    rig.serve(PROMPT)
    lease = rig.cache.lease(rig.cache.match(PROMPT)[1])
    assert rig.resident
    reset(rig)
    rig.poll()
    assert not rig.resident and not rig.walk()
    assert rig.cache.explain(PROMPT).reason == "reset"
    lease.release()
    rig.finish_all()


@pytest.mark.parametrize("name", ["device", "host", "deep"])
def test_tiers_that_are_not_named_keep_what_they_have(name: str) -> None:
    rig = build(below=(32, 32), device=16)
    rig.serve(PROMPT)
    reset(rig, [name])
    rig.poll()
    rig.cache.check()
    assert served_again(rig, PROMPT) == 8, "two others have it"
    tiers = {"device": "host"}.get(name, "device")
    assert rig.cache.explain(PROMPT).tiers[tiers] == 8
    live = rig.serve(PROMPT)
    assert live.request.hit_tokens == 8
    reset(rig, ["device", "host", "deep"])
    assert served_again(rig, PROMPT) == 0
    rig.finish_all()


def test_request_that_loads_uses_no_block_that_a_reset_took_from_it() -> None:
    """A part of its hit stood on the device, the rest was on its way up from a tier that stays."""
    rig = build(below=(32,), device=16)
    rig.serve(PROMPT)
    rig.evict(0, 1, 0)
    rig.ticks[0].pace = 0.0
    live = rig.admit([*PROMPT, 0])
    assert live.request.sources == {"device": 8, "host": 4}
    reset(rig, ["device"])
    rig.cache.check()
    other = rig.until_ready(rig.admit([9] * 16))
    rig.compute(other, 16)
    assert not set(live.request.slots().tolist()) & set(other.request.slots().tolist())
    rig.ticks[0].pace = 1.0
    rig.until_ready(live)
    assert live.request.hit_tokens == 0
    rig.compute(live, 13)
    rig.end(live)
    rig.end(other)
    rig.settle()
    assert rig.cache.metrics.get("match", "miss", "reset") == 12
    rig.finish_all()


def test_running_request_stores_on_where_only_lower_tiers_are_reset() -> None:
    """Its own blocks are no older than itself: what it computes goes down into the new epoch."""
    rig = build(below=(32,), device=16)
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 4)
    rig.ticks[0].pace = 0.0
    rig.compute(live, 8)
    reset(rig, ["host"])
    rig.ticks[0].pace = 1.0
    rig.compute(live, 12)
    rig.end(live)
    rig.settle()
    rig.serve([*PROMPT, 0])  # what is not below is offered once more
    rig.empty()
    assert served_again(rig, [*PROMPT, 0]) == 12
    rig.finish_all()


def test_slots_under_a_lease_rest_until_it_is_released() -> None:
    rig = build(device=4)
    rig.serve(PROMPT)
    lease = rig.cache.lease(rig.cache.match([*PROMPT, 0])[1])
    reset(rig)
    rig.poll()
    rig.cache.check()
    assert rig.cache.tiers[0].free_blocks(0) == 1
    lease.release()
    rig.poll()
    assert rig.cache.tiers[0].free_blocks(0) == 4
    rig.finish_all()


@SCHEDULES
def test_acknowledgements_that_are_swallowed_cost_nothing_once_the_fence_is_lifted(
    late: bool,
) -> None:
    """An engine drops what its workers report of before a reset: the slots stay fenced until it
    says that they are free, and a report that comes after all changes nothing.
    """
    rig = build(below=(32,), device=8)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT[:8]))
    rig.compute(live, 8)
    reset(rig)
    rig.end(live, fence=rig.fence() if late else None)
    rig.pass_step()
    held = live.request.slots().tolist()
    for _ in range(3):
        rig.poll()
    other = rig.until_ready(rig.admit([9] * 16))
    assert not set(held) & set(other.request.slots().tolist())
    assert rig.states[live.request.id][-1] is RequestState.FINALIZED
    rig.cache.fence_lifted()
    rig.poll()
    rig.cache.check()
    assert rig.states[live.request.id] == list(ORDER)
    assert rig.cache.residency.available(0, 0) == 4
    rig.ticks[0].pace = 1.0
    rig.poll()
    rig.cache.check()
    rig.end(other)
    rig.settle()
    assert served_again(rig, PROMPT) == 0
    rig.finish_all()


def test_slots_that_an_engine_lent_are_on_loan_until_the_fence_is_lifted() -> None:
    rig = build(below=(32,), device=8, ownership=Ownership.BORROWED)
    rig.own = [list(range(8))]
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT[:8]))
    rig.compute(live, 8)
    reset(rig)
    rig.end(live)
    rig.poll()
    assert len(rig.cache.borrowed()) == 1
    rig.cache.fence_lifted()
    rig.poll()
    assert not rig.cache.borrowed() and rig.states[live.request.id] == list(ORDER)
    rig.ticks[0].pace = 1.0
    rig.settle()
    _empty_books(rig)
    rig.finish_all()


def test_tier_with_nothing_under_way_has_swallowed_what_is_missing() -> None:
    rig = build(below=(32,), device=8)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT[:8]))
    rig.compute(live, 8)
    reset(rig)
    rig.ticks[0].pace = 1.0
    assert rig.ticks[0].poll(), "taken by somebody else, and told to nobody"
    rig.end(live)
    rig.settle()
    assert rig.states[live.request.id] == list(ORDER)
    _empty_books(rig)
    rig.finish_all()


@pytest.mark.parametrize("ownership", list(Ownership))
@pytest.mark.parametrize("seed", range(3))
def test_windows_states_and_slots_of_the_engines_are_reset_too(
    seed: int, ownership: Ownership
) -> None:
    groups = mix(random.Random(seed), 4)
    rig = build(groups=groups, below=(64,), device=64, ownership=ownership)
    if ownership is not Ownership.OWNED:
        rig.own = [list(range(64)) for _ in groups]
    rig.serve(PROMPT)
    live = rig.until_ready(rig.admit([*PROMPT, 3, 3, 3, 3], new_tokens=8))
    rig.compute(live, 12)
    rig.preempt(live)
    other = rig.until_ready(rig.admit([*PROMPT, 4], new_tokens=4))
    rig.compute(other, 13)
    reset(rig)
    rig.cache.check()
    assert served_again(rig, PROMPT) == 0
    rig.compute(other, 13)
    rig.end(other)
    again = rig.until_ready(rig.resume(live))
    assert again.request.hit_tokens == 0
    rig.compute(again, len(again.request))
    rig.end(again)
    rig.settle()
    rig.finish_all()


@pytest.mark.parametrize("ownership", [Ownership.OWNED, Ownership.SHARED])
def test_insert_under_a_lease_of_before_is_refused(ownership: Ownership) -> None:
    """C53 for an engine that drives the cache itself: no page stands behind one that is gone."""
    cache = PrefixCache(GROUPS[:1], [IndexTier(16)], page_tokens=4, ownership=ownership)
    slots = {"slots": [[0, 1]]} if ownership is Ownership.SHARED else {}
    with cache.lease(cache.match(PROMPT)[1]) as lease:
        cache.insert(PROMPT[:8], lease, **slots)
        assert lease.pages == 2
        cache.reset()
        cache.check()
        more = {"slots": [[2]]} if slots else {}
        with pytest.raises(LeaseError, match="does not hold"):
            cache.insert(PROMPT, lease, **more)
        cache.check()
    found, cursor = cache.match(PROMPT)
    assert found.hit_pages == 0
    with cache.lease(cursor._replace(pages=0)) as lease:
        cache.insert(PROMPT, lease, **({"slots": [[2, 3, 4]]} if slots else {}))
    cache.poll()
    cache.check()
    assert cache.match(PROMPT)[0].hit_pages == 2
    cache.close()


# ---------------------------------------------------------------- on a disk
def _on_disk(folder: Path, payload: str = "slab") -> Rig:
    disk = DiskTier(folder / "disk", limit_bytes=2 << 20, segment_bytes=1 << 16, payload=payload)
    device = DeviceTier(blocks=16, device="cpu")
    return Rig(PrefixCache(GROUPS[:1], [device, disk], page_tokens=4, events=True), device)


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("flushed", [False, True])
def test_epoch_is_durable_when_reset_returns(tmp_path: Path, payload: str, flushed: bool) -> None:
    """The directory is copied right after the call, as a crash would leave it."""
    rig = _on_disk(tmp_path / "a", payload)
    rig.serve(PROMPT)
    if flushed:
        rig.cache.flush()
    live = rig.until_ready(rig.admit([7] * 12))
    rig.compute(live, 12)  # its stores are under way, and become durable in the old epoch
    reset(rig)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    rig.end(live)
    rig.serve([5] * 12)
    rig.finish_all()
    rig.cache.close()
    crashed = _on_disk(tmp_path / "b", payload)
    assert served_again(crashed, PROMPT) == served_again(crashed, [7] * 12) == 0
    crashed.serve(PROMPT)
    crashed.finish_all()
    crashed.cache.close()
    for folder, found, lost in (("a", [5] * 12, PROMPT), ("b", PROMPT, [7] * 12)):
        again = _on_disk(tmp_path / folder, payload)
        assert again.cache.explain(found).tiers == {"disk": 8}, "what came later is of the new one"
        assert served_again(again, lost) == 0
        again.cache.close()


def test_store_under_way_is_of_the_epoch_in_which_it_began(tmp_path: Path) -> None:
    """Its record becomes durable after the reset; a crash before it is removed must not show it."""
    rig = _on_disk(tmp_path / "a")
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 12)
    reset(rig)
    rig.cache.tiers[1].flush()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    crashed = _on_disk(tmp_path / "b")
    assert crashed.cache.tiers[1].counts.dropped == 3, "the records are there, of an older epoch"
    assert served_again(crashed, PROMPT) == 0
    crashed.cache.close()
    rig.end(live)
    rig.finish_all()
    rig.cache.close()


def test_epoch_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    rig = _on_disk(tmp_path)
    rig.serve(PROMPT)
    index = rig.cache.tiers[1]._disk.index

    def fail(step: str) -> None:
        if step == "epoch":
            raise OSError(28, "as planned")

    index.hook = fail
    with pytest.raises(TierUnavailableError, match="epoch"):
        rig.cache.reset()
    rig.cache.check()
    assert served_again(rig, PROMPT) == 8
    index.hook = lambda step: None
    reset(rig)
    assert served_again(rig, PROMPT) == 0
    rig.finish_all()
    rig.cache.close()


def test_bad_names_are_refused_by_name() -> None:
    rig = build(below=(16,))
    rig.serve(PROMPT)
    with pytest.raises(ValueError, match="'attic'"):
        rig.cache.reset(["host", "attic"])
    with pytest.raises(TypeError, match="sequence of names"):
        rig.cache.reset("host")
    assert served_again(rig, PROMPT) == 8
    rig.finish_all()
