"""Zeroing ahead: while nothing else is on its way, the next segments that will be lent are written
once, because a file system is slower to write where it has to give out space first. A segment is
held back from being lent while it is zeroed. Keeps I25: only segments within the limit are touched.
"""

from __future__ import annotations

import logging
import mmap

import numpy as np

from radix._native import ffi, lib
from radix.tier import Urgency
from tiers.slab import UNLENT, SlabAllocator
from tiers.slab_files import SlabFiles
from tiers.transfer import OP, TransferEngine, status_text

_LOG = logging.getLogger("tiers.disk")
LEAST_SEGMENT_BYTES = 8 << 20  # smaller ones are not worth a job of their own
STEP_BYTES = 8 << 20  # what a store that arrives meanwhile may have to wait for
SEGMENTS_AHEAD = 2


class ZeroAhead:
    """``step`` when there is time, ``ended`` when its job has; ``ready_bytes`` lie zeroed,
    ``written_bytes`` were.
    """

    def __init__(
        self, engine: TransferEngine, files: SlabFiles, slab: SlabAllocator, tier: str
    ) -> None:
        self.job = 0  # under way; 0: none
        self.written_bytes = 0
        self._engine, self._files, self._slab, self._tier = engine, files, slab, tier
        self._enabled = slab.segment_bytes >= LEAST_SEGMENT_BYTES
        self._segment = UNLENT
        self._done_bytes = 0
        self._ready: set[int] = set()
        self._in_vain = -1  # so many segments were lent when none was found
        self._zeros = mmap.mmap(-1, lib.RDX_PIECE_BYTES if self._enabled else mmap.PAGESIZE)
        self._view = ffi.from_buffer(self._zeros)

    @property
    def ready_bytes(self) -> int:
        """Bytes of segments that are zeroed and not lent, at most."""
        ahead = sum(1 for segment in self._ready if self._slab.owner(segment) < 0)
        return ahead * self._slab.segment_bytes + self._done_bytes

    def step(self) -> None:
        """Starts the next piece of work, if any. Cost: O(1) while no segment changes hands."""
        if not self._enabled or self.job:
            return
        if self._segment == UNLENT and not self._choose():
            return
        try:
            fds, starts = self._files.descriptors(np.array([self._segment]))
            if not self._done_bytes:
                self._files.extend(self._segment)
        except OSError as error:
            self._stop(str(error))
            return
        at = np.arange(self._done_bytes, self._slab.segment_bytes, lib.RDX_PIECE_BYTES)
        at = at[: STEP_BYTES // lib.RDX_PIECE_BYTES].astype(np.uint64)
        left = np.uint64(self._slab.segment_bytes) - at
        ops = np.zeros(len(at), OP)
        ops["kind"] = lib.RDX_OP_WRITE
        ops["fd"] = fds[0]
        ops["offset"] = starts[0] + at
        ops["memory"] = int(ffi.cast("uintptr_t", self._view))
        ops["bytes"] = np.minimum(left, np.uint64(lib.RDX_PIECE_BYTES))
        job = self._engine.new_job()
        if self._engine.submit_ops(job, Urgency.STORE, ops, sync=False) == lib.RDX_OK:
            self.job = job
            self._done_bytes += int(ops["bytes"].sum())
            self.written_bytes += int(ops["bytes"].sum())

    def _choose(self) -> bool:
        """Holds back the next segment that is not zeroed; whether there is one. A full tier, which
        is the usual one, is not looked through at every poll.
        """
        ready = {segment for segment in self._ready if self._slab.owner(segment) < 0}
        if self._slab.lent == self._in_vain and len(ready) == len(self._ready):
            return False
        self._ready = ready
        if len(self._ready) < max(SEGMENTS_AHEAD, self._slab.stripe):
            segment = self._slab.first_unlent(self._ready)
            if segment != UNLENT and self._slab.hold(segment):
                self._segment = segment
                return True
        self._in_vain = self._slab.lent
        return False

    def ended(self, status: int) -> None:
        """The job of the last step has ended."""
        self.job = 0
        if status != lib.RDX_OK:
            if status != lib.RDX_ECANCELED:
                self._stop(status_text(status))
        elif self._done_bytes >= self._slab.segment_bytes:
            self._slab.unhold(self._segment)
            self._ready.add(self._segment)
            self._segment, self._done_bytes = UNLENT, 0

    def _stop(self, why: str) -> None:
        """It only saves time: a drive that refuses it is left to the stores to judge."""
        _LOG.info("tier %r zeroes nothing ahead: %s", self._tier, why)
        self._slab.unhold(self._segment)
        self._segment, self._done_bytes, self._enabled = UNLENT, 0, False

    def close(self) -> None:
        """Lets go of its memory; its job must have ended."""
        ffi.release(self._view)
        self._zeros.close()
