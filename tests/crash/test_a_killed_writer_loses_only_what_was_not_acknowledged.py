"""kill -9 at any moment: whatever was acknowledged is there after the restart and right, and
nothing wrong is ever given out (I22, I24, I25). One directory goes through all kills of a test, so
that later rounds start from what earlier ones left.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.diskrig import DiskRig
from tests.crash.writer import LIMIT_BYTES

ROOT = Path(__file__).resolve().parents[2]


def _run_and_kill(folder: Path, payload: str, seed: int, first: int) -> tuple[set[int], set[int]]:
    """What the writer said that it stored, and that it freed, before it was killed."""
    command = [sys.executable, "-m", "tests.crash.writer", str(folder), payload]
    writer = subprocess.Popen(
        [*command, str(seed), str(first)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    rng = random.Random(seed)
    lines = [writer.stdout.readline()]
    assert lines[0], "the writer did not start"
    for _ in range(rng.randint(0, 150)):
        lines.append(writer.stdout.readline())
    time.sleep(rng.random() * 0.004)
    writer.send_signal(signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    stored: set[int] = set()
    freed: set[int] = set()
    for line in lines:
        if line.endswith("\n"):
            word, *numbers = line.split()
            (stored if word == "S" else freed).update(map(int, numbers))
    return stored, freed


@pytest.mark.parametrize(("payload", "rounds"), [("slab", 8), ("lmdb", 5)])
def test_what_was_acknowledged_survives_kills(tmp_path: Path, payload: str, rounds: int) -> None:
    folder = tmp_path / "disk"
    durable: set[int] = set()
    unsure: set[int] = set()
    first = 0
    for seed in range(rounds):
        stored, freed = _run_and_kill(folder, payload, seed, first)
        # What was on its way, or being freed, may be there or not.
        unsure |= freed | set(range(first, first + 2000)) - stored
        durable = (durable | stored) - freed
        first += 2000
        with DiskRig(folder, limit_bytes=LIMIT_BYTES, payload=payload) as rig:
            found = set(rig.adopt(range(first)))
            assert durable <= found <= durable | unsure, f"round {seed}"
            assert durable <= set(rig.verify(sorted(found))), f"round {seed}"
            rig.tier.check()
        # What was seen is durable: no later crash may take it away.
        durable, unsure = found, set()
    assert durable, "no round stored anything"
