"""Two services that share a backend, and prompts whose blocks say which page they are of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.service.rig import Service


def eventually(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Waits until it is so."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.01)


class Pair:
    """Two services over one backend, each with a disk of its own."""

    def __init__(self, folder: Path, url: str, **flags: Any) -> None:
        self.folders = [folder / name for name in ("one", "two")]
        self.flags = {"remote": url, "limits.remote_s": "1", **flags}
        for each in self.folders:
            each.mkdir()
        self.one, self.two = (self.start(number) for number in range(2))

    def start(self, number: int, **flags: Any) -> Service:
        """A service over the folder of one of them."""
        folder = self.folders[number]
        flags = {"data": str(folder / "data"), **self.flags, **flags}
        tenants = flags.pop("tenants", None)
        return Service(folder, tenants, **{key: v for key, v in flags.items() if v is not None})

    def wait_for(self, blocks: int) -> None:
        """Until the first has so many blocks in the backend, and nothing is under way."""
        self.one.until(lambda status: remote_blocks(status) >= blocks and is_quiet(status))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for service in (self.one, self.two):
            service.__exit__(*error)


def is_quiet(status: dict[str, Any]) -> bool:
    """Whether nothing is under way."""
    return all(not store["transfers_under_way"] for store in status["stores"])


def remote_tiers(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The remote tier of each store of a service."""
    tiers = [tier for store in status["stores"] for tier in store["tiers"]]
    return [tier for tier in tiers if tier["name"] == "remote"]


def remote_blocks(status: dict[str, Any]) -> int:
    """Blocks that a service knows in the backend."""
    return sum(sum(tier["blocks"].values()) for tier in remote_tiers(status))
