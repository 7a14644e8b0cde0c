"""I22 as the tiers see it: a job holds its memory until its end was polled, ends once, and cannot
last beyond its deadline.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from radix._native import lib
from radix.errors import ClosedError
from radix.tier import Urgency
from tiers.transfer import OP, PLANE, Completion, Ops, TransferEngine, status_text

BLOCK = 4096


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Iterator[TransferEngine]:
    with TransferEngine(threads=1, queue_jobs=4, clock=clock) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "slab", os.O_CREAT | os.O_RDWR, 0o600)
    yield fd
    os.close(fd)


def ops_of(kind: int, fd: int, memory: npt.NDArray[np.uint8], *, first: int = 0) -> Ops:
    count = len(memory) // BLOCK
    ops = np.zeros(count, OP)
    ops["kind"] = kind
    ops["fd"] = fd
    ops["offset"] = (first + np.arange(count)) * BLOCK
    ops["memory"] = memory.ctypes.data + np.arange(count) * BLOCK
    ops["bytes"] = ops["payload_bytes"] = BLOCK
    ops["block"] = np.arange(count)
    return ops


def planes_of(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    return np.array([(memory.ctypes.data, BLOCK, BLOCK)], PLANE)


def ends(engine: TransferEngine, count: int) -> list[Completion]:
    found: list[Completion] = []
    while len(found) < count:
        assert engine.wait(20.0)
        found += engine.poll()
    return found


def let_through(engine: TransferEngine, pieces: int) -> None:
    lib.rdx_io_allow(engine._io, pieces)


def test_blocks_written_come_back_with_their_checksums(engine: TransferEngine, file: int) -> None:
    source = np.random.default_rng(1).integers(0, 256, 16 * BLOCK, dtype=np.uint8)
    writes = ops_of(lib.RDX_OP_WRITE, file, source)
    first = engine.new_job()
    assert engine.submit_ops(first, Urgency.STORE, writes, sync=True) == lib.RDX_OK
    [done] = ends(engine, 1)
    assert (done.job, done.status, done.failed, done.nbytes) == (first, 0, 16, source.nbytes)
    assert not done.expired
    target = np.zeros_like(source)
    reads = ops_of(lib.RDX_OP_READ, file, target)
    reads["checksum"] = writes["checksum"]
    reads["checksum"][5] ^= np.uint64(1)
    second = engine.new_job()
    assert second > first
    assert engine.submit_ops(second, Urgency.DEMAND, reads, sync=False) == lib.RDX_OK
    [done] = ends(engine, 1)
    assert (done.status, done.failed) == (lib.RDX_ECORRUPT, 5)
    assert np.flatnonzero(reads["status"]).tolist() == [5]
    assert np.array_equal(source, target)


def test_copied_blocks_equal_their_source(engine: TransferEngine) -> None:
    source = np.random.default_rng(2).integers(0, 256, 8 * BLOCK, dtype=np.uint8)
    target = np.zeros_like(source)
    slots = np.random.default_rng(3).permutation(8).astype(np.int32)
    to, back = planes_of(target), planes_of(source)
    status = engine.submit_copy(1, Urgency.DEMAND, to, slots, back, slots[::-1])
    assert status == lib.RDX_OK
    [done] = ends(engine, 1)
    assert (done.status, done.nbytes) == (lib.RDX_OK, source.nbytes)
    blocks = target.reshape(8, BLOCK)[slots]
    assert np.array_equal(blocks, source.reshape(8, BLOCK)[slots[::-1]])


def test_memory_of_a_job_lives_until_its_end_was_polled(engine: TransferEngine, file: int) -> None:
    """C69: pytorch#130785: a pinned buffer that nobody named any more was given out again while a
    copy still wrote into it.
    """
    memory = np.ones(4 * BLOCK, np.uint8)
    alive = weakref.ref(memory)
    ops = ops_of(lib.RDX_OP_WRITE, file, memory)
    let_through(engine, 0)
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=False, keep=memory) == lib.RDX_OK
    del memory, ops
    gc.collect()
    assert alive() is not None
    let_through(engine, 4)
    assert engine.wait(20.0)
    gc.collect()
    assert alive() is not None
    assert engine.poll()[0].status == lib.RDX_OK
    assert alive() is None
    assert os.pread(file, 5 * BLOCK, 0) == b"\x01" * (4 * BLOCK)


def test_job_past_its_deadline_ends_as_cancelled(
    engine: TransferEngine, file: int, clock: Clock
) -> None:
    """C93: dynamo#5012: a load from a disk never completed, and nothing bounded the wait. C86:
    sglang#23309: the time-out grew without a limit.
    """
    ops = [ops_of(lib.RDX_OP_WRITE, file, np.ones(BLOCK, np.uint8)) for _ in range(3)]
    let_through(engine, 0)
    for job, deadline_s in ((1, 105.0), (2, 103.0), (3, None)):
        status = engine.submit_ops(
            job, Urgency.STORE, ops[job - 1], sync=True, deadline_s=deadline_s
        )
        assert status == lib.RDX_OK
    assert engine.poll() == []
    clock.now = 104.0
    assert [(done.job, done.expired) for done in engine.poll()] == [(2, True)]
    assert ops[1]["status"].tolist() == [lib.RDX_ECANCELED]
    clock.now = 105.0
    assert engine.wait(20.0)
    [done] = engine.poll()
    assert (done.job, done.status, done.expired) == (1, lib.RDX_ECANCELED, True)
    clock.now = 1e9
    let_through(engine, 2)
    [done] = ends(engine, 1)
    assert (done.job, done.status, done.expired) == (3, lib.RDX_OK, False)


def test_deadline_of_an_ended_job_does_not_hit_the_next_of_its_number(
    engine: TransferEngine, file: int, clock: Clock
) -> None:
    """C118: Mooncake#3030: the late end of an older write was taken for one of the newer."""
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(BLOCK, np.uint8))
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=False, deadline_s=103.0) == lib.RDX_OK
    assert ends(engine, 1)[0].status == lib.RDX_OK
    let_through(engine, 0)
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=False, deadline_s=200.0) == lib.RDX_OK
    clock.now = 150.0
    assert engine.poll() == []
    let_through(engine, 1)
    [done] = ends(engine, 1)
    assert (done.status, done.expired) == (lib.RDX_OK, False)


