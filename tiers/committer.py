"""The one thread that writes to LMDB. Stores whose bytes are on the disk wait here for the next
transaction; all that wait share one, and the removals that wait go with it. Keeps the order that
crash safety rests on (payload, sync, record) and I22: each store comes back exactly once.

    owner thread                         committer thread
    stores synced     --> offer, send --> [stores]  \
    slots freed       --> remove ------> [removals] > one transaction --> results --> collect
    reserve is short  --> urge                     /
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field

import lmdb
import numpy as np

from radix.errors import TierError, TierFullError, TierUnavailableError
from radix.tier import Slots
from tiers.lmdb_index import PAGE_BYTES, Additions, Ids, LmdbIndex, guards

MOST_BLOCKS = 8192  # in one transaction
MOST_BYTES = 64 << 20
MOST_REMOVALS_WHEN_FULL = 64
LEAST_PAGES = 4  # of a commit: a path to a leaf of the table, the main table, a page of meta data


@dataclass(frozen=True, slots=True)
class StoreWork:
    """Blocks of one store whose bytes are safe: their records, without ids and guards yet.

    ``namespaces`` are numbers that no record has named before.
    """

    job: int
    additions: Additions
    namespaces: dict[int, bytes]
    nbytes: int


@dataclass(frozen=True, slots=True)
class RemovalWork:
    """Slots of a group whose records go."""

    group: int
    slots: Slots
    ids: Ids


@dataclass(frozen=True, slots=True)
class Committed:
    """A store that is durable (``error`` is None) or has left no trace."""

    work: StoreWork
    error: TierError | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A removal that is durable: the slots may be written again."""

    work: RemovalWork


