"""vLLM's side of a secondary tier, without a model: its own spec, its own shared region as host
pool, its own factory; and an oracle that knows what bytes belong under a key.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from radix.engines.vllm import RadixDiskTier
from tests.vllm.models import LLAMA
from tests.vllm.workerrig import config_of

ROW_BYTES = 8192
ROWS = 24
LIMIT = 32 << 20
CHUNK_TOKENS = 32
WAIT_S = 30.0


def key(number: int, group: int = 0) -> bytes:
    """The engine's key of a chunk: its hash and its group."""
    return make_offload_key(hashlib.sha256(b"chunk %d" % number).digest(), group)


def content(name: bytes, nbytes: int = ROW_BYTES) -> bytes:
    """What belongs under a key."""
    return hashlib.shake_128(name).digest(nbytes)


def config(**changed: Any) -> OffloadingConfig:
    """The configuration of an engine with a full and a window group on one worker."""
    plain = config_of(
        worker_kv_bytes_per_block=ROW_BYTES,
        extra_config={"cpu_bytes_to_use": ROWS * ROW_BYTES},
    )
    groups = changed.pop("groups", [["layers.0"], ["layers.1", "layers.2"]])
    settings: dict[str, Any] = {
        "groups": tuple(
            OffloadingGroupConfig(CHUNK_TOKENS, tuple(names), number)
            for number, names in enumerate(groups)
        ),
        "model": OffloadingModelConfig(
            changed.pop("model", plain.model.name), changed.pop("dtype", plain.model.dtype)
        ),
        "cache": replace(plain.cache, tokens_per_hash=changed.pop("tokens_per_hash", CHUNK_TOKENS)),
        "parallel": replace(plain.parallel, **changed.pop("parallel", {})),
    }
    return replace(plain, **(settings | changed))


@cache
def engine() -> VllmConfig:
    """The whole configuration of an engine of a tiny model, as vLLM makes it."""
    told: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(dict(LLAMA.config)))
        return EngineArgs(model=folder, **told).create_engine_config()


class Host:
    """A host pool of vLLM's with the tier below it, from ``with`` to the end of its block.
    ``shown=False``: of an engine whose whole configuration the tier does not see.
    """

    def __init__(self, directory: Path, limit_bytes: int = LIMIT, **given: Any) -> None:
        shown = given.pop("shown", True)
        self.spec = TieringOffloadingSpec(given.pop("config", None) or config())
        self.entry = (
            given.pop("entry", None)
            or {
                "type": "RadixDiskTier",
                "module_path": "radix.engines.vllm",
                "directory": str(directory),
                "limit_bytes": limit_bytes,
            }
            | given
        )
        kv_cache_utils.init_none_hash(sha256)
        self.region = SharedOffloadRegion(
            self.spec.config.engine_id,
            self.spec.num_chunks,
            None,
            self.spec.kv_bytes_per_chunk,
            self.spec.cpu_page_size_per_worker,
        )
        self.view = self.region.create_kv_memoryview()
        self.jobs = 0
        try:
            with set_current_vllm_config(engine()) if shown else nullcontext():
                self.tier: RadixDiskTier = SecondaryTierFactory.create_secondary_tier(
                    self.entry, self.view, self.spec
                )
        except BaseException:
            self._release()
            raise
        self.row_bytes = self.view.shape[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tier.shutdown()
        self._release()

    def _release(self) -> None:
        self.view.release()
        self.region.cleanup()

    def fill(self, rows: Sequence[int], names: Sequence[bytes]) -> None:
        """Writes into rows what belongs under keys."""
        for row, name in zip(rows, names, strict=True):
            self.write(row, content(name, self.row_bytes))

    def write(self, row: int, data: bytes) -> None:
        """Writes a row."""
        np.asarray(self.view)[row] = np.frombuffer(data, np.int8)

    def row(self, row: int) -> bytes:
        """What is in a row."""
        return np.asarray(self.view)[row].tobytes()

    def submit(
        self,
        names: Sequence[bytes],
        rows: Sequence[int],
        *,
        load: bool = False,
        context: ReqContext | None = None,
    ) -> int:
        """Submits a job without waiting for it; its number."""
        self.jobs += 1
        chosen = context or ReqContext("request")
        job = TransferJob(self.jobs, list(names), np.array(rows, np.int32), load, chosen)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return self.jobs

    def results(self) -> dict[int, JobResult]:
        """The results of every job that is under way, by its number; waits for them."""
        found: dict[int, JobResult] = {}
        while self.tier.has_pending_work():
            self.tier.store.wait(WAIT_S)
            for result in self.tier.get_finished_jobs():
                assert result.job_id not in found
                found[result.job_id] = result
        return found

    def store(self, names: Sequence[bytes], rows: Sequence[int], **given: Any) -> JobResult:
        """Stores what belongs under the keys from these rows; the result."""
        self.fill(rows, names)
        number = self.submit(names, rows, **given)
        return self.results()[number]

    def load(self, names: Sequence[bytes], rows: Sequence[int], **given: Any) -> JobResult:
        """Wipes the rows, then loads keys into them; the result."""
        for row in rows:
            self.write(row, bytes(self.row_bytes))
        number = self.submit(names, rows, load=True, **given)
        return self.results()[number]

    def lookup(self, *names: bytes) -> str:
        """H, R or M for each key."""
        letters = {LookupResult.HIT: "H", LookupResult.RETRY: "R", LookupResult.MISS: "M"}
        context = ReqContext("asks")
        return "".join(letters[self.tier.lookup(name, context)] for name in names)

    def counted(self) -> dict[str, float]:
        """What the tier tells vLLM's metrics since the last time, by the end of the name."""
        stats = self.tier.get_stats()
        told = {} if stats is None else stats.reduce()
        return {name.split(":")[1].removeprefix("radix_disk_tier_"): n for name, n in told.items()}
