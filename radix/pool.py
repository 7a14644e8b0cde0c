"""Slot pools: every slot has exactly one state (I7), a slot is freed once (I11), reserve is all or
nothing. A thin face of the native pool, shared by the tiers.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from radix._native import ffi, lib, pool_capacity, pool_count, pool_move, pool_reserve
from radix.errors import SlotError
from radix.tier import Slots

__all__ = ["FREE", "QUARANTINE", "RESERVED", "USED", "SlotError", "SlotPool"]

FREE, RESERVED, USED, QUARANTINE = (
    lib.RDX_SLOT_FREE,
    lib.RDX_SLOT_RESERVED,
    lib.RDX_SLOT_USED,
    lib.RDX_SLOT_QUARANTINE,
)

_INT32 = np.dtype(np.int32)  # one object for all arrays but those of exotic origin


class SlotPool:
    """Slots [0, capacity) of one size.

    Take: ``reserve``, ``claim``. Move on: ``move``. Count: ``capacity``, ``count``. Grow and
    shrink: ``grow``, ``retire``, ``revive``.
    """

    def __init__(self, capacity: int) -> None:
        out = ffi.new("rdx_pool **")
        if lib.rdx_pool_new(capacity, out) != lib.RDX_OK:
            raise MemoryError("slot pool")
        self._pool = ffi.gc(out[0], lib.rdx_pool_free)
        self.address = int(ffi.cast("uintptr_t", self._pool))  # valid as long as this object
        self._bad = ffi.new("uint32_t *")

    @property
    def capacity(self) -> int:
        """Slots in the pool, retired ones left out."""
        return pool_capacity(self.address)

    def count(self, state: int) -> int:
        """Slots in ``state``. Cost: O(1)."""
        return pool_count(self.address, state)

    def state(self, slot: int) -> int:
        """The state of one slot."""
        return int(lib.rdx_pool_state(self._pool, slot))

    def reserve(self, count: int) -> Slots | None:
        """``count`` reserved slots, or None (nothing taken). Cost: count."""
        out = np.empty(count, np.int32)
        return out if pool_reserve(self.address, count, out) else None

    def move(self, slots: Slots, source: int, target: int) -> None:
        """Moves all of ``slots`` from one state to another, or raises and moves none (I11)."""
        if slots.dtype is not _INT32 or not slots.flags.c_contiguous:
            slots = np.ascontiguousarray(slots, np.int32)
        bad = pool_move(self.address, slots, source, target)
        if bad != len(slots):
            self._refuse(slots, bad, f"state {source}")

    def claim(self, slots: Slots) -> None:
        """Marks named free slots as used."""
        slots = np.ascontiguousarray(slots, np.int32)
        status = lib.rdx_pool_claim(
            self._pool, ffi.from_buffer("int32_t[]", slots), len(slots), self._bad
        )
        if status != lib.RDX_OK:
            self._refuse(slots, int(self._bad[0]), "state free")

    def grow(self, more: int) -> None:
        """Appends ``more`` free slots."""
        if lib.rdx_pool_grow(self._pool, more) != lib.RDX_OK:
            raise MemoryError("slot pool")

    def retire(self, first: int, count: int) -> bool:
        """Takes [first, first+count) out of the pool; False unless all of them are free."""
        return bool(lib.rdx_pool_retire(self._pool, first, count) == lib.RDX_OK)

    def revive(self, first: int, count: int) -> bool:
        """Puts retired slots back as free ones."""
        return bool(lib.rdx_pool_revive(self._pool, first, count) == lib.RDX_OK)

    def check(self) -> bool:
        """Whether counts and states agree."""
        return bool(lib.rdx_pool_check(self._pool) == lib.RDX_OK)

    @staticmethod
    def _refuse(slots: Slots, index: int, expected: str) -> NoReturn:
        slot = int(slots[index]) if index < len(slots) else -1
        raise SlotError(f"slot {slot} (index {index}) is not in {expected}")
