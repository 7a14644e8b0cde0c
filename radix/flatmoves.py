"""Sets of keys on their way between tiers: copies down that follow each commit, and climbs towards
the first tier, or into rows that the engine lends. Keeps I22 (a job pins its blocks; a block that
fails to load is dropped, so that nothing is tried for ever) and I23.

    offer   engine's rows --> first tier --> ...    each hop begins when the one above is durable
    climb   engine's rows <-- first tier <-- ...    as far as each key has to go, in any order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from radix.events import Event, KeysDone
from radix.flat import Handles
from radix.flatplans import Climb, Offer, offer_of
from radix.flatresidency import FlatMove, FlatResidency
from radix.jobs import Job, Jobs, Key, Place
from radix.keysets import Fetch, FetchState, Mask, deepest_first, first_of_each, names_of
from radix.plan import Cursor, Pages
from radix.policy.limits import Limits
from radix.policy.reuse import WRITE_AFTER, Reuse
from radix.tier import Keys, Records, Slots, Tier, TierMode, TransferDone, Urgency
from radix.tree import NO_SLOT

Indices = npt.NDArray[np.int64]


class FlatTransfers(Jobs[FlatMove]):
    """All moves of one flat store. Start: ``store``, ``offer``, ``bring``. Go on: ``run``. Ask:
    ``landing``, ``idle``, ``targets``. Keys that a caller brings land too: ``reserve``,
    ``unreserve``.
    """

    residency: FlatResidency

    def __init__(
        self,
        residency: FlatResidency,
        clock: Callable[[], int],
        namespaces: dict[int, bytes],
        media: tuple[Tier, ...],
        borrowed: Tier | None,
        events: list[Event],
        write: str = "write_through",
        limits: Limits | None = None,
    ) -> None:
        super().__init__(residency, clock, media, borrowed, events, limits)
        self.residency = residency
        self.tree = residency.tree
        self.deepest = len(self.tiers) - 1 if write != "none" else -1  # the last tier written to
        self.reuse = Reuse() if write == WRITE_AFTER else None  # what is asked for again goes down
        self.climbs: dict[int, Climb] = {}
        self._namespaces = namespaces
        self.offers: dict[int, Mask] = {}  # who waits for what: how each key fared
        self._repeats: dict[int, tuple[Indices, Indices]] = {}  # named again, and first
        self._waiting: deque[Offer] = deque()  # refused by a full queue, to be offered again
        self._stores: dict[int, Offer] = {}  # by job
        self._loads: dict[int, tuple[Climb, npt.NDArray[np.int64]]] = {}  # by job: which keys
        self._reserved: dict[tuple[int, int], dict[Key, int]] = {}  # by group and root
        self._moved = False

    def _place(self, move: FlatMove) -> Place:
        return move.target, move.group, move.root

    def _records(self, move: FlatMove) -> Records:
        return Records(
            namespace=self._namespaces[move.root],
            keys=move.keys,
            parents=np.zeros((move.blocks, 16), np.uint8),
            pages=None,
            positions=move.positions,
        )

    def new_number(self) -> int:
        """A number that no job, fetch or reservation has."""
        self._next += 1
        return self._next - 1

    def landing(self, root: int, group: int, tier: int, keys: Keys) -> Mask:
        """Which of the keys are on their way into (tier, group): by a job, or as the caller's
        reservation. Cost: the keys, if any is.
        """
        reserved = self._reserved.get((group, root)) if tier == 0 else None
        if not reserved and (tier, group, root) not in self._landing:
            return np.zeros(len(keys), np.bool_)
        names = names_of(keys)
        found = self._coming((tier, group, root), names)
        if reserved:
            found |= np.fromiter(map(reserved.__contains__, names), np.bool_, len(names))
        return found

    def reserve(self, root: int, group: int, names: list[Key]) -> int:
        """Enters keys that the caller brings into the first tier; the number to end it with."""
        number = self.new_number()
        self._reserved.setdefault((group, root), {}).update(dict.fromkeys(names, number))
        return number

    def unreserve(self, root: int, group: int, names: list[Key]) -> None:
        """What ``reserve`` entered has come, or will not."""
        here = self._reserved.get((group, root), {})
        for name in names:
            del here[name]
        if not here:
            self._reserved.pop((group, root), None)
        self._moved = True

    def writes_to(self, group: int, rows: Slots) -> bool:
        """Whether a load that is under way writes one of these rows."""
        return any(
            climb.rows is not None
            and climb.group == group
            and bool(np.isin(climb.rows, rows).any())
            for climb in self.climbs.values()
        )

    def targets(self, tier: int, group: int) -> Slots:
        """The slots that jobs write in (tier, group)."""
        slots = [
            job.lower_slots if job.storing else job.upper_slots
            for job in self.jobs.values()
            if (job.move.target, job.move.group) == (tier, group)
        ]
        return np.concatenate([*slots, np.empty(0, np.int32)])

    def idle(self) -> bool:
        """Whether nothing is under way that a completion could take further."""
        return not (self._waiting or self.moving())

    # ------------------------------------------------------------ down
    def offer(self, number: int, offer: Offer) -> None:
        """Starts copying the engine's rows down; ``KeysDone`` tells the end. A key that stands in
        it twice is copied once, and fares both times as it did.
        """
        names = names_of(offer.keys)
        first = first_of_each(names)
        if not first.all():
            places = dict(zip(reversed(names), reversed(offer.index.tolist()), strict=True))
            again = [places[name] for name in names]
            self._repeats[number] = offer.index[~first], np.array(again, np.int64)[~first]
        self.offers[number] = offer.good
        self.store(offer.part(first))

    def store(self, offer: Offer) -> None:
        """Copies keys one tier down. What is there or on its way is left out; what finds no room is
        declined and counted; what a full queue refuses is offered again by ``run``.
        """
        again = self._store(offer)
        if again is None:
            return
        self._waiting.append(again)
        most = self.tiers[0].capacity_blocks(again.group)
        while sum(len(kept.keys) for kept in self._waiting) > most:
            self._decline(self._waiting.popleft())

    def _decline(self, offer: Offer) -> None:
        self.count("declined", offer.source + 1, offer.group, len(offer.keys))

    def _store(self, offer: Offer) -> Offer | None:
        """The part that a full queue refused, if any. Short memory costs a copy, nothing else."""
        try:
            return self._try_store(offer)
        except MemoryError:
            self._decline(offer)
            return None

    def _try_store(self, offer: Offer) -> Offer | None:
        group, target = offer.group, offer.source + 1
        if target > self.deepest or offer.root not in self._namespaces:
            return None
        if self.tiers[target].mode is not TierMode.ON:
            self._decline(offer)
            return None
        core = self.residency.core(offer.root)
        nodes = core.find(offer.keys)
        have = offer.rows
        if have is None:
            have = core.slots(nodes, self.tree.column(group, offer.source))
        below = core.slots(nodes, self.tree.column(group, target)) != NO_SLOT
        below |= self.landing(offer.root, group, target, offer.keys)
        offer.good[offer.index[below]] = True
        pick = (have != NO_SLOT) & ~below
        if self.reuse is not None:
            pick &= self.reuse.worth(offer.keys, self.limits.write_after)
        if not pick.any():
            return None
        pins = core.lease(nodes[pick & (nodes != 0)])  # making room must not take the source
        try:
            lower = self._room(target, group, int(pick.sum()))
            pick[np.flatnonzero(pick)[: int(pick.sum()) - len(lower)]] = False  # the deepest
            if not len(lower):
                return None
            part = offer.part(pick)
            return None if self._down(part, nodes[pick], have[pick], lower) else part
        finally:
            core.release(pins, stamp=False)

    def _down(self, offer: Offer, nodes: Handles, upper: Slots, lower: Slots) -> bool:
        target = offer.source + 1
        move = FlatMove(
            offer.root, offer.group, offer.source, target, nodes, offer.keys, offer.positions
        )
        try:
            job = self._pinned(move, upper, lower, offer.owner)
        except BaseException:
            self.tiers[target].abort(offer.group, lower)
            raise
        accepted = self._start_store(job)
        if job.number in self.jobs:
            self._stores[job.number] = offer
        return accepted

    def _pinned(self, move: FlatMove, upper: Slots, lower: Slots, owner: int) -> Job[FlatMove]:
        core = self.residency.core(move.root)
        known = move.nodes != 0
        leases = core.lease(move.nodes[known])
        if not known.all():  # keys that are new to the tree: their namespace must stay
            try:
                root, _, _ = self.tree.lease(Cursor(move.root, move.root, 0))
            except BaseException:
                core.release(leases, stamp=False)
                raise
            leases = np.append(leases, np.uint64(root))
        unpin = partial(core.release, leases, stamp=False)
        return self._begin(move, upper, lower, names_of(move.keys), owner, unpin)

    def _stored(self, job: Job[FlatMove], done: TransferDone) -> None:
        move, good = job.move, done.good
        offer = self._stores.pop(job.number)
        if move.source >= 0:
            self.residency.fasten(move, move.target, good, job.lower_slots)
        else:
            good = self._bring(job, good)
        offer.good[offer.index] = good
        if good.any():
            self.store(
                offer_of(move.root, move.group, move.target, move.keys[good], move.positions[good])
            )

    def _bring(self, job: Job[FlatMove], good: Mask) -> Mask:
        """The engine's rows arrived in the first tier: the keys may be new to the tree. Which are
        there now.
        """
        move, slots = job.move, job.lower_slots
        if good.any():
            where = (move.root, move.group, move.target)
            try:
                self.residency.put(*where, move.keys[good], move.positions[good], slots[good])
            except MemoryError:  # as if the copy had failed
                good = np.zeros(len(good), np.bool_)
        if not good.all():
            self.tiers[move.target].abort(move.group, slots[~good])
        return good

    # ------------------------------------------------------------ up
    def bring(
        self,
        root: int,
        group: int,
        keys: Keys,
        positions: Pages,
        rows: Slots | None,
        urgency: Urgency,
    ) -> Fetch:
        """Starts bringing keys to ``rows``, or to the first tier; ``FlatStore.fetch``."""
        core = self.residency.core(root)
        nodes = core.find(keys)
        where = self.residency.where(core, nodes, group)
        coming = np.zeros(len(keys), np.bool_)
        if rows is None:
            coming = self.landing(root, group, 0, keys) | ~first_of_each(names_of(keys))
            coming &= where != 0
        leases = np.zeros(len(keys), np.uint64)
        leases[where >= 0] = core.lease(nodes[where >= 0])
        order = deepest_first(positions)
        core.touch(nodes[order][where[order] >= 0])
        climb = Climb(
            number=self.new_number(),
            root=root,
            group=group,
            goal=0 if rows is None else -1,
            keys=keys,
            nodes=nodes,
            positions=positions,
            rows=rows,
            urgency=urgency,
            leases=leases,
            settled=(where < 0) | coming | ((where == 0) if rows is None else False),
            good=np.zeros(len(keys), np.bool_),
            busy=np.zeros(len(keys), np.bool_),
            streams=rows is not None or not self._shared_room(),
        )
        rising = np.flatnonzero(~climb.settled)
        if climb.streams:
            if rows is None:  # no more than fits without evicting each other
                rising = rising[self.residency.available(0, group) :]
                self._settle_keys(climb, rising)
            self._settle_keys(climb, np.flatnonzero(climb.settled))
        self.climbs[climb.number] = climb
        moved, self._moved = self._moved, True  # stays where this raises: what began goes on
        self._advance(climb)
        self._moved = moved
        states = np.full(len(keys), FetchState.NO_ROOM, np.int8)
        states[where < 0] = FetchState.ABSENT
        states[coming | ~climb.settled] = FetchState.COMING
        if rows is None:
            states[where == 0] = FetchState.HERE
        return Fetch(climb.number, states)

    def _shared_room(self) -> bool:
        """Whether room in the first tier may come from other groups: how much is not known."""
        return len(self.residency.groups) > 1 and self.tiers[0].capability.shares_bytes

    def _advance(self, climb: Climb) -> None:
        """Takes every key further that can go; gives up what nothing will bring."""
        core = self.residency.core(climb.root)
        left = np.flatnonzero(~climb.settled & ~climb.busy)
        where = self.residency.where(core, climb.nodes[left], climb.group)
        self._settle_keys(climb, left[where < 0])
        if climb.goal == 0:
            self._settle_keys(climb, left[where == 0])
        waits = False
        for tier in range(climb.goal + 1, len(self.tiers)):
            index = left[where == tier]
            if tier and len(index):
                others = self._others(climb, tier - 1, index)
                self._settle_keys(climb, index[others < 0])  # the caller brings it itself
                waits = waits or bool((others > 0).any())
                index = index[others == 0]
            if len(index) and self.crowded(tier, self.limits.loads, storing=False):
                waits = True
            elif len(index):
                self._up(climb, tier, index)
        if not waits and climb.number not in self.outstanding:
            self._settle_keys(climb, np.flatnonzero(~climb.settled))
        if climb.settled.all() and climb.number not in self.outstanding:
            self._finish(climb)

    def _others(
        self, climb: Climb, tier: int, index: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int8]:
        """Who brings keys into ``tier`` already: 1 a job, -1 a reservation, 0 nobody."""
        names = names_of(climb.keys[index])
        others = self._coming((tier, climb.group, climb.root), names).astype(np.int8)
        reserved = self._reserved.get((climb.group, climb.root)) if tier == 0 else None
        if reserved:
            others[np.fromiter(map(reserved.__contains__, names), np.bool_, len(names))] = -1
        return others

    def _settle_keys(self, climb: Climb, index: npt.NDArray[np.int64]) -> None:
        climb.settled[index] = True
        if climb.streams:
            self._loosen(climb, index)

    def _loosen(self, climb: Climb, index: npt.NDArray[np.int64]) -> None:
        leases = climb.leases[index]
        if (leases != 0).any():
            climb.leases[index] = 0
            self.residency.core(climb.root).release(leases[leases != 0], stamp=False)

    def _up(self, climb: Climb, tier: int, index: npt.NDArray[np.int64]) -> None:
        """Starts one hop for the first of the keys for which there is room."""
        group, target = climb.group, tier - 1
        if climb.rows is not None and target < 0:
            upper = climb.rows[index]
        else:
            upper = self.fitting(target, group, len(index))
            index = index[: len(upper)]
        if not len(index):
            return
        nodes = climb.nodes[index]
        column = self.tree.column(group, tier)
        lower = self.residency.core(climb.root).slots(nodes, column)
        keys, positions = climb.keys[index], climb.positions[index]
        move = FlatMove(climb.root, group, tier, target, nodes, keys, positions)
        try:
            job = self._pinned(move, upper, lower, climb.number)
        except MemoryError:  # the keys wait, or are given up
            if target >= 0:
                self.tiers[target].abort(group, upper)
            return
        if self._start_load(job, climb.urgency):
            self._loads[job.number] = (climb, index)
            climb.busy[index] = True
        elif target >= 0:
            self.tiers[target].abort(group, upper)

    def _loaded(self, job: Job[FlatMove], done: TransferDone) -> None:
        move, good = job.move, done.good
        if job.late:  # nobody waits; what came is there for others
            self.residency.fasten(move, move.target, good, job.upper_slots)
            return
        climb, index = self._loads.pop(job.number)
        climb.busy[index] = False
        if not good.all():
            read = self._read_elsewhere(job)
            self._settle_keys(climb, index[~good & read])
            self.residency.take_out(move, move.source, done.corrupt & ~read, "corrupt")
            if self.tiers[move.source].mode is not TierMode.OFF:
                lost = ~good & ~done.corrupt & ~read
                self.residency.take_out(move, move.source, lost, "failed")
        if move.target >= 0:
            self.residency.fasten(move, move.target, good, job.upper_slots)
        else:
            climb.good[index] = good
            self._settle_keys(climb, index[good])

    def _read_elsewhere(self, job: Job[FlatMove]) -> Mask:
        """Which source blocks of a load another job reads too: their slots can't be freed yet."""
        tier, group = job.move.source, job.move.group
        others = [
            other.upper_slots if other.storing else other.lower_slots
            for other in self.jobs.values()
            if other is not job and (other.move.source, other.move.group) == (tier, group)
        ]
        return np.isin(job.lower_slots, np.concatenate([*others, np.empty(0, np.int32)]))

    def _finish(self, climb: Climb) -> None:
        if climb.goal == 0:
            core = self.residency.core(climb.root)
            where = self.residency.where(core, core.find(climb.keys), climb.group)
            climb.good = where == 0
        self._loosen(climb, np.arange(len(climb.keys)))
        del self.climbs[climb.number]
        self._events.append(KeysDone(climb.number, climb.good))

    # ------------------------------------------------------------ older epochs
    def void(self, job: Job[FlatMove]) -> None:
        """What this job brings counts no more; its keys may be moved again. Twice is once."""
        if job.stale:
            return
        self.outdate(job)
        self._stores.pop(job.number, None)
        if not job.storing:
            self.cancel(job)
            self._give_up(job)

    def _give_up(self, job: Job[FlatMove]) -> None:
        """Who waits for a load waits no more."""
        if job.number in self._loads:
            climb, index = self._loads.pop(job.number)
            climb.busy[index] = False
            self._settle_keys(climb, index)

    def _abandon(self, job: Job[FlatMove]) -> Mask:
        """The slots that it wrote go back, in the first tier too: they are nobody else's."""
        move = job.move
        if move.target >= 0:
            slots = job.lower_slots if job.storing else job.upper_slots
            self.tiers[move.target].abort(move.group, slots)
        return np.zeros(move.blocks, np.bool_)

    def restart(self) -> None:
        """Nothing that waits to go on does: who waits is told that nothing came, once the jobs that
        touch his rows have ended.
        """
        self._waiting.clear()
        for good in self.offers.values():
            good[:] = False
        for climb in self.climbs.values():
            climb.settled[:] = True
            self._loosen(climb, np.arange(len(climb.keys)))
        self._moved = True

    # ------------------------------------------------------------ going on
    def run(self) -> None:
        """Takes every acknowledgement, and further what waited for it. Cost: what ended."""
        self.poll(lambda job, good: None)
        for late in self.expire().values():
            self._moved = True
            for job in late:
                self._give_up(job)
        for _ in range(len(self._waiting)):
            again = self._store(self._waiting.popleft())
            if again is not None:
                self._waiting.appendleft(again)
                break
        if not self.moving():  # nothing is under way that could make room in a queue
            while self._waiting:
                self._decline(self._waiting.popleft())
        if self._moved:
            for climb in list(self.climbs.values()):
                self._advance(climb)
            self._moved = False
        held = {offer.owner for offer in self._waiting}
        for number, good in list(self.offers.items()):
            if number not in self.outstanding and number not in held:
                del self.offers[number]
                if number in self._repeats:
                    repeats, firsts = self._repeats.pop(number)
                    good[repeats] = good[firsts]
                self._events.append(KeysDone(number, good))

    def _acted(self, job: Job[FlatMove], done: TransferDone) -> Mask:
        self._moved = True  # whatever becomes of it: who waits for it goes on
        return super()._acted(job, done)
