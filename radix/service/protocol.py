"""The frames of the service: what each byte means, and nothing that does I/O. A frame is a header
of 64 bytes and two runs of bytes, each padded to 8; every length is bounded before anything is
kept. Drawn in docs/protocol.md. What does not decode raises ``ProtocolError`` and changes nothing.

    | header, 64 | keys: of blocks, tokens or JSON | pad | data: positions, bytes, masks | pad |
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radix._native import ffi
from radix.errors import CacheError

MAGIC = b"RDXS"
VERSION = 1
SPOKEN = (1, 1)  # the least and the most version that this side speaks
HEADER = struct.Struct("<4sHHHHIQIIQIIqQ")
HEADER_BYTES = HEADER.size
REPLY = 0x8000  # in the op of an answer
MOST_TEXT_BYTES = 64 << 10  # of JSON
MOST_FRAME_BYTES = 64 << 20
DIGEST_BYTES = 16


class Op(IntEnum):
    """What a frame asks. The answer carries the same number with ``REPLY`` set."""

    HELLO = 1
    PROVE = 2
    OPEN = 3
    HAS = 4
    LOOKUP = 5
    LENGTHS = 6
    TOUCH = 7
    LEASE = 8
    RELEASE = 9
    RESERVE = 10
    COMMIT = 11
    ABORT = 12
    KEEP = 13
    READ = 14
    WRITE = 15
    FORGET = 16
    RESET = 17
    FLUSH = 18
    STAT = 19
    EVENTS = 20
    WATCH = 21
    RESIDENT = 22
    EXPLAIN = 23


class Flag(IntFlag):
    """How a frame asks. ``TOKENS``: the keys are int32 tokens, which stand for their full pages;
    ``POSITIONS``: the data begins with an int64 a key; ``LOAD``: bring what lies below the pool;
    ``DURABLE``: answer once it is durable; ``LOST``: of EVENTS, some before these are gone.
    """

    TOKENS = 1
    POSITIONS = 2
    LOAD = 4
    DURABLE = 8
    LOST = 16


# How an event stands in the answer of EVENTS, before its keys: (count, 16 + key_bytes) uint8.
EVENT = np.dtype(
    [("stored", "<u1"), ("tier", "<u1"), ("group", "<u2"), ("count", "<u4"), ("first", "<i8")]
)
# The int64 of a refusal for room: these of CAPACITY, needed and capacity of NEVER_FITS.
CAPACITY_NUMBERS = ("needed", "free", "evictable", "leased", "dirty")
# As plain integers: members of an enum are slow to combine.
TOKENS, POSITIONS, LOAD, DURABLE, LOST = map(int, Flag)
KNOWN_FLAGS = TOKENS | POSITIONS | LOAD | DURABLE | LOST


class Status(IntEnum):
    """How a frame fared. All but ``OK`` and ``PROVE`` come with a text in ``data``."""

    OK = 0
    PROVE = 1  # prove who you are: the keys of this answer hold the challenge
    BAD_FRAME = 2  # it does not decode; the connection is closed
    VERSION = 3  # of another version; the connection is closed
    DENIED = 4  # not you, or not this namespace; the connection is closed where it is not you
    BAD_REQUEST = 5  # a wrong argument: as ValueError
    UNKNOWN = 6  # no such store, lease or reservation in this connection
    STALE = 7  # the reservation ended before: its generation is over
    CAPACITY = 8  # no room now
    NEVER_FITS = 9  # never will be
    LIMIT = 10  # beyond a limit of the server
    DRAINING = 11  # takes nothing new: it is about to end
    TIER = 12  # a tier failed
    CLOSED = 13  # the store was closed under the request
    INTERNAL = 14  # a fault of the server; its log names it under the request id


class ProtocolError(CacheError):
    """Bytes that are no frame, or a frame that means nothing. ``status`` is what its sender is
    told; ``request``: of the frame, 0 where that is not known.
    """

    def __init__(self, what: str, status: Status = Status.BAD_FRAME, request: int = 0) -> None:
        super().__init__(what)
        self.status = status
        self.request = request


class Frame(NamedTuple):
    """One frame. ``keys`` and ``data`` are views of the buffer that it was decoded from: valid
    until that takes more bytes. ``items``: keys or tokens; ``number``, ``argument``: as the op
    says; ``status``: of answers.
    """

    op: int
    flags: int
    status: int
    store: int
    request: int
    items: int
    group: int
    number: int
    argument: int
    keys: memoryview
    data: memoryview

    @property
    def wire_bytes(self) -> int:
        """What it takes on the wire."""
        return HEADER_BYTES + padded(len(self.keys)) + padded(len(self.data))

    def header(self) -> Frame:
        """The frame without its keys and data: valid for ever."""
        return self._replace(keys=memoryview(b""), data=memoryview(b""))


NO_FRAME = Frame(0, 0, 0, 0, 0, 0, 0, 0, 0, memoryview(b""), memoryview(b""))


def padded(nbytes: int) -> int:
    """``nbytes`` and what pads it to 8.

    >>> padded(9)
    16
    """
    return (nbytes + 7) & ~7


def header(
    op: int,
    request: int,
    *,
    flags: int = 0,
    status: int = 0,
    store: int = 0,
    items: int = 0,
    group: int = 0,
    number: int = 0,
    argument: int = 0,
    keys_bytes: int = 0,
    data_bytes: int = 0,
) -> bytes:
    """The 64 bytes before a frame's runs. ``struct.error`` for numbers that do not fit."""
    return HEADER.pack(
        *(MAGIC, VERSION, op, flags, status, store, request, items, group, number),
        *(keys_bytes, data_bytes, argument, 0),
    )


