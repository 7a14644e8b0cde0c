"""A split changes nothing that can be asked: slots, keys, pins, jobs and what a match finds come
out the same before and after (I2, I5, I6).
"""

from __future__ import annotations

import numpy as np

from radix.keys import page_keys
from radix.tree import Cursor, TreeCore

ROOT_KEY = bytes(range(16))
BOTH = np.arange(2, dtype=np.uint32)


def tree_of(page_tokens: int = 1, tiers: int = 2) -> tuple[TreeCore, int, Cursor]:
    """A tree with tiers of one group, its root and where the root ends."""
    tree = TreeCore(4 * page_tokens, groups=1, tiers=tiers)
    root = tree.root(ROOT_KEY)
    return tree, root, Cursor(root, root, 0)


def array(*tokens: int) -> np.ndarray:
    """Tokens or slots."""
    return np.array(tokens, np.int32)


def insert(tree: TreeCore, at: Cursor, *tokens: int, slots: int = 0) -> Cursor:
    """Inserts into the first tier with ascending slots; where it ends."""
    count = len(tokens) * 4 // tree.page_bytes
    offered = np.arange(slots, slots + count, dtype=np.int32)
    end = tree.insert(at, array(*tokens), np.zeros(1, np.uint32), offered)
    tree.check()
    return Cursor(at.root, end.node, end.pages)


def test_copy_that_was_pending_over_a_split_lands_on_both_halves() -> None:
    """C31 (sglang#16946): the new parent passed for stored, and the ack was booked on the rest.

    A job keeps a cursor and a lease; its slots are attached by absolute page, so that neither half
    is stored before the ack and both are after it.
    """
    tree, root, start = tree_of()
    end = insert(tree, start, 1, 2, 3, 4, 5, 6)
    lease, node, pages = tree.lease(end)
    job = Cursor(root, node, pages)
    insert(tree, start, 1, 2, 3, 4, 9, slots=10)
    assert tree.stats().splits == 1
    assert tree.slots(end, 1, 0, 6).tolist() == [-1] * 6
    stored = tree.attach(job, 1, 0, np.arange(60, 66, dtype=np.int32))
    tree.release(lease, stamp=False)
    assert stored.tolist() == [60, 61, 62, 63, 64, 65]
    assert tree.slots(end, 1, 0, 6).tolist() == stored.tolist()
    assert tree.match(root, array(1, 2, 3, 4, 5, 6), 0, 2).hit_pages == 6
    assert tree.match(root, array(1, 2, 3, 4, 9), 0, 2).hit_pages == 4
    tree.check()


def test_keys_of_both_halves_chain_as_before_the_split() -> None:
    """C33 (sglang#27072), C34 (sglang#26387): an event told only the suffix, hashes were lost."""
    tree, _, start = tree_of()
    end = insert(tree, start, 1, 2, 3, 4, 5, 6)
    expected = page_keys(ROOT_KEY, [1, 2, 3, 4, 5, 6], 1)
    assert np.array_equal(tree.keys(end, 0, 6), expected)
    other = insert(tree, start, 1, 2, 3, 4, 9, slots=10)
    assert np.array_equal(tree.keys(end, 0, 6), expected)
    assert np.array_equal(tree.keys(end, 4, 2), expected[4:])
    assert np.array_equal(tree.keys(other, 0, 5), page_keys(ROOT_KEY, [1, 2, 3, 4, 9], 1))
    victims, ids = np.empty(3, np.int32), np.empty((3, 16), np.uint8)
    tree.touch(end)
    assert tree.evict(0, victims, ids) == 3
    assert np.array_equal(ids[0], page_keys(ROOT_KEY, [1, 2, 3, 4, 9], 1)[4])
    assert np.array_equal(ids[1:], expected[:3:-1])


def test_split_node_is_found_under_its_own_first_page() -> None:
    """C16 (sglang#36696): the split used the caller's key, not that of the node it made.

    ``check`` looks every node up under the first page of its own edge.
    """
    tree, root, start = tree_of(page_tokens=2)
    insert(tree, start, 1, 2, 3, 4)
    lease, _, _ = tree.lease(Cursor(root, tree.match(root, array(1, 2, 9, 9), 0).node, 1))
    tree.check()
    insert(tree, start, 1, 2, 9, 9, slots=10)
    insert(tree, start, 1, 9, 3, 4, slots=20)
    assert tree.match(root, array(1, 2, 3, 4), 0).structural_pages == 2
    assert tree.match(root, array(1, 9, 3, 4), 0).structural_pages == 2
    assert tree.match(root, array(1, 2, 3, 9), 0).structural_pages == 1
    tree.release(lease)
    victims = np.empty(1, np.int32)
    while tree.evict(0, victims):
        tree.check()
    assert tree.stats().nodes == 1


def test_partial_residency_is_cut_where_the_edge_is() -> None:
    tree, _, start = tree_of(tiers=3)
    end = insert(tree, start, 0, 1, 2, 3, 4, 5)
    tree.attach(end, 1, 1, array(11, 12, 13))
    tree.attach(end, 2, 4, array(24, 25))
    for cut in (2, 4, 1, 5, 3):
        lease, _, _ = tree.lease(end._replace(pages=cut))
        tree.check()
        assert tree.slots(end, 0, 0, 6).tolist() == [0, 1, 2, 3, 4, 5]
        assert tree.slots(end, 1, 0, 6).tolist() == [-1, 11, 12, 13, -1, -1]
        assert tree.slots(end, 2, 0, 6).tolist() == [-1, -1, -1, -1, 24, 25]
        assert tree.column_stats(1)[:2] == (3, max(0, min(cut, 4) - 1))
        tree.release(lease)
    assert tree.stats().splits == 5


def test_thousands_of_splits_of_one_buffer_copy_nothing() -> None:
    """Halves share the buffer: the bytes in hand grow by nodes, never by tokens."""
    tree, _, start = tree_of(tiers=1)
    end = insert(tree, start, *range(4096))
    assert tree.stats().buffers == 1
    for cut in range(1, 4096):
        tree.touch(end._replace(pages=cut))
    stats = tree.stats()
    assert (stats.splits, stats.buffers, stats.compactions) == (4095, 1, 0)
    assert tree.slots(end, 0, 0, 4096).tolist() == list(range(4096))
    tree.check()
    victims = np.empty(4096, np.int32)
    assert tree.evict(0, victims) == 4096
    assert sorted(victims.tolist()) == list(range(4096))
    assert tree.stats().buffers == 0
