"""What a user says about ``RadixHiCache`` in ``--hicache-storage-backend-extra-config``, and what
of the engine's own configuration it refuses: whole, at start, naming what to change, so that a
misspelt limit never becomes a default. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from radix.errors import UnsupportedError
from radix.policy.eviction import check_policy

# Keys of the same dictionary that are the engine's; it takes most of them out before we see it.
ENGINE_KEYS = (
    *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
    *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
    "hicache_storage_pass_prefix_keys",
)
# What the engine's own backends call the same thing.
_ELSEWHERE = {
    "file_storage_path": "directory",
    "storage_dir": "directory",
    "max_size": "limit_bytes",
    "eviction_policy": "policy",
}
_FLAG = "--hicache-storage-backend-extra-config"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the storage.

    ``directory``: where pages are kept over restarts, of this engine alone; each rank takes a
    folder of its own in it. ``limit_bytes``: what a rank may take there, index and pages.
    ``policy``: which pages go first. ``revision``: of the weights, where the model's name does not
    tell: another one is another cache. ``kv_dtype``: what the cache holds, where the engine cannot
    say it. ``threads``: that move pages. ``zero_copy``: the engine's ``interface_v1``.
    """

    directory: str
    limit_bytes: int
    policy: str = "lru"
    revision: str = ""
    kv_dtype: str = ""
    threads: int = 2
    zero_copy: bool = False

    def __post_init__(self) -> None:
        for name in ("directory", "policy", "revision", "kv_dtype"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be text, not {getattr(self, name)!r}")
        if not self.directory:
            raise ValueError("directory must not be empty")
        for name in ("limit_bytes", "threads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        check_policy(self.policy)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """The options in the engine's dictionary.

        Raises: ``ValueError`` for a key that is not known, naming those that are, for one that is
        missing and for a value out of range; ``TypeError`` for a wrong kind of value.
        """
        ours = [field.name for field in fields(cls) if field.name != "zero_copy"]
        entries = dict(given or {})
        zero_copy = bool(entries.get("interface_v1", 0))
        for key in entries:
            if key in ours or key in ENGINE_KEYS:
                continue
            hint = f"; what you mean is {_ELSEWHERE[key]!r} here" if key in _ELSEWHERE else ""
            raise ValueError(f"{_FLAG}: {key!r} is not one of {', '.join(ours)}{hint}")
        for key in ("directory", "limit_bytes"):
            if key not in entries:
                raise ValueError(f"{_FLAG} must name {key!r}, of {', '.join(ours)}")
        return cls(**{key: entries[key] for key in ours if key in entries}, zero_copy=zero_copy)


@dataclass(frozen=True, slots=True)
class Rank:
    """Which share of the model's state the process holds: a number and a count of each kind."""

    tensor: tuple[int, int]
    stage: tuple[int, int]
    context: tuple[int, int]
    data: int

    @classmethod
    def of(cls, config: Any) -> Rank:
        """The rank in a ``HiCacheStorageConfig``.

        Raises ``UnsupportedError`` where a rank would have to read what another one wrote: each
        has a directory of its own, and nobody else opens it.
        """
        shards = (config.tp_size, config.attn_cp_size, config.dcp_size)
        if config.dcp_size > 1:
            raise UnsupportedError(
                f"decode context parallelism of {config.dcp_size}: its ranks hold pages of other "
                "sizes; set --dcp-size 1"
            )
        if config.is_mla_model and max(shards) > 1:
            raise UnsupportedError(
                f"an MLA model on {max(shards)} ranks: all of them hold the same bytes and only "
                "the first one writes, into a directory that only it can open; set --tp-size 1, "
                "or take HiCache's own file backend until pages can be shared between ranks"
            )
        return cls(
            (config.tp_rank, config.tp_size),
            (config.pp_rank, config.pp_size),
            (config.attn_cp_rank, config.attn_cp_size),
            config.dp_rank,
        )

    def folder(self, directory: str) -> Path:
        """The directory of this rank alone."""
        parts = [f"tp{self.tensor[0]}of{self.tensor[1]}", f"pp{self.stage[0]}of{self.stage[1]}"]
        parts += [f"cp{self.context[0]}of{self.context[1]}", f"dp{self.data}"]
        return Path(directory).expanduser() / "-".join(parts)
