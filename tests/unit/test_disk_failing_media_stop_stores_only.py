"""Disk full, read-only, I/O errors: the tier stops accepting, says so once, and what is there can
be read; one of several drives costs its own blocks (C94; design section 8).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from radix._native import lib
from radix.errors import TierError, TierFullError, TierUnavailableError
from radix.tier import TierMode
from tests.crash.diskrig import DiskRig

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def small_disk(folder: Path, options: str = "size=8m") -> Iterator[Path]:
    """A file system of its own; ``PermissionError`` where mounting is refused."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        raise PermissionError("mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _with_mounts(name: str, tmp_path: Path) -> None:
    """Runs one of the bodies below; where mounting is refused, in a user namespace."""
    body = BODIES[name]
    try:
        body(tmp_path)
    except PermissionError:
        module = f"tests.unit.{Path(__file__).stem}"
        code = f"from pathlib import Path; from {module} import BODIES; "
        code += f"BODIES[{name!r}](Path({str(tmp_path)!r}))"
        command = ["unshare", "-rm", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def _full_disk(tmp_path: Path) -> None:
    """C94: with writemap a full disk is a SIGBUS; without, an error that the tier must survive."""
    for payload in ("slab", "lmdb"):
        with small_disk(tmp_path / "full") as folder:
            with DiskRig(folder / "d", limit_bytes=64 << 20, payload=payload) as rig:
                kept: list[int] = []
                refusals = []
                for first in range(0, 2000, 8):
                    try:
                        done = rig.store(range(first, first + 8))
                    except TierUnavailableError:
                        break
                    kept += [first + i for i in range(8) if done.good[i]]
                    if done.error is not None:
                        refusals.append(done.error)
                assert rig.tier.mode is TierMode.READ_ONLY and len(kept) > 300
                assert len(refusals) == 1 and not refusals[0].retryable
                assert rig.verify(kept) == kept, "what is there can be read"
                rig.free(kept[:200])
                rig.tier.flush()
                rig.tier.check()
                rig.tier.set_mode(TierMode.ON)
                done = rig.store(range(5000, 5008))
                assert done.good.all() == (done.error is None)
                kept = kept[200:] + [5000 + i for i in range(8) if done.good[i]]
                assert rig.verify(kept) == kept
            with DiskRig(folder / "d", limit_bytes=64 << 20, payload=payload) as rig:
                found = rig.adopt(range(6000))
                assert set(kept) <= set(found)
                assert rig.verify(kept) == kept


def _read_only_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "ro") as folder:
        with DiskRig(folder / "d") as rig:
            rig.store(range(4))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        for name in ("d", "fresh"):
            with pytest.raises(TierUnavailableError, match="Read-only file system"):
                DiskRig(folder / name)
        assert not (folder / "fresh").exists()
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        with DiskRig(folder / "d") as rig:
            assert rig.adopt(range(4)) == [0, 1, 2, 3]


def _full_disk_with_less(tmp_path: Path) -> None:
    for limit_bytes in (7 << 20, 4 << 20, 1 << 20):
        with small_disk(tmp_path / "full", "size=10m") as folder:
            with DiskRig(folder / "d", limit_bytes=9 << 20) as rig:
                while rig.tier.free_blocks(0) >= 8:
                    first = len(rig.slots)
                    assert rig.store(range(first, first + 8)).good.all()
                stored = len(rig.slots)
            with (folder / "other").open("wb", 0) as other, contextlib.suppress(OSError):
                while other.write(bytes(4096)):
                    pass
            with DiskRig(folder / "d", limit_bytes=limit_bytes) as rig:
                found = rig.adopt(range(stored))
                assert found == list(range(stored - len(found), stored)) and len(found) > 40
                assert rig.verify(found) == found
                rig.free(found[:8])
                assert rig.store(range(5000, 5008)).good.all()
                rig.tier.check()


BODIES = {"full": _full_disk, "read-only": _read_only_disk, "less": _full_disk_with_less}


