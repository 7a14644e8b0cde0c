"""Mooncake Store as a backend of the remote tier. Values go straight from staging memory, which is
registered once, to the segments of whoever gives the store memory. What its client does not do is
done here or by who calls: a name that has a value keeps it, a master that is gone blocks a call for
seconds (the caller does not wait), a health check that says all is well is not asked. Keeps no
invariant of its own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from radix._native import ffi
from tiers.remote_backend import MISSING, TOO_LONG, BackendError, Put

# Codes of the client, as its documentation and its answers have them.
_NO_ROOM = -200
_TOO_SMALL = -600
_NO_MASTER = -900
_EPOCH_COPIES = 3
_OPTIONS = {"segment_bytes": 0, "buffer_bytes": 16 << 20}


class MooncakeBackend:
    """A client of one master. It listens on all interfaces, as every client of Mooncake does."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        segment_bytes: int = _OPTIONS["segment_bytes"],
        buffer_bytes: int = _OPTIONS["buffer_bytes"],
        local: str = "127.0.0.1",
        protocol: str = "tcp",
    ) -> None:
        """``segment_bytes``: memory of this process that the store may use, for values of anybody;
        0: none. ``buffer_bytes``: of the client itself. ``local``: the address at which others
        reach this process; ``protocol``: "tcp" or "rdma". Connects to nothing.
        """
        self._place = host, port
        self._segment_bytes, self._buffer_bytes = segment_bytes, buffer_bytes
        self._local, self._protocol = local, protocol
        self._memory: list[memoryview] = []
        self._store: Any = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, url: str) -> MooncakeBackend:
        """``mooncake://master:port?segment_bytes=N&buffer_bytes=N&local=ADDRESS&protocol=tcp``.

        Raises ``ValueError`` naming what was expected.
        """
        parts = urlsplit(url)
        if parts.scheme != "mooncake" or not parts.hostname or not parts.port:
            raise ValueError(f"url must be mooncake://master:port, not {url!r}")
        given: dict[str, Any] = {key: value[-1] for key, value in parse_qs(parts.query).items()}
        known = {*_OPTIONS, "local", "protocol"}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"url: {unknown[0]!r} is not one of {', '.join(sorted(known))}")
        for name in _OPTIONS:
            if name in given:
                if not given[name].isdigit():
                    raise ValueError(f"url: {name} must be a number of bytes, not {given[name]!r}")
                given[name] = int(given[name])
        return cls(parts.hostname, parts.port, **given)

    @property
    def url(self) -> str:
        """Where the master is."""
        return f"mooncake://{self._place[0]}:{self._place[1]}"

    def open(self, timeout_s: float) -> None:
        """Joins the master, once: the client finds a master that came back by itself."""
        self._knock(timeout_s)  # without a master setup blocks for a minute and a half
        with self._lock:
            if self._store is not None:
                return
            store = MooncakeDistributedStore()
            host, port = self._place
            code = store.setup(
                self._local,
                "P2PHANDSHAKE",
                self._segment_bytes,
                self._buffer_bytes,
                self._protocol,
                "",
                f"{host}:{port}",
            )
            if code:
                store.close()
                raise BackendError(f"{self.url}: setup says {code}")
            for memory in self._memory:
                store.register_buffer(_address(memory), len(memory))
            self._store = store

    def _knock(self, timeout_s: float) -> None:
        try:
            socket.create_connection(self._place, timeout_s).close()
        except OSError as error:
            raise BackendError(f"{self.url}: {error}") from error

    def register(self, memory: memoryview) -> None:
        """What values are copied from and to; held as long as the client lives."""
        with self._lock:
            self._memory.append(memory)
            if self._store is not None:
                self._store.register_buffer(_address(memory), len(memory))

    def _client(self) -> Any:
        if self._store is None:
            raise BackendError(f"{self.url}: not joined yet")
        return self._store

    def _checked(self, codes: list[int]) -> list[int]:
        """Codes of one batch; ``BackendError`` where the master did not answer."""
        if codes and all(code == _NO_MASTER for code in codes):
            raise BackendError(f"{self.url}: the master does not answer")
        return codes

    # ------------------------------------------------------------------ the contract
    def put(
        self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float
    ) -> list[Put]:
        """No byte is copied here; a name that has a value keeps it."""
        places = [_address(value) for value in values]
        sizes = [len(value) for value in values]
        codes = self._checked(self._client().batch_put_from(list(names), places, sizes))
        kinds = {0: Put.STORED, _NO_ROOM: Put.FULL}
        return [kinds.get(code, Put.FAILED) for code in codes]

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        """No byte is copied here. A value whose owner died is missing."""
        places = [_address(memory) for memory in into]
        sizes = [len(memory) for memory in into]
        codes = self._checked(self._client().batch_get_into(list(names), places, sizes))
        return [
            code if code >= 0 else TOO_LONG if code == _TOO_SMALL else MISSING for code in codes
        ]

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """What the master believes: of an owner that died, for ten seconds that it lives."""
        codes = self._checked(self._client().batch_is_exist(list(names)))
        return [code == 1 for code in codes]

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """Also what was read a moment ago, which the master would keep for its lease."""
        self._checked(self._client().batch_remove(list(names), True))

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        """Pinned, and in several places where there are some: it is what all else hangs on."""
        client = self._client()
        if not absent:
            self._checked(client.batch_remove([name], True))
        settings = ReplicateConfig()
        settings.replica_num = _EPOCH_COPIES
        settings.with_hard_pin = True
        code = client.put(name, value, settings)
        if code:
            self._checked([code])
        return bytes(client.get(name)) or None

    def ping(self, timeout_s: float) -> None:
        """Whether the master answers a question."""
        self._knock(timeout_s)
        self._checked(self._client().batch_is_exist(["radix:ping"]))

    def close(self) -> None:
        """Leaves the store; memory that it lent goes with it."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


def _address(memory: memoryview) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
