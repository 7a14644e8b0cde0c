"""The table in bench/README.md is the kept run's, every benchmark is explained there, and a report
can be drawn.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.registry import BY_NAME, with_peers
from bench.report import SCHEMA_VERSION, markdown_of
from bench.summary import compared, summary_of

BENCH = Path(__file__).resolve().parents[2] / "bench"
README = (BENCH / "README.md").read_text(encoding="utf-8")
KEPT = sorted((BENCH / "results").glob("*.json"))


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def test_table_is_that_of_the_run_that_is_named() -> None:
    (name,) = re.findall(r"^`results/([\w.-]+)`:", README, re.MULTILINE)
    assert markdown_of(report_of(BENCH / "results" / name)) in README


def test_readme_of_the_project_shows_where_peers_stand() -> None:
    (name,) = re.findall(r"^`results/([\w.-]+)`:", README, re.MULTILINE)
    report = report_of(BENCH / "results" / name)
    assert summary_of(report) in (BENCH.parent / "README.md").read_text(encoding="utf-8")
    assert any(each.times < 1 for each in compared(report)), "a peer wins nothing: look twice"


def test_every_benchmark_is_explained_where_people_look() -> None:
    for name in BY_NAME:
        assert f"- **{name}**:" in README, name


@pytest.mark.parametrize("path", KEPT, ids=[path.name for path in KEPT])
def test_kept_run_is_whole_and_names_no_machine(path: Path) -> None:
    report = report_of(path)
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["smoke"] is False
    assert [block["name"] for block in report["benchmarks"]] == list(with_peers())
    missing = {name for block in report["benchmarks"] for name in block.get("missing", ())}
    assert missing <= {"a second drive"}, "that machine has one"
    assert not any("skipped" in block for block in report["benchmarks"])
    assert not re.search(r'"[^"]*/(?:home|tmp|root|work)/', path.read_text())


def test_kept_run_can_be_drawn_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench import plot

    target = tmp_path / "figure.png"
    assert plot.main([str(KEPT[0]), str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert plot.main([str(tmp_path / "missing.json"), str(target)]) == 2
