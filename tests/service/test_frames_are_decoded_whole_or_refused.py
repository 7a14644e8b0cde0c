"""A frame is what its page says, or it is refused before anything is kept of it; whatever bytes
come, and however they are cut.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.service.protocol import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Flag,
    Frame,
    Op,
    ProtocolError,
    Splitter,
    Status,
    decode,
    encode,
    parse_text,
)

MOST = 1 << 16
fields = st.fixed_dictionaries(
    {
        "flags": st.integers(0, 31),
        "status": st.integers(0, 14),
        "store": st.integers(0, 2**32 - 1),
        "items": st.integers(0, 2**32 - 1),
        "group": st.integers(0, 2**32 - 1),
        "number": st.integers(0, 2**64 - 1),
        "argument": st.integers(-(2**63), 2**63 - 1),
    }
)


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=99), fields)
def test_a_frame_is_decoded_as_it_was_encoded(
    op: int, request: int, run: bytes, values: dict[str, int]
) -> None:
    raw = encode(op, request, run, run[::-1], **values)
    assert len(raw) % 8 == 0
    frame = decode(memoryview(raw), 0, MOST)
    assert frame is not None
    assert (frame.op, frame.request, frame.wire_bytes) == (op, request, len(raw))
    assert (bytes(frame.keys), bytes(frame.data)) == (run, run[::-1])
    assert {name: getattr(frame, name) for name in values} == values


@given(
    st.lists(st.tuples(st.integers(1, 20), st.binary(max_size=300)), min_size=1, max_size=8),
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
)
def test_a_stream_gives_the_same_frames_however_it_is_cut(
    sent: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    raw = b"".join(encode(op, n, run, run) for n, (op, run) in enumerate(sent))
    splitter, got, at, turn = Splitter(MOST, 64), [], 0, 0
    while at < len(raw):
        piece = raw[at : at + cuts[turn % len(cuts)]]
        got += [(f.op, bytes(f.keys), bytes(f.data)) for f in splitter.feed(piece)]
        at, turn = at + len(piece), turn + 1
    assert got == [(op, run, run) for op, run in sent]
    assert not splitter.begun


def test_what_is_no_frame_is_refused_by_what_is_wrong() -> None:
    good = bytearray(encode(Op.HAS, 7))
    for at, value, status, what in [
        (0, b"HTTP", Status.BAD_FRAME, "begins with"),
        (4, struct.pack("<H", VERSION + 1), Status.VERSION, f"speaks version {VERSION} only"),
        (8, struct.pack("<H", 1 << 15), Status.BAD_FRAME, "unknown flags"),
        (56, b"\x01", Status.BAD_FRAME, "reserved"),
        (40, struct.pack("<I", 2**32 - 1), Status.LIMIT, "at most"),
        (44, struct.pack("<I", MOST), Status.LIMIT, "at most"),
    ]:
        bad = good.copy()
        bad[at : at + len(value)] = value
        with pytest.raises(ProtocolError, match=what) as caught:
            decode(memoryview(bad), 0, MOST)
        assert caught.value.status is status


def test_a_large_frame_is_refused_at_its_header_and_nothing_is_kept_for_it() -> None:
    splitter = Splitter(MOST, 64)
    header = HEADER.pack(MAGIC, VERSION, Op.WRITE, 0, 0, 1, 1, 1, 0, 0, 0, 2**31, 0, 0)
    with pytest.raises(ProtocolError, match="at most"):
        list(splitter.feed(header))
    assert len(splitter.room()) < 4096


def _hostile(seed: int, count: int) -> int:
    """Bytes that are nearly frames, in pieces; how many were taken for frames."""
    draw = np.random.default_rng(seed)
    taken = 0
    splitter = Splitter(MOST)
    for _ in range(count):
        run = draw.bytes(int(draw.integers(0, 64)))
        raw = bytearray(encode(int(draw.integers(0, 24)), int(draw.integers(0, 99)), run, run))
        for _ in range(int(draw.integers(0, 4))):
            raw[int(draw.integers(0, len(raw)))] = int(draw.integers(0, 256))
        if draw.random() < 0.1:
            raw = raw[: int(draw.integers(0, len(raw)))]
        try:
            for frame in splitter.feed(raw):
                assert len(frame.keys) + len(frame.data) <= MOST
                taken += 1
                _read(frame)
        except ProtocolError:
            splitter = Splitter(MOST)
        room = splitter.room()
        assert len(room) <= 2 * MOST + HEADER_BYTES
    return taken


def _read(frame: Frame) -> None:
    """What stands in it as text decodes, or is refused as everything else."""
    try:
        parse_text(frame.keys, frame.request)
    except ProtocolError as error:
        assert error.request == frame.request


def test_hostile_bytes_end_in_frames_or_refusals_only() -> None:
    assert _hostile(0, 10_000) > 1000


@pytest.mark.long
def test_a_million_hostile_frames_end_in_frames_or_refusals_only() -> None:
    assert _hostile(1, 1_000_000) > 100_000


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_text_is_an_object_or_a_refusal(raw: bytes) -> None:
    try:
        assert isinstance(parse_text(memoryview(raw)), dict)
    except ProtocolError as error:
        assert error.status in (Status.BAD_REQUEST, Status.LIMIT)


def test_deeply_nested_text_is_refused() -> None:
    with pytest.raises(ProtocolError):
        parse_text(memoryview(b'{"a":' + b"[" * 60_000))


def test_flags_that_are_known_are_those_that_have_a_name() -> None:
    assert sum(Flag) == 31
