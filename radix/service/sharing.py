"""Memory that a service gives its clients: the descriptor that came over the socket, mapped."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from radix._native import ffi
from tiers.placement import map_aligned


class SharedView:
    """Memory that the service gave a descriptor of. ``array``: its bytes, (n,) uint8, writable only
    if asked so; ``address``: where they lie here. The mapping lives as long as a view of it.
    """

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        """Takes the descriptor over and closes it."""
        try:
            nbytes = os.fstat(descriptor).st_size
            self._map, place = map_aligned(descriptor, nbytes, writable=writable)
        finally:
            os.close(descriptor)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes, place)
        self._buffer = ffi.from_buffer(self._map)
        self.address = int(ffi.cast("uintptr_t", self._buffer)) + place
        self.nbytes = nbytes
