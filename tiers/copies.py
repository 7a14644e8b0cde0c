"""How blocks get from memory to memory: a copy job runs in native threads, and what the tier above
cannot show as addresses it moves itself. A part of a block is the same with fewer planes; a load by
layer is one copy for each of them, in order. Keeps I22: a job owns its source and destination until
it has ended, and is acknowledged once; a block that is not good leaves no trace.

    upper is address-mapped          upper moves its own bytes
    upper planes --threads--> mine   upper.copy_out(..., my planes) --> mine
    upper planes <--threads-- mine   upper.copy_in(..., my planes)  <-- mine

A small copy with nothing else under way is made by the caller's own thread: it ends sooner than a
thread wakes. Its end is told by ``poll`` like every other.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.errors import ClosedError, CorruptBlockError, TierError, TierFullError, UnsupportedError
from radix.tier import Capability, Slots, Tier, Transfer, TransferDone, Urgency
from tiers.pools import PooledTier, all_of
from tiers.transfer import PLANE, Completion, Planes, TransferEngine, status_text
from tiers.views import Cut, Offsets, copy_blocks

# A device's mover has no descriptor to wait for: it is asked this often.
MOVER_POLL_S = 0.0002
# The most bytes that the caller's thread copies itself.
AT_ONCE_BYTES = 1 << 20
# Copies that are one of several of a transfer have numbers that no transfer has.
STEP_NUMBERS = 1 << 62


def plane_array(planes: list[tuple[int, int, int]]) -> Planes:
    """(base address, stride bytes, bytes) triples as what ``Tier.planes`` returns."""
    return np.array(planes, PLANE)


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
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying its ``slots`` to ``lower`` of ``planes``; both stay as they are till the
        end is reported. ``ranges``: (offset, bytes) of its blocks that move, ascending; None: all.
        Raises ``TierFullError`` (retryable) where its queue is full.
        """
        ...

    def copy_in(
        self,
        job: int,
        group: int,
        slots: Slots,
        planes: Planes,
        lower: Slots,
        urgency: Urgency,
        ranges: Offsets | None = None,
    ) -> None:
        """Starts copying ``lower`` of ``planes`` to its ``slots``, or to ``ranges`` of them."""
        ...

    def cancel(self, job: int) -> None:
        """Skips what has not begun of a copy; it still ends once."""
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


@dataclass(slots=True)
class _Job:
    """A transfer under way, in one copy or one for each layer: ``steps`` of them, ``waiting`` those
    that have not begun, ``running`` those that have and did not end. ``part`` are the blocks that
    move, ``checked`` how many of them were verified. The upper tier is held, lest somebody drops it
    and frees memory under a copy.
    """

    upper: Tier
    storing: bool
    cut: Cut
    part: npt.NDArray[np.bool_]
    checked: int
    steps: list[Cut]
    ended: list[bool]
    waiting: deque[int] = field(default_factory=deque)
    running: int = 0
    nbytes: int = 0
    status: int = lib.RDX_OK