@dataclass(slots=True)
class _Shared:
    """What the two threads share, under one lock."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    stores: deque[StoreWork] = field(default_factory=deque)
    removals: deque[RemovalWork] = field(default_factory=deque)
    results: deque[Committed | Removed] = field(default_factory=deque)
    working: list[StoreWork] = field(default_factory=list)  # in the transaction that runs
    leaving: list[RemovalWork] = field(default_factory=list)  # likewise
    busy: bool = False
    urgent: bool = False
    stuck: bool = False  # the last removals could not be made durable
    stopping: bool = False
    broken: str = ""  # why the thread ended before it was asked to


class Committer:
    """Owner's side: ``offer``, ``send``, ``remove``, ``urge``, ``has_results``, ``collect``,
    ``idle``, ``removing``, ``close``.
    """

    def __init__(self, index: LmdbIndex, tier: str, next_id: int, event_fd: int) -> None:
        """``event_fd`` is written to whenever results wait. Starts the thread."""
        self._index = index
        self._tier = tier
        self._next_id = next_id
        self._event_fd = event_fd
        self._shared = _Shared()
        self._offered: list[StoreWork] = []
        self.commits = 0
        self.written_bytes = 0  # that LMDB wrote, pages that it writes anew included
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        name = f"{self._tier}-commit"
        thread = threading.Thread(target=self._main, name=name, daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ the owner's thread

    def offer(self, work: StoreWork) -> None:
        """Commits a store with the next transaction after ``send``: stores whose bytes became safe
        together share one only if they reach the other thread together.
        """
        self._offered.append(work)

    def send(self) -> None:
        """Hands over what was offered. Cost: nothing where nothing was."""
        if not self._offered:
            return
        offered, self._offered = self._offered, []
        with self._shared.lock:
            self._shared.stores.extend(offered)
            if self._shared.broken:
                self._fail_waiting(TierUnavailableError(self._tier, self._shared.broken))
                self._signal()
            self._shared.lock.notify()

    def remove(self, work: RemovalWork) -> None:
        """Removes records with the next transaction that there is a reason for."""
        with self._shared.lock:
            self._shared.removals.append(work)

    def urge(self) -> None:
        """Does not let removals wait for a store any longer."""
        with self._shared.lock:
            self._shared.urgent, self._shared.stuck = True, False
            self._shared.lock.notify()

    def revive(self) -> None:
        """Starts the thread again, if it ended before it was asked to: the tier is tried again."""
        if self._shared.broken:
            self._thread.join()
            self._shared.broken, self._shared.stuck = "", False
            self._thread = self._start()

    @property
    def has_results(self) -> bool:
        """Whether ``collect`` has something to give. Cost: no lock, no system call."""
        return bool(self._shared.results)

    def collect(self) -> list[Committed | Removed]:
        """What has been settled since the last call, in order. Never blocks."""
        with self._shared.lock:
            results = list(self._shared.results)
            self._shared.results.clear()
        return results

    def idle(self) -> bool:
        """Whether nothing is committing, waiting or to be collected. Removals that have just been
        refused do not count: only ``urge`` tries them again at once.
        """
        shared = self._shared
        with shared.lock:
            hopeful = shared.removals and not (shared.broken or shared.stuck)
            waiting = self._offered or shared.stores or shared.results or hopeful
            return not (waiting or shared.busy)

    def removing(self) -> bool:
        """Whether removals are committing, waiting for it or to be collected."""
        shared = self._shared
        with shared.lock:
            if shared.broken or (shared.stuck and not shared.busy):
                return False
            collectable = any(isinstance(result, Removed) for result in shared.results)
            return bool(shared.removals) or shared.busy or collectable

    def close(self) -> None:
        """Commits what waits and ends the thread. Idempotent."""
        self.send()
        with self._shared.lock:
            self._shared.stopping = True
            self._shared.lock.notify()
        self._thread.join()

    # ------------------------------------------------------------------ the committer's thread

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # outermost: surfaced as the failure of every later store
            with self._shared.lock:
                self._shared.broken = f"the committing thread ended: {error!r}"
                self._shared.busy = False
                # what was to be removed stands there still: its slots rest until it goes
                self._shared.removals.extendleft(reversed(self._shared.leaving))
                self._shared.leaving = []
                self._fail_waiting(TierUnavailableError(self._tier, self._shared.broken))
            self._signal()

    def _turn(self) -> bool:
        """One transaction; False once there is nothing left to do after ``close``."""
        shared = self._shared
        with shared.lock:
            while not (shared.stores or (shared.removals and shared.urgent) or shared.stopping):
                shared.urgent = False
                shared.lock.wait()
            if not shared.stores and not shared.removals:
                return False
            stopping = shared.stopping
            stores = shared.working = self._take_stores()
            removals = shared.leaving = list(shared.removals)
            shared.removals.clear()
            shared.urgent = False
            shared.busy = True
        before, commits = _handed_over(), self.commits
        results, kept = self._settle(stores, removals)
        self._measure(before, self.commits - commits, stores)
        with shared.lock:
            shared.results.extend(results)
            # A removal that failed goes with a later transaction: until then its slots rest.
            shared.removals.extendleft(reversed(kept))
            shared.stuck = bool(kept)
            shared.working, shared.leaving, shared.busy = [], [], False
        self._signal()
        return bool(results) or not stopping

    def _measure(self, before: int, commits: int, stores: list[StoreWork]) -> None:
        """Counts what this thread wrote; by the least that it can be where that is not told."""
        wrote = _handed_over() - before
        if before < 0 or wrote < 0:
            least = sum(work.additions.records.nbytes for work in stores)
            wrote = least + commits * LEAST_PAGES * PAGE_BYTES
        self.written_bytes += wrote

    def _take_stores(self) -> list[StoreWork]:
        stores: list[StoreWork] = []
        blocks = nbytes = 0
        waiting = self._shared.stores
        while waiting and (not stores or (blocks < MOST_BLOCKS and nbytes < MOST_BYTES)):
            stores.append(waiting.popleft())
            blocks += len(stores[-1].additions.records)
            nbytes += stores[-1].nbytes
        return stores

    def _settle(
        self, stores: list[StoreWork], removals: list[RemovalWork]
    ) -> tuple[list[Committed | Removed], list[RemovalWork]]:
        """Results, and the removals that could not be made durable."""
        removed: list[Committed | Removed] = [Removed(work) for work in removals]
        try:
            self._commit(stores, removals)
            return [*removed, *(Committed(work, None) for work in stores)], []
        except lmdb.MapFullError:
            pass
        except (lmdb.Error, OSError) as error:
            failure = TierError(self._tier, f"index: {error}")
            return [Committed(work, failure) for work in stores], removals
        done, kept = self._remove_piecemeal(removals)
        try:
            self._index.turn_over()
            self._commit(stores, [])
            return [*done, *(Committed(work, None) for work in stores)], kept
        except lmdb.MapFullError:
            full: TierError = TierFullError(self._tier, "the index is full", retryable=True)
        except (lmdb.Error, OSError) as error:
            full = TierError(self._tier, f"index: {error}")
        return [*done, *(Committed(work, full) for work in stores)], kept

    def _remove_piecemeal(
        self, removals: list[RemovalWork]
    ) -> tuple[list[Committed | Removed], list[RemovalWork]]:
        """A full map has room for small changes only, and each makes a little more: every page
        that is touched is written anew before the old one is free.
        """
        done: list[Committed | Removed] = []
        step = MOST_REMOVALS_WHEN_FULL
        for position, work in enumerate(removals):
            ids = work.ids
            while len(ids):
                try:
                    self._index.commit([], ids[:step], {})
                except lmdb.MapFullError:
                    if step == 1:
                        return done, removals[position:]
                    step = max(1, step // 8)
                    continue
                except (lmdb.Error, OSError):
                    return done, removals[position:]
                ids = ids[step:]
            done.append(Removed(work))
        return done, []

    def _commit(self, stores: list[StoreWork], removals: list[RemovalWork]) -> None:
        if not stores and not removals:
            return
        namespaces: dict[int, bytes] = {}
        for work in stores:
            records = work.additions.records
            count = len(records)
            records["id"] = np.arange(self._next_id, self._next_id + count, dtype=np.uint64)
            self._next_id += count
            records["guard"] = guards(records)
            namespaces |= work.namespaces
        ids = [work.ids for work in removals]
        removed = np.concatenate(ids) if ids else np.zeros(0, np.uint64)
        self._index.commit([work.additions for work in stores], removed, namespaces)
        self.commits += 1

    def _fail_waiting(self, error: TierError) -> None:
        """Under the lock: nothing will be committed any more."""
        shared = self._shared
        lost = [*shared.working, *shared.stores]
        shared.results.extend(Committed(work, error) for work in lost)
        shared.working = []
        shared.stores.clear()

    def _signal(self) -> None:
        os.eventfd_write(self._event_fd, 1)


def _handed_over() -> int:
    """Bytes that this thread gave to write calls since it began, by the kernel's account; -1 where
    it keeps none.
    """
    try:
        with open("/proc/thread-self/io", "rb", buffering=0) as account:
            lines = account.read(512).splitlines()
    except OSError:
        return -1
    return next((int(line[6:]) for line in lines if line.startswith(b"wchar:")), -1)
