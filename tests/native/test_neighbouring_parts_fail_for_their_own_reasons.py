"""Parts that lie side by side in a file are moved as one piece; where that stops half way, the
parts before the stop are good and those behind it are not (I22).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from radix._native import lib
from radix.tier import Urgency
from tiers.transfer import OP, Completion, Ops, TransferEngine

PART_BYTES = 4096
PARTS = 6


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "slab", os.O_CREAT | os.O_RDWR, 0o600)
    yield fd
    os.close(fd)


def run(ops: Ops, sync: bool) -> Completion:
    with TransferEngine(threads=1) as engine:
        engine.submit_ops(engine.new_job(), Urgency.STORE, ops, sync=sync)
        engine.wait(20.0)
        [done] = engine.poll()
        return done


def parts(fd: int, kind: int, memory: npt.NDArray[np.uint8]) -> Ops:
    ops = np.zeros(PARTS, OP)
    ops["kind"], ops["fd"] = kind, fd
    ops["offset"] = np.arange(PARTS) * PART_BYTES
    ops["memory"] = memory.ctypes.data + np.arange(PARTS) * PART_BYTES
    ops["bytes"] = ops["payload_bytes"] = PART_BYTES
    return ops


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("room", [0, 1, PART_BYTES, 2 * PART_BYTES + 100, PARTS * PART_BYTES])
def test_write_that_runs_out_of_room_keeps_the_parts_before(
    file: int, room: int, sync: bool
) -> None:
    source = np.random.default_rng(room).integers(0, 256, PARTS * PART_BYTES, dtype=np.uint8)
    ops = parts(file, lib.RDX_OP_WRITE, source)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        done = run(ops, sync)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    good = room // PART_BYTES
    assert ops["status"].tolist() == [lib.RDX_OK] * good + [lib.RDX_ENOSPC] * (PARTS - good)
    assert done.failed == good
    assert done.nbytes == room
    assert os.pread(file, good * PART_BYTES, 0) == source[: good * PART_BYTES].tobytes()


def test_read_past_the_end_keeps_the_parts_before(file: int) -> None:
    source = np.random.default_rng(1).integers(0, 256, PARTS * PART_BYTES, dtype=np.uint8)
    os.pwrite(file, source[: 3 * PART_BYTES + 17].tobytes(), 0)
    target = np.zeros_like(source)
    ops = parts(file, lib.RDX_OP_READ, target)
    ops["checksum"] = [
        xxhash.xxh3_64_intdigest(block.tobytes()) for block in source.reshape(PARTS, -1)
    ]
    ops["checksum"][1] ^= 1
    run(ops, sync=False)
    assert ops["status"].tolist() == [
        *[lib.RDX_OK, lib.RDX_ECORRUPT, lib.RDX_OK],
        *[lib.RDX_ESHORT] * 3,
    ]
