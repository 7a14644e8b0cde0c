"""Sets of keys on their way between tiers: copies down that follow each commit, and climbs towards
the first tier, or into rows that the engine lends. Keeps I22 (a job pins its blocks; a block that
fails to load is dropped, so that nothing is tried for ever) and I23.

    offer   engine's rows --> first tier --> ...    each hop begins when the one above is durable
    climb   engine's rows <-- first tier <-- ...    as far as each key has to go, in any order
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.events import Event, KeysDone
from radix.flatoffers import FlatOffers, Indices
from radix.flatplans import Climb
from radix.flatresidency import FlatMove, FlatResidency
from radix.jobs import Job
from radix.keysets import Fetch, FetchState, Mask, deepest_first, first_of_each, names_of
from radix.plan import Pages
from radix.policy.limits import Limits
from radix.tier import Keys, Slots, Tier, TierMode, TransferDone, Urgency


class FlatTransfers(FlatOffers):
    """All moves of one flat store. Start: ``store``, ``offer``, ``bring``. Go on: ``run``. Ask:
    ``landing``, ``idle``, ``targets``. Keys that a caller brings land too: ``reserve``,
    ``unreserve``.
    """

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
        super().__init__(residency, clock, namespaces, media, borrowed, events, write, limits)
        self.climbs: dict[int, Climb] = {}
        self._wanting: dict[int, Climb] = {}  # of these, those that something has changed for
        self._loads: dict[int, tuple[Climb, Indices]] = {}  # by job: which keys
        # by group: of each row, whether a load under way writes it
        self._written = [np.zeros(0, np.bool_) for _ in residency.groups]

    def writes_to(self, group: int, rows: Slots) -> bool:
        """Whether a load that is under way writes one of these rows. Cost: the rows."""
        written = self._written[group]
        return bool(written[rows[rows < len(written)]].any())

    def _write(self, climb: Climb, *, on: bool) -> None:
        """The rows that a climb is lent are written from now on, or no more."""
        if climb.rows is None or not len(climb.rows):
            return
        written, need = self._written[climb.group], int(climb.rows.max()) + 1
        if need > len(written):
            grown = np.zeros(max(need, 2 * len(written)), np.bool_)
            grown[: len(written)] = written
            self._written[climb.group] = written = grown
        written[climb.rows] = on

    def targets(self, tier: int, group: int) -> Slots:
        """The slots that jobs write in (tier, group)."""
        slots = [
            job.lower_slots if job.storing else job.upper_slots
            for job in self.jobs.values()
            if (job.move.target, job.move.group) == (tier, group)
        ]
        return np.concatenate([*slots, np.empty(0, np.int32)])

    def tell(self, number: int, good: Mask) -> None:
        """Says how the keys of a number fared."""
        self._events.append(KeysDone(number, good))

    def idle(self) -> bool:
        """Whether nothing is under way that a completion could take further."""
        return not (self._waiting or self.moving())

    def sinking(self, deepest: int) -> bool:
        """Whether copies down into the tiers to ``deepest`` are under way, or wait to be. Cost: the
        jobs.
        """
        return any(offer.source < deepest for offer in self._waiting) or any(
            job.storing and job.move.target <= deepest for job in self.jobs.values()
        )

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
        keys = keys.copy()  # later hops read them, when the caller's may have changed
        rows = None if rows is None else rows.copy()
        core = self.residency.core(root)
        nodes = core.find(keys)
        where = self.residency.where(core, nodes, group)
        found, coming = where >= 0, np.zeros(len(keys), np.bool_)
        settled = ~found
        if rows is None:
            coming = self.landing(root, group, 0, keys) | ~first_of_each(names_of(keys))
            coming &= where != 0
            settled |= coming | (where == 0)
        leases = np.zeros(len(keys), np.uint64)
        leases[found] = core.lease(nodes[found])
        order = deepest_first(positions)
        core.touch(nodes[order][found[order]])
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
            settled=settled,
            good=np.zeros(len(keys), np.bool_),
            busy=np.zeros(len(keys), np.bool_),
            streams=rows is not None or not self._shared_room(),
        )
        if climb.streams:
            if rows is None:  # no more than fits without evicting each other
                fits = self.residency.available(0, group, root)
                self._settle_keys(climb, (~settled).nonzero()[0][fits:])
            self._settle_keys(climb, settled.nonzero()[0])
        self._write(climb, on=True)
        self.climbs[climb.number] = self._wanting[climb.number] = climb
        moved, self._moved = self._moved, True  # stays where this raises: what began goes on
        self._advance(climb, where)
        self._moved = moved
        states = np.empty(len(keys), np.int8)
        states.fill(FetchState.NO_ROOM)
        states[~found] = FetchState.ABSENT
        states[coming | ~settled] = FetchState.COMING
        if rows is None:
            states[where == 0] = FetchState.HERE
        return Fetch(climb.number, states)

    def _shared_room(self) -> bool:
        """Whether room in the first tier may come from other groups: how much is not known."""
        return len(self.residency.groups) > 1 and self.tiers[0].capability.shares_bytes

    def _advance(self, climb: Climb, where: Slots | None = None) -> None:
        """Takes every key further that can go; gives up what nothing will bring. ``where``: the
        tier of every key, if that is known.
        """
        left = (~(climb.settled | climb.busy)).nonzero()[0]
        waits = bool(len(left)) and self._rise(climb, left, where)
        if not waits and climb.number not in self.outstanding:
            self._settle_keys(climb, (~climb.settled).nonzero()[0])
            self._finish(climb)
        elif (climb.settled | climb.busy).all():
            del self._wanting[climb.number]  # until one of its jobs has ended

    def _rise(self, climb: Climb, left: Indices, where: Slots | None) -> bool:
        """Takes these keys further; whether some must wait for what others do."""
        if where is None:
            core = self.residency.core(climb.root)
            where = self.residency.where(core, climb.nodes[left], climb.group)
        else:
            where = where[left]
        self._settle_keys(climb, left[where < 0])
        if climb.goal == 0:
            self._settle_keys(climb, left[where == 0])
        waits = False
        for tier in range(climb.goal + 1, len(self.tiers)):
            index = left[where == tier]
            if tier and len(index):
                others = self._others(climb, self.above(tier), index)
                self._settle_keys(climb, index[others < 0])  # the caller brings it itself
                waits = waits or bool((others > 0).any())
                index = index[others == 0]
            if len(index) and self.crowded(tier, self.limits.loads, storing=False):
                waits = True
            elif len(index):
                self._up(climb, tier, index)
        return waits

    def _others(self, climb: Climb, tier: int, index: Indices) -> npt.NDArray[np.int8]:
        """Who brings keys into ``tier`` already: 1 a job, -1 a reservation, 0 nobody."""
        names = names_of(climb.keys[index])
        others = self._coming((tier, climb.group, climb.root), names).astype(np.int8)
        reserved = self._reserved.get((climb.group, climb.root)) if tier == 0 else None
        if reserved:
            others[np.fromiter(map(reserved.__contains__, names), np.bool_, len(names))] = -1
        return others

    def _settle_keys(self, climb: Climb, index: Indices) -> None:
        if len(index):
            climb.settled[index] = True
            if climb.streams:
                self._loosen(climb, index)

    def _loosen(self, climb: Climb, index: Indices) -> None:
        leases = climb.leases[index]
        leases = leases[leases != 0]
        if len(leases):
            climb.leases[index] = 0
            self.residency.core(climb.root).release(leases, stamp=False)

    def _up(self, climb: Climb, tier: int, index: Indices) -> None:
        """Starts one hop for the first of the keys for which there is room."""
        group, target = climb.group, self.above(tier)
        if climb.rows is not None and target < 0:
            upper = climb.rows[index]
        else:
            upper = self.fitting(target, group, len(index), climb.root)
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
        if np.count_nonzero(good) < len(good):
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
        self._loosen(climb, climb.leases.nonzero()[0])
        self._write(climb, on=False)
        del self.climbs[climb.number], self._wanting[climb.number]
        self._events.append(KeysDone(climb.number, climb.good))

    def check(self) -> None:
        """As of all jobs; and every climb is looked at, or waits for a job of its own, and the rows
        that count as written are those of climbs. Cost: the jobs and the climbs.
        """
        super().check()
        written = [np.zeros(len(row), np.bool_) for row in self._written]
        for number, climb in self.climbs.items():
            rests = number in self.outstanding and bool((climb.settled | climb.busy).all())
            if number not in self._wanting and not rests:
                raise InvariantError("I22", f"load {number} can go on, and no poll looks at it")
            if climb.rows is not None:
                written[climb.group][climb.rows] = True
        if not self._wanting.keys() <= self.climbs.keys():
            raise InvariantError("I22", "a poll looks at a load that has ended")
        if not all(map(np.array_equal, written, self._written)):
            raise InvariantError("I22", "rows count as written that no load writes, or do not")

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
        self._wanting.update(self.climbs)
        self._moved = True

    # ------------------------------------------------------------ going on
    def run(self) -> None:
        """Takes every acknowledgement, and further what waited for it. Cost: what ended."""
        self.poll(lambda job, good: None)
        for owner, late in self.expire().items():
            self._stir(owner)
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
            for number in sorted(self._wanting):  # the oldest first
                self._advance(self._wanting[number])
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
        self._stir(job.owner)  # whatever becomes of it: who waits for it goes on
        return super()._acted(job, done)

    def _stir(self, owner: int) -> None:
        """Something of this climb's ended, and what it gave up may be what others wait for."""
        self._moved = True
        if owner in self.climbs:
            self._wanting[owner] = self.climbs[owner]
