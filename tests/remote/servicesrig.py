"""Two services that share a backend, each a process of its own as on a machine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from tests.service.rig import Service


class Pair:
    """Two services over one backend, each with a disk of its own unless ``data`` is "none"."""

    def __init__(
        self, folder: Path, url: str, tenants: dict[str, Any] | None = None, **flags: str
    ) -> None:
        self.folders = [folder / name for name in ("one", "two")]
        self.tenants = tenants
        self.flags = {"remote": url, "limits.remote_s": "5", **flags}
        for each in self.folders:
            each.mkdir()
        self.one = self.start(0)
        self.two = self.start(1)

    def start(self, number: int) -> Service:
        """A service over the folder of one of them."""
        folder = self.folders[number]
        flags = {"data": str(folder / "data"), **self.flags}
        return Service(folder, self.tenants, **flags)

    def stored(self, blocks: int, seconds: float = 60.0) -> None:
        """Waits until the first has so many blocks in the backend, and nothing is under way."""
        self.one.until(lambda status: remote_blocks(status) >= blocks and is_quiet(status), seconds)

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


def is_on(status: dict[str, Any]) -> bool:
    """Whether the backend is asked at present."""
    tiers = remote_tiers(status)
    return bool(tiers) and all(tier["mode"] == "on" for tier in tiers)
