"""Small worlds for property tests: three token ids, short pages and prompts that share prefixes, so
that splits, holes and pressure happen all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from radix.groups import Group, Retention, Rule, rule_of
from radix.layout import Layout
from tests.model import Page

TOKENS = (0, 1, 2)
BLOCK = Layout.opaque(64)


@dataclass(frozen=True)
class World:
    """The shape of one small cache; ``capacity`` in blocks a group, of the first tier."""

    page_tokens: int
    groups: tuple[Group, ...]
    tiers: int
    capacity: int
    keep_keys: bool

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What each group needs, in pages."""
        return tuple(rule_of(group, self.page_tokens) for group in self.groups)


def group_of(
    rule: str,
    page_tokens: int,
    *,
    tokens: int = 0,
    grid_tokens: int = 0,
    lookahead: int = 0,
    lookup: bool = True,
    extra: int = 0,
) -> Group:
    """A group of 64 bytes a block; ``grid_tokens`` 0: one page a block."""
    return Group(
        f"{rule} {tokens} {extra} {grid_tokens} {lookahead}",
        BLOCK,
        Retention(rule, tokens, extra),
        grid_tokens=grid_tokens or page_tokens,
        lookahead=lookahead,
        per_sequence=rule == "state",
        lookup=lookup,
    )


def plain(count: int) -> tuple[Group, ...]:
    """Groups of which every block is needed, one page a block."""
    return tuple(Group(f"full {number}", BLOCK) for number in range(count))


def kinds(page_tokens: int) -> list[Group]:
    """Every kind of group that a world of such pages may hold."""
    page = page_tokens
    reaches = sorted({1, page, page + 1, 3 * page})
    found = [
        group_of("full", page),
        group_of("full", page, lookahead=1),
        group_of("full", page, grid_tokens=2 * page),
        group_of("full", page, grid_tokens=3 * page),
        group_of("scratch", page, lookup=False),
    ]
    for reach in reaches:
        found += [
            group_of("window", page, tokens=reach),
            group_of("window", page, tokens=reach, extra=1, lookup=reach != 1),
            group_of("window", page, tokens=reach, lookahead=1),
            group_of("window", page, tokens=reach, grid_tokens=2 * page),
            group_of("window", page, tokens=reach, grid_tokens=3 * page),
        ]
    for chunk in (page, 3 * page):
        found += [
            group_of("chunked", page, tokens=chunk),
            group_of("chunked", page, tokens=chunk, grid_tokens=2 * page),
        ]
    for grid in (1, 2, 3):
        found += [
            group_of("state", page, grid_tokens=grid),
            group_of("state", page, grid_tokens=grid, lookup=False),
        ]
    return found


def mixes(page_tokens: int) -> st.SearchStrategy[tuple[Group, ...]]:
    """Two to four groups, mostly one that is needed everywhere among them."""
    base = group_of("full", page_tokens)
    return st.lists(st.sampled_from(kinds(page_tokens)), min_size=1, max_size=3).flatmap(
        lambda rest: st.sampled_from(((base, *rest), (*rest, base), (base, *rest), tuple(rest)))
    )


def shapes(groups: st.SearchStrategy[tuple[Group, ...]], page: int) -> st.SearchStrategy[World]:
    """One to three tiers, 8 to 32 blocks."""
    return st.builds(
        World,
        page_tokens=st.just(page),
        groups=groups,
        tiers=st.integers(1, 3),
        capacity=st.integers(8, 32),
        keep_keys=st.booleans(),
    )


def worlds() -> st.SearchStrategy[World]:
    """Page sizes 1, 2 and 4; one or two groups that are needed everywhere."""
    page = st.sampled_from((1, 2, 4))
    return page.flatmap(lambda size: shapes(st.integers(1, 2).map(plain), size))


def mixed_worlds() -> st.SearchStrategy[World]:
    """Page sizes 1, 2 and 4; mixes of groups of every kind."""
    return st.sampled_from((1, 2, 4)).flatmap(lambda size: shapes(mixes(size), size))


def random_world(rng: random.Random, *, mixed: bool) -> World:
    """A world drawn by a generator instead of by Hypothesis."""
    size = rng.choice((1, 2, 4))
    groups = plain(rng.randrange(1, 3))
    if mixed:
        base = [group_of("full", size)] * (rng.random() < 0.75)
        groups = tuple(base + rng.choices(kinds(size), k=rng.randrange(1, 4)))
    return World(
        page_tokens=size,
        groups=groups,
        tiers=rng.randrange(1, 4),
        capacity=rng.randrange(8, 33),
        keep_keys=rng.random() < 0.5,
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
