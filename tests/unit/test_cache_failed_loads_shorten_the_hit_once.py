"""A load that fails, is refused, finds no room or brings wrong bytes makes the hit shorter, once
and for all groups; what arrived counts, what is wrong is dropped, nobody tries for ever (I22, I24).
"""

from __future__ import annotations

import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError
from radix.events import RequestState, TransferEvent
from radix.tier import TierMode
from tests.cacherig import GROUPS, Live, Rig, build
from tests.ticktier import peek
from tiers.device import DeviceTier
from tiers.faults import Fault, FaultPlan
from tiers.host import HostTier

PROMPT = list(range(17))  # four pages of four, and one token


def _plan(call: str, *faults: Fault, delay: int = 0) -> FaultPlan:
    return FaultPlan(script={call: dict(enumerate(faults, 1))}, delay_polls=delay, seed=3)


def _on_host_only(plan: FaultPlan, **more: int) -> Rig:
    rig = build(below=(16,), plans=(plan,), **more)
    rig.serve(PROMPT)
    rig.empty()
    return rig


def _run(rig: Rig, tokens: list[int]) -> Live:
    return rig.until_ready(rig.admit(tokens))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("fault", "hit", "reason"),
    [
        (Fault.FAIL, 0, "load failed"),
        (Fault.LOSE, 0, "load failed"),
        (Fault.PART, 8, "load failed"),
        (Fault.REFUSE, 0, "load failed"),
    ],
)
def test_failed_load_is_a_shorter_hit(fault: Fault, hit: int, reason: str, groups: int) -> None:
    """C80, dynamo#15079: the error path counted like success. Here only what arrived is a hit, for
    both groups alike, and the rest is computed.
    """
    rig = _on_host_only(_plan("load", fault), groups=groups)
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == hit
    assert rig.cache.metrics.get("match", "miss", reason) == 16 - hit
    assert rig.cache.metrics.get("match", "hit_tokens", "host") == hit
    rig.compute(live, 17)
    rig.end(live)
    rig.settle()
    assert _run(rig, PROMPT).request.hit_tokens == 16
    rig.finish_all()


def test_refused_load_from_one_tier_leaves_the_other_tiers_pages_alone() -> None:
    """The pages that a hit wants were sorted by tier once, and the loads begun tier by tier: where
    the first was refused the hit became shorter, and the next load named pages behind its end
    (``StaleError`` out of admit). Found by the reference engine under faults.
    """
    rig = build(below=(16, 16), plans=(_plan("load", Fault.REFUSE), FaultPlan()))
    rig.serve(PROMPT)
    rig.empty()
    assert rig.evict(0, 2, 1) == 2, "the last two pages are on the lowest tier alone"
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == 0
    assert rig.cache.metrics.get("match", "miss", "load failed") == 16
    rig.compute(live, 17)
    rig.end(live)
    rig.finish_all()


def test_failing_load_is_not_tried_again_by_the_request() -> None:
    """C78, vllm#49176: the verdict 'present' outlived the failure; the load was tried for ever."""
    rig = _on_host_only(_plan("load", *[Fault.FAIL] * 50))
    live = _run(rig, PROMPT)
    for _ in range(10):
        rig.poll()
    assert live.request.hit_tokens == 0
    assert rig.cache.metrics.get("load", "failed", "host", "kv") == 4, "one job of four blocks"
    rig.finish_all()


def test_corrupt_block_is_dropped_and_what_stands_before_it_is_kept() -> None:
    """C78: a wrong block is a miss with a metric; it is gone, and its place can be filled again."""
    rig = _on_host_only(_plan("load", Fault.CORRUPT))
    live = _run(rig, PROMPT)
    hit = live.request.hit_tokens
    metrics = rig.cache.metrics
    assert hit < 16 and metrics.get("match", "miss", "corrupt") == 16 - hit
    assert metrics.get("load", "corrupt", "host", "kv") == 1
    assert rig.cache.usage()["host"].used_blocks == (3,)
    rig.end(live, abort=True)
    rig.poll()
    rig.empty()
    told = rig.cache.explain(PROMPT)
    assert told.hit_tokens == hit and told.reason == "corrupt"
    rig.serve(PROMPT)
    rig.empty()
    assert rig.cache.explain(PROMPT).hit_tokens == 16
    rig.finish_all()


