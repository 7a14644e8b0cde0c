"""The replay of power losses can fail: each mistake in the order of a commit that ``faults.py``
makes on purpose is found, and what it found can be made again from the seed and the crash point.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.powerloss.__main__ import replay_one
from tests.powerloss.blocks import Config
from tests.powerloss.campaign import run_case
from tests.powerloss.faults import FAULTS
from tests.powerloss.recording import Script, build_shim
from tests.powerloss.replay import Effort

EFFORT = Effort(subsets=8, torn=2, most=16, deep=1 << 30, most_faults=1)
WHAT = {
    "record before payload": "has a record, but not its bytes",
    "payload not synced": "has a record, but not its bytes",
    "slot reused at once": "has a record, but not its bytes",
    # LMDB follows pages that were never written, and some of these kill the process.
    "index not synced": "were acknowledged and are not there|process ended with -",
    "root not synced": "were acknowledged and are not there",
    "names not synced": "were acknowledged and are not there|not its bytes",
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def test_every_mistake_has_its_sign() -> None:
    assert WHAT.keys() | {"none"} == FAULTS.keys()


@pytest.mark.parametrize("fault", WHAT)
def test_each_mistake_is_found_and_found_again(shim: Path, tmp_path: Path, fault: str) -> None:
    # With several stores in flight nothing waits for a removal before its slot is asked for.
    flying = 3 if fault == "slot reused at once" else 1
    script = Script(Config(("disk",), "slab", 640 << 10), 2, 40, 0, flying, fault)
    outcome, _ = run_case(script, EFFORT, shim, tmp_path)
    assert outcome.violations, f"nobody saw it: {outcome.counts}"
    first = outcome.violations[0]
    assert re.search(WHAT[fault], first), first
    place = re.search(r"seed 2 generation 0 point (\d+) state (\d+): ", first)
    assert place, first
    if "process ended" in first:
        return
    again = replay_one(tmp_path / "case-0.pickle", int(place[1]), int(place[2]), tmp_path / "again")
    assert any(first.endswith(fault) for fault in again), f"{first}\nbut now {again}"


def test_the_same_work_without_a_mistake_is_right(shim: Path, tmp_path: Path) -> None:
    script = Script(Config(("disk",), "slab", 640 << 10), 2, 40, 0, 1, "none")
    outcome, _ = run_case(script, replace(EFFORT, share=0.2), shim, tmp_path)
    assert not outcome.violations, outcome.violations[:5]
