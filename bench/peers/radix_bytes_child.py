"""Ours as a store of bytes, a child of the same protocol:
``python -m bench.peers.radix_bytes_child FOLDER``.

A FlatStore over memory that the caller lends and HostTier, and one over the same memory and
DiskTier: durable when a put ends, every block's checksum verified by a get. What is timed is what a
user calls: ``store`` or ``load``, then ``poll`` and ``wait`` until the ``KeysDone`` of each call.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

import radix
from bench.peers.bytework import Rows, serve_bytes
from radix.events import KeysDone
from radix.groups import Group
from radix.ownership import Ownership
from radix.store import FlatStore
from radix.tier import Tier
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.host import AdoptedTier, HostTier

MIB = 1 << 20
KEY_BYTES = 32


class FlatBytes:
    """Two flat stores over the same lent memory."""

    def versions(self) -> Mapping[str, str]:
        """This package's and numpy's."""
        return {"radix": radix.__version__, "numpy": np.__version__}

    def open(self, folder: Path, rows: Rows) -> None:
        """One group, a block a chunk."""
        count, chunk = len(rows) // 2, rows.shape[1]
        self._count, self._folder, self._rows = count, folder, rows
        self._group = Group.full("kv", chunk)
        numbers = np.arange(count, dtype=np.int64)
        self._keys = np.zeros((count, KEY_BYTES), np.uint8)
        self._keys[:, :8] = numbers[:, None].view(np.uint8)
        self._host = self._over(HostTier(count * (chunk + 4096) + MIB))
        self._disk = self._open_disk()

    def _over(self, tier: Tier) -> FlatStore:
        memory = AdoptedTier([[self._rows]], "memory")
        lent = Ownership.BORROWED
        return FlatStore([self._group], [memory, tier], key_bytes=KEY_BYTES, ownership=lent)

    def _open_disk(self) -> FlatStore:
        limit = limit_for([self._group], 2 * self._count, 1)
        return self._over(DiskTier(self._folder, limit_bytes=limit))

    def _begin_put(self, store: FlatStore, chunks: Sequence[int]) -> int:
        first, end = chunks[0], chunks[-1] + 1
        return store.store(self._keys[first:end], np.arange(first, end, dtype=np.int32))

    def _get(self, store: FlatStore, chunks: Sequence[int]) -> int:
        first, end = chunks[0], chunks[-1] + 1
        rows = np.arange(self._count + first, self._count + end, dtype=np.int32)
        return _ended(store, [store.load(self._keys[first:end], rows).number])

    def put_memory(self, chunks: Sequence[int]) -> None:
        """Into HostTier."""
        _all_good(_ended(self._host, [self._begin_put(self._host, chunks)]), len(chunks))

    def get_memory(self, chunks: Sequence[int]) -> int:
        """Into the caller's rows."""
        return self._get(self._host, chunks)

    def clear_memory(self) -> None:
        """Every key is forgotten."""
        self._host.forget(self._keys)
        self._host.flush()

    def ready_disk(self) -> None:
        """Puts come straight from the caller's memory."""

    def put_disk(self, batches: Sequence[Sequence[int]]) -> None:
        """Durable when it returns."""
        numbers = [self._begin_put(self._disk, chunks) for chunks in batches]
        _all_good(_ended(self._disk, numbers), sum(len(chunks) for chunks in batches))

    def sync_disk(self) -> None:
        """A put is durable when it ends."""

    def get_disk(self, chunks: Sequence[int]) -> int:
        """Straight into the caller's rows."""
        return self._get(self._disk, chunks)

    def settle(self) -> None:
        """Nothing is left to copy."""

    def clear_disk(self) -> None:
        """Every key is forgotten."""
        self._disk.forget(self._keys)
        self._disk.flush()

    def reopen(self) -> int:
        """Over the same folder."""
        self._disk.close()
        self._disk = self._open_disk()
        return int((self._disk.has(self._keys) >= 0).sum())

    def place_of(self, chunk: int) -> tuple[Path, int]:
        """Found by its bytes: in which slab file, and where."""
        wanted = self._rows[chunk].tobytes()
        for path in sorted(self._folder.rglob("*")):
            if not path.is_file() or path.stat().st_size < len(wanted):
                continue
            with path.open("rb") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                    at = view.find(wanted)
            if at >= 0:
                return path, at
        raise RuntimeError(f"chunk {chunk} is in no file")

    def close(self) -> None:
        """Closes both."""
        self._host.close()
        self._disk.close()


def _ended(store: FlatStore, numbers: Iterable[int]) -> int:
    """Waits for the end of calls; how many keys are good."""
    left, good = set(numbers), 0
    while left:
        for event in store.poll():
            if isinstance(event, KeysDone) and event.number in left:
                left.discard(event.number)
                good += int(event.good.sum())
        if left:
            store.wait(5.0)
    return good


def _all_good(good: int, count: int) -> None:
    if good != count:
        raise RuntimeError(f"{count - good} of {count} chunks were not kept")


if __name__ == "__main__":
    sys.exit(serve_bytes(FlatBytes))