def test_bit_that_turns_over_in_memory_is_never_a_hit() -> None:
    """The real host tier, with checksums, under a real bit flip."""
    host = HostTier(16 * 4096, segment_bytes=4096, verify=True)
    cache = PrefixCache(
        GROUPS[:1], [DeviceTier(blocks=16, device="cpu"), host], page_tokens=4, events=True
    )
    rig = Rig(cache, cache.tiers[0])
    rig.serve(PROMPT)
    rig.empty()
    column = cache.tree.column(0, 1)
    found, cursor = cache.match(PROMPT)
    peek(host, 0, int(cache.tree.slots(cursor, column, 2, 1)[0]))[17] ^= 4
    live = _run(rig, PROMPT)
    assert found.hit_pages == 4 and live.request.hit_tokens == 8
    assert cache.metrics.get("match", "miss", "corrupt") == 8
    assert cache.usage()["host"].used_blocks == (3,)
    rig.finish_all()
    cache.close()


def test_two_requests_on_one_load_that_fails_both_go_on() -> None:
    """C79, vllm#37827: blocks shared by two waiting requests were marked valid although the load
    of one of them had failed.
    """
    rig = _on_host_only(_plan("load", Fault.FAIL, Fault.FAIL, delay=2), device=16)
    first, second = rig.admit(PROMPT), rig.admit(PROMPT)
    assert len(rig.cache.transfers.jobs) == 1, "one load for both"
    for _ in range(8):
        rig.poll()
    assert first.request.ready and second.request.ready
    assert first.request.hit_tokens == second.request.hit_tokens == 0
    loads = rig.cache.metrics.get("load", "failed", "host", "kv")
    assert loads == 8, "the second tried once itself"
    rig.finish_all()


def test_two_requests_on_one_load_that_succeeds_share_its_blocks() -> None:
    """Each kept room for the load. The one that waits gives its own back and names the same."""
    rig = _on_host_only(FaultPlan(), device=16)
    rig.ticks[0].pace = 0.0
    first, second = rig.admit(PROMPT), rig.admit(PROMPT)
    assert rig.cache.usage()["device"].used_blocks == (10,)
    rig.ticks[0].pace = 1.0
    rig.until_ready(first)
    rig.until_ready(second)
    assert first.request.slots()[:4].tolist() == second.request.slots()[:4].tolist()
    assert rig.cache.usage()["device"].used_blocks == (6,)
    assert rig.cache.metrics.get("load", "blocks", "host", "kv") == 4
    rig.finish_all()


def test_page_computed_while_it_is_loaded_counts_and_the_load_gives_its_slot_back() -> None:
    """The load of one request was passed by the computation of another; then it failed, and took
    pages from the page table that belonged to the tree.
    """
    for fault in ({}, {1: Fault.FAIL}, {1: Fault.PART}):
        rig = build(below=(16, 16), plans=(None, FaultPlan(script={"load": fault})))
        rig.serve(PROMPT)
        for tier in (0, 1):
            rig.empty(tier)
        rig.ticks[1].pace = 0.0
        waits = rig.admit(PROMPT)
        # this one computes the same pages meanwhile: it began with a prompt that hits nothing
        other = rig.until_ready(rig.admit(PROMPT[:3], new_tokens=14))
        other.request.append(PROMPT[3:])
        rig.compute(other, 17)
        rig.cache.check()
        rig.ticks[1].pace = 1.0
        rig.until_ready(waits)
        assert waits.request.hit_tokens == 16
        rig.cache.check()
        rig.compute(waits, 17)
        rig.finish_all()


def test_slot_under_a_load_is_given_back_only_when_the_load_has_ended() -> None:
    """Pages that another request computed passed the frontier while a load into this request's own
    slots still ran; those slots were named by nobody then, and were lost.
    """
    rig = _on_host_only(FaultPlan(), device=16)
    waits = rig.admit(PROMPT)
    rig.ticks[0].held = set(rig.cache.transfers.jobs)
    other = rig.until_ready(rig.admit(PROMPT[:3], new_tokens=14))
    other.request.append(PROMPT[3:])
    rig.compute(other, 17)
    third = rig.until_ready(rig.admit([2, 2, 2, 2, 2]))
    rig.compute(third, 5)
    for _ in range(3):
        rig.poll()  # its store ends, so that what waits is looked at
    rig.cache.check()
    assert not waits.request.ready
    rig.ticks[0].held = set()
    rig.until_ready(waits)
    assert waits.request.slots()[:4].tolist() == other.request.slots()[:4].tolist()
    rig.cache.check()
    rig.finish_all()


