"""A pytest plugin for vLLM's own tests of tiering: RadixDiskTier in place of the example tier.

Those tests look inside the example tier: the keys that it has, put there by hand, and the results
that wait to be fetched; and it is done with a job before ``submit_*`` returns. The stand-in gives
them the same view of a real disk tier, and waits for each job where the example has none to wait
for. What it is given as a specification (a mock) becomes that of a tiny model.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import MutableMapping
from typing import Any, ClassVar

import numpy as np
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadingSpec, ReqContext
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.example import manager

from radix.engines.vllm import RadixDiskTier

LIMIT_BYTES = 16 << 20
_CONTEXT = ReqContext(req_id="stand-in")
_PARALLEL = dict.fromkeys(("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size"), 1)


class _Specification(OffloadingSpec):
    """A specification that stands for its configuration alone."""

    def get_manager(self) -> Any:
        """Not asked for by a tier."""
        raise NotImplementedError

    def get_worker(self, kv_caches: Any) -> Any:
        """Not asked for by a tier."""
        raise NotImplementedError


def _specification() -> OffloadingSpec:
    """What vLLM would hand to a tier of a model with one cache group on one worker."""
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer",), 0),),
        worker_kv_bytes_per_block=16,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id=uuid.uuid4().hex,
        model=OffloadingModelConfig("tiny", "float32"),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(
            rank=0,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
            **_PARALLEL,
        ),
    )
    return _Specification(config)


class _Chunks(MutableMapping[bytes, bool]):
    """The keys that a tier has; to set one is to store the host pool's first row under it."""

    def __init__(self, tier: ExampleSecondaryTierManager) -> None:
        self._tier = weakref.ref(tier)
        self._jobs = -1

    def _there(self) -> ExampleSecondaryTierManager:
        tier = self._tier()
        assert tier is not None
        return tier

    def __contains__(self, key: object) -> bool:
        return RadixDiskTier.lookup(self._there(), key, _CONTEXT) is LookupResult.HIT

    def __getitem__(self, key: bytes) -> bool:
        if key not in self:
            raise KeyError(key)
        return True

    def __setitem__(self, key: bytes, value: bool) -> None:
        tier = self._there()
        rows = np.zeros(1, np.int32)
        job = TransferJob(self._jobs, [key], rows, False, _CONTEXT, 0.0)
        self._jobs -= 1
        tier.submit_store(job)
        done = [result for result in tier.completed_jobs if result.job_id == job.job_id]
        assert done and done[0].success
        tier.completed_jobs.remove(done[0])

    def __delitem__(self, key: bytes) -> None:
        raise NotImplementedError("no test takes a key out")

    def __iter__(self) -> Any:
        raise NotImplementedError("no test lists the keys")

    def __len__(self) -> int:
        return self._there().get_num_chunks()


class ExampleSecondaryTierManager(RadixDiskTier):
    """RadixDiskTier with the example tier's constructor and insides."""

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        custom_param: int = 0,
        backpressure_detector: Any = None,
    ) -> None:
        if not isinstance(primary_kv_view, memoryview):  # a mock: rows that nobody looks at
            primary_kv_view = memoryview(np.zeros((4, 16), np.int8))
        folder = tempfile.mkdtemp(prefix="radix-stand-in-")
        super().__init__(
            _specification(),
            primary_kv_view,
            tier_type,
            backpressure_detector,
            directory=folder,
            limit_bytes=LIMIT_BYTES,
        )
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.chunks = _Chunks(self)

    @property
    def completed_jobs(self) -> list[Any]:
        """The results that nobody has fetched yet."""
        return self._finished

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store, and be done with it."""
        super().submit_store(job_metadata)
        self._settle()

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load, and be done with it."""
        super().submit_load(job_metadata)
        self._settle()

    def get_num_chunks(self) -> int:
        """How many blocks the disk has."""
        return int(self._disk.usage().used_blocks[0])


kv_cache_utils.init_none_hash(sha256)
manager.ExampleSecondaryTierManager = ExampleSecondaryTierManager
