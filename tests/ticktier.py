"""A tier in memory whose copies happen when it is polled, not before: a slot that is reused too
early shows in its bytes. And a look into the memory of any tier that has addresses.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.pool import SlotPool
from radix.tier import Capability, Tier, Transfer
from tiers.copies import plane_array
from tiers.pools import PooledTier, all_of, blocks_of_groups
from tiers.transfer import Planes
from tiers.views import Cut

Bytes = npt.NDArray[np.uint8]
_MAPPED = Capability(
    persistent=False,
    shared=False,
    layer_wise=False,
    address_mapped=True,
    shares_bytes=False,
    holds_bytes=True,
    finds=False,
)


def peek(tier: Tier, group: int, slot: int) -> Bytes:
    """The bytes of a slot, as they lie in memory of one plane: a view."""
    plane = tier.planes(group)[0]
    size, place = int(plane["bytes"]), int(plane["base"]) + int(slot) * int(plane["stride"])
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(place))


class TickTier(PooledTier):
    """Blocks in plain memory. A transfer copies and ends at a later ``poll``, each with the chance
    ``pace``, in an order of its own; until then its source is read by nobody and must stay.
    """

    def __init__(
        self, blocks: int | Sequence[int], name: str, *, pace: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(name, _MAPPED)
        self._blocks = blocks
        self.pace = pace
        self.held: set[int] = set()  # jobs that do not end
        self._random = random.Random(seed)
        self._waiting: list[tuple[Transfer, Tier, Cut, bool]] = []

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        counts = blocks_of_groups(self._blocks, len(groups), "blocks")
        self._rows = [
            np.zeros((count, group.block_bytes), np.uint8)
            for count, group in zip(counts, groups, strict=True)
        ]
        return [SlotPool(count) for count in counts]

    def planes(self, group: int) -> Planes:
        """Where the rows lie."""
        rows = self._rows[group]
        return plane_array([(rows.ctypes.data, rows.strides[0], rows.shape[1])])

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Copies at some later poll."""
        self._take(transfer, upper, storing=True)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Copies at some later poll."""
        self._take(transfer, upper, storing=False)

    def _take(self, transfer: Transfer, upper: Tier, *, storing: bool) -> None:
        cut = self._accept(transfer, upper, storing=storing)
        self._running[transfer.job] = transfer
        self._waiting.append((transfer, upper, cut, storing))
        if storing:
            self._will_write(transfer, cut)

    def _progress(self) -> None:
        ready = [
            item
            for item in self._waiting
            if item[0].job not in self.held and self._random.random() < self.pace
        ]
        going = {item[0].job for item in ready}
        self._waiting = [item for item in self._waiting if item[0].job not in going]
        self._random.shuffle(ready)
        for transfer, upper, cut, storing in ready:
            del self._running[transfer.job]
            mine, theirs = (
                np.concatenate(
                    [np.arange(at, at + size) for at, size in zip(starts, sizes, strict=True)]
                )
                for starts, sizes in (
                    (cut.below.tolist(), cut.sizes.tolist()),
                    (cut.above.tolist(), cut.sizes.tolist()),
                )
            )
            for above, below in zip(transfer.upper_slots, transfer.lower_slots, strict=True):
                there, here = peek(upper, transfer.group, above), self._rows[transfer.group][below]
                if storing:
                    here[mine] = there[theirs]
                else:
                    there[theirs] = here[mine]
            every = np.ones(len(transfer.lower_slots), np.bool_)
            if storing:
                self._wrote(transfer, cut, every)
            else:
                upper.arrived(transfer.group, np.asarray(transfer.upper_slots), cut.view)
            nbytes = len(transfer.lower_slots) * cut.nbytes
            self._done.append(all_of(transfer, True, nbytes, None))
