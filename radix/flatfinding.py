"""Keys that other stores put into a tier that several write to: it is asked for those that are not
here, many at once, and what it has becomes part of the store as blocks that lie there. Keeps I7: a
slot that is not taken goes back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.errors import TierError
from radix.finders import finder_of
from radix.flatmoves import FlatTransfers
from radix.flatresidency import FlatResidency
from radix.keysets import names_of
from radix.plan import Pages
from radix.tier import Finder, Keys, Records, Seek, TierMode

_MOST_LOST = 1 << 16


@dataclass(frozen=True, slots=True)
class _Asked:
    """Some keys of a group that a tier was asked for; ``which``: those that were not here."""

    number: int
    root: int
    group: int
    tier: int
    keys: Keys
    positions: Pages
    which: npt.NDArray[np.int64]


class FlatFinding:
    """The questions of one flat store. ``ask``, ``run`` once a poll, ``forget`` at a reset."""

    def __init__(
        self,
        residency: FlatResidency,
        transfers: FlatTransfers,
        names: dict[int, bytes],
    ) -> None:
        """``names``: canonical bytes of namespaces, by root."""
        self._residency, self._transfers, self._names = residency, transfers, names
        self._finders: dict[int, Finder] = {}
        for number, tier in enumerate(residency.tiers):
            if (finder := finder_of(tier)) is not None:
                self._finders[number] = finder
        self._open: dict[int, _Asked] = {}
        self._lost: dict[tuple[int, int, bytes], None] = {}  # root, group and name, oldest first

    def ask(self, root: int, group: int, keys: Keys, positions: Pages, *, chained: bool) -> int:
        """Asks for keys, the caller's no longer; the number whose ``KeysDone`` tells which are here
        by then. Never blocks. Cost: the keys.
        """
        number = self._transfers.new_number()
        where = self._residency.where(
            self._residency.core(root), self._residency.core(root).find(keys), group
        )
        which = np.flatnonzero(where < 0)
        for tier in reversed(self._finders):
            if not len(which) or self._residency.tiers[tier].mode is not TierMode.ON:
                continue
            asked = _Asked(number, root, group, tier, keys, positions, which)
            seek = Seek(number, group, self._records(asked, which), chained=chained)
            with suppress(TierError):  # then what is here is all that there is
                self._finders[tier].seek(seek)
                self._open[number] = asked
                return number
        self._transfers.tell(number, where >= 0)
        return number

    def _records(self, asked: _Asked, which: npt.NDArray[np.int64]) -> Records:
        parents = np.zeros((len(which), 16), np.uint8)
        name = self._names[asked.root]
        return Records(name, asked.keys[which], parents, None, asked.positions[which])

    def run(self) -> None:
        """Takes answers; what is there becomes part of the store. Cost: what has come."""
        for finder in self._finders.values():
            for found in finder.found():
                asked = self._open.pop(found.number, None)
                if asked is not None:
                    with suppress(TierError):  # then it is not adopted, and a miss as before
                        self._adopt(asked, asked.which[found.there])
                    self._end(asked)

    def _adopt(self, asked: _Asked, which: npt.NDArray[np.int64]) -> None:
        residency, group, tier = self._residency, asked.group, asked.tier
        core = residency.core(asked.root)
        here = residency.where(core, core.find(asked.keys[which]), group) >= 0
        which = which[~here]
        names = names_of(asked.keys[which])
        which = which[[(asked.root, group, name) not in self._lost for name in names]]
        slots = self._transfers.fitting(tier, group, len(which), asked.root)
        which = which[: len(slots)]
        if not len(which):
            return
        try:
            self._finders[tier].claim(group, slots, self._records(asked, which))
        except TierError:
            residency.tiers[tier].abort(group, slots)
            raise
        keys, positions = asked.keys[which], asked.positions[which]
        residency.put(asked.root, group, tier, keys, positions, slots)

    def _end(self, asked: _Asked) -> None:
        core = self._residency.core(asked.root)
        where = self._residency.where(core, core.find(asked.keys), asked.group)
        self._transfers.tell(asked.number, where >= 0)

    def lose(self, root: int, group: int, keys: Keys) -> None:
        """Blocks turned out to be wrong: where others would find them they go, and here nothing is
        found of these keys in a shared tier any more, whoever stores them again, as far as the last
        65,536 are concerned. Cost: the keys.
        """
        if not self._finders or not len(keys):
            return
        for name in names_of(keys):
            if len(self._lost) >= _MOST_LOST:
                del self._lost[next(iter(self._lost))]
            self._lost[root, group, name] = None
        unknown = np.full(len(keys), -1, np.int64)
        parents = np.zeros((len(keys), 16), np.uint8)
        for finder in self._finders.values():
            with suppress(TierError):
                finder.lose(group, Records(self._names[root], keys, parents, None, unknown))

    def forget(self) -> None:
        """What is asked counts no more: whoever waits is told what is here."""
        asked, self._open = list(self._open.values()), {}
        for each in asked:
            self._end(each)
