"""What a page of the tree is. Its tokens; or, for prompts into which images, audio and the like
are set, one opaque key, the digest of all that leads up to the page's end: the key of the page
before, the tokens, and every piece of content that reaches into the page, with its place (C29).
Two pages that differ in any of these are digests of different bytes, by construction; a page's key
costs its own tokens and contents, never the prefix (I5).

    tokens    0 1 2 3 | 4 5 6 7 | 8 9 ..        input of a digest: key of the page before (16 or 32
    contents      [=== image ===]               bytes) || the page's tokens, int32 little endian ||
    row       d(0..3)   d(4..7)   ...           for each content in it: place || digest
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.keys import Tokens, as_tokens, check_range, page_keys, root_key

Rows = npt.NDArray[np.uint8]

# What a page is: code in the namespace, bytes of a key (0: the tokens themselves).
_SCHEMES = {"tokens": (0, 0), "xxh3": (1, 16), "sha256": (2, 32)}
LEAST_DIGEST_BYTES = 16
MOST_DIGEST_BYTES = 255
# Of a content in a page: first token of the page that it covers, how many of its own tokens lie
# before that one, how many it has in all, bytes of its digest.
_PLACE = struct.Struct(">IIIB")


@dataclass(frozen=True, slots=True)
class Content:
    """One piece of content set into a prompt: tokens [offset, offset + length) stand for it.

    ``digest``: 16 to 255 bytes that name the content as the model sees it, the same wherever it
    stands (a sha256 of the pixels and of how they are prepared). Raises ``ValueError`` and
    ``TypeError`` by name.
    """

    offset_tokens: int
    length_tokens: int
    digest: bytes

    def __post_init__(self) -> None:
        for name, least in (("offset_tokens", 0), ("length_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool | float | str) or not hasattr(value, "__index__"):
                raise TypeError(f"content {name} must be an int, not {type(value).__name__}")
            number = operator.index(value)
            if not least <= number < 1 << 31:
                raise ValueError(f"content {name} is {number}, expected {least} to 2^31 - 1")
            object.__setattr__(self, name, number)
        if not isinstance(self.digest, bytes):
            raise TypeError(f"content digest must be bytes, not {type(self.digest).__name__}")
        if not LEAST_DIGEST_BYTES <= len(self.digest) <= MOST_DIGEST_BYTES:
            raise ValueError(
                f"content digest has {len(self.digest)} bytes, expected "
                f"{LEAST_DIGEST_BYTES} to {MOST_DIGEST_BYTES}"
            )

    @property
    def end_tokens(self) -> int:
        """The first token behind it."""
        return self.offset_tokens + self.length_tokens


Contents = tuple[Content, ...]


def contents_of(contents: object, prompt_tokens: int) -> Contents:
    """The contents of a prompt, by their place; they may touch, not overlap.

    ``ValueError`` names a pair that overlaps and what reaches beyond the prompt, ``TypeError``
    what is no ``Content``. Cost: the contents.
    """
    if contents is None:
        return ()
    if isinstance(contents, Content) or not isinstance(contents, Iterable):
        raise TypeError(f"content must be a sequence of Content, not {type(contents).__name__}")
    given = list(contents)
    for index, content in enumerate(given):
        if not isinstance(content, Content):
            raise TypeError(f"content[{index}] must be a Content, not {type(content).__name__}")
    given.sort(key=lambda content: content.offset_tokens)
    for before, content in itertools.pairwise(given):
        if before.end_tokens > content.offset_tokens:
            raise ValueError(
                f"content at token {content.offset_tokens} overlaps that of tokens "
                f"{before.offset_tokens} to {before.end_tokens - 1}"
            )
    if given and given[-1].end_tokens > prompt_tokens:
        raise ValueError(
            f"content of tokens {given[-1].offset_tokens} to {given[-1].end_tokens - 1} reaches "
            f"beyond the prompt of {prompt_tokens} tokens"
        )
    return tuple(given)


class Prompt:
    """One prompt in a cache. ``root``: its namespace's; ``tokens``, int32; ``chain``: its pages."""

    __slots__ = ("_pages", "chain", "root", "tokens")

    def __init__(self, root: int, tokens: Tokens, chain: Chain) -> None:
        self.root = root
        self.tokens = tokens
        self.chain = chain
        self._pages: Rows | None = None

    @property
    def pages(self) -> Rows:
        """Its full pages as the tree keeps them, (pages, page_bytes) uint8."""
        if self._pages is None:
            keys = self.chain.keys
            span = self.chain.whole().span(self.tokens, 0, len(self.tokens) // keys.page_tokens)
            self._pages = span.view(np.uint8).reshape(-1, keys.page_bytes)
        return self._pages


class PageKeys:
    """What a page is in the tree of one cache, by the name of the scheme.

    ``tokens``: the page's tokens: compared as they are, no digest, no content. ``xxh3``: 16 bytes,
    xxh3-128 in one native call for all pages between contents, and sha256, cut, for those that
    contents reach into: fast, among tenants that trust each other or have salts of their own.
    ``sha256``: 32 bytes, a call of a page: where those who share a namespace do not trust each
    other (C25), for nobody can make two prompts of one key.

    Data: ``scheme`` (its code), ``page_tokens``, ``page_bytes``, ``opaque``. Make: ``start``,
    ``rows``, ``chain``, ``contents``.
    """

    def __init__(self, keys: str, page_tokens: int) -> None:
        if keys not in _SCHEMES:
            raise ValueError(f"keys is {keys!r}, expected one of {', '.join(_SCHEMES)}")
        self.keys = keys
        self.scheme, width = _SCHEMES[keys]
        self.page_tokens = page_tokens
        self.opaque = width > 0
        self.page_bytes = width or page_tokens * 4
        self.of_tokens = Chain(self, b"", ())  # keeps nothing: one for all prompts

    def contents(self, contents: object, prompt_tokens: int) -> Contents:
        """``contents_of``; ``ValueError`` where pages are tokens, which can hold none."""
        if contents is None:
            return ()
        result = contents_of(contents, prompt_tokens)
        if result and not self.opaque:
            raise ValueError(
                "content: pages of this cache are tokens, make it with keys='xxh3' or 'sha256'"
            )
        return result

    def start(self, canonical: bytes) -> bytes:
        """The key from which the first page of a namespace chains. Cost: its length."""
        if self.keys == "sha256":
            return hashlib.sha256(b"radix-start-1" + canonical).digest()
        return root_key(canonical)

    def rows(
        self, tokens: Tokens, contents: Contents, first_page: int, last_page: int, parent: bytes
    ) -> Tokens | Rows:
        """Pages [first_page, last_page) of a prompt as the tree takes them; full pages alone.

        Tokens: a view of them, int32; keys: (pages, page_bytes) uint8. ``contents``: as from
        ``contents``. ``parent``: the key of the page before ``first_page``, or ``start``.
        ``ValueError`` for ids outside [0, 2^31), and for a page that is not full. Cost: of
        tokens none; of keys the pages' tokens: 16 tokens a page, xxh3 14 ns and sha256 0.6 us a
        page, 2 us for one that content reaches into.
        """
        page = self.page_tokens
        run = tokens[first_page * page : last_page * page]
        if len(run) != max(0, last_page - first_page) * page:
            raise ValueError(f"page {last_page - 1} of {len(tokens)} tokens is not full")
        if not self.opaque:
            return run
        if len(parent) != self.page_bytes:
            raise ValueError(f"parent must be {self.page_bytes} bytes, not {len(parent)}")
        run = as_tokens(run)
        check_range(run)
        out = np.empty((len(run) // page, self.page_bytes), np.uint8)
        at = 0
        for number, suffix in _suffixes(contents, first_page, last_page, page).items():
            parent = self._plain(run, at, number - first_page, parent, out)
            at = number - first_page
            parent = self._hashed(run, at, suffix, parent, out)
            at += 1
        self._plain(run, at, len(out), parent, out)
        return out

    def _plain(self, run: Tokens, lo: int, hi: int, parent: bytes, out: Rows) -> bytes:
        """Rows [lo, hi), into which no content reaches; the last key."""
        if lo >= hi:
            return parent
        page = self.page_tokens
        if self.keys == "xxh3":
            out[lo:hi] = page_keys(parent, run[lo * page : hi * page], page)
            return bytes(out[hi - 1])
        raw, width, sha256 = run[lo * page : hi * page].tobytes(), page * 4, hashlib.sha256
        digests = []
        for at in range(0, len(raw), width):
            parent = sha256(parent + raw[at : at + width]).digest()
            digests.append(parent)
        out[lo:hi] = np.frombuffer(b"".join(digests), np.uint8).reshape(hi - lo, -1)
        return parent

    def _hashed(self, run: Tokens, at: int, suffix: bytes, parent: bytes, out: Rows) -> bytes:
        """Row ``at``, into which contents reach; its key."""
        page = self.page_tokens
        own = run[at * page : (at + 1) * page].tobytes()
        key = hashlib.sha256(parent + own + suffix).digest()[: self.page_bytes]
        out[at] = np.frombuffer(key, np.uint8)
        return key

    def chain(self, canonical: bytes, contents: Contents = ()) -> Chain:
        """The pages of one prompt in a namespace, computed once each as the prompt grows."""
        return Chain(self, self.start(canonical), contents) if self.opaque else self.of_tokens


class Chain:
    """The pages of one prompt that grows at its end: each page's key is computed once.

    Ask: ``span``. Elsewhere: ``begin``, ``whole``. Holds ``page_bytes`` a page where keys are
    opaque, else nothing.
    """

    __slots__ = ("_contents", "_count", "_first", "_left", "_parent", "_rows", "_start", "keys")

    def __init__(self, keys: PageKeys, start: bytes, contents: Contents) -> None:
        self.keys = keys
        self._start = self._parent = start
        self._contents = self._left = contents
        self._first = self._count = 0
        self._rows: Rows = np.empty((0, keys.page_bytes if keys.opaque else 0), np.uint8)

    def begin(self, first_page: int, parent: bytes) -> None:
        """Only pages from ``first_page`` on will be asked for; ``parent``: the key before it."""
        self._first, self._parent = first_page, parent

    def under(self, namespace: bytes) -> Chain:
        """The same contents in the namespace of these canonical bytes."""
        return self.keys.chain(namespace, self._contents)

    def whole(self) -> Chain:
        """The same from the first page on."""
        return Chain(self.keys, self._start, self._contents) if self._first else self

    def span(self, tokens: Tokens, first: int, last: int) -> Tokens | Rows:
        """Pages [first, last) of ``tokens``, all of them full, as the tree takes them. A view.

        ``tokens`` begins as at the last call. Cost: the pages not asked for before.
        """
        if not self.keys.opaque:
            page = self.keys.page_tokens
            return tokens[first * page : last * page]
        base, upto = self._first, self._first + self._count
        if last > upto:
            self._extend(self.keys.rows(tokens, self._left, upto, last, self._parent))
        return self._rows[first - base : last - base]

    def _extend(self, rows: Tokens | Rows) -> None:
        need = self._count + len(rows)
        if need > len(self._rows):
            grown = np.empty((max(need, 2 * self._count), rows.shape[1]), np.uint8)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : need] = rows
        self._count = need
        self._parent = rows[-1].tobytes()
        past = (self._first + need) * self.keys.page_tokens
        self._left = tuple(one for one in self._left if one.end_tokens > past)


def page_rows(
    tokens: object,
    contents: object = (),
    page_tokens: int = 16,
    *,
    keys: str = "sha256",
    namespace: bytes = b"",
) -> Rows:
    """Opaque keys of the full pages of a prompt, (pages, 16 or 32) uint8: what a cache with
    ``keys`` holds them by in the namespace of these canonical bytes; for other programs and tests.

    Raises ``ValueError`` and ``TypeError`` by name. Cost: as ``PageKeys.rows``.

    >>> image = Content(1, 2, bytes(32))
    >>> page_rows([1, 0, 0, 2, 3, 4], [image], 2).shape
    (3, 32)
    """
    pages = PageKeys(keys, page_tokens)
    if not pages.opaque:
        raise ValueError("keys is 'tokens', expected 'xxh3' or 'sha256'")
    run = as_tokens(tokens)
    given = pages.contents(contents, len(run))
    count = len(run) // page_tokens
    return pages.chain(namespace, given).span(run, 0, count).view(np.uint8)


def _suffixes(contents: Contents, first: int, last: int, page_tokens: int) -> dict[int, bytes]:
    """By page of [first, last), ascending, what contents add to its digest."""
    result: dict[int, bytes] = {}
    for content in contents:
        lo = max(first, content.offset_tokens // page_tokens)
        hi = min(last, (content.end_tokens - 1) // page_tokens + 1)
        for page in range(lo, hi):
            start = page * page_tokens
            at = max(0, content.offset_tokens - start)
            own = max(0, start - content.offset_tokens)
            place = _PLACE.pack(at, own, content.length_tokens, len(content.digest))
            result[page] = result.get(page, b"") + place + content.digest
    return result
