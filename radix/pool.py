"""Slot pools: every slot has exactly one state (I7), a slot is freed once (I11), reserve is all or
nothing. A thin face of the native pool, shared by the tiers.
"""

from __future__ import annotations

import numpy as np

from radix._native import ffi, lib
from radix.errors import SlotError
from radix.tier import Slots

__all__ = ["FREE", "QUARANTINE", "RESERVED", "USED", "SlotError", "SlotPool"]

FREE, RESERVED, USED, QUARANTINE = (
    lib.RDX_SLOT_FREE,
    lib.RDX_SLOT_RESERVED,
    lib.RDX_SLOT_USED,
    lib.RDX_SLOT_QUARANTINE,
)

# Bound once: these run several times in each insert, and looking them up costs as much as calling.
_INT32S = ffi.typeof("int32_t[]")
_from_buffer = ffi.from_buffer
_count, _reserve, _move = lib.rdx_pool_count, lib.rdx_pool_reserve, lib.rdx_pool_move


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
        self._bad = ffi.new("uint32_t *")

    @property
    def capacity(self) -> int:
        """Slots in the pool, retired ones left out."""
        return int(lib.rdx_pool_capacity(self._pool))

    def count(self, state: int) -> int:
        """Slots in ``state``. Cost: O(1)."""
        count: int = _count(self._pool, state)
        return count

    def state(self, slot: int) -> int:
        """The state of one slot."""
        return int(lib.rdx_pool_state(self._pool, slot))

    def reserve(self, count: int) -> Slots | None:
        """``count`` reserved slots, or None (nothing taken). Cost: count."""
        out = np.empty(count, np.int32)
        status = _reserve(self._pool, count, _from_buffer(_INT32S, out))
        if status == lib.RDX_EFULL:
            return None
        if status:
            raise MemoryError("slot pool")
        return out

    def move(self, slots: Slots, source: int, target: int) -> None:
        """Moves all of ``slots`` from one state to another, or raises and moves none (I11)."""
        slots = np.ascontiguousarray(slots, np.int32)
        status = _move(
            self._pool, _from_buffer(_INT32S, slots), len(slots), source, target, self._bad
        )
        if status:
            self._raise(status, slots, f"state {source}")

    def claim(self, slots: Slots) -> None:
        """Marks named free slots as used."""
        slots = np.ascontiguousarray(slots, np.int32)
        status = lib.rdx_pool_claim(
            self._pool, ffi.from_buffer("int32_t[]", slots), len(slots), self._bad
        )
        self._raise(status, slots, "state free")

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

    def _raise(self, status: int, slots: Slots, expected: str) -> None:
        if status == lib.RDX_OK:
            return
        index = int(self._bad[0])
        slot = int(slots[index]) if index < len(slots) else -1
        raise SlotError(f"slot {slot} (index {index}) is not in {expected}")
