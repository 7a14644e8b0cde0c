"""Who waits until keys are durable, whoever brings them: each is looked at again when all that it
lacked has come, when nothing is on its way down any more, or when its time is over, and told once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from radix.events import BlocksStored
from radix.keys import Namespace
from radix.keysets import Mask, names_of
from radix.store import FlatStore
from radix.tier import Keys

_ROOT_BYTES = 16  # with which a key in an event begins


@dataclass(slots=True)
class Settling:
    """Keys whose copy below somebody waits for: told once each has it, or will not, at the latest
    ``until`` then, all of them with the same patience. ``lacking``: keys that were not there when
    it was looked at, less those that have come since.
    """

    keys: Keys
    group: int
    namespace: Namespace
    tell: Callable[[Mask], None]
    until: float
    lacking: set[bytes] = field(default_factory=set)


class Settlings:
    """Those of one store whose last lasting tier has a number. ``add``, ``came`` with each event,
    ``run`` once a turn; ``close``. True while somebody waits.
    """

    def __init__(self, flat: FlatStore, lasting: int) -> None:
        self._flat = flat
        self._lasting, self._name = lasting, flat.tiers[lasting].name
        self._next = 1
        self._open: dict[int, Settling] = {}  # the oldest first
        self._lacking: dict[bytes, set[int]] = {}  # who lacks a key of any group and namespace
        self._ripe: set[int] = set()  # that lack nothing any more

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, waits: Settling) -> None:
        """Its ``tell`` is called once every key is durable, or will not be, at once if so now."""
        if not self._is_settled(waits, -math.inf):
            self._open[self._next] = waits
            self._list(self._next, waits)
            self._next += 1

    def came(self, event: BlocksStored) -> None:
        """Keys are in a tier. Cost: the keys, while somebody waits for any."""
        if not self._lacking or event.tier != self._name:
            return
        for row in event.keys:
            name = row[_ROOT_BYTES:].tobytes()
            for number in self._lacking.pop(name, ()):
                lacking = self._open[number].lacking
                lacking.discard(name)
                if not lacking:
                    self._ripe.add(number)

    def run(self, now: float) -> None:
        """Tells those who have nothing to wait for any more. Cost: they, and the copies that are
        under way.
        """
        if not self._open:
            return
        numbers, self._ripe = self._ripe, set()
        if not self._flat.transfers.sinking(self._lasting):
            numbers.update(self._open)
        for number in sorted(numbers):
            self._look(number, now)
        while self._open and self._open[oldest := next(iter(self._open))].until <= now:
            self._look(oldest, now)

    def _look(self, number: int, now: float) -> None:
        waits = self._open[number]
        for name in waits.lacking:
            here = self._lacking[name]
            here.discard(number)
            if not here:
                del self._lacking[name]
        if self._is_settled(waits, now):
            del self._open[number]
        else:
            self._list(number, waits)

    def _list(self, number: int, waits: Settling) -> None:
        for name in waits.lacking:
            self._lacking.setdefault(name, set()).add(number)

    def _is_settled(self, waits: Settling, now: float) -> bool:
        flat, group, tier = self._flat, waits.group, self._lasting
        waits.lacking = set()
        below = flat.slots(waits.keys, group, tier=tier, namespace=waits.namespace) >= 0
        if not below.all():
            root = flat.root_of(waits.namespace)
            coming = flat.transfers.landing(root, group, tier, waits.keys)
            under_way = bool((coming & ~below).any()) or flat.transfers.sinking(tier)
            if under_way and now < waits.until:
                waits.lacking.update(names_of(waits.keys[~below]))
                return False
        waits.tell(below)
        return True

    def close(self) -> None:
        """Tells all who wait how it stands now, what is under way as if it had not come."""
        waiting, self._open = list(self._open.values()), {}
        self._lacking.clear()
        self._ripe.clear()
        for waits in waiting:
            self._is_settled(waits, math.inf)
