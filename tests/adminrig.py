"""A real cache and a real flat store at work behind an admin server, for tests of what it shows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import radix
from radix import Group, Namespace, PrefixCache
from radix.service.admin import AdminServer
from radix.service.config import Address
from radix.service.explorer import look
from radix.service.status import Asked, Facade, Status, TenantStatus, store_status
from radix.store import FlatStore
from tiers.disk import DiskTier
from tiers.host import HostTier

PAGE = 16
BLOCK_BYTES = 16384
GROUP = Group.full("kv", BLOCK_BYTES)


@dataclass
class Rig:
    """What runs: ``cache`` and ``flat`` under ``lock``, served by ``admin``. ``state``, ``broken``:
    what the status is to say, and what asking for it raises.
    """

    cache: PrefixCache
    flat: FlatStore
    admin: AdminServer
    lock: threading.Lock
    state: str = "running"
    broken: Exception | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.admin.address}"

    def serve(
        self, number: int, tokens: int = 100, tenant: bytes = b"acme", branch: int = 0
    ) -> None:
        """A prompt of its own, from beginning to end; with ``branch`` it leaves that prompt behind
        four pages.
        """
        prompt = np.arange(number * 1000, number * 1000 + tokens, dtype=np.int32)
        prompt[4 * PAGE :] += 500 * branch
        with self.lock:
            name = Namespace("llama-3.1-8b", salt=tenant, revision="r1")
            request = self.cache.admit(prompt, namespace=name)
            request.wait()
            request.computed(tokens)
            request.finish()
            self.cache.flush()

    def put(self, count: int, seed: int = 0) -> None:
        """Keys of the flat store: asked for, then brought."""
        keys = np.random.default_rng(seed).integers(0, 256, (count, 32), dtype=np.uint8)
        with self.lock:
            self.flat.has(keys)
            self.flat.commit(self.flat.reserve(keys))
            self.flat.flush()
            self.flat.has(keys)


@contextmanager
def serving(folder: Path, sample_s: float = 0.1) -> Iterator[Rig]:
    """A rig whose disk tiers lie in ``folder``; it is closed at the end."""
    disk = DiskTier(folder / "prompts", limit_bytes=64 << 20)
    cache = PrefixCache([GROUP], [HostTier(limit_bytes=4 << 20), disk], page_tokens=PAGE)
    flat = FlatStore(
        [Group.full("kv", 4096)],
        [HostTier(limit_bytes=4 << 20), DiskTier(folder / "keys", limit_bytes=32 << 20)],
        key_bytes=32,
        clock=time.monotonic_ns,
    )
    lock, began = threading.Lock(), time.time()
    stores: Mapping[str, Facade] = {"prompts": cache, "keys": flat}
    rig: Rig

    def status() -> Status:
        if rig.broken is not None:
            raise rig.broken
        with lock:
            told = (
                store_status("prompts", cache),
                store_status("keys", flat, "acme", time.monotonic_ns()),
            )
        return Status(
            version=radix.__version__,
            boot="00ff" * 8,
            pid=os.getpid(),
            state=rig.state,
            started_unix_s=began,
            uptime_s=time.time() - began,
            addresses={"socket": "/run/radix.sock", "admin": str(rig.admin.address)},
            connections=3,
            stores=told,
            tenants=tuple(_tenants(told[0].asked)),
            counters={"connection.turned away": 2},
        )

    def asked(question: Mapping[str, str]) -> dict[str, Any]:
        with lock:
            return look(stores, question)

    rig = Rig(cache, flat, None, lock)  # type: ignore[arg-type]  # it is made of the rig itself
    with cache, flat:
        rig.admin = AdminServer(Address("127.0.0.1", 0), status, asked, sample_s)
        with rig.admin:
            yield rig


def _tenants(asked: Asked) -> Iterator[TenantStatus]:
    for name, quota in (("acme", 2 << 20), ("other", None)):
        yield TenantStatus(
            name=name,
            domain=name,
            weight=1.0,
            quota_bytes=quota,
            disk_quota_bytes=None,
            floor_bytes=1 << 19 if quota else None,
            disk_floor_bytes=None,
            account=name if quota else "shared",
            used_bytes={"host": 1 << 20} if quota else None,
            evicted_blocks={"host": 7} if quota else None,
            refused_blocks=3 if quota else None,
            connections=2 if quota else 1,
            leases=0,
            asked=asked,
        )
