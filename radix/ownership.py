"""Who owns the slots of the first tier, as data.

``OWNED``: the tier's pool. ``SHARED``: the engine allocates; the cache adopts slots and hands back
what it does not need. ``BORROWED``: the tree knows no device; the engine lends slots to a transfer,
and a ledger says when each loan ends. Where no device exists at all, the host tier is simply the
first, owned (I7, I10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from radix.arguments import rows_of
from radix.errors import InvariantError, SlotError, TierFullError
from radix.front import FrontTier
from radix.groups import Group, Rule
from radix.tier import (
    Restored,
    Slots,
    Tier,
    TierMode,
    TierUsage,
)

_STATES = ("the engine's", "spare", "reserved", "used", "fenced")
_ENGINE, _SPARE, _RESERVED, _USED, _FENCED = range(len(_STATES))


class Ownership(Enum):
    """Who owns the slots of the first tier."""

    OWNED = "owned"
    SHARED = "shared"
    BORROWED = "borrowed"


def rows_for_prompt(
    ownership: Ownership,
    slots: Sequence[object] | None,
    rules: Sequence[Rule],
    page_tokens: int,
    prompt_tokens: int,
    new_tokens: int,
    device_tokens: int,
) -> list[Slots] | None:
    """The engine's slots for a prompt, one row a group, if they and its device hit fit together.

    ``ValueError``, ``TypeError`` otherwise, and where slots are missing or not wanted.
    """
    lent = ownership is Ownership.BORROWED
    if device_tokens and not lent:
        raise ValueError(f"device_tokens: the device slots are {ownership.value}")
    usable_tokens = (prompt_tokens - 1) // page_tokens * page_tokens
    if device_tokens % page_tokens or device_tokens > usable_tokens:
        raise ValueError(
            f"device_tokens is {device_tokens}, expected whole pages of the prompt, at least one "
            "token of which is left to compute"
        )
    if slots is None:
        if lent:
            raise ValueError("slots: borrowed device slots need the page table of every group")
        return None
    if ownership is Ownership.OWNED:
        raise ValueError("slots: the cache owns the device slots, none can be passed in")
    rows = rows_of("slots", slots, rules)
    pages = -(-(prompt_tokens + new_tokens) // page_tokens)
    if lent and min(len(row) for row in rows) < pages:
        raise ValueError(f"slots: {pages} pages need a slot in every group")
    return rows


def rows_for_insert(
    ownership: Ownership, slots: Sequence[object] | None, rules: Sequence[Rule], pages: int
) -> list[Slots] | None:
    """The engine's slots that hold ``pages`` new pages, one row a group. Raises as above."""
    if slots is None:
        if ownership is Ownership.SHARED and pages:
            raise ValueError("slots: shared device slots need those that hold the new pages")
        return None
    if ownership is not Ownership.SHARED:
        raise ValueError(f"slots: the device slots are {ownership.value}, none can be passed in")
    rows = rows_of("slots", slots, rules)
    for row in rows:
        if len(row) != pages:
            raise ValueError(f"slots: {len(row)} slots, expected one for each of {pages} pages")
    return rows


