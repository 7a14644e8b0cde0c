"""Offers keep their order and take nothing where there is no room; completions are sets that come
late; every request has its three events; everything else that the engine asks is answered.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import (
    Medium,
    OffloadingManager,
)

from radix.engines.vllm.offload import Offload
from radix.events import RequestState
from radix.tier import TierMode
from tests.vllm.offloadrig import (
    BLOCK,
    HIT,
    MISS,
    PENDING,
    OffloadRig,
    content,
    key_of,
    keys_of,
)


def test_every_call_of_the_engine_is_answered() -> None:
    """The base class would answer what we forget, and the engine would not notice."""
    asked = {name for name in vars(OffloadingManager) if not name.startswith("_")}
    assert asked <= set(vars(Offload))


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
    keys = rig.below(1, 2)
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
    keys = rig.below(1)
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
