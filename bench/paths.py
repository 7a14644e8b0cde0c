"""One path of the disk tier beside two: what is written and read together lies on both.

Kept here: the same blocks in the same batches, in turn, in new directories each round. Without a
second drive both paths are on one, and all there is to see is that two of them are not slower;
``RADIX_SECOND_DRIVE`` names a folder on another one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from bench.disk import MIB, Rows, TierWriter, aligned_rows
from bench.measure import (
    OURS,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Target,
    no_collection,
    ratio,
)

ONE, TWO = "one path", "two paths"
IN_FLIGHT = 4


def _measure(rounds: Rounds, name: str, folders: list[Path], rows: Rows, sizes: Sizes) -> int:
    """One round of one tier; blocks that it wrote and read."""
    batch = sizes["batch_bytes"] // rows.shape[1]
    with closing(TierWriter(folders, rows, batch, IN_FLIGHT)) as writer:
        writer.rest(sizes["rest_ms"] / 1e3)
        start = time.perf_counter()
        writer.write()
        written = time.perf_counter()
        order = np.random.default_rng(5).permutation(len(rows)).astype(np.int32)
        writer.read(order)
        ended = time.perf_counter()
    for folder in folders:
        shutil.rmtree(folder)
    rounds.add(f"writes, {name}", OURS, "MB/s", rows.nbytes / 1e6 / (written - start))
    rounds.add(f"cold reads, {name}", OURS, "MB/s", rows.nbytes / 1e6 / (ended - written))
    return writer.stored + writer.loaded


def run_paths(sizes: Sizes, place: Place) -> Outcome:
    """MB/s of durable writes and of cold reads over one path and over two."""
    named = os.environ.get("RADIX_SECOND_DRIVE")
    rounds = Rounds()
    moved = 0
    count = sizes["round_bytes"] // (sizes["block_kib"] << 10)
    with tempfile.TemporaryDirectory(prefix="radix-bench-", dir=named or place.data) as second:
        folders = [place.data / "first", Path(second) / "second"]
        with aligned_rows(count, sizes["block_kib"] << 10, seed=6) as rows, no_collection():
            for _ in range(sizes["rounds"]):
                moved += _measure(rounds, ONE, folders[:1], rows, sizes)
                moved += _measure(rounds, TWO, folders, rows, sizes)
    found = rounds.rows()
    ratios = [ratio(found, f"{what}, {TWO}", f"{what}, {ONE}") for what in ("writes", "cold reads")]
    return Outcome(
        rows=found,
        facts={"moved_blocks": moved},
        ratios=ratios,
        targets=[
            Target(f"{each.name} / {each.to}", "at least", 1.7 if named else 0.9) for each in ratios
        ],
        missing={} if named else {"a second drive": "RADIX_SECOND_DRIVE names no folder on one"},
    )


BENCHMARKS = (
    Benchmark(
        "paths",
        "One path of the disk tier beside two",
        run_paths,
        smoke={
            "rounds": 1,
            "round_bytes": 4 * MIB,
            "batch_bytes": MIB,
            "block_kib": 256,
            "rest_ms": 0,
        },
        full={
            "rounds": 7,
            "round_bytes": 128 * MIB,
            "batch_bytes": 8 * MIB,
            "block_kib": 512,
            "rest_ms": 100,
        },
    ),
)
