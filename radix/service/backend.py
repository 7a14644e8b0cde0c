"""A service as a backend of the remote tier: what an embedded cache keeps below its own memory lies
in `radix serve`, so that every adapter over an embedded cache runs against a service by naming it.
Values are blocks of a store of theirs, by the digest of their name. Keeps no invariant of its own:
what comes back is verified by the tier.

    embedded cache    device | host | disk | remote tier --+
    another one       device | host |        remote tier --+--> store of a service: pool, disk, ...

What a reset forgets here only this process forgets: others that use the service still find it.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.arguments import at_least_one, patience_of
from radix.errors import CacheError
from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import HASHED_BYTES, Mask, hash_keys
from radix.service.calls import ServiceGoneError
from radix.service.client import Client
from radix.service.link import host_of, is_path
from radix.tier import Keys
from tiers.remote import RemoteTier
from tiers.remote_backend import MISSING, BackendError, Put
from tiers.remote_values import EPOCH_BYTES, HEADER_BYTES, pieces_of, sealed_epoch

FIRST_EPOCH = sealed_epoch(hashlib.sha256(b"radix-service-epoch-1").digest()[:EPOCH_BYTES])
_Batch = tuple[int, list[int]]  # a group of the store, and which values of a call are of its size


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service is, and who asks.

    ``address``: the path of its socket, with a '/', or host:port. ``tenant``, ``secret``, ``tls``:
    as of ``Client``. ``timeout_s``: for any answer; a service that gives none is a miss.
    ``pool_bytes``: of the store, where it is new in the service: 0 for ``store_share`` of what its
    domain has left. ``blocks``: that the cache may know of
    there, of each group.
    """

    address: str
    tenant: str = ""
    secret: bytes | None = None
    tls: ssl.SSLContext | None = None
    timeout_s: float = 2.0
    pool_bytes: int = 0
    blocks: int = 1 << 16

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise TypeError(f"address must be text, not {type(self.address).__name__}")
        if not is_path(self.address):
            host_of(self.address)
        patience_of("timeout_s", self.timeout_s)
        at_least_one("blocks", self.blocks)
        if type(self.pool_bytes) is not int or self.pool_bytes < 0:
            raise ValueError(f"pool_bytes must be an integer from 0, not {self.pool_bytes!r}")

    @classmethod
    def of(cls, given: Service | str) -> Service:
        """Itself, or of an address alone."""
        return cls(given) if isinstance(given, str) else given

    def client(
        self,
        groups: Sequence[Group],
        memory: Sequence[Sequence[npt.NDArray[Any]]] | None = None,
    ) -> Client:
        """A connection of its own for a store of these groups, by digests as keys: made at its
        first call. ``memory``: as of ``Client``.
        """
        return Client(
            self.address,
            groups,
            key_bytes=HASHED_BYTES,
            memory=memory,
            tenant=self.tenant,
            secret=self.secret,
            tls=self.tls,
            timeout_s=self.timeout_s,
            pool_bytes=self.pool_bytes,
        )

    def tier(self, groups: Sequence[Group], namespace: Namespace) -> RemoteTier:
        """The last tier of a cache of these groups, named "service". ``namespace``: under which the
        service keeps and shows all of it. A service that does not answer now is no error; one that
        refuses is: ``DeniedError``, ``ServiceLimitError``, ``ValueError``. Cost: connecting.
        """
        backend = ServiceBackend(self, groups, namespace)
        try:
            backend.check()
        except BaseException:
            backend.close()
            raise
        return RemoteTier(
            backend,
            blocks=self.blocks,
            name="service",
            digest="sha256",
            deadline_s=self.timeout_s,
            threads=1,
            own_epochs=True,
        )


