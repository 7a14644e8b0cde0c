"""A hit holds until the step ends, whatever happens in between; what is pending ends, as a hit or
as a miss for who asked; what lies below is verified before it is one (I19, C78, C83).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadPolicy,
    TierFilter,
    TierMatcher,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from radix.engines.vllm.geometry import Geometry
from radix.errors import InvariantError
from radix.service.backend import Service as Where
from tests.service.rig import Service
from tests.vllm.offloadrig import (
    BLOCK,
    HIT,
    MISS,
    PENDING,
    SPACE,
    OffloadRig,
    context_of,
    keys_of,
)
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier

ONLY_DISK = TierFilter((TierMatcher(medium=Medium.STORAGE),))
ONLY_HOST = TierFilter((TierMatcher(medium=Medium.CPU),))


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
    rig.below(1, 2)
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
    keys = rig.below(1, 2, 3)
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
    keys = rig.below(1)
    assert rig.answer(keys, rig.request(keys)) == [MISS]
    assert rig.count("load.corrupt.below.group-0") == 1


def test_failed_promotion_is_a_miss_for_who_asked_and_is_not_tried_again() -> None:
    plan = FaultPlan(script={"load": {1: Fault.REFUSE}})
    rig = OffloadRig(8, disk=FaultyTier(HostTier(1 << 20, "below", verify=True), plan))
    keys = rig.below(1)
    request = rig.request(keys)
    assert rig.answer(keys, request) == [MISS]
    assert rig.answer(keys, rig.request(keys)) == [HIT], "the block is there for the next"


def test_promotion_that_finds_no_room_is_a_miss(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    keys = rig.below(1, 2)
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
    keys = rig.below(1, 2)
    one, two = rig.request(keys), rig.request(keys)
    assert rig.look(keys, one) == rig.look(keys, two) == [PENDING, PENDING]
    rig.offload.on_request_finished(one)  # aborted: it was the one that asked first
    assert rig.answer(keys, two) == [HIT, HIT]
    assert rig.load(keys, two) == []
    rig.close()


def test_promoted_blocks_stay_until_the_request_looks_again(tmp_path: Path) -> None:
    rig = OffloadRig(4, tmp_path)
    keys = rig.below(1, 2)
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
    keys = rig.below(1, 2)
    rig.look(keys, rig.request(keys))
    rig.offload.on_schedule_end(None)
    rig.settle()
    assert rig.store.tree.stats().leases, "what came waits for who asked"
    for _ in range(260):
        rig.offload.on_schedule_end(None)
    assert not rig.offload._promotions.waiting and not rig.store.tree.stats().leases
    rig.close()


def test_request_takes_blocks_only_from_the_tiers_that_it_allows(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    below = rig.below(1)
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


def test_two_requests_wait_for_one_block_that_another_engine_may_still_store(
    tmp_path: Path,
) -> None:
    """Fault: of two prompts that begin alike, sent to a decoder together, the second one waited for
    nothing. Mechanism: the key had been asked for by the first, so that its own wait never began.
    Source: a reader.
    """
    service, keys = Service(tmp_path), keys_of(1, 2)
    groups = Geometry(1, 1, (0,), ((BLOCK,),)).groups()
    tier = Where(service.path).tier(groups, SPACE)
    rig = OffloadRig(8, disk=tier, service=service.path, wait_s=3600.0)
    try:
        one, two = rig.request(keys), rig.request(keys)
        for _ in range(3):
            assert rig.look(keys, one) == rig.look(keys, two) == [LookupResult.RETRY] * 2
            rig.step()
            rig.settle()
    finally:
        rig.close()
        service.kill()