def encode(
    op: int,
    request: int,
    keys: bytes | memoryview | npt.NDArray[Any] = b"",
    data: bytes | memoryview | npt.NDArray[Any] = b"",
    **fields: int,
) -> bytearray:
    """A whole frame; ``fields`` as of ``header``. Cost: the bytes."""
    first, second = _raw(keys), _raw(data)
    out = bytearray(header(op, request, keys_bytes=len(first), data_bytes=len(second), **fields))
    out += first
    out += bytes(padded(len(first)) - len(first))
    out += second
    out += bytes(padded(len(second)) - len(second))
    return out


def _raw(run: bytes | memoryview | npt.NDArray[Any]) -> bytes | memoryview:
    if isinstance(run, np.ndarray):
        return memoryview(np.ascontiguousarray(run).reshape(-1).view(np.uint8).data)
    return run


def decode(buffer: memoryview, start: int, most_bytes: int) -> Frame | None:
    """The frame that begins at ``start``, None where more bytes are needed to know it whole.

    Raises ``ProtocolError`` for what is none, as soon as its header is there. Cost: O(1).
    """
    found = decode_from(buffer, start, len(buffer), most_bytes)
    return None if found is None else found[0]


def decode_from(
    buffer: memoryview, start: int, filled: int, most_bytes: int
) -> tuple[Frame, int] | None:
    """The same of the first ``filled`` bytes of a buffer, and where the frame ends."""
    first = start + HEADER_BYTES
    if filled < first:
        return None
    head = _unpack(buffer, start)
    magic, version, op, flags, status, store, request, items, group, number = head[:10]
    keys_bytes, data_bytes, argument, reserved = head[10:]
    if magic != MAGIC or version != VERSION or reserved or flags & ~KNOWN_FLAGS:
        _refuse(magic, version, flags, reserved, request)
    second = first + ((keys_bytes + 7) & ~7)
    end = second + ((data_bytes + 7) & ~7)
    if end - start > most_bytes:
        raise ProtocolError(
            f"a frame of {end - start} bytes, at most {most_bytes} are taken",
            Status.LIMIT,
            request,
        )
    if filled < end:
        return None
    keys = buffer[first : first + keys_bytes]
    data = buffer[second : second + data_bytes] if data_bytes else _EMPTY
    given = (op, flags, status, store, request, items, group, number, argument, keys, data)
    return _tuple(Frame, given), end


_unpack = HEADER.unpack_from
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_EMPTY = memoryview(b"")


def _refuse(magic: bytes, version: int, flags: int, reserved: int, request: int) -> None:
    if magic != MAGIC:
        raise ProtocolError(f"a frame begins with {MAGIC!r}, not {magic!r}")
    if version != VERSION:
        raise ProtocolError(
            f"a frame of version {version}; this side speaks version {VERSION} only",
            Status.VERSION,
            request,
        )
    if reserved:
        raise ProtocolError(f"the reserved bytes must be 0, not {reserved}", request=request)
    raise ProtocolError(f"unknown flags {flags & ~KNOWN_FLAGS:#x}", request=request)


