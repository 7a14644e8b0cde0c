"""Where the engine's offloading connector finds the cache: the scheduler's process makes the store
over host, disk and service, every worker maps the host pool. Both are made from one geometry.
Keeps no invariant of its own.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
)

from radix.engines.versions import require
from radix.engines.vllm import identity, metrics
from radix.engines.vllm.facts import (
    facts_of,
    kinds_of_layers,
    require_known_kinds,
    require_whole_chunks,
)
from radix.engines.vllm.geometry import Geometry, Published, published, sweep
from radix.engines.vllm.offload import Offload
from radix.engines.vllm.options import Options, replica_folder
from radix.engines.vllm.worker import Worker, geometry_of
from radix.errors import UnsupportedError
from radix.keys import Namespace
from radix.store import FlatStore
from radix.tier import Tier
from tiers.disk import DiskTier

# What the adapter relies on, by base class: methods and their parameters.
NEEDED: tuple[tuple[type, dict[str, tuple[str, ...]]], ...] = (
    (OffloadingSpec, {"get_manager": (), "get_worker": ("kv_caches",)}),
    (
        OffloadingWorker,
        {
            "submit_store": ("job_id", "src_spec", "dst_spec"),
            "submit_load": ("job_id", "src_spec", "dst_spec"),
            "get_finished": (),
            "wait": ("job_ids",),
        },
    ),
    (
        OffloadingManager,
        {
            "lookup": ("key", "req_context"),
            "prepare_load": ("keys", "req_context"),
            "complete_load": ("keys", "req_context"),
            "prepare_store": ("keys", "req_context"),
            "complete_store": ("keys", "req_context", "success"),
            "on_new_request": ("req_context",),
            "on_request_finished": ("req_context",),
            "on_schedule_end": ("context",),
            "reset_cache": (),
        },
    ),
    (GPULoadStoreSpec, {"__init__": ("block_ids", "group_sizes", "block_indices")}),
)


class RadixOffloadingSpec(OffloadingSpec):  # type: ignore[misc]  # no types of the engine here
    """``spec_name="RadixOffloadingSpec"``, ``spec_module_path="radix.engines.vllm"``."""

    def __init__(self, config: Any) -> None:
        """``config``: the engine's OffloadingConfig. Raises what :meth:`Options.of` raises, and
        ``UnsupportedError`` for an engine, a parallelism or a block size that does not fit.
        """
        for owner, methods in NEEDED:
            require("vllm", owner, methods)
        super().__init__(config)
        self.options = Options.of(config.extra_config)
        require_parallelism(config)
        require_blocks(config)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The metrics that the cache reports through the engine."""
        return dict(metrics.DEFINITIONS)

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        """The labels that :meth:`Offload.config_info` fills (from 0.33 on)."""
        lower = {"directory": "disk", "service": "service"}
        tiers = ("host", *(lower[key] for key in lower if extra_config.get(key) is not None))
        return tuple(f"{tier}_limit_bytes" for tier in tiers)

    def get_manager(self) -> Offload:
        """The scheduler's side: the store over the tiers, and who answers for it. Waits for the
        workers' geometry.
        """
        geometry = published(self.config.engine_id)
        store = self._store(geometry)
        return Offload(
            store=store,
            geometry=geometry,
            namespace=lambda: self._namespace(geometry),
            options=self.options,
            config=self.config,
        )

    def get_worker(self, kv_caches: Any) -> Worker:
        """A worker's side: its tensors, and the pool that all map. Rank 0 tells the geometry, the
        others compare it with their own.

        Raises: ``LayoutMismatchError``, ``UnsupportedError``, ``TierUnavailableError``.
        """
        config, rank = self.config, self.config.parallel.rank
        device = kv_caches.tensors[0].tensor.device
        names = [name for group in config.groups for name in group.layer_names]
        kinds = kinds_of_layers(names)
        require_known_kinds(kinds)
        if config.cache.blocks_per_chunk > 1:
            require_whole_chunks(kinds)
        geometry = geometry_of(config, kv_caches, facts_of(device, names))
        facts = dict(geometry.facts)
        identity.require_stable_hashes(self.options, facts.get("hash_algorithm", ""))
        identity.require_named_adapters(self.options, facts)
        identity.require_known_model(self.options, facts)
        told = None
        if rank == 0:
            sweep()
            told = Published(geometry, config.engine_id)
        else:
            geometry.require_same(published(config.engine_id), f"rank {rank}", "rank 0")
        host = geometry.host(self.options, config.engine_id)
        try:
            return Worker(kv_caches, geometry, host, rank, published=told)
        except BaseException:
            host.close()
            if told is not None:
                told.close()
            raise

    def _store(self, geometry: Geometry) -> FlatStore:
        options = self.options
        tiers: list[Tier] = [geometry.host(options, self.config.engine_id, verify=options.verify)]
        if options.directory is not None and options.disk_bytes is not None:
            tiers.append(DiskTier(self.directory(), limit_bytes=options.disk_bytes))
        groups, service = geometry.groups(), options.where()
        with ExitStack() as undo:
            if service is not None:
                tiers.append(service.tier(groups, Namespace(model=self.config.model.name)))
                undo.callback(tiers[-1].close)
            store = FlatStore(
                groups,
                tiers,
                key_bytes=identity.KEY_BYTES,
                policy=options.policy,
                events=bool(self.config.enable_kv_cache_events),
                clock=time.monotonic_ns,
            )
            undo.pop_all()
        return store

    def directory(self) -> Path:
        """Where this engine keeps its blocks: of several data parallel replicas each its own."""
        return replica_folder(self.options.directory or ".", self.config.parallel)

    def _namespace(self, geometry: Geometry) -> Namespace:
        """Only once requests come: the hash that chains start from is not there before."""
        from vllm.v1.core import kv_cache_utils

        none_hash = bytes(kv_cache_utils.NONE_HASH)
        algorithm = dict(geometry.facts).get("hash_algorithm", "")
        identity.require_stable_hashes(self.options, algorithm, none_hash)
        return identity.namespace(self.config, geometry, self.options, none_hash)


def require_parallelism(config: Any) -> None:
    """Raises ``UnsupportedError`` for ranks that do not all hold a share of every block."""
    parallel = config.parallel
    for name, degree, flag in (
        ("pipeline", parallel.pp_size, "--pipeline-parallel-size"),
        ("prefill context", parallel.pcp_size, "--prefill-context-parallel-size"),
        ("decode context", parallel.dcp_size, "--decode-context-parallel-size"),
    ):
        if degree > 1:
            raise UnsupportedError(
                f"{name} parallel {degree} is not supported by this adapter: set {flag} 1"
            )
    if parallel.world_size != parallel.tp_size:
        raise UnsupportedError(
            f"{parallel.world_size} workers at tensor parallel {parallel.tp_size}: this adapter "
            "knows tensor parallelism alone"
        )


def require_blocks(config: Any) -> None:
    """Raises ``UnsupportedError`` for blocks that no whole number of hashes covers."""
    hashed = config.cache.tokens_per_hash
    for group in config.groups:
        if group.tokens_per_block % hashed:
            raise UnsupportedError(
                f"group {group.group_id}: blocks of {group.tokens_per_block} tokens under hashes "
                f"of {hashed}: set --block-size to a multiple of {hashed}, and "
                "--enable-prefix-caching"
            )
