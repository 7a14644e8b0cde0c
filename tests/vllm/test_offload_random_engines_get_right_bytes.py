"""Whatever order a random engine calls in, every slot that a load names holds the right bytes,
every wait ends, every request has its three events, and nothing is left at the end (I7, I8, I19,
I22, I24, I30, I31). The order of calls is that of both versions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.offloaddriver import Driver

STEPS = 120


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("seed", range(10))
def test_random_engine_gets_right_bytes_and_leaves_nothing(
    seed: int, version: str, tmp_path: Path
) -> None:
    driver = Driver(
        seed, tmp_path / "d", version=version, groups=1 + seed % 2, canary=0.25 * (seed % 4 == 3)
    )
    driver.run(STEPS)
    driver.finish()


def test_random_engines_really_load_promote_and_swallow_completions(tmp_path: Path) -> None:
    """What the test above proves nothing without."""
    loaded = swallowed = resets = promoted = 0
    for seed in range(100, 104):
        driver = Driver(seed, tmp_path / str(seed), version="0.32", groups=1, canary=0.0)
        driver.run(STEPS)
        loaded, swallowed = loaded + driver.loaded, swallowed + driver.swallowed
        resets += driver.resets
        promoted += driver.rig.count("promoted.arrived")
        driver.finish()
    assert loaded > 100 and swallowed > 5 and resets > 3 and promoted > 20