def test_full_queue_refuses_and_holds_nothing(engine: TransferEngine, file: int) -> None:
    let_through(engine, 0)
    ops = [ops_of(lib.RDX_OP_WRITE, file, np.ones(BLOCK, np.uint8)) for _ in range(5)]
    statuses = [
        engine.submit_ops(job, Urgency.STORE, part, sync=False) for job, part in enumerate(ops)
    ]
    assert statuses == [lib.RDX_OK] * 4 + [lib.RDX_EBUSY]
    assert "queue is full" in status_text(statuses[-1])
    assert engine.pending == 4
    let_through(engine, 4)
    assert [done.job for done in ends(engine, 4)] == [0, 1, 2, 3]
    assert engine.submit_ops(4, Urgency.STORE, ops[4], sync=False) == lib.RDX_OK


def test_cancelled_job_ends_once(engine: TransferEngine, file: int) -> None:
    let_through(engine, 0)
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(2 * BLOCK, np.uint8))
    assert engine.submit_ops(7, Urgency.STORE, ops, sync=True) == lib.RDX_OK
    engine.cancel(7)
    engine.cancel(7)
    engine.cancel(8)
    [done] = engine.poll()
    assert (done.job, done.status, done.failed, done.nbytes) == (7, lib.RDX_ECANCELED, 0, 0)
    engine.cancel(7)
    assert engine.poll() == []
    assert os.fstat(file).st_size == 0


def test_event_descriptor_tells_of_ends(engine: TransferEngine, file: int) -> None:
    poller = select.poll()
    poller.register(engine.event_fd, select.POLLIN)
    assert poller.poll(0) == []
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(BLOCK, np.uint8))
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=False) == lib.RDX_OK
    assert len(poller.poll(20_000)) == 1
    assert len(engine.poll()) == 1
    assert poller.poll(0) == []


def test_interrupt_ends_a_wait(engine: TransferEngine, file: int) -> None:
    let_through(engine, 0)
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(BLOCK, np.uint8))
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=False) == lib.RDX_OK
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        engine.wait(250.0)
    sender.join()
    let_through(engine, 1)
    assert len(ends(engine, 1)) == 1


def test_nothing_pending_is_nothing_to_wait_for(engine: TransferEngine) -> None:
    assert not engine.wait(250.0)


def test_injected_failure_is_told_and_stores_nothing(engine: TransferEngine, file: int) -> None:
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(3 * BLOCK, np.uint8))
    engine.fail_at(2, lib.RDX_ENOSPC)
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=True) == lib.RDX_OK
    [done] = ends(engine, 1)
    assert (done.status, done.failed, done.nbytes) == (lib.RDX_ENOSPC, 1, 2 * BLOCK)
    assert ops["status"].tolist() == [lib.RDX_OK, lib.RDX_ENOSPC, lib.RDX_OK]


def test_closed_engine_refuses_and_forgets(file: int) -> None:
    engine = TransferEngine(threads=2)
    memory = np.ones(64 * BLOCK, np.uint8)
    alive = weakref.ref(memory)
    ops = ops_of(lib.RDX_OP_WRITE, file, memory)
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=True, keep=memory) == lib.RDX_OK
    engine.close()
    engine.close()
    del memory, ops
    gc.collect()
    assert alive() is None
    assert engine.poll() == []
    assert engine.pending == 0
    assert not engine.wait(250.0)
    with pytest.raises(ClosedError):
        engine.submit_ops(2, Urgency.STORE, np.zeros(1, OP), sync=False)
    with pytest.raises(ClosedError):
        engine.cancel(1)


def test_engine_that_is_dropped_ends_its_threads(file: int) -> None:
    before = len(os.listdir("/proc/self/task"))
    engine = TransferEngine(threads=3)
    assert len(os.listdir("/proc/self/task")) == before + 3
    ops = ops_of(lib.RDX_OP_WRITE, file, np.ones(64 * BLOCK, np.uint8))
    assert engine.submit_ops(1, Urgency.STORE, ops, sync=True) == lib.RDX_OK
    del engine
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == before
    assert set(ops["status"].tolist()) <= {lib.RDX_OK, lib.RDX_ECANCELED}


def test_bad_arguments_are_refused_by_name(engine: TransferEngine) -> None:
    memory = np.zeros(2 * BLOCK, np.uint8)
    planes = planes_of(memory)
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="slots"):
        engine.submit_copy(1, Urgency.DEMAND, planes, one, planes, two)
    with pytest.raises(TypeError, match="ops"):
        engine.submit_ops(1, Urgency.DEMAND, np.zeros(3, PLANE), sync=False)
    with pytest.raises(TypeError, match="ops"):
        engine.submit_ops(1, Urgency.DEMAND, np.zeros(8, OP)[::2], sync=False)
    with pytest.raises(ValueError, match="threads"):
        TransferEngine(threads=0)
    bad = np.zeros(1, OP)
    assert engine.submit_ops(1, Urgency.DEMAND, bad, sync=False) == lib.RDX_EARG
    assert engine.submit_copy(1, Urgency.DEMAND, planes, -one - 1, planes, one) == lib.RDX_EARG
    assert engine.pending == 0
