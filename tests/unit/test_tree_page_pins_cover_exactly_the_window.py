"""A lease pins, of a group that is not full, the pages that a hit at its end needs and no other,
also after splits (I13-I15); of full groups the path, as ever.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.errors import LeaseError
from radix.tree import NO_SLOT
from tests.treerig import Rig, chunked, full, state, window

PROMPT = list(range(10))


def free(rig: Rig, column: int) -> list[int]:
    """The pages that go when all that can go goes."""
    before = set(rig.held(PROMPT, column))
    rig.evict(column)
    return sorted(before - set(rig.held(PROMPT, column)))


def test_a_lease_holds_the_window_before_its_end() -> None:
    rig = Rig(full(), window(3), state())
    rig.put(PROMPT, {0: range(10), 1: range(10), 2: [4, 9]})
    lease = rig.lease(PROMPT)
    assert [rig.pinned(c) for c in rig.columns] == [10, 3, 1]
    assert free(rig, 1) == [0, 1, 2, 3, 4, 5, 6]
    assert free(rig, 2) == [4]
    assert rig.evict(0) == []
    rig.tree.release(lease)
    assert [rig.pinned(c) for c in rig.columns] == [0, 0, 0]
    assert free(rig, 1) == [7, 8, 9]


def test_a_split_under_a_lease_changes_no_pin() -> None:
    """I15: the boundary of a window was a node's once, and moved with the node."""
    rig = Rig(full(), window(4))
    rig.put(PROMPT, {0: range(10), 1: range(10)})
    lease = rig.lease(PROMPT)
    for cut in (8, 3, 7, 6, 9):
        rig.tree.release(rig.lease(PROMPT[:cut], mask=0), stamp=False)
        assert rig.pinned(1) == 4
    assert free(rig, 1) == [0, 1, 2, 3, 4, 5]
    rig.tree.release(lease)
    assert free(rig, 1) == [6, 7, 8, 9]


def test_a_lease_that_names_its_first_page_holds_all_from_there() -> None:
    rig = Rig(full(), window(3), state())
    rig.put(PROMPT, {0: range(10), 1: range(10), 2: [2, 5, 9]})
    lease = rig.lease(PROMPT, first=4)
    assert [rig.pinned(c) for c in rig.columns] == [10, 6, 2]
    assert rig.tree.move(lease, rig.find(PROMPT)) == 10
    assert [rig.pinned(c) for c in rig.columns] == [10, 3, 1], "by rule, from now on"
    rig.tree.release(lease)
    assert rig.lease(PROMPT, first=99)
    assert rig.pinned(1) == 0


def test_a_mask_leaves_groups_out_and_narrowing_gives_them_up() -> None:
    rig = Rig(full(), window(3), state())
    rig.put(PROMPT, {0: range(10), 1: range(10), 2: [9]})
    some, both = rig.lease(PROMPT, mask=0b100), rig.lease(PROMPT)
    assert [rig.pinned(c) for c in rig.columns] == [10, 3, 1]
    rig.tree.narrow(both, 0b100)
    rig.tree.check(device=False)
    assert [rig.pinned(c) for c in rig.columns] == [10, 0, 1]
    rig.tree.narrow(both, 0b111)
    assert rig.pinned(1) == 0, "what was given up does not come back"
    rig.tree.release(both)
    assert [rig.pinned(c) for c in rig.columns] == [10, 0, 1]
    rig.tree.release(some)
    with pytest.raises(LeaseError):
        rig.tree.narrow(some, 0)


def test_a_window_moves_on_with_the_insert_that_holds_the_lease() -> None:
    rig = Rig(full(), window(3))
    lease = rig.lease([])
    for page in PROMPT:  # as a decode does: the leaf grows in place
        at = rig.tree.lease_end(rig.root, lease)
        rig.put([page], {0: [page], 1: [page]}, at=at, lease=lease)
        assert rig.pinned(1) == min(3, page + 1)
    assert len(rig.tree.nodes(rig.root)) == 2
    assert free(rig, 1) == [0, 1, 2, 3, 4, 5, 6]


def test_chunks_and_blocks_of_several_pages_are_held_whole() -> None:
    rig = Rig(full(), chunked(4), window(3, 2))
    rig.put(PROMPT, {0: range(10), 1: range(10), 2: range(1, 10, 2)})
    rig.lease(PROMPT)
    assert free(rig, 1) == list(range(8))
    assert free(rig, 2) == [1, 3, 5], "of 3 pages before 10: the blocks of [6, 10)"


def test_a_block_that_arrives_under_a_pin_is_pinned() -> None:
    rig = Rig(full(), window(3), tiers=2)
    rig.put(PROMPT, {0: range(10), 2: range(10)})
    rig.lease(PROMPT)
    assert rig.attach(PROMPT, 3, *range(4, 10)) == [4, 5, 6, 7, 8, 9]
    assert rig.pinned(3) == 3
    assert rig.tree.drop(rig.find(PROMPT), 3, 9) != NO_SLOT, "a corrupt block goes, pinned or not"
    rig.tree.check(device=False)
    assert rig.pinned(3) == 2
    assert free(rig, 3) == [4, 5, 6]


def test_a_window_that_slides_leaves_what_is_pinned() -> None:
    rig = Rig(full(), window(3))
    end = rig.put(PROMPT, {0: range(10), 1: range(10)})
    rig.lease(PROMPT[:6])
    gone = rig.tree.drop_span(end, 1, 1, 8)
    rig.tree.check(device=False)
    assert [page + 1 for page in range(8) if gone[page] != NO_SLOT] == [1, 2, 6, 7, 8]
    assert rig.held(PROMPT, 1) == [0, 3, 4, 5, 9]
    with pytest.raises(ValueError, match="range"):
        rig.tree.drop_span(end, 0, 0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_leases_in_any_order_pin_the_union_of_their_windows(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(full(), window(rng.randrange(1, 5)), state())
    rig.put(PROMPT, {0: range(10), 1: range(10), 2: range(10)})
    rule = rig.tree.rules[1]
    leases: dict[int, int] = {}
    for _ in range(40):
        if leases and rng.random() < 0.4:
            lease = rng.choice(list(leases))
            rig.tree.release(lease, stamp=rng.random() < 0.5)
            del leases[lease]
        elif leases and rng.random() < 0.3:
            lease, length = rng.choice(list(leases)), rng.randrange(11)
            rig.tree.move(lease, rig.find(PROMPT[:length]))
            leases[lease] = length
        else:
            length = rng.randrange(11)
            leases[rig.lease(PROMPT[:length])] = length
        rig.tree.check(device=False)
        pages = {p for end in leases.values() for p in range(rule.first_page(end), end)}
        ends = {end for end in leases.values() if end}
        assert (rig.pinned(1), rig.pinned(2)) == (len(pages), len(ends)), f"seed {seed}"
    slots = np.empty(20, np.int32)
    assert rig.tree.evict(1, slots) == 10 - len(pages), f"seed {seed}"
