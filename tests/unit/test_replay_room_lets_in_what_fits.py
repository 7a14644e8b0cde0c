"""A request brings what its leased hit leaves of the budget: its last checkpoints before its first,
all of its pages before its checkpoints but one, and never a byte more.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radix.groups import Retention
from radix.layout import Part
from radix.replay.chains import encode_chains
from radix.replay.checkpoints import parse_checkpoints
from radix.replay.model_trace import ModelTrace, fit
from radix.replay.models import Layers, Model
from radix.replay.room import PathEnds, Room
from radix.replay.traces import Trace

GROUPS = {"full": 0, "window": 6, "chunked": 8, "state": 0}


def work(*rules: str) -> ModelTrace:
    """A model of one layer and one byte a token (of a state: 20 bytes), over pages of 4 tokens."""
    sets = tuple(
        Layers(
            rule,
            Retention(rule, GROUPS[rule]),
            1,
            (Part("p", "int8", (("dim", 20 if rule == "state" else 1),)),),
            None,
        )
        for rule in rules
    )
    empty = np.empty(0, np.int32)
    none = np.zeros(1, np.int64)
    few = none[:0]
    never = np.empty(0)
    trace = Trace("made", "block", 1, 0, never, empty, none, few, empty, none, few, few, ())
    return fit(trace, encode_chains(trace), Model("m", sets), 4)


def fitted(made: ModelTrace, policy: str, budget: int, ends: PathEnds) -> tuple[int, list[int]]:
    places = parse_checkpoints(policy)[0].placed(made.page_tokens, 1)
    end, found = Room(made, budget).fitted(places, ends)
    return end, found.tolist()


def test_what_fits_is_let_in_whole() -> None:
    assert fitted(work("full", "state"), "dense", 96, PathEnds(0, 0, 0, 4)) == (4, [1, 2, 3, 4])


def test_the_oldest_checkpoints_of_a_request_give_way_first() -> None:
    made, ends = work("full", "state"), PathEnds(0, 0, 0, 4)
    assert fitted(made, "dense", 95, ends) == (4, [2, 3, 4])
    assert fitted(made, "dense", 36, ends) == (4, [4])


def test_a_request_is_cut_to_where_one_checkpoint_fits() -> None:
    made, ends = work("full", "state"), PathEnds(0, 0, 0, 4)
    assert fitted(made, "dense", 35, ends) == (3, [3])
    assert fitted(made, "turn", 29, ends) == (2, [2])
    assert fitted(made, "turn", 23, ends) == (0, [])


def test_a_model_without_checkpoints_is_cut_at_its_pages() -> None:
    assert fitted(work("full"), "dense", 11, PathEnds(0, 0, 0, 9)) == (2, [2])
    assert fitted(work("full"), "dense", 11, PathEnds(1, 1, 1, 9))[0] == 2


def test_what_is_leased_leaves_less_room() -> None:
    made = work("full", "state")
    # The hit of 3 pages holds 12 bytes and its snapshot 20; 2 more pages are known and kept.
    assert Room(made, 0).leased_bytes(PathEnds(3, 5, 5, 6)) == 5 * 4 + 20
    assert fitted(made, "branch+turn", 84, PathEnds(3, 5, 5, 6)) == (6, [5, 6])
    assert fitted(made, "branch+turn", 83, PathEnds(3, 5, 5, 6)) == (6, [6])


def test_windows_that_overlap_count_once() -> None:
    made, ends = work("full", "window"), PathEnds(0, 0, 0, 9)
    needed = Room(made, 0).needed_bytes(ends, 9, np.array([2, 3, 7], np.int64))
    # Two pages each, [0, 2) [1, 3) [5, 7) [7, 9), are seven in all.
    assert needed == 9 * 4 + 7 * 4


RULES = st.lists(st.sampled_from(list(GROUPS)), min_size=1, unique=True)
POLICIES = st.sampled_from(["branch+turn", "turn", "dense", "every=8", "branch"])


@given(RULES, POLICIES, st.lists(st.integers(0, 12), min_size=4, max_size=4), st.integers(0, 400))
def test_what_is_let_in_fits_and_is_as_much_as_can_be(
    rules: list[str], policy: str, numbers: list[int], budget: int
) -> None:
    made = work(*rules)
    ends = PathEnds(*sorted(numbers))
    room = Room(made, budget)
    end, places = fitted(made, policy, budget, ends)
    brought = room.needed_bytes(ends, end, np.array(places, np.int64))
    left = budget - room.leased_bytes(ends)
    assert ends.hit_pages <= end <= ends.end_pages
    assert brought <= max(left, 0) or (end, places) == (ends.hit_pages, [])
    assert all(ends.hit_pages < place <= end for place in places)
    whole = parse_checkpoints(policy)[0].placed(4, 1)
    wanted = whole.between(ends.hit_pages, ends.known_pages, ends.end_pages)
    if room.needed_bytes(ends, ends.end_pages, wanted) <= left:
        assert (end, places) == (ends.end_pages, wanted.tolist())


def brute_window(first: int, ends: list[int], reach_pages: int) -> int:
    return len({p for end in ends for p in range(max(first, end - reach_pages), end)})


@given(st.integers(0, 5), st.lists(st.integers(6, 20), max_size=5, unique=True))
def test_windows_equal_the_union_of_their_pages(hit: int, places: list[int]) -> None:
    made = work("window")
    needed = Room(made, 0).needed_bytes(
        PathEnds(hit, hit, hit, 21), 21, np.array(sorted(places), np.int64)
    )
    assert needed == 4 * brute_window(hit, [*places, 21], 2)
