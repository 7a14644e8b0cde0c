"""Every job that vLLM gives the tier is answered once, with what really happened to each key; a
call never raises and never waits (I22). The host pool is vLLM's own region, the disk a real one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, OffloadPolicy, ReqContext

from radix.tier import TierMode, Transfer, Urgency
from tests.vllm.secondaryrig import ROW_BYTES, ROWS, Host, content, key
from tiers.disk_moves import make_move
from tiers.views import Cuts


def test_a_key_is_missed_then_awaited_then_hit(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(0), key(1)]
        assert host.lookup(*names) == "MM"
        host.fill([3, 5], names)
        host.submit(names, [3, 5])
        assert host.lookup(*names, key(2)) == "RRM"
        host.results()
        assert host.lookup(*names, key(2)) == "HHM"


def test_what_was_stored_comes_back_into_other_rows(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(number) for number in range(8)]
        stored = host.store(names, range(8))
        assert (stored.success, stored.transfer_bytes) == (True, 8 * ROW_BYTES)
        loaded = host.load(names[::-1], range(10, 18))
        assert (loaded.success, loaded.transfer_bytes) == (True, 8 * ROW_BYTES)
        assert [host.row(10 + i) for i in range(8)] == [content(name) for name in names[::-1]]


def test_one_job_may_hold_keys_of_several_groups_in_any_order(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(1, 0), key(1, 1), key(2, 1), key(2, 0), key(3, 1)]
        assert len({content(name) for name in names}) == 5
        assert host.store(names, [7, 2, 9, 4, 0]).success
        assert host.lookup(*names, key(3, 0)) == "HHHHHM", "equal hashes of two groups are two keys"
        assert host.load(names, range(12, 17)).success
        assert [host.row(12 + i) for i in range(5)] == [content(name) for name in names]


def test_a_result_comes_once_and_only_for_jobs_that_were_given(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        assert list(host.tier.get_finished_jobs()) == []
        names = [key(number) for number in range(12)]
        host.fill(range(12), names)
        given = {host.submit(names[i : i + 3], range(i, i + 3)) for i in range(0, 12, 3)}
        assert set(host.results()) == given
        assert list(host.tier.get_finished_jobs()) == []
        assert not host.tier.has_pending_work()


def test_a_job_that_moves_nothing_is_answered_with_the_next_poll(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        number = host.submit([], [])
        assert host.tier.has_pending_work()
        assert [(r.job_id, r.success) for r in host.tier.get_finished_jobs()] == [(number, True)]


def test_keys_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(number) for number in range(4)]
        host.store(names, range(4))
        again = host.store([*names, key(9)], [4, 5, 6, 7, 8])
        assert (again.success, again.transfer_bytes) == (True, ROW_BYTES)
        assert host.tier.store.counters()["store.blocks.disk.row"] == 5
        assert host.counted()["present_blocks"] == 4


def test_two_jobs_may_bring_one_key_at_once(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.fill([0, 1], [key(0), key(0)])
        first, second = host.submit([key(0)], [0]), host.submit([key(0)], [1])
        results = host.results()
        assert results[first].success and results[second].success
        assert host.tier.store.counters()["store.blocks.disk.row"] == 1


def test_a_load_succeeds_in_part(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        names = [key(0), key(1, 1), key(2)]
        host.store(names, range(3))
        asked = [names[0], key(50), names[1], key(51, 1), names[2]]
        result = host.load(asked, range(5, 10))
        assert not result.success
        assert set(result.successful_keys) == set(names)
        assert [host.row(row) for row in (5, 7, 9)] == [content(name) for name in names]


def test_a_load_of_which_nothing_comes_names_no_key(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        result = host.load([key(0), key(1)], [0, 1])
        assert (result.success, result.successful_keys, result.transfer_bytes) == (False, None, 0)


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("rows", [[0], [0, ROWS], [0, -1]])
def test_a_job_with_wrong_rows_fails_and_raises_nothing(
    tmp_path: Path, rows: list[int], load: bool
) -> None:
    with Host(tmp_path) as host:
        number = host.submit([key(0), key(1)], rows, load=load)
        assert host.results()[number].success is False
        assert host.counted()["faults"] == 1
        assert host.store([key(0)], [0]).success, "the tier goes on"


def test_a_key_of_a_group_that_is_not_configured_is_a_miss(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        assert host.lookup(key(0, 7)) == "M"
        assert host.store([key(0, 7)], [0]).success is False
        assert host.counted()["faults"] == 2


def test_each_request_is_offered_chunk_by_chunk(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        asked = host.tier.on_new_request(ReqContext("r"))
        assert asked.policy is OffloadPolicy.CHUNK_LEVEL


def test_after_its_shutdown_the_tier_misses_and_lets_the_memory_go(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.fill([0, 1], [key(0), key(1)])
        host.submit([key(0), key(1)], [0, 1])
        host.tier.shutdown()
        host.tier.shutdown()
        assert host.lookup(key(0)) == "M"
        number = host.submit([key(0)], [2], load=True)
        assert [(r.job_id, r.success) for r in host.tier.get_finished_jobs()][-1] == (number, False)
        host.tier.touch([key(0)], ReqContext("r"))
        host.tier.on_schedule_end(None)
        assert host.tier.get_stats() is None
    with Host(tmp_path) as host:
        assert host.lookup(key(0), key(1)) == "HH", "a job under way at the shutdown was ended"


def test_drained_jobs_leave_the_rows_alone(tmp_path: Path) -> None:
    with Host(tmp_path, after_reset="keep") as host:
        names = [key(number) for number in range(8)]
        host.store(names, range(8))
        number = host.submit(names, range(8, 16), load=True)
        host.tier.drain_jobs()
        for row in range(8, 16):
            host.write(row, b"\1" * ROW_BYTES)
        results = list(host.tier.get_finished_jobs())
        assert [(r.job_id, r.success) for r in results] == [(number, True)]
        assert all(host.row(row) == b"\1" * ROW_BYTES for row in range(8, 16))


def test_rows_are_read_and_written_in_place(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        upper = host.tier.store.opened[0]
        planes = upper.planes(0)
        region = np.asarray(host.view)
        assert int(planes["base"][0]) == region.ctypes.data
        assert int(planes["stride"][0]) == region.strides[0]
        assert region.ctypes.data % 4096 == 0 and region.strides[0] % 4096 == 0
        cut = Cuts(host.tier.store.groups).find(0, None, None, None, "test:")
        slots = np.arange(3, dtype=np.int32)
        transfer = Transfer(1, 0, slots, slots, Urgency.STORE, None)
        for storing in (True, False):
            move = make_move(transfer, upper, cut, storing=storing, aligned=True)
            assert move.rows is None, "no memory of ours stands between"


def test_asking_never_takes_a_tier_that_is_off_for_a_hit(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store([key(0)], [0])
        host.tier.store.set_mode("disk", TierMode.READ_ONLY)
        assert host.lookup(key(0)) == "H"
        assert host.store([key(1)], [1]).success is False
        host.tier.store.set_mode("disk", TierMode.OFF)
        assert host.tier.lookup(key(0), ReqContext("r")) is LookupResult.MISS
        assert host.load([key(0)], [2]).success is False
        host.tier.store.set_mode("disk", TierMode.ON)
        assert host.lookup(key(0)) == "H"
        assert host.load([key(0)], [2]).success
