"""vLLM's own tiering on a machine without a GPU: its specification refuses the CPU platform for its
worker alone, so this supplies a worker that copies between the model's tensors and vLLM's shared
region on the CPU. Everything else, manager, host pool, tiers, is vLLM's or the tier under test.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies blocks at once, where a GPU would have a stream do it. One block a chunk."""

    def __init__(self, region: SharedOffloadRegion, caches: CanonicalKVCaches) -> None:
        self._region = region
        self._tensors = [each.tensor for each in caches.tensors]
        self._rows = [
            region.create_next_worker_view(each.page_size_bytes) for each in caches.tensors
        ]
        self._refs = caches.group_data_refs
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """From the model's tensors into rows."""
        self._move(job_id, src_spec, dst_spec, storing=True)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """From rows into the model's tensors."""
        self._move(job_id, dst_spec, src_spec, storing=False)
        return True

    def _move(self, job: int, blocks: GPULoadStoreSpec, chunks: Any, *, storing: bool) -> None:
        places = iter(zip(blocks.block_ids.tolist(), chunks.chunk_ids.tolist(), strict=True))
        moved = 0
        for refs, count in zip(self._refs, blocks.group_sizes, strict=True):
            for _ in range(count):
                block, chunk = next(places)
                for ref in refs:
                    page = self._tensors[ref.tensor_idx][block, : ref.page_size_bytes]
                    cell = self._rows[ref.tensor_idx][chunk, : ref.page_size_bytes]
                    (cell if storing else page).copy_(page if storing else cell)
                    moved += ref.page_size_bytes
        self._finished.append(TransferResult(job, True, moved, 1e-6))

    def get_finished(self) -> list[TransferResult]:
        """What was copied since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Every copy has ended already."""

    def shutdown(self) -> None:
        """Lets the region go."""
        self._tensors, self._rows = [], []
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    """``TieringOffloadingSpec`` with a worker for the CPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker over the region that vLLM's own would share."""
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyingWorker(region, kv_caches)
