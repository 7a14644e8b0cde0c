"""How blocks get from memory to memory: a copy job runs in native threads, and what the tier above
cannot show as addresses it moves itself. Keeps I22: a job owns its source and destination until
it has ended, and is acknowledged once; a block that is not good leaves no trace.

    upper is address-mapped          upper moves its own bytes
    upper planes --threads--> mine   upper.copy_out(..., my planes) --> mine
    upper planes <--threads-- mine   upper.copy_in(..., my planes)  <-- mine
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.errors import ClosedError, CorruptBlockError, TierError, TierFullError, UnsupportedError
from radix.tier import Capability, Slots, Tier, Transfer, TransferDone, Urgency
from tiers.pools import PooledTier, all_of
from tiers.transfer import PLANE, Completion, Planes, TransferEngine, status_text

# A device's mover has no descriptor to wait for: it is asked this often.
MOVER_POLL_S = 0.0002


def plane_array(planes: list[tuple[int, int, int]]) -> Planes:
    """(base address, stride bytes, bytes) triples as what ``Tier.planes`` returns."""
    return np.array(planes, PLANE)


def checksums(planes: Planes, slots: Slots) -> npt.NDArray[np.uint64]:
    """xxh3-64 of each block. Cost: the bytes, in the calling thread, without the GIL."""
    slots = np.ascontiguousarray(slots, np.int32)
    out = np.empty(len(slots), np.uint64)
    status = lib.rdx_checksum_blocks(
        ffi.from_buffer("rdx_plane[]", planes),
        len(planes),
        ffi.from_buffer("int32_t[]", slots),
        len(slots),
        ffi.from_buffer("uint64_t[]", out),
    )
    if status != lib.RDX_OK:
        raise ValueError(status_text(status))
    return out


@dataclass(frozen=True, slots=True)
class Moved:
    """How a copy ended: ``status`` is one of RDX_*, ``nbytes`` really moved."""

    job: int
    status: int
    nbytes: int


@runtime_checkable
class Mover(Protocol):
    """What an upper tier offers that is not address-mapped: it moves its own blocks."""

    def copy_out(
        self, job: int, group: int, slots: Slots, planes: Planes, lower: Slots, urgency: Urgency
    ) -> None:
        """Starts copying its ``slots`` to ``lower`` of ``planes``; both stay as they are till the
        end is reported. Raises ``TierFullError`` (retryable) where its queue is full.
        """
        ...

    def copy_in(
        self, job: int, group: int, slots: Slots, planes: Planes, lower: Slots, urgency: Urgency
    ) -> None:
        """Starts copying ``lower`` of ``planes`` to its ``slots``."""
        ...

    def moved(self) -> list[Moved]:
        """Copies that have ended since the last call, each once. Never blocks."""
        ...

    def register(self, address: int, nbytes: int) -> bool:
        """Lets the device reach this memory of a lower tier directly; False where it cannot."""
        ...

    def unregister(self, address: int) -> None:
        """Takes that back; nothing may be on its way."""
        ...


@runtime_checkable
class Front(Protocol):
    """A tier that stands before another one and passes on what it does not change."""

    @property
    def inner(self) -> Tier:
        """The tier behind it, where the bytes are."""
        ...


def mover_of(upper: Tier, lower: str) -> Mover:
    """What moves the blocks of ``upper``: itself, or the tier that it stands before.

    Raises: ``UnsupportedError`` naming both tiers where nothing does.
    """
    here = upper
    while not isinstance(here, Mover):
        if not isinstance(here, Front):
            raise UnsupportedError(
                f"tier {upper.name!r} has neither addresses nor copies of its own: tier "
                f"{lower!r} cannot reach its blocks"
            )
        here = here.inner
    return here


@dataclass(frozen=True, slots=True)
class _Job:
    """A transfer under way: ``part`` are the blocks that move, ``checked`` how many of them were
    verified. The upper tier is held, lest somebody drops it and frees memory under a copy.
    """

    upper: Tier
    part: npt.NDArray[np.bool_]
    checked: int


class CopyingTier(PooledTier):
    """A tier in memory: it moves blocks between its planes and those of the tier above."""

    def __init__(self, name: str, capability: Capability, threads: int) -> None:
        super().__init__(name, capability)
        self._engine = TransferEngine(threads)
        self._jobs: dict[int, _Job] = {}
        self._mover: Mover | None = None

    # ------------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying upper -> self. Cost here: the slots.

        Raises: ``TierFullError`` (retryable; nothing was started), ``TierUnavailableError``,
        ``UnsupportedError`` for a tier that neither has addresses nor moves its own bytes.
        """
        self._accept(transfer, storing=True)
        every = np.ones(len(transfer.upper_slots), np.bool_)
        self._begin(transfer, _Job(upper, every, 0), storing=True)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying self -> upper; blocks that are known to be wrong stay here and are
        reported corrupt. Raises as ``store``.
        """
        self._accept(transfer, storing=False)
        sound = self._sound(transfer.group, transfer.lower_slots)
        if sound is None:
            job = _Job(upper, np.ones(len(transfer.lower_slots), np.bool_), 0)
        else:
            job = _Job(upper, sound, int(np.count_nonzero(sound)))
        self._begin(transfer, job, storing=False)

    def _sound(self, group: int, slots: Slots) -> npt.NDArray[np.bool_] | None:
        """Which blocks still hold what was stored; None where no checksums are kept."""
        return None

    def _begin(self, transfer: Transfer, job: _Job, *, storing: bool) -> None:
        self._running[transfer.job] = transfer
        self._jobs[transfer.job] = job
        try:
            if job.part.any():
                self._start(transfer, job, storing)
            else:
                self._end(Moved(transfer.job, lib.RDX_OK, 0))
        except BaseException:
            self._running.pop(transfer.job, None)
            self._jobs.pop(transfer.job, None)
            raise

    def _start(self, transfer: Transfer, job: _Job, storing: bool) -> None:
        upper, group, mine = job.upper, transfer.group, self.planes(transfer.group)
        above, below = transfer.upper_slots[job.part], transfer.lower_slots[job.part]
        if not upper.capability.address_mapped:
            self._mover = mover_of(upper, self.name)
            move = self._mover.copy_out if storing else self._mover.copy_in
            move(transfer.job, group, above, mine, below, transfer.urgency)
            return
        theirs = upper.planes(group)
        ends = (mine, below, theirs, above) if storing else (theirs, above, mine, below)
        status = self._engine.submit_copy(transfer.job, transfer.urgency, *ends, keep=upper)
        if status == lib.RDX_EBUSY:
            raise TierFullError(self.name, "the queue of copies is full", retryable=True)
        if status != lib.RDX_OK:
            raise TierError(self.name, f"job {transfer.job}: {status_text(status)}")

    def cancel(self, job: int) -> None:
        """Skips what has not begun; the acknowledgement still comes, with no block good."""
        self._open_or_raise()
        self._engine.cancel(job)

    # ------------------------------------------------------------------ acknowledgements
    def _progress(self) -> None:
        for completion in self._engine.poll():
            self._end(completion)
        if self._mover is not None:
            for moved in self._mover.moved():
                self._end(moved)

    def _end(self, moved: Moved | Completion) -> None:
        transfer, job = self._running.pop(moved.job), self._jobs.pop(moved.job)
        if moved.status != lib.RDX_OK:
            error = TierError(
                self.name, f"job {moved.job}: {status_text(moved.status)}", retryable=True
            )
            self._done.append(all_of(transfer, good=False, nbytes=moved.nbytes, error=error))
            return
        wrong = int(np.count_nonzero(~job.part))
        corrupt = CorruptBlockError(self.name, f"{wrong} blocks are not what was stored")
        self._done.append(
            TransferDone(
                job=moved.job,
                good=job.part,
                corrupt=~job.part,
                nbytes=moved.nbytes,
                verified_blocks=job.checked,
                error=corrupt if wrong else None,
            )
        )

    def wait(self, timeout_s: float) -> None:
        """Blocks until ``poll`` has something to give, nothing runs, or the time is over."""
        self._open_or_raise()
        deadline = time.monotonic() + timeout_s
        self._progress()
        while self._running and not self._done:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._mover is None:
                self._engine.wait(left)
            else:
                time.sleep(min(left, MOVER_POLL_S))
            self._progress()

    def close(self) -> None:
        """Waits for copies that run, skips the rest, gives everything back. Idempotent.

        Acknowledgements not polled are lost; tiers below must be closed first, because they may
        still be reading this memory.
        """
        if self._closed:
            return
        self._settle()
        self._engine.close()
        self._jobs.clear()
        super().close()

    def _settle(self) -> None:
        """Waits for what an upper tier still moves: it may write into this memory. One that is
        closed has waited itself.
        """
        with suppress(ClosedError):
            while self._mover is not None and self._running:
                self._progress()
                time.sleep(MOVER_POLL_S)
