"""Which runs of a block have come, where several writers bring one each: the books of reserved
slots that were written in parts. A slot that nobody wrote a part of is not in them. Keeps the
presence half of I24: a block of which one piece is missing is not there. Nothing here outlives the
process: what was half written when it ended is not found again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix.layout import Layout
from radix.tier import Slots

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]


class _Entry:
    """A slot: which runs are there, their checksums and, where the tier cannot write parts in
    place, the bytes.
    """

    __slots__ = ("block", "sums", "there")

    def __init__(self, there: Mask) -> None:
        self.there = there
        self.sums: Sums = np.zeros(len(there), np.uint64)
        self.block: npt.NDArray[np.uint8] | None = None


class Arrivals:
    """Write: ``expect``, ``add``, ``take_back``, ``forget``. Ask: ``incomplete``,
    ``lacking``, ``sums``, ``block``.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._bytes = [layout.block_bytes for layout in layouts]
        # Runs without bytes need not come.
        self._empty = [layout.runs[:, :, 1].reshape(-1) == 0 for layout in layouts]
        self._slots: list[dict[int, _Entry]] = [{} for _ in layouts]

    def _entry(self, group: int, slot: int) -> _Entry:
        entry = self._slots[group].get(slot)
        if entry is None:
            entry = self._slots[group][slot] = _Entry(self._empty[group].copy())
        return entry

    def expect(self, group: int, slots: Slots) -> None:
        """A part of these slots is on its way: they are whole only once all of them have come."""
        for slot in slots.tolist():
            self._entry(group, slot)

    def add(self, group: int, slots: Slots, chosen: Indices, sums: Sums | None = None) -> Mask:
        """The runs ``chosen`` of these slots have come; which slots are whole now.

        ``sums``: (n, runs). A run that came before with another checksum is held by two writers
        who disagree: it counts as missing again. Cost: the slots.
        """
        whole = np.zeros(len(slots), np.bool_)
        for index, slot in enumerate(slots.tolist()):
            entry = self._entry(group, slot)
            if sums is None:
                entry.there[chosen] = True
            else:
                agreed = ~entry.there[chosen] | (entry.sums[chosen] == sums[index])
                entry.there[chosen] = agreed
                entry.sums[chosen] = sums[index]
            whole[index] = entry.there.all()
        return whole

    def take_back(self, group: int, slots: Slots, chosen: Indices) -> None:
        """The runs ``chosen`` of these slots have not come after all. Cost: the slots."""
        for slot in slots.tolist():
            entry = self._slots[group].get(slot)
            if entry is not None:
                entry.there[chosen] = self._empty[group][chosen]

    def forget(self, group: int, slots: Slots) -> None:
        """These slots hold something else now, or nothing. Cost: O(1) where no parts are."""
        table = self._slots[group]
        if table:
            for slot in slots.tolist():
                table.pop(slot, None)

    def incomplete(self, group: int, slots: Slots) -> list[int]:
        """Those of the slots of which some parts came and others did not. Cost as ``forget``."""
        table = self._slots[group]
        if not table:
            return []
        return [slot for slot in slots.tolist() if slot in table and not table[slot].there.all()]

    def lacking(self, group: int, slots: Slots, chosen: Indices) -> Mask | None:
        """Which of the slots lack one of the runs ``chosen``; None: none does. As ``forget``."""
        table = self._slots[group]
        if not table:
            return None
        entries = [table.get(slot) for slot in slots.tolist()]
        some = np.array([e is not None and not e.there[chosen].all() for e in entries], np.bool_)
        return some if some.any() else None

    def sums(self, group: int, slots: Slots) -> Sums:
        """Checksums (n, runs) of slots that are whole. Cost: the slots."""
        table = self._slots[group]
        rows = [table[slot].sums for slot in slots.tolist()]
        return np.stack(rows) if rows else np.zeros((0, len(self._empty[group])), np.uint64)

    def block(self, group: int, slot: int) -> npt.NDArray[np.uint8]:
        """Memory of a block whose parts are collected before they are written. Kept with the slot,
        until ``forget``. Cost: the bytes, the first time.
        """
        entry = self._entry(group, slot)
        if entry.block is None:
            entry.block = np.zeros(self._bytes[group], np.uint8)
        return entry.block
