"""What runs in each worker process: it maps the host pool whose slots the scheduler gives out, and
copies between its own tensors and its own piece of every slot. Keeps its half of I22: a job owns
its blocks and slots until it is reported, once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import LoadStoreSpec


class Slots(LoadStoreSpec):  # type: ignore[misc]  # the engine's classes have no types here
    """Slots of the host pool, one a key, in the order of the keys: what crosses processes.

    ``groups``: our group of each, (n,) int16; ``slots``: its number in that group, (n,) int32.
    """

    def __init__(self, groups: Sequence[int] | npt.NDArray[np.int16], slots: npt.ArrayLike) -> None:
        """Both are copied. ``ValueError`` for rows of unequal length."""
        self.groups = np.array(groups, np.int16)
        self.slots = np.array(slots, np.int32)
        if self.groups.shape != self.slots.shape or self.slots.ndim != 1:
            raise ValueError(
                f"groups of {self.groups.shape} and slots of {self.slots.shape}: expected one of "
                "each for a key"
            )

    def __len__(self) -> int:
        return len(self.slots)

    def __repr__(self) -> str:
        return f"Slots(groups={self.groups.tolist()}, slots={self.slots.tolist()})"
