"""A worker takes every job, tells the end of each exactly once and of none before it, and does not
let the engine go on where a copy failed or where what it was given cannot be right.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import pytest
from vllm.v1.kv_offload.base import OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingCacheConfig

from radix.engines.vllm.worker import Worker, places
from radix.errors import LayoutMismatchError, TierError
from tests.vllm.workerrig import Rig, blocks_spec, caches_of, config_of, slots_spec, worker_of


def rig_of(*, per_chunk: int = 1, staged: bool | None = None, blocks: int = 32) -> Rig:
    config = replace(config_of(), cache=OffloadingCacheConfig(32, per_chunk))
    return worker_of(caches_of([[(0, 4096)]], [4096], blocks, seed=1), config, staged=staged)


@pytest.fixture(params=[None, True], ids=["mapped", "staged"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = rig_of(staged=request.param)
    yield made
    made.worker.shutdown()


def test_more_jobs_than_a_queue_holds_all_end(rig: Rig) -> None:
    slots = rig.reserve(0, 4)
    jobs = range(1, 2500)
    for job in jobs:
        assert rig.worker.submit_store(
            job, blocks_spec(([job % 31 + 1], 0)), slots_spec([slots[job % 4]])
        )
    rig.finish(*jobs)
    assert rig.worker.get_finished() == []


def test_a_job_without_blocks_ends(rig: Rig) -> None:
    assert rig.worker.submit_store(1, blocks_spec(([], 0)), slots_spec([]))
    assert rig.worker.submit_load(2, slots_spec([]), blocks_spec(([], 0)))
    rig.finish(1, 2)


def test_a_job_tells_its_bytes_and_its_seconds(rig: Rig) -> None:
    slots = rig.reserve(0, 3)
    rig.worker.submit_store(1, blocks_spec(([3, 4, 5], 0)), slots_spec(slots))
    rig.worker.wait({1})
    (told,) = rig.worker.get_finished()
    assert told.transfer_size == 3 * 4096
    assert 0 < told.transfer_time < 60


def test_waiting_for_a_job_that_nobody_gave_returns(rig: Rig) -> None:
    rig.worker.wait({4711})
    assert rig.worker.get_finished() == []


def test_a_load_may_be_told_to_hurry_and_need_not(rig: Rig) -> None:
    slots = rig.reserve(0, 1)
    rig.worker.submit_store(1, blocks_spec(([3], 0)), slots_spec(slots))
    rig.finish(1)
    assert rig.worker.submit_load(2, slots_spec(slots), blocks_spec(([4], 0)))
    assert rig.worker.submit_load(3, slots_spec(slots), blocks_spec(([5], 0)), expedited=True)
    rig.finish(2, 3)
    assert rig.block(0, 4) == rig.block(0, 5) == rig.block(0, 3)


def test_every_method_takes_what_the_installed_engine_gives() -> None:
    for name in ("submit_store", "submit_load", "get_finished", "wait", "shutdown"):
        theirs = inspect.signature(getattr(OffloadingWorker, name)).parameters
        ours = inspect.signature(getattr(Worker, name)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        assert all(p.default is not p.empty for p in list(ours.values())[len(theirs) :])


@pytest.mark.parametrize("storing", [True, False])
def test_a_copy_that_fails_is_never_told_as_a_success(storing: bool) -> None:
    rig = rig_of(staged=True)
    try:
        slots = rig.reserve(0, 2)
        if storing:
            rig.worker.submit_store(9, blocks_spec(([3, 4], 0)), slots_spec(slots))
        else:
            rig.worker.submit_load(9, slots_spec(slots), blocks_spec(([3, 4], 0)))
        rig.worker.device.cancel(1)  # the first copy of this worker
        with pytest.raises(TierError, match=r"job 9: copying 2 blocks .* on rank 0 failed"):
            rig.worker.wait({9})
        assert rig.worker.get_finished() == []
    finally:
        rig.worker.shutdown()


@pytest.mark.parametrize(
    ("blocks", "slots"), [([32], [0]), ([-1], [0]), ([3], [1 << 20]), ([3], [-1])]
)
def test_what_lies_outside_of_tensors_or_pool_is_refused(
    rig: Rig, blocks: list[int], slots: list[int]
) -> None:
    for submit in (
        lambda: rig.worker.submit_store(1, blocks_spec((blocks, 0)), slots_spec(slots)),
        lambda: rig.worker.submit_load(1, slots_spec(slots), blocks_spec((blocks, 0))),
    ):
        with pytest.raises(LayoutMismatchError, match="there are"):
            submit()


@pytest.mark.parametrize(
    ("blocks", "slots", "first", "per_chunk"),
    [
        (3, 2, 0, 2),  # a chunk behind the first lacks a block: which, nobody can tell
        (4, 3, 0, 2),
        (4, 1, 0, 2),
        (2, 1, 0, 3),
        (0, 1, 0, 2),
        (1, 0, 0, 1),
    ],
)
def test_a_store_of_chunks_with_holes_is_refused(
    blocks: int, slots: int, first: int, per_chunk: int
) -> None:
    with pytest.raises(LayoutMismatchError, match="set blocks_per_chunk 1"):
        places(blocks, slots, first, per_chunk, whole=True)


def test_a_single_block_of_a_single_chunk_has_its_place() -> None:
    which, subs = places(1, 1, 4, 3, whole=True)
    assert (which.tolist(), subs.tolist()) == ([0], [1])


def test_a_load_may_end_within_a_chunk() -> None:
    which, subs = places(3, 2, 4, 2, whole=False)
    assert (which.tolist(), subs.tolist()) == ([0, 0, 1], [0, 1, 0])


def test_a_job_under_a_number_that_is_under_way_is_refused() -> None:
    rig = rig_of(staged=True)
    try:
        slots = rig.reserve(0, 1)
        rig.worker.submit_store(1, blocks_spec(([3], 0)), slots_spec(slots))
        with pytest.raises(ValueError, match="job 1 is under way"):
            rig.worker.submit_store(1, blocks_spec(([4], 0)), slots_spec(slots))
        rig.finish(1)
    finally:
        rig.worker.shutdown()


def test_a_worker_ends_twice_without_harm_and_with_jobs_under_way() -> None:
    for staged in (None, True):
        rig = rig_of(staged=staged)
        slots = rig.reserve(0, 8)
        for job in range(50):
            rig.worker.submit_store(job, blocks_spec((range(1, 9), 0)), slots_spec(slots))
        rig.worker.shutdown()
        rig.worker.shutdown()


@pytest.mark.gpu
def test_blocks_of_a_cuda_device_go_and_come_on_streams_of_their_own() -> None:
    import torch

    for per_chunk in (1, 2):
        config = replace(config_of(), cache=OffloadingCacheConfig(32, per_chunk))
        caches = caches_of([[(0, 4096)]], [4096], 64, seed=1)
        kept = caches.tensors[0].tensor.clone()
        caches.tensors[0].tensor = caches.tensors[0].tensor.cuda()
        rig = worker_of(caches, config)
        try:
            slots = rig.reserve(0, 16 // per_chunk)
            rig.worker.submit_store(1, blocks_spec((range(1, 17), 0)), slots_spec(slots))
            rig.finish(1)
            rig.worker.submit_load(2, slots_spec(slots), blocks_spec((range(33, 49), 0)))
            rig.finish(2)
            found = caches.tensors[0].tensor.cpu()
            assert torch.equal(found[33:49], kept[1:17])
            assert torch.equal(found[:33], kept[:33])
        finally:
            rig.worker.shutdown()
