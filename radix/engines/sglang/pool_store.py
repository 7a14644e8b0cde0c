"""The pages of one host pool in the store: asked for by the engine's hashes, moved between the
pool's own memory and the tier, or through rows of ours where they pass as flat tensors. And of
which lengths a prompt can be restored, by what each pool needs there. Keeps no invariant of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

from radix.engines.sglang.host_pools import Bytes, HostPool, bytes_of
from radix.errors import UnsupportedError
from radix.events import Event
from radix.keys import Namespace
from radix.keysets import Mask, hash_keys
from radix.tier import Slots


class Kept(Protocol):
    """What keeps the pages of all pools, whatever lies below: calls of ``BlockingStore``."""

    def has(self, keys: object, group: int = 0, *, namespace: Namespace) -> Slots:
        """The first tier that has each key, -1 where none."""
        ...

    def store(self, keys: object, rows: object, group: int = 0, *, namespace: Namespace) -> Mask:
        """Copies rows of a pool down; which keys are kept."""
        ...

    def load(self, keys: object, rows: object, group: int = 0, *, namespace: Namespace) -> Mask:
        """Copies keys into rows of a pool; which arrived."""
        ...

    def reset(self) -> None:
        """Nothing stored before is found again."""
        ...

    def events(self) -> list[Event]:
        """What tiers told since the last call."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Every counter by its dotted name."""
        ...

    def close(self) -> None:
        """Lets calls that run end. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStore:
    """One group of the store and the pool whose pages it holds.

    Ask: ``has``. Pages of the pool: ``keep``, ``bring``. Flat tensors: ``keep_flat``,
    ``bring_flat``. All of them block and answer for each key.
    """

    store: Kept
    group: int
    namespace: Namespace
    pool: HostPool

    def has(self, keys: Sequence[str]) -> Mask:
        """Which pages are there. Being asked for counts as use. Cost: the keys."""
        found = self.store.has(_hashed(keys), self.group, namespace=self.namespace)
        there: Mask = found >= 0
        return there

    def keep(self, keys: Sequence[str], host_indices: Any) -> Mask:
        """Stores pages of the pool; which are there. ``ValueError`` for indices that do
        not name a page a key. Cost: their bytes.
        """
        pool = self.pool
        first = pool.first_tokens(keys, host_indices)
        if pool.lent:
            rows, where = pool.rows_of(first), self.namespace
            return self.store.store(_hashed(keys), rows, self.group, namespace=where)
        return self.keep_flat(keys, lambda i: bytes_of(pool.page(int(first[i]))))

    def bring(self, keys: Sequence[str], host_indices: Any) -> Mask:
        """Loads pages into the pool; which arrived, verified. ``ValueError`` as ``keep``. Cost:
        their bytes.
        """
        pool = self.pool
        first = pool.first_tokens(keys, host_indices)
        if pool.lent:
            rows, where = pool.rows_of(first), self.namespace
            return self.store.load(_hashed(keys), rows, self.group, namespace=where)
        return self.bring_flat(keys, lambda i, row: pool.put_page(int(first[i]), row))

    def keep_flat(self, keys: Sequence[str], page: Callable[[int], Bytes]) -> Mask:
        """Stores what is not there yet, a chunk of our own rows at a time; ``page(i)`` are the
        bytes of key i. Raises ``UnsupportedError`` for a pool that is used in place.
        """
        self._require_flat()
        good = self.has(keys)
        left = np.flatnonzero(~good)
        for start in range(0, len(left), self.pool.chunk_rows):
            part = left[start : start + self.pool.chunk_rows].tolist()
            with self.pool.chunk(len(part)) as (rows, memory):
                for row, i in enumerate(part):
                    memory[row] = page(i)
                hashed = _hashed([keys[i] for i in part])
                good[part] = self.store.store(hashed, rows, self.group, namespace=self.namespace)
        return good

    def bring_flat(self, keys: Sequence[str], put: Callable[[int, Bytes], None]) -> Mask:
        """Loads pages, a chunk at a time; ``put(i, row)`` takes the bytes of key i, where it
        arrived. Raises ``UnsupportedError`` as ``keep_flat``.
        """
        self._require_flat()
        good = np.zeros(len(keys), np.bool_)
        for start in range(0, len(keys), self.pool.chunk_rows):
            part = keys[start : start + self.pool.chunk_rows]
            with self.pool.chunk(len(part)) as (rows, memory):
                hashed = _hashed(part)
                came = self.store.load(hashed, rows, self.group, namespace=self.namespace)
                for row in np.flatnonzero(came).tolist():
                    put(start + row, memory[row])
                good[start : start + len(part)] = came
        return good

    def _require_flat(self) -> None:
        if self.pool.lent:
            raise UnsupportedError(
                f"host pool {self.pool.name!r} is used in place and takes no flat tensors; the KV "
                "pool does with interface_v1 0"
            )


def _hashed(keys: Sequence[str]) -> Any:
    """Keys of any text as 32 bytes."""
    return hash_keys([key.encode() for key in keys], "sha256")


def leading(there: Mask) -> int:
    """How many are there from the first on without a gap."""
    return len(there) if there.all() else int(np.argmin(there))


def valid_lengths(transfer: PoolTransfer, there: Mask) -> tuple[Mask, bool]:
    """At which lengths 1, 2, .. a pool has what a hit there needs, where ``there`` tells which of
    its pages are kept; and whether it limits a hit at all. Cost: the pages.

    Raises ``UnsupportedError`` for a policy that is not known.
    """
    pages = np.arange(len(there))
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return pages < leading(there), True
    if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        needed = np.minimum(max(1, len(transfer.keys or ())), pages + 1)
        last_gap = np.maximum.accumulate(np.where(there, -1, pages))
        return pages - last_gap >= needed, True
    if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
        block, group = transfer.block_pages, transfer.group_pages
        whole = 0
        if 1 <= group <= block:
            while (whole + 1) * block <= len(there) and there[whole * block :][:group].all():
                whole += 1
        return pages < whole * block, False
    raise UnsupportedError(f"hit policy {transfer.hit_policy!r} is not known")
