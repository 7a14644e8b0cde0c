"""Small worlds for property tests: three token ids, short pages and prompts that share prefixes, so
that splits, holes and pressure happen all the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from tests.model import Page

TOKENS = (0, 1, 2)


@dataclass(frozen=True)
class World:
    """The shape of one small cache; ``capacity`` in pages, of the first tier."""

    page_tokens: int
    groups: int
    tiers: int
    capacity: int
    keep_keys: bool


def worlds() -> st.SearchStrategy[World]:
    """Page sizes 1, 2 and 4; one or two groups; one to three tiers; 8 to 32 pages."""
    return st.builds(
        World,
        page_tokens=st.sampled_from((1, 2, 4)),
        groups=st.integers(1, 2),
        tiers=st.integers(1, 3),
        capacity=st.integers(8, 32),
        keep_keys=st.booleans(),
    )


def runs(most: int = 6) -> st.SearchStrategy[list[int]]:
    """A run of pages by number (see ``page``): few kinds, so that prompts share prefixes."""
    return st.lists(st.integers(0, 4), min_size=1, max_size=most)


def page(number: int, page_tokens: int) -> Page:
    """The page of a number: the last token differs first, so that siblings look alike."""
    tokens = []
    for _ in range(page_tokens):
        tokens.append(TOKENS[number % 3])
        number //= 3
    return tuple(reversed(tokens))


def pages(numbers: list[int], page_tokens: int) -> tuple[Page, ...]:
    """The pages of a run of numbers."""
    return tuple(page(number, page_tokens) for number in numbers)


def tokens(run: tuple[Page, ...]) -> npt.NDArray[np.int32]:
    """The tokens of a run of pages."""
    return np.array([token for part in run for token in part], np.int32)
