"""The children of a node come in pieces of any size, each once, at the cost of the piece; what is
gone meanwhile is said, never guessed.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix._native import lib
from radix.errors import StaleError
from radix.tree import Cursor, NodeView, TreeCore

COLUMN = np.zeros(1, np.uint32)


def grown(children: int, below: int = 0) -> tuple[TreeCore, int]:
    """A root with so many children, the first of which has ``below`` of its own."""
    tree = TreeCore(4, groups=1, tiers=1)
    root = tree.root()
    slot = 0
    for token in range(children):
        at = tree.insert(
            Cursor(root, root, 0), np.array([token], np.int32), COLUMN, np.array([slot], np.int32)
        )
        slot += 1
        for deeper in range(below if token == 0 else 0):
            page = np.array([deeper], np.int32)
            tree.insert(Cursor(root, at.node, 1), page, COLUMN, np.array([slot], np.int32))
            slot += 1
    return tree, root


def in_pieces(tree: TreeCore, node: int, most: int) -> list[NodeView]:
    found: list[NodeView] = []
    while piece := tree.children(node, found[-1].node if found else 0, most):
        assert len(piece) <= most
        found += piece
    return found


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_pieces_together_are_all_children_once(most: int) -> None:
    tree, root = grown(21, below=4)
    found = in_pieces(tree, root, most)
    every = [view for view in tree.nodes(root) if view.parent == root]
    assert sorted(found) == sorted(every) and len(found) == 21
    parents = [view for view in found if view.children]
    assert [view.children for view in parents] == [4]
    assert len(in_pieces(tree, parents[0].node, most)) == 4


def test_children_of_children_are_counted_up_to_a_bound() -> None:
    tree, root = grown(2, below=lib.RDX_MANY_CHILDREN + 50)
    counts = [view.children for view in tree.children(root)]
    assert sorted(counts) == [0, lib.RDX_MANY_CHILDREN]


def test_a_place_that_is_gone_or_elsewhere_is_stale() -> None:
    tree, root = grown(3, below=2)
    first = tree.children(root, most=3)
    parent = next(view for view in first if view.children)
    leaf = next(view for view in first if not view.children)
    with pytest.raises(StaleError):
        tree.children(parent.node, after=leaf.node)
    with pytest.raises(StaleError):
        tree.children(root, after=root)
    tree.evict(0, np.empty(16, np.int32))
    for node, after in ((root, leaf.node), (leaf.node, 0)):
        with pytest.raises(StaleError):
            tree.children(node, after)
    assert tree.children(root) == []
