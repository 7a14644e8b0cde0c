"""The native list alone, without cache or tiers above it, gives exactly the recorded LRU counts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from radix.replay.traces import Trace, read_trace
from radix.tree import Cursor, TreeCore

TRACES = [
    "mooncake_conversation",
    "claude_code_mix64",
    "ragpulse",
    "miniswe_tok/16",
    "tau_airline_tok/16",
    "oasst_en100_tok/16",
]
COLUMN = np.zeros(1, np.uint32)


def count_hits(trace: Trace, capacity: int) -> int:
    """Hit blocks of a trace at a capacity: pin what is there, make room, insert what fits."""
    width = trace.page_tokens
    tree = TreeCore(4 * width, groups=1, tiers=1, keep_keys=False)
    root = tree.root()
    slots = np.zeros(1 << 16, np.int32)
    hits = used = 0
    for prompt in trace.prompts():
        found = tree.match(root, prompt, 0)
        hits += found.structural_pages
        lease, node, pages = tree.lease(Cursor(root, found.node, found.structural_pages))
        count = len(prompt) // width - pages
        if count and used + count > capacity:
            used -= tree.evict(0, slots[: used + count - capacity])
            count = min(count, capacity - used)
        if count:
            run = prompt[pages * width : (pages + count) * width]
            tree.insert(Cursor(root, node, pages), run, COLUMN, slots[:count], None, lease)
            used += count
        tree.release(lease)
    tree.check()
    assert tree.column_stats(0)[:2] == (used, 0)
    return hits


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_lru_equals_the_golden_counts(name: str) -> None:
    folder = Path(os.environ["RADIX_TRACES"])
    golden = json.loads((folder / "golden.json").read_text())["traces"][name]
    trace = read_trace(str(folder / f"{name.split('/')[0]}.jsonl.gz"), page_tokens=16)
    expected = {int(cap): counts["lru_hit_blocks"] for cap, counts in golden["caps"].items()}
    assert len(expected) == 5
    assert {capacity: count_hits(trace, capacity) for capacity in expected} == expected
