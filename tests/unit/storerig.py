"""A flat store in plain memory for its unit tests: rows that the test can see, over other tiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from radix.events import KeysDone
from radix.groups import Group
from radix.keysets import Reservation
from radix.store import FlatStore
from radix.tier import Tier
from tests.oracle import expand
from tiers.host import AdoptedTier

WIDTH = 8
BLOCK = 64


def keys(*numbers: int) -> np.ndarray:
    """Keys of eight bytes that differ in the last ones."""
    out = np.zeros((len(numbers), WIDTH), np.uint8)
    for row, number in enumerate(numbers):
        out[row, 4:] = np.frombuffer(number.to_bytes(4, "big"), np.uint8)
    return out


def content(*numbers: int) -> np.ndarray:
    """What the blocks of keys hold."""
    return expand(numbers, BLOCK)


class StoreRig:
    """``store`` over ``rows`` and the tiers below them."""

    def __init__(self, rows: int, *below: Tier, groups: int = 1, **options: Any) -> None:
        self.rows = [np.zeros((rows, BLOCK), np.uint8) for _ in range(groups)]
        self.top = AdoptedTier([[part] for part in self.rows], "rows")
        kinds = [Group.full(f"g{group}", BLOCK) for group in range(groups)]
        self.store = FlatStore(kinds, [self.top, *below], key_bytes=WIDTH, **options)

    def fill(self, got: Reservation) -> None:
        """Writes what the reserved slots are to hold."""
        numbers = [int.from_bytes(key[4:].tobytes(), "big") for key in got.keys]
        self.rows[got.group][got.slots] = content(*numbers)

    def bring(self, *numbers: int, **options: Any) -> None:
        """Puts keys into the first tier."""
        got = self.store.reserve(keys(*numbers), **options)
        self.fill(got)
        self.store.commit(got)

    def where(self, *numbers: int) -> list[int]:
        """The tier of each key by its slots, which changes nothing."""
        found = [-1] * len(numbers)
        for tier in reversed(range(len(self.store.tiers))):
            slots = self.store.slots(keys(*numbers), tier=tier)
            found = [tier if slot >= 0 else old for slot, old in zip(slots, found, strict=True)]
        return found

    def end(self) -> dict[int, list[bool]]:
        """Ends everything; the answers by number."""
        events = self.store.flush() + self.store.poll()
        self.store.check()
        return {e.number: e.good.tolist() for e in events if isinstance(e, KeysDone)}
