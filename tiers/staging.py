"""How a device that has no addresses moves its blocks: through a few page-locked buffers, or, where
the rows of the lower tier lie one after the other in memory that the device reaches, straight
there. Pure of any device library: the device is behind :class:`DeviceSide`. Keeps I22: a job ends
once, when its last chunk has, and holds its memory until then.

    out   device slots --gather--> buffer --threads--> rows of the lower tier
    in    device slots <-scatter-- buffer <--threads-- rows of the lower tier
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from radix._native import ffi, lib
from radix.errors import TierFullError
from radix.tier import Slots, Urgency
from tiers.copies import Moved, plane_array
from tiers.transfer import Planes, TransferEngine
from tiers.views import Offsets

BUFFER_BYTES = 8 << 20
BUFFERS = 4
# Long enough that the calls for one chunk take less time than its bytes do on the bus; what is
# under way lies on the device a second time.
DIRECT_BYTES = 32 << 20
DIRECT_CHUNKS = 4
DIRECT_RUN_BYTES = 256 << 10
QUEUE_JOBS = 1024


Run = tuple[int, int]  # address, and how many rows of the moved bytes lie one after the other there


class Event(Protocol):
    """A mark in the device's queue of work."""

    def query(self) -> bool:
        """Whether everything before the mark is done. Never blocks."""
        ...


class DeviceSide(Protocol):
    """What the device does: asynchronous, in order, each call ending with a mark."""

    def gather(
        self, group: int, slots: Slots, runs: Sequence[Run], ranges: Offsets | None = None
    ) -> Event:
        """Copies its slots, in order, to the rows of ``runs`` in host memory; of ``ranges``
        (offset, bytes) only these bytes of each.
        """
        ...

    def scatter(
        self, group: int, slots: Slots, runs: Sequence[Run], ranges: Offsets | None = None
    ) -> Event:
        """Copies the rows of ``runs``, in order, to its slots."""
        ...

    def register(self, address: int, nbytes: int) -> bool:
        """Page-locks host memory and lets the device reach it; False where it cannot."""
        ...

    def unregister(self, address: int) -> None:
        """Takes that back."""
        ...


@dataclass(slots=True)
class _Job:
    chunks: int
    status: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Blocks that move at once: straight to their runs, or through one buffer where it has none."""

    job: int
    group: int
    slots: Slots
    planes: Planes
    lower: Slots
    ranges: Offsets | None
    outward: bool
    runs: tuple[Run, ...]

    @property
    def nbytes(self) -> int:
        return len(self.slots) * int(self.planes["bytes"].sum())


class _Buffer:
    """Page-locked memory of our own: torch's pinned allocator would round it up."""

    def __init__(self, side: DeviceSide, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes)
        self._view = ffi.from_buffer(self._map)
        self.address = int(ffi.cast("uintptr_t", self._view))
        lib.rdx_prefault(self.address, nbytes, 1)
        self._registered = side.register(self.address, nbytes)
        self._side = side

    def close(self) -> None:
        if self._registered:
            self._side.unregister(self.address)
        ffi.release(self._view)
        self._map.close()