def test_a_full_disk_stops_stores_and_nothing_else(tmp_path: Path) -> None:
    _with_mounts("full", tmp_path)


def test_a_full_disk_opens_with_a_smaller_limit(tmp_path: Path) -> None:
    """Who gives a tier on a full disk less room was refused, with "No space left on device": the
    removal of what had to go needed a page before any was given back.
    """
    _with_mounts("less", tmp_path)


def test_a_read_only_disk_is_refused_by_name(tmp_path: Path) -> None:
    _with_mounts("read-only", tmp_path)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (lib.RDX_ENOSPC, TierFullError),
        (lib.RDX_EROFS, TierUnavailableError),
        (lib.RDX_EIO, TierUnavailableError),
    ],
)
def test_a_refused_write_is_said_once(
    tmp_path: Path, status: int, kind: type[TierError], caplog: pytest.LogCaptureFixture
) -> None:
    with DiskRig(tmp_path / "d") as rig, caplog.at_level(logging.WARNING, "tiers.disk"):
        rig.store(range(4))
        slots = rig.tier.reserve(0, 4)
        rig.tier._transfers.engine.fail_at(1, status, sticky=True)
        rig.start_store([10, 11], slots[:2])
        rig.start_store([12, 13], slots[2:])
        done = rig.settle()
        assert not any(item.good.any() for item in done)
        assert all(isinstance(item.error, kind) for item in done)
        assert rig.tier.mode is TierMode.READ_ONLY
        assert [record.message for record in caplog.records if "no more stores" in record.message]
        assert len(caplog.records) == 1
        rig.tier.abort(0, slots)
        with pytest.raises(TierUnavailableError):
            rig.tier.reserve(0, 1)
        assert rig.tier.free_blocks(0) == 0
        rig.tier._transfers.engine.fail_at(0, 0)
        assert rig.verify(range(4)) == [0, 1, 2, 3]
        rig.tier.set_mode(TierMode.ON)
        assert rig.store([20]).good.all()
        rig.tier.check()


