"""A real service in a process of its own, clients of it, and blocks whose bytes say which
they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.keysets import hash_keys
from radix.service import Client

ROOT = Path(__file__).parents[2]
SIZE = 4096
GROUPS = [Group.full("kv", SIZE)]
Blocks = npt.NDArray[np.uint8]


def keys_of(names: list[object]) -> npt.NDArray[np.uint8]:
    return hash_keys([f"block {name}".encode() for name in names], "sha256")


def content(name: object, size: int = SIZE) -> Blocks:
    return np.frombuffer(hashlib.shake_128(f"{name}".encode()).digest(size), np.uint8)


def contents(names: list[object], size: int = SIZE) -> Blocks:
    rows = [content(name, size) for name in names]
    return np.stack(rows) if rows else np.empty((0, size), np.uint8)


class Service:
    """A service over a folder; the same folder gives the same one again, warm."""

    def __init__(self, folder: Path, tenants: dict[str, Any] | None = None, **flags: str) -> None:
        self.path = str(folder / "radix.sock")
        told = {
            "flags": {
                "socket": self.path,
                "host_bytes": "16MiB",
                "disk_bytes": "64MiB",
                "store_share": "1",
                **flags,
            }
        }
        if tenants is not None:
            told["tenants"] = tenants
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.serving", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        line = self._line()
        if not isinstance(line, dict):
            raise AssertionError(f"the service told {line!r}")
        self.addresses: dict[str, str] = line

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the service ended with {self.process.wait(10)}")
        return json.loads(line)

    def _say(self, word: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        told = self._line()
        if isinstance(told, dict) and "error" in told:
            raise AssertionError(told["error"])
        return told

    def check(self) -> None:
        assert self._say("check") == "sound"

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self._say("status")
        return told

    def waiting(self) -> int:
        """Requests that it has taken and not answered yet."""
        told: int = self._say("waiting")
        return told

    def until(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 20.0) -> None:
        """Waits until the status is so; an end of a connection takes a moment to be seen."""
        end = time.monotonic() + seconds
        while not holds(told := self.status()):
            if time.monotonic() > end:
                raise AssertionError(f"not in {seconds} s: {told}")
            time.sleep(0.01)

    def client(self, **settings: Any) -> Client:
        return Client(self.path, settings.pop("groups", GROUPS), **settings)

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def drain(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
