"""Sets of keys on their way down: each hop begins once the one above is durable. Keeps the half of
I22 that copies down need: a job pins its source, and what it brought is there once, or nowhere.

    offer   engine's rows --> first tier --> ...
"""

from __future__ import annotations

from abc import ABC
from collections import deque
from collections.abc import Callable, Set
from functools import partial

import numpy as np
import numpy.typing as npt

from radix.events import Event
from radix.flat import Handles
from radix.flatplans import Offer, offer_of
from radix.flatresidency import FlatMove, FlatResidency
from radix.jobs import Job, Jobs, Key, Place
from radix.keysets import Mask, first_of_each, names_of
from radix.plan import Cursor
from radix.policy.expected import expected_of
from radix.policy.limits import Limits
from radix.policy.reuse import WRITE_AFTER, Reuse
from radix.tier import Keys, Records, Slots, Tier, TierMode, TransferDone
from radix.tree import NO_SLOT

Indices = npt.NDArray[np.int64]


class FlatOffers(Jobs[FlatMove], ABC):
    """The half of :class:`radix.flatmoves.FlatTransfers` that copies down. Start: ``store``,
    ``offer``. Ask: ``landing``. Keys that a caller brings land too: ``reserve``, ``unreserve``.
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
        self._first_lasting, self.expected = expected_of(write, self.tiers)
        self._namespaces = namespaces
        self.offers: dict[int, Mask] = {}  # who waits for what: how each key fared
        self._repeats: dict[int, tuple[Indices, Indices]] = {}  # named again, and first
        self._waiting: deque[Offer] = deque()  # refused by a full queue, to be offered again
        self._stores: dict[int, Offer] = {}  # by job
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

    # ------------------------------------------------------------ down
    def offer(self, number: int, offer: Offer) -> None:
        """Starts copying the engine's rows down; ``KeysDone`` tells the end. A key that stands in
        it twice is copied once, and fares both times as it did.
        """
        names = names_of(offer.keys)
        self.offers[number] = offer.good
        if len(names) > 1 and len(set(names)) < len(names):
            first = first_of_each(names)
            places = dict(zip(reversed(names), reversed(offer.index.tolist()), strict=True))
            again = [places[name] for name in names]
            self._repeats[number] = offer.index[~first], np.array(again, np.int64)[~first]
            offer = offer.part(first)
        self.store(offer)

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

    def recall(self, root: int, group: int | None = None, names: Set[Key] | None = None) -> None:
        """Keys that wait to be copied from the engine's rows are not copied any more: those of a
        namespace (``group``: of this one; ``names``: of them these). Cost: what waits.
        """
        waiting, self._waiting = self._waiting, deque()
        for offer in waiting:
            if offer.rows is None or offer.root != root or group not in (None, offer.group):
                self._waiting.append(offer)
            elif names is not None:
                left = np.array([name not in names for name in names_of(offer.keys)], np.bool_)
                if left.any():
                    self._waiting.append(offer.part(left))

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
            have = core.slots(nodes, self.tree.column(group, self.above(target)))
        below = core.slots(nodes, self.tree.column(group, target)) != NO_SLOT
        below |= self.landing(offer.root, group, target, offer.keys)
        offer.good[offer.index[below]] = True
        pick = (have != NO_SLOT) & ~below
        if self.reuse is not None:
            pick &= self.reuse.worth(offer.keys, self.limits.write_after)
        if self.expected is not None and self.tiers[target].capability.persistent:
            pick = self._expected(offer, target, pick)
        count = int(np.count_nonzero(pick))
        if not count:
            return None
        pins = core.lease(nodes[pick & (nodes != 0)])  # making room must not take the source
        try:
            lower = self._room(target, group, count, offer.root)
            if not len(lower):
                return None
            pick[pick.nonzero()[0][: count - len(lower)]] = False  # the deepest
            if len(lower) < len(pick):
                offer, nodes, have = offer.part(pick), nodes[pick], have[pick]
            return None if self._down(offer, nodes, have, lower) else offer
        finally:
            if len(pins):
                core.release(pins, stamp=False)

    def _expected(self, offer: Offer, target: int, pick: Mask) -> Mask:
        """Those of the keys picked that are worth a write."""
        if self.expected is None:
            return pick
        worth = pick & self.expected.worth(offer.keys, self.limits.write_expected)
        found, written = int(np.count_nonzero(pick)), int(np.count_nonzero(worth))
        self.count("not_expected", target, offer.group, found - written)
        if offer.group == 0:
            self.expected.wrote(written)
        return worth

    def asked(self, root: int, keys: Keys) -> bool:
        """Keys were asked for once more; whether that decides what goes down. Cost: the keys, where
        it does.
        """
        if self.reuse is not None:
            self.reuse.saw(keys)
        if self.expected is not None:
            core = self.residency.core(root)
            nodes, below = core.find(keys), np.ones(len(keys), np.bool_)
            for tier in range(self._first_lasting):
                for group in range(len(self.residency.groups)):
                    below &= core.slots(nodes, self.tree.column(group, tier)) == NO_SLOT
            self.expected.saw(keys, below)
        return self.reuse is not None or self.expected is not None

    def _down(self, offer: Offer, nodes: Handles, upper: Slots, lower: Slots) -> bool:
        target = offer.source + 1
        source = offer.source if offer.source < 0 else self.above(target)
        move = FlatMove(offer.root, offer.group, source, target, nodes, offer.keys, offer.positions)
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
        if len(leases) < len(known):  # keys that are new to the tree: their namespace must stay
            try:
                root, _, _ = self.tree.lease(Cursor(move.root, move.root, 0))
            except BaseException:
                core.release(leases, stamp=False)
                raise
            leases = np.concatenate((leases, np.array([root], np.uint64)))
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
        if move.target < self.deepest and good.any():
            self.store(
                offer_of(move.root, move.group, move.target, move.keys[good], move.positions[good])
            )

    def _bring(self, job: Job[FlatMove], good: Mask) -> Mask:
        """The engine's rows arrived in the first tier: the keys may be new to the tree. Which are
        there now.
        """
        move, slots = job.move, job.lower_slots
        if np.count_nonzero(good):
            where = (move.root, move.group, move.target)
            try:
                self.residency.put(*where, move.keys[good], move.positions[good], slots[good])
            except MemoryError:  # as if the copy had failed
                good = np.zeros(len(good), np.bool_)
        if np.count_nonzero(good) < len(good):
            self.tiers[move.target].abort(move.group, slots[~good])
        return good