def test_request_does_not_run_while_something_is_written_into_its_slots() -> None:
    """One group's load has failed, the other's still writes where the request would compute."""
    rig = _on_host_only(_plan("load", Fault.FAIL), groups=2)
    live = rig.admit(PROMPT)
    rig.ticks[0].held = set(rig.cache.transfers.jobs)
    for _ in range(3):
        rig.poll()
    assert live.request.hit_tokens == 0 and not live.request.ready
    rig.ticks[0].held = set()
    rig.until_ready(live)
    rig.compute(live, 17)
    rig.poll()
    rig.finish_all()


def test_groups_that_lie_on_different_tiers_load_what_each_needs() -> None:
    """Pages of one group are on the device, of the other below: each loads its own, the hit counts
    once, by the lowest tier that served it, and nothing of the tree is taken for private.
    """
    rig = build(groups=2, below=(16,), plans=(_plan("load", Fault.PART),), device=8)
    rig.serve(PROMPT)
    rig.cache.evict(1, 2)  # group 1 keeps two pages, group 0 all four
    assert rig.cache.explain(PROMPT).tiers == {"device": 8, "host": 8}
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == 12, "the second of two blocks failed"
    metrics = rig.cache.metrics
    assert metrics.get("load", "blocks", "host", "latent") == 1
    assert metrics.get("load", "blocks", "host", "kv") == 0
    assert metrics.get("match", "hit_tokens", "host") == 4
    assert metrics.get("match", "hit_tokens", "device") == 8
    rig.compute(live, 17)
    rig.end(live)
    rig.finish_all()


@pytest.mark.parametrize("group", [0, 1])
def test_group_that_arrived_where_the_other_did_not_stays_private(group: int) -> None:
    """Blocks of one group were shared with the tree beyond what all groups had; when the hit was
    shortened, the request computed into them, and freed them a second time.
    """
    faults = [Fault.PART if number == group else None for number in range(2)]
    script = {number: fault for number, fault in enumerate(faults, 1) if fault}
    rig = _on_host_only(FaultPlan(script={"load": script}), groups=2)
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == 8
    rig.cache.check()
    for found in (rig.cache.explain(PROMPT).device_tokens, live.request.hit_tokens):
        assert found == 8
    rig.end(live, abort=True)
    rig.poll()
    rig.cache.check()
    rig.finish_all()


def test_block_still_being_written_is_no_hit() -> None:
    """C82, LMCache#207: a key was readable before its data was complete."""
    rig = build(below=(16,))
    rig.ticks[0].pace = 0.0
    live = _run(rig, PROMPT)
    rig.compute(live, 17)
    rig.end(live)
    rig.poll()
    assert rig.cache.explain(PROMPT).tiers == {"device": 16}
    assert rig.cache.usage()["host"].used_blocks == (4,), "reserved, and not to be seen"
    assert len(rig.cache.evict(0, 9)) == 0, "the copy reads them (C74)"
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert len(rig.cache.evict(0, 9)) == 4
    assert rig.cache.explain(PROMPT).tiers == {"host": 16}
    rig.finish_all()


def test_source_of_a_load_stays_until_it_ends() -> None:
    """C74, sglang#31427: the host block was freed when the load was queued."""
    rig = _on_host_only(FaultPlan())
    rig.ticks[0].pace = 0.0
    live = rig.admit(PROMPT)
    assert len(rig.cache.evict(0, 9, tier=1)) == 0
    rig.end(live, abort=True)
    assert len(rig.cache.evict(0, 9, tier=1)) == 0, "the copy still reads, whoever asked for it"
    rig.ticks[0].pace = 1.0
    rig.settle()
    assert len(rig.cache.evict(0, 9, tier=1)) == 4
    rig.finish_all()


