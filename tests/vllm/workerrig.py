"""Workers of the adapter over real tensors of the engine's own classes, without a model: what the
tests of ``radix.engines.vllm.worker`` share. ``naive_store`` and ``naive_load`` are the truth that
it is compared with: one block, one page at a time, by the definition of a slot.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from radix.engines.vllm.options import Options
from radix.engines.vllm.worker import Slots, Worker, geometry_of

HOST_BYTES = 8 << 20


def config_of(
    group_count: int = 1, world: int = 1, rank: int = 0, **changes: Any
) -> OffloadingConfig:
    """The engine's configuration for so many groups and workers."""
    config = OffloadingConfig(
        groups=tuple(
            OffloadingGroupConfig(
                tokens_per_block=32, layer_names=(f"layers.{g}.attn",), group_id=g
            )
            for g in range(group_count)
        ),
        worker_kv_bytes_per_block=0,
        enable_kv_cache_events=False,
        extra_config={
            "spec_name": "RadixOffloadingSpec",
            "spec_module_path": "radix.engines.vllm",
            "host_bytes": HOST_BYTES,
        },
        engine_id=f"test-{uuid.uuid4()}",
        model=OffloadingModelConfig(name="tiny", dtype="float32"),
        cache=OffloadingCacheConfig(tokens_per_hash=32, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=rank,
            world_size=world,
            tp_size=world,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
        kv_cache_layout="NHD",
    )
    return replace(config, **changes)


def caches_of(
    pages: Sequence[Sequence[tuple[int, int]]],
    row_bytes: Sequence[int],
    blocks: int,
    seed: int,
    padding: int = 0,
) -> CanonicalKVCaches:
    """Tensors of ``blocks`` rows of random bytes, ``row_bytes`` each and ``padding`` apart; of each
    group the references (tensor, bytes of a page without padding).
    """
    rng = np.random.default_rng(seed)
    tensors = []
    for size in row_bytes:
        whole = torch.from_numpy(rng.integers(-128, 128, (blocks, size + padding), np.int8))
        tensors.append(CanonicalKVCacheTensor(whole[:, :size], size))
    references = [[CanonicalKVCacheRef(t, size) for t, size in group] for group in pages]
    return CanonicalKVCaches(tensors, references)


@dataclass
class Rig:
    """One worker, and what it works on."""

    worker: Worker
    caches: CanonicalKVCaches
    rank: int
    per_chunk: int

    def reserve(self, group: int, count: int) -> list[int]:
        """Slots of the pool, as the scheduler would give them out."""
        return self.worker.host.reserve(group, count).tolist()

    def finish(self, *jobs: int) -> None:
        """Waits for these jobs; each is told of exactly once, as a success."""
        self.worker.wait(set(jobs))
        told = self.worker.get_finished()
        assert sorted(each.job_id for each in told) == sorted(jobs)
        assert all(each.success for each in told)

    def page_bytes(self, group: int) -> int:
        """Bytes of a block of the group on this worker."""
        return sum(ref.page_size_bytes for ref in self.caches.group_data_refs[group])

    def block(self, group: int, number: int) -> bytes:
        """The bytes of one block of the device, page by page."""
        return b"".join(
            self.caches.tensors[ref.tensor_idx]
            .tensor[number, : ref.page_size_bytes]
            .numpy()
            .tobytes()
            for ref in self.caches.group_data_refs[group]
        )

    def piece(self, group: int, slot: int, rank: int | None = None) -> bytes:
        """The bytes of one worker's piece of a slot in the pool."""
        (plane,) = self.worker.host.planes(group)
        size = self.page_bytes(group) * self.per_chunk
        rank = self.rank if rank is None else rank
        at = int(plane["base"]) + slot * int(plane["stride"]) + rank * size
        return ctypes.string_at(at, size)

    def sub_block(self, group: int, slot: int, sub: int) -> bytes:
        """The bytes of one block of a chunk in the pool."""
        size = self.page_bytes(group)
        return self.piece(group, slot)[sub * size : (sub + 1) * size]


def worker_of(
    caches: CanonicalKVCaches,
    config: OffloadingConfig,
    *,
    host_bytes: int = HOST_BYTES,
    staged: bool | None = None,
) -> Rig:
    """A worker over these tensors, and a pool of its own."""
    geometry = geometry_of(config, caches)
    host = geometry.host(Options(host_bytes), config.engine_id)
    worker = Worker(caches, geometry, host, config.parallel.rank, staged=staged)
    return Rig(worker, caches, config.parallel.rank, config.cache.blocks_per_chunk)


def blocks_spec(*groups: tuple[Sequence[int], int]) -> GPULoadStoreSpec:
    """The engine's word for blocks: for each group its block numbers and the logical index of the
    first.
    """
    ids = [int(block) for blocks, _ in groups for block in blocks]
    return GPULoadStoreSpec(
        ids,
        group_sizes=[len(blocks) for blocks, _ in groups],
        block_indices=[first for _, first in groups],
    )


def slots_spec(*groups: Sequence[int]) -> Slots:
    """Slots of each group, one group after the other."""
    numbers = [g for g, slots in enumerate(groups) for _ in slots]
    return Slots(numbers, [int(slot) for slots in groups for slot in slots])
