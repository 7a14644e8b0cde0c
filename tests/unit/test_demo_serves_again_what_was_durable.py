"""The demo: every tier serves hits, every loaded block is verified, the warm start serves all that
was durable, and only the report is left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radix.cli import main
from radix.replay.content import Content
from radix.replay.demo import run_demo
from radix.replay.options import TierSizes
from radix.replay.progress import Progress
from radix.replay.report import TieredReport
from radix.replay.workload import Span, WorkloadSizes

FILES = ["bytes.png", "hit_ratio.png", "occupancy.png", "summary.json", "timeline.json"]
SMALL = WorkloadSizes(
    chats=6,
    chat_turns=4,
    system_tokens=96,
    question_tokens=Span(8, 40),
    answer_tokens=Span(8, 60),
    agents=2,
    agent_steps=6,
    tool_tokens=160,
    task_tokens=Span(20, 60),
    result_tokens=Span(10, 80),
    action_tokens=Span(4, 20),
    documents=6,
    document_tokens=Span(160, 320),
    summary_tokens=Span(4, 12),
    abort_chance=0.2,
)
# So narrow that requests must sometimes make room for each other.
SIZES = TierSizes(device=64, host=104, disk=600)


class Told(Progress):
    """Remembers the phases of a run and how far each came."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []

    def phase(self, label: str, total: int) -> None:
        self.phases.append([label, total, 0])

    def reach(self, done: int) -> None:
        self.phases[-1][2] = done


def small(folder: Path, seed: int = 0, sizes: TierSizes = SIZES) -> TieredReport:
    return run_demo(seed, folder, Progress(), SMALL, sizes)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_both_passes_are_right_for_any_seed(tmp_path: Path, temporary: Path, seed: int) -> None:
    report = small(tmp_path / "report", seed)
    assert report.passed, [check for check in report.checks if not check.passed]
    cold, warm = report.runs
    assert (cold.label, warm.label) == ("cold start", "warm start")
    for run in report.runs:
        assert all(run.hit_tokens[tier] > 0 for tier in ("device", "host", "disk"))
        assert run.loaded_blocks == run.verified_blocks > 0
        assert run.saved_tokens + sum(run.missed_tokens.values()) == run.prompt_tokens
    assert cold.restored_blocks == 0 < warm.restored_blocks
    assert warm.saved_tokens > cold.saved_tokens
    assert warm.moved_bytes["host to disk"] <= cold.moved_bytes["host to disk"]
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == FILES


def test_report_holds_plots_timeline_and_summary(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    report = small(folder)
    for name in FILES[:3]:
        assert (folder / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["passed"] is True
    assert summary["runs"] == json.loads(json.dumps(report.as_json()["runs"]))
    assert summary["counters"]["cold start"]["match.queries"] == report.runs[0].requests
    assert summary["counters"]["warm start"]["restore.blocks.disk"] > 0
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"chat", "agent", "scan", "device to host", "host to disk", "disk to host"} <= tracks
    spans = [event["name"].partition(": ")[2] for event in events if event["ph"] == "X"]
    assert {"loading", "running", "generation done", "finalized"} <= set(spans)
    made = sum(run.requests for run in report.runs)
    assert spans.count("loading") == spans.count("running") == made
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_same_seed_asks_for_the_same(tmp_path: Path) -> None:
    first, second, other = (small(tmp_path / "report", seed) for seed in (7, 7, 8))
    assert first.runs[0].prompt_tokens == second.runs[0].prompt_tokens
    assert first.runs[0].requests == second.runs[0].requests
    assert first.runs[0].prompt_tokens != other.runs[0].prompt_tokens


def test_progress_goes_through_both_passes_and_the_rest(tmp_path: Path) -> None:
    told = Told()
    run_demo(0, tmp_path / "report", told, SMALL, SIZES)
    assert [phase[0] for phase in told.phases] == [
        "cold start",
        "warm start",
        "blocks not asked for again",
    ]
    assert all(total == reached > 0 for _, total, reached in told.phases)


def test_wrong_bytes_fail_the_demo_and_leave_no_data(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_right = Content.write

    def write_wrong(content: Content, slots: Any, keys: Any) -> None:
        write_right(content, slots, keys[::-1])

    monkeypatch.setattr(Content, "write", write_wrong)
    report = small(tmp_path / "report")
    failed = {check.name for check in report.checks if not check.passed}
    assert failed == {
        "cold start: hits held the right bytes",
        "warm start: hits held the right bytes",
        "warm start: durable blocks were served",
    }
    assert list(temporary.iterdir()) == []


def test_failure_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: Content, slots: Any, keys: Any) -> None:
        raise RuntimeError("the model has failed")

    monkeypatch.setattr(Content, "write", fail)
    with pytest.raises(RuntimeError, match="the model has failed"):
        small(tmp_path / "report")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "report").exists()


def test_report_that_cannot_be_written_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["demo", "--report", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(file) in err
    assert file.read_text() == "mine"


def test_command_runs_as_it_is_and_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "radix.cli", "demo", "--report", "report", "--json", "-"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "report: report/\n")
    summary = json.loads(done.stdout)
    assert summary["passed"] is True
    assert [run["label"] for run in summary["runs"]] == ["cold start", "warm start"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == FILES
    assert list((tmp_path / "temporary").iterdir()) == []
