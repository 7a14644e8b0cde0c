"""Checkpoints stand behind the hit, at the places that the policy names, on the grid of the model,
each once; a policy that means nothing is refused by name.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.options import OptionError
from radix.replay.checkpoints import parse_checkpoints

PAGE = 16


def places(text: str, hit: int, known: int, end: int, align: int = 1) -> list[int]:
    policy = parse_checkpoints(text)[0].placed(PAGE, align)
    return policy.between(hit, known, end).tolist()


def test_branch_and_turn_are_two_places_at_most() -> None:
    assert places("branch+turn", 2, 5, 9) == [5, 9]
    assert places("branch+turn", 5, 5, 9) == [9]
    assert places("turn", 2, 5, 9) == [9]
    assert places("branch", 2, 5, 9) == [5]
    assert places("branch", 5, 5, 9) == []
    assert places("branch+turn", 2, 9, 9) == [9]


def test_dense_is_every_page_behind_the_hit() -> None:
    assert places("dense", 2, 5, 6) == [3, 4, 5, 6]
    assert places("dense", 6, 6, 6) == []


def test_every_counts_tokens_from_the_root() -> None:
    assert places("every=48", 2, 5, 10) == [3, 6, 9]
    assert places("every=48", 3, 5, 10) == [6, 9]


def test_terms_add_up() -> None:
    assert places("turn+every=48", 2, 5, 10) == [3, 6, 9, 10]
    assert places("branch+turn+every=80", 2, 5, 10) == [5, 10]
    assert places("dense+every=48+turn", 7, 8, 10) == [8, 9, 10]


def test_places_are_rounded_down_to_where_all_groups_meet() -> None:
    assert places("branch+turn", 0, 5, 9, align=4) == [4, 8]
    assert places("branch+turn", 4, 5, 7, align=4) == []
    assert places("dense", 0, 0, 9, align=4) == [4, 8]
    assert places("every=48", 0, 0, 30, align=4) == [12, 24]


@given(
    st.sampled_from(["branch", "turn", "branch+turn", "dense", "every=32", "turn+every=64"]),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 5),
)
def test_places_ascend_behind_the_hit_on_the_grid(
    text: str, hit: int, known: int, end: int, align: int
) -> None:
    hit, known, end = sorted((hit, known, end))
    found = places(text, hit, known, end, align)
    assert found == sorted(set(found))
    assert all(hit < place <= end and place % align == 0 for place in found)


def test_policies_keep_their_order_and_their_spelling() -> None:
    found = parse_checkpoints("turn+branch, dense,every=2048")
    assert [policy.text for policy in found] == ["turn+branch", "dense", "every=2048"]
    assert [policy.every_tokens for policy in found] == [0, 0, 2048]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "dense,",
        "Dense",
        "often",
        "branch+",
        "turn+turn",
        "every=2+every=4",
        "dense,dense",
        "branch+turn,turn+branch",
        "every",
        "every=",
        "every=0",
        "every=-1",
        "every=1.5",
        "every=N",
    ],
)
def test_a_policy_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--checkpoints: "):
        parse_checkpoints(text)


def test_a_distance_that_is_no_whole_page_is_refused() -> None:
    policy = parse_checkpoints("every=40")[0]
    with pytest.raises(OptionError, match="every=40 is no multiple of the page of 16 tokens"):
        policy.placed(PAGE, 1)
