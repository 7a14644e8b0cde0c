"""Whether a block is worth a write: how likely it is read back from a tier before it is evicted
there, learned from the pages that were asked for as often as it was. Of every eighth page it is
seen what becomes of it: asked for again within the time that a block stays in the tier, and not
found above it, or not. Takes a fixed room, draws nothing and reads no clock, so that replicas that
are told the same decide alike (I33).

    asked for   once     twice   3 times  more           an example
    read back   3 %      41 %    66 %     80 %
    written     no       yes     yes      yes            with a threshold of a tenth

Frequency against the victim's (TinyLFU) shuts out conversations: their newest blocks have frequency
one, as everything has that is read back next. So a page is compared with its like.

Source: the sampled history as in Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by
Maximizing Hit Density" (2018); the classes by frequency as in "TinyLFU" (2017).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radix.policy.reuse import Reuse
from radix.tier import Keys, Tier

WRITE_EXPECTED = "write_expected"  # the policy of writing that it decides
CLASSES = 4  # asked for once, twice, three times, more often
ONE_IN = 8  # pages of which it is seen what becomes
MOST_SEEN = 8192  # of these at once
TURN = 2048  # pages asked for between looks at how many of them are written
LEAST = 30  # pages of a class that must have ended before it is judged
FADES_AT = 400  # pages of a class at which half of what was learned is forgotten
_SPREAD = np.uint32(0x9E3779B1)

Mask = npt.NDArray[np.bool_]


class _Seen(NamedTuple):
    kind: int
    at: int


class Expected:
    """Tell: ``saw``, ``wrote``. Ask: ``worth``, ``chances``.

    ``capacity()``: blocks of one group that the tier holds; how long a block stays there follows
    from how many are written of those asked for.

    >>> expected = Expected(lambda: 64)
    >>> keys = np.random.default_rng(0).integers(0, 256, (4000, 16), np.uint8)
    >>> for at in range(0, 4000, 10):  # nothing is ever asked for again
    ...     expected.saw(keys[at : at + 10], np.ones(10, np.bool_))
    ...     expected.wrote(int(expected.worth(keys[at : at + 10], 0.1).sum()))
    >>> expected.worth(keys[:3], 0.1).tolist()
    [False, False, False]
    """

    def __init__(self, capacity: Callable[[], int]) -> None:
        self._capacity = capacity
        self._counts = Reuse()
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()  # the oldest first
        self._ended = [0.0] * CLASSES
        self._read = [0.0] * CLASSES
        self._now = 0  # pages asked for
        self._turn = (0, 0)  # pages asked for and written since the last look
        self._share = 1.0  # of the pages asked for that are written

    def saw(self, keys: Keys, below: Mask) -> None:
        """Pages were asked for, (n, width) uint8; ``below[i]``: no tier above had it. Cost: n."""
        if not len(keys):
            return
        self._counts.saw(keys)
        self._now += len(keys)
        asked, written = self._turn
        self._turn = asked + len(keys), written
        if self._turn[0] >= TURN:
            self._share = 0.7 * self._share + 0.3 * self._turn[1] / self._turn[0]
            self._turn = 0, 0
        chosen = np.flatnonzero(_one_in(keys))
        if len(chosen):
            kinds = self._kinds(keys[chosen]).tolist()
            for index, kind in zip(chosen.tolist(), kinds, strict=True):
                name = keys[index].tobytes()
                if (before := self._seen.pop(name, None)) is not None:
                    self._end(before.kind, read=bool(below[index]))
                self._seen[name] = _Seen(kind, self._now)
        self._forget()

    def _forget(self) -> None:
        """Ends those that would have left the tier by now."""
        stays = self._capacity() / max(self._share, 1e-3)
        while self._seen:
            name, seen = next(iter(self._seen.items()))
            if self._now - seen.at <= stays and len(self._seen) <= MOST_SEEN:
                return
            del self._seen[name]
            self._end(seen.kind, read=False)

    def _end(self, kind: int, *, read: bool) -> None:
        self._ended[kind] += 1
        self._read[kind] += read
        if self._ended[kind] > FADES_AT:
            self._ended[kind] /= 2
            self._read[kind] /= 2

    def _kinds(self, keys: Keys) -> npt.NDArray[np.int64]:
        counts = self._counts.counts(keys).astype(np.int64)
        return np.clip(counts, 1, CLASSES) - 1

    def chances(self) -> list[float]:
        """By class, how likely a page is read back; 1 where too little is known."""
        return [
            read / ended if ended >= LEAST else 1.0
            for read, ended in zip(self._read, self._ended, strict=True)
        ]

    def worth(self, keys: Keys, least: float) -> Mask:
        """Which of the pages are read back with a chance of ``least``. Changes nothing. Cost: n."""
        found: Mask = np.array(self.chances())[self._kinds(keys)] >= least
        return found

    def wrote(self, pages: int) -> None:
        """So many pages go down."""
        self._turn = self._turn[0], self._turn[1] + pages


def expected_of(write: str, tiers: Sequence[Tier]) -> tuple[int, Expected | None]:
    """The number of the first tier that outlives its process, and what is expected of it where that
    decides what is written; (their number, None) else.
    """
    for number, tier in enumerate(tiers):
        if write == WRITE_EXPECTED and tier.capability.persistent:
            return number, Expected(partial(tier.capacity_blocks, 0))
    return len(tiers), None


def _one_in(keys: Keys) -> Mask:
    """Every eighth of the keys, the same ones each time."""
    width = keys.shape[1]
    padded = np.zeros((len(keys), -(-width // 4) * 4), np.uint8)
    padded[:, :width] = keys
    words = np.bitwise_xor.reduce(padded.view(np.uint32), axis=1)
    chosen: Mask = ((words ^ words >> np.uint32(15)) * _SPREAD) >> np.uint32(29) == 0
    return chosen