class Splitter:
    """Cuts a stream of bytes into frames. ``room`` for the socket to fill, ``filled`` by so many,
    then ``frames``. Holds one buffer, which grows to the largest frame and no further.
    """

    def __init__(self, most_bytes: int = MOST_FRAME_BYTES, first_bytes: int = 64 << 10) -> None:
        self._most = most_bytes
        self._first = first_bytes
        self._buffer = bytearray(first_bytes)
        self._view = memoryview(self._buffer)
        self._base = ffi.from_buffer("uint8_t[]", self._buffer)
        self._start = 0
        self._end = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. What ``frames`` gave is no longer valid."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > 16 * self._first:
                self._resize(self._first)
        elif self._end == len(self._buffer):
            held = self._end - self._start
            if self._start >= held and self._start:
                self._view[:held] = self._view[self._start : self._end]
                self._start, self._end = 0, held
            else:
                self._resize(max(len(self._buffer), min(2 * held, self._most + HEADER_BYTES) + 64))
        return self._view[self._end :]

    def _resize(self, nbytes: int) -> None:
        held = self._end - self._start
        buffer = bytearray(nbytes)
        buffer[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._base = ffi.from_buffer("uint8_t[]", buffer)
        self._start, self._end = 0, held

    def filled(self, nbytes: int) -> None:
        """So many bytes stand in what ``room`` gave."""
        self._end += nbytes

    def waiting(self) -> tuple[Any, int]:
        """Where bytes stand that were not taken, as C sees it, and how many, a frame at most."""
        return self._base + self._start, min(self._end - self._start, self._most)

    def took(self, nbytes: int) -> None:
        """Whole frames of so many bytes were taken from what waits."""
        self._start += nbytes

    @property
    def begun(self) -> bool:
        """Whether there are bytes of a frame that was not taken."""
        return self._end > self._start

    def next(self) -> Frame | None:
        """Takes the next frame, None where it is not whole; ``ProtocolError`` for what is none."""
        if self._start == self._end:
            return None
        found = decode_from(self._view, self._start, self._end, self._most)
        if found is None:
            return None
        frame, self._start = found
        return frame

    def frames(self) -> Iterator[Frame]:
        """The whole frames that are there; ``ProtocolError`` at the first that is none."""
        while (frame := self.next()) is not None:
            yield frame

    def feed(self, piece: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """The same for bytes that somebody else received; take all frames before the next."""
        view = memoryview(piece)
        while len(view):
            room = self.room()
            part = min(len(room), len(view))
            room[:part] = view[:part]
            self.filled(part)
            view = view[part:]
            yield from self.frames()


# ------------------------------------------------------------------ what runs hold
def text_of(value: Mapping[str, Any]) -> bytes:
    """JSON as it stands in a frame."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def parse_text(run: memoryview, request: int = 0) -> dict[str, Any]:
    """The JSON object in a run. ``ProtocolError`` for anything else, or more than 64 KiB."""
    if len(run) > MOST_TEXT_BYTES:
        raise ProtocolError(
            f"a text of {len(run)} bytes, at most {MOST_TEXT_BYTES}", Status.LIMIT, request
        )
    try:
        value = json.loads(bytes(run))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {error}", Status.BAD_REQUEST, request) from None
    if not isinstance(value, dict):
        raise ProtocolError(
            f"a JSON object was expected, not {type(value).__name__}", Status.BAD_REQUEST, request
        )
    return value


def keys_in(frame: Frame, key_bytes: int) -> npt.NDArray[np.uint8]:
    """The keys of a frame as (n, key_bytes) uint8, a view of it. ``ProtocolError`` where their
    number is not ``items``.
    """
    if len(frame.keys) != frame.items * key_bytes:
        raise ProtocolError(
            f"{len(frame.keys)} bytes of keys, {frame.items} keys of {key_bytes} bytes were said",
            Status.BAD_REQUEST,
            frame.request,
        )
    return np.frombuffer(frame.keys, np.uint8).reshape(-1, key_bytes)


def tokens_in(frame: Frame) -> npt.NDArray[np.int32]:
    """The tokens of a frame, a view of it. ``ProtocolError`` where they are not ``items``."""
    if len(frame.keys) != frame.items * 4:
        raise ProtocolError(
            f"{len(frame.keys)} bytes of tokens, {frame.items} int32 were said",
            Status.BAD_REQUEST,
            frame.request,
        )
    return np.frombuffer(frame.keys, np.int32)


def numbers_in(frame: Frame, dtype: type[np.generic], count: int, at: int = 0) -> npt.NDArray[Any]:
    """``count`` numbers of the data from byte ``at`` on, a view. ``ProtocolError`` if it is too
    short.
    """
    width = np.dtype(dtype).itemsize
    if at + count * width > len(frame.data):
        raise ProtocolError(
            f"{len(frame.data)} bytes of data, {at + count * width} were expected",
            Status.BAD_REQUEST,
            frame.request,
        )
    return np.frombuffer(frame.data, dtype, count, at)


def versions_in(told: Mapping[str, Any], request: int = 0) -> tuple[int, int]:
    """The versions that a HELLO says its side speaks, the least and the most; who says none is of
    the time of version 1. ``ProtocolError`` for anything else.
    """
    said = told.get("versions", [1, 1])
    if (
        not isinstance(said, list)
        or [type(each) for each in said] != [int, int]
        or not 1 <= said[0] <= said[1] < 1 << 16
    ):
        what = f"versions must be the least and the most that are spoken, not {said!r:.80}"
        raise ProtocolError(what, Status.BAD_REQUEST, request)
    return said[0], said[1]


def agreed(mine: tuple[int, int], theirs: tuple[int, int], request: int = 0) -> int:
    """The newest version that both sides speak.

    >>> agreed((1, 2), (2, 4))
    2

    Raises ``ProtocolError`` (version), which names what either speaks, where there is none.
    """
    newest = min(mine[1], theirs[1])
    if newest < max(mine[0], theirs[0]):
        here, there = (
            f"version {a} to {b}" if a < b else f"version {a}" for a, b in (mine, theirs)
        )
        what = f"this side speaks {here} only, the other {there}: upgrade the older of them"
        raise ProtocolError(what, Status.VERSION, request)
    return newest


def proof(secret: bytes, side: str, tenant: str, client: str, server: str) -> str:
    """What a side sends to show that it knows the secret: bound to both nonces, the side and the
    tenant, so that nothing of one handshake is of use in another.
    """
    text = "|".join(("radix-hello-1", side, tenant, client, server))
    return hmac.new(secret, text.encode(), "sha256").hexdigest()
