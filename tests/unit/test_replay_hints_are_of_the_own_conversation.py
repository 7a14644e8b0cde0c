"""What requests of a trace would have said: the seconds until the next one of their own
conversation, or that none came; wrong on purpose alike on every machine; refused by name where the
trace names no conversations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radix.cli import main
from radix.hints import Hints
from radix.replay.hints import hints_of
from radix.replay.traces import read_trace


def written(path: Path, records: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def blocks(at: int, session: str | None, agent: str = "main") -> dict[str, object]:
    named = {} if session is None else {"session_id": session, "agent": agent}
    return {"timestamp": at, "input_length": 512, "output_length": 1, "hash_ids": [1], **named}


def test_block_traces_count_milliseconds_to_the_next_of_session_and_agent(tmp_path: Path) -> None:
    records = [blocks(0, "a"), blocks(500, "b"), blocks(700, "a", "helper"), blocks(2500, "a")]
    trace = read_trace(written(tmp_path / "t.jsonl", records))
    over = Hints(ended=True)
    assert hints_of(trace) == [Hints(expects_return=2.5), over, over, over]


def test_sessions_count_seconds_and_an_agent_has_a_conversation_of_its_own(tmp_path: Path) -> None:
    own = [{"t": t, "in": 64, "hash_runs": [1, 1]} for t in (0.0, 30.0)]
    agent = {"t": 5.0, "requests": [{"t": t, "in": 64, "hash_runs": [9, 1]} for t in (0.0, 4.0)]}
    record = {"block_size": 64, "requests": [own[0], agent, own[1]]}
    path = written(tmp_path / "s.jsonl", [record, record])
    said = hints_of(read_trace(path))
    over = Hints(ended=True)
    once = [Hints(expects_return=30.0), Hints(expects_return=4.0), over, over]
    assert said == once * 2


def test_so_many_are_wrong_as_is_said_and_always_the_same(tmp_path: Path) -> None:
    records = [blocks(1000 * at, f"s{at % 7}") for at in range(700)]
    trace = read_trace(written(tmp_path / "t.jsonl", records))
    true, some = hints_of(trace), hints_of(trace, 0.2)
    assert some == hints_of(trace, 0.2)
    assert sum(hint.ended for hint in true) == 7
    off = [hint.expects_return for hint in some if hint.expects_return is not None]
    assert sum(abs(each - 7) > 0.5 for each in off) > 0.5 * len(off)
    assert all(1 < each < 30 for each in off)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hints", "think"], "does not say which session a request is of"),
        (["--hints", "guess"], "--hints: 'guess' is not think"),
        (["--hint-error", "5%"], "--hint-error: needs --hints"),
        (["--hints", "think", "--hint-error", "5"], "--hint-error: expected 0% to 100%, not '5'"),
        (["--hints", "think", "--hint-error", "101%"], "--hint-error: expected 0% to 100%"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.jsonl", [blocks(0, None)])
    assert main(["replay", path, "--capacity", "4", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1


def test_a_session_that_is_no_string_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [{**blocks(0, "a"), "session_id": 5}])
    with pytest.raises(ValueError, match=r"session_id: expected a string, got an integer"):
        read_trace(path)
