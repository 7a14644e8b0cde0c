"""A model that keeps everything hits in a budget of bytes what LRU hits in as many blocks: exactly
the recorded counts of a real trace, whatever the checkpoints.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from radix.cli import main
from radix.replay.models import PRESETS

# A trace of whole blocks: nothing is left out.
NAME = "claude_code_mix64"


@pytest.mark.traces
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "DeepSeek-V3"])
def test_budgets_of_bytes_give_the_golden_counts_of_blocks(model: str, tmp_path: Path) -> None:
    folder = Path(os.environ["RADIX_TRACES"])
    golden = json.loads((folder / "golden.json").read_text())["traces"][NAME]
    block_bytes = 512 * PRESETS[model].token_bytes
    budgets = ",".join(str(int(blocks) * block_bytes) for blocks in golden["caps"])
    result = tmp_path / "result.json"
    arguments = ["--model", model, "--budget-bytes", budgets, "--checkpoints", "branch+turn"]
    trace = str(folder / f"{NAME}.jsonl.gz")
    assert main(["replay", trace, *arguments, "--json", str(result)]) == 0
    report = json.loads(result.read_text())
    assert (report["requests"], report["blocks"], report["unique_blocks"]) == (
        golden["requests"],
        golden["blocks"],
        golden["unique_blocks"],
    )
    assert report["footprint_bytes"] == golden["unique_blocks"] * block_bytes
    found = {run["capacity_blocks"]: run["hit_blocks"] for run in report["runs"]}
    assert found == {int(n): counts["lru_hit_blocks"] for n, counts in golden["caps"].items()}
