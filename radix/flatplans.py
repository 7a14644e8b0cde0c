"""What moves of sets of keys carry along: keys on their way down and who waits for them, keys on
their way up and how far each has come. Values of :mod:`radix.flatmoves`, which alone changes them;
they keep no invariant of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.flat import Handles
from radix.keysets import Mask
from radix.plan import Pages
from radix.tier import Keys, Slots, Urgency

NOBODY = 0  # the owner of copies that nobody waits for


@dataclass(slots=True)
class Offer:
    """Keys on their way down, deepest first. ``rows``: the engine's, where ``source`` is -1.

    ``good`` and ``index`` where somebody waits: ``good[index[i]]`` tells how key i fared.
    """

    root: int
    group: int
    source: int
    keys: Keys
    positions: Pages
    rows: Slots | None
    owner: int
    good: Mask
    index: npt.NDArray[np.int64]

    def part(self, pick: Mask) -> Offer:
        """The keys that ``pick`` names, under the same owner."""
        return Offer(
            self.root,
            self.group,
            self.source,
            self.keys[pick],
            self.positions[pick],
            None if self.rows is None else self.rows[pick],
            self.owner,
            self.good,
            self.index[pick],
        )


@dataclass(slots=True)
class Climb:
    """Keys on their way up to the first tier (``goal`` 0) or to rows of the engine (-1).

    ``leases[i]`` pins key i as long as it is not 0; ``busy[i]``: a job of this climb moves it;
    ``settled[i]``: it is there, or will not come. ``streams``: what is settled needs no pin, so
    that a climb larger than a tier in between passes through it.
    """

    number: int
    root: int
    group: int
    goal: int
    keys: Keys
    nodes: Handles
    positions: Pages
    rows: Slots | None
    urgency: Urgency
    leases: Handles
    settled: Mask
    good: Mask
    busy: Mask
    streams: bool


def offer_of(root: int, group: int, source: int, keys: Keys, positions: Pages) -> Offer:
    """Keys, deepest first, that ``source`` has and nobody waits for."""
    good = np.zeros(len(keys), np.bool_)
    index = np.arange(len(keys), dtype=np.int64)
    return Offer(root, group, source, keys, positions, None, NOBODY, good, index)
