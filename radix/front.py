"""A tier that stands before another one and changes some of its answers: everything that a subclass
does not override is the inner tier's. For who owns the slots, and for faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.tier import (
    Capability,
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
    Transfer,
    TransferDone,
    View,
    Written,
)


def above(tiers: Sequence[Tier], number: int, top: int = 0) -> int:
    """The number of the tier that one copies from and to: the next above it whose bytes it can
    reach, at last ``top``. A disk moves its own bytes and nobody else's: what stands below it goes
    past it. Cost: the tiers between.
    """
    here = number - 1
    while here > top:
        capability = tiers[here].capability
        if capability.address_mapped or not capability.holds_bytes:
            break
        here -= 1
    return here


class FrontTier:
    """Passes every call of the protocol on to ``inner``."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """The inner tier's."""
        return self.inner.name

    @property
    def capability(self) -> Capability:
        """The inner tier's."""
        return self.inner.capability

    @property
    def mode(self) -> TierMode:
        """The inner tier's."""
        return self.inner.mode

    def set_mode(self, mode: TierMode) -> None:
        """Of the inner tier."""
        self.inner.set_mode(mode)

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Of the inner tier."""
        self.inner.attach(groups, page_bytes, upper)

    def restore(self) -> Sequence[Restored]:
        """The inner tier's."""
        return self.inner.restore()

    def planes(self, group: int) -> Any:
        """The inner tier's."""
        return self.inner.planes(group)

    def view(self, group: int) -> View | None:
        """The inner tier's."""
        return self.inner.view(group)

    def sums(self, group: int, slots: Slots) -> npt.NDArray[np.uint64] | None:
        """The inner tier's."""
        return self.inner.sums(group, slots)

    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """The inner tier's."""
        return self.inner.capacity_blocks(group, beside)

    def free_blocks(self, group: int) -> int:
        """The inner tier's."""
        return self.inner.free_blocks(group)

    def reserve(self, group: int, count: int) -> Slots:
        """The inner tier's."""
        return self.inner.reserve(group, count)

    def commit(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.commit(group, slots)

    def arrived(self, group: int, slots: Slots, part: View) -> None:
        """Told to the inner tier."""
        self.inner.arrived(group, slots, part)

    def abort(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.abort(group, slots)

    def free(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.free(group, slots)

    def fence(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.fence(group, slots)

    def lift(self, group: int, slots: Slots) -> None:
        """Of the inner tier."""
        self.inner.lift(group, slots)

    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        """Of the inner tier."""
        self.inner.clone(group, sources, targets)

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Of the inner tier."""
        self.inner.store(transfer, upper)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Of the inner tier."""
        self.inner.load(transfer, upper)

    def layers(self, job: int) -> int:
        """The inner tier's."""
        return self.inner.layers(job)

    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        """Of the inner tier."""
        return self.inner.wait_layer(job, layer, timeout_s)

    def cancel(self, job: int) -> None:
        """Of the inner tier."""
        self.inner.cancel(job)

    def poll(self) -> list[TransferDone]:
        """The inner tier's."""
        return self.inner.poll()

    def wait(self, timeout_s: float) -> None:
        """Of the inner tier."""
        self.inner.wait(timeout_s)

    def pending(self) -> int:
        """The inner tier's."""
        return self.inner.pending()

    def renew(self) -> None:
        """Of the inner tier."""
        self.inner.renew()

    def flush(self) -> None:
        """Of the inner tier."""
        self.inner.flush()

    def usage(self) -> TierUsage:
        """The inner tier's."""
        return self.inner.usage()

    def written(self) -> Written | None:
        """The inner tier's."""
        return self.inner.written()

    def check(self) -> None:
        """Of the inner tier."""
        self.inner.check()

    def close(self) -> None:
        """Of the inner tier."""
        self.inner.close()
