"""What the drives of the disk tier still take: one that refuses a write gets no more of them, one
that refuses several reads in a row counts as gone, and the mode of the tier follows. Said once,
through ``logging``. Keeps no invariant of its own: it decides which blocks cost a hit.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.errors import CorruptBlockError, TierError, TierFullError, TierUnavailableError
from radix.tier import TierMode
from tiers.disk_moves import Move
from tiers.disk_open import DiskConfig, OpenDisk
from tiers.transfer import status_text

_LOG = logging.getLogger("tiers.disk")
MOST_READ_FAILURES = 3  # jobs in a row, before the blocks of a path count as gone


class DiskHealth:
    """``verdict`` is the mode that the state of the drives allows; ``path_failed``,
    ``stop_accepting``, ``store_failed``, ``refused_reads`` and ``forgive`` change it.
    """

    def __init__(self, config: DiskConfig, disk: OpenDisk) -> None:
        self.verdict = TierMode.ON
        self._name, self._paths, self._disk = config.name, config.paths, disk
        self._read_failures: dict[int, int] = {}

    def forgive(self) -> None:
        """Somebody switched the tier on again: it is given another try."""
        self.verdict = TierMode.ON
        self._read_failures.clear()

    def stop_accepting(self, why: str) -> None:
        """No more stores; what is there can be read."""
        if self.verdict is TierMode.ON:
            self.verdict = TierMode.READ_ONLY
            _LOG.warning("tier %r takes no more stores: %s", self._name, why)

    def path_failed(self, path: int, why: str) -> None:
        """Takes a path out of use for stores; the last one stops them altogether."""
        if len(self._paths) == 1:
            self.stop_accepting(f"{self._paths[0]}: {why}")
            return
        failed, slab = self._disk.files.failed, self._disk.books.slab
        if path in failed:
            return
        failed.add(path)
        _LOG.warning("tier %r: path %s is out: %s", self._name, self._paths[path], why)
        for segment in range(slab.segment_range):
            if self._disk.files.path_of(segment) == path:
                slab.ban(segment)
        if len(failed) == len(self._paths):
            self.stop_accepting("every path is out")

    def store_failed(self, move: Move) -> TierError:
        """What to report of a store that did not go through; a cancelled one is no refusal."""
        mild = (lib.RDX_OK, lib.RDX_ECANCELED, lib.RDX_ECORRUPT)
        failed = ~np.isin(move.statuses, mild)
        if not failed.any() and (move.statuses == lib.RDX_ECORRUPT).any():
            return CorruptBlockError(move.upper.name, "a block rotted before it was stored below")
        if not failed.any():
            return TierError(self._name, "the store was cancelled", retryable=True)
        status = int(move.statuses[failed][0])
        for path in np.unique(self._paths_of(move, failed)).tolist():
            self.path_failed(path, status_text(status))
        if status == lib.RDX_ENOSPC:
            return TierFullError(self._name, f"store: {status_text(status)}")
        return TierUnavailableError(self._name, f"store: {status_text(status)}")

    def refused_reads(self, move: Move) -> npt.NDArray[np.bool_]:
        """Which blocks count as gone because their path has refused several reads in a row."""
        statuses = move.statuses
        refused: npt.NDArray[np.bool_] = (statuses == lib.RDX_EIO) | (statuses == lib.RDX_EARG)
        if self._read_failures:
            for path in np.unique(self._paths_of(move, move.statuses == lib.RDX_OK)).tolist():
                self._read_failures.pop(path, None)
        if not np.count_nonzero(refused):
            return refused
        paths = np.zeros(move.count, np.int64)
        paths[refused] = self._paths_of(move, refused)
        for path in np.unique(paths[refused]).tolist():
            count = self._read_failures.get(path, 0) + 1
            self._read_failures[path] = count
            if count == MOST_READ_FAILURES:
                _LOG.warning("tier %r: %s cannot be read", self._name, self._paths[path])
        dead = [path for path, n in self._read_failures.items() if n >= MOST_READ_FAILURES]
        if len(dead) == len(self._paths):
            self.verdict = TierMode.OFF
        return np.asarray(refused & np.isin(paths, dead), np.bool_)

    def _paths_of(self, move: Move, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        slots = np.asarray(move.transfer.lower_slots)[chosen]
        segments, _ = self._disk.books.slab.place(move.transfer.group, slots)
        return np.asarray(segments % len(self._paths), np.int64)
