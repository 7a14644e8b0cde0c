"""How far a prompt of keys is there is the greatest length at which each group has all that its
rule asks for, as found by trying every length; and what a client declares is understood as meant.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.errors import UnsupportedError
from radix.groups import Group, Retention, Rule, rule_of
from radix.keys import Namespace
from radix.layout import Layout
from radix.service.choosing import Owner, owner_of
from radix.service.opening import declared, owned_by, parse_opening
from radix.service.protocol import ProtocolError
from radix.service.reach import first_gap, joint_pages, needed_pages

PAGE = 4
rules = st.sampled_from(
    [
        Group.full("full", 8),
        Group("window", Layout.opaque(8), Retention("window", 9)),
        Group("wide", Layout.opaque(8), Retention("window", 5, 3)),
        Group("one", Layout.opaque(8), Retention("window", 1)),
        Group("chunked", Layout.opaque(8), Retention("chunked", 12)),
        Group("state", Layout.opaque(8), Retention("state"), 8, per_sequence=True),
        Group("resume", Layout.opaque(8), lookup=False),
    ]
)


def _tried(there: list[np.ndarray], kinds: list[Rule], most: int) -> int:
    """Every length, from the longest on, page by page."""
    for pages in range(most, 0, -1):
        good = True
        for row, rule in zip(there, kinds, strict=True):
            if not rule.lookup:
                continue
            if rule.per_position and (pages * PAGE) % rule.grid_tokens:
                good = False
            first, end = needed_pages(rule, pages)
            good = good and all(row[first:end])
        if good:
            return pages
    return 0


@given(st.lists(rules, min_size=1, max_size=4), st.integers(0, 14), st.randoms())
def test_the_longest_length_is_the_one_that_trying_finds(
    groups: list[Group], pages: int, chance: Random
) -> None:
    draw = np.random.default_rng(chance.randrange(2**32))
    kinds = [rule_of(group, PAGE) for group in groups]
    there = [draw.random(pages) < draw.choice([0.5, 0.9, 1.0]) for _ in groups]
    most = int(draw.integers(0, pages + 1))
    assert joint_pages(there, kinds, most) == _tried(there, kinds, most)


def test_gaps_end_what_is_there() -> None:
    for row, gap in [([], 0), ([1], 1), ([0], 0), ([1, 1, 0, 1], 2), ([1, 1], 2)]:
        assert first_gap(np.array(row, np.bool_)) == gap


def test_what_is_declared_is_understood_as_it_was_meant() -> None:
    groups = (
        Group.full("kv", 4096),
        Group("window", Layout.opaque(64), Retention("window", 128, 2)),
        Group("state", Layout.opaque(512), Retention("state"), 64, per_sequence=True),
    )
    space = Namespace("m", adapter="a", salt=b"s")
    opening = parse_opening(declared(groups, 16, 16, space, 1 << 20), 9)
    assert opening.namespace == space and opening.pool_bytes == 1 << 20
    signature = opening.signature
    assert signature.rules == tuple(rule_of(group, 16) for group in groups)
    assert signature.fingerprints == tuple(group.layout.fingerprint for group in groups)
    again = parse_opening(declared(groups, 16, 16, Namespace("n"), 0), 9).signature
    assert again.text == signature.text
    for other in (groups[:2], (groups[1], groups[0], groups[2])):
        assert parse_opening(declared(other, 16, 16, space, 0), 9).signature.text != signature.text


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("key_bytes", 33, "key_bytes must be an integer of 1 to 32"),
        ("key_bytes", True, "key_bytes must be an integer"),
        ("key_bytes", 32, "keys of pages have 16 bytes"),
        ("page_tokens", -1, "page_tokens must be"),
        ("groups", [], "groups must be a list of 1 to 16"),
        ("groups", [7], "each group must be an object"),
        ("namespace", "zz", "non-hexadecimal"),
        ("namespace", "00", "does not begin as the encoding"),
        ("pool_bytes", "1", "pool_bytes must be"),
        ("more", 1, "unknown field 'more'"),
    ],
)
def test_what_is_declared_wrongly_is_refused_by_name(field: str, value: object, what: str) -> None:
    asked = declared((Group.full("kv", 64),), 16, 16, Namespace(), 0)
    asked[field] = value
    with pytest.raises(ProtocolError, match=what) as caught:
        parse_opening(asked, 41)
    assert caught.value.request == 41


def test_groups_that_a_page_cannot_hold_are_refused_by_name() -> None:
    for group, what in [
        (Group("wide", Layout.opaque(8), grid_tokens=32), "a block of several pages"),
        (Group("odd", Layout.opaque(8), grid_tokens=24), "multiple of the page"),
        (Group("gone", Layout.opaque(8), Retention("scratch")), "scratch"),
        (Group("only", Layout.opaque(8), lookup=False), "no group limits a hit"),
    ]:
        with pytest.raises((ProtocolError, UnsupportedError), match=what):
            parse_opening(declared((group,), 16, 16, Namespace(), 0), 1)


_WHO = [Owner(d, t) for d in ("a", "ab", "b", "domain") for t in ("", "a", "b", "tenant")]


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from(_WHO))
def test_no_namespace_of_one_owner_is_one_of_another(salt: bytes, other: bytes, who: Owner) -> None:
    signature = parse_opening(declared((Group.full("kv", 64),), 32, 0, Namespace(), 0), 1).signature
    mine = owned_by(who, Namespace("m", salt=salt), signature)
    assert owner_of(mine.salt) == who
    for owner in _WHO:
        theirs = owned_by(owner, Namespace("m", salt=other), signature)
        same = owner == who and salt == other
        assert (mine.canonical() == theirs.canonical()) == same
