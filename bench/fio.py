"""fio as the limit of a disk benchmark: as many bytes by the same calls, from a program that keeps
no record of what it moved.

Kept here: a command names only files of the folder it runs in, so that what stands in a report is
the whole command and no path; what fio writes over was laid out before, like a zeroed slab.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from bench.measure import Skip

SUBJECT = "fio"
WITHOUT = "fio is not installed (Debian: apt-get install fio)"
_STEP = 1 << 20
_DEADLINE_S = 300


def is_there() -> bool:
    """Whether fio can be started."""
    return shutil.which(SUBJECT) is not None


def version() -> str:
    """As fio says it, such as "fio-3.33"."""
    found = subprocess.run([SUBJECT, "--version"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


class Fio:
    """One pattern over one file of ``nbytes``, in equal parts by ``jobs`` threads: direct, a call
    at a time in each. ``rw``: as fio names it; ``sync_every``: of writes, an fdatasync after so
    many blocks of a thread. ``path``: its file. Raises ``Skip`` where there is no fio.
    """

    def __init__(
        self,
        folder: Path,
        rw: str,
        *,
        block_bytes: int,
        nbytes: int,
        jobs: int,
        sync_every: int = 0,
    ) -> None:
        if not is_there():
            raise Skip(WITHOUT)
        self._folder, self._name = folder, f"fio-{block_bytes}.bin"
        self.path = folder / self._name
        self.command = [
            SUBJECT,
            f"--name={rw}",
            f"--filename={self._name}",
            f"--rw={rw}",
            f"--bs={block_bytes}",
            f"--size={nbytes // jobs}",
            f"--offset_increment={nbytes // jobs}",
            f"--numjobs={jobs}",
            "--direct=1",
            "--ioengine=psync",
            "--thread",
            "--overwrite=1",
            "--fallocate=none",
            "--norandommap" if rw.startswith("rand") else f"--fdatasync={sync_every}",
            "--randseed=1",
            "--group_reporting",
            "--output-format=json",
        ]
        self._lay_out(nbytes)

    def _lay_out(self, nbytes: int) -> None:
        """Writes the file once, so that no extent of it is new, and none of zeros, which a drive
        may not keep at all.
        """
        rng = np.random.default_rng(4)
        with (self._folder / self._name).open("wb") as file:
            for _ in range(0, nbytes, _STEP):
                file.write(rng.bytes(min(nbytes, _STEP)))
            file.flush()
            os.fsync(file.fileno())

    def run(self) -> float:
        """One run: bytes a second, in MB. Raises ``RuntimeError`` where fio fails."""
        done = subprocess.run(
            self.command, cwd=self._folder, capture_output=True, text=True, timeout=_DEADLINE_S
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(self.command)}: {done.stderr.strip()}")
        (job,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        kind = "read" if "read" in self.command[3] else "write"
        if job["error"]:
            raise RuntimeError(f"{' '.join(self.command)}: error {job['error']}")
        return float(job[kind]["bw_bytes"]) / 1e6

    def close(self) -> None:
        """Removes its file."""
        (self._folder / self._name).unlink()
