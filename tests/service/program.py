"""`radix serve` as people start it: a process of its own, its line of addresses, its log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from radix.service import Client
from tests.service.rig import GROUPS, ROOT


class Program:
    """`radix serve` over a folder, with flags; ``told`` is its line, ``log`` what it logged."""

    def __init__(
        self, folder: Path, *flags: str, environment: dict[str, str] | None = None
    ) -> None:
        self.path = str(folder / "radix.sock")
        self._file = folder / "log"
        self._log = os.open(self._file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        arguments = [
            *("--socket", self.path, "--admin", "127.0.0.1:0"),
            *("--host-bytes", "16MiB", "--disk-bytes", "64MiB"),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radix.cli", "serve", *arguments, *flags],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(20)
            raise AssertionError((folder / "log").read_text())
        self.told: dict[str, Any] = json.loads(line)

    def client(self, **settings: Any) -> Client:
        return Client(self.path, GROUPS, **settings)

    def get(self, path: str) -> Any:
        with urlopen(f"http://{self.told['admin']}{path}", timeout=20) as answer:
            return json.loads(answer.read())

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._log)


def notifications(folder: Path) -> socket.socket:
    """Where systemd would listen."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.bind(str(folder / "notify"))
    link.settimeout(20)
    return link
