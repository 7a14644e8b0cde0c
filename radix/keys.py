"""Namespaces and page keys. A namespace is canonical bytes (every field tagged and length
prefixed), so that no two different namespaces encode alike (C27, C28); its root key starts the
chain of xxh3-128 page keys. Golden vectors in the tests pin both encodings (C26).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib

TOKEN_LIMIT = 1 << 31
Tokens = npt.NDArray[np.int32]

_MAGIC = b"radix-ns-1"
_TAGS = {
    "model": b"M",
    "adapter": b"A",
    "layout": b"L",
    "salt": b"S",
    "content": b"C",
    "revision": b"R",
    "adapter_version": b"V",
}
# Fields that came later: left out where they are empty, so that older encodings stay as they were.
_LATER = ("revision", "adapter_version")


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must agree before one request may use another's state.

    ``model``, ``revision``: the weights; ``adapter``, ``adapter_version``: a LoRA or the like;
    ``layout``: what an engine knows of the bytes beside the groups' layouts, which a cache adds
    itself; ``salt``: the tenant; ``content``: whatever else an engine keys by. Each is a field of
    its own: ``model="a", revision="b"`` is never ``model="ab"``.
    """

    model: str = ""
    adapter: str = ""
    layout: bytes = b""
    salt: bytes = b""
    content: bytes = b""
    revision: str = ""
    adapter_version: str = ""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is not type(item.default):
                raise TypeError(
                    f"{item.name} must be {type(item.default).__name__}, not {type(value).__name__}"
                )
            if isinstance(value, str):
                _encoded(item.name, value)

    def canonical(self) -> bytes:
        """Tagged, length-prefixed bytes: equal only for equal namespaces. Cost: their length."""
        out = [_MAGIC]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _LATER and not value:
                continue
            raw = _encoded(item.name, value) if isinstance(value, str) else value
            out.append(_TAGS[item.name] + len(raw).to_bytes(4, "big") + raw)
        return b"".join(out)

    @classmethod
    def parse(cls, canonical: bytes) -> Namespace:
        """The namespace of which ``canonical`` is the encoding: the inverse of ``canonical``.

        ``ValueError`` for bytes that encode none. Cost: their length.

        >>> Namespace.parse(Namespace("m", revision="r7").canonical())
        Namespace(model='m', adapter='', layout=b'', salt=b'', content=b'', revision='r7', \
adapter_version='')
        """
        if not canonical.startswith(_MAGIC):
            raise ValueError("canonical does not begin as the encoding of a namespace")
        at = len(_MAGIC)
        values: dict[str, Any] = {}
        for item in fields(cls):
            if canonical[at : at + 1] != _TAGS[item.name]:
                if item.name in _LATER:
                    continue
                raise ValueError(f"canonical has no field {item.name} at byte {at}")
            size = int.from_bytes(canonical[at + 1 : at + 5], "big")
            raw = canonical[at + 5 : at + 5 + size]
            at += 5 + size
            values[item.name] = raw.decode() if isinstance(item.default, str) else raw
        result = cls(**values)
        if result.canonical() != canonical:
            raise ValueError("canonical is no encoding of a namespace: cut, or not shortest")
        return result


def _encoded(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be text that UTF-8 can write: {error}") from error


def root_key(canonical: bytes) -> bytes:
    """The 16 bytes from which the first page key of a namespace chains. Cost: its length."""
    out = ffi.new("uint8_t[16]")
    lib.rdx_xxh3_128(canonical, len(canonical), out)
    return bytes(ffi.buffer(out))


def page_keys(parent: bytes, tokens: Tokens, page_tokens: int) -> npt.NDArray[np.uint8]:
    """Chained keys of the full pages of ``tokens``: (pages, 16) uint8. Cost: the tokens.

    key[i] = xxh3_128(key[i-1] || tokens of page i as int32 little endian), key[-1] = ``parent``
    (16 bytes). ``ValueError`` for ids outside [0, 2^31).
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens must be at least 1, not {page_tokens}")
    if len(parent) != 16:
        raise ValueError(f"parent must be 16 bytes, not {len(parent)}")
    tokens = as_tokens(tokens)
    check_range(tokens)
    pages = len(tokens) // page_tokens
    out = np.empty((pages, 16), np.uint8)
    if pages:
        lib.rdx_keys_chain(
            parent,
            ffi.from_buffer(tokens),
            pages,
            page_tokens * 4,
            ffi.from_buffer("uint8_t[]", out),
        )
    return out


def as_tokens(tokens: object, name: str = "tokens") -> Tokens:
    """Any sequence of token ids as a one-dimensional, C-contiguous int32 array.

    int32 buffers pass without a copy, and their ids unread. Other integers are converted once; ids
    outside [0, 2^31) raise ``ValueError``, what is not integers raises ``TypeError``; both name
    ``name``.
    """
    if isinstance(tokens, list | tuple) and (packed := _packed(tokens)) is not None:
        return packed
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise ValueError(f"{name} must be a flat sequence of integers: {error}") from error
    if array.dtype.kind in "Of" and isinstance(tokens, list | tuple):
        array = _wide(tokens, array)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype != np.int32:
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, not {array.dtype}")
        check_range(array, name)
        array = array.astype(np.int32)
    return np.ascontiguousarray(array)


def _packed(tokens: Sequence[object]) -> Tokens | None:
    """A list of ids in a third of the time that numpy takes; None where something in it is none,
    which is left to say to who looks closer.
    """
    if not tokens or type(tokens[0]) is not int:
        return None
    room = bytearray(4 * len(tokens))
    try:
        struct.pack_into(f"={len(tokens)}i", room, 0, *tokens)
    except struct.error:
        return None
    array = np.frombuffer(room, np.int32)
    return array if int(array.min()) >= 0 else None


def _wide(tokens: Sequence[object], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers of which some fit no machine integer, each of those as the next one out of range."""
    numbers = [item for item in tokens if isinstance(item, int)]
    if len(numbers) < len(tokens):
        return array
    return np.array([min(max(item, -1), TOKEN_LIMIT) for item in numbers], np.int64)


def check_range(array: npt.NDArray[np.integer[Any]], name: str = "tokens") -> None:
    """``ValueError`` for the first id outside [0, 2^31); names it and its index. Cost: the ids."""
    if array.size and (int(array.min()) < 0 or int(array.max()) >= TOKEN_LIMIT):
        wrong = np.flatnonzero((array < 0) | (array >= TOKEN_LIMIT))[0]
        raise ValueError(f"{name}[{wrong}] is {array[wrong]}, expected an id in [0, 2^31)")
