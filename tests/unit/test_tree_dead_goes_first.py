"""What no length of a hit can need any more goes before all that some length needs, however lately
it was used (I20): full blocks that no snapshot makes usable, snapshots and windows whose full
blocks are gone from every tier. Judged by one node; in doubt it is alive.
"""

from __future__ import annotations

from tests.treerig import Rig, full, state, window

A, B = list(range(8)), list(range(20, 28))


def pages_that_go(rig: Rig, column: int, prompt: list[int], count: int) -> list[int]:
    """The pages of one prompt among the next victims."""
    slots = {rig.slot(prompt, column, page): page for page in rig.held(prompt, column)}
    return [slots[slot] for slot in rig.evict(column, count) if slot in slots]


def test_full_blocks_behind_the_last_snapshot_go_first() -> None:
    rig = Rig(full(), state())
    rig.put(A, {0: range(8), 1: [7]})
    rig.put(B, {0: range(8), 1: [4]})
    assert rig.tree.next_victim(0) == 0
    assert pages_that_go(rig, 0, B, 3) == [7, 6, 5], "the younger one, but nothing can use them"
    assert rig.tree.next_victim(0) != 0
    assert pages_that_go(rig, 0, A, 3) == [7, 6, 5]


def test_full_blocks_without_a_window_go_first() -> None:
    rig = Rig(full(), window(2))
    rig.put(A, {0: range(8), 1: [6, 7]})
    rig.put(B, {0: range(8)})
    assert pages_that_go(rig, 0, B, 8) == list(range(7, -1, -1))


def test_a_leaf_comes_alive_with_its_snapshot() -> None:
    rig = Rig(full(), state(), tiers=2)
    rig.put(A, {0: range(8)})
    rig.put(B, {0: range(8), 2: [7]})
    assert rig.tree.next_victim(0) == 0
    assert rig.attach(A, 3, 7) == [7], "a tier below has it, which is enough"
    assert rig.tree.next_victim(0) != 0
    assert pages_that_go(rig, 0, A, 2) == [7, 6]
    rig.evict(3)
    assert rig.tree.next_victim(0) == 0


def test_an_inner_node_is_not_dead_while_something_stands_on_it() -> None:
    rig = Rig(full(), state())
    rig.put(A, {0: range(8), 1: [7]})
    rig.put([*A[:4], 50], {0: range(5), 1: [4]})
    assert rig.tree.next_victim(0) != 0
    assert len(rig.evict(0, 5)) == 5
    assert rig.tree.next_victim(0) == 0, "the trunk alone: no snapshot stands on it"


def test_a_snapshot_without_its_full_blocks_goes_first() -> None:
    rig = Rig(full(), state(), tiers=2)
    rig.put(A, {0: range(8), 2: [7]})
    rig.put(B, {0: range(8), 1: range(8), 2: [7]})
    rig.tree.drop(rig.find(B), 0, 7)
    assert rig.tree.next_victim(2) != 0, "the other tier has the block"
    rig.tree.drop(rig.find(B), 1, 7)
    assert rig.tree.next_victim(2) == 0
    assert pages_that_go(rig, 2, B, 1) == [7]


def test_a_window_without_full_blocks_under_any_of_its_lengths_goes_first() -> None:
    rig = Rig(full(), window(2))
    rig.put(A, {0: range(8), 1: range(8)})
    rig.put(B, {0: range(8), 1: range(4, 8)})
    for page in (7, 6):
        rig.tree.drop(rig.find(B), 0, page)
    assert rig.tree.next_victim(1) != 0, "a hit of 6 pages can use pages 4 and 5"
    rig.tree.drop(rig.find(B), 0, 5)
    assert rig.tree.next_victim(1) == 0
    assert pages_that_go(rig, 1, B, 4) == [4, 5, 6, 7]


def test_what_is_dead_goes_whatever_its_age() -> None:
    rig = Rig(full(), state())
    rig.put(A, {0: range(8), 1: [3]})
    assert len(rig.evict(0, upto=0)) == 4


def test_full_blocks_alone_are_never_dead() -> None:
    rig = Rig(full(), window(0), state(lookup=False))
    rig.put(A, {0: range(8)})
    assert rig.tree.next_victim(0) == 1
