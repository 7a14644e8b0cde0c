"""One seed is one run (I33): the same events, counters and bytes in the same order, also in another
process whose hashes and addresses differ; so a failure that names its seed happens again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import simulate
from tests.sim.world import SEED_KINDS, SimWorld

OPERATIONS = 150
ROOT = Path(__file__).parents[2]
SEEDS = range(4, 4 + len(SEED_KINDS))  # one of each kind of world
CODE = f"""
from tests.sim.simulation import simulate
print(*(simulate(seed, {OPERATIONS}).digest for seed in range({SEEDS.start}, {SEEDS.stop})))
"""


def test_seed_gives_the_same_run_in_every_process() -> None:
    here = [simulate(seed, OPERATIONS) for seed in SEEDS]
    assert not [each.violations for each in here if each.violations]
    other = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = other.stdout.split()
    assert found == [each.digest for each in here], f"seeds {[*SEEDS]} are not one run each"


def test_seeds_and_lengths_are_told_apart_by_their_digests() -> None:
    digests = {simulate(seed, count).digest for seed in (0, 1) for count in (20, 30)}
    assert len(digests) == 4


def test_failure_names_its_seed_and_happens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(world: SimWorld, rng: object) -> None:
        assert world.ticks < 40, "made to fail"

    monkeypatch.setattr(SimWorld, "_latency", late)
    found = [simulate(6, 200).violations for _ in range(2)]
    assert found[0] == found[1] and len(found[0]) == 1
    assert "seed 6 " in found[0][0] and "--seed 6 --operations 200" in found[0][0]
    assert "made to fail" in found[0][0]
