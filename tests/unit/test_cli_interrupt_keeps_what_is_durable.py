"""Ctrl-C, sent to a real process in the middle of a run, ends it with one line and status 130:
what is durable is kept, and nothing else is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from radix.cli import main

# The command line as it is, but a run says on standard output how far it has come.
PROGRAM = """\
import contextlib, sys
import radix.cli
from radix.commands import demo, replay
from radix.replay.progress import Progress

class Said(Progress):
    def phase(self, label, total):
        self.label = label
    def reach(self, done):
        if done > 200 and "optimal" not in self.label:
            print("under way", flush=True)

@contextlib.contextmanager
def said():
    yield Said()

replay.shown_progress = demo.shown_progress = said
sys.argv[0] = "radix"
sys.exit(radix.cli.main())
"""
TIERS = ["--tiers", "device=256,host=1024,disk=20000", "--block-bytes", "8192"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Far more than can be served before the signal comes."""
    random = np.random.default_rng(0)
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for number in range(30_000):
            ids = random.integers(0, 1 << 30, size=8).tolist()
            file.write(json.dumps({"timestamp": number, "hash_ids": ids}) + "\n")
    return path


@contextmanager
def running(*arguments: str, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has served some requests and is nowhere near its end."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "under way\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def interrupted(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "radix: interrupted\n")


def test_counting_run_ends(trace: Path, tmp_path: Path) -> None:
    capacities = ",".join(["1000"] * 40)
    with running(
        "replay", str(trace), "--policy", "lru", "--capacity", capacities, temporary=tmp_path
    ) as child:
        interrupted(child)


def test_run_with_bytes_keeps_what_is_durable(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, result = tmp_path / "data", tmp_path / "result.json"
    arguments = ["replay", str(trace), *TIERS, "--data", str(data), "--verify"]
    with running(*arguments, "--json", str(result), temporary=tmp_path) as child:
        interrupted(child)
    assert not result.exists()
    short = tmp_path / "short.jsonl"
    short.write_text("".join(trace.read_text().splitlines(keepends=True)[:20]))
    arguments[1] = str(short)
    assert main([*arguments, "--json", str(result)]) == 0
    capsys.readouterr()
    report = json.loads(result.read_text())
    assert report["passed"]
    assert report["runs"][0]["restored_blocks"] > 0
    assert report["runs"][0]["hit_tokens"]["disk"] > 0


def test_run_with_bytes_leaves_no_temporary_directory(trace: Path, tmp_path: Path) -> None:
    with running("replay", str(trace), *TIERS, temporary=tmp_path) as child:
        assert [path.name for path in tmp_path.glob("radix-*")]
        interrupted(child)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    report = tmp_path / "report"
    with running("demo", "--report", str(report), temporary=tmp_path) as child:
        assert [path.name for path in tmp_path.glob("radix-demo-*")]
        interrupted(child)
    assert list(tmp_path.iterdir()) == []
