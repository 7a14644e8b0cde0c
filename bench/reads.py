"""Cold reads: blocks in random order from the slabs to memory, past the page cache, beside fio.

Kept here: both read at random from as large a file, in blocks of one size, directly, with as many
threads; ours takes the checksum of each block on the way. A load counts once it is acknowledged.
What the drive itself, or the host of a virtual one, has in memory is warm for both. fio reads into
one buffer a thread, which stays in the processor's cache; ours, and plain reads of fio's file by as
many threads, bring each block to a place of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from bench import fio
from bench.contention import Disk
from bench.disk import MIB, THREADS, Rows, aligned_rows
from bench.measure import (
    LIMIT,
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
PLAIN_READS = "plain direct reads, two threads"
IN_FLIGHT = 2


def _read_rate(disk: Disk, blocks: int, batch: int, block_bytes: int, seed: int) -> float:
    """MB/s of loading every block once, in random order."""
    order = np.random.default_rng(seed).permutation(blocks).astype(np.int32)
    start = time.perf_counter()
    disk.load_all([order[at : at + batch] for at in range(0, blocks, batch)], IN_FLIGHT)
    return blocks * block_bytes / 1e6 / (time.perf_counter() - start)


def _plain_rate(path: Path, rows: Rows, seed: int) -> float:
    """MB/s of reading every block of a file once, in random order, each to a place of its own."""
    block, order = rows.shape[1], np.random.default_rng(seed).permutation(len(rows))
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # the file system has no direct reads
        file = os.open(path, os.O_RDONLY)

    def read(mine: Sequence[int]) -> int:
        return sum(os.preadv(file, [rows[number].data], number * block) for number in mine)

    parts = [order[first::THREADS].tolist() for first in range(THREADS)]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            start = time.perf_counter()
            got = sum(pool.map(read, parts))
            seconds = time.perf_counter() - start
    finally:
        os.close(file)
    if got != rows.nbytes:
        raise RuntimeError(f"{got} bytes came of {rows.nbytes}")
    return rows.nbytes / 1e6 / seconds


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
        with ExitStack() as stack:
            rows = stack.enter_context(aligned_rows(blocks, block, seed=kib))
            stack.enter_context(no_collection())
            disk = stack.enter_context(closing(Disk(place.data / "reads", rows, blocks, batch)))
            disk.fill()
            for number in range(sizes["rounds"] + 1):  # the first round is not kept
                found = _read_rate(disk, blocks, batch, block, number)
                if number:
                    rounds.add(f"{kib} KiB: {SLABS}", OURS, "MB/s", found)
                if number and peer is not None:
                    rounds.add(f"{kib} KiB: {FIO}", fio.SUBJECT, "MB/s", peer.run())
                    plain = _plain_rate(peer.path, rows, number)
                    rounds.add(f"{kib} KiB: {PLAIN_READS}", LIMIT, "MB/s", plain)
            loaded += disk.loaded
        shutil.rmtree(place.data / "reads")
        if peer is not None:
            peer.close()
    rows_found = rounds.rows()
    pairs = [(name.replace(FIO, SLABS), name) for name in commands]
    limits = [name.replace(FIO, PLAIN_READS) for name in commands]
    most = [
        pair
        for (ours, theirs), limit in zip(pairs, limits, strict=True)
        for pair in ((ours, limit), (limit, theirs))
    ]
    return Outcome(
        rows=rows_found,
        facts={"loaded_blocks": loaded},
        ratios=[ratio(rows_found, one, other) for one, other in (*pairs, *most)],
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
