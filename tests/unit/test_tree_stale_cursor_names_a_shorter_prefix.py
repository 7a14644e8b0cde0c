"""A cursor may outlive what it names; then it names a shorter prefix, never another one."""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.tree import Cursor, StaleError, TreeCore

COLUMN = np.zeros(1, np.uint32)


def tree_of(**shape: int) -> tuple[TreeCore, int]:
    """A tree of one-token pages with one root."""
    tree = TreeCore(4, groups=1, tiers=shape.get("tiers", 1))
    return tree, tree.root()


def put(tree: TreeCore, at: Cursor, tokens: list[int], first_slot: int = 0) -> Cursor:
    """Inserts tokens with ascending slots; where they end."""
    slots = np.arange(first_slot, first_slot + len(tokens), dtype=np.int32)
    end = tree.insert(at, np.array(tokens, np.int32), COLUMN, slots)
    return Cursor(at.root, end.node, end.pages)


def evict(tree: TreeCore, count: int) -> list[int]:
    """The slots of the next victims."""
    slots = np.empty(count, np.int32)
    return slots[: tree.evict(0, slots)].tolist()


def test_cursor_of_a_removed_namespace_never_enters_the_next_one() -> None:
    """A root's index is used again; only its generation tells the old namespace from the new one.

    The cursor kept the bare index, so that an insert through it wrote one tenant's prompt into
    another's namespace.
    """
    tree, old = tree_of()
    stale = Cursor(old, old, 0)
    tree.drop_root(old)
    new = tree.root()
    assert new & 0xFFFFFFFF == old & 0xFFFFFFFF
    assert new != old
    with pytest.raises(StaleError):
        put(tree, stale, [1, 2])
    with pytest.raises(StaleError):
        tree.lease(stale)
    assert tree.match(new, np.array([1, 2], np.int32), 0).structural_pages == 0


def test_cursor_into_an_evicted_node_names_nothing_that_came_after() -> None:
    tree, root = tree_of()
    gone = put(tree, Cursor(root, root, 0), [1, 2, 3])
    assert evict(tree, 3) == [2, 1, 0]
    put(tree, Cursor(root, root, 0), [7, 8, 9])  # takes the same node index
    assert tree.resolve(gone).pages == 0
    with pytest.raises(StaleError):
        put(tree, gone, [4])
    lease, _, pages = tree.lease(gone)
    assert pages == 0
    tree.release(lease)


def test_cursor_into_lost_pages_does_not_come_to_name_other_tokens() -> None:
    """A leaf that lost its end never grows in place again: an old cursor would read new tokens."""
    tree, root = tree_of()
    end = put(tree, Cursor(root, root, 0), [1, 2, 3, 4])
    assert evict(tree, 2) == [3, 2]
    assert tree.resolve(end).pages == 2
    put(tree, tree.resolve(end), [8, 9], 10)
    assert tree.resolve(end).pages == 2
    assert tree.slots(tree.resolve(end), 0, 0, 2).tolist() == [0, 1]
    tree.check()


def test_cursor_above_a_split_still_names_its_prefix() -> None:
    tree, root = tree_of()
    end = put(tree, Cursor(root, root, 0), [1, 2, 3, 4])
    inner = end._replace(pages=2)
    put(tree, Cursor(root, root, 0), [1, 2, 3, 9], 10)
    assert tree.resolve(end).pages == 4
    assert tree.resolve(inner).pages == 2
    assert tree.pages(inner, 0, 2).view(np.int32).ravel().tolist() == [1, 2]


def test_lease_of_another_path_is_no_place_to_insert_from() -> None:
    """Only the depth was compared: a lease on a sibling of equal depth was carried across."""
    tree, root = tree_of()
    one = put(tree, Cursor(root, root, 0), [1, 2])
    other = put(tree, Cursor(root, root, 0), [3, 4], 2)
    lease, _, _ = tree.lease(one)
    with pytest.raises(LeaseError):
        tree.insert(other, np.array([5], np.int32), COLUMN, np.array([9], np.int32), None, lease)
    assert tree.lease_end(root, lease) == one
    assert tree.resolve(other).pages == 2
    tree.check()


def test_node_that_lost_its_blocks_goes_with_its_last_pin_and_only_then() -> None:
    """C17 (TensorRT-LLM#13571): a child went from its parent's map but kept the way up, so that
    pruning it later pruned the parent's new children.
    """
    tree, root = tree_of()
    put(tree, Cursor(root, root, 0), [1])
    first, _, _ = tree.lease(Cursor(root, tree.match(root, np.array([1], np.int32), 0).node, 1))
    child = put(tree, Cursor(root, root, 0), [1, 2], 0)
    pin, _, _ = tree.lease(child)
    assert tree.drop(child, 0, 1) == 1
    assert tree.drop(child, 0, 0) == 0
    tree.check()
    assert tree.resolve(child).pages == 2
    tree.release(pin)
    assert tree.resolve(child).pages == 0
    put(tree, Cursor(root, root, 0), [1, 3], 5)
    with pytest.raises(StaleError):
        tree.drop(child, 0, 1)
    with pytest.raises(LeaseError):
        tree.release(pin)
    tree.release(first)
    assert tree.match(root, np.array([1, 3], np.int32), 0).hit_pages == 2
    tree.check()
