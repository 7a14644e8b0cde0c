"""Storage below SGLang's hierarchical cache: pages of its host pools on a disk or in a service, by
the hash that the engine gives them. One process is one rank; its three storage threads call at
once, and each waits until its bytes have moved. Keeps I24: a page is served only under the model,
dtype, layout and rank under which it was stored, and only verified.

    host pools  --set-->  on_disk, a directory of its own
                <--get--  in_service, what others share

Whatever fails while the engine serves is a miss, counted and told once: the engine would cut a
prefix for it, and stop for an exception.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from radix.engines.service_options import service_in
from radix.engines.sglang.host_pools import (
    KV,
    Bytes,
    HostPool,
    bytes_of,
    has_adapters,
    logical_dtype,
    model_facts,
)
from radix.engines.sglang.in_service import InService
from radix.engines.sglang.on_disk import OnDisk
from radix.engines.sglang.pool_store import Kept, PoolStore, leading, valid_lengths
from radix.engines.sglang.storage_options import Options, Rank
from radix.engines.versions import require
from radix.errors import CacheError, ClosedError, RequestError, UnsupportedError
from radix.events import Event, TierEvent
from radix.keys import Namespace
from radix.keysets import Mask

T = TypeVar("T")
_LOG = logging.getLogger("radix.engines.sglang")

require(
    "sglang",
    HiCacheStorage,
    {
        "register_mem_pool_host": ["mem_pool_host"],
        "register_mem_host_pool_v2": ["host_pool", "host_pool_name"],
        "on_host_pools_registered": [],
        "batch_exists": ["keys", "extra_info"],
        "batch_exists_v2": ["keys", "pool_transfers", "extra_info"],
        "batch_get_v1": ["keys", "host_indices", "extra_info"],
        "batch_set_v1": ["keys", "host_indices", "extra_info"],
        "batch_get_v2": ["transfers", "extra_info"],
        "batch_set_v2": ["transfers", "extra_info"],
    },
)


class RadixHiCache(HiCacheStorage):  # type: ignore[misc]  # the engine has no types here
    """HiCache storage over a disk tier, or over a service.

    The engine's: ``register_mem_pool_host``, ``register_mem_host_pool_v2``,
    ``on_host_pools_registered``; ``batch_exists``, ``batch_exists_v2``; ``batch_get_v1``,
    ``batch_set_v1``, ``batch_get_v2``, ``batch_set_v2``; with flat tensors ``get``, ``set``,
    ``exists``, ``batch_get``, ``batch_set``; ``clear``, ``get_stats``, ``close``. Beside them:
    ``counters``, ``directory``.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: object = None) -> None:
        """Touches no disk and no service yet. Raises ``ValueError`` or ``TypeError`` for an option,
        ``OSError`` for a secret that cannot be read, ``UnsupportedError`` for ranks that would have
        to share pages.
        """
        self.options = Options.of(storage_config.extra_config)
        self.rank = Rank.of(storage_config)
        service = service_in(self.options)
        self._below: OnDisk | InService = (
            OnDisk(self.options, self.rank) if service is None else InService(service)
        )
        self._config = storage_config
        self._pools: dict[str, HostPool] = {}
        self._lock = threading.Lock()
        self._registered = False
        self._opened: Kept | None = None
        self._closed = False
        self._stores: Stores = {}
        self._failures: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()
        self._moves: list[tuple[str, int, float]] = []

    @property
    def directory(self) -> Path | None:
        """That of this rank; None over a service."""
        return self._below.directory

    # ------------------------------------------------------------------ start
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the pool of the model's KV pages. Raises ``UnsupportedError`` for one whose pages
        cannot be had.
        """
        super().register_mem_pool_host(mem_pool_host)
        self._register(KV, mem_pool_host, lend=self.options.zero_copy)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes another pool, of states or of a window; the KV pool itself may come again. Raises
        ``UnsupportedError`` for one whose pages cannot be had, or that comes after the first use.
        """
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name == KV and KV in self._pools:
            if self._pools[KV].pool is not host_pool:
                raise UnsupportedError("two different host pools are registered as 'kv'")
            return
        self._register(name, host_pool, lend=True)

    def _register(self, name: str, pool: Any, *, lend: bool) -> None:
        found = HostPool(name, pool, lend=lend)
        with self._lock:
            if self._opened is not None:
                raise UnsupportedError(
                    f"host pool {name!r} came after the first use of the storage, which has its "
                    "pools fixed by then: attach the storage after all pools are made"
                )
            self._pools[name] = found

    def on_host_pools_registered(self) -> None:
        """The pools are known, but for those that the engine adds before its first request: checks
        what lies below and takes it. It is opened by the first call that needs it.

        Raises: ``UnsupportedError``, ``OSError``; over a directory ``TierUnavailableError`` where
        another process holds it or it is not ours, ``ValueError`` for a limit too small; over a
        service what that refuses by.
        """
        if KV not in self._pools:
            raise RequestError("no KV host pool was registered before on_host_pools_registered")
        if has_adapters() and not self.options.revision:
            raise UnsupportedError(
                "--enable-lora: page hashes know an adapter by its name and path alone; name a "
                "'revision' in --hicache-storage-backend-extra-config, and another one whenever "
                "the files of an adapter are replaced"
            )
        pools = self._ordered()
        namespaces = self._namespaces(pools)
        with self._lock:
            if not self._registered:
                self._below.check(pools, namespaces[0])
            self._registered = True

    def _ordered(self) -> list[HostPool]:
        """KV first, then by name: the order in which the engine brings them means nothing."""
        return sorted(self._pools.values(), key=lambda pool: (pool.name != KV, pool.name))

    def _ready(self) -> Stores:
        """The stores of the pools, opened by the first call; none before the pools are known."""
        with self._lock:
            if self._closed:
                raise ClosedError("the storage was closed")
            if self._opened is None and self._registered:
                self._open()
            return self._stores

    def _open(self) -> None:
        pools = self._ordered()
        namespaces = self._namespaces(pools)
        self._opened = self._below.open(pools)
        self._stores = {
            pool.name: PoolStore(self._opened, group, namespace, pool)
            for group, (pool, namespace) in enumerate(zip(pools, namespaces, strict=True))
        }

    def _namespaces(self, pools: list[HostPool]) -> list[Namespace]:
        """For each pool what decides the bytes of a page beside its hash."""
        facts = {
            "pools": {pool.name: pool.facts for pool in pools},
            "model": model_facts(),
            "kv_dtype": logical_dtype(self._pools[KV].pool, self.options.kv_dtype),
            "mla": bool(self._config.is_mla_model),
            "page_first": bool(self._config.is_page_first_layout),
        }
        return [
            Namespace(
                model=str(self._config.model_name or ""),
                revision=self.options.revision,
                layout=json.dumps(facts | {"rank": rank}, sort_keys=True).encode(),
            )
            for rank in (self._below.rank_of(self.rank, pool) for pool in pools)
        ]

    # ------------------------------------------------------------------ what never raises
    def _ask(self, what: str, miss: T, call: Callable[[Stores], T]) -> T:
        """The answer of ``call``, or ``miss`` whatever goes wrong."""
        try:
            stores = self._ready()
            return call(stores) if stores else miss
        except Exception as error:  # outermost: of the engine's storage threads, which would end
            self._tell(what, error)
            return miss

    def _tell(self, what: str, error: Exception) -> None:
        """Counted always, told once of a kind."""
        kind = (what, type(error).__name__)
        with self._lock:
            self._failures[f"failed.{what}.{kind[1]}"] += 1
            again = kind in self._told
            self._told.add(kind)
        if not again and not isinstance(error, ClosedError):
            known = isinstance(error, CacheError | ValueError)
            _LOG.warning("%s: %s is answered as a miss", what, error, exc_info=not known)

    # ------------------------------------------------------------------ asking
    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        """How many of the keys are there, from the first on without a gap. Cost: the keys."""
        return self._ask("exists", 0, lambda stores: leading(stores[KV].has(keys)))

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: object = None,
    ) -> PoolTransferResult:
        """Every length, in pages, at which all pools have what a hit there needs; the longest; and
        how far each pool reaches alone. Cost: the keys times the pools.
        """

        def ask(stores: Stores) -> PoolTransferResult:
            pages = leading(stores[KV].has(keys))
            reach: dict[Any, int] = {PoolName.KV: pages} if pages else {}
            valid = np.ones(pages, np.bool_)  # [n - 1]: a hit of n pages
            for transfer in pool_transfers or ():
                if not valid.any():
                    break
                own, limits = valid_lengths(
                    transfer, self._pool(stores, transfer.name).has(keys[:pages])
                )
                if own.any():
                    reach[transfer.name] = int(np.flatnonzero(own)[-1]) + 1
                if limits:
                    valid &= own
            lengths: list[int] = (np.flatnonzero(valid) + 1).tolist()
            return PoolTransferResult(lengths[-1] if lengths else 0, reach, lengths)

        return self._ask("exists", PoolTransferResult(0, {}, []), ask)

    def exists(self, key: str) -> bool:
        """Whether the page is there. Cost: O(1)."""

        def ask(stores: Stores) -> bool:
            name, bare = _named(stores, key)
            return bool(stores[name].has([bare])[0])

        return self._ask("exists", False, ask)

    @staticmethod
    def _pool(stores: Stores, name: object) -> PoolStore:
        found = stores.get(str(name))
        if found is None:
            raise RequestError(f"no host pool {str(name)!r} was registered")
        return found

    # ------------------------------------------------------------------ pages of the pools
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> list[bool]:
        """Brings pages into the KV pool; which of them are there, verified. Cost: their bytes."""
        return self._move("get", KV, keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> list[bool]:
        """Keeps pages of the KV pool, durably; which of them are there. Cost: their bytes."""
        return self._move("set", KV, keys, host_indices)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: object = None
    ) -> dict[Any, list[bool]]:
        """As ``batch_get_v1``, of several pools."""
        return {t.name: self._move("get", t.name, t.keys or [], t.host_indices) for t in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: object = None
    ) -> dict[Any, list[bool]]:
        """As ``batch_set_v1``, of several pools."""
        return {t.name: self._move("set", t.name, t.keys or [], t.host_indices) for t in transfers}

    def _move(self, what: str, name: object, keys: list[str], host_indices: Any) -> list[bool]:
        """A pool's pages; what fails for one pool says nothing of the others."""

        def move(stores: Stores) -> list[bool]:
            pages = self._pool(stores, name)
            began = time.monotonic()
            good = (pages.keep if what == "set" else pages.bring)(keys, host_indices)
            self._count(what, good, time.monotonic() - began, pages.pool)
            answer: list[bool] = good.tolist()
            return answer

        return self._ask(what, [False] * len(keys), move)

    # ------------------------------------------------------------------ flat tensors
    def get(
        self, key: str, target_location: Any = None, target_sizes: object = None
    ) -> torch.Tensor | None:
        """Brings a page into a flat tensor and returns it; None where there is none."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: object = None
    ) -> list[torch.Tensor | None]:
        """Brings pages into flat tensors and returns them; None for each that is not there, or
        has not the size of a page. Cost: their bytes.
        """

        def ask(stores: Stores) -> list[torch.Tensor | None]:
            targets = [None] * len(keys) if target_locations is None else list(target_locations)
            answer: list[torch.Tensor | None] = [None] * len(keys)
            for name, (places, bare) in _by_pool(stores, keys).items():
                pages = stores[name]
                into = [pages.pool.empty() if targets[i] is None else targets[i] for i in places]
                good = self._bring_flat(pages, bare, into)
                for i in np.flatnonzero(good).tolist():
                    answer[places[i]] = into[i]
            return answer

        return self._ask("get", [None] * len(keys), ask)

    def _bring_flat(self, pages: PoolStore, keys: list[str], into: list[Any]) -> Mask:
        rows = [bytes_of(tensor) for tensor in into]
        fits = np.array([len(row) == pages.pool.block_bytes for row in rows], np.bool_)

        def put(i: int, row: Bytes) -> None:
            if fits[i]:
                rows[i][:] = row

        began = time.monotonic()
        good = pages.bring_flat(keys, put) & fits
        self._count("get", good, time.monotonic() - began, pages.pool)
        return good

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Keeps a flat tensor as a page, durably; whether it is there."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Keeps flat tensors as pages, durably; whether all are there. Cost: their bytes."""

        def ask(stores: Stores) -> bool:
            if values is None or len(values) != len(keys):
                raise ValueError(f"values must be {len(keys)} tensors, one a key")
            kept = True
            for name, (places, bare) in _by_pool(stores, keys).items():
                kept &= self._keep_flat(stores[name], bare, [values[i] for i in places])
            return kept

        return self._ask("set", False, ask)

    def _keep_flat(self, pages: PoolStore, keys: list[str], values: list[torch.Tensor]) -> bool:
        """Those that have the size of a page are kept, whatever the others are."""
        rows = [bytes_of(value.detach().contiguous()) for value in values]
        fits = [i for i, row in enumerate(rows) if len(row) == pages.pool.block_bytes]
        began = time.monotonic()
        good = pages.keep_flat([keys[i] for i in fits], lambda i: rows[fits[i]])
        self._count("set", good, time.monotonic() - began, pages.pool)
        return len(fits) == len(keys) and bool(good.all())

    # ------------------------------------------------------------------ running
    def clear(self) -> bool:
        """Forgets every page, in a directory durably; whether that succeeded. Where it did not,
        nothing is served any more: the engine goes on with other weights, whatever the answer.
        Over a service this process forgets: those who share it have weights of their own.
        """

        def ask(stores: Stores) -> bool:
            stores[KV].store.reset()
            return True

        return self._ask("clear", False, ask)

    def _count(self, what: str, good: Mask, seconds: float, pool: HostPool) -> None:
        if self._config.enable_storage_metrics and good.any():
            pages = int(good.sum())
            with self._lock:
                self._moves.append(
                    (what, pages, pages * pool.block_bytes / 1e9 / max(seconds, 1e-9))
                )

    def get_stats(self) -> Any:
        """What moved since the last call, as the engine's own metrics; None where it asks for none.
        Tells of tiers that switched themselves off meanwhile.
        """
        none: list[Event] = []
        events = self._ask("stats", none, lambda stores: stores[KV].store.events())
        for event in events:
            if isinstance(event, TierEvent):
                _LOG.warning("%s: %s", self._below.name, event)
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            moves, self._moves = self._moves, []
        stats = StorageMetrics()
        for what, pages, speed in moves:
            up = what == "get"
            (stats.prefetch_pgs if up else stats.backup_pgs).append(pages)
            (stats.prefetch_bandwidth if up else stats.backup_bandwidth).append(speed)
        return stats

    def counters(self) -> Mapping[str, int]:
        """Every counter of the store by its dotted name, and what was answered as a miss because it
        failed.
        """
        none: Mapping[str, int] = {}
        found = self._ask("counters", none, lambda stores: stores[KV].store.counters())
        with self._lock:
            return {**found, **self._failures}

    def close(self) -> None:
        """Lets calls that run end and gives the directory back; later calls are misses. What a call
        has returned for is durable without it. Idempotent.
        """
        with self._lock:
            self._closed = True
            store, self._opened, self._stores = self._opened, None, {}
            self._below.release()
        if store is not None:
            store.close()


Stores = dict[str, PoolStore]


def _named(stores: Stores, key: str) -> tuple[str, str]:
    """The pool that a storage key names behind its last dot, and the hash of the page."""
    bare, _, name = key.rpartition(".")
    return (name, bare) if bare and name in stores and name != KV else (KV, key)


def _by_pool(stores: Stores, keys: list[str]) -> dict[str, tuple[list[int], list[str]]]:
    """For each pool that the keys name: their places among them, and the hashes."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    for place, key in enumerate(keys):
        name, bare = _named(stores, key)
        places, hashes = found.setdefault(name, ([], []))
        places.append(place)
        hashes.append(bare)
    return found
