"""The transfer engine: native threads that copy blocks between planes and move verified bytes
between files and memory. Python hands over whole batches and polls their ends. Keeps I22's half for
memory: a job owns its arrays, and what the caller gives it to hold, until its end was polled; each
job ends exactly once, also when it is cancelled or its deadline passes.

    submit -> queue of its class -> pieces of 512 KiB in threads -> end -> poll
              demand before prefetch before store, asked before each piece
"""

from __future__ import annotations

import heapq
import itertools
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.errors import ClosedError
from radix.tier import Slots, Urgency

Planes = npt.NDArray[np.void]
Ops = npt.NDArray[np.void]

OP = np.dtype(
    [
        ("kind", "<u4"),
        ("fd", "<i4"),
        ("offset", "<u8"),
        ("memory", "<u8"),
        ("bytes", "<u8"),
        ("payload_bytes", "<u8"),
        ("checksum", "<u8"),
        ("block", "<u4"),
        ("status", "<i4"),
    ]
)
PLANE = np.dtype([("base", "<u8"), ("stride", "<u8"), ("bytes", "<u8")])

DEFAULT_THREADS = 2
DEFAULT_QUEUE_JOBS = 1024
_POLL_MAX = 256
# A wait in C cannot be interrupted: it is cut, so that Ctrl-C and deadlines are seen in between.
_WAIT_SLICE_MS = 50


def _require_same_layout(name: str, dtype: np.dtype[np.void]) -> None:
    """Raise unless a dtype is, field by field, what the native struct is."""
    fields = {field: place.offset for field, place in ffi.typeof(name).fields}
    found = {field: int(place[1]) for field, place in (dtype.fields or {}).items()}
    if found != fields or dtype.itemsize != ffi.sizeof(name):
        raise RuntimeError(f"{name} is {fields}, not {found} as this module was written for")


_require_same_layout("rdx_op", OP)
_require_same_layout("rdx_plane", PLANE)