class StagedMover:
    """Moves jobs in chunks: demand loads first, in the order given within a class.

    Start: ``submit``. Go on: ``moved``, ``cancel``. Memory: ``register``, ``unregister``. End:
    ``close``. Nothing blocks but ``close``; work goes on only within these calls.
    """

    def __init__(self, tier: str, side: DeviceSide, largest_block_bytes: int) -> None:
        """``largest_block_bytes``: a buffer holds at least one such block."""
        self._tier = tier
        self._side = side
        self._buffer_bytes = max(BUFFER_BYTES, largest_block_bytes)
        self._free = [_Buffer(side, self._buffer_bytes) for _ in range(BUFFERS)]
        self._buffers = list(self._free)
        self._direct = 0
        self._engine = TransferEngine()
        self._waiting: dict[Urgency, deque[_Chunk]] = {urgency: deque() for urgency in Urgency}
        self._on_device: list[tuple[_Chunk, Event, _Buffer | None]] = []
        self._in_threads: dict[int, tuple[_Chunk, _Buffer]] = {}
        self._copies = 0
        self._jobs: dict[int, _Job] = {}
        self._ended: list[Moved] = []
        self._reach: dict[int, int] = {}

    def register(self, address: int, nbytes: int) -> bool:
        """Memory of a lower tier that chunks may go to directly; False where they cannot."""
        if not self._side.register(address, nbytes):
            return False
        self._reach[address] = nbytes
        return True

    def unregister(self, address: int) -> None:
        """Takes that back."""
        del self._reach[address]
        self._side.unregister(address)

    def submit(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
        *,
        outward: bool,
    ) -> None:
        """Queues the blocks of a job, or ``ranges`` of them, and starts what fits. Cost: the slots.

        Raises: ``TierFullError`` (retryable) with 1,024 jobs under way; nothing was started.
        """
        if len(self._jobs) >= QUEUE_JOBS:
            raise TierFullError(self._tier, "the queue of copies is full", retryable=True)
        size = int(planes["bytes"].sum())
        direct = self._may_go_direct(planes, lower)
        each = max(1, (DIRECT_BYTES if direct else self._buffer_bytes) // size)
        starts = range(0, len(slots), each)
        if not starts:
            self._ended.append(Moved(job, lib.RDX_OK, 0))
            return
        self._jobs[job] = _Job(len(starts), lib.RDX_OK, 0)
        for first in starts:
            part = slice(first, first + each)
            mine, theirs = slots[part].copy(), lower[part].copy()
            runs = runs_of_rows(planes, theirs) if direct else ()
            chunk = _Chunk(job, group, mine, planes, theirs, ranges, outward, runs)
            self._waiting[urgency].append(chunk)
        self._start_waiting()

    def cancel(self, job: int) -> None:
        """Skips the chunks of the job that have not begun."""
        if job in self._jobs:
            self._fail(job, lib.RDX_ECANCELED)
            self._start_waiting()

    def moved(self) -> list[Moved]:
        """Jobs that have ended, each once; starts what can now start. Never blocks."""
        still = []
        for chunk, event, buffer in self._on_device:
            done = self._event_is_over(chunk, event)
            if not done:
                still.append((chunk, event, buffer))
            elif chunk.outward and buffer is not None and not self._failed(chunk):
                self._copy(chunk, buffer)
            else:
                self._finish(chunk, buffer, direct=buffer is None)
        self._on_device = still
        for copied in self._engine.poll():
            chunk, buffer = self._in_threads.pop(copied.job)
            if copied.status != lib.RDX_OK:
                self._fail(chunk.job, copied.status)
            if chunk.outward or self._failed(chunk):
                self._finish(chunk, buffer)
            else:
                self._enqueue(chunk, buffer)
        self._start_waiting()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Waits for chunks that have begun, drops the others, gives the buffers back."""
        for job in list(self._jobs):
            self._fail(job, lib.RDX_ECANCELED)
        while self._on_device or self._in_threads:
            self.moved()
            time.sleep(0.0005)
        self._engine.close()
        for address in list(self._reach):
            self.unregister(address)
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    # ------------------------------------------------------------------ inside
    def _start_waiting(self) -> None:
        for queue in self._waiting.values():
            while queue:
                chunk = queue[0]
                if self._failed(chunk):
                    queue.popleft()
                    self._finish(chunk, None)
                    continue
                if self._direct >= DIRECT_CHUNKS if chunk.runs else not self._free:
                    return
                queue.popleft()
                if chunk.runs:
                    self._direct += 1
                    self._enqueue(chunk, None)
                elif chunk.outward:
                    self._enqueue(chunk, self._free.pop())
                else:
                    self._copy(chunk, self._free.pop())

    def _may_go_direct(self, planes: Planes, lower: Slots) -> bool:
        """Whether the device reaches these rows, in runs that are worth a copy each."""
        if len(planes) != 1 or not len(lower):
            return False
        base, stride, size = (int(planes[name][0]) for name in ("base", "stride", "bytes"))
        first, end = base + int(lower.min()) * stride, base + int(lower.max()) * stride + size
        if not any(at <= first and end <= at + n for at, n in self._reach.items()):
            return False
        runs = len(runs_of_rows(planes, lower))
        return runs == 1 or len(lower) * size >= runs * DIRECT_RUN_BYTES

    def _enqueue(self, chunk: _Chunk, buffer: _Buffer | None) -> None:
        call = self._side.gather if chunk.outward else self._side.scatter
        runs = ((buffer.address, len(chunk.slots)),) if buffer else chunk.runs
        try:
            event = call(chunk.group, chunk.slots, runs, chunk.ranges)
        except RuntimeError:  # what device libraries raise for a refused launch or allocation
            self._fail(chunk.job, lib.RDX_EIO)
            self._finish(chunk, buffer, direct=buffer is None)
            return
        self._on_device.append((chunk, event, buffer))

    def _copy(self, chunk: _Chunk, buffer: _Buffer) -> None:
        size = int(chunk.planes["bytes"].sum())
        rows, order = plane_array([(buffer.address, size, size)]), np.arange(len(chunk.slots))
        mine, theirs = (rows, order.astype(np.int32)), (chunk.planes, chunk.lower)
        target, source = (theirs, mine) if chunk.outward else (mine, theirs)
        self._copies += 1
        status = self._engine.submit_copy(self._copies, Urgency.DEMAND, *target, *source)
        if status != lib.RDX_OK:
            self._fail(chunk.job, status)
            self._finish(chunk, buffer)
            return
        self._in_threads[self._copies] = (chunk, buffer)

    def _event_is_over(self, chunk: _Chunk, event: Event) -> bool:
        try:
            return event.query()
        except RuntimeError:  # the device reports a failed copy when it is asked
            self._fail(chunk.job, lib.RDX_EIO)
            return True

    def _failed(self, chunk: _Chunk) -> bool:
        return bool(self._jobs[chunk.job].status != lib.RDX_OK)

    def _fail(self, job: int, status: int) -> None:
        if self._jobs[job].status == lib.RDX_OK:
            self._jobs[job].status = status

    def _finish(self, chunk: _Chunk, buffer: _Buffer | None, *, direct: bool = False) -> None:
        job = self._jobs[chunk.job]
        if buffer is not None:
            self._free.append(buffer)
        elif direct:
            self._direct -= 1
        job.chunks -= 1
        if job.status == lib.RDX_OK:
            job.nbytes += chunk.nbytes
        if job.chunks == 0:
            del self._jobs[chunk.job]
            self._ended.append(Moved(chunk.job, job.status, job.nbytes))


def runs_of_rows(planes: Planes, rows: Slots) -> tuple[Run, ...]:
    """Where ``rows`` of the one plane lie: each run of rows that follow one another without a gap.
    Cost: the rows.
    """
    base, stride, size = (int(planes[name][0]) for name in ("base", "stride", "bytes"))
    follows = np.diff(rows) == 1 if stride == size else np.zeros(len(rows) - 1, np.bool_)
    starts = np.flatnonzero(np.concatenate([[True], ~follows]))
    counts = np.diff(np.append(starts, len(rows)))
    places = zip(rows[starts].tolist(), counts.tolist(), strict=True)
    return tuple((base + row * stride, count) for row, count in places)
