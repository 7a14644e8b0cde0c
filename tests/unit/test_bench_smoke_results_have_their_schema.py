"""Every benchmark runs at its smoke size, reports in the schema, and finds the same results (the
digest, never the times) in two runs.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.registry import BY_NAME
from bench.report import SCHEMA_VERSION, markdown_of
from bench.run import main

PEERS = {"sglang-rust", "sglang-python", "sglang-radix", "vllm", "dynamo", "lmcache"}
SUBJECTS = {"radix", "limit", "plain", "lmdb", "fio", *PEERS}


def smoke(folder: Path, *names: str) -> dict[str, Any]:
    target = folder / "report.json"
    assert main([*names, "--smoke", "--json", str(target), "--data", str(folder)]) == 0
    assert list(folder.iterdir()) == [target], "a benchmark left something behind"
    report: dict[str, Any] = json.loads(target.read_text())
    target.unlink()
    return report


@pytest.mark.parametrize("name", BY_NAME)
def test_smoke_run_keeps_schema_and_digest(name: str, tmp_path: Path) -> None:
    report = smoke(tmp_path, name)
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["smoke"] is True
    assert {"cpu", "cores", "kernel", "memory_bytes"} <= set(report["machine"])
    assert {"radix", "python", "numpy", "lmdb"} <= set(report["versions"])
    (block,) = report["benchmarks"]
    assert block["name"] == name
    if "skipped" in block:
        pytest.skip(block["skipped"])
    assert block["rows"]
    assert block["facts"]
    assert block["parameters"] == dict(BY_NAME[name].smoke)
    for row in block["rows"]:
        assert row["subject"] in SUBJECTS
        assert row["samples"]
        assert all(math.isfinite(sample) and sample > 0 for sample in row["samples"]), row
        assert min(row["samples"]) <= row["median"] <= max(row["samples"])
    known = {row["name"] for row in block["rows"]}
    known |= {f"{each['name']} / {each['to']}" for each in block["ratios"]}
    assert {each["name"] for each in block["targets"]} <= known
    shown = markdown_of(report)
    assert f"**{name}**" in shown if "columns" in block else f"| {name} |" in shown
    assert smoke(tmp_path, name)["digest"] == report["digest"]


def test_digest_changes_with_what_was_counted_and_not_with_times() -> None:
    from bench.measure import Benchmark, Outcome, Row
    from bench.report import benchmark_block

    def block(hits: int, seconds: float) -> str:
        outcome = Outcome(rows=[Row("r", "radix", "s", (seconds,))], facts={"hits": hits})
        bench = Benchmark("b", "b", lambda sizes, place: outcome, smoke={}, full={})
        return str(benchmark_block(bench, {}, outcome)["digest"])

    assert block(3, 1.0) == block(3, 2.0)
    assert block(3, 1.0) != block(4, 1.0)


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", "no-such-thing"]) == 2
    assert "no-such-thing" in capsys.readouterr().err


def test_every_full_size_measures_five_rounds_at_least() -> None:
    for benchmark in BY_NAME.values():
        assert set(benchmark.smoke) == set(benchmark.full)
        assert benchmark.full.get("rounds", 5) >= 5, benchmark.name
