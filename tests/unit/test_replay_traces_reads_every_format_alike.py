"""A trace means the same however it is packed, and a prompt comes out exactly as recorded."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from radix.replay.traces import Trace, read_trace

BLOCK_LINES = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 7.5, "input_length": 40, "output_length": 5, "hash_ids": [9]},
    {"timestamp": 9, "input_length": 10, "output_length": 5, "hash_ids": []},
    {"timestamp": 9, "input_length": 2000, "output_length": 5, "hash_ids": [0, 1, 2**31 - 1]},
]
TOKEN_LINES = [
    {"t": 0, "s": "a", "ref": -1, "keep": 0, "add": [1, 2, 3], "out": [4, 5]},
    {"t": 1, "s": "a", "ref": 0, "keep": 5, "add": [6], "out": []},
    {"t": 2, "s": "a", "ref": 0, "keep": 4, "add": [], "out": [7]},
    {"t": 3, "s": "b", "ref": 1, "keep": 2, "add": [8, 9], "out": [7]},
    {"t": 4, "s": "b", "ref": -1, "keep": 0, "add": [1], "out": []},
]
TOKEN_PROMPTS = [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [1, 2, 8, 9], [1]]


def packed(lines: list[dict[str, object]], how: str = "plain") -> bytes:
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress}[how](data)


def prompts(trace: Trace) -> list[list[int]]:
    return [prompt.tolist() for prompt in trace.prompts()]


@pytest.mark.parametrize("how", ["plain", "gz", "xz"])
def test_block_trace_keeps_ids_and_times_in_every_packing(tmp_path: Path, how: str) -> None:
    path = tmp_path / "no-hint-in-the-name"
    path.write_bytes(packed(BLOCK_LINES, how))
    trace = read_trace(str(path), page_tokens=64)
    assert (trace.unit, trace.page_tokens, len(trace)) == ("block", 1, 4)
    assert prompts(trace) == [line["hash_ids"] for line in BLOCK_LINES]
    assert trace.timestamps.tolist() == [0, 7.5, 9, 9]
    assert trace.lengths.tolist() == [1100, 40, 10, 2000]
    assert [turn.tolist() for turn in trace.turns()] == prompts(trace)


@pytest.mark.parametrize("how", ["plain", "gz", "xz"])
def test_token_trace_rebuilds_prompts_from_references(tmp_path: Path, how: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(packed(TOKEN_LINES, how))
    trace = read_trace(str(path), page_tokens=2)
    assert (trace.unit, trace.page_tokens) == ("token", 2)
    assert prompts(trace) == TOKEN_PROMPTS
    assert trace.lengths.tolist() == [3, 6, 4, 4, 1]


def test_a_turn_is_prompt_and_output_without_its_last_token(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(packed(TOKEN_LINES))
    turns = [turn.tolist() for turn in read_trace(str(path)).turns()]
    assert turns == [[1, 2, 3, 4], *TOKEN_PROMPTS[1:]]


def test_a_block_trace_need_not_tell_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(packed([{"timestamp": 0, "hash_ids": [1, 2]}]))
    assert read_trace(str(path)).lengths.tolist() == [0]


def test_requests_hand_out_contiguous_int32_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(packed(TOKEN_LINES))
    requests = list(read_trace(str(path)).requests())
    assert [request.timestamp for request in requests] == [0, 1, 2, 3, 4]
    for request in requests:
        assert request.unit == "token"
        assert request.tokens.dtype == np.int32
        assert request.tokens.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            request.tokens[0] = 1


@pytest.mark.parametrize("how", ["plain", "gz", "xz"])
def test_standard_input_reads_like_a_file(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed(TOKEN_LINES, how))))
    trace = read_trace("-")
    assert trace.name == "<stdin>"
    assert prompts(trace) == TOKEN_PROMPTS


def test_real_pipe_that_delivers_byte_by_byte_reads_like_a_file() -> None:
    """The first read of a pipe may return less than a magic number; nothing may be lost by it."""
    program = (
        "from radix.replay.traces import read_trace\n"
        "print([p.tolist() for p in read_trace('-').prompts()])"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdin is not None
    data = packed(TOKEN_LINES, "gz")
    for byte in data[:8]:
        child.stdin.write(bytes([byte]))
    child.stdin.write(data[8:])
    out, _ = child.communicate(timeout=60)
    assert (child.returncode, json.loads(out)) == (0, TOKEN_PROMPTS)


def test_named_pipe_reads_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(packed(BLOCK_LINES, "xz"),))
    writer.start()
    trace = read_trace(str(path))
    writer.join()
    assert prompts(trace) == [line["hash_ids"] for line in BLOCK_LINES]


def test_blank_lines_and_a_missing_last_newline_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\n  \n" + packed(BLOCK_LINES).rstrip().replace(b"\n", b"\r\n\n"))
    assert prompts(read_trace(str(path))) == [line["hash_ids"] for line in BLOCK_LINES]
