"""A trace that cannot be replayed is refused whole, with file, line and field in one line."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from radix.replay.sessions import Interleave
from radix.replay.traces import TraceError, read_trace

BLOCK = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
TOKEN = {"t": 0, "s": "a", "ref": -1, "keep": 0, "add": [1, 2, 3], "out": [4, 5]}


def refuse(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(str(path))
    error = caught.value
    assert error.file == str(path)
    assert "\n" not in str(error)
    for known in (error.file, str(error.line or ""), error.field, error.what):
        assert known in str(error)
    return error


def refuse_line(tmp_path: Path, good: dict[str, Any], line: str) -> TraceError:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(good) + "\n" + line + "\n" + json.dumps(good) + "\n")
    error = refuse(path)
    assert error.line == 2
    return error


@pytest.mark.parametrize("good", [BLOCK, TOKEN], ids=["block", "token"])
@pytest.mark.parametrize(
    "line", ["not json", '{"timestamp": 1', "[1, 2]", "3", "null", '"text"', "[" * 100_000]
)
def test_line_that_is_no_json_object_is_refused(
    tmp_path: Path, good: dict[str, Any], line: str
) -> None:
    assert refuse_line(tmp_path, good, line).field == ""


@pytest.mark.parametrize(
    ("good", "field"),
    [(BLOCK, "timestamp"), (BLOCK, "hash_ids")]
    + [(TOKEN, field) for field in ("t", "ref", "keep", "add", "out")],
)
def test_missing_field_is_named(tmp_path: Path, good: dict[str, Any], field: str) -> None:
    line = {key: value for key, value in good.items() if key != field}
    error = refuse_line(tmp_path, good, json.dumps(line))
    assert (error.field, error.what) == (field, "field is missing")


@pytest.mark.parametrize(("good", "field"), [(BLOCK, "hash_ids"), (TOKEN, "add"), (TOKEN, "out")])
@pytest.mark.parametrize("bad", ["-1", "2147483648", "1e3", "1.5", "true", "null", '"7"', "[1]"])
@pytest.mark.parametrize("index", [0, 2])
def test_id_that_is_no_int32_is_named_with_its_index(
    tmp_path: Path, good: dict[str, Any], field: str, bad: str, index: int
) -> None:
    values = ["5", "6"]
    values.insert(index, bad)
    line = json.dumps({**good, field: "here"}).replace('"here"', f"[{', '.join(values)}]")
    assert refuse_line(tmp_path, good, line).field == f"{field}[{index}]"


def test_id_of_thousands_of_digits_is_refused_in_a_short_line(tmp_path: Path) -> None:
    line = json.dumps({**BLOCK, "hash_ids": [10**4000]})
    assert len(str(refuse_line(tmp_path, BLOCK, line))) < 300


@pytest.mark.parametrize(
    ("good", "field", "value"),
    [
        (BLOCK, "hash_ids", 7),
        (BLOCK, "hash_ids", "012"),
        (BLOCK, "timestamp", "now"),
        (BLOCK, "timestamp", True),
        (BLOCK, "timestamp", float("nan")),
        (BLOCK, "timestamp", 10**400),
        (TOKEN, "t", None),
        (TOKEN, "ref", 1),
        (TOKEN, "ref", -2),
        (TOKEN, "ref", 0.0),
        (TOKEN, "ref", False),
        (TOKEN, "keep", -1),
        (TOKEN, "keep", 1),
        (TOKEN, "keep", "1"),
        (TOKEN, "add", {}),
        (TOKEN, "add", []),
    ],
)
def test_field_of_wrong_type_or_range_is_named(
    tmp_path: Path, good: dict[str, Any], field: str, value: object
) -> None:
    assert refuse_line(tmp_path, good, json.dumps({**good, field: value})).field == field


def test_keep_beyond_the_referenced_record_is_refused(tmp_path: Path) -> None:
    assert "5" in refuse_line(tmp_path, TOKEN, json.dumps({**TOKEN, "ref": 0, "keep": 6})).what


@pytest.mark.parametrize(
    ("first", "field"),
    [
        ({key: BLOCK[key] for key in BLOCK if key != "hash_ids"}, "hash_ids"),
        ({key: TOKEN[key] for key in TOKEN if key != "ref"}, "ref"),
        ({"id": "x", "block_size": 64, "requests": 3}, "requests"),
        ({"prompt": "hello", "answer": "world"}, ""),
        ({}, ""),
    ],
)
def test_first_line_tells_the_format_or_is_refused(
    tmp_path: Path, first: dict[str, Any], field: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(first) + "\n")
    error = refuse(path)
    assert (error.line, error.field) == (1, field)


SESSION_REQUEST = {"t": 0.5, "in": 130, "hash_runs": [1, 2], "api_time": 2}


def session(**changes: Any) -> dict[str, Any]:
    """A session of one request, some of its fields changed; None takes one out."""
    request = {**SESSION_REQUEST, **changes}
    request = {name: value for name, value in request.items() if value is not None}
    return {"id": "x", "block_size": 64, "requests": [request]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("t", None),
        ("t", "0"),
        ("t", True),
        ("t", -1),
        ("t", float("nan")),
        ("t", float("inf")),
        ("t", 1 << 40),
        ("in", None),
        ("in", -1),
        ("in", 1.5),
        ("in", True),
        ("api_time", -0.5),
        ("api_time", "2"),
        ("hash_runs", None),
        ("hash_runs", {}),
        ("hash_runs", [1]),
        ("hash_runs", [1, 2.0]),
        ("hash_runs", [True, 2]),
        ("hash_runs", ["1", 2]),
        ("hash_runs", [-1, 2]),
        ("hash_runs", [1, -2]),
        ("hash_runs", [1 << 31, 1]),
        ("hash_runs", [1, 1 << 80]),
    ],
)
def test_request_of_a_session_is_refused_by_its_place(
    tmp_path: Path, field: str, value: Any
) -> None:
    line = json.dumps(session(**{field: value}))
    assert refuse_line(tmp_path, session(), line).field == f"requests[0].{field}"
    agent = {"t": 1, "requests": session(**{field: value})["requests"]}
    line = json.dumps({"block_size": 64, "requests": [SESSION_REQUEST, agent]})
    assert refuse_line(tmp_path, session(), line).field == f"requests[1].requests[0].{field}"


def nested(depth: int) -> dict[str, Any]:
    record = session()
    for _ in range(depth):
        record = {"block_size": 64, "requests": [{"t": 0, "requests": record["requests"]}]}
    return record


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"requests": []}, "block_size"),
        ({"block_size": 0, "requests": []}, "block_size"),
        ({"block_size": 64.0, "requests": []}, "block_size"),
        ({"block_size": 16, "requests": []}, "block_size"),  # another than the session before
        ({"block_size": 64}, "requests"),
        ({"block_size": 64, "requests": {}}, "requests"),
        ({"block_size": 64, "requests": [7]}, "requests[0]"),
        (session(hash_runs=[(1 << 31) - 2, 2]), "requests"),  # too many ids with those before
        (nested(17), "requests[0]." * 17 + "requests"),
    ],
)
def test_session_that_cannot_be_replayed_is_refused_by_field(
    tmp_path: Path, line: dict[str, Any], field: str
) -> None:
    assert refuse_line(tmp_path, session(), json.dumps(line)).field == field


def test_agents_may_be_nested_so_deep(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    path.write_text(json.dumps(nested(16)))
    assert read_trace(str(path)).timestamps.tolist() == [0.5]


def test_sessions_without_a_request_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl.xz"
    path.write_bytes(lzma.compress(b'{"id": "x", "block_size": 64, "requests": []}\n'))
    error = refuse(path)
    assert (error.line, error.what) == (0, "no session has a request")


def test_what_holds_no_sessions_is_not_interleaved(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for record in (BLOCK, TOKEN):
        path.write_text(json.dumps(record))
        with pytest.raises(TraceError, match="holds no whole sessions"):
            read_trace(str(path), 16, Interleave(2, 0.0, 0))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", gzip.compress(b"", mtime=0), lzma.compress(b"")],
    ids=["nothing", "blank", "gz", "xz"],
)
def test_empty_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    assert refuse(path).what == "the trace is empty"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_compressed_file_is_refused(tmp_path: Path, pack: Any, damage: str) -> None:
    data = bytearray(
        pack("".join(json.dumps({**BLOCK, "x": i}) + "\n" for i in range(999)).encode())
    )
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "trace"
    path.write_bytes(data)
    refuse(path)


@pytest.mark.parametrize("magic", [b"\x28\xb5\x2f\xfd", b"BZh9", b"PK\x03\x04"])
def test_unreadable_compression_is_named(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(magic + bytes(100))
    assert "plain, gz or xz" in refuse(path).what


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    assert refuse(tmp_path / "nowhere.jsonl").what == "no such file"
    assert refuse(tmp_path).line == 0


def test_page_of_no_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="page_tokens must be at least 1, got 0"):
        read_trace(str(tmp_path / "unread"), page_tokens=0)


@pytest.mark.parametrize("bad", ["-1", "1.5", "true", "null", '"7"', "[1]", "1099511627776"])
def test_a_length_that_is_no_count_of_tokens_is_named(tmp_path: Path, bad: str) -> None:
    line = f'{{"timestamp": 0, "input_length": {bad}, "hash_ids": [1]}}'
    assert refuse_line(tmp_path, BLOCK, line).field == "input_length"
