"""Records of windows, chunks, snapshots and blocks of several pages link to the pages that stand in
the tree, by their own key, in whatever order they come; of equal places the newer record counts,
and what finds no page stays with its tier (I24, I28).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.groups import Rule
from radix.tree import NO_SLOT, TreeCore
from tests.treerig import Rig, full, state, window

PROMPT = list(range(10))
OTHER = [*PROMPT[:4], 50, 51]


def restore(rig: Rig, column: int, *records: tuple[list[int], int, int]) -> list[bool]:
    """Records (prompt, page, slot), oldest first, with the keys that the tree has for the pages."""
    keys, parents, pages, slots = [], [], [], []
    for prompt, page, slot in records:
        at = rig.find(prompt)
        chain = rig.tree.keys(at, 0, page + 1)
        keys.append(chain[page])
        parents.append(chain[page - 1] if page else np.frombuffer(b"n" * 16, np.uint8))
        pages.append(rig.tree.pages(at, page, 1)[0])
        slots.append(slot)
    linked = rig.tree.restore(
        rig.root,
        column,
        np.array(keys),
        np.array(parents),
        np.array(pages),
        np.array(slots, np.int32),
    )
    rig.tree.check(device=False)
    return linked.tolist()


def built(*rules: Rule) -> Rig:
    """A tree whose full group holds two prompts."""
    rig = Rig(full(), *rules)
    rig.put(PROMPT, {0: range(10)})
    rig.put(OTHER, {0: range(6)})
    return rig


def test_records_of_a_window_find_their_pages_in_any_order() -> None:
    rig = built(window(3))
    records = [(PROMPT, page, 100 + page) for page in (8, 2, 9, 7, 3)] + [(OTHER, 5, 205)]
    assert restore(rig, 1, *records) == [True] * 6
    assert rig.held(PROMPT, 1) == [2, 3, 7, 8, 9]
    assert [rig.slot(PROMPT, 1, page) for page in (2, 9)] == [102, 109]
    assert rig.held(OTHER, 1) == [2, 3, 5]
    assert rig.match(PROMPT).hit_pages == 10


def test_records_of_snapshots_split_the_edges_where_they_stand() -> None:
    rig = built(state(2))
    assert restore(rig, 1, (PROMPT, 7, 1), (PROMPT, 4, 2), (PROMPT, 5, 3), (OTHER, 3, 4)) == [
        True,
        False,
        True,
        True,
    ], "a position off the grid is left out"
    assert rig.held(PROMPT, 1) == [3, 5, 7]
    assert rig.match(PROMPT).hit_pages == 8
    assert rig.match(OTHER).hit_pages == 4


def test_blocks_of_several_pages_are_linked_by_their_last_page() -> None:
    rig = built(full(2))
    assert restore(rig, 1, *[(PROMPT, page, page) for page in (9, 1, 3, 5, 7)]) == [True] * 5
    assert restore(rig, 1, (OTHER, 5, 77)) == [True]
    assert rig.match(PROMPT).hit_pages == 10
    assert rig.match(OTHER).hit_pages == 6


def test_a_first_record_without_a_slot_changes_nothing_for_the_others() -> None:
    rig = built(full(2))
    assert restore(rig, 1, (PROMPT, 0, NO_SLOT), (PROMPT, 3, 3), (PROMPT, 1, 1)) == [
        False,
        True,
        True,
    ]
    assert rig.held(PROMPT, 1) == [1, 3]


def test_records_of_each_page_are_of_full_groups_only() -> None:
    rig = built(state(), full(2))
    at = rig.find(PROMPT)
    keys, pages = rig.tree.keys(at, 0, 1), rig.tree.pages(at, 0, 1)
    with pytest.raises(ValueError, match="range"):
        rig.tree.restore(rig.root, 1, keys, keys, pages, np.zeros(1, np.int32), each_page=True)
    assert rig.held(PROMPT, 1) == []


def test_the_order_of_records_is_the_order_of_use() -> None:
    rig = built(state(), window(1))
    restore(rig, 1, (PROMPT, 9, 1), (OTHER, 5, 2), (PROMPT, 2, 3))
    assert rig.evict(1) == [1, 2, 3]
    restore(rig, 2, (OTHER, 5, 4), (PROMPT, 9, 5), (PROMPT, 1, 6))
    assert rig.evict(2) == [4, 5, 6]


def test_of_two_records_with_one_key_the_newer_counts_and_a_taken_place_stays() -> None:
    rig = built(state())
    assert restore(rig, 1, (PROMPT, 9, 1), (PROMPT, 9, 2)) == [False, True]
    assert restore(rig, 1, (PROMPT, 9, 3)) == [False]
    assert rig.slot(PROMPT, 1, 9) == 2


def test_a_record_whose_page_is_not_there_is_left_to_its_tier() -> None:
    rig = built(state())
    far = [*PROMPT, 60, 61]
    rig.put(far, {0: range(12)})
    there = built(state())
    at = rig.find(far)
    chain, pages = rig.tree.keys(at, 0, 12), rig.tree.pages(at, 11, 1)
    linked = there.tree.restore(
        there.root, 1, chain[11:12], chain[10:11], pages, np.array([5], np.int32)
    )
    assert linked.tolist() == [False]
    wrong = chain[9:10].copy()
    wrong[0, 3] ^= 1
    linked = there.tree.restore(
        there.root, 1, wrong, chain[8:9], rig.tree.pages(at, 9, 1), np.array([5], np.int32)
    )
    assert linked.tolist() == [False]
    assert there.tree.column_stats(1).resident == 0


def test_a_tree_without_keys_refuses_such_records() -> None:
    tree = TreeCore(4, groups=[full(), state()], tiers=1, keep_keys=False, page_tokens=1)
    row = np.zeros((1, 16), np.uint8)
    with pytest.raises(ValueError, match="range"):
        tree.restore(tree.root(), 1, row, row, row[:, :4], np.zeros(1, np.int32))
