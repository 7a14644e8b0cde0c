"""Whole sessions that are made here give exactly the recorded counts, however they are arranged:
recorded once, and equal to what a cache in a few lines counts, which shares no code with ours.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radix.cli import main
from radix.replay.sessions import Interleave
from radix.replay.traces import read_trace

# Requests, blocks and unique blocks do not depend on how sessions are arranged; hit blocks by
# capacity do.
CAPACITIES = (40, 90, 200)
TOTALS = {"requests": 224, "blocks": 4647, "unique_blocks": 1126}
GOLDEN: dict[tuple[str, ...], dict[str, list[int]]] = {
    (): {"lru": [3449, 3521, 3521], "optimal": [3466, 3521, 3521]},
    ("--interleave", "4", "--gap", "0", "--seed", "1"): {
        "lru": [981, 2024, 3506],
        "optimal": [1993, 3138, 3521],
    },
    ("--interleave", "4", "--gap", "30", "--seed", "1"): {
        "lru": [1355, 2559, 3521],
        "optimal": [2193, 3286, 3521],
    },
    ("--interleave", "4", "--gap", "30", "--seed", "2"): {
        "lru": [1518, 2766, 3521],
        "optimal": [2383, 3327, 3521],
    },
    ("--interleave", "24", "--gap", "30", "--seed", "1"): {
        "lru": [1001, 1908, 3037],
        "optimal": [1849, 2780, 3481],
    },
}


def sessions() -> Iterator[dict[str, Any]]:
    """24 sessions that grow, turn back now and then, and start agents. Only ``random()`` is drawn,
    which is the same everywhere.
    """
    draw = random.Random(20260).random
    for number in range(24):
        fresh, context, at, requests = 1 + int(9 * draw()), [(1, 12)], 0.0, []
        for turn in range(3 + int(8 * draw())):
            if turn and draw() < 0.15:
                start, length = context.pop()
                if length > 1:
                    context.append((start, length - 1))
            new = 1 + int(6 * draw())
            fresh = max(fresh + 1, 100 * turn + 20)
            context.append((fresh, new))
            fresh += new
            requests.append(request(at, context))
            if draw() < 0.2:
                requests.append(agent(at + 1, 5000 + 100 * turn, draw))
            at += math.floor(40 * draw())
        yield {"id": f"made_{number}", "block_size": 64, "requests": requests}


def request(at: float, context: list[tuple[int, int]]) -> dict[str, Any]:
    runs = [value for run in context for value in run]
    tokens = 64 * sum(length for _, length in context) + 3
    return {"t": at, "in": tokens, "hash_runs": runs, "api_time": 2.5}


def agent(at: float, first: int, draw: Any) -> dict[str, Any]:
    turns = range(1 + int(4 * draw()))
    return {"t": at, "requests": [request(5.0 * n, [(first, 8 + 2 * n)]) for n in turns]}


def naive_lru(prompts: list[tuple[int, ...]], capacity: int) -> int:
    """Hit blocks of LRU: only blocks without a child go, those of the running request stay."""
    used: dict[tuple[int, ...], int] = {}
    children: dict[tuple[int, ...], int] = {}
    hits = 0
    for clock, prompt in enumerate(prompts):
        chain = [prompt[: end + 1] for end in range(len(prompt))]
        known = next((n for n, block in enumerate(chain) if block not in used), len(chain))
        hits += known
        keep = set(chain)
        for depth, block in enumerate(chain):
            if block not in used:
                if len(used) == capacity:
                    free = [b for b in used if not children.get(b) and b not in keep]
                    if not free:
                        break
                    # of those that one request used last, the deepest goes first
                    gone = min(free, key=lambda b: (used[b], -len(b)))
                    del used[gone]
                    if len(gone) > 1:
                        children[gone[:-1]] -= 1
                if depth:
                    children[block[:-1]] = children.get(block[:-1], 0) + 1
            used[block] = clock
    return hits


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions()))
    return str(path)


def counts(trace: str, arranged: tuple[str, ...], target: Path) -> dict[str, Any]:
    capacities = ",".join(map(str, CAPACITIES))
    arguments = ["replay", trace, "--capacity", capacities, "--json", str(target), *arranged]
    assert main(arguments) == 0
    report = json.loads(target.read_text())
    return {
        **{what: report[what] for what in ("requests", "blocks", "unique_blocks")},
        **{
            policy: [run["hit_blocks"] for run in report["runs"] if run["policy"] == policy]
            for policy in ("lru", "optimal")
        },
    }


@pytest.mark.parametrize("arranged", GOLDEN, ids=" ".join)
def test_sessions_equal_the_golden_counts(
    trace: str, arranged: tuple[str, ...], tmp_path: Path
) -> None:
    assert counts(trace, arranged, tmp_path / "out.json") == TOTALS | GOLDEN[arranged]


@pytest.mark.parametrize("arranged", GOLDEN, ids=" ".join)
def test_golden_counts_are_those_of_a_naive_cache(trace: str, arranged: tuple[str, ...]) -> None:
    how = None
    if arranged:
        how = Interleave(int(arranged[1]), float(arranged[3]), int(arranged[5]))
    prompts = [tuple(prompt.tolist()) for prompt in read_trace(trace, 16, how).prompts()]
    assert [naive_lru(prompts, capacity) for capacity in CAPACITIES] == GOLDEN[arranged]["lru"]
    assert len({p[: end + 1] for p in prompts for end in range(len(p))}) == TOTALS["unique_blocks"]
