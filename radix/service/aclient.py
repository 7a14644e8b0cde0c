"""AsyncClient: the calls of ``Client`` for programs of one event loop. Many calls are on the wire
at once, and each is answered when it is: nothing here waits for another's bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import HASHED_BYTES, Mask
from radix.service.aconnected import AsyncConnected
from radix.service.calls import Asking, Blocks, Explained, Hit, Told, usage_in
from radix.service.held import Room, ServiceLease
from radix.service.link import Credentials
from radix.service.operations import WRITE_TIMEOUT_S, Terms
from radix.service.protocol import Op
from radix.tier import Slots, TierUsage


class AsyncClient(AsyncConnected):
    """A store of a service, for one set of groups, used by the tasks of one event loop. The calls,
    what they mean and what they raise are those of ``Client``. A lease is released without waiting.
    """

    def __init__(
        self,
        address: str,
        groups: Sequence[Group],
        *,
        key_bytes: int = HASHED_BYTES,
        page_tokens: int = 0,
        memory: Sequence[Sequence[npt.NDArray[Any]]] | None = None,
        tenant: str = "",
        secret: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 5.0,
        pool_bytes: int = 0,
    ) -> None:
        """Connects at the first call. Arguments as of ``Client``."""
        super().__init__(
            *(address, groups, key_bytes, page_tokens, memory),
            who=Credentials(tenant, secret, tls),
            timeout_s=timeout_s,
            pool_bytes=pool_bytes,
        )

    def _asking(self, keys: object, tokens: object) -> Asking:
        return Asking.of(keys, tokens, self.does.key_bytes)[0]

    async def has(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        seek: bool = False,
    ) -> Slots:
        """As ``Client.has``."""
        return await self._run(self.does.has(keys, group, namespace, positions, seek))

    async def valid_lengths(
        self, runs: Sequence[object], group: int = 0, *, namespace: Namespace | None = None
    ) -> npt.NDArray[np.int64]:
        """As ``Client.valid_lengths``."""
        return await self._run(self.does.valid_lengths(runs, group, namespace))

    async def lookup(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        namespace: Namespace | None = None,
        leave: int = 1,
        seek: bool = False,
    ) -> Hit:
        """As ``Client.lookup``."""
        return await self._run(self.does.lookup(tokens, keys, namespace, leave, seek))

    async def explain(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        namespace: Namespace | None = None,
        leave: int = 1,
    ) -> Explained:
        """As ``Client.explain``."""
        return await self._run(self.does.explain(tokens, keys, namespace, leave))

    async def touch(
        self, keys: object, *, namespace: Namespace | None = None, positions: object = None
    ) -> None:
        """As ``Client.touch``."""
        await self._run(self.does.touch(keys, namespace, positions))

    async def lease(
        self,
        tokens: object = None,
        *,
        keys: object = None,
        groups: Sequence[int] | None = None,
        namespace: Namespace | None = None,
        leave: int = 1,
        load: bool = True,
        timeout_s: float | None = None,
    ) -> ServiceLease:
        """As ``Client.lease``."""
        asked = self._asking(keys, tokens)
        left = leave if keys is None else 0
        steps = self.does.lease(asked, groups, namespace, left, load, timeout_s, self._let_go)
        return await self._run(steps)

    def release(self, lease: ServiceLease) -> None:
        """As ``Client.release``; it does not wait."""
        lease.release()

    async def read(
        self,
        keys: object = None,
        group: int = 0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Mask, Blocks]:
        """As ``Client.read``."""
        return await self._run(
            self.does.read(self._asking(keys, tokens), group, namespace, timeout_s)
        )

    async def load(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        timeout_s: float | None = None,
    ) -> Mask:
        """As ``Client.load``."""
        return await self._run(
            self.does.load(keys, rows, group, namespace, timeout_s, self._let_go)
        )

    async def reserve(
        self,
        keys: object = None,
        group: int = 0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> Room:
        """As ``Client.reserve``."""
        return await self._run(self.does.reserve(keys, tokens, group, namespace, positions))

    async def commit(self, room: Room, good: object = None, *, durable: bool = True) -> Mask:
        """As ``Client.commit``."""
        return await self._run(self.does.commit(room, good, durable))

    async def abort(self, room: Room) -> None:
        """As ``Client.abort``."""
        await self._run(self.does.abort(room))

    async def write(
        self,
        keys: object,
        blocks: npt.NDArray[Any],
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        durable: bool = True,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Mask:
        """As ``Client.write``."""
        return await self._run(
            self.does.write(keys, blocks, group, Terms(namespace, positions, durable, timeout_s))
        )

    async def store(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        durable: bool = True,
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> Mask:
        """As ``Client.store``."""
        return await self._run(
            self.does.store(keys, rows, group, Terms(namespace, positions, durable, timeout_s))
        )

    async def keep(
        self,
        keys: object = None,
        seconds: float = 60.0,
        *,
        tokens: object = None,
        namespace: Namespace | None = None,
    ) -> tuple[int, int]:
        """As ``Client.keep``."""
        return await self._run(self.does.keep(self._asking(keys, tokens), seconds, namespace))

    async def unkeep(self, number: int, *, namespace: Namespace | None = None) -> None:
        """As ``Client.unkeep``."""
        await self._run(self.does.unkeep(number, namespace))

    async def forget(
        self, keys: object, group: int = 0, *, namespace: Namespace | None = None
    ) -> None:
        """As ``Client.forget``."""
        await self._run(self.does.forget(keys, group, namespace))

    async def reset(self, *, namespace: Namespace | None = None) -> None:
        """As ``Client.reset``."""
        await self._run(self.does.plain(Op.RESET, namespace, WRITE_TIMEOUT_S))

    async def flush(self, timeout_s: float | None = None) -> None:
        """As ``Client.flush``."""
        await self._run(self.does.plain(Op.FLUSH, None, timeout_s or WRITE_TIMEOUT_S))

    async def stat(self, *, namespace: Namespace | None = None) -> Mapping[str, Any]:
        """As ``Client.stat``."""
        return await self._run(self.does.plain(Op.STAT, namespace, None))

    async def counters(self) -> Mapping[str, int]:
        """As ``Client.counters``."""
        counters: Mapping[str, int] = (await self.stat())["counters"]
        return counters

    async def usage(self) -> dict[str, TierUsage]:
        """As ``Client.usage``."""
        return usage_in(await self.stat())

    async def events(
        self, since: int, most: int = 0, *, namespace: Namespace | None = None
    ) -> Told:
        """As ``Client.events``."""
        return await self._run(self.does.events(since, most, namespace))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
