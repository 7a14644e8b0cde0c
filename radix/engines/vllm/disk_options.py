"""What a user says about ``RadixDiskTier`` in its entry of ``secondary_tiers``, as one frozen
value: refused whole where a key is unknown, so that a misspelt limit never becomes a default. Keeps
no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from radix.policy.eviction import check_policy

# Keys of the same entry that the engine takes out before the tier sees them.
ENGINE_KEYS = ("type", "module_path", "backpressure")
AFTER_RESET = ("hide", "keep")
_LOCALITIES = ("LOCAL", "REMOTE")
# What other tiers call the same thing.
_ELSEWHERE = {
    "root_dir": "directory",
    "disk_bytes": "limit_bytes",
    "eviction_policy": "policy",
    "n_read_threads": "threads",
    "n_write_threads": "threads",
}


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The options of the tier.

    ``directory``: where blocks are kept over restarts, of this engine alone; each data parallel
    replica takes a folder of its own in it. ``limit_bytes``: what they may take there, index and
    blocks, a replica. ``policy``: which blocks go first. ``revision``: of the weights, where the
    model's name does not tell: another one is another cache. ``after_reset``: ``hide`` what was
    stored before a reset of the engine's caches until the process starts again, because new weights
    may be why it was reset; or ``keep`` it, where weights never change in a running engine.
    ``threads``: that move blocks. ``locality``: ``LOCAL`` or ``REMOTE``, told to the engine's
    filters and events.
    """

    directory: str
    limit_bytes: int
    policy: str = "lru"
    revision: str = ""
    after_reset: str = "hide"
    threads: int = 2
    locality: str | None = None

    def __post_init__(self) -> None:
        for name in ("directory", "policy", "revision", "after_reset"):
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
        if self.after_reset not in AFTER_RESET:
            raise ValueError(
                f"after_reset must be one of {', '.join(AFTER_RESET)}, not {self.after_reset!r}"
            )
        if self.locality is not None and self.locality not in _LOCALITIES:
            raise ValueError(
                f"locality must be one of {', '.join(_LOCALITIES)}, not {self.locality!r}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DiskOptions:
        """The options in an entry of ``secondary_tiers``.

        Raises: ``ValueError`` for a key that is not known, naming those that are, for one that is
        missing and for a value out of range; ``TypeError`` for a wrong kind of value.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - {*names, *ENGINE_KEYS})
        if unknown:
            hints = [f"{key} is {_ELSEWHERE[key]} here" for key in unknown if key in _ELSEWHERE]
            raise ValueError(
                f"RadixDiskTier has unknown keys {', '.join(unknown)}"
                f"{''.join('; ' + hint for hint in hints)}; known are {', '.join(names)} and the "
                f"engine's {', '.join(ENGINE_KEYS)}"
            )
        missing = [name for name in ("directory", "limit_bytes") if name not in given]
        if missing:
            raise ValueError(f"RadixDiskTier needs {' and '.join(missing)} in its entry")
        return cls(**{name: given[name] for name in names if name in given})

    def folder(self, parallel: Any) -> Path:
        """Where this engine keeps its blocks: of several data parallel replicas each its own."""
        if parallel.data_parallel_size > 1:
            return Path(self.directory) / f"dp-{parallel.data_parallel_index}"
        return Path(self.directory)
