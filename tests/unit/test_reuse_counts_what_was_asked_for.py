"""The sketch of what pages were asked for never counts too little before a halving, rarely too
much, and forgets by halves; whatever keys look like.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.policy.reuse import MOST, Reuse
from radix.tier import Keys


def random_keys(count: int, seed: int) -> Keys:
    return np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8)


@given(
    seen=st.lists(st.lists(st.integers(0, 30), max_size=12, unique=True), max_size=20),
    width=st.sampled_from([16, 64, 1024]),
)
def test_counts_are_never_too_small(seen: list[list[int]], width: int) -> None:
    keys, reuse, true = random_keys(31, 5), Reuse(width), Counter[int]()
    for batch in seen:
        if sum(true.values()) + len(batch) >= 8 * width:
            break
        reuse.saw(keys[batch])
        true.update(batch)
    found = reuse.counts(keys)
    assert all(found[number] >= true[number] for number in range(31))


@pytest.mark.parametrize(("width", "place"), [(w, p) for w in (3, 16, 33) for p in range(w)])
def test_keys_that_differ_in_one_byte_are_told_apart(width: int, place: int) -> None:
    keys = np.zeros((256, width), np.uint8)
    keys[:, place] = np.arange(256)
    reuse = Reuse(1 << 12)
    reuse.saw(keys[:128])
    reuse.saw(keys[:64])
    found = reuse.counts(keys)
    assert (found[:64] >= 2).all()
    assert (found[64:128] >= 1).all()
    wrong = (found[:64] != 2).sum() + (found[64:128] != 1).sum() + (found[128:] != 0).sum()
    assert wrong <= 3


def test_as_many_pages_as_it_is_wide_are_mostly_told_apart() -> None:
    width = 1 << 12
    keys, reuse = random_keys(2 * width, 7), Reuse(width)
    reuse.saw(keys[:width])
    assert (reuse.counts(keys[:width]) == 1).mean() > 0.8
    assert (reuse.counts(keys[width:]) == 0).mean() > 0.8


def test_what_was_popular_fades_by_halves_and_counts_do_not_wrap() -> None:
    width = 64
    one, others = random_keys(1, 1), random_keys(8 * width, 2)
    reuse = Reuse(width)
    for _ in range(300):
        reuse.saw(one)
    assert reuse.counts(one)[0] == MOST
    reuse.saw(others[: 8 * width - 300])  # the halving comes with the last of these
    assert reuse.counts(one)[0] == MOST // 2
    assert reuse.counts(others).max() <= MOST // 2


def test_a_key_that_stands_twice_was_asked_for_once() -> None:
    reuse, keys = Reuse(64), random_keys(2, 9)
    reuse.saw(keys[[0, 0, 1, 0]])
    assert reuse.counts(keys).tolist() == [1, 1]
    assert reuse.worth(keys, 1).tolist() == [False, False]
    reuse.saw(keys[[1]])
    assert reuse.worth(keys, 1).tolist() == [False, True]


def test_nothing_asked_for_changes_nothing() -> None:
    reuse, none = Reuse(16), np.empty((0, 16), np.uint8)
    reuse.saw(none)
    assert len(reuse.counts(none)) == 0
    assert not reuse.counts(random_keys(40, 3)).any()


@pytest.mark.parametrize("width", [0, 8, 48, -16])
def test_a_width_that_is_no_power_of_two_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"not {width}"):
        Reuse(width)
