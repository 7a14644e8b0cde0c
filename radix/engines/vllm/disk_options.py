"""What a user says about ``RadixDiskTier`` in its entry of ``secondary_tiers``, as one frozen
value: refused whole where a key is unknown, so that a misspelt limit never becomes a default. Keeps
no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radix.arguments import at_least_one
from radix.engines.options import chosen, one_of, text
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
        text("directory", self.directory, empty=False)
        text("policy", self.policy)
        text("revision", self.revision)
        at_least_one("limit_bytes", self.limit_bytes)
        at_least_one("threads", self.threads)
        check_policy(self.policy)
        one_of("after_reset", self.after_reset, AFTER_RESET)
        if self.locality is not None:
            one_of("locality", self.locality, _LOCALITIES)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> DiskOptions:
        """The options in an entry of ``secondary_tiers``.

        Raises: ``ValueError`` for a key that is not known, naming those that are, for one that is
        missing and for a value out of range; ``TypeError`` for a wrong kind of value.
        """
        return cls(
            **chosen(
                cls,
                given,
                "the entry of RadixDiskTier",
                engine=ENGINE_KEYS,
                elsewhere=_ELSEWHERE,
                needed=("directory", "limit_bytes"),
            )
        )
