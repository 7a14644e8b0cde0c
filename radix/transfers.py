"""Moves of blocks between neighbouring tiers: what is in flight, what each completion changes, and
what follows from it. Keeps I22 (a job pins its source, owns its target, is acknowledged once, a
failed one leaves no trace) and I23 (a copy counts only once it is acknowledged).

    store   device --> host --> disk     each hop begins when the one above was acknowledged
    load    device <-- host <-- disk     likewise from below
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from radix import jobs
from radix.events import Event
from radix.groups import path_group
from radix.jobs import Jobs, Key, Place
from radix.plan import Cursor, Demand, Move, Pages
from radix.policy.expected import expected_of
from radix.policy.limits import Limits
from radix.policy.reuse import WRITE_AFTER, Reuse
from radix.residency import EVICTED, Residency, runs
from radix.tier import Records, Slots, Tier, TierMode, TransferDone, Urgency
from radix.tree import NO_SLOT

Job: TypeAlias = jobs.Job[Move]
# end of a path, first page, pages, tier, groups: blocks that are new there
Later: TypeAlias = Callable[[Cursor, int, int, int, "tuple[int, ...] | None"], None]


class Transfers(Jobs[Move]):
    """All moves of one cache. Start: ``store``, ``load``. End: ``wait``, ``poll``. Ask:
    ``landing``, ``check``.
    """

    def __init__(
        self,
        residency: Residency,
        clock: Callable[[], int],
        namespaces: dict[int, bytes],
        media: tuple[Tier, ...],
        borrowed: Tier | None,
        events: list[Event],
        write: str = "write_through",
        limits: Limits | None = None,
        step: Callable[[], int] = lambda: -1,
    ) -> None:
        super().__init__(residency, clock, media, borrowed, events, limits, step)
        self.tree = residency.tree
        self.deepest = len(self.tiers) - 1 if write != "none" else -1  # the last tier written to
        # where only what is asked for again goes down
        self.reuse = Reuse() if write == WRITE_AFTER and self.tree.key_bytes else None
        written = write if self.tree.key_bytes else ""
        self._first_lasting, self.expected = expected_of(written, self.tiers)
        self._namespaces = namespaces
        self._path_group, self._path_pages = path_group(self.residency.rules)
        self.worth: Callable[[int], bool] | None = None  # whether a tier is written at all
        self.later: Later | None = None  # where blocks do not go down as soon as they are new
        # (tier, group, slot) of dropped blocks that these still read: jobs by number, requests by
        # the negative of their hop, 0: leases of the owner's
        self.fenced: dict[tuple[int, int, int], set[int]] = {}

    def namespace_of(self, root: int) -> bytes:
        """Canonical bytes of the namespace of a root."""
        return self._namespaces[root]

    def _place(self, move: Move) -> Place:
        return move.target, move.group

    def _keys(self, at: Cursor, pages: Pages) -> list[Key]:
        first = int(pages[0])
        keys = self.tree.keys(at, first, int(pages[-1]) - first + 1)[pages - first]
        raw, width = keys.tobytes(), keys.shape[1]
        return [raw[at : at + width] for at in range(0, len(raw), width)]

    def landing(self, at: Cursor, tier: int, group: int, pages: Pages) -> npt.NDArray[np.bool_]:
        """Which of the pages are on their way into (tier, group)."""
        if (tier, group) not in self._landing or not len(pages):
            return np.zeros(len(pages), np.bool_)
        return self._coming((tier, group), self._keys(at, pages))

    # ------------------------------------------------------------ store
    def store(
        self,
        at: Cursor,
        first: int,
        count: int,
        source: int,
        owner: int,
        borrowed: list[Slots] | None = None,
        *,
        unless_below: bool = False,
        groups: tuple[int, ...] | None = None,
        at_once: bool = False,
    ) -> list[tuple[Move, Slots]]:
        """Copies what pages [first, first+count) hold in ``source`` one tier down.

        ``at`` must be leased by the caller. ``borrowed``: the engine's slots of these pages, by
        group, where ``source`` is -1. What is there already or on its way is left out; what finds
        no room is declined and counted. ``unless_below``: a copy in any lower tier will do.
        ``groups``: only these. Returns the moves that a full queue refused: offer them again.
        ``at_once``: also where blocks go down later (write_back). Cost: the pages.
        """
        target = source + 1
        if target > self.deepest or count <= 0:
            return []
        if self.worth is not None and not self.worth(target):
            return []
        if self.later is not None and source >= 0 and not at_once:
            self.later(at, first, count, source, groups)
            return []
        if source >= 0:
            source = self.above(target)
        refused: list[tuple[Move, Slots]] = []
        for group in range(len(self.residency.groups)) if groups is None else groups:
            if borrowed is None:
                have = self.residency.slots(at, group, source, first, count)
            else:
                have = borrowed[group]
            last = len(self.tiers) if unless_below else target + 1
            below = self.held(at, group, range(target, last), first, count)
            pages: Pages = ((have != NO_SLOT) & ~below).nonzero()[0] + first
            if not len(pages):  # as a rule where all of a hit lies below
                continue
            if (target, group) in self._landing:
                pages = pages[~self.landing(at, target, group, pages)]
            pages = self._worth(at, pages, target, group)
            if len(pages) and self.tiers[target].mode is not TierMode.ON:
                self.count("declined", target, group, len(pages))
            elif len(pages):
                move = Move(at, group, source, target, pages)
                upper_slots = have[pages - first]
                if self.residency.available(target, group, at.root) < len(pages):
                    self.make_way(at, group, target, len(pages), first)
                if not self.submit_store(move, upper_slots, owner):
                    refused.append((move, upper_slots))
        return refused

    def asked(
        self, at: Cursor, first: int, count: int, origin: npt.NDArray[np.int8] | None = None
    ) -> None:
        """Pages [first, first+count) of a path were asked for once more. ``origin``: by page the
        tier that had it, of the first ones; none had the others. Cost: the pages, where that
        decides anything (write_after, write_expected), else nothing.
        """
        if count <= 0 or (self.reuse is None and self.expected is None):
            return
        keys = self.tree.keys(at, first, count)
        if self.reuse is not None:
            self.reuse.saw(keys)
        if self.expected is not None:
            below = np.ones(count, np.bool_)
            if origin is not None:
                below[: len(origin)] = origin[:count] >= self._first_lasting
            self.expected.saw(keys, below)

    def _worth(self, at: Cursor, pages: Pages, target: int, group: int) -> Pages:
        """Those of the pages that were asked for often enough to go down, or are worth a write."""
        expected = self.expected if self.tiers[target].capability.persistent else None
        if not len(pages) or (self.reuse is None and expected is None):
            return pages
        first = int(pages[0])
        keys = self.tree.keys(at, first, int(pages[-1]) - first + 1)[pages - first]
        if self.reuse is not None:
            return pages[self.reuse.worth(keys, self.limits.write_after)]
        if expected is not None:
            worth = expected.worth(keys, self.limits.write_expected)
            self.count("not_expected", target, group, int(np.count_nonzero(~worth)))
            if group == 0:
                expected.wrote(int(np.count_nonzero(worth)))
            pages = pages[worth]
        return pages

    def held(
        self, at: Cursor, group: int, tiers: range, first: int, count: int
    ) -> npt.NDArray[np.bool_]:
        """Which of the pages are in one of the tiers. Cost: the pages, for each tier."""
        held: npt.NDArray[np.bool_] | None = None
        for tier in tiers:
            here = self.residency.slots(at, group, tier, first, count) != NO_SLOT
            held = here if held is None else held | here
        return np.zeros(count, np.bool_) if held is None else held

    def make_way(self, at: Cursor, group: int, tier: int, count: int, upto: int) -> None:
        """What is larger than a tier between two others streams through it: blocks of the first
        ``upto`` pages that are both above and below make room for ``count`` others of their own
        path, though it is pinned. Cost: the pages.
        """
        if tier + 1 == len(self.tiers) or not upto:
            return
        here = self.residency.slots(at, group, tier, 0, upto)
        twice = self.held(at, group, range(tier + 1, len(self.tiers)), 0, upto)
        if self.borrowed is None:
            twice &= self.held(at, group, range(tier), 0, upto)
        for page in np.flatnonzero((here != NO_SLOT) & twice).tolist():
            if self.residency.available(tier, group, at.root) >= count:
                return
            if not self.readers(tier, group, int(here[page])):
                self.residency.drop(at, group, tier, page, read=False, reason=EVICTED)

    def submit_store(self, move: Move, upper_slots: Slots, owner: int) -> bool:
        """Starts a planned store; False when the tier's queue is full: offer it again."""
        lower = self._room(move.target, move.group, move.blocks, move.at.root)
        if not len(lower):
            return True
        part = Move(move.at, move.group, move.source, move.target, move.pages[: len(lower)])
        return self._start_store(self._pinned(part, upper_slots[: len(lower)], lower, owner))

    def store_again(self, move: Move, upper_slots: Slots, owner: int) -> bool:
        """Offers a refused store once more, less what has come down otherwise meanwhile, or went:
        blocks behind a window are pinned by nobody while they wait.
        """
        pages, first = move.pages, int(move.pages[0])
        count = int(pages[-1]) - first + 1
        below = self.residency.slots(move.at, move.group, move.target, first, count)[pages - first]
        left = (below == NO_SLOT) & ~self.landing(move.at, move.target, move.group, pages)
        if move.source >= 0:
            have = self.residency.slots(move.at, move.group, move.source, first, count)
            gone = have[pages - first] != upper_slots
            self.count("declined", move.target, move.group, int((left & gone).sum()))
            left &= ~gone
        if not left.any():
            return True
        part = Move(move.at, move.group, move.source, move.target, pages[left])
        return self.submit_store(part, upper_slots[left], owner)

    # ------------------------------------------------------------ load
    def load(
        self,
        move: Move,
        upper_slots: Slots,
        owner: int,
        urgency: Urgency,
        demand: Demand | None = None,
    ) -> Job | None:
        """Starts copying blocks one tier up into slots that the caller reserved; None when the
        lower tier refuses: nothing was started and the slots are still the caller's. ``demand``:
        what of each block is read above.
        """
        lower = self.residency.slots(
            move.at,
            move.group,
            move.source,
            int(move.pages[0]),
            int(move.pages[-1] - move.pages[0]) + 1,
        )[move.pages - move.pages[0]]
        job = self._pinned(move, upper_slots, lower, owner)
        if demand is not None:
            tier = self.tiers[move.source]
            job.part = demand.view
            job.by_layer = demand.by_layer and tier.capability.layer_wise
        return job if self._start_load(job, urgency) else None

    def _pinned(self, move: Move, upper: Slots, lower: Slots, owner: int) -> Job:
        root, node, pages = move.at
        end = Cursor(root, node, min(pages, int(move.pages[-1]) + 1))
        mask, first = 1 << move.group, int(move.pages[0])
        lease, node, pages = self.tree.lease(end, mask, first)
        move = Move(Cursor(root, node, pages), move.group, move.source, move.target, move.pages)
        unpin = partial(self.tree.release, lease, stamp=False)
        try:
            keys = self._keys(move.at, move.pages)
        except BaseException:
            unpin()
            raise
        return self._begin(move, upper, lower, keys, owner, unpin)

    def _records(self, move: Move) -> Records:
        """Each with the page where the block stands; those from which paths are built again with
        all pages of the block, the others as wide as these. What is found by key needs no path.
        """
        room = 1 if self.tiers[move.target].capability.finds else self._path_pages
        told = room if move.group == self._path_group else 1
        first = int(move.pages[0]) - told + 1
        count = int(move.pages[-1]) - first + 1
        keys = self.tree.keys(move.at, first, count)
        parents = np.empty_like(keys)
        parents[1:] = keys[:-1]
        parents[0] = np.frombuffer(self.residency.parent_key(move.at, first), np.uint8)
        pages = self.tree.pages(move.at, first, count)
        pick = move.pages - first
        if room > 1:
            wide = np.zeros((len(pick), room, pages.shape[1]), np.uint8)
            wide[:, :told] = pages[pick[:, None] + np.arange(1 - told, 1)]
            pages = wide.reshape(len(pick), -1)
        return Records(
            namespace=self._namespaces[move.at.root],
            keys=keys[pick],
            parents=parents[pick - told + 1],
            pages=pages if room > 1 else pages[pick],
            positions=move.pages,
        )

    # ------------------------------------------------------------ completions
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
                move.at,
                int(move.pages[lo]),
                hi - lo,
                move.target,
                job.owner,
                groups=(move.group,),
            ):
                self.count("declined", refused.target, refused.group, refused.blocks)

    def _loaded(self, job: Job, done: TransferDone) -> npt.NDArray[np.bool_]:
        move = job.move
        for index in np.flatnonzero(done.corrupt).tolist():
            self._drop(job, int(move.pages[index]), int(job.lower_slots[index]))
        if move.target == (0 if self.borrowed is None else -1):
            if job.late:
                self.tiers[0].abort(move.group, job.upper_slots)
            return done.good  # slots of the device are the request's: it attaches them, or lent
        arrived = done.good.copy()
        for lo, hi in self._runs(move.pages, done.good):
            slots, first = job.upper_slots[lo:hi], int(move.pages[lo])
            canonical = self.residency.attach(move.at, move.group, move.target, first, slots)
            arrived[lo:hi] = canonical != NO_SLOT
        bad = job.upper_slots[~done.good]
        if len(bad):
            self.tiers[move.target].abort(move.group, bad)
        return arrived

    def _drop(self, job: Job, page: int, slot: int) -> None:
        """A wrong block goes, its slot only when no other transfer reads it."""
        move = job.move
        if self.residency.slots(move.at, move.group, move.source, page, 1)[0] != slot:
            return  # somebody found it wrong before, and another block stands there now
        readers = self.readers(move.source, move.group, slot) - {job.number}
        self.residency.drop(move.at, move.group, move.source, page, read=bool(readers))
        if readers:
            self.fenced[move.source, move.group, slot] = readers

    def readers(self, tier: int, group: int, slot: int) -> set[int]:
        """The jobs that read a slot. Cost: the jobs."""
        return {
            job.number
            for job in self.jobs.values()
            if (job.move.source, job.move.group) == (tier, group)
            and slot in (job.upper_slots if job.storing else job.lower_slots)
        }

    def draining(self, tier: int) -> bool:
        """Whether copies out of a tier are under way, at the end of which blocks may go."""
        return any(job.storing and job.move.source == tier for job in self.jobs.values())

    def _end(self, job: Job) -> None:
        super()._end(job)
        self.let_go(job.number)

    def let_go(self, holder: int, places: Collection[Place] | None = None) -> None:
        """Somebody reads no more of what was dropped (``places``: of these): slots that nobody
        reads are free. Cost: the slots in quarantine.
        """
        for place, readers in list(self.fenced.items()):
            if places is not None and place not in places:
                continue
            readers.discard(holder)
            if not readers:
                del self.fenced[place]
                tier, group, slot = place
                self.tiers[tier].lift(group, np.array([slot], np.int32))

    @staticmethod
    def _runs(pages: Pages, good: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """[lo, hi) of the good blocks whose pages follow each other."""
        count = len(pages)
        if count and pages[-1] - pages[0] == count - 1 and good.all():
            return [(0, count)]  # as mostly, in a tenth of the time
        result: list[tuple[int, int]] = []
        for lo, hi in runs(good):
            cuts = np.flatnonzero(np.diff(pages[lo:hi]) != 1) + 1 + lo
            edges = [lo, *cuts.tolist(), hi]
            result.extend(itertools.pairwise(edges))
        return result
