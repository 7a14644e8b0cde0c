"""Keys that a flat store keeps for a time: which blocks of theirs lie where, and how many of them
fit within what a keep may hold. Keeps no invariant of its own: ``radix.holding`` bounds them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from radix.flat import FlatCore, Handles
from radix.flatresidency import FlatResidency
from radix.gate import Gate
from radix.holding import Keep, Keeps, blocks_of
from radix.policy.limits import Patience
from radix.tier import Keys, Slots
from radix.tree import NO_SLOT


def key_slots(
    residency: FlatResidency, core: FlatCore, nodes: Handles
) -> Callable[[int, int], Slots]:
    """The slots of keys by (tier, group). Cost of each: the keys."""

    def slots(tier: int, group: int) -> Slots:
        have = core.slots(nodes, residency.tree.column(group, tier))
        found: Slots = have[have != NO_SLOT]
        return found

    return slots


class KeysPin:
    """The blocks of keys, pinned from the start."""

    def __init__(self, residency: FlatResidency, core: FlatCore, nodes: Handles) -> None:
        """Raises what the tree raises."""
        self._core, self._nodes = core, nodes
        self.leases = len(nodes)
        self.slots = key_slots(residency, core, nodes)
        self.fasten()

    def loosen(self) -> None:
        """Gives the leases back."""
        self._core.release(self._leases, stamp=False)

    def fasten(self) -> None:
        """Takes the leases."""
        self._leases = self._core.lease(self._nodes)

    def ended(self) -> None:
        """Nothing ends with it."""


def keys_within(
    keeps: Keeps, residency: FlatResidency, core: FlatCore, nodes: Handles, max_bytes: int | None
) -> int:
    """How many of the keys, the first ones, have blocks of at most ``max_bytes``, each counted once
    however many tiers have it, and take no more of a tier than the share of keeps. Changes nothing.
    Cost: the keys, a few times.
    """
    count = len(nodes)
    if max_bytes is not None:
        nbytes = np.zeros(count, np.int64)
        for group, spec in enumerate(residency.groups):
            there = np.zeros(count, np.bool_)
            for tier in range(len(residency.tiers)):
                there |= core.slots(nodes, residency.tree.column(group, tier)) != NO_SLOT
            nbytes += there * spec.block_bytes
        count = int(np.searchsorted(np.cumsum(nbytes), max_bytes, side="right"))
    while count:
        ratio = keeps.excess(key_slots(residency, core, nodes[:count]))
        if ratio <= 1:
            break
        count = min(count - 1, int(count / ratio))
    return count


def keep_keys(
    gate: Gate,
    keeps: Keeps,
    residency: FlatResidency,
    core: FlatCore,
    keys: Keys,
    patience: Patience,
    max_bytes: int | None,
) -> Keep:
    """Holds what is there of the keys, the first of them as far as they fit; ``FlatStore.keep``."""
    nodes = core.find(keys)
    nodes = nodes[nodes != 0]
    nodes = nodes[: keys_within(keeps, residency, core, nodes, max_bytes)]
    if not len(nodes):
        residency.metrics.add(("keep", "nothing"))
        return Keep(gate, keeps, None, 0, 0)
    pin = KeysPin(residency, core, nodes)
    blocks = blocks_of(residency, pin.slots)
    return Keep(gate, keeps, keeps.enter(core.root, patience, pin), 0, blocks)
