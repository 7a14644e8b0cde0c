"""What replicas of one cache agree on. N ranks each run the whole control plane over the same
calls; it decides by counts, keys and sequence numbers, so that they stay equal, and all that may
differ between them (how a job ended, how much room a pool has, whether a tier is on, the time)
enters here alone: each rank says its numbers, and an element-wise minimum is what every one of them
acts on. Keeps I33 (replicas decide alike, and one that has parted is told) and the ranks' part of
I22.

A step is taken in each poll with a job outstanding, and while a tier is not on. A rank whose tier
refuses a job has a report of it like any other: the decision was everybody's.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from radix.arguments import seconds_of
from radix.errors import (
    CacheError,
    ClosedError,
    InvariantError,
    TierError,
    TierFullError,
    TierUnavailableError,
)
from radix.front import FrontTier
from radix.groups import Group
from radix.joining import joined
from radix.reports import BEYOND, FAILED, Values, heard_of, said_of, width_of
from radix.tier import (
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
    Transfer,
    TransferDone,
    Written,
)

Agree = Callable[[Values], Values]

MOST_JOBS = 1024  # of a tier, under way at once
_PHANTOM = 1 << 30  # slots from here on stand for what this rank has no room for
_STEP = 64  # values are said in multiples of so many: ranks that have parted still meet
_TURN_S = 0.001
_MODES = (TierMode.OFF, TierMode.READ_ONLY, TierMode.ON)


class Agreement:
    """The agreement of one replica with the others; alone, without ``agree``, it changes nothing.

    ``tiers``, ``clock``: what the control plane goes by. ``tick`` once a poll, ``wait`` before it.
    """

    def __init__(
        self,
        agree: Agree | None,
        tiers: Sequence[Tier],
        clock: Callable[[], int],
        *,
        timed: bool = False,
    ) -> None:
        """``agree``: gives the element-wise minimum over all ranks of a row of int64; called by all
        of them equally often, with rows of one length. ``timed``: something waits for the clock
        alone, so that every poll takes a step. Raises ``TypeError``.
        """
        if agree is not None and not callable(agree):
            raise TypeError(f"agree must be callable, not {type(agree).__name__}")
        self._agree = agree
        self.shared = agree is not None  # with replicas that have to decide alike
        self._timed = timed
        self._read = clock
        self._now = 0
        self._ticks = 0
        self._agreed = tuple(AgreedTier(tier, self) for tier in tiers) if agree else ()
        self.tiers: tuple[Tier, ...] = self._agreed or tuple(tiers)
        self.clock: Callable[[], int] = self._time if agree else clock

    def _time(self) -> int:
        """The clock of the rank that is behind, as of the last step: replicas give one time."""
        return self._now

    def watch(self) -> None:
        """From now on something waits for the clock alone: every poll takes a step."""
        self._timed = True

    def minimum(self, values: Values) -> Values:
        """The element-wise minimum over all ranks. ``ValueError`` for an answer of another shape;
        whatever ``agree`` raises. Cost: one call of it.
        """
        if self._agree is None:
            return values
        said = np.full(-(-len(values) // _STEP) * _STEP, BEYOND, np.int64)
        said[: len(values)] = values
        heard = np.asarray(self._agree(said))
        if heard.shape != said.shape or heard.dtype != np.int64:
            raise ValueError(
                f"agree gave {heard.dtype} of {heard.shape}, expected int64 of {said.shape}"
            )
        return heard[: len(values)]

    def opened(self, values: Values) -> Values:
        """A step while a tier opens: the time, and ``values``."""
        heard = self.minimum(np.concatenate(([self._read()], values)).astype(np.int64))
        self._now = max(self._now, int(heard[0]))
        return heard[1:]

    def tick(self) -> None:
        """Takes a step where something is outstanding: what has ended on every rank is for the
        tiers' ``poll``. Blocks until all ranks are here. ``InvariantError`` (I33) on every rank
        where one of them has parted; nothing changed where ``agree`` raises. Cost: the jobs.
        """
        tiers = self._agreed
        if not tiers or not (self._timed or any(tier.asks for tier in tiers)):
            return
        mark = zlib.crc32(repr((self._ticks, [tier.mark() for tier in tiers])).encode())
        rows = [np.array([mark, -mark, self._read()], np.int64)]
        for tier in tiers:
            tier.collect()
            rows.append(tier.said())
        heard = self.minimum(np.concatenate(rows))
        if heard[0] != -heard[1]:
            raise InvariantError("I33", "replicas have parted: their jobs or their room differ")
        self._ticks += 1
        self._now = max(self._now, int(heard[2]))
        for tier, row in zip(
            tiers, np.split(heard, np.cumsum([len(row) for row in rows]))[1:], strict=False
        ):
            tier.hear(row)

    def wait(self, timeout_s: float) -> bool:
        """Blocks until a tier has a report for ``tick``, or the time is over; False: alone, nothing
        was done. What other ranks still do is waited for in ``tick``.
        """
        if not self._agreed:
            return False
        left_s = seconds_of("timeout_s", timeout_s)
        busy = [tier for tier in self._agreed if tier.unreported]
        turns = 1 if len(busy) < 2 else max(1, int(left_s / (len(busy) * _TURN_S)))
        for _ in range(turns if busy else 0):
            for tier in busy:
                tier.inner.wait(left_s if turns == 1 else _TURN_S)
            if any(tier.collect() for tier in busy):
                break
        return True


@dataclass(frozen=True, slots=True)
class _Job:
    transfer: Transfer
    upper: Tier
    storing: bool

    @property
    def blocks(self) -> int:
        return len(self.transfer.upper_slots)


class AgreedTier(FrontTier):
    """One rank's tier, whose answers are those that all ranks agreed on.

    Room is the least of all ranks' at the last step, less what was reserved since. A job that this
    rank's tier cannot begin is begun all the same: it is offered again while the queue is full, and
    else failed here. Slots that only this rank lacks are numbers without memory; what is stored
    there fails. Bytes, checksums and layers are the inner tier's.
    """

    def __init__(self, inner: Tier, agreement: Agreement) -> None:
        super().__init__(inner)
        self._agreement = agreement
        self._groups: tuple[Group, ...] = ()
        self._first = True
        self._mode, self._total = inner.mode, 0
        self._capacity: Values = np.empty(0, np.int64)
        self._room: Values = np.empty(0, np.int64)
        self._taken: list[int] = []  # blocks since the last step, by group
        self._jobs: dict[int, _Job] = {}
        self._reports: dict[int, TransferDone] = {}
        self._held: list[int] = []  # jobs that a full queue of this rank refused
        self._done: list[TransferDone] = []
        self._phantoms: list[set[int]] = []
        self._next_phantom = _PHANTOM

    # ------------------------------------------------------------ opening
    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Opens the inner tier; all ranks' open, or none: ``TierError`` where another's did not."""
        failed: Exception | None = None
        said = np.full(1 + 2 * len(groups), BEYOND, np.int64)
        try:
            self.inner.attach(groups, page_bytes, None if upper is None else _inner(upper))
            numbers = range(len(groups))
            said[1:] = [self.inner.capacity_blocks(number) for number in numbers] + [
                self.inner.free_blocks(number) for number in numbers
            ]
        except (CacheError, ValueError, TypeError, OSError, MemoryError) as error:
            failed, said[0] = error, FAILED
        heard = self._agreement.opened(said)
        if failed is not None:
            raise failed
        if heard[0] == FAILED:
            self.inner.close()
            raise TierError(self.name, "did not open on another rank")
        self._groups, self._first = groups, upper is None
        self._capacity, self._room = heard[1 : 1 + len(groups)], heard[1 + len(groups) :]
        self._taken = [0] * len(groups)
        self._phantoms = [set() for _ in groups]

    def restore(self) -> list[Restored]:
        """What the tiers of all ranks kept, in one order; the rest is given back. Cost: the blocks,
        and a few steps of the agreement.
        """
        found = joined(list(self.inner.restore()), self._agreement.minimum, self.inner.free)
        heard = self._agreement.minimum(self._free_now())
        self._room, self._taken = heard, [0] * len(self._groups)
        return found

    # ------------------------------------------------------------ a step
    @property
    def asks(self) -> bool:
        """Whether a step is due: a job is outstanding, or the tier may be on again."""
        return bool(self._jobs) or self._mode is not TierMode.ON

    @property
    def unreported(self) -> bool:
        """Whether something is under way on this rank."""
        return len(self._reports) < len(self._jobs)

    def mark(self) -> tuple[object, ...]:
        """What must be the same on all ranks before a step."""
        jobs = [(number, self._jobs[number].blocks) for number in sorted(self._jobs)]
        return self._mode.value, self._taken, jobs

    def collect(self) -> bool:
        """Takes this rank's own acknowledgements; whether there were some."""
        before = len(self._reports)
        held, self._held = self._held, []
        for number in held:
            self._start(number)
        for done in self.inner.poll():
            if done.job in self._jobs:
                self._reports[done.job] = done
        return len(self._reports) > before

    def said(self) -> Values:
        """This rank's numbers: mode, what was written (the most of all counts: a minimum of what is
        negative), room by group, and the jobs in order.
        """
        written = self.inner.written()
        total = 0 if written is None else written.total_bytes
        first = np.array([_MODES.index(self.inner.mode), -total], np.int64)
        return np.concatenate((first, self._free_now(), *map(self._said_of, sorted(self._jobs))))

    def _said_of(self, number: int) -> Values:
        job = self._jobs[number]
        return said_of(self._reports.get(number), job.blocks, self._in_order(job))

    def _in_order(self, job: _Job) -> bool:
        return self._groups[job.transfer.group].retention.rule == "full"

    def _free_now(self) -> Values:
        counts = [self.inner.free_blocks(group) for group in range(len(self._groups))]
        return np.array(counts, np.int64)

    def hear(self, row: Values) -> None:
        """Acts on the minimum of what all ranks said."""
        groups = len(self._groups)
        self._mode, self._total = _MODES[int(row[0])], -int(row[1])
        self._room, self._taken = row[2 : 2 + groups], [0] * groups
        at = 2 + groups
        for number in sorted(self._jobs):
            job, prefix = self._jobs[number], self._in_order(self._jobs[number])
            end = at + width_of(job.blocks, prefix)
            mine = self._reports.get(number)
            error = None if mine is None else mine.error
            done = heard_of(row[at:end], number, job.blocks, prefix, self.name, error)
            if done is not None:
                del self._jobs[number], self._reports[number]
                self._done.append(done)
            at = end

    # ------------------------------------------------------------ switch
    @property
    def mode(self) -> TierMode:
        """The least of all ranks', as of the last step."""
        return self._mode

    def set_mode(self, mode: TierMode) -> None:
        """Switches it on this rank, as all ranks do; what cannot be switched says so at a step."""
        with contextlib.suppress(TierError):  # its own mode stays: a step tells the others
            self.inner.set_mode(mode)
        self._mode = mode

    # ------------------------------------------------------------ slots
    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """The least of all ranks'; ``beside`` others by the byte. Cost: the groups."""
        most = int(self._capacity[group])
        if beside is None or not self.capability.shares_bytes:
            return most
        others = zip(beside, self._groups, strict=True)
        taken = [count * each.block_bytes for count, each in others]
        left = self.usage().limit_bytes - sum(taken) + taken[group]
        return max(0, min(most, left // self._groups[group].block_bytes))

    def free_blocks(self, group: int) -> int:
        """The least of all ranks' at the last step, less what was taken since: where groups share
        the tier's bytes, by the byte. Cost: the groups.
        """
        if self._mode is not TierMode.ON:
            return 0
        taken = self._taken[group]
        if self.capability.shares_bytes:
            size = self._groups[group].block_bytes
            sizes = [each.block_bytes for each in self._groups]
            nbytes = sum(n * each for n, each in zip(self._taken, sizes, strict=True))
            taken = -(-nbytes // size)
        return max(0, min(int(self._room[group]) - taken, self.capacity_blocks(group)))

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing, as there is room on every rank. Where this one has none
        all the same they have no memory. Cost: count.
        """
        if self._mode is not TierMode.ON:
            raise self._unavailable("gives no slots")
        if count > self.free_blocks(group):
            what = f"{count} slots asked for, {self.free_blocks(group)} free on every rank"
            raise TierFullError(self.name, what, retryable=True)
        try:
            slots = self.inner.reserve(group, count)
        except TierError:
            if self._first:
                raise
            first, self._next_phantom = self._next_phantom, self._next_phantom + count
            self._phantoms[group].update(range(first, first + count))
            slots = np.arange(first, first + count, dtype=np.int32)
        self._taken[group] += count
        return slots

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes, on every rank."""
        if (slots >= _PHANTOM).any():
            raise TierError(self.name, "commit: this rank has no memory behind a slot")
        self.inner.commit(group, slots)

    def abort(self, group: int, slots: Slots) -> None:
        """Gives reserved slots back."""
        self.inner.abort(group, self._real(group, slots, gone=True))
        self._taken[group] -= len(slots)

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back."""
        self.inner.free(group, slots)
        self._taken[group] -= len(slots)

    def fence(self, group: int, slots: Slots) -> None:
        """Given up, but not to be reused yet."""
        self.inner.fence(group, self._real(group, slots, gone=False))

    def lift(self, group: int, slots: Slots) -> None:
        """The fence of these slots has passed."""
        self.inner.lift(group, self._real(group, slots, gone=True))
        self._taken[group] -= len(slots)

    def _real(self, group: int, slots: Slots, *, gone: bool) -> Slots:
        """Those with memory behind them; of the others the numbers are forgotten."""
        phantoms = slots >= _PHANTOM
        if gone and phantoms.any():
            self._phantoms[group].difference_update(slots[phantoms].tolist())
        real: Slots = slots[~phantoms]
        return real

    # ------------------------------------------------------------ transfers
    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Starts a store on this rank; what it cannot start ends as failed."""
        self._submit(_Job(transfer, _inner(upper), storing=True))

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Starts a load on this rank; what it cannot start ends as failed."""
        self._submit(_Job(transfer, _inner(upper), storing=False))

    def _submit(self, job: _Job) -> None:
        if self._mode is TierMode.OFF or (job.storing and self._mode is not TierMode.ON):
            raise self._unavailable("takes no stores" if job.storing else "gives no loads")
        if len(self._jobs) >= MOST_JOBS:
            raise TierFullError(self.name, f"{MOST_JOBS} jobs are outstanding", retryable=True)
        number = job.transfer.job
        self._jobs[number] = job
        try:
            self._start(number)
        except BaseException:
            del self._jobs[number]
            raise

    def _start(self, number: int) -> None:
        job = self._jobs[number]
        transfer = job.transfer
        if max(transfer.upper_slots.max(), transfer.lower_slots.max()) >= _PHANTOM:
            self._fail(job, TierFullError(self.name, "this rank has no room", retryable=True))
            return
        try:
            (self.inner.store if job.storing else self.inner.load)(transfer, job.upper)
        except TierFullError as error:
            if error.retryable:
                self._held.append(number)
            else:
                self._fail(job, error)
        except TierError as error:
            self._fail(job, error)
        except ClosedError as error:
            self._fail(job, TierError(self.name, str(error)))

    def _fail(self, job: _Job, error: TierError) -> None:
        none = np.zeros(job.blocks, np.bool_)
        number = job.transfer.job
        self._reports[number] = TransferDone(number, none, none, 0, 0, error)

    def cancel(self, job: int) -> None:
        """Skips what has not begun on this rank; the end still comes."""
        if job in self._held:
            self._held.remove(job)
            self._fail(self._jobs[job], TierError(self.name, "cancelled", retryable=True))
        elif job in self._jobs and job not in self._reports:
            self.inner.cancel(job)

    def layers(self, job: int) -> int:
        """Layers of a load that are complete on this rank."""
        report = self._reports.get(job)
        if report is None:
            return 0 if job in self._held else self.inner.layers(job)
        if not report.good.all():
            return 0
        moved = self._jobs[job]
        group = moved.transfer.group
        views = (moved.transfer.part, moved.upper.view(group), self.inner.view(group))
        spans = [view.layers[1] - view.layers[0] for view in views if view is not None]
        return min(spans, default=self._groups[group].layout.layers)

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """Blocks until that layer of a load is complete on this rank."""
        report = self._reports.get(job)
        if report is not None:
            return bool(report.good.all())
        return job not in self._held and self.inner.wait_layer(job, layer, timeout_s)

    def poll(self) -> list[TransferDone]:
        """What has ended on every rank, as of the last step, by number."""
        done, self._done = self._done, []
        return done

    def pending(self) -> int:
        """Jobs whose agreed end was not polled."""
        return len(self._jobs) + len(self._done)

    def renew(self) -> None:
        """A new epoch on every rank; ``TierUnavailableError`` on all where one cannot keep it."""
        failed: TierError | None = None
        try:
            self.inner.renew()
        except TierError as error:
            failed = error
        if not self._agreement.minimum(np.array([failed is None], np.int64))[0]:
            raise TierUnavailableError(self.name, f"no new epoch: {failed or 'another rank'}")

    def written(self) -> Written | None:
        """This rank's own, but ``total_bytes``: the most of all ranks, as of the last step."""
        mine = self.inner.written()
        return None if mine is None else replace(mine, total_bytes=self._total)

    def usage(self) -> TierUsage:
        """This rank's bytes; slots without memory count as used."""
        usage = self.inner.usage()
        used = tuple(
            count + len(phantoms)
            for count, phantoms in zip(usage.used_blocks, self._phantoms, strict=True)
        )
        return TierUsage(usage.used_bytes, usage.limit_bytes, used)

    def _unavailable(self, what: str) -> TierUnavailableError:
        return TierUnavailableError(self.name, f"is {self._mode.value} and {what}", retryable=True)


def _inner(tier: Tier) -> Tier:
    """The tier of this rank, where the bytes are."""
    return tier.inner if isinstance(tier, AgreedTier) else tier
