"""I33: replicas that see the same calls decide the same, whatever the seed of their child table and
whatever compare path their machine has: nodes, handles, victims and order are equal.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix._native import lib
from radix.tree import Cursor, TreeCore

COLUMNS = np.arange(2, dtype=np.uint32)


def history(seed: int, table_seed: int, compare_path: int) -> list[object]:
    """Everything that a tree answers to one stream of calls."""
    assert lib.rdx_dispatch_set(compare_path) == lib.RDX_OK
    rng = random.Random(seed)
    tree = TreeCore(8, groups=1, tiers=2, seed=table_seed)
    root = tree.root()
    answers: list[object] = []
    leases: list[int] = []
    slot = 0
    for _ in range(300):
        prompt = np.array([rng.randrange(2) for _ in range(rng.randrange(2, 30))], np.int32)
        found = tree.match(root, prompt, 0)
        answers.append(found)
        at = Cursor(root, found.node, found.structural_pages)
        what = rng.randrange(6)
        if what < 3:
            count = len(prompt) // 2
            slots = np.arange(slot, slot + 2 * count, dtype=np.int32).reshape(2, count)
            slot += 2 * count
            answers.append(tree.insert(Cursor(root, root, 0), prompt, COLUMNS, slots))
        elif what == 3:
            leases.append(tree.lease(at)[0])
        elif what == 4 and leases:
            tree.release(leases.pop(rng.randrange(len(leases))), stamp=rng.random() < 0.5)
        else:
            victims = np.empty(rng.randrange(20), np.int32)
            ids = np.empty((len(victims), 16), np.uint8)
            freed = tree.evict(rng.randrange(2), victims, ids)
            answers.append((victims[:freed].tolist(), ids[:freed].tobytes()))
    answers.append((tree.nodes(root), tree.order(0), tree.order(1), tree.stats()))
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_replicas_decide_alike(seed: int) -> None:
    before = lib.rdx_dispatch_get()
    paths = [path for path in range(3) if lib.rdx_dispatch_set(path) == lib.RDX_OK]
    try:
        first = history(seed, 0, paths[0])
        for table_seed in (1, (1 << 64) - 1, 0x9E3779B97F4A7C15):
            for path in paths:
                assert history(seed, table_seed, path) == first
    finally:
        lib.rdx_dispatch_set(before)
