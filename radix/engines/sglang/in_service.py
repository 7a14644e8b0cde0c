"""Pages in a service that other engines use too: what one of them stored all find that hold the
same share of the same model. Keeps I24: what a service that dies, stalls or starts again answers is
right or a miss, never other bytes; and nobody waits longer for an answer than the options say.

    a client that asks      has: what services elsewhere stored in a remote tier included
    a client that reads     host pools  <--load---  leased, copied, the connection stands: right
    a client that writes    host pools  --store-->  staging memory --> the service's own

A client asks one question at a time, and the engine calls from three threads, one of each kind:
with a connection each none waits for another's bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from radix.engines.sglang.host_pools import HostPool
from radix.engines.sglang.storage_options import Rank
from radix.events import Event
from radix.keys import Namespace
from radix.keysets import Mask
from radix.service.backend import Service
from radix.service.calls import ServiceGoneError
from radix.service.client import Client
from radix.tier import Slots

_LOG = logging.getLogger("radix.engines.sglang")
_GENERATION_BYTES = 16


class InService:
    """Where pages are kept: ``check`` it at start, ``open`` it for the first call."""

    directory = None

    def __init__(self, service: Service) -> None:
        """Connects to nothing yet."""
        self.name = service.address
        self._service = service

    def rank_of(self, rank: Rank, pool: HostPool) -> list[object]:
        """What of a rank is in the names of a pool's pages: all who hold the same find them."""
        return rank.share(pool.name)

    def check(self, pools: Sequence[HostPool], namespace: Namespace) -> None:
        """Asks the service once, so that what it refuses is told at once: ``DeniedError``,
        ``ServiceLimitError``, ``CapacityError``, ``ValueError``. One that is gone passes.
        """
        with self._service.client([pool.group for pool in pools]) as client:
            try:
                client.stat(namespace=_bounded(namespace, b""))
            except ServiceGoneError as error:
                _LOG.warning("%s: pages are misses until it answers: %s", self.name, error)

    def open(self, pools: Sequence[HostPool]) -> ServiceStore:
        """The store of the pools. Connects with the first call."""
        return ServiceStore(self._service, pools)

    def release(self) -> None:
        """Nothing was taken."""


class ServiceStore:
    """The calls of a ``BlockingStore`` that the storage makes. A service that does not answer
    raises ``ServiceGoneError``, at once while it is left alone.
    """

    def __init__(self, service: Service, pools: Sequence[HostPool]) -> None:
        """``pools``: whose memory is lent until ``close`` has returned."""
        groups, memory = [pool.group for pool in pools], [pool.arrays for pool in pools]
        self._timeout_s = service.timeout_s
        self._asking = service.client(groups)
        self._reading = service.client(groups, memory)
        self._writing = service.client(groups, memory)
        self._generation = b""  # of the weights that the namespace stands for
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def has(self, keys: object, group: int = 0, *, namespace: Namespace) -> Slots:
        """As ``BlockingStore.has``, of the service's tiers."""
        name = _bounded(namespace, self._generation)
        found = self._asking.has(keys, group, namespace=name, seek=True)
        _answered(self._asking)
        return found

    def store(self, keys: object, rows: object, group: int = 0, *, namespace: Namespace) -> Mask:
        """As ``BlockingStore.store``, and does not wait for the service's disk."""
        kept = self._writing.store(
            keys,
            rows,
            group,
            namespace=_bounded(namespace, self._generation),
            durable=False,
            timeout_s=self._timeout_s,
        )
        self._count("stored", kept)
        _answered(self._writing)
        return kept

    def load(self, keys: object, rows: object, group: int = 0, *, namespace: Namespace) -> Mask:
        """As ``BlockingStore.load``. ``ValueError`` for a row that is named twice."""
        lent = np.asarray(rows)
        if len(np.unique(lent)) != len(lent):
            raise ValueError("rows must differ: one would be written with two pages")
        generation = self._generation
        name = _bounded(namespace, generation)
        came = self._reading.load(keys, rows, group, namespace=name)
        if generation != self._generation:  # forgotten while they came
            came = np.zeros(len(came), np.bool_)
        self._count("loaded", came)
        _answered(self._reading)
        return came

    def reset(self) -> None:
        """What was stored until now is not found any more by this process, nor is what it stores
        from now on by another one: the weights of others did not change.
        """
        self._generation = os.urandom(_GENERATION_BYTES)

    def events(self) -> list[Event]:
        """None: tiers are the service's, and it tells of them."""
        return []

    def counters(self) -> Mapping[str, int]:
        """Pages that this process stored and loaded, and those that it did not get."""
        with self._lock:
            return dict(self._counts)

    def _count(self, what: str, good: Mask) -> None:
        with self._lock:
            self._counts[f"service.{what}"] += int(good.sum())
            self._counts[f"service.not_{what}"] += int((~good).sum())

    def close(self) -> None:
        """Lets calls that run end, and ends the connections. Idempotent."""
        for client in (self._asking, self._reading, self._writing):
            client.close()


def _bounded(namespace: Namespace, generation: bytes) -> Namespace:
    """The namespace with what is known of the bytes as a digest: a service takes short ones."""
    digest = hashlib.sha256(namespace.layout).digest()
    return replace(namespace, layout=digest, content=generation)


def _answered(client: Client) -> None:
    """Raises where a miss stands for no answer."""
    if not client.connected:
        raise ServiceGoneError(f"{client.address} does not answer")
