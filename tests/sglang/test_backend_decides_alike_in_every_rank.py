"""Each rank of a tensor-parallel server runs a scheduler of its own, and all must decide alike
(I33): two processes with other hash seeds, given the same calls, give the same answers.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radix.engines.sglang.backend import RadixBackend
from radix.policy.eviction import STEPPED_POLICIES
from tests.sglang.driving import Traffic
from tests.sglang.scheduling import Scheduler

ROOT = Path(__file__).parents[2]


def answers(seed: int, page: int, policy: str, steps: int = 200) -> str:
    """A digest of everything that a scheduler saw: hits, slots, evictions, sizes, events."""
    pages = max(8, 300 // page)
    scheduler = Scheduler(RadixBackend, page, pages, events=True, policy=policy, ranks=2)
    traffic = Traffic(seed, [scheduler], 200, hinted=policy == "priority")
    seen = hashlib.sha256()
    for _ in range(steps):
        traffic.step()
        runs = [runs[0].req.last_node for _, runs in traffic.running]
        said = (scheduler.sizes(), scheduler.cache.dfs_weight_order(runs))
        seen.update(repr((said, scheduler.cache.take_events())).encode())
    seen.update(repr(scheduler.log).encode())
    return seen.hexdigest()


@pytest.mark.parametrize("policy", STEPPED_POLICIES)
def test_two_processes_with_other_hash_seeds_give_the_same_answers(policy: str) -> None:
    seed = 5
    text = (
        "from bench.peers import standin\n"
        "from tests.sglang import test_backend_decides_alike_in_every_rank as rank\n"
        f"print(rank.answers({seed}, 1, {policy!r}) + rank.answers({seed}, 16, {policy!r}))\n"
    )
    found = []
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", text],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        found.append(ran.stdout.split()[-1])
    here = answers(seed, 1, policy) + answers(seed, 16, policy)
    assert found[0] == found[1] == here, f"seed {seed}"
