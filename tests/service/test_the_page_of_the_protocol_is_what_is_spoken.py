"""docs/protocol.md draws the frames: its offsets, numbers and names are those of the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from radix.service.dispatch import ANSWERS
from radix.service.opening import _GROUP_KEYS, _OPEN_KEYS
from radix.service.protocol import EVENT, HEADER_BYTES, MAGIC, VERSION, Flag, Op, Status, encode

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_each_field_lies_where_the_page_draws_it() -> None:
    rows = re.findall(r"^ +(\d+) +(\d+) +(\w+)  ", PAGE, re.M)
    places = {name: (int(at), int(size)) for at, size, name in rows}
    assert sum(size for _, size in places.values()) == HEADER_BYTES
    values = {
        "status": 3,
        "store": 0x01020304,
        "items": 9,
        "group": 8,
        "number": 1 << 60,
        "argument": 1 << 50,
        "flags": 5,
    }
    raw = bytes(encode(7, 1 << 40, b"abc", b"defgh", **values))
    values |= {"op": 7, "request": 1 << 40, "keys_bytes": 3, "data_bytes": 5, "version": VERSION}
    for name, value in values.items():
        at, size = places[name]
        assert int.from_bytes(raw[at : at + size], "little") == value, name
    at, size = places["magic"]
    assert raw[at : at + size] == MAGIC
    assert raw[64:] == b"abc\0\0\0\0\0defgh\0\0\0"


def test_every_op_status_and_flag_stands_there_with_its_number() -> None:
    for op in Op:
        assert f"**{op.value} {op.name}**" in PAGE, op
    for status in Status:
        assert f"| {status.value} | {status.name} |" in PAGE, status
    for flag in Flag:
        assert f"{flag.name} {flag.value}" in PAGE, flag
    assert {*ANSWERS, Op.LOOKUP} == set(Op)


def test_every_field_of_open_and_of_an_event_stands_there() -> None:
    for name in _OPEN_KEYS | _GROUP_KEYS:
        assert f'"{name}"' in PAGE, name
    assert EVENT.names is not None
    for name in EVENT.names:
        assert f" {name} " in PAGE, name
    assert struct.calcsize("<BBHIq") == EVENT.itemsize
