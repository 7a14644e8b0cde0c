"""Runs the workload under the shim and reads what it wrote down. A recording is what stood below
the root before, and the operations and marks in their order.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.powerloss.blocks import Config

ROOT = Path(__file__).resolve().parents[2]
SHIM = Path(__file__).with_name("shim.c")
KILLED = 77
_HEAD = struct.Struct("<IIIIQQQQ")


class Kind(IntEnum):
    """What happened; the numbers are those of the shim."""

    CREATE = 1
    WRITE = 2
    SIZE = 3
    ZERO = 4
    SYNC = 5
    RENAME = 6
    UNLINK = 7
    MKDIR = 8
    MARK = 9
    UNKNOWN = 10


@dataclass(frozen=True, slots=True)
class Operation:
    """One record of the log. ``offset`` and ``number`` mean what the shim says for the kind."""

    kind: Kind
    inode: int
    offset: int
    number: int
    text: str
    other: str
    data: bytes

    @property
    def is_mark(self) -> bool:
        """Whether the process itself said it."""
        return self.kind is Kind.MARK


@dataclass(frozen=True, slots=True)
class Script:
    """What a recorded process is to do; ``fault``: one of ``faults.FAULTS``. ``dies_after``: so
    many operations on the storage, and another process goes on; 0: it lives.
    """

    config: Config
    seed: int
    steps: int
    first: int
    flying: int
    fault: str
    dies_after: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (``data``) or folder (None) that was there before."""

    path: str
    inode: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What was there, inode of the root first, and what happened. Paths are below the root."""

    before: tuple[Entry, ...]
    operations: tuple[Operation, ...]


def build_shim(folder: Path) -> Path:
    """Compiles the shim with the compiler that the interpreter was built for."""
    target = folder / "shim.so"
    compiler = shlex.split(sysconfig.get_config_var("CC") or "gcc")
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [*compiler, *flags, str(SHIM), "-o", str(target), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def record(shim: Path, root: Path, script: Script, place: Path) -> Recording:
    """Runs a script over what lies below ``root``. ``place``: a folder for the log."""
    before = tuple(_walk(root))
    log = place / "log"
    log.unlink(missing_ok=True)
    status = _run(shim, root, script, place) if script.dies_after else KILLED
    if status == KILLED:
        begun = [script.first - 1]
        if log.exists():
            told = (json.loads(op.text) for op in read_log(log.read_bytes(), "") if op.is_mark)
            begun += [number for mark in told for number in mark.get("begin", ())]
        _run(shim, root, replace(script, first=max(begun) + 1, dies_after=0), place)
    return Recording(before, tuple(read_log(log.read_bytes(), str(root))))


def _run(shim: Path, root: Path, script: Script, place: Path) -> int:
    orders = place / "script.json"
    orders.write_text(json.dumps({**asdict(script), "root": str(root)}))
    variables = dict(os.environ, LD_PRELOAD=str(shim), POWERLOSS_LOG=str(place / "log"))
    variables |= {"POWERLOSS_ROOT": str(root), "POWERLOSS_END": str(script.dies_after)}
    command = [sys.executable, "-m", "tests.powerloss.workload", str(orders)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    expected = (0, KILLED) if script.dies_after else (0,)
    assert done.returncode in expected, f"the recorded process failed: {script}\n{done.stderr}"
    return done.returncode


def _walk(root: Path) -> Iterator[Entry]:
    yield Entry("", root.stat().st_ino, None)
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        yield Entry(name, path.stat().st_ino, None if path.is_dir() else path.read_bytes())


def read_log(log: bytes, root: str) -> Iterator[Operation]:
    """The records of a log, with paths below the root."""
    at = 0
    while at < len(log):
        kind, text_bytes, other_bytes, _, inode, offset, number, nbytes = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        parts = []
        for size in (text_bytes, other_bytes, nbytes):
            parts.append(log[at : at + size])
            at += size
        text, other = (part.decode() for part in parts[:2])
        if kind not in (Kind.MARK, Kind.UNKNOWN):
            text, other = text.removeprefix(f"{root}/"), other.removeprefix(f"{root}/")
        yield Operation(Kind(kind), inode, offset, number, text, other, parts[2])


def marks(recording: Recording) -> list[tuple[int, dict[str, Any]]]:
    """Every mark with its position."""
    return [
        (at, json.loads(operation.text))
        for at, operation in enumerate(recording.operations)
        if operation.is_mark
    ]
