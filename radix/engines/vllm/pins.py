"""What was answered as a hit in a step of the engine stays until the step ends (I19): between the
answer and the load other answers, and the room that they need, come in between. Pinned is only when
something could go, so that a step in which nothing does costs one count and one touch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix.engines.vllm.blocks import Blocks
from radix.engines.vllm.identity import GROUP_BYTES
from radix.keysets import FlatLease
from radix.tier import Keys


class Pins:
    """Answered in this step, each key once: ``hits``, ``misses``; keys as the engine's, their
    hashes as the store knows them. Before anything that evicts: ``hold``. A step ends: ``end``.
    """

    def __init__(self, blocks: Blocks, group_ids: Sequence[int]) -> None:
        self._blocks = blocks
        self._ids = np.array(group_ids, ">u4")
        self.hits: list[bytes] = []
        self.misses: list[bytes] = []
        self._held = 0  # of the hits, how many leases cover
        self._leases: list[FlatLease] = []

    def _read(self, keys: list[bytes]) -> tuple[Keys, npt.NDArray[np.uint32]]:
        """Names, and the engine's number of the group of each."""
        width = self._blocks.store.key_bytes
        raw = np.frombuffer(bytearray(b"".join(keys)), np.uint8).reshape(-1, width + GROUP_BYTES)
        ends = np.ascontiguousarray(raw[:, width:]).view(">u4").ravel()
        return np.ascontiguousarray(raw[:, :width]), ends

    def hold(self) -> None:
        """Nothing that was answered as a hit can go now. Cost: what is not held yet."""
        first = self._held
        if first == len(self.hits):
            return
        self._held = len(self.hits)
        names, _ = self._read(self.hits[first:])
        self._leases.append(self._blocks.lease(names, None))

    def end(self) -> None:
        """The step ends: answers are counted, hits are the most recently used. Cost: them."""
        store, space = self._blocks.store, self._blocks.space
        if self.hits or self.misses:
            names, ends = self._read(self.hits + self.misses)
            for group, number in enumerate(self._ids):
                rows = ends == number
                if rows.any():
                    store.has(names[rows], group, namespace=space)
        self.drop()

    def drop(self) -> None:
        """Forgets the step's answers, uncounted."""
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        self.hits.clear()
        self.misses.clear()
        self._held = 0
