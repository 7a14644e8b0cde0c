"""What a user says about ``RadixHiCache`` in ``--hicache-storage-backend-extra-config``, and what
of the engine's own configuration it refuses: whole, at start, naming what to change, so that a
misspelt limit never becomes a default. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radix.arguments import at_least_one
from radix.engines.options import chosen, text
from radix.engines.service_options import ELSEWHERE, check_service
from radix.errors import UnsupportedError
from radix.policy.eviction import check_policy

# Keys of the same dictionary that are the engine's; it takes most of them out before we see it.
ENGINE_KEYS = (
    *("backend_name", "module_path", "class_name", "tp_lcm_size"),
    *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
    "hicache_storage_pass_prefix_keys",
)
_WHERE = "--hicache-storage-backend-extra-config"
_REPLICATED = ("kv", "indexer")  # of a model with latent attention; its states are in shards
_OF_A_DIRECTORY = ("directory", "limit_bytes", "policy", "threads")
# What other backends call the same thing.
_ELSEWHERE = {
    **ELSEWHERE,
    "file_storage_path": "directory",
    "storage_dir": "directory",
    "max_size": "limit_bytes",
    "eviction_policy": "policy",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the storage: those of a directory, or those of a service.

    ``directory``: where pages are kept over restarts, of this engine alone; each rank takes a
    folder of its own in it. ``limit_bytes``: what a rank may take there, index and pages.
    ``policy``: which pages go first. ``threads``: that move pages. ``service``: where `radix serve`
    is, the path of its socket or host:port. ``tenant``, ``secret_file``, ``pool_bytes``: as of
    ``radix.service.backend.Service``; ``timeout_s``: for any answer, else it is a miss.
    ``revision``: of the weights, where the model's name does not tell: another one is another
    cache. ``kv_dtype``: what the cache holds, where the engine cannot say it. ``interface_v1``: the
    engine's key, which we read too.
    """

    directory: str | None = None
    limit_bytes: int | None = None
    policy: str = "lru"
    revision: str = ""
    kv_dtype: str = ""
    threads: int = 2
    interface_v1: int = 0
    service: str | None = None
    tenant: str = ""
    secret_file: str | None = None
    timeout_s: float = 5.0
    pool_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("policy", "revision", "kv_dtype"):
            text(name, getattr(self, name))
        at_least_one("threads", self.threads)
        check_policy(self.policy)
        check_service(self)
        if self.service is None:
            text("directory", self.directory, empty=False)
            at_least_one("limit_bytes", self.limit_bytes)

    @property
    def zero_copy(self) -> bool:
        """Whether pages move from and into the host pool itself."""
        return bool(self.interface_v1)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """The options in the engine's dictionary.

        Raises: ``ValueError`` for a key that is not known, naming those that are, for one that is
        missing, for one of a directory beside a service and for a value out of range; ``TypeError``
        for a wrong kind of value.
        """
        given = given or {}
        served = given.get("service") is not None
        own = [name for name in _OF_A_DIRECTORY if name in given]
        if served and own:
            raise ValueError(
                f"{_WHERE} has {', '.join(own)}, of pages in a directory, beside 'service', which "
                "keeps them itself: leave out one or the other"
            )
        return cls(
            **chosen(
                cls,
                given,
                _WHERE,
                engine=ENGINE_KEYS,
                elsewhere=_ELSEWHERE,
                needed=() if served else ("directory", "limit_bytes"),
            )
        )


@dataclass(frozen=True, slots=True)
class Rank:
    """Which share of the model's state the process holds: a number and a count of each kind.
    ``replicated``: all tensor ranks hold the same pages of latents, and the first one writes them.
    """

    tensor: tuple[int, int]
    stage: tuple[int, int]
    context: tuple[int, int]
    data: int
    replicated: bool

    @classmethod
    def of(cls, config: Any) -> Rank:
        """The rank in a ``HiCacheStorageConfig``. Raises ``UnsupportedError`` for ranks of which
        it is not known who writes what.
        """
        if config.dcp_size > 1:
            raise UnsupportedError(
                f"decode context parallelism of {config.dcp_size}: its ranks hold pages of other "
                "sizes; set --dcp-size 1"
            )
        if config.is_mla_model and config.attn_cp_size > 1:
            raise UnsupportedError(
                f"an MLA model on {config.attn_cp_size} ranks of context parallelism: take "
                "HiCache's own file backend"
            )
        return cls(
            (config.tp_rank, config.tp_size),
            (config.pp_rank, config.pp_size),
            (config.attn_cp_rank, config.attn_cp_size),
            config.dp_rank,
            bool(config.is_mla_model),
        )

    @property
    def alone(self) -> list[object]:
        """What names this rank among all of a server."""
        return [self.tensor, self.stage, self.context, self.data]

    def share(self, pool: str) -> list[object]:
        """What names the share that it holds of the pages of a pool, whichever data parallel
        replica it is of: who has the same holds the same bytes.
        """
        tensor = (0, self.tensor[1]) if self.replicated and pool in _REPLICATED else self.tensor
        return [tensor, self.stage, self.context]

    def folder(self, directory: str) -> Path:
        """The directory of this rank alone. Raises ``UnsupportedError`` where it would have to read
        what another one wrote: nobody else opens it.
        """
        if self.replicated and self.tensor[1] > 1:
            raise UnsupportedError(
                f"an MLA model on {self.tensor[1]} ranks: all of them hold the same bytes and only "
                "the first one writes, into a directory that only it can open; name a 'service' "
                "in place of 'directory', or set --tp-size 1"
            )
        parts = [f"tp{self.tensor[0]}of{self.tensor[1]}", f"pp{self.stage[0]}of{self.stage[1]}"]
        parts += [f"cp{self.context[0]}of{self.context[1]}", f"dp{self.data}"]
        return Path(directory).expanduser() / "-".join(parts)