def test_waiting_requests_load_no_more_than_admission_grants() -> None:
    """C83, vllm#49902: every waiting request promoted its blocks at lookup, without a limit."""
    rig = build(device=8, below=(4, 64))
    for number in range(12):
        rig.serve([number % 3, number // 3, *[2] * 7])
    rig.empty(0)
    rig.empty(1)
    rig.ticks[1].pace = 0.0
    admitted = 0
    for number in range(12):
        try:
            rig.admit([number % 3, number // 3, *[2] * 7])
            admitted += 1
        except CapacityError:
            pass
    assert admitted == 2, "three slots each of eight"
    assert sum(len(job.keys) for job in rig.cache.transfers.jobs.values()) <= 4
    for number in range(12):
        rig.cache.explain([number % 3, number // 3, *[2] * 7])
    assert len(rig.cache.transfers.jobs) <= 2, "looking loads nothing"
    rig.ticks[1].pace = 1.0
    rig.finish_all()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_hit_larger_than_the_tier_between_streams_through_it(blocks: int, groups: int) -> None:
    """The pin of a request held what had passed through: the hit ended where the tier between was
    full, and what was computed behind a prefix that filled it never came down.
    """
    rig = build(device=16, below=(blocks, 16), groups=groups)
    for length in (5, 9, 13, 17):
        rig.serve(PROMPT[:length])  # a page each comes down through so small a tier
    rig.empty(0)
    rig.empty(1)
    assert rig.cache.explain(PROMPT).tiers == {"deep": 16}
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == 16
    assert rig.cache.metrics.get("load", "blocks", "deep", "kv") == 4
    assert rig.cache.metrics.get("match", "miss", "no room") == 0
    rig.compute(live, 17)
    rig.finish_all()


def test_load_is_acted_upon_whoever_waits_before_it() -> None:
    """C84, sglang#32724: a load that had ended was finalised only at its turn in the queue."""
    rig = build(device=32, below=(32,))
    prompts = [[number, *[1] * 8] for number in range(3)]
    for prompt in prompts:
        rig.serve(prompt)
    rig.empty()
    waiting = [rig.admit(prompt) for prompt in prompts]
    rig.ticks[0].held = set(list(rig.cache.transfers.jobs)[:2])
    rig.poll()
    assert [live.request.ready for live in waiting] == [False, False, True]
    rig.ticks[0].held = set()
    rig.finish_all()


def test_miss_reserves_nothing_below_and_waits_for_nothing() -> None:
    """C85, sglang#31402: room was taken before it was known that there is a hit."""
    rig = build(below=(16, 16))
    live = rig.admit(PROMPT)
    assert live.request.state is RequestState.RUNNING
    assert rig.cache.usage()["host"].used_blocks == rig.cache.usage()["deep"].used_blocks == (0,)
    rig.finish_all()


@pytest.mark.parametrize("call", ["reserve", "load"])
def test_tier_that_goes_off_in_the_middle_costs_the_hit_alone(call: str) -> None:
    """A tier may go off in any call. The error left admit, with the request half made."""
    plan = FaultPlan(script={call: {(2 if call == "reserve" else 1): Fault.OFF}})
    rig = build(below=(16, 16), plans=(plan, None))
    rig.serve(PROMPT)
    rig.empty(0)
    if call == "reserve":
        rig.empty(1)
    live = _run(rig, PROMPT)
    assert live.request.hit_tokens == 0 and rig.cache.tiers[1].mode is TierMode.OFF
    rig.finish_all()


def test_tier_switched_off_is_a_reason_and_its_blocks_come_back_with_it() -> None:
    rig = _on_host_only(FaultPlan())
    rig.cache.set_mode("host", TierMode.OFF)
    assert rig.cache.explain(PROMPT).reason == "tier out"
    assert _run(rig, PROMPT).request.hit_tokens == 0
    rig.cache.set_mode("host", TierMode.READ_ONLY)
    assert _run(rig, PROMPT).request.hit_tokens == 16
    assert rig.cache.metrics.get("match", "miss", "tier out") == 16
    rig.finish_all()


def test_transfers_tell_what_failed() -> None:
    rig = _on_host_only(_plan("load", Fault.FAIL))
    rig.admit(PROMPT)
    ended = [event for event in rig.poll() if isinstance(event, TransferEvent)]
    assert [(event.source, event.target, event.good, event.blocks) for event in ended] == [
        ("host", "device", 0, 4)
    ]
    assert "as planned" in str(ended[0].error)
    rig.finish_all()
