"""Staged copies against a device whose work ends when the test says so: order, buffers, failures.
What a stream does by chance on a GPU is done here on purpose.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from radix._native import lib
from radix.errors import TierFullError
from radix.tier import Urgency
from tiers.copies import Moved, plane_array
from tiers.staging import BUFFER_BYTES, BUFFERS, DIRECT_RUN_BYTES, QUEUE_JOBS, StagedMover

BLOCK = BUFFER_BYTES // 2
Runs = Sequence[tuple[int, int]]


@dataclass
class _Mark:
    """An event that fires, or fails, when it is told to."""

    over: bool = False
    broken: bool = False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("device-side assert")
        return self.over


@dataclass
class _SlowDevice:
    """Rows of a numpy array as device memory. A queued copy happens only when ``tick`` runs it."""

    memory: np.ndarray
    reachable: bool = False
    refuses: bool = False
    queue: list[tuple[str, np.ndarray, Runs, _Mark]] = field(default_factory=list)
    registered: set[int] = field(default_factory=set)

    def gather(
        self, group: int, slots: np.ndarray, runs: Runs, ranges: np.ndarray | None = None
    ) -> _Mark:
        assert ranges is None
        return self._enqueue("out", slots, runs)

    def scatter(
        self, group: int, slots: np.ndarray, runs: Runs, ranges: np.ndarray | None = None
    ) -> _Mark:
        assert ranges is None
        return self._enqueue("in", slots, runs)

    def _enqueue(self, way: str, slots: np.ndarray, runs: Runs) -> _Mark:
        if self.refuses:
            raise RuntimeError("out of memory")
        mark = _Mark()
        assert sum(count for _, count in runs) == len(slots)
        self.queue.append((way, slots, runs, mark))
        return mark

    def tick(self) -> None:
        """Runs the oldest copy."""
        way, slots, runs, mark = self.queue.pop(0)
        for address, count in runs:
            nbytes = count * self.memory.shape[1]
            host = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)
            host = host.reshape(count, -1)
            if way == "out":
                host[:] = self.memory[slots[:count]]
            else:
                self.memory[slots[:count]] = host
            slots = slots[count:]
        mark.over = True

    def register(self, address: int, nbytes: int) -> bool:
        if self.reachable:
            self.registered.add(address)
        return self.reachable

    def unregister(self, address: int) -> None:
        self.registered.remove(address)


@dataclass
class _Bench:
    device: _SlowDevice
    mover: StagedMover
    rows: np.ndarray
    ended: list[Moved] = field(default_factory=list)

    def submit(
        self, job: int, slots: list[int], lower: list[int], urgency: Urgency, *, outward: bool
    ) -> None:
        nbytes = self.rows.shape[1]
        planes = plane_array([(self.rows.ctypes.data, nbytes, nbytes)])
        above, below = np.array(slots, np.int32), np.array(lower, np.int32)
        self.mover.submit(job, 0, above, planes, below, urgency, outward=outward)

    def poll(self) -> None:
        self.ended += self.mover.moved()

    def run(self) -> list[Moved]:
        """Lets everything end."""
        while self.mover._jobs:
            if self.device.queue:
                self.device.tick()
            self.poll()
        self.poll()
        return self.ended


@pytest.fixture
def bench() -> Iterator[_Bench]:
    rng = np.random.default_rng(0)
    device = _SlowDevice(rng.integers(0, 256, (20, BLOCK), dtype=np.uint8))
    mover = StagedMover("device", device, BLOCK)
    yield _Bench(device, mover, np.zeros((20, BLOCK), np.uint8))
    while device.queue:
        device.tick()
    mover.close()
    assert device.registered == set()


def test_a_job_larger_than_all_buffers_streams_through(bench: _Bench) -> None:
    slots = list(range(20))[::-1]
    assert len(slots) * BLOCK > BUFFERS * BUFFER_BYTES
    bench.submit(1, slots, list(range(20)), Urgency.STORE, outward=True)
    assert len(bench.device.queue) == BUFFERS, "more is on its way than there are buffers"
    assert bench.run() == [Moved(1, lib.RDX_OK, 20 * BLOCK)]
    assert np.array_equal(bench.rows, bench.device.memory[::-1])
    expected = bench.device.memory.copy()
    bench.device.memory[:] = 0
    bench.submit(2, slots, list(range(20)), Urgency.DEMAND, outward=False)
    assert bench.run()[1:] == [Moved(2, lib.RDX_OK, 20 * BLOCK)]
    assert np.array_equal(bench.device.memory, expected)


def test_a_buffer_is_not_used_again_before_its_event(bench: _Bench) -> None:
    """C69 (pytorch#130785): a page-locked buffer that is given back while the copy into it still
    runs is handed to the next copy, and both read each other's bytes. A job holds its buffer
    until the event, however often it is asked.
    """
    bench.submit(1, list(range(16)), list(range(16)), Urgency.STORE, outward=True)
    addresses = {address for _, _, address, _ in bench.device.queue}
    assert len(addresses) == BUFFERS == len(bench.device.queue)
    for _ in range(10):
        bench.poll()
    assert len(bench.device.queue) == BUFFERS and bench.ended == []
    bench.run()
    assert np.array_equal(bench.rows[:16], bench.device.memory[:16])


def test_a_store_is_not_done_before_the_device_is(bench: _Bench) -> None:
    """C68 (vllm#46278): "the host has confirmed" was taken for "the device has finished". The
    bytes below are not good before the device's own event, and they are those of that moment.
    """
    bench.submit(1, [3], [0], Urgency.STORE, outward=True)
    for _ in range(5):
        bench.poll()
    assert bench.ended == []
    bench.device.memory[3] = 42  # the kernel that the copy stands behind writes only now
    assert bench.run() == [Moved(1, lib.RDX_OK, BLOCK)]
    assert (bench.rows[0] == 42).all()


def test_a_waiting_demand_load_goes_before_waiting_stores(bench: _Bench) -> None:
    bench.submit(1, list(range(19)), list(range(19)), Urgency.STORE, outward=True)
    bench.submit(2, [19], [19], Urgency.DEMAND, outward=False)
    assert [end.job for end in bench.run()] == [2, 1]


def test_a_refused_launch_fails_its_job_once(bench: _Bench) -> None:
    """C80 (dynamo#15079): the error path counted a failed transfer as one that was done."""
    bench.device.refuses = True
    bench.submit(1, list(range(20)), list(range(20)), Urgency.STORE, outward=True)
    bench.poll()
    bench.device.refuses = False
    bench.submit(2, [0], [0], Urgency.STORE, outward=True)
    assert bench.run() == [Moved(1, lib.RDX_EIO, 0), Moved(2, lib.RDX_OK, BLOCK)]


def test_a_copy_that_the_device_reports_broken_fails_its_job_once(bench: _Bench) -> None:
    bench.submit(1, list(range(20)), list(range(20)), Urgency.STORE, outward=True)
    bench.device.queue[1][3].broken = True
    (end,) = bench.run()
    assert end.job == 1 and end.status == lib.RDX_EIO and end.nbytes < 20 * BLOCK


def test_a_cancelled_job_waits_for_what_had_begun(bench: _Bench) -> None:
    bench.submit(1, list(range(20)), list(range(20)), Urgency.STORE, outward=True)
    bench.mover.cancel(1)
    bench.poll()
    assert bench.ended == [], "the device still writes into its buffers"
    assert bench.run() == [Moved(1, lib.RDX_ECANCELED, 0)]
    bench.mover.cancel(1)
    assert not bench.rows.any()


def test_rows_in_reach_are_copied_without_a_buffer(bench: _Bench) -> None:
    """Rows of registered memory are source and target themselves, each run of them one copy."""
    bench.device.reachable = True
    start = bench.rows.ctypes.data
    assert bench.mover.register(start, bench.rows.nbytes)
    bench.submit(1, [4, 2], [6, 7], Urgency.STORE, outward=True)
    bench.submit(2, [5, 9, 1], [9, 8, 10], Urgency.STORE, outward=True)
    assert [list(runs) for _, _, runs, _ in bench.device.queue] == [
        [(start + 6 * BLOCK, 2)],
        [(start + row * BLOCK, 1) for row in (9, 8, 10)],
    ]
    assert sorted(end.job for end in bench.run()) == [1, 2]
    assert np.array_equal(bench.rows[[6, 7, 9, 8, 10]], bench.device.memory[[4, 2, 5, 9, 1]])
    before = bench.device.memory.copy()
    bench.submit(3, [0, 3, 7], [7, 6, 9], Urgency.DEMAND, outward=False)
    bench.run()
    assert np.array_equal(bench.device.memory[[0, 3, 7]], before[[2, 4, 5]])
    bench.mover.unregister(start)


@pytest.mark.parametrize(
    ("lower", "direct"),
    [
        ([3, 4, 5], True),  # one run, however short
        ([3, 4, 9], True),  # two runs of a row and a half in the mean
        ([3, 5, 7], False),
        ([3, 20], False),  # the last row lies beyond what was registered
    ],
)
def test_short_runs_in_reach_go_through_a_buffer(lower: list[int], direct: bool) -> None:
    """A call for each row would take longer than its bytes do."""
    row = DIRECT_RUN_BYTES * 2 // 3 + 1
    device = _SlowDevice(np.random.default_rng(1).integers(0, 256, (20, row), dtype=np.uint8))
    device.reachable = True
    mover = StagedMover("device", device, row)
    bench = _Bench(device, mover, np.zeros((21, row), np.uint8))
    start = bench.rows.ctypes.data
    mover.register(start, 20 * row)
    bench.submit(1, list(range(len(lower))), lower, Urgency.STORE, outward=True)
    ((_, _, runs, _),) = device.queue
    assert (start <= runs[0][0] < start + bench.rows.nbytes) == direct
    assert len(runs) == (1 if not direct else 1 + sum(np.diff(lower) != 1))
    assert bench.run() == [Moved(1, lib.RDX_OK, len(lower) * row)]
    assert np.array_equal(bench.rows[lower], device.memory[: len(lower)])
    mover.close()


def test_a_full_queue_starts_nothing(bench: _Bench) -> None:
    for job in range(QUEUE_JOBS):
        bench.submit(job, [0], [0], Urgency.PREFETCH, outward=True)
    with pytest.raises(TierFullError) as caught:
        bench.submit(QUEUE_JOBS, [0], [0], Urgency.DEMAND, outward=True)
    assert caught.value.retryable
    for job in range(QUEUE_JOBS):
        bench.mover.cancel(job)
    assert sorted(end.job for end in bench.run()) == list(range(QUEUE_JOBS))


def test_a_job_without_blocks_ends_too(bench: _Bench) -> None:
    bench.submit(1, [], [], Urgency.STORE, outward=True)
    assert bench.run() == [Moved(1, lib.RDX_OK, 0)]
