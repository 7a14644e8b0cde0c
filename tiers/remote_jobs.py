"""The transfers of the remote tier, as its threads run them: batches of blocks between memory above
and staging, staging and backend. A thread holds a job's lock while it touches memory above; once a
job is over it never does again, whatever its call is still doing. Keeps I22 and the reading half of
I24: a block is good only if the values of all its pieces verified.

    store   memory above --gather--> staging, sealed --> put
    part    memory above --gather--> the block, as it is collected; the last one: --> put
    load    get --> staging, verified --scatter--> memory above
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from radix._native import lib
from radix.groups import Group
from radix.tier import Slots, Tier, Transfer
from tiers.copies import plane_array
from tiers.remote_backend import MISSING, Backend, BackendError, Put
from tiers.remote_lanes import Health, Staging
from tiers.remote_values import HEADER_BYTES, Names, Row, Values, pieces_of
from tiers.transfer import Planes
from tiers.views import Cut, copy_blocks, cut_planes, run_sums

Indices = npt.NDArray[np.int64]
T = TypeVar("T")
_FIRST = np.zeros(1, np.int32)


class State(IntEnum):
    """How one block of a job fares. GONE: there is no value of some piece; WRONG: one does not
    verify; ROTTEN: it is not what the tier above committed.
    """

    WAITING = 0
    GOOD = 1
    GONE = 2
    WRONG = 3
    FULL = 4
    FAILED = 5
    ROTTEN = 6


@dataclass(slots=True)
class Job:
    """One transfer. ``planes``: where its runs lie above; ``spaces``, ``keys``, ``digests``: of
    each block; ``kept``: checksums of its runs as they were committed above, or None; ``memory``:
    blocks that are collected, or None. ``due``: when the call that runs is late.
    """

    transfer: Transfer
    upper: Tier
    storing: bool
    cut: Cut
    planes: Planes
    slots: Slots
    spaces: Sequence[bytes]
    keys: Sequence[bytes]
    digests: Sequence[bytes]
    epoch: bytes
    states: npt.NDArray[np.int8]
    kept: npt.NDArray[np.uint64] | None = None
    memory: list[npt.NDArray[np.uint8]] | None = None
    due: float | None = None
    over: bool = False  # acknowledged: nothing above may be touched
    cancelled: bool = False
    collected: bool = False  # the runs of a part have been copied and entered
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        """Blocks of the transfer."""
        return len(self.states)

    def finish(self) -> bool:
        """Ends it as far as it has come; False while a thread is copying."""
        if not self.lock.acquire(blocking=False):
            return False
        self.over = True
        self.lock.release()
        return True

    def stopped(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.over or self.cancelled


class Timed(Protocol):
    """What has a call out. ``due``: when that is late, None while there is none."""

    due: float | None


class Caller:
    """One way to the backend for all threads of a tier: each call has its deadline, and the breaker
    hears how it ended.
    """

    def __init__(self, backend: Backend, health: Health, deadline_s: float) -> None:
        self.backend, self.health, self.deadline_s = backend, health, deadline_s

    def call(self, job: Timed | None, call: Callable[[float], T]) -> T | None:
        """What ``call(seconds)`` gives, None where it failed or nothing is asked at present."""
        if not self.health.alive:
            return None
        if job is not None:
            job.due = time.monotonic() + self.deadline_s
        try:
            result = call(self.deadline_s)
        except BackendError as error:
            self.health.failed(error)
            return None
        finally:
            if job is not None:
                job.due = None
        self.health.answered()
        return result

    def remove(self, names: Sequence[str]) -> bool:
        """Removes values that are no good; whether that went through."""
        return self.call(None, partial(self._remove, names)) is True

    def _remove(self, names: Sequence[str], timeout_s: float) -> bool:
        self.backend.remove(names, timeout_s)
        return True


class Runner:
    """What runs in the threads of one tier for one of its groups."""

    def __init__(
        self,
        caller: Caller,
        names: Names,
        number: int,
        group: Group,
        removed: Callable[[int], None],
    ) -> None:
        """``removed``: told how many values were no good and went."""
        self._caller, self._names, self._removed = caller, names, removed
        self._values = Values(number, group)
        self.spans = pieces_of(group)
        self._layers = group.layout.layers
        runs = group.layout.runs[:, :, 0].reshape(-1)
        first = np.repeat(np.array([at for at, _ in self.spans], np.uint64), self._layers)
        self._within = np.asarray(runs - first, np.uint64)  # of each run, in its piece's payload
        whole = tuple(number for number, (_, size) in enumerate(self.spans) if size)
        self.whole = Row.of(self.spans, whole)

    def row(self, cut: Cut) -> Row:
        """The values of which the cut has runs."""
        pieces = np.unique(cut.chosen // self._layers).tolist()
        return self.whole if cut.whole else Row.of(self.spans, tuple(pieces))

    def has_whole_pieces(self, cut: Cut) -> bool:
        """Whether it has all bytes of each piece of which it has some."""
        return cut.whole or cut.nbytes == sum(self.row(cut).sizes)

    # ------------------------------------------------------------------ store
    def collect(self, job: Job) -> None:
        """Copies the runs of a part into the blocks that are collected."""
        cut = job.cut
        with job.lock:
            if job.over or job.memory is None:
                return
            for index, block in enumerate(job.memory):
                whole = plane_array([(block.ctypes.data, len(block), len(block))])
                target = cut_planes(whole, cut.below, cut.sizes)
                copy_blocks(target, _FIRST, job.planes, job.slots[index : index + 1])
                job.states[index] = State.GOOD
                if job.kept is not None:
                    found = run_sums(whole[0], cut.below, cut.sizes, _FIRST)[0]
                    if (found != job.kept[index]).any():
                        job.states[index] = State.ROTTEN

    def store(self, job: Job, chosen: Indices, memory: Staging) -> None:
        """Puts the blocks ``chosen`` into the backend."""
        row = self.row(job.cut) if job.memory is None else self.whole
        step = max(1, memory.nbytes // row.nbytes)
        for lo in range(0, len(chosen), step):
            batch = chosen[lo : lo + step]
            if not self._gather(job, batch, memory, row):
                return
            names: list[str] = []
            values: list[memoryview] = []
            sound = [at for at, one in enumerate(batch) if job.states[one] != State.ROTTEN]
            for at in sound:
                index = int(batch[at])
                views = row.views(memory.bytes, at)
                for piece, value in zip(row.pieces, views, strict=True):
                    self._values.seal(value, job.spaces[index], job.epoch, job.keys[index], piece)
                    names.append(self._names.name(job.digests[index], piece))
                values += views
            put = self._caller.call(job, partial(self._caller.backend.put, names, values))
            if put is None:
                return
            self._settle_put(job, batch[sound], put, len(row.pieces))

    def _settle_put(self, job: Job, sound: Indices, put: list[Put], each: int) -> None:
        with job.lock:
            if job.over:
                return
            for at, index in enumerate(sound.tolist()):
                found = put[at * each : (at + 1) * each]
                if Put.FAILED in found:
                    job.states[index] = State.FAILED
                else:
                    job.states[index] = State.FULL if Put.FULL in found else State.GOOD

    def _gather(self, job: Job, batch: Indices, memory: Staging, row: Row) -> bool:
        """Copies blocks into staging; False once the job is over."""
        rows = _payloads(memory, row)
        numbers = np.arange(len(batch), dtype=np.int32)
        with job.lock:
            if job.stopped():
                return False
            if job.memory is None:
                copy_blocks(rows, numbers, job.planes, job.slots[batch])
                self._mark_rotten(job, batch, memory, row)
                return True
            for number, index in enumerate(batch.tolist()):
                block = job.memory[index]
                whole = plane_array([(block.ctypes.data, len(block), len(block))])
                copy_blocks(rows, numbers[number : number + 1], whole, _FIRST)
        return True

    def _mark_rotten(self, job: Job, batch: Indices, memory: Staging, row: Row) -> None:
        """Blocks that are not what the tier above committed are stored nowhere."""
        if job.kept is None:
            return
        plane = plane_array([(memory.address, row.nbytes, row.nbytes)])[0]
        owner = np.searchsorted(row.pieces, job.cut.chosen // self._layers)
        starts = np.array(row.places, np.uint64)[owner] + np.uint64(HEADER_BYTES)
        offsets = np.asarray(starts + self._within[job.cut.chosen], np.uint64)
        numbers = np.arange(len(batch), dtype=np.int32)
        found = run_sums(plane, offsets, job.cut.sizes, numbers)
        job.states[batch[(found != job.kept[batch]).any(axis=1)]] = State.ROTTEN

    # ------------------------------------------------------------------ load
    def load(self, job: Job, memory: Staging) -> None:
        """Reads the blocks that wait, verifies them and copies what is good."""
        row = self.row(job.cut)
        step = max(1, memory.nbytes // row.nbytes)
        chosen = np.flatnonzero(job.states == State.WAITING)
        for lo in range(0, len(chosen), step):
            batch = chosen[lo : lo + step]
            if job.stopped():
                return
            names: list[str] = []
            into: list[memoryview] = []
            for at, index in enumerate(batch.tolist()):
                into += row.views(memory.bytes, at)
                names += [self._names.name(job.digests[index], piece) for piece in row.pieces]
            got = self._caller.call(job, partial(self._caller.backend.get, names, into))
            if got is None:
                return
            states, wrong = self._verified(job, batch, row, into, got)
            if not self._scatter(job, batch, states, memory, row):
                return
            if wrong and self._caller.remove([names[at] for at in wrong]):
                self._removed(len(wrong))

    def _verified(
        self, job: Job, batch: Indices, row: Row, into: list[memoryview], got: list[int]
    ) -> tuple[list[State], list[int]]:
        """How each block of a batch fares, and which values are no good."""
        states: list[State] = []
        wrong: list[int] = []
        for at, index in enumerate(batch.tolist()):
            state = State.GOOD
            for number, piece in enumerate(row.pieces):
                place = at * len(row.pieces) + number
                space, key = job.spaces[index], job.keys[index]
                if got[place] == MISSING:
                    state = State.GONE if state is State.GOOD else state
                elif got[place] != len(into[place]) or not self._values.verify(
                    into[place], space, job.epoch, key, piece
                ):
                    state = State.WRONG
                    wrong.append(place)
            states.append(state)
        return states, wrong

    def _scatter(
        self, job: Job, batch: Indices, states: list[State], memory: Staging, row: Row
    ) -> bool:
        """Copies the runs asked for of what is good to where they belong; False once it is over."""
        before = np.cumsum([0, *row.sizes])
        owner = np.searchsorted(row.pieces, job.cut.chosen // self._layers)
        offsets = before[owner].astype(np.uint64) + self._within[job.cut.chosen]
        source = cut_planes(_payloads(memory, row), offsets, job.cut.sizes)
        numbers = np.array([at for at, one in enumerate(states) if one is State.GOOD], np.int32)
        with job.lock:
            if job.over:
                return False
            if len(numbers):
                status = copy_blocks(job.planes, job.slots[batch[numbers]], source, numbers)
                if status != lib.RDX_OK:
                    states = [State.FAILED] * len(states)
            job.states[batch] = states
        return True


def _payloads(memory: Staging, row: Row) -> Planes:
    """The payloads in rows of values as planes: block after block, each piece a plane."""
    return plane_array(
        [
            (memory.address + place + HEADER_BYTES, row.nbytes, size)
            for place, size in zip(row.places, row.sizes, strict=True)
        ]
    )
