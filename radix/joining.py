"""What the persistent tiers of several ranks all kept: found without a gather, by element-wise
minima alone. Each rank puts a number for each block into a table by its hash, and the negative of
it into another: where both minima name one number, every rank has that block. What fell onto
another block is looked for again in another table. Keeps the restart's part of I33.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from radix.tier import Records, Restored, Slots

Values = npt.NDArray[np.int64]
Minimum = Callable[[Values], Values]
Free = Callable[[int, Slots], None]

_ROUNDS = 4
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


def joined(found: Sequence[Restored], minimum: Minimum, free: Free) -> list[Restored]:
    """The blocks that all ranks found, the same on each and in one order, oldest first by the rank
    that knew them first; ``free(group, slots)`` for the rest. Cost: the blocks, and six minima.
    """
    numbers = [_numbers(each) for each in found]
    mine = np.concatenate([np.empty(0, np.int64), *numbers])
    most = -int(minimum(np.array([-len(mine)], np.int64))[0])
    if not most:
        return []
    everywhere = _on_all(mine, most, minimum)
    order = np.flatnonzero(everywhere)
    order = order[np.argsort(mine[order], kind="stable")]
    ages = minimum(order.astype(np.int64))  # the numbers are the same on all ranks, so are places
    rank = np.full(len(mine), -1, np.int64)
    rank[order[np.lexsort((mine[order], ages))]] = np.arange(len(order))
    result, at = [], 0
    for each in found:
        places = rank[at : at + len(each.slots)]
        at += len(each.slots)
        lost = each.slots[places < 0]
        if len(lost):
            free(each.group, lost)
        kept = np.argsort(places, kind="stable")[int((places < 0).sum()) :]
        if len(kept):
            result.append(_picked(each, kept))
    return sorted(result, key=lambda each: (each.group, each.records.namespace))


def _numbers(found: Restored) -> Values:
    """A number in [1, 2^61] for each block, by its key and group: equal on all ranks."""
    keys = np.ascontiguousarray(found.records.keys).view(np.uint64)
    mixed = keys[:, 0] ^ np.uint64((found.group + 1) * _ODD[1] & (1 << 64) - 1)
    for column in range(1, keys.shape[1]):
        mixed = mixed * np.uint64(_ODD[0]) ^ keys[:, column]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_ODD[2])
    return (mixed >> np.uint64(3)).astype(np.int64) + 1


def _on_all(mine: Values, most: int, minimum: Minimum) -> npt.NDArray[np.bool_]:
    """Which of the numbers all ranks have. Cost: the numbers, and a minimum a round."""
    size = 1 << max(4, int(2 * most - 1).bit_length())
    everywhere = np.zeros(len(mine), np.bool_)
    for odd in _ODD[:_ROUNDS]:
        hashed = mine.astype(np.uint64) * np.uint64(odd)
        place = (hashed >> np.uint64(64 - size.bit_length() + 1)).astype(np.int64)
        table = np.zeros(size, np.int64)
        left = ~everywhere
        np.maximum.at(table, place[left], mine[left])  # of two in one place the greater
        heard = minimum(np.concatenate((table, -table)))
        agreed = (heard[:size] == table) & (heard[size:] == -table) & (table > 0)
        everywhere |= left & agreed[place] & (table[place] == mine)
    return everywhere


def _picked(found: Restored, kept: npt.NDArray[np.int64]) -> Restored:
    records = found.records
    picked = Records(
        records.namespace,
        records.keys[kept],
        records.parents[kept],
        None if records.pages is None else records.pages[kept],
        records.positions[kept],
    )
    return Restored(found.group, picked, found.slots[kept])
