"""The books of transfers under way: which numbers are out, what is on its way where, and what each
acknowledgement says. Prompts and sets of keys name their blocks in different ways; the books are
the same. Keeps I22 (a job pins its source, owns its target, is acknowledged once, a failed one
leaves no trace).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Generic

import numpy as np
import numpy.typing as npt

from radix.arguments import seconds_of
from radix.errors import (
    CapacityError,
    CorruptBlockError,
    InvariantError,
    TierError,
    TierFullError,
)
from radix.events import Event, TierEvent, TransferEvent
from radix.front import above
from radix.moves import AnyMove as AnyMove
from radix.moves import Job as Job
from radix.moves import Key as Key
from radix.moves import M as M
from radix.policy.breaker import Breakers
from radix.policy.limits import Limits, Moment
from radix.policy.wear import Wear
from radix.residency import Residency
from radix.tier import (
    Records,
    Slots,
    Tier,
    TierMode,
    Transfer,
    TransferDone,
    Urgency,
)

NOBODY = 0  # the owner of what nobody waits for
TURN_S = 0.001  # between looks at one tier while several are waited for
Place = tuple[int, ...]  # where a key can land once: tier, group and what else tells keys apart


class Jobs(ABC, Generic[M]):
    """All moves of one cache or store. ``poll`` ends them; what they are about is told by the
    class that inherits: ``_place``, ``_records``, ``_stored``, ``_loaded``.

    ``media``: the tiers themselves, where the residency knows one through who owns its slots.
    ``borrowed``: the engine's own tier, above the first tier that the tree knows.
    """

    def __init__(
        self,
        residency: Residency,
        clock: Callable[[], int],
        media: tuple[Tier, ...],
        borrowed: Tier | None,
        events: list[Event],
        limits: Limits | None = None,
        step: Callable[[], int] = lambda: -1,
    ) -> None:
        self.residency = residency
        self.tiers = residency.tiers
        self.media = media
        self.borrowed = borrowed
        top = 0 if borrowed is None else -1
        self._above = [above(media, tier, top) for tier in range(len(media))]
        self.jobs: dict[int, Job[M]] = {}
        self.outstanding: dict[int, int] = {}  # jobs by owner
        self._clock = clock
        self.limits = limits or Limits()
        self._step = step
        self._polls = 0
        self._events = events
        self._next = 1
        # keys on the way into a place: nothing is copied twice at once
        self._landing: dict[Place, dict[Key, int]] = {}
        self._last_mode = [tier.mode for tier in self.tiers]
        self._inbox: list[TransferDone] = []  # acknowledged, not yet acted upon
        self.breakers = Breakers(self.tiers, self.limits.breaker, residency.metrics)
        self.wear = Wear(
            self.tiers, residency.groups, self.limits, residency.metrics, self._arriving, clock()
        )
        self._lifted: set[int] = set()  # ended without an acknowledgement, which may still come

    def now(self) -> Moment:
        """Where the owner is, for deadlines."""
        return Moment(self._step(), self._clock(), self._polls)

    @abstractmethod
    def _place(self, move: M) -> Place:
        """Where the keys of a move land."""

    @abstractmethod
    def _records(self, move: M) -> Records:
        """What a persistent tier keeps of the blocks of a move."""

    @abstractmethod
    def _stored(self, job: Job[M], done: TransferDone) -> None:
        """A copy down ended; its pin still stands."""

    @abstractmethod
    def _loaded(self, job: Job[M], done: TransferDone) -> npt.NDArray[np.bool_] | None:
        """A copy up ended; its pin still stands. Which blocks are in their place now, None for all
        that are good.
        """

    def above(self, tier: int) -> int:
        """The number of the tier that one copies from and to; -1 is the engine's own."""
        return self._above[tier]

    def upper(self, tier: int) -> Tier | None:
        """The tier that one copies from and to."""
        return self.media[self._above[tier]] if tier else self.borrowed

    def tier_name(self, tier: int) -> str:
        """The name of a tier by number; -1 is the engine's own."""
        if tier >= 0:
            return self.tiers[tier].name
        return self.borrowed.name if self.borrowed is not None else "engine"

    # ------------------------------------------------------------ begin
    def _coming(self, place: Place, keys: list[Key]) -> npt.NDArray[np.bool_]:
        """Which of the keys are on their way into a place. Cost: the keys."""
        here = self._landing.get(place)
        if not here:
            return np.zeros(len(keys), np.bool_)
        return np.fromiter(map(here.__contains__, keys), np.bool_, len(keys))

    def _room(self, target: int, group: int, blocks: int, root: int) -> Slots:
        """As many slots of a lower tier as fit, and as its budget of writes allows; what finds none
        is declined and counted.
        """
        allowed = self.wear.within(target, group, blocks, self._clock())
        slots = self.fitting(target, group, allowed, root)
        self.count("declined", target, group, blocks - len(slots))
        return slots

    def _arriving(self, tier: int, group: int) -> int:
        """Blocks that are on their way down into a tier. Cost: the jobs."""
        place = tier, group
        jobs = (job for job in self.jobs.values() if job.storing)
        return sum(job.move.blocks for job in jobs if (job.move.target, job.move.group) == place)

    def fitting(self, tier: int, group: int, blocks: int, root: int) -> Slots:
        """As many slots as fit, ``blocks`` at most, for the tenant of a root."""
        fits = blocks
        while fits:
            try:
                return self.residency.reserve(tier, group, fits, root)
            except (CapacityError, TierError):
                room = min(fits, self.residency.at_once(tier, group, root))
                fits = max(0, room) if room < fits else 0
        return np.empty(0, np.int32)

    def _begin(
        self,
        move: M,
        upper: Slots,
        lower: Slots,
        keys: list[Key],
        owner: int,
        unpin: Callable[[], None],
    ) -> Job[M]:
        """Enters a job whose pin was taken."""
        now = self.now()
        job = Job(self._next, move, upper, lower, keys, owner, now.ns, unpin, now)
        self._next += 1
        self.jobs[job.number] = job
        self.outstanding[owner] = self.outstanding.get(owner, 0) + 1
        self._land(self._place(move), keys, job.number)
        return job

    def _land(self, place: Place, keys: list[Key], number: int) -> None:
        self._landing.setdefault(place, {}).update(dict.fromkeys(keys, number))

    def _landed(self, place: Place, keys: list[Key], number: int) -> None:
        here = self._landing.get(place, {})
        for key in keys:
            if here.get(key) == number:
                del here[key]
        if not here:
            self._landing.pop(place, None)

    def _start_store(self, job: Job[M]) -> bool:
        """Hands a job to the tier below; False when its queue is full: offer it again. What is
        refused otherwise is declined. A job that did not start is gone, its target slots are free.
        """
        move = job.move
        tier = self.tiers[move.target]
        upper = self.upper(move.target)
        try:
            if upper is None:
                raise TierError(tier.name, "has no tier above it to copy from")
            if self.crowded(move.target, self.limits.stores, storing=True, besides=1):
                raise TierFullError(tier.name, "as many stores as may run do", retryable=True)
            keyed = tier.capability.persistent or tier.capability.finds
            records = self._records(move) if keyed else None
            tier.store(self._transfer(job, Urgency.STORE, records), upper)
        except TierError as error:
            self._end(job)
            tier.abort(move.group, job.lower_slots)
            if isinstance(error, TierFullError) and error.retryable:
                return False
            self._refused(move.target, tier, storing=True)
            self.count("declined", move.target, move.group, move.blocks)
        except BaseException:
            self._end(job)
            tier.abort(move.group, job.lower_slots)
            raise
        return True

    def _start_load(self, job: Job[M], urgency: Urgency) -> bool:
        """Hands a job to the tier that has the blocks; False when that refuses: the job is gone,
        the slots above are still the caller's.
        """
        move = job.move
        tier = self.tiers[move.source]
        upper = self.upper(move.source)
        try:
            if upper is None:
                raise TierError(tier.name, "has no tier above it to copy to")
            tier.load(self._transfer(job, urgency, None), upper)
        except TierError as error:
            self._end(job)
            if not (isinstance(error, TierFullError) and error.retryable):
                self._refused(move.source, tier, storing=False)
            self.count("refused", move.source, move.group, move.blocks, "load")
            return False
        except BaseException:
            self._end(job)
            raise
        return True

    def _refused(self, number: int, tier: Tier, *, storing: bool) -> None:
        """A tier that should have begun a transfer could not."""
        if tier.mode is TierMode.ON:
            self.breakers.ended(number, storing=storing, good=False)

    def crowded(self, tier: int, most: int | None, *, storing: bool, besides: int = 0) -> bool:
        """Whether ``most`` stores, or loads, of a tier are under way, ``besides`` not counted."""
        if most is None:
            return False
        running = sum(
            (job.lower, job.storing, job.late) == (tier, storing, False)
            for job in self.jobs.values()
        )
        return running - besides >= most

    @staticmethod
    def _transfer(job: Job[M], urgency: Urgency, records: Records | None) -> Transfer:
        return Transfer(
            job.number,
            job.move.group,
            job.upper_slots,
            job.lower_slots,
            urgency,
            records,
            job.part,
            job.by_layer,
        )

    # ------------------------------------------------------------ end
    def cancel(self, job: Job[M]) -> None:
        """Skips what has not begun of a load; its end still comes."""
        job.cancelled = True
        with suppress(TierError):  # then it ends as it would have
            self.tiers[job.lower].cancel(job.number)

    def disown(self, job: Job[M]) -> None:
        """Nobody waits for a load any more: its slots above are its own until it ends, and its keys
        may be loaded again.
        """
        self._settle(job.owner)
        job.owner, job.late = NOBODY, True
        self.outstanding[NOBODY] = self.outstanding.get(NOBODY, 0) + 1
        self._landed(self._place(job.move), job.keys, job.number)

    def expire(self) -> dict[int, list[Job[M]]]:
        """Gives up loads whose deadline has passed, cancelled or not: by owner that he had. They go
        on owning what they write until they end, if ever; slots that the engine lent stay on loan.
        Cost: those that are over.
        """
        bound = self.limits.load_deadline
        if bound.endless:
            return {}
        now = self.now()
        given_up: dict[int, list[Job[M]]] = {}
        for job in self.jobs.values():  # in the order in which they began
            if not bound.over(job.since, now):
                break
            told = job.late if job.move.target >= 0 else job.cancelled
            if job.storing or told:
                continue
            self.cancel(job)
            self.count("late", job.move.source, job.move.group, job.move.blocks, "load")
            self.breakers.ended(job.move.source, storing=False, good=False)
            if job.move.target >= 0:
                given_up.setdefault(job.owner, []).append(job)
                self.disown(job)
        return given_up

    def moving(self) -> bool:
        """Whether something moves that somebody waits for; what is late may never end."""
        return any(not job.late for job in self.jobs.values())

    def _settle(self, owner: int) -> None:
        left = self.outstanding.pop(owner) - 1
        if left:
            self.outstanding[owner] = left

    def _end(self, job: Job[M]) -> None:
        del self.jobs[job.number]
        self._settle(job.owner)
        self._landed(self._place(job.move), job.keys, job.number)
        job.unpin()

    def wait(self, timeout_s: float) -> None:
        """Blocks until there is something for ``poll``, or the time is over.

        Several tiers are asked in turns, so that a slow store delays no load.
        """
        left_s = seconds_of("timeout_s", timeout_s)
        busy = [tier for tier in self.tiers if tier.pending()]
        if self._inbox or not busy:
            return
        with suppress(TierError):  # its next poll tells
            if len(busy) == 1:
                busy[0].wait(left_s)
                return
            turn_s = min(TURN_S, left_s / len(busy))
            for _ in range(max(1, int(left_s / (len(busy) * turn_s))) if turn_s > 0 else 1):
                for tier in busy:
                    tier.wait(turn_s)
                    self._inbox += tier.poll()
                if self._inbox:
                    return

    def poll(self, ended: Callable[[Job[M], npt.NDArray[np.bool_]], None]) -> None:
        """Takes every acknowledgement; ``ended(job, good)`` is called for each job once, while
        its pin still stands. Cost: the blocks that ended.
        """
        self._polls += 1
        for number, tier in enumerate(self.tiers):
            try:
                self._inbox += tier.poll()
            except TierError:  # the others go on; it is asked again, and out if it stays so
                self.residency.metrics.add(("tier", "silent", tier.name))
                self.breakers.ended(number, storing=False, good=False)
        self.wear.run(self._clock())  # what ended was written
        while self._inbox:
            done = self._inbox.pop(0)
            if done.job in self._lifted:
                self._lifted.discard(done.job)
                continue
            job = self.jobs.get(done.job)
            if job is None:
                raise InvariantError("I22", f"job {done.job} is acknowledged and not under way")
            try:
                ended(job, self._acted(job, done))
            finally:  # whatever failed, it is acknowledged once
                self._end(job)
        self.breakers.run(self.now())
        for number, tier in enumerate(self.tiers):
            if tier.mode is not self._last_mode[number]:
                self._last_mode[number] = tier.mode
                self._events.append(TierEvent(tier.name, tier.mode.value))

    def _acted(self, job: Job[M], done: TransferDone) -> npt.NDArray[np.bool_]:
        """Does what an acknowledgement says; which blocks have arrived."""
        job.done = done
        self._account(job, done)
        if job.stale:
            return self._abandon(job)
        if job.storing:
            self._stored(job, done)
            return done.good
        placed = self._loaded(job, done)
        return done.good if placed is None else placed

    # ------------------------------------------------------------ older epochs
    def outdate(self, job: Job[M]) -> None:
        """What this job brings counts no more; its keys may be moved again at once."""
        if not job.stale:
            self._landed(self._place(job.move), job.keys, job.number)
            job.stale, job.keys = True, []

    def _abandon(self, job: Job[M]) -> npt.NDArray[np.bool_]:
        """Gives back the slots that a job of an older epoch wrote; nothing has arrived."""
        move = job.move
        if job.storing:
            self.tiers[move.target].abort(move.group, job.lower_slots)
        elif move.target > (0 if self.borrowed is None else -1) or (job.late and not move.target):
            self.tiers[move.target].abort(move.group, job.upper_slots)
        return np.zeros(move.blocks, np.bool_)

    def lift(
        self, ended: Callable[[Job[M], npt.NDArray[np.bool_]], None], *, swallowed: bool
    ) -> None:
        """Ends the jobs of older epochs whose acknowledgement does not come: those of tiers that
        have nothing under way any more, or, if the owner says that they are ``swallowed``, all.
        """
        for job in [job for job in self.jobs.values() if job.stale]:
            if self.tiers[job.lower].pending() and not swallowed:
                continue
            self._lifted.add(job.number)
            ended(job, self._abandon(job))
            self._end(job)

    def check(self) -> None:
        """Jobs, their counts by owner and the keys under way agree (I14, I22). Cost: the jobs."""
        owners: dict[int, int] = {}
        landing: dict[tuple[Place, Key], int] = {}
        for number, job in self.jobs.items():
            owners[job.owner] = owners.get(job.owner, 0) + 1
            place = self._place(job.move)
            for key in job.keys if not job.late else ():
                if (place, key) in landing and job.storing:
                    raise InvariantError("I22", f"job {number} writes a key that another writes")
                landing[place, key] = number
        if owners != self.outstanding:
            raise InvariantError("I22", f"jobs by owner {owners}, counted {self.outstanding}")
        for place, here in self._landing.items():
            for key, number in here.items():
                if number not in self.jobs or (place, key) not in landing:
                    raise InvariantError("I22", f"a key is landing with job {number}, which ended")

    # ------------------------------------------------------------ accounts
    def count(self, what: str, tier: int, group: int, blocks: int, stage: str = "store") -> None:
        """Counts blocks of one stage by tier and group; nothing where there are none."""
        if blocks:
            names = self.tiers[tier].name, self.residency.groups[group].name
            self.residency.metrics.add((stage, what, *names), blocks)

    def _account(self, job: Job[M], done: TransferDone) -> None:
        move, lower = job.move, job.lower
        stage = "store" if job.storing else "load"
        good = int(np.count_nonzero(done.good))  # in a tenth of what sum() takes
        self.count("blocks", lower, move.group, good, stage)
        self.count("bytes", lower, move.group, done.nbytes, stage)
        self.count("verified", lower, move.group, done.verified_blocks, stage)
        self.count("failed", lower, move.group, move.blocks - good, stage)
        self.count("corrupt", lower, move.group, int(np.count_nonzero(done.corrupt)), stage)
        # Without an error blocks were only declined: part of what the tier stands on is away.
        harmless = job.cancelled or done.error is None or isinstance(done.error, CorruptBlockError)
        if good == move.blocks or not harmless:
            self.breakers.ended(lower, storing=job.storing, good=good == move.blocks)
        self._events.append(
            TransferEvent(
                job=job.number,
                source=self.tier_name(move.source),
                target=self.tier_name(move.target),
                group=self.residency.groups[move.group].name,
                blocks=move.blocks,
                good=good,
                nbytes=done.nbytes,
                start_ns=job.start_ns,
                end_ns=self._clock(),
                error=None if done.error is None else str(done.error),
            )
        )
