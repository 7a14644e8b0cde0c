"""The key of a page is a digest of all that leads up to its end, contents with their places among
it: whatever differs, the keys differ from that page on and not before (C25, C29; I5).
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.content import Content, Contents, PageKeys, page_rows
from radix.keys import page_keys, root_key

CAT, DOG = b"cat".ljust(16, b"."), b"dog".ljust(32, b".")
KINDS = ("xxh3", "sha256")
WIDTHS = {"xxh3": 16, "sha256": 32}
both = pytest.mark.parametrize("keys", KINDS)


def rows(keys: str, tokens: list[int], contents: list[Content], page: int = 4) -> list[bytes]:
    """The keys of the full pages."""
    result = page_rows(tokens, contents, page, keys=keys, namespace=b"n")
    assert result.shape == (len(tokens) // page, WIDTHS[keys]) and result.dtype == np.uint8
    return [row.tobytes() for row in result]


def same(one: list[bytes], other: list[bytes]) -> int:
    """Pages before the first whose key differs; none behind it may be equal."""
    equal = [a == b for a, b in zip(one, other, strict=True)]
    first = equal.index(False) if False in equal else len(equal)
    assert not any(equal[first:]), "a key that does not depend on the page before"
    return first


@both
def test_an_image_at_another_offset_is_another_page(keys: str) -> None:
    """C29 (vllm#36708): the same image at offset 1 and at offset 2 of a page, equal tokens."""
    tokens = [7] * 16
    for one, other in itertools.combinations(range(4, 8), 2):
        a, b = (rows(keys, tokens, [Content(at, 2, CAT)]) for at in (one, other))
        assert same(a, b) == 1, (one, other)


@both
def test_with_and_without_an_image_and_with_another_one_differ(keys: str) -> None:
    tokens = [7] * 16
    prompts = [
        [],
        [Content(5, 2, CAT)],
        [Content(5, 2, DOG)],
        [Content(5, 3, CAT)],
        [Content(5, 7, CAT)],
        [Content(5, 1, CAT), Content(6, 1, CAT)],
        [Content(5, 1, CAT), Content(6, 1, DOG)],
        [Content(5, 1, DOG), Content(6, 1, CAT)],
        [Content(5, 1, CAT), Content(7, 1, DOG)],
        [Content(5, 2, CAT + bytes(1))],
        [Content(5, 2, bytes(1) + CAT)],
        [Content(4, 1, CAT), Content(5, 2, CAT)],
    ]
    for one, other in itertools.combinations(prompts, 2):
        assert same(rows(keys, tokens, one), rows(keys, tokens, other)) == 1, (one, other)


@both
def test_a_page_deep_inside_a_content_knows_which_part_of_it_it_is(keys: str) -> None:
    """Two prompts of equal tokens, whose long images begin a page apart."""
    pages = PageKeys(keys, 4)
    parent, tokens = pages.start(b"n"), np.full(40, 7, np.int32)
    seen = set()
    for at in (0, 4, 8):
        seen.add(pages.rows(tokens, (Content(at, 24, CAT),), 4, 5, parent).tobytes())
    assert len(seen) == 3


@both
def test_tokens_that_spell_the_bytes_of_a_content_are_no_content(keys: str) -> None:
    """Whatever run of ids stands behind or in a page, it never gives the key of a content."""
    content = Content(1, 2, CAT)
    with_image = rows(keys, [7, 0, 0, 7], [content])[0]
    place = b"".join(n.to_bytes(4, "big") for n in (1, 0, 2)) + bytes([16])
    spelled = place + CAT + bytes(3)
    for order in ("<i4", ">i4"):
        ids = [int(i) & 0x7FFFFFFF for i in np.frombuffer(spelled, order)]
        for page in (4, len(ids), 4 + len(ids)):
            run = ([7, 0, 0, 7] + ids * 3)[: 4 * (4 + len(ids))]
            for key in rows(keys, run, [], page):
                assert key != with_image


@both
def test_pages_before_the_first_difference_are_shared(keys: str) -> None:
    """What lies before an image, and what two prompts with one image share, hits."""
    tokens = list(range(32))
    plain = rows(keys, tokens, [])
    assert same(plain, rows(keys, tokens, [Content(12, 4, CAT)])) == 3
    assert same(plain, rows(keys, tokens, [Content(11, 4, CAT)])) == 2
    two = [Content(4, 4, CAT), Content(20, 6, DOG)]
    other = [Content(4, 4, CAT), Content(20, 6, CAT)]
    assert same(rows(keys, tokens, two), rows(keys, tokens, other)) == 5
    assert rows(keys, tokens, two) == rows(keys, tokens, two[::-1])
    behind = [*tokens[:26], *range(50, 56)]
    assert same(rows(keys, tokens, two), rows(keys, behind, two)) == 6
    assert rows(keys, [], []) == rows(keys, [1, 2, 3], [Content(0, 3, CAT)]) == []


@both
def test_namespaces_pages_and_kinds_are_apart(keys: str) -> None:
    tokens = list(range(8))
    names = {page_rows(tokens, (), 4, keys=keys, namespace=n).tobytes() for n in (b"", b"a", b"b")}
    assert len(names) == 3
    starts = {PageKeys(kind, page).start(b"n") for kind in KINDS for page in (4, 8)}
    assert len(starts) == 2  # the page and the kind stand in the namespace already
    codes = [PageKeys(kind, 4).scheme for kind in ("tokens", *KINDS)]
    assert codes == [0, 1, 2], "what the namespaces of stored blocks hold"


def test_plain_pages_of_xxh3_have_the_keys_of_their_tokens() -> None:
    """One native call for all of them, and the same bytes as the chain of a tree of tokens."""
    tokens = np.arange(100, dtype=np.int32)
    plain = page_rows(tokens, (), 16, keys="xxh3", namespace=b"n")
    assert np.array_equal(plain, page_keys(root_key(b"n"), tokens, 16))


def test_prompts_of_equal_short_hashes_are_apart() -> None:
    """C25 (vllm#12621): keys were 64 bits of a weak hash. 2^16 pages that agree in all but a few
    bits have keys that differ, and so do the first and the last eight bytes of them.
    """
    for keys in KINDS:
        tokens = np.arange(1 << 16, dtype=np.int32).reshape(-1, 1)
        own = PageKeys(keys, 1)
        start = own.start(b"n")
        found = np.concatenate(
            [own.rows(run, (), 0, 1, start) for run in tokens[:: 1 if keys == "xxh3" else 16]]
        )
        assert found.shape[1] >= 16
        for cut in (found, found[:, :8], found[:, -8:]):
            assert len(np.unique(np.ascontiguousarray(cut), axis=0)) == len(found)


def draw_contents(rng: random.Random, tokens: int) -> list[Content]:
    """Some contents that do not overlap, in a prompt of so many tokens."""
    at, found = 0, []
    while (at := at + rng.randrange(0, 9)) < tokens:
        length = rng.randrange(1, min(12, tokens - at) + 1)
        found.append(Content(at, length, rng.choice((CAT, DOG))))
        at += length
    return found


@pytest.mark.parametrize("seed", range(40))
@both
def test_keys_made_in_any_steps_are_those_of_one_call(keys: str, seed: int) -> None:
    """A prompt that grows token by token has the keys of one that was there at once."""
    rng = random.Random(seed)
    page, total = rng.choice((1, 2, 4, 5)), rng.randrange(1, 80)
    tokens = np.array([rng.randrange(3) for _ in range(total)], np.int32)
    contents = draw_contents(rng, total)
    pages = PageKeys(keys, page)
    given: Contents = pages.contents(contents[::-1], total)
    whole = pages.chain(b"n", given).span(tokens, 0, total // page)
    chain, at = pages.chain(b"n", given), 0
    while at < total // page:
        upto = rng.randrange(at, total // page) + 1
        first = rng.randrange(0, upto)
        part = chain.span(tokens[: upto * page], first, upto)
        assert np.array_equal(part, whole[first:upto]), f"seed {seed}"
        at = max(at, upto)
    # and from the key of any page alone
    for first in range(total // page):
        parent = bytes(whole[first - 1]) if first else pages.start(b"n")
        rest = pages.rows(tokens, given, first, total // page, parent)
        assert np.array_equal(rest, whole[first:]), f"seed {seed}"


prompts = st.tuples(
    st.lists(st.integers(0, 1), min_size=6, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 6), st.sampled_from([CAT, DOG])), max_size=3
    ),
)


def _spans(drawn: list[tuple[int, int, bytes]]) -> list[Content]:
    """Those of the drawn spans that fit one behind the other."""
    found: list[Content] = []
    for at, length, digest in sorted(drawn):
        if at + length <= 6 and (not found or found[-1].end_tokens <= at):
            found.append(Content(at, length, digest))
    return found


@given(prompts, prompts, st.sampled_from([1, 2, 3]))
def test_two_prompts_share_exactly_the_pages_whose_input_is_equal(
    one: tuple[list[int], list[tuple[int, int, bytes]]],
    other: tuple[list[int], list[tuple[int, int, bytes]]],
    page: int,
) -> None:
    """Against what each token is: its id, and which token of which content it stands for."""
    meant, made = [], []
    for tokens, drawn in (one, other):
        spans, kinds = _spans(drawn), []
        for at, token in enumerate(tokens):
            inside = [s for s in spans if s.offset_tokens <= at < s.end_tokens]
            part = [(s.digest, s.length_tokens, at - s.offset_tokens) for s in inside]
            kinds.append((token, part))
        meant.append([kinds[lo : lo + page] for lo in range(0, 6, page)])
        made.append({kind: rows(kind, tokens, spans, page) for kind in KINDS})
    equal = [a == b for a, b in zip(*meant, strict=True)]
    shared = equal.index(False) if False in equal else len(equal)
    for kind in KINDS:
        assert same(made[0][kind], made[1][kind]) == shared
