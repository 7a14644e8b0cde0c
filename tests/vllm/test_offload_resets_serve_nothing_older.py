"""After a reset nothing of before is found, in no tier and after no restart, and no slot that a
worker may still touch is given out, although the engine swallows the ends of its jobs (I31).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.errors import TierUnavailableError
from tests.vllm.offloadrig import (
    HIT,
    MISS,
    OffloadRig,
    keys_of,
)
from tiers.faults import FaultPlan, FaultyTier
from tiers.host import HostTier


def test_nothing_of_before_a_reset_is_found_in_any_tier_nor_after_a_restart(
    tmp_path: Path,
) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = rig.below(1, 2)
    rig.keep(keys_of(3))
    rig.offload.reset_cache()
    everything = keys + keys_of(3)
    assert rig.answer(everything, rig.request(everything)) == [MISS] * 3
    rig.keep(keys_of(9))
    rig.settle()
    rig.close()
    rig = OffloadRig(8, tmp_path)
    assert rig.answer(everything, rig.request(everything)) == [MISS] * 3
    rig.close()


@pytest.mark.parametrize("first", [True, False])
def test_what_weights_without_a_name_stored_is_found_by_their_process_alone(
    tmp_path: Path, first: bool
) -> None:
    """Weights were changed in a running engine, which told it by a reset; it was started again with
    the weights of the model's name, and what the others had stored was served under that name.
    """
    rig = OffloadRig(8, tmp_path)
    if not first:
        rig.keep(keys_of(1))
    rig.offload.reset_cache()
    rig.keep(keys_of(9))
    rig.settle()
    assert rig.answer(keys_of(9), rig.request(keys_of(9))) == [HIT]
    rig.close()
    rig = OffloadRig(8, tmp_path)
    assert rig.answer(keys_of(9), rig.request(keys_of(9))) == [MISS]
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
    keys = rig.below(1, 2)
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
    for _ in range(6):
        rig.step()
    assert not rig.offload.has_pending_work(), "the engine must not step for ever"
    rig.close()
