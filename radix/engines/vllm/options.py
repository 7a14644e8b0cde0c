"""What a user says about the adapter in the engine's own configuration, as one frozen value: read
once, in every process alike, and refused whole where a key is unknown, so that a misspelt budget
never becomes a default. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from radix.errors import UnsupportedError
from radix.policy.eviction import check_policy

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
    """

    host_bytes: int
    directory: str | None = None
    disk_bytes: int | None = None
    policy: str = "lru"
    canary: float = 0.0
    canary_tolerance: float = 0.05
    verify: bool = False
    revision: str = ""

    def __post_init__(self) -> None:
        _whole("host_bytes", self.host_bytes)
        if self.directory is not None:
            if not isinstance(self.directory, str) or not self.directory:
                raise TypeError(f"directory must be a path as text, not {self.directory!r}")
            if self.disk_bytes is None:
                raise ValueError("disk_bytes is needed with a directory: what it may take there")
        if self.disk_bytes is not None:
            if self.directory is None:
                raise ValueError("disk_bytes is given without a directory")
            _whole("disk_bytes", self.disk_bytes)
        if not isinstance(self.policy, str):
            raise TypeError(f"policy must be text, not {self.policy!r}")
        check_policy(self.policy)
        _share("canary", self.canary)
        _share("canary_tolerance", self.canary_tolerance)
        if not isinstance(self.verify, bool):
            raise TypeError(f"verify must be true or false, not {self.verify!r}")
        if not isinstance(self.revision, str):
            raise TypeError(f"revision must be text, not {self.revision!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options in the engine's extra configuration.

        Raises: ``ValueError`` for a key that neither is ours nor the engine's, naming what is
        known, for a missing one and for a value out of range; ``TypeError`` for a wrong kind of
        value; ``UnsupportedError`` for what the engine offers and this adapter does not take.
        """
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - {*names, *ENGINE_KEYS})
        if unknown:
            hints = [f"{key} is {_ELSEWHERE[key]} here" for key in unknown if key in _ELSEWHERE]
            raise ValueError(
                f"kv_connector_extra_config has unknown keys {', '.join(unknown)}"
                f"{''.join('; ' + hint for hint in hints)}; known are {', '.join(names)} and "
                f"the engine's {', '.join(ENGINE_KEYS)}"
            )
        if given.get("canonical_layout"):
            raise UnsupportedError(
                "canonical_layout is not supported: every rank keeps the bytes of its own shard; "
                "leave it out of kv_connector_extra_config"
            )
        if "host_bytes" not in given:
            raise ValueError("host_bytes is missing from kv_connector_extra_config")
        return cls(**{name: given[name] for name in names if name in given})


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of bytes, not {value!r}")
    if value <= 0:
        raise ValueError(f"{name} must be at least 1 byte, not {value}")


def _share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number from 0 to 1, not {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, not {value}")
