"""Cold reads: blocks in random order from the slabs to memory, past the page cache, beside fio.

Kept here: both read at random from as large a file, in blocks of one size, directly, with as many
threads; ours takes the checksum of each block on the way. A load counts once it is acknowledged.
What the drive itself, or the host of a virtual one, has in memory is warm for both.
"""

from __future__ import annotations

import shutil
import time

import numpy as np

from bench import fio
from bench.contention import Disk
from bench.disk import MIB, THREADS, aligned_rows
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

SLABS, FIO = "slabs, two loads under way", "fio, two threads"
IN_FLIGHT = 2


def _read_rate(disk: Disk, blocks: int, batch: int, block_bytes: int, seed: int) -> float:
    """MB/s of loading every block once, in random order."""
    order = np.random.default_rng(seed).permutation(blocks).astype(np.int32)
    start = time.perf_counter()
    disk.load_all([order[at : at + batch] for at in range(0, blocks, batch)], IN_FLIGHT)
    return blocks * block_bytes / 1e6 / (time.perf_counter() - start)


def run_reads(sizes: Sizes, place: Place) -> Outcome:
    """MB/s of cold reads at each size of block."""
    rounds = Rounds()
    commands: dict[str, str] = {}
    loaded = 0
    for kib in (sizes["small_kib"], sizes["large_kib"]):
        block = kib << 10
        blocks, batch = sizes["round_bytes"] // block, sizes["batch_bytes"] // block
        peer = None
        if fio.is_there():
            peer = fio.Fio(
                place.data,
                "randread",
                block_bytes=block,
                nbytes=sizes["round_bytes"],
                jobs=THREADS,
            )
            commands[f"{kib} KiB: {FIO}"] = " ".join(peer.command)
        with aligned_rows(blocks, block, seed=kib) as rows, no_collection():
            disk = Disk(place.data / "reads", rows, blocks, batch)
            for number in range(sizes["rounds"] + 1):  # the first round is not kept
                found = _read_rate(disk, blocks, batch, block, number)
                rate = peer.run() if peer is not None else 0.0
                if number:
                    rounds.add(f"{kib} KiB: {SLABS}", OURS, "MB/s", found)
                if number and peer is not None:
                    rounds.add(f"{kib} KiB: {FIO}", fio.SUBJECT, "MB/s", rate)
            loaded += disk.loaded
            disk.close()
        shutil.rmtree(place.data / "reads")
        if peer is not None:
            peer.close()
    rows_found = rounds.rows()
    pairs = [(name.replace(FIO, SLABS), name) for name in commands]
    return Outcome(
        rows=rows_found,
        facts={"loaded_blocks": loaded},
        ratios=[ratio(rows_found, ours, theirs) for ours, theirs in pairs],
        targets=[Target(f"{ours} / {theirs}", "at least", 0.8) for ours, theirs in pairs],
        missing={} if commands else {FIO: fio.WITHOUT},
        versions={"fio": fio.version()} if commands else {},
        commands=commands,
    )


BENCHMARKS = (
    Benchmark(
        "reads",
        "Cold reads of random blocks",
        run_reads,
        smoke={
            "rounds": 1,
            "round_bytes": 4 * MIB,
            "batch_bytes": MIB,
            "small_kib": 64,
            "large_kib": 512,
        },
        full={
            "rounds": 7,
            "round_bytes": 256 * MIB,
            "batch_bytes": 8 * MIB,
            "small_kib": 64,
            "large_kib": 512,
        },
    ),
)
