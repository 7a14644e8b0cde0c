"""How often pages were asked for lately, whether they are still anywhere or not: what decides which
blocks are worth writing further down. A sketch of small counters by page key (a count-min sketch
that only raises the least, halved as it fills), so that it takes a fixed room however many pages
were ever seen. It may think too much of a page, by collisions, never too little before a halving.
Draws nothing and reads no clock: replicas that are told the same decide alike (I33).

Source: Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch" (2005);
the halving as in Einziger, Friedman and Manes, "TinyLFU" (2017).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix.tier import Keys

Counts = npt.NDArray[np.uint8]
MOST = 255
WRITE_AFTER = "write_after"  # the policy of writing that it decides
_ROWS = 4
# Odd constants that spread each quarter of a key: keys of engines need not be hashes.
_SPREAD = np.array([0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F], np.uint32)


def _folded(keys: Keys) -> npt.NDArray[np.uint32]:
    """(4, n): what each key comes to in 16 bytes; a key of 16 itself."""
    count, width = keys.shape
    whole = -(-width // 16) * 16
    if whole != width:
        padded = np.zeros((count, whole), np.uint8)
        padded[:, :width] = keys
        keys = padded
    parts = np.ascontiguousarray(keys).view(np.uint32).reshape(count, -1, 4)
    words = parts[:, 0]
    for number in range(1, parts.shape[1]):
        words = words * _SPREAD[3] ^ parts[:, number]
    return words.T


class Reuse:
    """Tell: ``saw``. Ask: ``counts``, ``worth``.

    ``width``: counters in each of four rows, a power of two; about as many pages are told apart.
    After ``8 * width`` pages seen all counts are halved, so that what was popular once fades.

    >>> keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
    >>> reuse = Reuse(1 << 10)
    >>> reuse.saw(keys); reuse.saw(keys[1:])
    >>> reuse.counts(keys).tolist()
    [1, 2, 2]
    """

    def __init__(self, width: int = 1 << 16) -> None:
        """Raises ``ValueError`` for a width that is no power of two of 16 at least."""
        if width < 16 or width & (width - 1):
            raise ValueError(f"width must be a power of two of at least 16, not {width}")
        self._table = np.zeros(_ROWS * width, np.uint8)
        self._rows = np.arange(0, _ROWS * width, width, dtype=np.int64)[:, None]
        self._shift = np.uint32(32 - width.bit_length() + 1)
        self._left = self._every = 8 * width

    def _places(self, keys: Keys) -> npt.NDArray[np.int64]:
        """(rows, n): where each key counts. The quarters are mixed, so that keys which differ in
        one of them alone differ in every row.
        """
        words = _folded(keys)
        mixed = words ^ np.roll(words, 1, 0) * _SPREAD[0] ^ np.roll(words, 2, 0) * _SPREAD[1]
        mixed ^= np.roll(words, 3, 0) * _SPREAD[2]
        mixed ^= mixed >> np.uint32(15)
        places: npt.NDArray[np.int64] = ((mixed * _SPREAD[:, None]) >> self._shift) + self._rows
        return places

    def saw(self, keys: Keys) -> None:
        """Each page of ``keys``, (n, width) uint8, was asked for once more, however often it stands
        among them. Cost: n.
        """
        if not len(keys):
            return
        places = self._places(keys)
        here = self._table.take(places)
        least = here.min(0)
        raised = np.broadcast_to(least + (least < MOST), here.shape)
        low = here < raised
        while low.any():  # again where two of these keys share a counter and the lesser came last
            self._table[places[low]] = raised[low]
            low = self._table.take(places) < raised
        self._left -= len(keys)
        if self._left <= 0:
            self._table >>= 1
            self._left = self._every

    def worth(self, keys: Keys, again: int) -> npt.NDArray[np.bool_]:
        """Which of the pages were asked for ``again`` times after the first. Cost: n."""
        often: npt.NDArray[np.bool_] = self.counts(keys) > again
        return often

    def counts(self, keys: Keys) -> Counts:
        """How often each page was asked for, (n,) uint8, at most 255. Changes nothing. Cost: n."""
        if not len(keys):
            return np.empty(0, np.uint8)
        least: Counts = self._table.take(self._places(keys)).min(0)
        return least
