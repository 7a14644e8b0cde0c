"""A reopened disk gives records in no order; the paths come back, oldest first, and a record that
does not chain to the root, or whose place is taken, is told and left to its tier (I24, C26).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix._native import lib
from radix.keys import page_keys, root_key
from radix.tree import Cursor, StaleError, TreeCore

P = 2
KEY = root_key(b"namespace")


class Records:
    """Records as a disk keeps them: key, parent, page and slot of a block each."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes, bytes, int]] = []

    def add(self, tokens: list[int], first: int = 0, root: bytes = KEY) -> None:
        """The pages of a prompt from ``first`` on; slots count up."""
        keys = page_keys(root, tokens, P)
        pages = np.array(tokens, np.int32).reshape(-1, P)
        for page in range(first, len(keys)):
            parent = keys[page - 1].tobytes() if page else root
            slot = len(self.rows)
            self.rows.append((keys[page].tobytes(), parent, pages[page].tobytes(), slot))

    def restore(self, tree: TreeCore, root: int, column: int = 0) -> list[bool]:
        """Hands the records over in the order they have now."""
        keys, parents, pages, slots = zip(*self.rows, strict=True)

        def table(parts: tuple[bytes, ...]) -> np.ndarray:
            return np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1)

        linked = tree.restore(
            root, column, table(keys), table(parents), table(pages), np.array(slots, np.int32)
        )
        tree.check(device=False)
        return linked.tolist()


def tree_of(tiers: int = 1) -> tuple[TreeCore, int]:
    """An empty tree with the namespace."""
    tree = TreeCore(4 * P, groups=1, tiers=tiers)
    return tree, tree.root(KEY)


def held(tree: TreeCore, root: int, tokens: list[int], column: int = 0) -> list[int]:
    """The slots of a prompt, as far as it stands."""
    found = tree.match(root, np.array(tokens, np.int32), 0)
    at = Cursor(root, found.node, found.structural_pages)
    return tree.slots(at, column, 0, at.pages).tolist()


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of a few pages over two tokens, so that many share prefixes."""
    rng = random.Random(seed)
    return [[rng.randrange(2) for _ in range(P * rng.randrange(1, 6))] for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_records_in_any_order_give_the_same_tree(seed: int) -> None:
    records, seen = Records(), set()
    for tokens in prompts(30, seed):
        first = next(
            (n for n in range(len(tokens) // P) if tuple(tokens[: P * n + P]) not in seen), None
        )
        if first is not None:
            records.add(tokens, first)
        seen |= {tuple(tokens[: P * n]) for n in range(1, len(tokens) // P + 1)}
    expected = {row[3]: row[2] for row in records.rows}
    random.Random(seed).shuffle(records.rows)
    tree, root = tree_of()
    assert records.restore(tree, root) == [True] * len(records.rows)
    for tokens in prompts(30, seed):
        slots = held(tree, root, tokens)
        pages = np.array(tokens, np.int32).reshape(-1, P)
        assert [expected[slot] for slot in slots] == [page.tobytes() for page in pages]
    assert tree.column_stats(0).resident == len(expected)


def test_order_of_use_is_the_order_of_the_records() -> None:
    records = Records()
    for tokens in ([1, 1, 2, 2], [3, 3], [4, 4, 5, 5]):
        records.add(tokens)
    records.add([1, 1, 6, 6], first=1)
    tree, root = tree_of()
    assert all(records.restore(tree, root))
    victims = np.empty(9, np.int32)
    assert victims[: tree.evict(0, victims)].tolist() == [1, 2, 4, 3, 5, 0]


def test_record_that_does_not_chain_to_the_root_is_not_linked() -> None:
    records = Records()
    records.add([1, 1, 2, 2, 3, 3])
    records.add([7, 7, 8, 8, 9, 9], first=1)  # its first page is lost
    records.add([5, 5], root=root_key(b"another namespace"))
    key, parent, page, slot = records.rows[2]
    records.rows[2] = (key, parent, page[::-1], slot)  # the page is not the one of its key
    tree, root = tree_of()
    assert records.restore(tree, root) == [True, True, False, False, False, False]
    assert held(tree, root, [1, 1, 2, 2, 3, 3]) == [0, 1]
    assert tree.column_stats(0).resident == 2


def test_of_two_records_of_one_block_the_newer_is_linked() -> None:
    records = Records()
    records.add([1, 1, 2, 2])
    records.add([1, 1, 2, 2], first=1)
    tree, root = tree_of()
    assert records.restore(tree, root) == [True, False, True]
    assert held(tree, root, [1, 1, 2, 2]) == [0, 2]


def test_record_whose_place_is_taken_is_told_so_that_its_slot_is_given_back() -> None:
    """It was reported as linked, and its slot belonged to nobody from then on (I7)."""
    tree, root = tree_of()
    start, column = Cursor(root, root, 0), np.zeros(1, np.uint32)
    tree.insert(start, np.array([1, 1, 2, 2], np.int32), column, np.array([90, 91], np.int32))
    records = Records()
    records.add([1, 1, 2, 2, 3, 3])
    assert records.restore(tree, root) == [False, False, True]
    assert held(tree, root, [1, 1, 2, 2, 3, 3]) == [90, 91, 2]


def test_second_group_joins_the_edges_of_the_first() -> None:
    tree = TreeCore(4 * P, groups=2, tiers=1)
    root = tree.root(KEY)
    records = Records()
    records.add([1, 1, 2, 2, 3, 3])
    assert all(records.restore(tree, root, 0))
    shorter = Records()
    shorter.add([1, 1, 2, 2])
    shorter.add([1, 1, 4, 4], first=1)
    assert all(shorter.restore(tree, root, 1))
    assert held(tree, root, [1, 1, 2, 2, 3, 3], 1) == [0, 1, -1]
    assert tree.match(root, np.array([1, 1, 2, 2, 3, 3], np.int32), 0).hit_pages == 2
    tree.check()


def test_restore_of_nothing_or_into_nothing() -> None:
    tree, root = tree_of()
    none = np.empty((0, 16), np.uint8)
    pages = np.empty((0, 4 * P), np.uint8)
    assert tree.restore(root, 0, none, none, pages, np.empty(0, np.int32)).tolist() == []
    with pytest.raises(StaleError):
        tree.restore(root + 1, 0, none, none, pages, np.empty(0, np.int32))
    with pytest.raises(ValueError):
        tree.restore(root, 5, none, none, pages, np.empty(0, np.int32))


def test_restore_without_memory_leaves_a_sound_tree() -> None:
    records = Records()
    for tokens in prompts(12, 3):
        records.add(tokens)
    failures = 0
    for nth in range(1, 200):
        tree, root = tree_of()
        lib.rdx_alloc_fail_at(nth)
        try:
            records.restore(tree, root)
        except MemoryError:
            failures += 1
        else:
            break
        finally:
            lib.rdx_alloc_fail_at(0)
        tree.check()
    assert failures > 11


def test_deep_chain_of_records_is_linked_without_recursion() -> None:
    """C111: twenty thousand blocks below each other, in the worst order."""
    records = Records()
    records.add(list(range(40_000)))
    records.rows.reverse()
    tree, root = tree_of()
    assert all(records.restore(tree, root))
    assert tree.stats().nodes == 2
    assert tree.match(root, np.arange(40_000, dtype=np.int32), 0).hit_pages == 20_000
