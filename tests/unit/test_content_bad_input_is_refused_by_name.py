"""A content that is none, lies outside its prompt or over another one is refused before anything
changes, by the name of what is wrong; ids outside [0, 2^31) fail as on every other path (C24).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.content import Content, PageKeys, contents_of, page_rows

GOOD = bytes(16)


@pytest.mark.parametrize(
    ("fields", "kind", "match"),
    [
        ((-1, 2, GOOD), ValueError, "offset_tokens is -1, expected 0"),
        ((1 << 31, 2, GOOD), ValueError, "offset_tokens is 2147483648"),
        ((0, 0, GOOD), ValueError, "length_tokens is 0, expected 1"),
        ((0, -3, GOOD), ValueError, "length_tokens is -3, expected 1"),
        ((0.0, 1, GOOD), TypeError, "offset_tokens must be an int, not float"),
        ((True, 1, GOOD), TypeError, "offset_tokens must be an int, not bool"),
        ((0, "1", GOOD), TypeError, "length_tokens must be an int, not str"),
        ((0, None, GOOD), TypeError, "length_tokens must be an int, not NoneType"),
        ((0, 1, b""), ValueError, "digest has 0 bytes, expected 16 to 255"),
        ((0, 1, bytes(15)), ValueError, "digest has 15 bytes"),
        ((0, 1, bytes(256)), ValueError, "digest has 256 bytes"),
        ((0, 1, "0" * 16), TypeError, "digest must be bytes, not str"),
        ((0, 1, bytearray(16)), TypeError, "digest must be bytes, not bytearray"),
        ((0, 1, 16), TypeError, "digest must be bytes, not int"),
    ],
)
def test_field_out_of_range_is_refused(
    fields: tuple[object, ...], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        Content(*fields)


@pytest.mark.parametrize(
    ("contents", "kind", "match"),
    [
        ([Content(0, 3, GOOD), Content(2, 3, GOOD)], ValueError, "token 2 overlaps .* 0 to 2"),
        ([Content(5, 1, GOOD), Content(0, 8, GOOD)], ValueError, "token 5 overlaps .* 0 to 7"),
        ([Content(3, 1, GOOD), Content(3, 1, GOOD)], ValueError, "token 3 overlaps"),
        ([Content(7, 2, GOOD)], ValueError, "7 to 8 reaches beyond the prompt of 8 tokens"),
        ([Content(8, 1, GOOD)], ValueError, "beyond the prompt of 8"),
        ([(0, 1, GOOD)], TypeError, r"content\[0\] must be a Content, not tuple"),
        ([Content(0, 1, GOOD), None], TypeError, r"content\[1\] must be a Content, not NoneType"),
        (Content(0, 1, GOOD), TypeError, "content must be a sequence of Content, not Content"),
        (3, TypeError, "content must be a sequence of Content, not int"),
        (b"ab", TypeError, r"content\[0\] must be a Content, not int"),
    ],
)
def test_contents_that_do_not_fit_a_prompt_are_refused(
    contents: object, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        contents_of(contents, 8)
    with pytest.raises(kind, match=match):
        page_rows(range(8), contents, 4)


def test_contents_that_touch_and_fill_a_prompt_are_taken_in_any_order() -> None:
    given = [Content(4, 4, GOOD), Content(0, 4, GOOD)]
    assert contents_of(iter(given), 8) == (given[1], given[0])
    assert contents_of(None, 0) == contents_of((), 8) == contents_of([], 8) == ()
    assert Content(np.int64(3), np.int32(4), GOOD) == Content(3, 4, GOOD)


def test_a_tree_of_tokens_takes_no_content_and_says_which_option_does() -> None:
    pages = PageKeys("tokens", 4)
    assert pages.contents((), 8) == ()
    with pytest.raises(ValueError, match="keys='xxh3' or 'sha256'"):
        pages.contents([Content(0, 1, GOOD)], 8)
    with pytest.raises(ValueError, match="'tokens', expected 'xxh3' or 'sha256'"):
        page_rows([1, 2], (), 2, keys="tokens")
    with pytest.raises(ValueError, match="keys is 'md5', expected one of tokens, xxh3, sha256"):
        PageKeys("md5", 4)


@pytest.mark.parametrize("keys", ["xxh3", "sha256"])
@pytest.mark.parametrize("contents", [(), (Content(0, 4, GOOD),)])
def test_ids_out_of_range_are_refused_as_everywhere(
    keys: str, contents: tuple[Content, ...]
) -> None:
    """C24: with and without a content in the page of the id."""
    for wrong in (-1, 1 << 31, (1 << 32) - 1, 1 << 63, 1 << 64):
        with pytest.raises(ValueError, match=r"expected an id in \[0, 2\^31\)"):
            page_rows([1, wrong, 2, 3], contents, 4, keys=keys)
    pages = PageKeys(keys, 4)
    run = np.array([1, 2, -5, 3], np.int32)
    with pytest.raises(ValueError, match=r"expected an id in \[0, 2\^31\)"):
        pages.rows(run, contents, 0, 1, pages.start(b""))
    chain = pages.chain(b"", contents)
    with pytest.raises(ValueError, match=r"\[0, 2\^31\)"):
        chain.span(run, 0, 1)
    run[2] = 9
    fresh = pages.chain(b"", contents).span(run, 0, 1)
    assert np.array_equal(chain.span(run, 0, 1), fresh), "a call that failed left something"


@pytest.mark.parametrize("keys", ["tokens", "xxh3", "sha256"])
def test_pages_that_are_not_full_and_keys_of_a_wrong_width_are_refused(keys: str) -> None:
    pages = PageKeys(keys, 4)
    run = np.arange(7, dtype=np.int32)
    with pytest.raises(ValueError, match="page 1 of 7 tokens is not full"):
        pages.rows(run, (), 0, 2, pages.start(b""))
    if pages.opaque:
        with pytest.raises(ValueError, match=f"parent must be {pages.page_bytes} bytes, not 3"):
            pages.rows(run, (), 0, 1, b"abc")
    assert len(pages.rows(run, (), 1, 1, pages.start(b""))) == 0