class AdoptedSlots(FrontTier):
    """A first tier whose slots the engine allocates.

    The engine: ``offer`` brings free slots in, ``adopt`` those that hold final bytes, ``withdraw``
    and ``spare`` take back what is not in use. The cache's: the slots of the protocol, of what was
    offered. All else is the inner tier's.

        engine --offer--> spare --reserve--> reserved --commit--> used
        engine ---------------adopt--------> reserved --abort--> spare    used --free--> spare
        engine <--withdraw, spare-- spare    reserved, used --fence--> fenced --lift--> spare
    """

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self._spare: list[Slots] = []
        self._states: list[npt.NDArray[np.uint8]] = []

    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        """Attaches the inner tier; every slot is the engine's until it is offered."""
        self.inner.attach(groups, page_bytes, upper)
        self._spare = [np.empty(0, np.int32) for _ in groups]
        self._states = [
            np.full(self.inner.capacity_blocks(group), _ENGINE, np.uint8)
            for group in range(len(groups))
        ]

    # ------------------------------------------------------------ the engine's side
    def offer(self, group: int, slots: Slots) -> None:
        """The engine's free slots, from now on the cache's. ``SlotError`` for one that it has."""
        self._move(group, slots, _ENGINE, _SPARE)
        self._spare[group] = np.concatenate((self._spare[group], slots))

    def adopt(self, group: int, slots: Slots) -> None:
        """Slots of the engine's that hold final bytes, from now on the cache's, reserved."""
        self._move(group, slots, _ENGINE, _RESERVED)

    def withdraw(self, group: int, slots: Slots) -> None:
        """These spare slots are the engine's again."""
        self._move(group, slots, _SPARE, _ENGINE)
        left = self._states[group][self._spare[group]] == _SPARE
        self._spare[group] = self._spare[group][left]

    def spare(self, group: int) -> Slots:
        """Takes back, for the engine, every slot that is not in use."""
        slots, self._spare[group] = self._spare[group], np.empty(0, np.int32)
        self._states[group][slots] = _ENGINE
        return slots

    def offer_all(self, rows: list[Slots]) -> None:
        """``offer`` for every group, or for none."""
        self._each(rows, self.offer)

    def adopt_all(self, rows: list[Slots]) -> None:
        """``adopt`` for every group, or for none."""
        self._each(rows, self.adopt)

    def withdraw_all(self, rows: list[Slots]) -> None:
        """``withdraw`` for every group; what is in use becomes spare once it has ended."""
        for group, slots in enumerate(rows):
            self.withdraw(group, slots[self._states[group][slots] == _SPARE])

    def _each(self, rows: list[Slots], take: Callable[[int, Slots], None]) -> None:
        before = [states.copy() for states in self._states], list(self._spare)
        try:
            for group, slots in enumerate(rows):
                take(group, slots)
        except BaseException:
            self._states, self._spare = before
            raise

    # ------------------------------------------------------------ the cache's side
    def free_blocks(self, group: int) -> int:
        """Slots offered and not in use; none unless the tier is on."""
        return len(self._spare[group]) if self.mode is TierMode.ON else 0

    def reserve(self, group: int, count: int) -> Slots:
        """Takes from what is spare, all or nothing."""
        if count > self.free_blocks(group):
            raise TierFullError(
                self.name,
                f"{count} slots needed, {self.free_blocks(group)} offered",
                retryable=True,
            )
        slots, self._spare[group] = self._spare[group][:count], self._spare[group][count:]
        self._states[group][slots] = _RESERVED
        return slots

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes now."""
        self._move(group, slots, _RESERVED, _USED)

    def abort(self, group: int, slots: Slots) -> None:
        """Reserved slots go back to what is spare."""
        self._give(group, slots, _RESERVED)

    def free(self, group: int, slots: Slots) -> None:
        """Used slots go back to what is spare."""
        self._give(group, slots, _USED)

    def lift(self, group: int, slots: Slots) -> None:
        """Fenced slots go back to what is spare."""
        self._give(group, slots, _FENCED)

    def fence(self, group: int, slots: Slots) -> None:
        """Given up, all used or all reserved, but in use until ``lift``."""
        used = len(slots) > 0 and self._states[group][slots[0]] == _USED
        self._move(group, slots, _USED if used else _RESERVED, _FENCED)

    def _give(self, group: int, slots: Slots, source: int) -> None:
        self._move(group, slots, source, _SPARE)
        self._spare[group] = np.concatenate((self._spare[group], slots))

    def _move(self, group: int, slots: Slots, source: int, target: int) -> None:
        """From one state to another: all of them, or ``SlotError`` and none (I11)."""
        states = self._states[group]
        if not len(slots):
            return
        if int(slots.min()) < 0 or int(slots.max()) >= len(states):
            raise SlotError(f"tier {self.name!r} has slots 0 to {len(states) - 1}")
        if len(np.unique(slots)) != len(slots):
            raise SlotError(f"tier {self.name!r}: a slot is named twice")
        wrong = slots[states[slots] != source]
        if len(wrong):
            state = _STATES[states[wrong[0]]]
            raise SlotError(
                f"tier {self.name!r}: slot {wrong[0]} is {state}, expected {_STATES[source]}"
            )
        states[slots] = target

    def restore(self) -> Sequence[Restored]:
        """Nothing: the engine's memory starts empty."""
        return ()

    def usage(self) -> TierUsage:
        """The inner tier's memory, and the slots in use here."""
        usage = self.inner.usage()
        used = tuple(int((states > _SPARE).sum()) for states in self._states)
        return TierUsage(usage.used_bytes, usage.limit_bytes, used)

    def check(self) -> None:
        """What is spare is listed once and nothing else is (I7). Cost: the slots."""
        self.inner.check()
        for group, states in enumerate(self._states):
            listed = np.sort(self._spare[group])
            if not np.array_equal(listed, np.flatnonzero(states == _SPARE)):
                raise InvariantError("I7", f"tier {self.name!r}: spare slots are not those listed")
