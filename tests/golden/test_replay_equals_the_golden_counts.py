"""`radix replay` gives exactly the recorded counts, of LRU and of the optimum, on real traces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from radix.cli import main

TRACES = [
    "mooncake_conversation",
    "claude_code_mix64",
    "ragpulse",
    "miniswe_tok/16",
    "tau_airline_tok/16",
    "oasst_en100_tok/16",
]


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_replay_equals_the_golden_counts(name: str, tmp_path: Path) -> None:
    folder = Path(os.environ["RADIX_TRACES"])
    golden = json.loads((folder / "golden.json").read_text())["traces"][name]
    result = tmp_path / "result.json"
    trace = folder / f"{name.split('/')[0]}.jsonl.gz"
    capacities = ",".join(golden["caps"])
    assert main(["replay", str(trace), "--capacity", capacities, "--json", str(result)]) == 0
    report = json.loads(result.read_text())
    for what in ("requests", "blocks", "unique_blocks"):
        assert report[what] == golden[what]
    found = {(run["policy"], run["capacity_blocks"]): run["hit_blocks"] for run in report["runs"]}
    expected = {
        (policy, int(capacity)): counts[f"{policy}_hit_blocks"]
        for capacity, counts in golden["caps"].items()
        for policy in ("lru", "optimal")
    }
    assert len(expected) == 10
    assert found == expected
    assert all(run["total_blocks"] == golden["blocks"] for run in report["runs"])
    assert all(run["usable_hit_blocks"] <= run["hit_blocks"] for run in report["runs"])
