"""A disk tier without time: whatever its threads were given has ended before a call returns, so
that only the seed decides what is ready when. It loses power where it is told to: the folder is
copied as it lies at that moment, and the call never returns. A bit of a stored block may rot.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from radix.front import FrontTier
from radix.tier import Slots, Tier, Transfer
from tests.sim.strikes import Strikes
from tiers.disk import DiskTier

CUTS = ("store starting", "store written", "load starting", "store committed")


class PowerCut(BaseException):
    """The process is gone; what is left lies in the folder of the copy."""


class SteadyDisk(FrontTier):
    """``cut``: the next time that this state is reached is the last; ``copy`` is called for what
    the power leaves. ``rot``: how likely a committed block loses a bit.
    """

    def __init__(
        self, inner: DiskTier, folder: Path, seed: int, strikes: Strikes, rot: float
    ) -> None:
        super().__init__(inner)
        self.cut: str | None = None
        self.copy: Callable[[Path | None], None] = lambda index: None
        self.rot = rot
        self._disk = inner
        self._folder = folder
        self._random = random.Random(seed)
        self._strikes = strikes

    def store(self, transfer: Transfer, upper: Tier) -> None:
        """Written, and durable, when it returns."""
        self._may_cut("store starting")
        before = self._index() if self.cut == "store written" else None
        self.inner.store(transfer, upper)
        self.inner.flush()
        if before is not None:
            self._may_cut("store written", before)

    def load(self, transfer: Transfer, upper: Tier) -> None:
        """Read, and verified, when it returns."""
        self._may_cut("load starting")
        self.inner.load(transfer, upper)
        self.inner.flush()

    def commit(self, group: int, slots: Slots) -> None:
        """A block of them may rot."""
        self.inner.commit(group, slots)
        if len(slots) and self._random.random() < self.rot:
            self._rot(group, int(self._random.choice(slots.tolist())))
        if len(slots):
            self._may_cut("store committed")

    def abort(self, group: int, slots: Slots) -> None:
        """Its removals are durable when it returns."""
        self.inner.abort(group, slots)
        self.inner.flush()

    def free(self, group: int, slots: Slots) -> None:
        """Its removals are durable when it returns."""
        self.inner.free(group, slots)
        self.inner.flush()

    def lift(self, group: int, slots: Slots) -> None:
        """Its removals are durable when it returns."""
        self.inner.lift(group, slots)
        self.inner.flush()

    def _may_cut(self, state: str, index: Path | None = None) -> None:
        if self.cut != state:
            return
        self.cut = None
        self._strikes["crash", state] += 1
        self.copy(index)
        raise PowerCut

    def _index(self) -> Path:
        """A copy of the folder before a store: its records are those from before the commit."""
        target = self._folder.with_name(self._folder.name + "-before")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._folder, target)
        return target

    def _rot(self, group: int, slot: int) -> None:
        disk = self._disk._disk
        if self._disk._config.payload != "slab":
            return
        segments, offsets = disk.books.slab.place(group, np.array([slot], np.int32))
        fds, starts = disk.files.descriptors(segments)
        with open(f"/proc/self/fd/{int(fds[0])}", "r+b", buffering=0) as file:
            at = int(starts[0]) + int(offsets[0])
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)
        self._strikes["rot", "store committed"] += 1
