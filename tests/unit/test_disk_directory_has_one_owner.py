"""One process alone opens a directory: a second opener is told who holds it, a killed owner does
not bar the next one, and a forked child neither uses nor holds what its parent opened (C96, C97,
C99).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from radix.errors import TierUnavailableError
from tests.crash.diskrig import DiskRig, snapshot
from tiers.format import host_id

ROOT = Path(__file__).resolve().parents[2]


def test_a_second_opener_in_the_process_is_told_who_holds_it(tmp_path: Path) -> None:
    """C99: LMDB itself would refuse with a bare error, or corrupt itself."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(3))
        with pytest.raises(TierUnavailableError, match=rf"held by pid {os.getpid()} on"):
            DiskRig(tmp_path / "d")
        assert len(rig.verify(range(3))) == 3
        assert rig.store([5]).good.all()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(10)) == [0, 1, 2, 5]


def test_a_second_opener_in_another_process_is_told_who_holds_it(tmp_path: Path) -> None:
    """C97: the holder is named with its host, because two containers can share a pid."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from radix.errors import TierUnavailableError\n"
        "from tests.crash.diskrig import DiskRig\n"
        "try:\n"
        "    DiskRig(Path(sys.argv[1]))\n"
        "except TierUnavailableError as error:\n"
        "    print(error)\n"
    )
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(3))
        before = snapshot(tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "d")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"held by pid {os.getpid()} on {host_id()}" in done.stdout, done
        assert snapshot(tmp_path) == before


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.writer", str(tmp_path / "d"), "slab", "1", "0"]
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()
    with pytest.raises(TierUnavailableError, match=f"held by pid {writer.pid}"):
        DiskRig(tmp_path / "d")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    with DiskRig(tmp_path / "d") as rig:
        rig.adopt(range(10_000))
        rig.tier.check()


def _in_child(body: Callable[[], None]) -> int:
    """Runs ``body`` in a forked child; its exit status, 0 for a body that returned."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    """C96: LMDB forbids the use of an environment across a fork, and threads do not survive one."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(3))

        def use() -> None:
            calls: list[Callable[[], object]] = [
                lambda: rig.tier.reserve(0, 1),
                lambda: rig.load([0]),
                lambda: rig.store([7]),
                lambda: rig.tier.poll(),
                lambda: rig.tier.flush(),
                lambda: rig.tier.commit(0, rig.tier.reserve(0, 0)),
            ]
            for call in calls:
                with pytest.raises(TierUnavailableError, match="forked child"):
                    call()
            rig.tier.close()

        assert _in_child(use) == 0
        assert len(rig.verify(range(3))) == 3
        assert rig.store([4]).good.all()
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt(range(10)) == [0, 1, 2, 4]


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """An flock lives as long as any copy of its descriptor, in a child too."""
    rig = DiskRig(tmp_path / "d")
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        rig.close()
        with DiskRig(tmp_path / "d") as again:
            again.store([1])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_failed_opening_leaves_the_lock_free(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d"):
        pass
    with pytest.raises(ValueError, match="too small"):
        DiskRig(tmp_path / "d", limit_bytes=1000)
    with DiskRig(tmp_path / "d"):
        pass
