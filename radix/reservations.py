"""Slots of the first tier that a caller fills: reserved all or none, made visible at once or given
back without a trace (I8, I11). A key is filled by one caller at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from radix.errors import CapacityError, LeaseError, NeverFitsError
from radix.flat import FlatCore, Handles
from radix.flatmoves import FlatTransfers
from radix.flatplans import offer_of
from radix.flatresidency import FlatResidency
from radix.jobs import Key
from radix.keysets import Mask, Reservation, deepest_first, first_of_each, names_of
from radix.plan import Cursor, Pages
from radix.tier import Keys, Slots
from radix.tree import NO_SLOT


@dataclass(frozen=True, slots=True)
class _Held:
    """What an open reservation holds; ``lease`` keeps its namespace. ``stale``: of an older epoch,
    its blocks are never shown, and its keys are free to be reserved again.
    """

    group: int
    root: int
    names: list[Key]
    slots: Slots
    lease: int
    stale: bool = False


class Reservations:
    """The open reservations of one store. ``reserve``, then ``commit`` or ``abort``; ``drain``
    aborts those that were dropped, ``outdate`` ends an epoch; ``slots`` names what they hold.
    """

    def __init__(self, residency: FlatResidency, transfers: FlatTransfers) -> None:
        self._residency = residency
        self._transfers = transfers
        self._open: dict[int, _Held] = {}
        self._dropped: deque[int] = deque()

    def reserve(
        self, core: FlatCore, group: int, keys: Keys, positions: Pages, keep: Keys | None
    ) -> Reservation:
        """Slots for the keys that are neither there nor on their way; ``FlatStore.reserve``."""
        tree = self._residency.tree
        names = names_of(keys)
        nodes = core.find(keys)
        there = core.slots(nodes, tree.column(group, 0)) != NO_SLOT
        coming = self._transfers.landing(core.root, group, 0, keys) | ~first_of_each(names)
        coming &= ~there
        granted = ~(there | coming)
        guarded = nodes if keep is None else np.concatenate((nodes, core.find(keep)))
        slots = self._take(core, group, int(granted.sum()), guarded)
        try:
            lease, _, _ = tree.lease(Cursor(core.root, core.root, 0))
        except BaseException:
            self._residency.tiers[0].abort(group, slots)
            raise
        mine = [name for name, wanted in zip(names, granted.tolist(), strict=True) if wanted]
        number = self._transfers.reserve(core.root, group, mine)
        self._open[number] = _Held(group, core.root, mine, slots, lease)
        order = deepest_first(positions)
        core.touch(nodes[order][there[order]])
        return Reservation(
            number,
            group,
            (keys[granted], positions[granted], slots),
            (granted, there, coming),
            self._dropped,
        )

    def _take(self, core: FlatCore, group: int, count: int, guarded: Handles) -> Slots:
        """``count`` slots for which nothing of ``guarded`` was evicted."""
        first, quotas = self._residency.tiers[0], self._residency.quotas
        if count > first.capacity_blocks(group):
            raise NeverFitsError(
                f"tier {first.name!r}, group {self._residency.groups[group].name!r}",
                needed=count,
                capacity=first.capacity_blocks(group),
            )
        if quotas is not None:
            needed = [0] * len(self._residency.groups)
            needed[group] = count
            quotas.check_fits(0, needed, core.root)
        pins = core.lease(guarded[guarded != 0])
        counts = [0] * len(self._residency.groups)
        counts[group] = count
        try:
            while True:
                try:
                    return self._residency.reserve(0, group, count, core.root)
                except CapacityError:
                    keeper = self._residency.keeper
                    if keeper is None or not keeper.give_way(counts):
                        raise
        finally:
            core.release(pins, stamp=False)

    def commit(self, reservation: Reservation, good: Mask | None) -> None:
        """Makes the good blocks visible and copies them down; the others go back."""
        held = self._held(reservation)
        filled = np.ones(len(held.slots), np.bool_) if good is None else good
        if held.stale:
            filled = np.zeros(len(held.slots), np.bool_)
        order = deepest_first(reservation.positions)
        order = order[filled[order]]
        keys, positions = reservation.keys[order], reservation.positions[order]
        if len(order):
            self._residency.put(held.root, held.group, 0, keys, positions, held.slots[order])
        self._end(reservation.number, held.slots[~filled])
        reservation.open = False
        if len(order):
            self._transfers.store(offer_of(held.root, held.group, 0, keys, positions))

    def abort(self, reservation: Reservation) -> None:
        """Gives every slot back; nothing was ever visible."""
        held = self._held(reservation)
        self._end(reservation.number, held.slots)
        reservation.open = False

    def outdate(self) -> None:
        """A new epoch: whoever fills slots now gives them back when he ends, whatever he says."""
        for number, held in self._open.items():
            self._transfers.unreserve(held.root, held.group, held.names)
            self._open[number] = replace(held, names=[], stale=True)

    def drain(self) -> int:
        """Aborts the reservations that were dropped; how many."""
        count = 0
        while self._dropped:
            number = self._dropped.popleft()
            self._end(number, self._open[number].slots)
            count += 1
        return count

    def slots(self, group: int) -> list[Slots]:
        """The slots that open reservations hold in a group."""
        return [held.slots for held in self._open.values() if held.group == group]

    def _held(self, reservation: Reservation) -> _Held:
        if not reservation.belongs_to(self._dropped):
            raise LeaseError("the reservation belongs to another store")
        if not reservation.open:
            raise LeaseError("the reservation was committed or aborted already")
        return self._open[reservation.number]

    def _end(self, number: int, back: Slots) -> None:
        held = self._open.pop(number)
        if len(back):
            self._residency.tiers[0].abort(held.group, back)
        self._transfers.unreserve(held.root, held.group, held.names)
        self._residency.tree.release(held.lease, stamp=False)
