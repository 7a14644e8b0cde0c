"""Whatever a power loss leaves behind, a disk tier opens it and serves exactly the blocks that were
acknowledged and not freed, all of them and with the right bytes (I22, I24, I25). What a medium may
do is written down in ``medium.py``. ``make powerloss SEEDS=n`` does more of the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.powerloss.blocks import Config
from tests.powerloss.campaign import Outcome, Plan, config_for, run_case, run_seed
from tests.powerloss.ledger import Known
from tests.powerloss.recording import Kind, Recording, Script, build_shim, record
from tests.powerloss.replay import Effort

QUICK = Effort(subsets=12, torn=4, most=16, deep=12, share=0.2)
ALL_POINTS = Effort(subsets=8, torn=2, most=16, deep=24)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def _assert_right(outcome: Outcome, place: Path) -> None:
    assert not outcome.violations, f"kept in {place}:\n" + "\n".join(outcome.violations[:10])
    assert outcome.counts["stored"] > 2, f"nothing was to be lost: {outcome.counts}"


@pytest.mark.parametrize("seed", [1, 6])
def test_every_state_serves_what_was_acknowledged(shim: Path, tmp_path: Path, seed: int) -> None:
    plan = Plan(generations=2, steps=30, effort=QUICK, parts=1)
    outcome = run_seed(seed, plan, shim, tmp_path)
    _assert_right(outcome, tmp_path)
    assert outcome.counts["states"] > 50, f"seed {seed}: {outcome.counts}"
    # how many depends on what the machine lets the threads write between two syncs: a third as many
    # on a busy one, so that there are steps enough for that
    assert outcome.counts["torn"] > 10, f"seed {seed}: {outcome.counts}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 106))
def test_every_subset_of_unsynced_writes_is_right(shim: Path, tmp_path: Path, seed: int) -> None:
    outcome = run_seed(seed, Plan(), shim, tmp_path)
    _assert_right(outcome, tmp_path)


def _shape(recording: Recording) -> list[tuple[Kind, str, str, int, int, int]]:
    """What must be the same each time: all but process ids, inode numbers and chance ids."""
    return [
        (op.kind, op.text, op.other, op.offset, op.number, len(op.data))
        for op in recording.operations
        if not (op.kind is Kind.WRITE and op.data.startswith(b"pid "))
    ]


def test_the_same_even_seed_gives_the_same_recording(shim: Path, tmp_path: Path) -> None:
    shapes = []
    for name in ("first", "second"):
        root = tmp_path / name / "root"
        root.mkdir(parents=True)
        script = Script(config_for(random.Random(4), 1), 4, 20, 0, 1, "none")
        shapes.append(_shape(record(shim, root, script, tmp_path)))
    assert shapes[0] == shapes[1]


def _script(config: Config, seed: int = 0, steps: int = 10, dies: int = 0) -> Script:
    return Script(config, seed, steps, 0, 1, "none", dies)


def test_folders_above_a_new_tier_are_durable_with_it(shim: Path, tmp_path: Path) -> None:
    """Fault: a directory made with the folders above it was gone, and all its blocks. Mechanism:
    only the folder right above was synced; the names of those above stood nowhere but in memory.
    Source: the replay of a recording.
    """
    script = _script(Config(("a/b/c/disk",), "slab", 640 << 10))
    outcome, recording = run_case(script, ALL_POINTS, shim, tmp_path)
    assert "a" in [op.text for op in recording.operations if op.kind is Kind.MKDIR]
    _assert_right(outcome, tmp_path)


def test_folders_left_by_a_killed_process_become_durable(shim: Path, tmp_path: Path) -> None:
    """Fault: a process was killed after it had made the outermost of three folders, the next one
    made the other two and stored, and the power loss took them all. Mechanism: only folders that a
    process made itself were synced. Source: the replay of seed 105.
    """
    script = _script(Config(("a/b/disk",), "slab", 640 << 10), dies=1)
    outcome, recording = run_case(script, Effort(4, 0, 8, 99), shim, tmp_path)
    first = next(op for op in recording.operations if not op.is_mark)
    assert (first.kind, first.text) == (Kind.MKDIR, "a")
    _assert_right(outcome, tmp_path)


def test_an_index_that_replaces_a_rotten_one_is_durable(shim: Path, tmp_path: Path) -> None:
    """Fault: what was stored after an unreadable index had been replaced was gone. Mechanism: names
    were made durable only when a tier was new, not when its index was. Source: the replay.
    """
    config = Config(("disk",), "lmdb", 640 << 10)
    (tmp_path / "root" / "disk").mkdir(parents=True)
    record(shim, tmp_path / "root", _script(config, steps=1), tmp_path)
    (tmp_path / "root" / "disk" / "data.mdb").write_bytes(b"\xff" * 8192)
    outcome, recording = run_case(_script(config), ALL_POINTS, shim, tmp_path)
    assert "disk/data.mdb" in [op.text for op in recording.operations if op.kind is Kind.UNLINK]
    _assert_right(outcome, tmp_path)


def test_names_left_by_a_killed_process_become_durable(shim: Path, tmp_path: Path) -> None:
    """Fault: a process was killed after it had made its files, the next one found them and stored,
    and the power loss took their names. Mechanism: only who made a file synced its folder.
    Source: the replay.
    """
    script = _script(Config(("disk",), "slab", 640 << 10), dies=18)
    outcome, recording = run_case(script, Effort(4, 0, 8, 99), shim, tmp_path)
    before = [op for op in recording.operations if not op.is_mark][:18]
    assert "disk/data.mdb" in [op.text for op in before if op.kind is Kind.CREATE]
    _assert_right(outcome, tmp_path)


def test_an_index_that_was_compacted_is_durable(shim: Path, tmp_path: Path) -> None:
    """Fault: after an opening with a lower limit blocks had records without bytes. Mechanism: LMDB
    does not sync the copy it makes, and that was renamed over the index. Source: the replay.
    """
    (tmp_path / "root").mkdir()
    wide, narrow = (Config(("disk",), "lmdb", limit << 10) for limit in (1200, 520))
    record(shim, tmp_path / "root", _script(wide, seed=5, steps=24), tmp_path)
    script, before = replace(_script(narrow), first=400), Known(begun=frozenset(range(400)))
    outcome, recording = run_case(script, ALL_POINTS, shim, tmp_path, before)
    assert "disk/compact.new" in [op.text for op in recording.operations if op.kind is Kind.MKDIR]
    _assert_right(outcome, tmp_path)
