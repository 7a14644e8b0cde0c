"""An insert takes whole pages, each once; what is too short or already there changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.tree import Cursor, TreeCore

COLUMN = np.zeros(1, np.uint32)


def tree_of(page_tokens: int) -> tuple[TreeCore, int, Cursor]:
    """A tree with one column, its root and where the root ends."""
    tree = TreeCore(4 * page_tokens, groups=1, tiers=1)
    root = tree.root()
    return tree, root, Cursor(root, root, 0)


def array(*tokens: int) -> np.ndarray:
    """Tokens or slots."""
    return np.array(tokens, np.int32)


def test_prompt_shorter_than_a_page_makes_no_node() -> None:
    """C15 (sglang#38191): an empty key at finish made a node, or a negative length."""
    tree, root, start = tree_of(4)
    lease, _, _ = tree.lease(start)
    for tokens in ((), (1,), (1, 2, 3)):
        result = tree.insert(start, array(*tokens), COLUMN, array(), None, lease)
        assert (result.node, result.pages, result.created) == (root, 0, 0)
    assert tree.stats().nodes == 1
    assert tree.match(root, array(1, 2, 3)).hit_pages == 0
    tree.release(lease)
    tree.check()


def test_token_after_a_full_page_waits_for_the_next() -> None:
    """C22 (LMCache#653): one token beyond a boundary was stored as a chunk."""
    tree, root, start = tree_of(4)
    at = tree.insert(start, array(1, 2, 3, 4), COLUMN, array(0))
    end = Cursor(root, at.node, at.pages)
    for tokens in ((5,), (5, 6, 7)):
        assert tree.insert(end, array(*tokens), COLUMN, array()).created == 0
    assert tree.insert(end, array(5, 6, 7, 8), COLUMN, array(1)).created == 1
    assert tree.stats().pages == 2


def test_unfinished_insert_made_twice_is_a_no_op() -> None:
    """C23 (sglang#25091): the second call compared a length that had a private tail in it."""
    tree, root, start = tree_of(4)
    lease, _, _ = tree.lease(start)
    prompt = np.arange(6, dtype=np.int32)
    canonical = array(-7)
    first = tree.insert(start, prompt, COLUMN, array(3), canonical, lease)
    before = tree.nodes(root), tree.column_stats(0), tree.stats()._replace(clock=0)
    end = tree.lease_end(root, lease)
    again = tree.insert(end, prompt[4 * end.pages :], COLUMN, array(), None, lease)
    assert (again.node, again.pages, again.created) == (first.node, 1, 0)
    assert (tree.nodes(root), tree.column_stats(0), tree.stats()._replace(clock=0)) == before
    assert (canonical.tolist(), tree.slots(end, 0, 0, 1).tolist()) == ([3], [3])
    tree.release(lease)
    tree.check()


def test_siblings_that_share_a_token_but_no_page_stay_apart() -> None:
    """I3: pages are compared, not first tokens."""
    tree, root, start = tree_of(4)
    for last in range(5):
        tree.insert(start, array(1, 1, 1, last), COLUMN, array(last))
    assert [view.pages for view in tree.nodes(root)[1:]] == [1] * 5
    for last in range(5):
        found = tree.match(root, array(1, 1, 1, last), 0)
        assert tree.slots(Cursor(root, found.node, 1), 0, 0, 1).tolist() == [last]
    tree.check()


def test_leaf_grows_in_place_while_nobody_else_stands_on_it() -> None:
    tree, root, start = tree_of(1)
    lease, _, _ = tree.lease(start)
    for token in range(100):
        end = tree.lease_end(root, lease)
        tree.insert(end, array(token), COLUMN, array(token), None, lease)
        tree.check()
    assert tree.stats().nodes == 2
    end = tree.lease_end(root, lease)
    other, _, _ = tree.lease(end)
    tree.insert(end, array(500), COLUMN, array(500), None, lease)
    assert tree.stats().nodes == 3
    assert tree.lease_end(root, other) == end
    tree.release(other)
    tree.release(lease)
    assert tree.match(root, array(*range(100), 500), 0).hit_pages == 101


def test_refused_insert_leaves_everything_as_it_was() -> None:
    """C13 (vllm#24228): a counter changed before the check that failed."""
    tree, root, start = tree_of(1)
    at = tree.insert(start, array(1, 2), COLUMN, array(0, 1))
    before = tree.nodes(root), tree.stats(), tree.order(0)
    for columns, lease, error in (
        (np.ones(1, np.uint32), 0, ValueError),
        (COLUMN, 12345, LeaseError),
    ):
        with pytest.raises(error):
            tree.insert(Cursor(root, at.node, 2), array(3), columns, array(2), None, lease)
        assert (tree.nodes(root), tree.stats(), tree.order(0)) == before
    tree.check()
