"""Each row of what the engine's connector relies on: answers hold until the step ends, waits end,
offers keep their order, completions are sets that come late or never.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import (
    Locality,
    Medium,
    OffloadingManager,
    OffloadPolicy,
    TierFilter,
    TierMatcher,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from radix.engines.vllm.offload import Offload
from radix.errors import InvariantError, TierUnavailableError
from radix.events import RequestState
from radix.tier import TierMode
from tests.vllm.offloadrig import (
    BLOCK,
    HIT,
    MISS,
    PENDING,
    OffloadRig,
    content,
    context_of,
    key_of,
    keys_of,
)
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier

ONLY_DISK = TierFilter((TierMatcher(medium=Medium.STORAGE),))
ONLY_HOST = TierFilter((TierMatcher(medium=Medium.CPU),))


def on_disk(rig: OffloadRig, *numbers: int) -> list[bytes]:
    """Blocks that only the tier below has."""
    keys = keys_of(*numbers)
    rig.keep(keys)
    rig.evict_host()
    return keys


def test_every_call_of_the_engine_is_answered() -> None:
    """The base class would answer what we forget, and the engine would not notice."""
    asked = {name for name in vars(OffloadingManager) if not name.startswith("_")}
    assert asked <= set(vars(Offload))


# ---------------------------------------------------------------- looking
def test_blocks_are_offered_one_by_one() -> None:
    rig = OffloadRig()
    assert rig.offload.on_new_request(context_of("r")).policy is OffloadPolicy.CHUNK_LEVEL


def test_unknown_block_is_a_miss_and_kept_one_a_hit_with_its_bytes() -> None:
    rig = OffloadRig()
    keys = keys_of(1, 2)
    request = rig.request(keys)
    assert rig.look(keys, request) == [MISS, MISS]
    rig.step()
    rig.keep(keys)
    assert rig.look(keys, request) == [HIT, HIT]
    assert rig.load(keys, request) == []


def test_hit_stays_until_the_step_ends_whatever_else_needs_room() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    request, other = rig.request(keys_of(1, 2)), rig.request()
    assert rig.look(keys_of(1, 2), request) == [HIT, HIT]
    assert rig.offload.prepare_store(keys_of(3, 4), other) is not None
    assert rig.offload.prepare_store(keys_of(5), other) is None, "it would take what was answered"
    assert rig.load(keys_of(1, 2), request) == []
    rig.step()
    assert rig.offload.prepare_store(keys_of(5), other) is not None


def test_hit_stays_while_promotions_of_others_arrive_in_the_step(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    on_disk(rig, 1, 2)
    waiting = rig.request(keys_of(1, 2))
    assert rig.look(keys_of(1, 2), waiting) == [PENDING, PENDING]
    rig.keep(keys_of(8, 9))
    request = rig.request(keys_of(8, 9))
    assert rig.look(keys_of(8, 9), request) == [HIT, HIT]
    rig.offload._promotions.submit(1)
    rig.settle()
    assert rig.load(keys_of(8, 9), request) == []
    rig.close()


def test_load_of_what_was_not_answered_is_refused() -> None:
    rig = OffloadRig()
    with pytest.raises(InvariantError, match="was not answered as a hit in this step"):
        rig.offload.prepare_load(keys_of(1), rig.request(keys_of(1)))
    assert not rig.store.tree.stats().leases


def test_lookup_may_be_followed_by_nothing() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    rig.look(keys_of(1, 2), rig.request(keys_of(1, 2)))
    rig.step()
    assert not rig.store.tree.stats().leases
    rig.keep(keys_of(3, 4))
    rig.keep(keys_of(5, 6))


def test_being_looked_up_offered_again_and_loaded_counts_as_use() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2, 3, 4)[:2])
    rig.keep(keys_of(3, 4))
    request = rig.request(keys_of(1))
    assert rig.look(keys_of(1), request) == [HIT]
    rig.step()
    rig.keep(keys_of(5, 6))
    assert rig.look(keys_of(1, 2), rig.request()) == [HIT, MISS]
    rig.step()
    rig.keep(keys_of(3, 4)), rig.step()
    rig.keep(keys_of(1))  # offered again
    rig.keep(keys_of(7, 8, 9)[:2])
    assert rig.look(keys_of(1), rig.request()) == [HIT]


def test_promotion_is_pending_then_a_hit_from_the_disk(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1, 2, 3)
    request = rig.request(keys)
    assert rig.look(keys, request) == [PENDING] * 3
    assert rig.offload.has_pending_work()
    rig.step()
    rig.settle()
    assert not rig.offload.has_pending_work()
    assert rig.look(keys, request) == [HIT] * 3
    assert rig.load(keys, request) == []
    assert {rig.offload.get_load_source(key, request) for key in keys} == {CacheHitSource.DISK}
    other = rig.request(keys)
    assert rig.offload.get_load_source(keys[0], other) is CacheHitSource.HOST
    rig.close()


def test_corrupt_block_below_is_a_miss_and_never_a_hit() -> None:
    plan = FaultPlan(script={"load": {1: Fault.CORRUPT}})
    rig = OffloadRig(8, disk=FaultyTier(HostTier(1 << 20, "below", verify=True), plan))
    keys = on_disk(rig, 1)
    assert rig.answer(keys, rig.request(keys)) == [MISS]
    assert rig.count("load.corrupt.below.group-0") == 1


def test_failed_promotion_is_a_miss_for_who_asked_and_is_not_tried_again() -> None:
    plan = FaultPlan(script={"load": {1: Fault.REFUSE}})
    rig = OffloadRig(8, disk=FaultyTier(HostTier(1 << 20, "below", verify=True), plan))
    keys = on_disk(rig, 1)
    request = rig.request(keys)
    assert rig.answer(keys, request) == [MISS]
    assert rig.answer(keys, rig.request(keys)) == [HIT], "the block is there for the next"


def test_promotion_that_finds_no_room_is_a_miss(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    keys = on_disk(rig, 1, 2)
    busy = rig.request(keys_of(50, 51, 52, 53))
    for number in (50, 51, 52, 53):
        assert rig.offload.prepare_store(keys_of(number), busy) is not None  # all slots taken
    assert rig.answer(keys, rig.request(keys)) == [MISS, MISS]
    rig.close()


def test_hit_larger_than_the_host_tier_is_taken_as_far_as_it_fits(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = keys_of(*range(1, 21))
    for key in keys:
        rig.keep([key])
        rig.settle()
    rig.evict_host()
    found = rig.answer(keys, rig.request(keys))
    hits = found.index(MISS)
    assert 2 <= hits <= 8 and set(found[hits:]) == {MISS}
    rig.close()


def test_two_requests_wait_for_one_promotion(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1, 2)
    one, two = rig.request(keys), rig.request(keys)
    assert rig.look(keys, one) == rig.look(keys, two) == [PENDING, PENDING]
    rig.offload.on_request_finished(one)  # aborted: it was the one that asked first
    assert rig.answer(keys, two) == [HIT, HIT]
    assert rig.load(keys, two) == []
    rig.close()


def test_promoted_blocks_stay_until_the_request_looks_again(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    keys = on_disk(rig, 1, 2)
    request, other = rig.request(keys), rig.request()
    rig.look(keys, request)
    rig.step()
    rig.settle()
    assert rig.offload.prepare_store(keys_of(70, 71), other) is not None
    assert rig.offload.prepare_store(keys_of(72), other) is None
    for _ in range(3):
        rig.step()
    assert rig.look(keys, request) == [HIT, HIT]
    rig.step()
    assert not rig.offload._promotions.waiting
    rig.close()


def test_request_that_never_looks_again_does_not_pin_for_ever(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    keys = on_disk(rig, 1, 2)
    rig.look(keys, rig.request(keys))
    for _ in range(260):
        rig.offload.on_schedule_end(None)
    rig.settle()
    assert not rig.offload._promotions.waiting and not rig.store.tree.stats().leases
    rig.close()


def test_request_takes_blocks_only_from_the_tiers_that_it_allows(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    below = on_disk(rig, 1)
    rig.keep(keys_of(2))  # in both once it is written down
    host = rig.request(below + keys_of(2), tiers=ONLY_HOST)
    assert rig.look(below + keys_of(2), host) == [MISS, HIT]
    rig.settle()
    assert rig.look(keys_of(2), rig.request(keys_of(2), tiers=ONLY_DISK)) == [HIT]
    none = rig.request(below, tiers=TierFilter(()))
    assert rig.look(below + keys_of(2), none) == [MISS, MISS]
    assert rig.answer(below, rig.request(below, tiers=ONLY_DISK)) == [HIT]
    assert rig.count("missed.tier filter") == 3
    assert TierFilter.ALL.allows(Medium.CPU, Locality.LOCAL)
    rig.close()


# ---------------------------------------------------------------- storing
def test_offer_keeps_its_order_over_groups_and_leaves_out_what_is_there() -> None:
    rig = OffloadRig(16, groups=2)
    rig.keep([key_of(2, 0), key_of(5, 1)])
    keys = [key_of(1, 0), key_of(5, 1), key_of(2, 0), key_of(6, 1), key_of(3, 0), key_of(3, 1)]
    out = rig.offload.prepare_store(keys, rig.request(keys))
    assert out is not None
    assert out.keys_to_store == [keys[0], keys[3], keys[4], keys[5]]
    assert out.store_spec.groups.tolist() == [0, 1, 0, 1]
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(out.keys_to_store), rig.request())
    request = rig.request(keys)
    assert rig.look(keys, request) == [HIT] * 6
    assert rig.load(keys, request) == []


def test_block_in_flight_counts_as_there_and_is_pending_until_it_is() -> None:
    rig = OffloadRig()
    one, two = rig.request(keys_of(1)), rig.request(keys_of(1))
    out = rig.offload.prepare_store(keys_of(1), one)
    again = rig.offload.prepare_store(keys_of(1, 2), two)
    assert out is not None and again is not None
    assert (out.keys_to_store, again.keys_to_store) == (keys_of(1), keys_of(2))
    assert rig.look(keys_of(1), two) == [PENDING]
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(keys_of(1)), one)
    assert rig.look(keys_of(1), two) == [HIT]


def test_no_room_takes_nothing_and_the_same_offer_is_taken_later() -> None:
    rig = OffloadRig(4)
    request = rig.request()
    out = rig.offload.prepare_store(keys_of(1, 2), request)
    more = rig.offload.prepare_store(keys_of(3, 4), request)
    assert out is not None and more is not None
    assert rig.offload.prepare_store(keys_of(5, 6), request) is None
    rig.offload.check()
    assert rig.host.usage().used_blocks == (4,)
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(out.keys_to_store), request)
    again = rig.offload.prepare_store(keys_of(5, 6), request)
    assert again is not None and again.keys_to_store == keys_of(5, 6)


def test_victims_are_never_among_the_offer() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    rig.keep(keys_of(3, 4))  # 1 and 2 are the oldest
    out = rig.offload.prepare_store(keys_of(1, 5), rig.request())
    assert out is not None and out.keys_to_store == keys_of(5)
    assert rig.look(keys_of(1), rig.request()) == [HIT]


def test_offer_larger_than_the_host_tier_is_taken_in_part() -> None:
    rig = OffloadRig(8)
    out = rig.offload.prepare_store(keys_of(*range(40)), rig.request())
    assert out is not None and out.keys_to_store == keys_of(*range(4))
    assert rig.count("declined.too large") == 1


def test_completions_of_several_jobs_may_come_as_one_set_or_in_parts() -> None:
    rig = OffloadRig(16)
    request = rig.request()
    first = rig.offload.prepare_store(keys_of(1, 2), request)
    second = rig.offload.prepare_store(keys_of(3), request)
    assert first is not None and second is not None
    for out in (first, second):
        rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(keys_of(3, 1)), request)
    assert rig.look(keys_of(3), request) == [HIT]
    rig.offload.complete_store(set(keys_of(2)), request)
    assert rig.look(keys_of(1, 2), request) == [HIT, HIT]
    assert rig.load(keys_of(1, 2, 3), request) == []


def test_store_that_failed_leaves_no_trace() -> None:
    rig = OffloadRig()
    request = rig.request()
    assert rig.offload.prepare_store(keys_of(1), request) is not None
    rig.offload.complete_store(set(keys_of(1)), request, success=False)
    assert rig.look(keys_of(1), request) == [MISS]
    assert rig.host.usage().used_blocks == (0,)


def test_completion_of_nothing_under_way_is_counted_and_changes_nothing() -> None:
    rig = OffloadRig()
    request = rig.request()
    rig.offload.complete_store(set(keys_of(1)), request)
    rig.offload.complete_load(set(keys_of(1)), request)
    assert (rig.count("late.stores"), rig.count("late.loads")) == (1, 1)
    assert rig.look(keys_of(1), request) == [MISS]


def test_blocks_under_a_load_stay_until_it_is_complete() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    one, two = rig.request(keys_of(1, 2)), rig.request(keys_of(1, 2))
    for request in (one, two):
        rig.look(keys_of(1, 2), request)
        rig.offload.prepare_load(keys_of(1, 2), request)
    rig.step()
    assert rig.offload.prepare_store(keys_of(3, 4), rig.request()) is not None
    rig.offload.complete_load(set(keys_of(1, 2)), one)
    assert rig.offload.prepare_store(keys_of(5), rig.request()) is None, "the other still reads"
    rig.step()
    rig.offload.complete_load(set(keys_of(1, 2)), two)
    assert rig.offload.prepare_store(keys_of(5), rig.request()) is not None


# ---------------------------------------------------------------- a request's end
def test_three_events_in_order_once_the_last_after_every_transfer() -> None:
    rig = OffloadRig()
    request = rig.request(keys_of(1))
    out = rig.offload.prepare_store(keys_of(1), request)
    assert out is not None and rig.ends == []
    rig.offload.on_request_finished(request)
    rig.offload.on_request_finished(request)
    states = [state for _, state in rig.ends]
    assert states == [RequestState.GENERATION_DONE, RequestState.FINALIZED]
    late = rig.offload.prepare_store(keys_of(2), request)
    assert late is not None and late.keys_to_store == [], "nothing is stored behind the end"
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(out.keys_to_store), request)
    assert [state for _, state in rig.ends][2:] == [RequestState.RELEASED]
    assert rig.look(keys_of(1), rig.request()) == [HIT]
    assert rig.count("request.released") == 1


def test_aborted_request_is_released_once_what_was_promoted_for_it_has_come(
    tmp_path: Path,
) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1, 2)
    request = rig.request(keys)
    rig.look(keys, request)
    rig.step()
    before = len(rig.ends)
    rig.offload.on_request_finished(request)
    rig.settle()
    rig.step()
    assert [state for _, state in rig.ends[before:]][-1] is RequestState.RELEASED
    assert not rig.offload.has_pending_work() and not rig.offload.lives.alive
    rig.close()


# ---------------------------------------------------------------- reset
def test_nothing_of_before_a_reset_is_found_in_any_tier_nor_after_a_restart(
    tmp_path: Path,
) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1, 2)
    rig.keep(keys_of(3))
    rig.offload.reset_cache()
    everything = keys + keys_of(3)
    assert rig.answer(everything, rig.request(everything)) == [MISS] * 3
    rig.keep(keys_of(9))
    rig.settle()
    rig.close()
    rig = OffloadRig(8, tmp_path)
    again = everything + keys_of(9)
    assert rig.answer(again, rig.request(again)) == [MISS, MISS, MISS, HIT]
    rig.close()


def test_slots_of_swallowed_stores_rest_until_a_later_job_is_complete() -> None:
    rig = OffloadRig(2)
    old = rig.request()
    out = rig.offload.prepare_store(keys_of(1), old)
    assert out is not None
    rig.offload.reset_cache()
    assert rig.offload.has_pending_work(), "the engine goes on stepping until they are free"
    new = rig.request()
    fresh = rig.offload.prepare_store(keys_of(1), new)
    assert fresh is not None and fresh.keys_to_store == keys_of(1)
    assert fresh.store_spec.slots.tolist() != out.store_spec.slots.tolist()
    assert rig.offload.prepare_store(keys_of(2), new) is None
    rig.fill(out.keys_to_store, out.store_spec, weights=0)  # the worker knows of no reset
    rig.fill(fresh.keys_to_store, fresh.store_spec, weights=1)
    rig.offload.complete_store(set(keys_of(1)), new)
    assert not rig.offload.has_pending_work()
    assert rig.host.usage().used_blocks == (1,)
    rig.look(keys_of(1), new)
    slots = rig.offload.prepare_load(keys_of(1), new)
    assert rig.wrong(keys_of(1), slots, weights=1) == []


def test_slots_of_swallowed_jobs_are_free_after_a_few_steps_of_an_idle_engine() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    request = rig.request(keys_of(1, 2))
    rig.look(keys_of(1, 2), request)
    rig.offload.prepare_load(keys_of(1, 2), request)
    assert rig.offload.prepare_store(keys_of(3, 4), rig.request()) is not None
    rig.offload.reset_cache()
    rig.offload.reset_cache()  # two are one
    steps = 0
    while rig.offload.has_pending_work():
        assert rig.offload.prepare_store(keys_of(7), rig.request()) is None
        rig.step()
        steps += 1
    assert 2 < steps < 10
    rig.step()
    assert rig.host.usage().used_blocks == (0,) and not rig.store.tree.stats().leases


def test_word_of_the_engine_ends_the_rest_at_once() -> None:
    rig = OffloadRig(4)
    assert rig.offload.prepare_store(keys_of(1), rig.request()) is not None
    rig.offload.reset_cache()
    rig.offload.on_reset_flushed()
    assert not rig.offload.has_pending_work()
    assert rig.host.usage().used_blocks == (0,)


def test_promotion_under_way_at_a_reset_brings_nothing_and_nobody_waits(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1, 2)
    request = rig.request(keys)
    rig.look(keys, request)
    rig.step()
    rig.offload.reset_cache()
    assert not rig.offload.has_pending_work()
    assert rig.look(keys, request) == [MISS, MISS]
    rig.step()
    rig.settle()
    assert rig.look(keys, request) == [MISS, MISS]
    rig.close()


def test_reset_that_cannot_be_made_durable_says_so_and_switches_the_cache_off() -> None:
    class Stuck(FaultyTier):
        def renew(self) -> None:
            raise TierUnavailableError(self.name, "no new epoch")

    rig = OffloadRig(8, disk=Stuck(HostTier(1 << 20, "below"), FaultPlan()))
    rig.keep(keys_of(1))
    request = rig.request(keys_of(1, 2))
    out = rig.offload.prepare_store(keys_of(2), request)
    assert out is not None
    with pytest.raises(TierUnavailableError, match="no new epoch"):
        rig.offload.reset_cache()
    assert rig.look(keys_of(1, 2), request) == [MISS, MISS]
    nothing = rig.offload.prepare_store(keys_of(3), request)
    assert nothing is not None and nothing.keys_to_store == []
    rig.offload.complete_store(set(keys_of(2)), request)  # the engine still tells
    assert rig.look(keys_of(2), request) == [MISS]
    rig.step()
    rig.close()


# ---------------------------------------------------------------- around it
def test_preempted_request_finds_what_it_stored() -> None:
    rig = OffloadRig()
    request = rig.request(keys_of(1, 2))
    out = rig.offload.prepare_store(keys_of(1, 2), request)
    assert out is not None
    rig.step(preempted=[request.req_id])
    assert rig.look(keys_of(1, 2), request) == [PENDING, PENDING]
    rig.fill(out.keys_to_store, out.store_spec)
    rig.offload.complete_store(set(keys_of(1, 2)), request)
    assert rig.look(keys_of(1, 2), request) == [HIT, HIT]


def test_restart_serves_from_disk(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    rig.keep(keys_of(1, 2, 3))
    rig.close()  # writes down what is under way
    rig = OffloadRig(8, tmp_path)
    request = rig.request(keys_of(1, 2, 3))
    assert rig.answer(keys_of(1, 2, 3), request) == [HIT] * 3
    assert rig.load(keys_of(1, 2, 3), request) == []
    rig.close()


def test_disk_that_is_off_costs_hits_and_nothing_else(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = on_disk(rig, 1)
    rig.store.set_mode("disk", TierMode.OFF)
    assert rig.answer(keys, rig.request(keys)) == [MISS]
    rig.keep(keys)
    assert rig.answer(keys, rig.request(keys)) == [HIT]
    rig.close()


def test_events_name_blocks_by_the_engines_keys_and_the_medium(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path, groups=2, events=True)
    keys = [key_of(1, 0), key_of(2, 0), key_of(1, 1)]
    rig.keep(keys)
    rig.settle()
    resident: dict[Medium, set[bytes]] = {Medium.CPU: set(), Medium.STORAGE: set()}

    def replay() -> None:
        rig.offload._poll()
        for event in rig.offload.take_events():
            for key in event.keys:
                assert (key in resident[event.medium]) == event.removed
                resident[event.medium].symmetric_difference_update([key])

    replay()
    assert resident == {Medium.CPU: set(keys), Medium.STORAGE: set(keys)}
    for number in range(5, 15):
        rig.keep([key_of(number, 0)])
        rig.settle()
    replay()
    assert len(resident[Medium.CPU]) == 8 and len(resident[Medium.STORAGE]) == 13
    rig.offload.reset_cache()
    replay()
    assert resident == {Medium.CPU: set(), Medium.STORAGE: set()}
    rig.close()


def test_no_event_is_kept_where_nobody_takes_them() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1))
    rig.offload._poll()
    assert list(rig.offload.take_events()) == []


def test_touch_counts_as_use() -> None:
    rig = OffloadRig(4)
    rig.keep(keys_of(1, 2))
    rig.keep(keys_of(3, 4))
    rig.offload.touch(keys_of(1, 2), rig.request())
    rig.keep(keys_of(5, 6))
    assert rig.look(keys_of(1, 3), rig.request()) == [HIT, MISS]


def test_calls_after_the_end_are_answered_with_nothing(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    rig.close()
    rig.close()
    assert rig.offload.get_stats() is None and list(rig.offload.take_events()) == []


def test_block_hashes_of_another_width_are_told_apart() -> None:
    rig = OffloadRig()
    short = [b"%016d" % n + (0).to_bytes(4, "big") for n in (1, 2)]
    rig.keep(short[:1])
    assert rig.look(short, rig.request(short)) == [HIT, MISS]
    with pytest.raises(ValueError, match="a key of group 7"):
        rig.offload.lookup(b"x" * 32 + (7).to_bytes(4, "big"), rig.request())


def test_content_of_the_rig_tells_keys_and_weights_apart() -> None:
    assert not np.array_equal(content(key_of(1)), content(key_of(2)))
    assert not np.array_equal(content(key_of(1)), content(key_of(1), 1))
    assert len(content(key_of(1))) == BLOCK