def test_a_drive_that_refuses_reads_counts_as_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first refusals are failed loads, which may be tried again; then the blocks are gone."""
    with DiskRig(tmp_path / "d") as rig, caplog.at_level(logging.WARNING, "tiers.disk"):
        rig.store(range(4))
        engine = rig.tier._transfers.engine
        engine.fail_at(1, lib.RDX_EIO)
        done = rig.load([rig.slots[0], rig.slots[1]])
        assert done.good.sum() == 1 and not done.corrupt.any()
        assert done.error is not None and done.error.retryable
        assert rig.verify(range(4)) == [0, 1, 2, 3]
        engine.fail_at(1, lib.RDX_EIO, sticky=True)
        for turn in range(3):
            done = rig.load([rig.slots[0]])
            assert not done.good.any() and done.corrupt.all() == (turn == 2)
        assert rig.tier.mode is TierMode.OFF
        assert len(caplog.records) == 1
        engine.fail_at(0, 0)
        rig.tier.set_mode(TierMode.ON)
        assert rig.verify(range(4)) == [0, 1, 2, 3]


def test_one_lost_drive_costs_its_own_blocks(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    with DiskRig(paths, limit_bytes=2 << 20) as rig:
        for first in range(0, 48, 8):
            assert rig.store(range(first, first + 8)).good.all()
        slots = dict(rig.slots)
    where = {n: slot // 8 % 3 for n, slot in slots.items()}
    assert set(where.values()) == {0, 1, 2}
    for entry in (tmp_path / "b").iterdir():
        entry.unlink()
    (tmp_path / "b").rmdir()
    (tmp_path / "b").write_text("a mount point whose drive is gone")
    with DiskRig(paths, limit_bytes=2 << 20) as rig:
        found = rig.adopt(range(48))
        assert found == [n for n in range(48) if where[n] != 1]
        assert rig.verify(found) == found
        for first in range(100, 116, 8):
            assert rig.store(range(first, first + 8)).good.all()
        assert all(slot // 8 % 3 != 1 for slot in rig.slots.values())
        rig.tier.check()


def test_one_drive_that_refuses_writes_leaves_the_others(tmp_path: Path) -> None:
    with DiskRig([tmp_path / "a", tmp_path / "b"], limit_bytes=2 << 20) as rig:
        rig.store(range(4))
        rig.tier._transfers.engine.fail_at(1, lib.RDX_EIO)
        done = rig.store([10])
        assert not done.good.any() and rig.tier.mode is TierMode.ON
        for first in range(20, 52, 8):
            assert rig.store(range(first, first + 8)).good.all()
        assert {slot // 8 % 2 for n, slot in rig.slots.items() if n >= 20} == {1}
        assert rig.verify(rig.slots) == list(rig.slots)
        rig.tier.check()


def test_a_path_of_another_tier_is_refused(tmp_path: Path) -> None:
    with DiskRig([tmp_path / "a", tmp_path / "b"], limit_bytes=2 << 20) as rig:
        rig.store(range(20))
    with pytest.raises(TierUnavailableError, match="belongs to another tier"):
        DiskRig([tmp_path / "x", tmp_path / "b"])
    assert not (tmp_path / "x").exists()
    with DiskRig([tmp_path / "a", tmp_path / "b"], limit_bytes=2 << 20) as rig:
        with pytest.raises(TierUnavailableError, match="held by"):
            DiskRig([tmp_path / "b"])
        assert rig.adopt(range(20)) == list(range(20))
        assert rig.verify(range(20)) == list(range(20))


def test_a_thread_that_dies_fails_stores_and_is_named(tmp_path: Path) -> None:
    """What nobody foresaw ends the committing thread, not the cache."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(2))

        def surprise(step: str) -> None:
            raise ZeroDivisionError("injected")

        rig.tier._disk.index.hook = surprise
        done = rig.store([5])
        assert not done.good.any() and "ZeroDivisionError" in str(done.error)
        assert rig.tier.mode is TierMode.READ_ONLY
        assert rig.verify([0, 1]) == [0, 1]
        rig.free([0])
        rig.tier.flush()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(6)) == [0, 1]


def test_a_tier_whose_thread_died_is_tried_again(tmp_path: Path) -> None:
    """Switched on again it commits again; what was to be removed when the thread died is removed
    then, and its slots are not lost.
    """
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(4))

        def surprise(step: str) -> None:
            raise ZeroDivisionError("injected")

        rig.tier._disk.index.hook = surprise
        rig.free([0])
        done = rig.store([5])
        assert isinstance(done.error, TierUnavailableError)
        assert rig.tier.mode is TierMode.READ_ONLY
        rig.tier._disk.index.hook = lambda step: None
        rig.tier.set_mode(TierMode.ON)
        assert rig.store([6]).good.all()
        rig.tier.flush()
        rig.tier.check()
        assert rig.verify([1, 2, 3, 6]) == [1, 2, 3, 6]
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(8)) == [1, 2, 3, 6]


def test_a_reader_that_meets_what_nobody_foresaw_costs_its_blocks(tmp_path: Path) -> None:
    """A fault in a reading thread was raised in the owner's poll, and the load never ended."""
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.store(range(4))
        index = rig.tier._disk.index
        read = index.copy_out

        def surprise(*_: object) -> None:
            raise ZeroDivisionError("injected")

        index.copy_out = surprise
        assert rig.verify(range(4)) == []
        assert rig.tier.mode is TierMode.ON
        index.copy_out = read
        assert rig.verify(range(4)) == list(range(4))


def test_open_descriptors_go_with_the_tier(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        with DiskRig([tmp_path / "a", tmp_path / "b"], limit_bytes=2 << 20) as rig:
            rig.adopt(range(100))
            rig.store(np.arange(turn * 4, turn * 4 + 4).tolist())
    assert len(os.listdir("/proc/self/fd")) <= before
