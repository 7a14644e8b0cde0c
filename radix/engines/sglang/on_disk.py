"""A rank's pages in a directory of its own: a flat store that borrows the host pools, over a disk
tier. Nobody else opens the directory meanwhile, and what could not be forgotten is not served.

    host pools  --store-->  slab files      each fragment straight from the pool's memory
                <--load---                  and straight back, checked against its record
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from radix.engines.sglang.host_pools import HostPool
from radix.engines.sglang.storage_options import Options, Rank
from radix.errors import TierError
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.service.blocking import BlockingStore
from radix.store import FlatStore
from radix.tier import TierMode
from tiers.disk import DiskTier
from tiers.disk_open import limit_for
from tiers.format import DirectoryLock, read_format
from tiers.host import AdoptedTier

_LOG = logging.getLogger("radix.engines.sglang")
_DISK = "disk"


class OnDisk:
    """Where pages are kept: ``check`` it at start, ``open`` it for the first call. Until then it is
    held by a lock, which ``release`` gives back.
    """

    def __init__(self, options: Options, rank: Rank) -> None:
        """Touches no disk. ``options``: of a directory."""
        assert options.directory is not None and options.limit_bytes is not None
        self.directory: Path = rank.folder(options.directory)
        self.name = str(self.directory)
        self._limit_bytes = options.limit_bytes
        self._options = options
        self._guard: DirectoryLock | None = None

    def rank_of(self, rank: Rank, pool: HostPool) -> list[object]:
        """What of a rank is in the names of a pool's pages: all, for it alone finds them."""
        return rank.alone

    def check(self, pools: Sequence[HostPool], namespace: Namespace) -> None:
        """Makes the directory where there is none, and takes it. Raises ``TierUnavailableError``
        where another process holds it or it is not ours, ``ValueError`` for a limit too small,
        ``OSError``.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        read_format(self.directory, _DISK)
        groups = [pool.group for pool in pools]
        least = limit_for(groups, 1, 1)
        if self._limit_bytes < least:
            raise ValueError(
                f"limit_bytes {self._limit_bytes} is too small for pages of "
                f"{', '.join(f'{g.block_bytes} bytes ({g.name})' for g in groups)}: a rank needs "
                f"at least {least}"
            )
        if self._guard is None:  # nobody else takes it before the first call
            self._guard = DirectoryLock(self.directory, _DISK)

    def open(self, pools: Sequence[HostPool]) -> BlockingStore:
        """The store over pools and disk. Raises as ``DiskTier``."""
        self.release()
        disk = DiskTier(
            self.directory,
            limit_bytes=self._limit_bytes,
            name=_DISK,
            threads=self._options.threads,
        )
        flat = FlatStore(
            [pool.group for pool in pools],
            [AdoptedTier([pool.arrays for pool in pools], "pools"), disk],
            ownership=Ownership.BORROWED,
            policy=self._options.policy,
            clock=time.monotonic_ns,
        )
        kept = flat.usage()[_DISK].used_blocks
        names = [pool.name for pool in pools]
        _LOG.info("%s: %s pages", self.name, dict(zip(names, kept, strict=True)))
        return DiskStore(flat, self.name)

    def release(self) -> None:
        """Gives back what ``check`` took. Idempotent."""
        if self._guard is not None:
            self._guard.release()


class DiskStore(BlockingStore):
    """A store whose disk is asked no more where it could not forget what it holds."""

    def __init__(self, store: FlatStore, name: str) -> None:
        """``name``: its directory's, for the log."""
        super().__init__(store)
        self._name = name

    def reset(self, tiers: list[str] | None = None) -> None:
        """As ``BlockingStore.reset``. Where it raises nothing is served any more: the engine goes
        on with other weights, whatever it is told.
        """
        try:
            super().reset(tiers)
        except TierError:
            self.set_mode(_DISK, TierMode.OFF)
            _LOG.error(
                "%s: pages could not be forgotten and are served no more; stop the engine and "
                "remove the directory before the next start",
                self._name,
            )
            raise
