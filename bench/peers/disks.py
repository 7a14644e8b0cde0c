"""Ours beside LMCache's memory and disk backends: chunks in and out, and what a damaged file does.

Kept here: both are child processes of one protocol, take turns and work in folders of their own on
one file system; a figure counts only where every chunk came back as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from bench.measure import OURS, Benchmark, Facts, Outcome, Place, Row, Sizes, Target, ratio
from bench.peers.bytework import LOST_CHUNKS
from bench.peers.protocol import Case, Found, Peer, measure_cases

RADIX, LMCACHE = "radix", "LMCache"
SEED = 12
MIB = 1 << 20
# What is compared; of both sides and both ways.
WAYS = (
    "memory put, batches",
    "memory get, batches",
    "disk put",
    "disk get, warm, each",
    "disk get, warm, batches",
    "disk get, cold, each",
    "disk get, cold, batches",
)


def run_lmcache(sizes: Sizes, place: Place) -> Outcome:
    """GB/s of each way at each size of chunk."""
    folder = place.data / "bytes"
    peers = [
        Peer(LMCACHE, "lmcache", "bench.peers.lmcache_child", "lmcache", (str(folder / "theirs"),)),
        Peer(RADIX, OURS, "bench.peers.radix_bytes_child", arguments=(str(folder / "ours"),)),
    ]
    rows: list[Row] = []
    facts: dict[str, int | str] = {}
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    cases = [
        Case(f"{sizes[size]} KiB: ", "bytes", {**sizes, "chunk_bytes": sizes[size] << 10})
        for size in ("small_kib", "middle_kib", "large_kib")
    ]
    try:
        found = measure_cases(peers, cases, SEED, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for case in cases:
        name, each, chunk = case.name, found[case.name], case.sizes["chunk_bytes"]
        rows += [_speed(row, chunk) for row in each.rows(name) if _shown(row.name)]
        rows += _loss_rows(each, name)
        pairs += [(f"{name}{way}, {RADIX}", f"{name}{way}, {LMCACHE}") for way in WAYS]
        each.check_alike(["chunks", "good"])
        facts |= {f"{name}{key}": value for key, value in each.facts.get(RADIX, {}).items()}
        missing |= each.failed
        versions |= each.versions
    known = {row.name for row in rows}
    there = [pair for pair in pairs if known.issuperset(pair)]
    middle = f"{sizes['middle_kib']} KiB: disk"
    return Outcome(
        rows,
        facts,
        [ratio(rows, *pair) for pair in there],
        [
            Target(f"{mine} / {theirs}", "at least", 1.0)
            for mine, theirs in there
            if mine.startswith(middle)
        ],
        missing,
        versions,
    )


def _shown(name: str) -> bool:
    """Of ours a put needs no sync."""
    return not name.endswith(f"synced, {RADIX}")


def _speed(row: Row, chunk: int) -> Row:
    return Row(row.name, row.subject, "GB/s", tuple(chunk / us / 1e3 for us in row.samples))


def _loss_rows(found: Found, name: str) -> list[Row]:
    """What each store lost or gave wrong of a few chunks."""
    rows = []
    for label, facts in found.facts.items():
        for said, value in _losses(facts):
            rows.append(Row(f"{name}{said}, {label}", found.subjects[label], "chunks", (value,)))
    return rows


def _losses(facts: Facts) -> Sequence[tuple[str, float]]:
    wrong = [facts[name] == "wrong data" for name in ("flipped_bit", "half_file")]
    return [
        (f"of {LOST_CHUNKS}, there after reopening", float(facts["hits_after_reopen"])),
        (f"of {LOST_CHUNKS}, two of them damaged, not given out wrong", LOST_CHUNKS - sum(wrong)),
    ]


BENCHMARKS = (
    Benchmark(
        "lmcache",
        "LMCache's memory and disk backends, beside ours that is durable and verified",
        run_lmcache,
        smoke={
            "rounds": 1,
            "small_kib": 32,
            "middle_kib": 64,
            "large_kib": 128,
            "total_bytes": MIB,
            "batch_bytes": MIB // 2,
        },
        full={
            "rounds": 5,
            "small_kib": 256,
            "middle_kib": 1024,
            "large_kib": 2048,
            "total_bytes": 256 * MIB,
            "batch_bytes": 8 * MIB,
        },
        tags=("peers",),
    ),
)
