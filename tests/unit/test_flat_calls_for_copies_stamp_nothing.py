"""What a copy does to a set of keys, it does without making them younger: attach and a release
without a stamp; both do all or nothing. An eviction tells the namespace of each key (I11, I17).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.flat import FlatCore, evict
from radix.tree import StaleError, TreeCore
from tests.unit.storerig import WIDTH, keys


def two_spaces() -> tuple[FlatCore, FlatCore]:
    """Two namespaces of one tree over two tiers."""
    tree = TreeCore(WIDTH, groups=1, tiers=2, check_ids=False, keep_keys=False)
    return FlatCore(tree, tree.root()), FlatCore(tree, tree.root())


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_attached_copies_are_as_old_as_their_originals() -> None:
    flat, _ = two_spaces()
    flat.insert(keys(1, 2, 3), 0, slots(1, 2, 3))
    nodes = flat.find(keys(3, 1, 2))
    assert flat.attach(nodes, 1, slots(13, 11, 12)).tolist() == [13, 11, 12]
    for column in (0, 1):
        assert flat.tree.order(column) == flat.find(keys(1, 2, 3)).tolist()
    assert flat.attach(nodes, 1, slots(23, 21, 22)).tolist() == [13, 11, 12], "the first counts"
    flat.tree.check()


def test_attach_to_a_key_that_is_gone_changes_nothing() -> None:
    flat, _ = two_spaces()
    flat.insert(keys(1, 2), 0, slots(1, 2))
    nodes = flat.find(keys(2, 1))
    flat.drop(nodes[1:], 0)
    before = flat.tree.stats()
    with pytest.raises(StaleError):
        flat.attach(nodes, 1, slots(12, 11))
    assert flat.slots(nodes[:1], 1).tolist() == [-1]
    assert flat.tree.stats() == before
    flat.tree.check()


def test_release_without_a_stamp_leaves_the_order() -> None:
    flat, _ = two_spaces()
    flat.insert(keys(1, 2, 3), 0, slots(1, 2, 3))
    order = flat.tree.order(0)
    leases = flat.lease(flat.find(keys(1, 2)))
    with pytest.raises(LeaseError):
        flat.release(np.append(leases, leases[:1]), stamp=False)
    flat.release(leases, stamp=False)
    assert flat.tree.order(0) == order
    flat.release(flat.lease(flat.find(keys(1, 2))))
    assert flat.tree.order(0) == [order[2], *order[:2]]
    flat.tree.check()


def test_eviction_tells_slots_keys_and_namespaces_oldest_first() -> None:
    one, two = two_spaces()
    one.insert(keys(1), 0, slots(1))
    two.insert(keys(1, 2), 0, slots(2, 3))
    one.insert(keys(3), 0, slots(4))
    freed, gone, roots = evict(one.tree, 0, 3)
    assert freed.tolist() == [1, 2, 3]
    assert np.array_equal(gone, keys(1, 1, 2))
    assert roots.tolist() == [one.root, two.root, two.root]
    freed, gone, roots = evict(one.tree, 0, 3)
    assert (freed.tolist(), roots.tolist()) == ([4], [one.root])
    assert [len(part) for part in evict(one.tree, 0, 3)] == [0, 0, 0]
    one.tree.check()
