"""What a user says about the adapter in the engine's own configuration, as one frozen value: read
once, in every process alike, and refused whole where a key is unknown, so that a misspelt budget
never becomes a default. Keeps no invariant of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radix.arguments import at_least_one
from radix.engines.options import chosen, share, text
from radix.engines.service_options import check_service, service_in
from radix.errors import UnsupportedError
from radix.policy.eviction import check_policy
from radix.service.backend import Service

# Keys of the same dictionary that the engine itself reads.
ENGINE_KEYS = (
    "spec_name",
    "spec_module_path",
    "offload_prompt_only",
    "blocks_per_chunk",
    "block_size",
    "self_describing_kv_events",
    "sync_load_budget_bytes",
    "canonical_layout",
)
# What other backends call the same thing.
_ELSEWHERE = {
    "cpu_bytes_to_use": "host_bytes",
    "num_cpu_blocks": "host_bytes",
    "eviction_policy": "policy",
    "root_dir": "directory",
    "limit_bytes": "disk_bytes",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The adapter's options, all in the engine's extra configuration.

    ``host_bytes``: what the host tier may take for the whole engine, all ranks together, exactly.
    ``directory``: where blocks are kept over restarts (None: no disk tier), of this engine alone;
    each data parallel replica takes a folder of its own in it. ``disk_bytes``: what they may take
    there, index and blocks; needed with a directory. ``policy``: which blocks go first.
    ``canary``: the share of hits answered as misses, to compare what is computed again with what
    was kept; equal within ``canary_tolerance``, a share of the largest value. ``verify``: checksums
    of host memory too, from commit to the copy below. ``revision``: of the weights, where the
    model's name does not tell: another one is another cache.
    ``service``: where `radix serve` is, the path of its socket or host:port, below host and disk:
    what other engines stored there is a hit. ``tenant``, ``secret_file``, ``timeout_s``,
    ``pool_bytes``: as of ``radix.service.backend.Service``. ``wait_s``: how long a prompt waits for
    blocks that are not there yet, of an engine that decodes what another one prefills.
    """

    host_bytes: int
    directory: str | None = None
    disk_bytes: int | None = None
    policy: str = "lru"
    canary: float = 0.0
    canary_tolerance: float = 0.05
    verify: bool = False
    revision: str = ""
    service: str | None = None
    tenant: str = ""
    secret_file: str | None = None
    timeout_s: float = 2.0
    pool_bytes: int = 0
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        at_least_one("host_bytes", self.host_bytes)
        if self.directory is not None:
            text("directory", self.directory, empty=False)
            if self.disk_bytes is None:
                raise ValueError("disk_bytes is needed with a directory: what it may take there")
        if self.disk_bytes is not None:
            if self.directory is None:
                raise ValueError("disk_bytes is given without a directory")
            at_least_one("disk_bytes", self.disk_bytes)
        text("policy", self.policy)
        check_policy(self.policy)
        share("canary", self.canary)
        share("canary_tolerance", self.canary_tolerance)
        if not isinstance(self.verify, bool):
            raise TypeError(f"verify must be true or false, not {self.verify!r}")
        text("revision", self.revision)
        self._check_service()

    def _check_service(self) -> None:
        if isinstance(self.wait_s, bool) or not isinstance(self.wait_s, int | float):
            raise TypeError(f"wait_s must be a number, not {self.wait_s!r}")
        if not 0 <= self.wait_s < math.inf:
            raise ValueError(f"wait_s must be 0 or more seconds, not {self.wait_s}")
        check_service(self, wait_s=self.wait_s)

    def where(self) -> Service | None:
        """The service, None without one. ``OSError`` where the secret cannot be read."""
        return service_in(self)

    @property
    def lasting(self) -> str:
        """What keeps blocks beyond this process, named for messages; "" where nothing does."""
        if self.directory is not None:
            return f"directory {self.directory!r}"
        return "" if self.service is None else f"service {self.service!r}"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options in the engine's extra configuration.

        Raises: ``ValueError`` for a key that neither is ours nor the engine's, naming what is
        known, for a missing one and for a value out of range; ``TypeError`` for a wrong kind of
        value; ``UnsupportedError`` for what the engine offers and this adapter does not take.
        """
        where = "kv_connector_extra_config"
        if given.get("canonical_layout"):
            raise UnsupportedError(
                "canonical_layout is not supported: every rank keeps the bytes of its own shard; "
                f"leave it out of {where}"
            )
        return cls(
            **chosen(
                cls,
                given,
                where,
                engine=ENGINE_KEYS,
                elsewhere=_ELSEWHERE,
                needed=("host_bytes",),
            )
        )


def replica_folder(directory: str, parallel: Any) -> Path:
    """Where an engine keeps its blocks: of several data parallel replicas each its own.
    ``parallel``: the parallel part of the engine's OffloadingConfig.
    """
    if parallel.data_parallel_size > 1:
        return Path(directory) / f"dp-{parallel.data_parallel_index}"
    return Path(directory)
