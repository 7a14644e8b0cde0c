"""Leases of a set of keys are given back whatever lay in the memory of their slots before.

The fault: a slot that was used for the first time kept what the allocator left in one of its
fields, which the release of a set reads as its mark for "stands twice". Where freed memory held
that mark, ``LeaseError`` was raised for leases that were held, once in some hundred runs.
"""

from __future__ import annotations

import numpy as np

from radix.flat import FlatCore
from radix.tree import TreeCore

KEYS = 200
SLOT_BYTES, SLOTS = 24, 256  # the slots that there is room for then
MARK = 0xFFFFFFFE


def test_leases_in_memory_full_of_the_mark_are_given_back() -> None:
    for _ in range(8):
        tree = TreeCore(32, groups=1, tiers=1, check_ids=False, keep_keys=False, seed=0)
        core = FlatCore(tree, tree.root())
        keys = np.random.default_rng(5).integers(0, 256, (KEYS, 32), dtype=np.uint8)
        core.insert(keys, tree.column(0, 0), np.arange(KEYS, dtype=np.int32))
        nodes = core.find(keys)
        dirty = [np.full(SLOTS * SLOT_BYTES // 4, MARK, np.uint32) for _ in range(64)]
        del dirty[::2]
        leases = core.lease(nodes)
        core.release(leases)
        assert tree.stats().leases == 0
