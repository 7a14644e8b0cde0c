"""Jobs between device and host that the engine has under way: it tells their ends as sets of keys,
without order, number or job, after the request has gone, and of jobs before a reset not at all.
Keeps I22 (slots are a job's until its end) and I31 (slots of dropped jobs rest until it is certain
that no worker writes or reads them, and nothing that they brought is ever shown).

    job     begun --> ended: blocks shown, or slots given back
    reset   begun --> dropped: fenced ... a later job's end, a word of the engine's, or so many
                      steps that every worker has flushed what it had --> slots given back
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.engines.vllm.blocks import Blocks
from radix.engines.vllm.canary import Comparison
from radix.engines.vllm.hinted import Hinted
from radix.engines.vllm.lives import Life, Lives
from radix.keysets import FlatLease, Mask, Reservation
from radix.metrics import Metrics

Where = tuple[int, int]  # part, and which of its slots
# Steps after a reset until its flush has come back from every worker: the flush goes out with the
# first, an engine has two steps under way at most, and one is for the step that the reset was in.
DRAIN_STEPS = 4


@dataclass(slots=True, eq=False)
class Filling:
    """A store job: slots that workers fill. ``places``: where each key's slot is; ``good``: by
    part, which are filled.
    """

    life: Life
    parts: list[Reservation]
    places: dict[bytes, Where]
    checks: list[Comparison]
    left: set[bytes]
    good: list[Mask]


@dataclass(slots=True, eq=False)
class Reading:
    """A load job: slots that workers read, pinned by ``lease``."""

    life: Life
    lease: FlatLease
    left: set[bytes]


class Ledger:
    """Begin: ``fill``, ``read``. End: ``filled``, ``read_out``. Reset: ``drop``, then ``step`` or
    ``lift``. Ask: ``filling``, ``draining``.
    """

    def __init__(self, blocks: Blocks, lives: Lives, hinted: Hinted, metrics: Metrics) -> None:
        self._blocks = blocks
        self._hinted = hinted
        self._lives = lives
        self._metrics = metrics
        self.filling: dict[bytes, Filling] = {}
        self._readings: dict[Life, list[Reading]] = {}
        self._fenced: list[Filling | Reading] = []
        self._steps = 0

    @property
    def draining(self) -> bool:
        """Whether slots of dropped jobs rest."""
        return bool(self._fenced)

    def fill(
        self,
        life: Life,
        parts: Sequence[Reservation],
        places: dict[bytes, Where],
        checks: list[Comparison],
    ) -> None:
        """A store job was handed out: ``places`` of its keys, also of those that ``checks`` are
        about, whose part is -1.
        """
        good = [np.zeros(len(part), np.bool_) for part in parts]
        filling = Filling(life, list(parts), places, checks, set(places), good)
        self.filling.update(dict.fromkeys(places, filling))
        self._lives.started(life)

    def filled(self, keys: Collection[bytes], success: bool) -> None:
        """Workers have ended their part of these keys; blocks of a job whose last they are can be
        found from now on. What is not under way is passed over. Cost: the keys.
        """
        touched: dict[Filling, None] = {}
        for key in keys:
            filling = self.filling.pop(key, None)
            if filling is None:
                self._metrics.add(("late", "stores"))
                continue
            part, row = filling.places[key]
            if part >= 0:
                filling.good[part][row] = success
            else:
                filling.checks[row].good = success
            filling.left.discard(key)
            touched[filling] = None
        if touched:
            self.lift()
        for filling in touched:
            if not filling.left:
                self._close(filling)

    def _close(self, filling: Filling) -> None:
        store = self._blocks.store
        for part, good in zip(filling.parts, filling.good, strict=True):
            store.commit(part, good)
            self._hinted.stored(filling.life, part, good)
        for check in filling.checks:
            check.end()
        self._lives.ended(filling.life)

    def read(self, life: Life, keys: Collection[bytes], lease: FlatLease) -> None:
        """A load job was handed out."""
        self._readings.setdefault(life, []).append(Reading(life, lease, set(keys)))
        self._lives.started(life)

    def read_out(self, life: Life, keys: Collection[bytes]) -> None:
        """Workers have read these keys for a request. Cost: the keys."""
        done = set(keys)
        for reading in self._readings.get(life, ()):
            if done <= reading.left:
                break
        else:
            self._metrics.add(("late", "loads"), len(done))
            return
        self.lift()
        reading.left -= done
        if not reading.left:
            self._forget(reading)
            # After its end this is no use of the blocks: what it said of them is said again.
            said = life.hints if life.finished else None
            self._blocks.store.release(reading.lease, hints=said)
            self._lives.ended(life)

    def _forget(self, reading: Reading) -> None:
        readings = self._readings[reading.life]
        readings.remove(reading)
        if not readings:
            del self._readings[reading.life]

    # ------------------------------------------------------------ reset
    def drop(self) -> None:
        """The engine forgets every job: none of their ends will be told."""
        self._fenced += dict.fromkeys(self.filling.values())
        for readings in self._readings.values():
            self._fenced += readings
        self.filling.clear()
        self._readings = {}
        self._steps = DRAIN_STEPS

    def step(self) -> None:
        """A step of the engine was scheduled since the last call."""
        if self._fenced:
            self._steps -= 1
            if self._steps <= 0:
                self.lift()

    def lift(self) -> None:
        """No worker touches the slots of dropped jobs any more. Cost: their blocks."""
        fenced, self._fenced = self._fenced, []
        for job in fenced:
            if isinstance(job, Reading):
                job.lease.release()
            else:
                for part in job.parts:
                    self._blocks.store.abort(part)
                for check in job.checks:
                    check.give_up()
            self._lives.ended(job.life)

    def slots(self) -> int:
        """Slots that jobs under way, or dropped, hold of the host tier."""
        jobs = dict.fromkeys(self.filling.values())
        jobs.update(dict.fromkeys(job for job in self._fenced if isinstance(job, Filling)))
        return sum(len(part) for job in jobs for part in job.parts)


def order_of(groups: npt.NDArray[np.int16]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Each group that stands in a list of keys, with the rows at which it does."""
    return [(int(group), np.flatnonzero(groups == group)) for group in np.unique(groups)]
