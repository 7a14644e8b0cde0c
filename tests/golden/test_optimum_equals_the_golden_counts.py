"""Reading and the offline optimum give exactly the recorded counts on every real trace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from radix.replay.chains import encode_chains
from radix.replay.optimal import next_uses, optimal_hits
from radix.replay.traces import read_trace

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
def test_optimum_equals_the_golden_counts(name: str) -> None:
    folder = Path(os.environ["RADIX_TRACES"])
    golden = json.loads((folder / "golden.json").read_text())["traces"][name]
    trace = read_trace(str(folder / f"{name.split('/')[0]}.jsonl.gz"), page_tokens=16)
    chains = encode_chains(trace)
    assert (len(trace), chains.blocks, chains.unique_blocks) == (
        golden["requests"],
        golden["blocks"],
        golden["unique_blocks"],
    )
    following = next_uses(chains)
    expected = {int(cap): counts["optimal_hit_blocks"] for cap, counts in golden["caps"].items()}
    assert len(expected) == 5
    found = {cap: int(optimal_hits(chains, following, cap).sum()) for cap in expected}
    assert found == expected
