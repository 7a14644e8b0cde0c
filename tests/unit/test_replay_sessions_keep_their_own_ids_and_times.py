"""Whole sessions become one stream: ids of two never meet, requests stand at their own times, and
how sessions are put together is decided by the arguments alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.cli import main
from radix.replay.sessions import Interleave
from radix.replay.traces import Trace, read_trace


def request(t: float, *runs: int, api_time: float | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"t": t, "in": 64 * sum(runs[1::2]) + 7, "hash_runs": list(runs)}
    return made if api_time is None else {**made, "api_time": api_time}


def session(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "requests": list(requests)}


def read(folder: Path, sessions: Sequence[dict[str, Any]], how: Interleave | None = None) -> Trace:
    path = folder / "sessions.jsonl"
    path.write_text("\n".join(map(json.dumps, sessions)))
    return read_trace(str(path), 16, how)


def prompts(trace: Trace) -> list[list[int]]:
    return [prompt.tolist() for prompt in trace.prompts()]


def test_runs_become_ids_and_lengths_stay(tmp_path: Path) -> None:
    trace = read(tmp_path, [session(request(0, 3, 2, 9, 3), request(4, 5, 1), request(5))])
    assert prompts(trace) == [[3, 4, 9, 10, 11], [5], []]
    assert trace.lengths.tolist() == [64 * 5 + 7, 71, 7]
    assert (trace.unit, trace.page_tokens, trace.block_tokens) == ("block", 1, 64)
    assert trace.timestamps.tolist() == [0, 4, 5]
    assert [turn.tolist() for turn in trace.turns()] == prompts(trace)


def test_ids_of_two_sessions_never_meet(tmp_path: Path) -> None:
    trace = read(tmp_path, [session(request(0, 0, 3)), session(), session(request(0, 0, 3, 7, 1))])
    assert prompts(trace) == [[0, 1, 2], [3, 4, 5, 10]]


def test_a_nested_agent_replays_at_its_own_time(tmp_path: Path) -> None:
    inner = {"t": 1, "requests": [request(0, 50, 1), request(30, 50, 2)]}
    agent = {"t": 9, "requests": [request(0, 20, 1), inner, request(5, 20, 2)]}
    trace = read(tmp_path, [session(request(0, 1, 1), agent, request(12, 1, 2))])
    assert trace.timestamps.tolist() == [0, 9, 10, 12, 14, 40]
    assert prompts(trace) == [[1], [20], [50], [1, 2], [20, 21], [50, 51]]


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    agent = {"t": 2, "requests": [request(0, 20, 1)]}
    trace = read(tmp_path, [session(agent, request(2, 1, 1), request(2, 2, 1), request(1, 3, 1))])
    assert prompts(trace) == [[3], [20], [1], [2]]


def test_sessions_follow_each_other_when_the_last_answer_is_there(tmp_path: Path) -> None:
    agent = {"t": 1, "requests": [request(6, 9, 1, api_time=4)]}
    first = session(request(0, 1, 1, api_time=5), agent, request(3, 2, 1, api_time=0.5))
    trace = read(tmp_path, [first, session(request(0, 1, 1)), session(request(2, 1, 1))])
    assert trace.timestamps.tolist() == [0, 3, 7, 11, 13]


SESSIONS = [
    session(*(request(10 * turn, 1, turn + 1, api_time=2) for turn in range(3 + number % 4)))
    for number in range(12)
]
ENDS = [10 * (2 + number % 4) + 2 for number in range(12)]


def first_ids(sessions: int) -> list[int]:
    """The first id of each session of SESSIONS."""
    used = np.cumsum([0, *(3 + number % 4 + 1 for number in range(sessions))])
    return [int(start) + 1 for start in used[:-1]]


def spans(trace: Trace) -> list[tuple[float, float]]:
    """From when to when each of SESSIONS runs, in the order of the file."""
    starts: dict[int, float] = {}
    for at, prompt in zip(trace.timestamps.tolist(), trace.prompts(), strict=True):
        starts.setdefault(int(prompt[0]), at)
    begins = [starts[first] for first in first_ids(12)]
    return [(begin, begin + end) for begin, end in zip(begins, ENDS, strict=True)]


@pytest.mark.parametrize("most", [1, 3, 12, 40])
@pytest.mark.parametrize("gap_s", [0.0, 7.5])
def test_no_more_sessions_run_at_once_than_asked_for(
    tmp_path: Path, most: int, gap_s: float
) -> None:
    trace = read(tmp_path, SESSIONS, Interleave(most, gap_s, 5))
    assert (np.diff(trace.timestamps) >= 0).all()
    ran = spans(trace)
    together = [sum(a <= begin < b for a, b in ran) for begin, _ in ran]
    assert max(together) <= most
    if gap_s == 0:
        assert max(together) == min(most, 12)  # every place is taken as soon as it is free
    plain = read(tmp_path, SESSIONS)
    assert sorted(map(tuple, prompts(trace))) == sorted(map(tuple, prompts(plain)))


def test_a_session_keeps_its_own_pace(tmp_path: Path) -> None:
    trace = read(tmp_path, SESSIONS, Interleave(4, 20.0, 1))
    times: dict[int, list[float]] = {}
    for at, prompt in zip(trace.timestamps.tolist(), trace.prompts(), strict=True):
        times.setdefault(int(prompt[0]), []).append(at)
    for number, first in enumerate(first_ids(12)):
        assert np.diff(times[first]) == pytest.approx([10.0] * (2 + number % 4))


def test_the_seed_decides_order_and_starts(tmp_path: Path) -> None:
    one, same, other = (read(tmp_path, SESSIONS, Interleave(3, 5.0, seed)) for seed in (1, 1, 2))
    assert (one.timestamps == same.timestamps).all() and prompts(one) == prompts(same)
    assert prompts(one) != prompts(other)
    starts = [begin for begin, _ in spans(one)]
    assert starts != sorted(starts)


def test_gaps_are_as_long_as_asked_for_on_average() -> None:
    starts = sorted(Interleave(5000, 4.0, 3).starts([1.0] * 4000))
    gaps = np.diff([0.0, *starts])
    assert gaps.mean() == pytest.approx(4, rel=0.1)
    assert gaps.std() == pytest.approx(4, rel=0.1)  # of an exponential distribution its mean


def test_name_says_how_sessions_were_interleaved(tmp_path: Path) -> None:
    assert read(tmp_path, SESSIONS).name == str(tmp_path / "sessions.jsonl")
    name = read(tmp_path, SESSIONS, Interleave(3, 2.5, 8)).name
    assert name == f"{tmp_path / 'sessions.jsonl'} (3 at once, gap 2.5 s, seed 8)"


def counted(folder: Path, *arguments: str) -> dict[str, Any]:
    target, path = folder / "out.json", folder / "sessions.jsonl"
    path.write_text("\n".join(map(json.dumps, SESSIONS)))
    assert main(["replay", str(path), *arguments, "--json", str(target)]) == 0
    report: dict[str, Any] = json.loads(target.read_text())
    return report


def test_command_line_interleaves_sessions(tmp_path: Path) -> None:
    one = counted(tmp_path, "--capacity", "9", "--interleave", "3", "--gap", "0.5", "--seed", "4")
    plain = counted(tmp_path, "--capacity", "9")
    assert one["trace"].endswith("(3 at once, gap 0.5 s, seed 4)")
    assert one["requests"] == plain["requests"] == sum(3 + number % 4 for number in range(12))
    assert one["unique_blocks"] == plain["unique_blocks"]
    lru = [report["runs"][0]["hit_blocks"] for report in (one, plain)]
    assert lru[0] < lru[1]  # three at once do not fit where one does


def test_a_model_takes_the_blocks_of_the_sessions(tmp_path: Path) -> None:
    model = ["--model", "Llama-3.1-8B", "--budget-bytes", "50%", "--checkpoints", "dense"]
    assert counted(tmp_path, *model)["page_tokens"] == 64
    assert counted(tmp_path, *model, "--page-tokens", "32")["page_tokens"] == 32


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gap", "5"], "--gap: needs --interleave"),
        (["--seed", "5"], "--seed: needs --interleave"),
        (["--interleave", "0"], "--interleave: expected an integer of at least 1"),
        (["--interleave", "2", "--gap", "-1"], "--gap: expected seconds"),
        (["--interleave", "2", "--gap", "nan"], "--gap: expected seconds"),
        (["--interleave", "2", "--seed", "-1"], "--seed: expected an integer of at least 0"),
        (["--interleave", "2", "--seed", "9" * 5000], "--seed: expected an integer of at least 0"),
    ],
)
def test_arguments_that_arrange_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(json.dumps(SESSIONS[0]))
    assert main(["replay", str(path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err


@pytest.mark.traces
def test_sessions_hold_the_blocks_of_the_trace_that_was_made_of_them() -> None:
    # The mix names every eighth block of 64 tokens, from an id of its own for each session.
    import gzip
    import lzma

    folder = Path(os.environ["RADIX_TRACES"])
    mixed: dict[str, list[list[int]]] = {}
    with gzip.open(folder / "claude_code_mix64.jsonl.gz") as lines:
        for record in map(json.loads, lines):
            mixed.setdefault(record["session_id"], []).append(record["hash_ids"])
    source = folder / "claude_code_sessions.jsonl.xz"
    with lzma.open(source) as lines:
        numbers = {json.loads(line)["id"]: number for number, line in enumerate(lines)}
    trace = read_trace(str(source))
    assert len(trace) == 49_334 and len(trace.tokens) == 94_310_647
    assert np.diff(trace.offsets).max() == 13_974  # as the page of the traces says
    found: dict[int, list[np.ndarray[Any, Any]]] = {}
    with lzma.open(source) as lines:
        counts = [_requests(json.loads(line)["requests"]) for line in lines]
    stream = trace.prompts()
    for number, count in enumerate(counts):
        found[number] = [next(stream) for _ in range(count)]
    for name, expected in mixed.items():
        ours = found[numbers[name]]
        assert len(ours) == len(expected)
        base = expected[0][0] - int(ours[0][7])
        for mine, theirs in zip(ours, expected, strict=True):
            assert (mine[7::8] + base).tolist() == theirs


def _requests(requests: list[dict[str, Any]]) -> int:
    return sum(_requests(each["requests"]) if "requests" in each else 1 for each in requests)