class CopyingTier(PooledTier):
    """A tier in memory: it moves blocks between its planes and those of the tier above."""

    _verify = False

    def __init__(self, name: str, capability: Capability, threads: int) -> None:
        super().__init__(name, capability)
        self._engine = TransferEngine(threads)
        self._jobs: dict[int, _Job] = {}
        self._copies: dict[int, tuple[int, int]] = {}  # copy -> transfer, step
        self._numbers = itertools.count(STEP_NUMBERS)
        self._stalled: list[int] = []  # jobs with steps for which there was no room yet
        self._movers: list[Mover] = []
        self._at_once: list[Moved] = []  # copied by the caller's thread, not yet told
        self._pid = os.getpid()  # a child that was forked has no such memory

    # ------------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying upper -> self. Cost here: the slots.

        Raises: ``TierFullError`` (retryable; nothing was started), ``TierUnavailableError``,
        ``UnsupportedError`` for a tier that neither has addresses nor moves its own bytes,
        ``ValueError`` for a part that one of the two does not hold.
        """
        cut = self._accept(transfer, upper, storing=True)
        every = np.ones(len(transfer.upper_slots), np.bool_)
        self._begin(transfer, _Job(upper, True, cut, every, 0, [cut], [False]))
        self._will_write(transfer, cut)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts copying self -> upper; blocks that are known to be wrong in what moves of them
        stay here and are reported corrupt. Raises as ``store``.
        """
        cut = self._accept(transfer, upper, storing=False)
        try:
            sound = self._sound(transfer.group, transfer.lower_slots, cut)
            checked = int(np.count_nonzero(sound)) if sound is not None and self._verify else 0
            if sound is None:
                sound = np.ones(len(transfer.lower_slots), np.bool_)
            steps = cut.by_layer() if transfer.by_layer else [cut]
            self._begin(
                transfer, _Job(upper, False, cut, sound, checked, steps, [False] * len(steps))
            )
        except BaseException:
            self._loads.pop(transfer.job, None)
            raise

    def _sound(self, group: int, slots: Slots, cut: Cut) -> npt.NDArray[np.bool_] | None:
        """Which blocks have these runs and, with ``_verify``, as they were stored; None: all."""
        return None

    def _begin(self, transfer: Transfer, job: _Job) -> None:
        number = transfer.job
        self._running[number] = transfer
        self._jobs[number] = job
        job.waiting.extend(range(len(job.steps)))
        try:
            if np.count_nonzero(job.part):
                self._go_on(number)
                if len(job.waiting) == len(job.steps):
                    raise TierFullError(self.name, "the queue of copies is full", retryable=True)
            else:
                job.waiting.clear()
                self._end(number)
        except BaseException:
            self._running.pop(number, None)
            self._jobs.pop(number, None)
            raise

    def _go_on(self, number: int) -> None:
        """Starts the steps that wait, as many as there is room for; with none left it is over."""
        job, transfer = self._jobs[number], self._running[number]
        while job.waiting:
            step = job.waiting[0]
            copy = number if len(job.steps) == 1 else next(self._numbers)
            try:
                room = self._start(copy, transfer, job, step)
            except TierError:
                if step == 0:
                    raise
                job.status = lib.RDX_EIO
                job.waiting.clear()
                break
            if not room:
                if step:
                    self._stalled.append(number)
                return
            job.waiting.popleft()
        if not job.running:
            self._end(number)

    def _start(self, copy: int, transfer: Transfer, job: _Job, step: int) -> bool:
        """Starts the copy of one step; False where there is no room for it."""
        cut = job.steps[step]
        if not len(cut.sizes):
            job.ended[step] = True  # a layer without bytes
        elif self._submit(copy, transfer, job, cut):
            self._copies[copy] = (transfer.job, step)
            job.running += 1
        else:
            return False
        return True

    def _submit(self, copy: int, transfer: Transfer, job: _Job, cut: Cut) -> bool:
        upper, group = job.upper, transfer.group
        mine = cut.planes_below(self.planes(group))
        above, below = transfer.upper_slots, transfer.lower_slots
        if np.count_nonzero(job.part) < len(job.part):
            above, below = above[job.part], below[job.part]
        if not upper.capability.address_mapped:
            mover = mover_of(upper, self.name)
            if mover not in self._movers:
                self._movers.append(mover)
            move = mover.copy_out if job.storing else mover.copy_in
            try:
                move(copy, group, above, mine, below, transfer.urgency, cut.ranges_above())
            except TierFullError:
                return False
            return True
        theirs = cut.planes_above(upper.planes(group))
        ends = (mine, below, theirs, above) if job.storing else (theirs, above, mine, below)
        nbytes = len(below) * cut.nbytes
        small = nbytes <= AT_ONCE_BYTES and len(job.steps) == 1 and not self._copies
        if small and os.getpid() == self._pid and copy_blocks(*ends) == lib.RDX_OK:
            self._at_once.append(Moved(copy, lib.RDX_OK, nbytes))
            return True
        status = self._engine.submit_copy(copy, transfer.urgency, *ends, keep=upper)
        if status not in (lib.RDX_OK, lib.RDX_EBUSY):
            raise TierError(self.name, f"job {transfer.job}: {status_text(status)}")
        return bool(status == lib.RDX_OK)

    def cancel(self, job: int) -> None:
        """Skips what has not begun; the acknowledgement still comes, with no block good."""
        self._open_or_raise()
        under_way = self._jobs.get(job)
        if under_way is None:
            return
        if under_way.waiting:
            under_way.waiting.clear()
            under_way.status = lib.RDX_ECANCELED
        for copy, (number, _) in list(self._copies.items()):
            if number == job:
                if under_way.upper.capability.address_mapped:
                    self._engine.cancel(copy)
                else:
                    mover_of(under_way.upper, self.name).cancel(copy)
        if not under_way.running:
            self._end(job)

    # ------------------------------------------------------------------ acknowledgements
    def _progress(self) -> None:
        while self._at_once:
            self._ended(self._at_once.pop())
        for completion in self._engine.poll():
            self._ended(completion)
        for mover in self._movers:
            for moved in mover.moved():
                self._ended(moved)
        stalled, self._stalled = self._stalled, []
        for number in stalled:
            if number in self._jobs:
                self._go_on(number)

    def _ended(self, moved: Moved | Completion) -> None:
        """One copy has ended; its transfer has once all of them have."""
        number, step = self._copies.pop(moved.job)
        job = self._jobs[number]
        job.running -= 1
        job.nbytes += moved.nbytes
        if moved.status == lib.RDX_OK:
            job.ended[step] = True
        elif job.status == lib.RDX_OK:
            job.status = moved.status
            job.waiting.clear()
        if number in self._loads and len(job.steps) > 1 and job.part.all():
            load = self._loads[number]
            while load.done < len(job.ended) and job.ended[load.done]:
                load.done += 1
        if not job.running and not job.waiting:
            self._end(number)

    def _end(self, number: int) -> None:
        transfer, job = self._running.pop(number), self._jobs.pop(number)
        if job.status != lib.RDX_OK:
            error = TierError(self.name, f"job {number}: {status_text(job.status)}", retryable=True)
            self._done.append(all_of(transfer, good=False, nbytes=job.nbytes, error=error))
            return
        if job.storing:
            self._wrote(transfer, job.cut, job.part)
        else:
            above = np.asarray(transfer.upper_slots)[job.part]
            job.upper.arrived(transfer.group, above, job.cut.view)
        wrong = int(np.count_nonzero(~job.part))
        corrupt = CorruptBlockError(self.name, f"{wrong} blocks are not what was stored")
        self._done.append(
            TransferDone(
                job=number,
                good=job.part,
                corrupt=~job.part,
                nbytes=job.nbytes,
                verified_blocks=job.checked,
                error=corrupt if wrong else None,
            )
        )

    def _wait_step(self, timeout_s: float) -> None:
        if self._movers:
            time.sleep(min(timeout_s, MOVER_POLL_S))
        else:
            self._engine.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Blocks until ``poll`` has something to give, nothing runs, or the time is over."""
        self._open_or_raise()
        deadline = time.monotonic() + timeout_s
        self._progress()
        while self._running and not self._done:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._wait_step(left)
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
        self._copies.clear()
        super().close()

    def _settle(self) -> None:
        """Waits for what an upper tier still moves: it may write into this memory. One that is
        closed has waited itself.
        """
        while self._movers and self._running:
            try:
                self._progress()
            except ClosedError:
                return
            time.sleep(MOVER_POLL_S)
