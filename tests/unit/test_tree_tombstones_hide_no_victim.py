"""In a column that is not full every node with a block that no lease pins can lose it, wherever it
stands: pages without one, above, below or beside it, hide nothing (I16, I18, I27). What was used
longest ago goes first, of one use the lower page.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix.tree import NO_SLOT
from tests.treerig import Rig, chunked, full, state, window

PROMPT = list(range(12))


def goes(rig: Rig, column: int, count: int = 99) -> list[int]:
    """The pages of the prompt that go, in order."""
    slots = {rig.slot(PROMPT, column, page): page for page in rig.held(PROMPT, column)}
    return [slots[slot] for slot in rig.evict(column, count)]


def test_windows_at_several_boundaries_of_one_edge_all_can_go() -> None:
    rig = Rig(full(), window(2))
    rig.put(PROMPT, {0: range(12), 1: [1, 2, 6, 7, 10, 11]})
    assert len(rig.tree.nodes(rig.root)) == 4
    assert rig.held(PROMPT, 1) == [1, 2, 6, 7, 10, 11]
    assert goes(rig, 1) == [1, 2, 6, 7, 10, 11]


def test_a_pin_further_down_holds_nothing_above_it() -> None:
    rig = Rig(full(), window(2), state())
    rig.put(PROMPT, {0: range(12), 1: range(12), 2: [3, 11]})
    rig.lease(PROMPT)
    assert goes(rig, 1) == list(range(10))
    assert goes(rig, 2) == [3]


def test_what_was_used_last_goes_last_and_of_one_use_the_lower_page() -> None:
    rig = Rig(full(), window(3))
    rig.put(PROMPT, {0: range(12), 1: range(12)})
    for cut in (4, 8, 10):  # edges, without an effect on the order
        rig.tree.release(rig.lease(PROMPT[:cut], mask=0), stamp=False)
    rig.tree.touch(rig.find(PROMPT[:8]))
    assert goes(rig, 1, 8) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert goes(rig, 1) == [4, 5, 6, 7]


def test_an_upper_bound_of_age_keeps_what_is_younger() -> None:
    rig = Rig(full(), window(2))
    rig.put(PROMPT[:4], {0: range(4), 1: range(4)})
    between = rig.tree.stats().clock
    rig.put([9, 8, 7], {0: range(3), 1: range(3)})
    assert len(rig.evict(1, upto=0)) == 0
    assert len(rig.evict(1, upto=between)) == 4
    assert rig.tree.next_victim(1) == between + 1
    assert len(rig.evict(0, upto=between)) == 4, "a full group as well"
    assert len(rig.evict(1)) == 3


def test_a_window_slides_without_an_eviction() -> None:
    rig = Rig(full(), window(3), tiers=2)
    end = rig.put(PROMPT, {0: range(12), 2: range(12), 3: range(12)})
    gone = rig.tree.drop_span(end, 2, 0, 9)
    rig.tree.check(device=False)
    assert NO_SLOT not in gone
    assert rig.held(PROMPT, 2) == [9, 10, 11]
    assert rig.held(PROMPT, 3) == list(range(12))
    assert set(rig.tree.drop_span(end, 2, 0, 9).tolist()) == {NO_SLOT}
    assert rig.match(PROMPT).device_pages == 12


def test_giving_up_the_end_of_a_path_leaves_what_is_pinned() -> None:
    rig = Rig(full(), window(3))
    end = rig.put(PROMPT, {0: range(12), 1: range(12)})
    rig.lease(PROMPT[:8])
    slots = np.empty(12, np.int32)
    assert rig.tree.forget(end, 1, 4, slots, None) == 5
    rig.tree.check(device=False)
    assert rig.held(PROMPT, 1) == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("seed", range(30))
def test_everything_that_no_lease_pins_can_go(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(full(), window(3, rng.randrange(1, 3)), chunked(4), state(2), tiers=2)
    for _ in range(8):
        shared = rng.randrange(12)
        tail = [rng.randrange(50, 90) for _ in range(rng.randrange(1, 6))]
        prompt = [*PROMPT[:shared], *tail]
        rows = {c: [p for p in range(len(prompt)) if rng.random() < 0.5] for c in rig.columns}
        rig.put(prompt, rows)
        if rng.random() < 0.5:
            rig.lease(prompt)
    for column in list(rig.columns)[2:]:
        stats = rig.tree.column_stats(column)
        gone = rig.evict(column, 500)
        assert len(gone) == stats.resident - stats.protected, f"seed {seed}, column {column}"
        assert len(set(gone)) == len(gone)
