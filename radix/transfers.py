"""Moves of blocks between neighbouring tiers: what is in flight, what each completion changes, and
what follows from it. Keeps I22 (a job pins its source, owns its target, is acknowledged once, a
failed one leaves no trace) and I23 (a copy counts only once it is acknowledged).

    store   device --> host --> disk     each hop begins when the one above was acknowledged
    load    device <-- host <-- disk     likewise from below
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.errors import CapacityError, TierError, TierFullError
from radix.events import Event, TierEvent, TransferEvent
from radix.plan import Cursor, Move, Pages
from radix.residency import Residency, runs
from radix.tier import Records, Slots, Tier, TierMode, Transfer, TransferDone, Urgency
from radix.tree import NO_SLOT

Key = bytes


@dataclass(slots=True)
class Job:
    """A transfer under way: it pins the path of its blocks and owns both sides' slots until its
    one acknowledgement.
    """

    number: int
    move: Move
    lease: int
    upper_slots: Slots
    lower_slots: Slots
    keys: list[Key]
    owner: int
    start_ns: int

    @property
    def storing(self) -> bool:
        """Down, not up."""
        return self.move.target > self.move.source


Ended = Callable[[Job, npt.NDArray[np.bool_]], None]


class Transfers:
    """All moves of one cache. Start: ``store``, ``load``. End: ``poll``. Ask: ``in_flight``.

    ``media``: the tiers themselves, where the residency knows one through who owns its slots.
    ``borrowed``: the engine's own device tier, above the first tier that the tree knows.
    """

    def __init__(
        self,
        residency: Residency,
        clock: Callable[[], int],
        namespaces: dict[int, bytes],
        media: tuple[Tier, ...],
        borrowed: Tier | None,
        events: list[Event],
        writes: bool = True,
    ) -> None:
        self.residency = residency
        self.tree = residency.tree
        self.tiers = residency.tiers
        self.jobs: dict[int, Job] = {}
        self.media = media
        self.borrowed = borrowed
        self.outstanding: dict[int, int] = {}  # jobs by owner
        self.deepest = len(self.tiers) - 1 if writes else -1  # the last tier written to
        self._clock = clock
        self._namespaces = namespaces
        self._events = events
        self._next = 1
        # keys on the way into (tier, group): nothing is copied twice at once
        self._landing: dict[tuple[int, int], dict[Key, int]] = {}
        self._last_mode = [tier.mode for tier in self.tiers]

    def upper(self, tier: int) -> Tier | None:
        """The neighbour above."""
        return self.media[tier - 1] if tier else self.borrowed

    def tier_name(self, tier: int) -> str:
        """The name of a tier by number; -1 is the engine's own."""
        if tier >= 0:
            return self.tiers[tier].name
        return self.borrowed.name if self.borrowed is not None else "engine"

    def _keys(self, at: Cursor, pages: Pages) -> list[Key]:
        first = int(pages[0])
        keys = self.tree.keys(at, first, int(pages[-1]) - first + 1)[pages - first]
        return [bytes(key) for key in np.ascontiguousarray(keys).view("V16").ravel().tolist()]

    def landing(self, at: Cursor, tier: int, group: int, pages: Pages) -> npt.NDArray[np.bool_]:
        """Which of the pages are on their way into (tier, group)."""
        here = self._landing.get((tier, group))
        if not here or not len(pages):
            return np.zeros(len(pages), np.bool_)
        return np.array([key in here for key in self._keys(at, pages)], np.bool_)

    # ------------------------------------------------------------ store
    def store(
        self,
        at: Cursor,
        first: int,
        count: int,
        source: int,
        owner: int,
        borrowed: list[Slots] | None = None,
    ) -> list[tuple[Move, Slots]]:
        """Copies what pages [first, first+count) hold in ``source`` one tier down.

        ``at`` must be leased by the caller. ``borrowed``: the engine's slots of these pages, by
        group, where ``source`` is -1. What is there already or on its way is left out; what finds
        no room is declined and counted. Returns the moves that a full queue refused: offer them
        again. Cost: the pages.
        """
        target = source + 1
        if target > self.deepest or count <= 0:
            return []
        refused: list[tuple[Move, Slots]] = []
        for group in range(len(self.residency.groups)):
            if self.tiers[target].mode is not TierMode.ON:
                self._count("declined", target, group, count)
                continue
            if borrowed is None:
                have = self.residency.slots(at, group, source, first, count)
            else:
                have = borrowed[group]
            below = self.residency.slots(at, group, target, first, count)
            pages = np.flatnonzero((have != NO_SLOT) & (below == NO_SLOT)).astype(np.int64) + first
            pages = pages[~self.landing(at, target, group, pages)]
            if len(pages):
                move = Move(at, group, source, target, pages)
                upper_slots = have[pages - first]
                if not self.submit_store(move, upper_slots, owner):
                    refused.append((move, upper_slots))
        return refused

    def submit_store(self, move: Move, upper_slots: Slots, owner: int) -> bool:
        """Starts a planned store; False when the tier's queue is full: offer it again."""
        tier = self.tiers[move.target]
        try:
            lower = self.residency.reserve(move.target, move.group, move.blocks)
        except (CapacityError, TierError):
            fits = max(0, min(move.blocks, self.residency.available(move.target, move.group)))
            self._count("declined", move.target, move.group, move.blocks - fits)
            if fits in (0, move.blocks):
                self._count("declined", move.target, move.group, fits)
                return True
            part = Move(move.at, move.group, move.source, move.target, move.pages[:fits])
            return self.submit_store(part, upper_slots[:fits], owner)
        upper = self.upper(move.target)
        if upper is None:
            raise TierError(tier.name, "has no tier above it to copy from")
        job = self._begin(move, upper_slots, lower, owner)
        try:
            tier.store(self._transfer(job, Urgency.STORE), upper)
        except TierError as error:
            self._undo(job)
            tier.abort(move.group, lower)
            if isinstance(error, TierFullError) and error.retryable:
                return False
            self._count("declined", move.target, move.group, move.blocks)
        return True

    # ------------------------------------------------------------ load
    def load(self, move: Move, upper_slots: Slots, owner: int, urgency: Urgency) -> Job | None:
        """Starts copying blocks one tier up into slots that the caller reserved; None when the
        lower tier refuses: nothing was started and the slots are still the caller's.
        """
        lower = self.residency.slots(
            move.at,
            move.group,
            move.source,
            int(move.pages[0]),
            int(move.pages[-1] - move.pages[0]) + 1,
        )[move.pages - move.pages[0]]
        upper = self.upper(move.source)
        if upper is None:
            raise TierError(self.tiers[move.source].name, "has no tier above it to copy to")
        job = self._begin(move, upper_slots, lower, owner)
        try:
            self.tiers[move.source].load(self._transfer(job, urgency), upper)
        except TierError:
            self._undo(job)
            self._count("refused", move.source, move.group, move.blocks, "load")
            return None
        return job

    def _begin(self, move: Move, upper: Slots, lower: Slots, owner: int) -> Job:
        end = move.at._replace(pages=min(move.at.pages, int(move.pages[-1]) + 1))
        lease, node, pages = self.tree.lease(end)
        move = Move(Cursor(end.root, node, pages), move.group, move.source, move.target, move.pages)
        keys = self._keys(move.at, move.pages)
        job = Job(self._next, move, lease, upper, lower, keys, owner, self._clock())
        self._next += 1
        self.jobs[job.number] = job
        self.outstanding[owner] = self.outstanding.get(owner, 0) + 1
        self._landing.setdefault((move.target, move.group), {}).update(
            dict.fromkeys(keys, job.number)
        )
        return job

    def _undo(self, job: Job) -> None:
        del self.jobs[job.number]
        left = self.outstanding.pop(job.owner) - 1
        if left:
            self.outstanding[job.owner] = left
        here = self._landing[job.move.target, job.move.group]
        for key in job.keys:
            if here.get(key) == job.number:
                del here[key]
        self.tree.release(job.lease, stamp=False)

    def _transfer(self, job: Job, urgency: Urgency) -> Transfer:
        move = job.move
        records = None
        if job.storing and self.tiers[move.target].capability.persistent:
            records = self._records(move)
        return Transfer(job.number, move.group, job.upper_slots, job.lower_slots, urgency, records)

    def _records(self, move: Move) -> Records:
        first, last = int(move.pages[0]), int(move.pages[-1])
        pick = move.pages - first
        keys = self.tree.keys(move.at, first, last - first + 1)
        parents = np.empty_like(keys)
        parents[1:] = keys[:-1]
        parents[0] = np.frombuffer(self.residency.parent_key(move.at, first), np.uint8)
        return Records(
            namespace=self._namespaces[move.at.root],
            keys=keys[pick],
            parents=parents[pick],
            pages=self.tree.pages(move.at, first, last - first + 1)[pick],
            positions=move.pages,
        )

    # ------------------------------------------------------------ completions
    def poll(self, ended: Ended) -> None:
        """Takes every acknowledgement; ``ended(job, good)`` is called for each job once, while
        its lease still stands. Cost: the blocks that ended.
        """
        for number, tier in enumerate(self.tiers):
            for done in tier.poll():
                job = self.jobs[done.job]
                self._account(job, done)
                if job.storing:
                    self._stored(job, done)
                else:
                    self._loaded(job, done)
                ended(job, done.good)
                self._undo(job)
            if tier.mode is not self._last_mode[number]:
                self._last_mode[number] = tier.mode
                self._events.append(TierEvent(tier.name, tier.mode.value))

    def _stored(self, job: Job, done: TransferDone) -> None:
        move = job.move
        for lo, hi in self._runs(move.pages, done.good):
            slots = job.lower_slots[lo:hi]
            self.residency.attach(move.at, move.group, move.target, int(move.pages[lo]), slots)
        bad = job.lower_slots[~done.good]
        if len(bad):
            self.tiers[move.target].abort(move.group, bad)
        for lo, hi in self._runs(move.pages, done.good):
            # a full queue below drops the copy, not the block: it is offered at its next insert
            for refused, _ in self.store(
                move.at, int(move.pages[lo]), hi - lo, move.target, job.owner
            ):
                self._count("declined", refused.target, refused.group, refused.blocks)

    def _loaded(self, job: Job, done: TransferDone) -> None:
        move = job.move
        for page in move.pages[done.corrupt]:
            self.residency.drop(move.at, move.group, move.source, int(page), "corrupt")
        if move.target <= 0:
            return  # slots of the first tier are the request's: it attaches them without a gap
        for lo, hi in self._runs(move.pages, done.good):
            slots = job.upper_slots[lo:hi]
            self.residency.attach(move.at, move.group, move.target, int(move.pages[lo]), slots)
        bad = job.upper_slots[~done.good]
        if len(bad):
            self.tiers[move.target].abort(move.group, bad)

    @staticmethod
    def _runs(pages: Pages, good: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """[lo, hi) of the good blocks whose pages follow each other."""
        result: list[tuple[int, int]] = []
        for lo, hi in runs(good):
            cuts = np.flatnonzero(np.diff(pages[lo:hi]) != 1) + 1 + lo
            edges = [lo, *cuts.tolist(), hi]
            result.extend(itertools.pairwise(edges))
        return result

    # ------------------------------------------------------------ accounts
    def _count(self, what: str, tier: int, group: int, blocks: int, stage: str = "store") -> None:
        if blocks:
            name = self.tiers[tier].name
            self.residency.metrics.add(
                (stage, what, name, self.residency.groups[group].name), blocks
            )

    def _account(self, job: Job, done: TransferDone) -> None:
        move = job.move
        lower = max(move.source, move.target)
        stage = "store" if job.storing else "load"
        good = int(done.good.sum())
        self._count("blocks", lower, move.group, good, stage)
        self._count("bytes", lower, move.group, done.nbytes, stage)
        self._count("verified", lower, move.group, done.verified_blocks, stage)
        self._count("failed", lower, move.group, move.blocks - good, stage)
        self._count("corrupt", lower, move.group, int(done.corrupt.sum()), stage)
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
