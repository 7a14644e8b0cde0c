"""Who owns the slots of the first tier, as data.

``OWNED``: the tier's pool. ``SHARED``: the engine allocates; the cache adopts slots and hands back
what it does not need. ``BORROWED``: the tree knows no device; the engine lends slots to a transfer,
and a ledger says when each loan ends. Where no device exists at all, the host tier is simply the
first, owned (I7, I10).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from radix.errors import TierFullError
from radix.groups import Group
from radix.pool import SlotError
from radix.tier import (
    Capability,
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
    Transfer,
    TransferDone,
)


class Ownership(Enum):
    """Who owns the slots of the first tier."""

    OWNED = "owned"
    SHARED = "shared"
    BORROWED = "borrowed"


class AdoptedSlots:
    """A first tier whose slots the engine allocates.

    ``offer`` brings slots in; ``reserve`` takes from what was offered or evicted; ``spare`` gives
    the engine back what is not in use. Everything else is the inner tier's.
    """

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self._spare: list[Slots] = []
        self._used: list[set[int]] = []

    def offer(self, group: int, slots: Slots) -> None:
        """The engine's free slots, from now on the cache's. ``SlotError`` for one it has."""
        slots = np.ascontiguousarray(slots, np.int32)
        values = slots.tolist()
        have = set(self._spare[group].tolist())
        if len(set(values)) != len(values) or have.intersection(values):
            raise SlotError(f"slots offered twice to tier {self.name!r}")
        if self._used[group].intersection(values):
            raise SlotError(f"slots offered to tier {self.name!r} are in use")
        self._spare[group] = np.concatenate((self._spare[group], slots))

    def spare(self, group: int) -> Slots:
        """Takes back, for the engine, every slot that is not in use."""
        slots, self._spare[group] = self._spare[group], np.empty(0, np.int32)
        return slots

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Attaches the inner tier; every slot is the engine's until it is offered."""
        self.inner.attach(groups, page_bytes, upper)
        self._spare = [np.empty(0, np.int32) for _ in groups]
        self._used = [set() for _ in groups]

    def free_blocks(self, group: int) -> int:
        """Slots offered and not in use."""
        return len(self._spare[group])

    def reserve(self, group: int, count: int) -> Slots:
        """Takes from what is spare, all or nothing."""
        if count > len(self._spare[group]):
            raise TierFullError(
                self.name,
                f"{count} slots needed, {len(self._spare[group])} offered",
                retryable=True,
            )
        slots, self._spare[group] = self._spare[group][:count], self._spare[group][count:]
        self._used[group].update(slots.tolist())
        return slots

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes now."""
        self._own(group, slots)

    def abort(self, group: int, slots: Slots) -> None:
        """Slots go back to what is spare."""
        self._own(group, slots)
        self._used[group].difference_update(slots.tolist())
        self._spare[group] = np.concatenate((self._spare[group], slots))

    free = abort
    lift = abort

    def fence(self, group: int, slots: Slots) -> None:
        """Given up, but in use until ``lift``."""
        self._own(group, slots)

    def _own(self, group: int, slots: Slots) -> None:
        if not self._used[group].issuperset(slots.tolist()):
            raise SlotError(f"tier {self.name!r}: a slot that the cache does not hold")

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

    def restore(self) -> Sequence[Restored]:
        """Nothing: the engine's memory starts empty."""
        return ()

    def planes(self, group: int) -> Any:
        """The inner tier's."""
        return self.inner.planes(group)

    def capacity_blocks(self, group: int) -> int:
        """The inner tier's."""
        return self.inner.capacity_blocks(group)

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Of the inner tier."""
        self.inner.store(transfer, upper)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Of the inner tier."""
        self.inner.load(transfer, upper)

    def cancel(self, job: int) -> None:
        """Of the inner tier."""
        self.inner.cancel(job)

    def poll(self) -> list[TransferDone]:
        """Of the inner tier."""
        return self.inner.poll()

    def wait(self, timeout_s: float) -> None:
        """Of the inner tier."""
        self.inner.wait(timeout_s)

    def pending(self) -> int:
        """Of the inner tier."""
        return self.inner.pending()

    def flush(self) -> None:
        """Of the inner tier."""
        self.inner.flush()

    def usage(self) -> TierUsage:
        """The inner tier's memory, and the slots in use here."""
        usage = self.inner.usage()
        return TierUsage(
            usage.used_bytes, usage.limit_bytes, tuple(len(used) for used in self._used)
        )

    def check(self) -> None:
        """Slots are spare or in use, never both (I7)."""
        for group, used in enumerate(self._used):
            if used.intersection(self._spare[group].tolist()):
                raise SlotError(f"tier {self.name!r}: a slot is spare and in use (I7)")

    def close(self) -> None:
        """Closes the inner tier."""
        self.inner.close()
