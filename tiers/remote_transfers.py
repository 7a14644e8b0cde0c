"""The owner's side of the remote tier's transfers: jobs and questions go to its threads, what has
ended comes back, and what a backend keeps waiting is ended without it. Keeps I22: each job is
acknowledged once, by its thread, its deadline, its cancellation or the end of the backend.

    begun --thread--> ended                          acknowledged as it came out
          --deadline of a call, cancelled, dead----> acknowledged as far as it had come
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from radix.errors import TierFullError, TierUnavailableError, UnsupportedError
from radix.groups import Group
from radix.tier import Records, Slots, Tier, Transfer, TransferDone, Urgency, View
from tiers.arrivals import Arrivals
from tiers.disk_records import check_records
from tiers.remote_backend import Backend, BackendError
from tiers.remote_directory import Directory, Entries, Epochs, new_epoch, put_epoch
from tiers.remote_ends import RemoteCounts, done_of
from tiers.remote_jobs import Caller, Job, Runner, State
from tiers.remote_lanes import Health, Lane, Staging
from tiers.remote_questions import Question, Questions
from tiers.remote_values import EPOCH_BYTES, Names, Row, is_epoch, sealed_epoch
from tiers.views import Cut, Cuts


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """What ``RemoteTier`` was told."""

    name: str
    prefix: str
    digest: str
    deadline_s: float
    epoch_s: float
    failures: int
    retry_s: float
    threads: int
    staging_bytes: int
    queue_jobs: int
    open_s: float
    close_s: float
    own_epochs: bool


@dataclass(slots=True)
class _Inbox:
    """What threads hand to the owner."""

    wake: threading.Event = field(default_factory=threading.Event)
    ended: deque[Job] = field(default_factory=deque)
    removed: deque[int] = field(default_factory=deque)


class RemoteTransfers:
    """Start: ``store``, ``load``, ``lose``; ``questions``. Go on: ``progress``, ``sleep``,
    ``cancel``. Ask: ``alive``, ``tried``. Slots: ``enter``, ``forget``. End: ``renew``, ``close``,
    ``join``.
    """

    def __init__(
        self,
        config: RemoteConfig,
        backend: Backend,
        groups: tuple[Group, ...],
        views: tuple[View | None, ...],
        slots: list[int],
        page_bytes: int,
        arrivals: Arrivals,
        counts: RemoteCounts,
    ) -> None:
        """Makes threads and memory, and connects; a backend that does not answer is dead."""
        self.counts = counts
        self._config, self._backend = config, backend
        self._views, self._page_bytes, self._arrivals = views, page_bytes, arrivals
        self._inbox = _Inbox()
        self._jobs: dict[int, Job] = {}
        self._epochs = Epochs()
        self._epoch_seen_s = 0.0
        self._asking_epoch = False
        self._ending = threading.Lock()
        self._begun: bytes | None = None  # an epoch that stands in the backend, not yet in force
        self._names = Names(config.prefix, config.digest, groups)
        self._health = Health(
            backend,
            self._connect,
            self._inbox.wake.set,
            failures=config.failures,
            retry_s=config.retry_s,
            timeout_s=config.deadline_s,
        )
        self._caller = Caller(backend, self._health, config.deadline_s)
        tell = self._inbox.removed.append
        self._runners = [
            Runner(self._caller, self._names, number, group, tell)
            for number, group in enumerate(groups)
        ]
        self._rows = self._rows_held(groups)
        self._directories = [Directory(count, config.digest) for count in slots]
        most = max(config.staging_bytes, *(runner.whole.nbytes for runner in self._runners))
        self._reading, self._writing = (
            Lane(f"{config.name}-{kind}", config.threads, most, config.queue_jobs)
            for kind in ("read", "write")
        )
        self.questions = Questions(
            config.name, self._reading, self._inbox.wake, config.deadline_s, self._exist
        )
        self._begin_threads()

    def _rows_held(self, groups: tuple[Group, ...]) -> list[Row]:
        """By group the values of which a block consists here."""
        cuts = Cuts(groups)
        return [
            runner.whole
            if view is None
            else runner.row(cuts.find(number, None, view, view, self._config.name))
            for number, (runner, view) in enumerate(zip(self._runners, self._views, strict=True))
        ]

    def _begin_threads(self) -> None:
        lanes = self._reading, self._writing
        for lane in lanes:
            for staging in lane.staging:
                self._backend.register(staging.bytes)
        self._health.begin(self._config.open_s)
        for lane in lanes:
            lane.start()

    # ------------------------------------------------------------------ the backend
    @property
    def alive(self) -> bool:
        """Whether the backend is asked at present. Cost: O(1)."""
        return self._health.alive

    @property
    def tried(self) -> bool:
        """Whether it is known by now if the backend answers. Cost: O(1)."""
        return self._health.tried

    @property
    def outages(self) -> int:
        """How often it stopped answering."""
        return self._health.outages

    def _connect(self, timeout_s: float) -> None:
        """In any thread."""
        self._backend.open(timeout_s)
        self._refresh(timeout_s)

    def _refresh(self, timeout_s: float) -> None:
        """Learns the epoch in force, or begins the first; in any thread. One that was left is never
        gone back to: a backend that lost its last writes is told the present one again.
        """
        fresh = sealed_epoch(new_epoch(*self._known()))
        name, replace = self._names.epoch_name, self._backend.replace
        value = replace(name, fresh, timeout_s, absent=True)
        if value is not None and not is_epoch(value):  # damaged: one under which nothing is found
            value = replace(name, fresh, timeout_s, absent=False)
        if value is not None and self._epochs.left(value[:EPOCH_BYTES]):
            value = replace(name, sealed_epoch(self._epochs.current), timeout_s, absent=False)
        if value is not None and is_epoch(value):
            if value[:EPOCH_BYTES] != self._begun:  # that comes into force with ``renew``
                self._epochs.saw(value[:EPOCH_BYTES])
        elif self._epochs.number < 0:
            self._epochs.saw(fresh[:EPOCH_BYTES])  # alone with it until the other one can be read
        self._epoch_seen_s = time.monotonic()

    def begin_epoch(self) -> None:
        """Writes a new epoch for all who share the prefix, in any thread; here it is in force from
        ``renew`` on: nothing is stored under it before. Blocks. ``TierUnavailableError``.
        """
        try:
            if not (self.alive or self._config.own_epochs):
                raise BackendError("it does not answer")
            name, deadline_s = self._names.epoch_name, self._config.deadline_s
            self._begun = put_epoch(self._backend, name, self._known(), deadline_s, self._begins)
        except BackendError as error:
            self._begun = None
            raise TierUnavailableError(self._config.name, f"no new epoch: {error}") from error

    def _begins(self, epoch: bytes) -> None:
        self._begun = epoch

    def _known(self) -> tuple[bytes, ...]:
        return () if self._epochs.number < 0 else (self._epochs.current,)

    def renew(self) -> None:
        """Goes by a new epoch from now on. Blocks unless one was begun."""
        if self._begun is None:
            self.begin_epoch()
        begun, self._begun = self._begun, None
        assert begun is not None  # else it was not begun, and that was raised
        if not self._epochs.saw(begun):  # another's came since, and blocks may stand under it
            self._epochs.saw(new_epoch(self._epochs.current))
            self._epoch_seen_s = 0.0  # the backend is told when it is asked next

    # ------------------------------------------------------------------ start
    def store(self, transfer: Transfer, upper: Tier, cut: Cut) -> None:
        """Starts a store of the runs of ``cut``. Raises as ``RemoteTier.store``."""
        check_records(transfer, self._page_bytes)
        records, group = transfer.records, transfer.group
        assert records is not None
        runner, slots = self._runners[group], np.asarray(transfer.lower_slots)
        collects = self._views[group] is None and not cut.whole
        if not collects and not runner.has_whole_pieces(cut):
            raise UnsupportedError(
                f"tier {self._config.name!r}: a store of parts of values into a view"
            )
        self._ask_epoch()
        number = self._epochs.number
        self.enter(group, slots, records, number)
        job = self._job(transfer, upper, cut, self._directories[group].look(slots), storing=True)
        if (kept := upper.sums(group, job.slots)) is not None:
            job.kept = kept.reshape(job.count, -1)[:, cut.chosen]
        if collects:
            job.memory = [self._arrivals.block(group, slot) for slot in slots.tolist()]
            self._begin(job, self._writing, lambda memory: runner.collect(job))
        else:
            every = np.arange(job.count)
            self._begin(job, self._writing, partial(runner.store, job, every))

    def _ask_epoch(self) -> None:
        """Who only stores hears of another cache's reset, too: else nobody would find it."""
        late = time.monotonic() > self._epoch_seen_s + self._config.epoch_s
        if not late or self._asking_epoch or not self.alive:
            return
        self._asking_epoch = True

        def ask(memory: Staging) -> None:
            try:
                self._caller.call(None, self._refresh)
            finally:
                self._asking_epoch = False

        self._writing.put(int(Urgency.PREFETCH), ask, begun=True)

    def load(self, transfer: Transfer, upper: Tier, cut: Cut) -> None:
        """Starts a load of the runs of ``cut``. Raises ``TierFullError`` (retryable)."""
        found = self._directories[transfer.group].look(np.asarray(transfer.lower_slots))
        job = self._job(transfer, upper, cut, found, storing=False)
        job.states[np.array(found.epochs, np.int64) != self._epochs.number] = State.GONE
        self._begin(job, self._reading, partial(self._runners[transfer.group].load, job))

    def _job(self, transfer: Transfer, upper: Tier, cut: Cut, of: Entries, *, storing: bool) -> Job:
        return Job(
            transfer=transfer,
            upper=upper,
            storing=storing,
            cut=cut,
            planes=cut.planes_above(np.ascontiguousarray(upper.planes(transfer.group))),
            slots=np.ascontiguousarray(transfer.upper_slots, np.int32),
            spaces=of.spaces,
            keys=of.keys,
            digests=of.digests,
            epoch=self._epochs.current,
            states=np.zeros(len(of.keys), np.int8),
        )

    def _begin(
        self, job: Job, lane: Lane, task: Callable[[Staging], None], *, again: bool = False
    ) -> None:
        def run(memory: Staging) -> None:
            try:
                if not job.stopped():
                    task(memory)
            finally:  # whatever happened, its owner hears that it is over
                self._inbox.ended.append(job)
                self._inbox.wake.set()

        if not lane.put(int(job.transfer.urgency), run, begun=again):
            name = self._config.name
            raise TierFullError(name, "the queue of transfers is full", retryable=True)
        self._jobs[job.transfer.job] = job

    # ------------------------------------------------------------------ go on
    def progress(self) -> list[TransferDone]:
        """What has ended, each once. Never blocks. Cost: what runs."""
        done: list[TransferDone] = []
        while self._inbox.removed:
            self.counts.removed += self._inbox.removed.popleft()
        while self._inbox.ended:
            job = self._inbox.ended.popleft()
            if self._jobs.get(job.transfer.job) is job and not self._goes_on(job):
                done.append(self._end(job, "cancelled" if job.cancelled else ""))
        alive, now = self.alive, time.monotonic()
        for _ in range(self.questions.late(alive)):
            self.counts.late += 1
            self._health.failed("a call was late")
        for job in list(self._jobs.values()):
            due = job.due
            late = due is not None and now > due + 0.05
            if (late or job.cancelled or not alive) and job.finish():
                if late:
                    self.counts.late += 1
                    self._health.failed("a call was late")
                why = "late" if late else "cancelled" if job.cancelled else "no answer"
                done.append(self._end(job, why))
        return done

    def _goes_on(self, job: Job) -> bool:
        """Enters what was collected; blocks of which all has come are put."""
        if job.memory is None or job.collected or job.stopped():
            return False
        job.collected = True
        group, slots = job.transfer.group, np.asarray(job.transfer.lower_slots)
        good = np.flatnonzero(job.states == State.GOOD)
        whole = good[self._arrivals.add(group, slots[good], job.cut.chosen)]
        if not len(whole):
            return False
        job.states[whole] = State.WAITING
        runner = self._runners[group]
        self._begin(job, self._writing, partial(runner.store, job, whole), again=True)
        return True

    def _end(self, job: Job, why: str) -> TransferDone:
        del self._jobs[job.transfer.job]
        done = done_of(self._config.name, job, why, self.counts)
        group, slots = job.transfer.group, np.asarray(job.transfer.lower_slots)
        if not job.storing:
            above = np.asarray(job.transfer.upper_slots)[done.good]
            job.upper.arrived(group, above, job.cut.view)
        elif job.memory is None:
            self._arrivals.forget(group, slots[done.good])
        elif not done.good.all():
            self._arrivals.take_back(group, slots[~done.good], job.cut.chosen)
        return done

    def cancel(self, job: int) -> None:
        """What has not begun of a transfer is skipped; the next ``progress`` ends it."""
        if job in self._jobs:
            self._jobs[job].cancelled = True
            self._inbox.wake.set()

    def sleep(self, timeout_s: float) -> None:
        """Waits until ``progress`` may have something to do, or the time is over."""
        dues = [job.due for job in self._jobs.values()]
        if self.questions.open:
            timeout_s = min(timeout_s, self._config.deadline_s)
        now = time.monotonic()
        left = min((due - now + 0.06 for due in dues if due), default=timeout_s)
        self._inbox.wake.wait(max(0.0, min(timeout_s, left)))
        self._inbox.wake.clear()

    # ------------------------------------------------------------------ what others stored
    def _exist(self, question: Question, lo: int, hi: int) -> npt.NDArray[np.bool_] | None:
        """Which of some blocks seem to have all their values, in a thread."""
        if self.alive and time.monotonic() > self._epoch_seen_s + self._config.epoch_s:
            self._caller.call(question, self._refresh)
        group, of = question.seek.group, question.seek.records
        some = Records(
            of.namespace,
            of.keys[lo:hi],
            of.parents[lo:hi],
            None if of.pages is None else of.pages[lo:hi],
            of.positions[lo:hi],
        )
        blocks = self._names.blocks(group, some, self._epochs.current)
        row, name = self._rows[group], self._names.name
        digests = [each.tobytes() for each in blocks.digests]
        names = [name(digest, piece) for digest in digests for piece in row.pieces]
        found = self._caller.call(question, partial(self._backend.exists, names))
        if found is None:
            return None
        each = np.array(found, np.bool_).reshape(len(digests), -1)
        whole: npt.NDArray[np.bool_] = np.logical_and.reduce(each, axis=1)
        return whole

    def lose(self, group: int, records: Records) -> None:
        """The values of these blocks go, as far as the backend answers; nobody is told."""
        if self._epochs.number < 0:  # it never answered: nothing is known of it
            return
        blocks = self._names.blocks(group, records, self._epochs.current)
        pieces = range(len(self._runners[group].spans))
        names = [self._names.name(each.tobytes(), p) for each in blocks.digests for p in pieces]

        def remove(memory: Staging) -> None:
            if self._caller.remove(names):
                self._inbox.removed.append(len(names))

        self._writing.put(int(Urgency.DEMAND), remove, begun=True)

    def enter(self, group: int, slots: Slots, records: Records, epoch: int | None = None) -> None:
        """These slots stand for these blocks. Cost: the slots."""
        number = self._epochs.number if epoch is None else epoch
        blocks = self._names.blocks(group, records, self._epochs.current)
        self._directories[group].enter(slots, blocks, number)

    def forget(self, group: int, slots: Slots) -> None:
        """These slots stand for nothing."""
        self._directories[group].forget(slots)

    # ------------------------------------------------------------------ end
    def close(self, *, mine: bool) -> None:
        """Gives up what runs, ends the threads; in a forked child (not ``mine``) only forgets."""
        jobs, self._jobs = list(self._jobs.values()), {}
        if not mine:
            return
        for job in jobs:
            with job.lock:  # no longer than a copy takes
                job.over = True
        for each in (self._health, self._reading, self._writing):
            each.stop()
        if not self.join(self._config.close_s):  # what a call that is out uses stays as it is
            threading.Thread(target=self.join, name="remote-close", daemon=True).start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Whether all threads have ended, at the latest by then (None: whenever they do), and with
        them the connection to the backend.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        threads = self._health.threads + self._reading.threads + self._writing.threads
        for thread in threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        back = not any(thread.is_alive() for thread in threads)
        if back:
            with self._ending:  # who closed it and who joins may both come here
                self._backend.close()
        return back
