"""The bytes of blocks, read and written as rows by slot in memory that somebody else owns. Nothing
but this holds the arrays, so that none outlives that memory, in no traceback either.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.errors import ClosedError
from radix.groups import Group
from tiers.host import HostTier


class Blocks:
    """By group, a row of bytes for each slot. ``read``, ``write``; ``close``: the memory goes."""

    def __init__(self, rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """``rows``: by group (slots, block bytes); held until ``close``."""
        self._rows = list(rows)

    @classmethod
    def of_tier(cls, tier: HostTier, groups: Sequence[Group]) -> Blocks:
        """Those of a host tier that is attached, in its own slab. Close before the tier."""
        return cls([_rows_of(tier, number) for number in range(len(groups))])

    @classmethod
    def fresh(cls, groups: Sequence[Group], slots: int) -> Blocks:
        """So many of each group, zeros, in memory of their own."""
        return cls([np.zeros((slots, group.block_bytes), np.uint8) for group in groups])

    def read(
        self, group: int, slots: npt.NDArray[Any], offset: int, nbytes: int
    ) -> npt.NDArray[np.uint8]:
        """Bytes [offset, offset + nbytes) of these blocks, (slots, nbytes). A copy."""
        return np.ascontiguousarray(self._of(group)[slots, offset : offset + nbytes])

    def write(
        self, group: int, slots: npt.NDArray[Any], offset: int, data: npt.NDArray[np.uint8]
    ) -> None:
        """The other way. ``data``: (slots, bytes)."""
        self._of(group)[slots, offset : offset + data.shape[1]] = data

    def _of(self, group: int) -> npt.NDArray[np.uint8]:
        if not self._rows:
            raise ClosedError("the blocks' memory was closed")
        return self._rows[group]

    def close(self) -> None:
        """Lets go of the memory. Idempotent."""
        self._rows.clear()


def _rows_of(tier: HostTier, group: int) -> npt.NDArray[np.uint8]:
    plane = tier.planes(group)[0]
    base, stride, size = int(plane["base"]), int(plane["stride"]), int(plane["bytes"])
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * tier.limit_bytes).from_address(base))
    shape = ((tier.limit_bytes - size) // stride + 1, size)
    return np.lib.stride_tricks.as_strided(flat, shape, (stride, 1))
