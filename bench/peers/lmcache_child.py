"""LMCache's LocalCPUBackend and LocalDiskBackend as a child of the protocol:
``python -m bench.peers.lmcache_child FOLDER``, in its environment.

Memory: ``allocate``, a copy of the caller's chunk, ``submit_put_task``; ``get_blocking`` and
a copy out, chunk by chunk also in batches, because that is what its batched calls do. Disk:
``submit_put_task`` of what its memory backend holds already, until its callback of each chunk;
``get_blocking``, or ``batched_get_blocking`` with its four threads, into its own memory: a copy to
the caller's is not timed. Nothing is synced, nothing has a checksum, files go through the operating
system's memory, as by default.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peers.bytework import Rows, serve_bytes

QUIET = {"LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
LAYERS, WIDTH = 8, 256  # of the shape (2, LAYERS, tokens, WIDTH) that a chunk has
GIB = 1 << 30
_PATIENCE_S = 30


class LmcacheBytes:
    """Its two local backends, one over the other as it has them."""

    def versions(self) -> Mapping[str, str]:
        """Those of LMCache and torch."""
        return {"lmcache": version("lmcache"), "torch": version("torch")}

    def open(self, folder: Path, rows: Rows) -> None:
        """A pool of memory that holds all chunks twice, made and touched before."""
        os.environ.update(QUIET)
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

        torch.set_num_threads(1)
        self._torch, self._folder = torch, folder
        self._count, chunk = len(rows) // 2, rows.shape[1]
        tokens = chunk // (2 * LAYERS * WIDTH * 2)
        self._shape = torch.Size([2, LAYERS, tokens, WIDTH])
        self._form = (self._shape, torch.bfloat16, MemoryFormat.KV_2LTD)
        memory = torch.from_numpy(rows).view(torch.bfloat16)
        self._rows = memory.view(2 * self._count, *self._shape)
        self._keys = [_key(number) for number in range(self._count)]
        gib = max(1, -(-2 * rows.nbytes // GIB))
        self._config = LMCacheEngineConfig.from_defaults(
            chunk_size=tokens,
            local_cpu=True,
            max_local_cpu_size=gib,
            local_disk=str(folder),
            # what was removed goes on counting there: after some rounds it would take no more
            max_local_disk_size=64 * gib,
        )
        self._pool = MixedMemoryAllocator(rows.nbytes + 64 * chunk)
        self._memory = LocalCPUBackend(
            self._config, None, dst_device="cpu", memory_allocator=self._pool
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._disk = self._open_disk()
        self._brought: dict[int, Any] = {}

    def _open_disk(self) -> Any:
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

        return LocalDiskBackend(self._config, self._loop, self._memory, dst_device="cpu")

    def put_memory(self, chunks: Sequence[int]) -> None:
        """Chunk by chunk."""
        memory = self._memory
        for chunk in chunks:
            held = memory.allocate(*self._form)
            held.tensor.copy_(self._rows[chunk])
            memory.submit_put_task(self._keys[chunk], held)
            held.ref_count_down()

    def get_memory(self, chunks: Sequence[int]) -> int:
        """Chunk by chunk, and a copy out."""
        good = 0
        for chunk in chunks:
            held = self._memory.get_blocking(self._keys[chunk])
            if held is not None:
                self._rows[self._count + chunk].copy_(held.tensor)
                held.ref_count_down()
                good += 1
        return good

    def clear_memory(self) -> None:
        """Everything that is not in use."""
        self._memory.clear()

    def ready_disk(self) -> None:
        """Puts come from its memory backend."""
        self.put_memory(range(self._count))

    def put_disk(self, batches: Sequence[Sequence[int]]) -> None:
        """All are submitted, then all awaited. ``RuntimeError`` for one that does not end."""
        left = threading.Semaphore(0)
        for chunks in batches:
            for chunk in chunks:
                key = self._keys[chunk]
                held = self._memory.get_blocking(key)
                self._disk.submit_put_task(key, held, lambda _: left.release())
                held.ref_count_down()
        chunks = [chunk for batch in batches for chunk in batch]
        for number in range(len(chunks)):
            if left.acquire(timeout=_PATIENCE_S):
                continue
            # now and then the end of a put is not told though it is there
            if all(self._disk.contains(self._keys[chunk]) for chunk in chunks):
                return
            raise RuntimeError(f"{len(chunks) - number} puts did not end")

    def sync_disk(self) -> None:
        """What a caller would have to do who wants it durable."""
        for path in self._folder.iterdir():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def get_disk(self, chunks: Sequence[int]) -> int:
        """Into its own memory."""
        keys = [self._keys[chunk] for chunk in chunks]
        if len(keys) == 1:
            found = [self._disk.get_blocking(keys[0])]
        else:
            found = self._disk.batched_get_blocking(keys)
        there = {chunk: held for chunk, held in zip(chunks, found, strict=True) if held is not None}
        self._brought |= there
        return len(there)

    def settle(self) -> None:
        """Copies on, and gives its memory back."""
        for chunk, held in self._brought.items():
            self._rows[self._count + chunk].copy_(held.tensor.view(self._shape))
            held.ref_count_down()
        self._brought.clear()

    def clear_disk(self) -> None:
        """Removes every file, and what the puts came from."""
        for key in self._keys:
            self._disk.remove(key)
        self._memory.clear()

    def reopen(self) -> int:
        """Another backend over the same folder."""
        self._disk.close()
        self._disk = self._open_disk()
        return sum(self._disk.contains(key) for key in self._keys)

    def place_of(self, chunk: int) -> tuple[Path, int]:
        """It keeps a file a chunk, named after the key."""
        (path,) = self._folder.glob(f"*{self._keys[chunk].chunk_hash:x}*")
        return path, 0

    def close(self) -> None:
        """Ends its threads, gives its memory back."""
        self._disk.close()
        self._memory.clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.close()


def _key(number: int) -> Any:
    import torch
    from lmcache.utils import CacheEngineKey

    return CacheEngineKey("model", 1, 0, 0x5EED000000 + number, torch.bfloat16)


if __name__ == "__main__":
    os._exit(serve_bytes(LmcacheBytes))  # its threads would be waited for