class ServiceBackend:
    """``tiers.remote_backend.Backend`` over one store of a service: a group for each size of value.

    An epoch is this process's alone: ``replace`` keeps it here. Two connections, one that reads and
    one that writes, so that neither waits for the other's bytes.
    """

    def __init__(self, service: Service, groups: Sequence[Group], namespace: Namespace) -> None:
        """Connects to nothing yet. ``groups``: of the cache, whose values will be stored."""
        sizes = {size for group in groups for _, size in pieces_of(group) if size}
        self._sizes = sorted(HEADER_BYTES + size for size in sizes)
        self._service = service
        self._namespace = namespace
        values = [Group.full(f"value-{size}", size) for size in self._sizes]
        self._reading, self._writing = service.client(values), service.client(values)
        self._epochs: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        """Its address."""
        return self._service.address

    def check(self) -> None:
        """Asks it once, so that what it refuses is told at once. A service that is gone passes."""
        try:
            self._reading.stat(namespace=self._namespace)
        except ServiceGoneError:
            return

    def open(self, timeout_s: float) -> None:
        """Connects. ``BackendError`` where it does not answer."""
        self.ping(timeout_s)

    def ping(self, timeout_s: float) -> None:
        """Returns if it answers."""
        with _failing():
            self._reading.stat(namespace=self._namespace)

    def register(self, memory: memoryview) -> None:
        """Nothing: any memory will do."""

    # ------------------------------------------------------------------ values
    def put(
        self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float
    ) -> list[Put]:
        """Stores values. Cost: their bytes, once copied here and once there."""
        keys, result = _keys(names), [Put.FULL] * len(names)
        for group, batch in self._batches(values):
            rows = np.stack([np.frombuffer(values[at], np.uint8) for at in batch])
            with _failing():
                kept = self._writing.write(
                    keys[batch],
                    rows,
                    group,
                    namespace=self._namespace,
                    durable=False,
                    timeout_s=timeout_s,
                )
            if not kept.all():
                _still(self._writing)
            for at, one in zip(batch, kept.tolist(), strict=True):
                result[at] = Put.STORED if one else Put.FULL
        return result

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        """Reads values into memory. Cost: their bytes."""
        keys, result = _keys(names), [MISSING] * len(names)
        one = self._through_memory if self._reading.does.local else self._over_wire
        for group, batch in self._batches(into):
            with _failing():
                good = one(keys[batch], group, [into[at] for at in batch], timeout_s)
            if not good.all():
                _still(self._reading)
            for at, there in zip(batch, good.tolist(), strict=True):
                result[at] = len(into[at]) if there else MISSING
        return result

    def _through_memory(
        self, keys: Keys, group: int, into: list[memoryview], timeout_s: float
    ) -> Mask:
        """Copied out of the service's own memory, while they are leased."""
        space = self._namespace
        with self._reading.lease(
            keys=keys, groups=[group], namespace=space, timeout_s=timeout_s
        ) as lease:
            for block, target in zip(lease.blocks(group), into, strict=True):
                if block is not None:
                    target[:] = block.data
            intact = lease.intact()
            held = lease.held(group)
            return held if intact else np.zeros(len(held), np.bool_)

    def _over_wire(self, keys: Keys, group: int, into: list[memoryview], timeout_s: float) -> Mask:
        good, blocks = self._reading.read(
            keys, group, namespace=self._namespace, timeout_s=timeout_s
        )
        for at, block in zip(np.flatnonzero(good).tolist(), blocks, strict=True):
            into[at][:] = block.data
        return good

    def _batches(self, values: Sequence[memoryview]) -> Iterator[_Batch]:
        """Values by size; of another size than a block's there is nothing."""
        for group, size in enumerate(self._sizes):
            batch = [at for at, value in enumerate(values) if len(value) == size]
            if batch:
                yield group, batch

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """Which names have a value of any size, in a remote tier of the service too. Cost: the
        names, once a size.
        """
        keys = _keys(names)
        there = np.zeros(len(names), np.bool_)
        for group in range(len(self._sizes)):
            left = np.flatnonzero(~there)
            if len(left):
                with _failing():
                    tiers = self._reading.has(
                        keys[left], group, namespace=self._namespace, seek=True
                    )
                    there[left] = tiers >= 0
        if not there.all():
            _still(self._reading)
        return [bool(one) for one in there]

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """The service forgets these values, for all who use it: they are no good."""
        with _failing():
            for group in range(len(self._sizes)):
                self._writing.forget(_keys(names), group, namespace=self._namespace)

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        """Keeps it in this process. ``absent``: what all begin with, which is no process's own."""
        if not absent:
            self._epochs[name] = value
        return self._epochs.get(name, FIRST_EPOCH)

    def close(self) -> None:
        """Ends both connections. Idempotent."""
        self._reading.close()
        self._writing.close()


@contextmanager
def _failing() -> Iterator[None]:
    """What a client raises, as a backend says it."""
    try:
        yield
    except (CacheError, ValueError, OSError) as error:
        raise BackendError(f"{type(error).__name__}: {error}") from error


def _still(client: Client) -> None:
    """``BackendError`` where what looks like a miss is a service that is gone."""
    if not client.connected:
        raise BackendError(f"{client.address} does not answer")


def _keys(names: Sequence[str]) -> Keys:
    return hash_keys([name.encode() for name in names], "sha256")