def status_text(status: int) -> str:
    """The text of a native status, for people."""
    return str(ffi.string(lib.rdx_status_text(status)).decode())


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a job. ``status``: RDX_OK, or that of the first part that failed; ``failed``: its
    index, or the number of parts. ``nbytes`` really moved. ``expired``: its deadline passed and it
    was cancelled for that (it may have ended well all the same).
    """

    job: int
    status: int
    failed: int
    nbytes: int
    queued_ns: int
    run_ns: int
    expired: bool


class TransferEngine:
    """Transfer threads with one owner thread.

    Start: ``new_job``, ``submit_copy``, ``submit_ops``. End: ``poll``, ``wait``, ``cancel``,
    ``close``. Look: ``pending``, ``event_fd``. For tests: ``fail_at``.
    """

    def __init__(
        self,
        threads: int = DEFAULT_THREADS,
        queue_jobs: int = DEFAULT_QUEUE_JOBS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most ``queue_jobs`` jobs of each class wait or run. ``clock`` gives the seconds that
        deadlines are held against. Raises ``ValueError`` for counts out of range, ``MemoryError``
        where threads cannot be made.
        """
        out = ffi.new("rdx_io **")
        status = lib.rdx_io_new(threads, queue_jobs, out)
        if status == lib.RDX_EARG:
            raise ValueError(f"threads={threads}, queue_jobs={queue_jobs}: expected 1 or more")
        if status != lib.RDX_OK:
            raise MemoryError(f"transfer threads: {status_text(status)}")
        self._io: Any = ffi.gc(out[0], lib.rdx_io_free)
        self._completions = ffi.new("rdx_completion[]", _POLL_MAX)
        self._kept: dict[int, Any] = {}
        self._clock = clock
        self._deadlines: list[tuple[float, int]] = []
        self._due: dict[int, float] = {}
        self._expired: set[int] = set()
        self._numbers = itertools.count(1)
        # Also at the end of the interpreter: threads must be gone before the memory they fill is.
        self._end = weakref.finalize(self, _free, self._io, self._kept)

    def new_job(self) -> int:
        """A job number that this engine has not given before; they ascend. Callers with numbers of
        their own use those instead.
        """
        return next(self._numbers)

    def submit_copy(
        self,
        job: int,
        urgency: Urgency,
        target: Planes,
        target_slots: Slots,
        source: Planes,
        source_slots: Slots,
        *,
        keep: object = None,
        deadline_s: float | None = None,
    ) -> int:
        """Starts copying block ``source_slots[i]`` to ``target_slots[i]``; both sides are planes
        (dtype ``PLANE``) of the same bytes a block, cut as they like.

        Returns RDX_OK, or why nothing was started (RDX_EBUSY: the queue is full, offer it again).
        The memory, and ``keep``, which is held, stay until the job's end was polled. Once
        ``clock() >= deadline_s`` the job is cancelled. Cost: the slots. Raises ``ValueError``:
        slots of unequal number; ``ClosedError``.
        """
        io = self._open()
        target_slots = np.ascontiguousarray(target_slots, np.int32)
        source_slots = np.ascontiguousarray(source_slots, np.int32)
        if target_slots.shape != source_slots.shape or source_slots.ndim != 1:
            raise ValueError(
                f"slots: {source_slots.shape} of the source, {target_slots.shape} of the target; "
                "expected two rows of the same length"
            )
        status = lib.rdx_io_submit_copy(
            *(io, job, int(urgency)),
            *(ffi.from_buffer("rdx_plane[]", target), len(target)),
            ffi.from_buffer("int32_t[]", target_slots),
            *(ffi.from_buffer("rdx_plane[]", source), len(source)),
            *(ffi.from_buffer("int32_t[]", source_slots), len(source_slots)),
        )
        return self._hold(status, job, keep, deadline_s)

    def submit_ops(
        self,
        job: int,
        urgency: Urgency,
        ops: Ops,
        *,
        sync: bool,
        keep: object = None,
        deadline_s: float | None = None,
    ) -> int:
        """Starts the file operations ``ops`` (dtype ``OP``, one dimension, C-contiguous), in which
        status and, for writes, checksum of each stand once the job's end was polled; ``ops`` is
        held till then, like ``keep``.

        ``sync``: each file written is synced before the end, and RDX_OK of a write means durable.
        Returns as ``submit_copy``; RDX_EARG where an operation is out of its range. Cost: the
        operations. Raises ``TypeError``: another dtype or shape; ``ClosedError``.
        """
        io = self._open()
        if ops.dtype != OP or ops.ndim != 1 or not ops.flags.carray:
            raise TypeError(f"ops: expected a writable row of {OP}, not {ops.shape} of {ops.dtype}")
        view = ffi.from_buffer("rdx_op[]", ops, require_writable=True)
        flags = lib.RDX_JOB_SYNC if sync else 0
        status = lib.rdx_io_submit(io, job, int(urgency), flags, view, len(ops))
        return self._hold(status, job, (ops, view, keep), deadline_s)

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a job; its end still comes, once. A job that is over or was
        never started is left alone.
        """
        lib.rdx_io_cancel(self._open(), job)

    def poll(self) -> list[Completion]:
        """Jobs that have ended since the last call, oldest first, each once. Never blocks. What a
        job held is let go. Cost: the ended jobs, and those whose deadline has passed.
        """
        ended: list[Completion] = []
        if self._io is None:
            return ended
        self._cancel_overdue()
        count = _POLL_MAX
        while count == _POLL_MAX:
            count = lib.rdx_io_poll(self._io, self._completions, _POLL_MAX)
            ended += [self._completion(item) for item in self._completions[0:count]]
        return ended

    def wait(self, timeout_s: float) -> bool:
        """Blocks, without the GIL, until ``poll`` has something to give (True), nothing is pending
        or the time is over. A signal handler of Python runs within 50 ms.
        """
        left_ms = max(0, round(timeout_s * 1000))
        while self._io is not None:
            self._cancel_overdue()
            slice_ms = min(left_ms, _WAIT_SLICE_MS)
            if lib.rdx_io_wait(self._io, slice_ms) > 0:
                return True
            left_ms -= slice_ms
            if left_ms == 0 or self.pending == 0:
                break
        return False

    @property
    def pending(self) -> int:
        """Jobs started whose end was not polled."""
        return 0 if self._io is None else int(lib.rdx_io_pending(self._io))

    @property
    def event_fd(self) -> int:
        """A file descriptor that is readable while ``poll`` has something to give."""
        return int(lib.rdx_io_event_fd(self._open()))

    def fail_at(self, k: int, status: int, *, sticky: bool = False) -> None:
        """For tests: the k-th file operation from now fails with ``status`` and moves nothing, all
        later ones too if ``sticky``; k = 0: none does.
        """
        lib.rdx_io_fail_at(self._open(), k, status, int(sticky))

    def close(self) -> None:
        """Waits for the pieces that run, skips the rest and ends the threads; ends that were not
        polled are lost, what the jobs held is let go. Idempotent.
        """
        self._io = None
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> Any:
        if self._io is None:
            raise ClosedError("the transfer engine is closed")
        return self._io

    def _hold(self, status: int, job: int, keep: object, deadline_s: float | None) -> int:
        if status == lib.RDX_OK:
            self._kept[job] = keep
            if deadline_s is not None:
                self._due[job] = deadline_s
                heapq.heappush(self._deadlines, (deadline_s, job))
        return int(status)

    def _cancel_overdue(self) -> None:
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline_s, job = heapq.heappop(self._deadlines)
            # A number may have been used again since, with a later deadline.
            if self._due.get(job) == deadline_s:
                del self._due[job]
                self._expired.add(job)
                lib.rdx_io_cancel(self._io, job)

    def _completion(self, item: Any) -> Completion:
        job = int(item.job)
        self._kept.pop(job, None)
        self._due.pop(job, None)
        expired = job in self._expired
        self._expired.discard(job)
        return Completion(
            job,
            int(item.status),
            int(item.failed),
            int(item.bytes),
            int(item.queued_ns),
            int(item.run_ns),
            expired,
        )


def _free(io: Any, kept: dict[int, Any]) -> None:
    """End the threads, then let go of the memory that they may have been filling."""
    ffi.release(io)
    kept.clear()
