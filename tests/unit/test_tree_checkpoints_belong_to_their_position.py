"""A snapshot of a state stands at one position, on the grid, at the end of a node; splits, growth,
eviction of what lies around it and a later attach leave it where it is (I6, I28).
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.treerig import Rig, full, state, window

PROMPT = list(range(12))


def edges(rig: Rig) -> list[tuple[int, int]]:
    """Where the edges begin and end."""
    return sorted((v.start, v.start + v.pages) for v in rig.tree.nodes(rig.root)[1:])


def test_a_snapshot_inside_an_edge_splits_it_there() -> None:
    rig = Rig(full(), state())
    rig.put(PROMPT, {0: range(12), 1: [4, 11]})
    assert edges(rig) == [(0, 5), (5, 12)]
    assert rig.attach(PROMPT, 1, 7, 8) == [7, 8]
    assert edges(rig) == [(0, 5), (5, 8), (8, 9), (9, 12)]
    assert rig.held(PROMPT, 1) == [4, 7, 8, 11]
    assert rig.attach(PROMPT, 1, 7) == [], "the position is taken"


def test_splits_around_a_snapshot_leave_it_at_its_position() -> None:
    rig = Rig(full(), state())
    rig.put(PROMPT, {0: range(12), 1: [7]})
    slot = rig.slot(PROMPT, 1, 7)
    for cut in (6, 10, 7, 9, 8):
        rig.tree.release(rig.lease(PROMPT[:cut]), stamp=False)
        rig.put([*PROMPT[:cut], 99], {0: range(cut + 1)})
        assert rig.held(PROMPT, 1) == [7]
        assert rig.slot(PROMPT, 1, 7) == slot


def test_a_node_with_a_snapshot_does_not_grow_in_place() -> None:
    rig = Rig(full(), state())
    lease = rig.lease([])
    rig.put([0, 1], {0: [0, 1], 1: [1]}, lease=lease)
    rig.put([2], {0: [2]}, at=rig.tree.lease_end(rig.root, lease), lease=lease)
    rig.put([3], {0: [3], 1: [3]}, at=rig.tree.lease_end(rig.root, lease), lease=lease)
    assert edges(rig) == [(0, 2), (2, 4)]
    assert rig.held([0, 1, 2, 3], 1) == [1, 3]


def test_a_snapshot_off_the_grid_is_not_taken() -> None:
    rig = Rig(full(), state(3))
    rig.put(PROMPT, {0: range(12), 1: [1, 2, 7, 8]})
    assert rig.held(PROMPT, 1) == [2, 8]
    assert rig.attach(PROMPT, 1, 4, 5, 11) == [5, 11]
    assert rig.tree.column_stats(1).resident == 4


def test_a_snapshot_goes_alone_and_its_path_stays() -> None:
    rig = Rig(full(), state())
    end = rig.put(PROMPT, {0: range(12), 1: [3, 11]})
    assert len(rig.evict(1, 1)) == 1
    assert rig.held(PROMPT, 1) == [11]
    assert rig.tree.drop(end, 1, 11) > 0
    rig.tree.check(device=False)
    assert rig.match(PROMPT).structural_pages == 12


def test_what_a_snapshot_stands_on_stays_when_its_full_blocks_go() -> None:
    rig = Rig(full(), state())
    rig.put(PROMPT, {0: range(12), 1: [7]})
    assert len(rig.evict(0)) == 12
    assert rig.match(PROMPT).structural_pages == 8
    assert rig.held(PROMPT, 1) == [7]
    assert len(rig.evict(1)) == 1
    assert rig.tree.stats().nodes == 1


def test_two_state_groups_share_the_ends_of_nodes() -> None:
    rig = Rig(full(), state(2), state(3), window(2))
    rig.put(PROMPT, {0: range(12), 1: range(12), 2: range(12), 3: range(12)})
    assert rig.held(PROMPT, 1) == [1, 3, 5, 7, 9, 11]
    assert rig.held(PROMPT, 2) == [2, 5, 8, 11]
    assert rig.match(PROMPT).hit_pages == 12
    assert rig.match(PROMPT[:11]).hit_pages == 6


@pytest.mark.parametrize("tier", [0, 1])
def test_a_snapshot_moves_through_the_tiers_by_itself(tier: int) -> None:
    rig = Rig(full(), state(), tiers=2)
    rig.put(PROMPT, {0: range(12), 2: [5]})
    assert rig.attach(PROMPT, 3, 5) == [5]
    assert len(rig.evict(2 + tier)) == 1
    found = rig.match(PROMPT)
    assert (found.device_pages, found.hit_pages) == (0 if tier == 0 else 6, 6)


def test_the_pages_with_entries_are_told_in_order() -> None:
    rig = Rig(full(), state())
    prompt = list(range(60))
    rig.put(prompt, {0: range(60), 1: range(0, 60, 3)})
    at = rig.find(prompt)
    assert rig.tree.entries(at, 1).tolist() == list(range(0, 60, 3))
    assert rig.tree.entries(at, 1, 30).tolist() == list(range(30, 60, 3))
    assert rig.tree.entries(at._replace(pages=31), 1, 30).tolist() == [30]
    assert rig.tree.entries(at, 1, 58).dtype == np.uint32
