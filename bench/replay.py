"""Index-only replay of a whole trace: seconds a capacity, with parsing.

Kept here: one capacity is one run of everything, from the file to the count of hits; the smoke
size replays a small trace of its own, the full size mooncake's conversation trace.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import numpy as np

from bench.measure import (
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Skip,
    Target,
    no_collection,
)
from radix.replay.chains import encode_chains
from radix.replay.index import replay_index
from radix.replay.optimal import next_uses
from radix.replay.progress import Progress
from radix.replay.report import replay_optimal
from radix.replay.traces import read_trace

TRACE = "mooncake_conversation.jsonl.gz"


def small_trace(path: Path) -> Path:
    """Writes conversations that take turns and grow, in the format of the real trace."""
    rng = np.random.default_rng(9)
    chats: list[list[int]] = [[chat] for chat in range(8)]
    fresh = len(chats)
    lines = []
    for number in range(200):
        chat = chats[int(rng.integers(len(chats)))]
        chat += range(fresh, fresh + 4)
        fresh += 4
        lines.append(
            json.dumps(
                {
                    "timestamp": number,
                    "input_length": 512 * len(chat),
                    "output_length": 1,
                    "hash_ids": chat,
                }
            )
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def run_replay(sizes: Sizes, place: Place) -> Outcome:
    """Least recently used and the optimum over one trace at one capacity."""
    if sizes["real_trace"]:
        if place.traces is None or not (place.traces / TRACE).exists():
            raise Skip(f"RADIX_TRACES names no folder that holds {TRACE}")
        source = place.traces / TRACE
    else:
        source = small_trace(place.data / "small.jsonl")
    rounds, facts = Rounds(), {}
    for _ in range(sizes["rounds"]):
        with no_collection():
            start, cpu = time.perf_counter(), time.process_time()
            trace = read_trace(str(source))
            parsed = time.perf_counter()
            chains = encode_chains(trace)
            encoded = time.perf_counter()
            lru = replay_index(trace, chains, sizes["capacity"], "lru", Progress())
            online, online_cpu = time.perf_counter(), time.process_time()
            optimum = replay_optimal(trace, chains, next_uses(chains), sizes["capacity"])
            end = time.perf_counter()
        rounds.add("lru, with parsing", OURS, "s", online - start)
        rounds.add("processor time of it", OURS, "s", online_cpu - cpu)
        rounds.add("optimum, with parsing", OURS, "s", encoded - start + end - online)
        rounds.add("of both, parsing", OURS, "s", parsed - start)
        rounds.add("of both, numbering the blocks", OURS, "s", encoded - parsed)
        start = time.perf_counter()
        _read_plainly(source)
        rounds.add("json.loads of each line alone", PLAIN, "s", time.perf_counter() - start)
        facts = {
            "requests": len(trace),
            "lru_hit_blocks": lru.hit_blocks,
            "optimal_hit_blocks": optimum.hit_blocks,
            "total_blocks": lru.total_blocks,
        }
    if not sizes["real_trace"]:
        source.unlink()
    return Outcome(
        rows=rounds.rows(),
        facts=facts,
        targets=[
            Target("lru, with parsing", "at most", 0.5),
            Target("optimum, with parsing", "at most", 1.0),
        ],
    )


def _read_plainly(source: Path) -> int:
    """Decompresses and decodes the lines, and does nothing with them."""
    if source.suffix != ".gz":
        return sum(1 for line in source.read_bytes().splitlines() if json.loads(line))
    with gzip.open(source) as lines:
        return sum(1 for line in lines if json.loads(line))


BENCHMARKS = (
    Benchmark(
        "replay",
        "Index-only replay of mooncake's conversation trace at one capacity",
        run_replay,
        smoke={"real_trace": 0, "capacity": 64, "rounds": 1},
        full={"real_trace": 1, "capacity": 18279, "rounds": 5},
    ),
)
