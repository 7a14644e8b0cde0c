"""What was answered as a hit in a step of the engine stays until the step ends (I19): between the
answer and the load other answers, and the room that they need, come in between. Pinned is only when
something could go, so that a step in which nothing does costs one count and one touch.
"""

from __future__ import annotations

import numpy as np

from radix.engines.vllm.blocks import Blocks, joined
from radix.keysets import FlatLease


class Pins:
    """Answer: ``hit``, ``missed``. Before anything that evicts: ``hold``. A step ends: ``end``."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._groups: list[int] = []
        self._names: list[bytes] = []
        self._positions: list[int] = []
        self._held = 0  # of these, how many leases cover
        self._leases: list[FlatLease] = []
        self._absent: dict[int, list[bytes]] = {}

    def hit(self, name: bytes, group: int, position: int) -> None:
        """A block was answered as a hit, for the first time in this step. Cost: O(1)."""
        self._groups.append(group)
        self._names.append(name)
        self._positions.append(position)

    def missed(self, name: bytes, group: int) -> None:
        """No tier has a block that was asked for. Cost: O(1)."""
        self._absent.setdefault(group, []).append(name)

    def hold(self) -> None:
        """Nothing that was answered as a hit can go now. Cost: what is not held yet."""
        first = self._held
        if first == len(self._names):
            return
        self._held = len(self._names)
        names = joined(self._names[first:], self._blocks.store.key_bytes)
        self._leases.append(self._blocks.lease(names, np.array(self._positions[first:], np.int64)))

    def end(self) -> None:
        """The step ends: answers are counted, hits are the most recently used. Cost: them."""
        store = self._blocks.store
        groups = np.array(self._groups, np.int16)
        for group in sorted(set(self._groups) | set(self._absent)):
            rows = np.flatnonzero(groups == group)
            places = [self._positions[row] for row in rows.tolist()]
            absent = self._absent.get(group, [])
            names = [self._names[row] for row in rows.tolist()] + absent
            store.has(
                joined(names, store.key_bytes),
                group,
                namespace=self._blocks.space,
                positions=np.array(places + [-1] * len(absent), np.int64),
            )
        self.drop()

    def drop(self) -> None:
        """Forgets the step's answers, uncounted."""
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        self._groups, self._names, self._positions, self._held = [], [], [], 0
        self._absent = {}
