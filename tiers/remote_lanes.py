"""Threads that talk to a distributed backend, so that its owner never waits for one, and the
breaker that stops asking one that is gone. Each thread has staging memory of its own: a call that
does not come back holds that and nothing else, and whoever waited for it goes on. Keeps the half of
I22 that is about memory: nothing above is read or written once a job is over.

    owner --tasks, the most urgent first--> reading threads --.
          --tasks-------------------------> writing threads --+--> backend
          <--what has ended-----------------------------------'
    breaker    calls fail in a row --> dead: nothing is asked --ping, ever later--> alive
"""

from __future__ import annotations

import heapq
import itertools
import logging
import mmap
import threading
from collections.abc import Callable

import numpy as np

from radix._native import ffi
from tiers.remote_backend import Backend, BackendError

_LOG = logging.getLogger("tiers.remote")
MOST_RETRY_S = 8.0
CLOSE_S = 10.0


class Staging:
    """Memory of one thread, on its way to or from the backend."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, nbytes)
        self.bytes = memoryview(self._map)
        self.address = int(ffi.cast("uintptr_t", ffi.from_buffer(self._map)))
        np.frombuffer(self._map, np.uint8)[::4096] = 0  # fresh pages cost as much as the network


Task = Callable[[Staging], None]


class Lane:
    """A few threads and what waits for them. ``put`` and ``close`` are the owner's."""

    def __init__(self, name: str, threads: int, staging_bytes: int, most: int) -> None:
        self._most = most
        self._tasks: list[tuple[int, int, Task]] = []
        self._numbers = itertools.count()
        self._lock = threading.Condition()
        self._closing = False
        self.staging = [Staging(staging_bytes) for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._main, args=(memory,), name=f"{name}-{at}", daemon=True)
            for at, memory in enumerate(self.staging)
        ]

    def start(self) -> None:
        """Lets the threads run."""
        for thread in self._threads:
            thread.start()

    def put(self, urgency: int, task: Task, *, begun: bool = False) -> bool:
        """Queues a task; False where too many wait. ``begun``: it goes on with what was let in."""
        with self._lock:
            if len(self._tasks) >= self._most and not begun:
                return False
            heapq.heappush(self._tasks, (urgency, next(self._numbers), task))
            self._lock.notify()
        return True

    def stop(self) -> None:
        """Drops what waits and ends the threads, each once its call has come back."""
        with self._lock:
            self._closing = True
            self._tasks.clear()
            self._lock.notify_all()

    @property
    def threads(self) -> list[threading.Thread]:
        """Those that were started."""
        return [thread for thread in self._threads if thread.ident is not None]

    def _main(self, memory: Staging) -> None:
        while (task := self._next()) is not None:
            try:
                task(memory)
            except Exception:  # outermost: the task has told its owner that it failed
                _LOG.exception("a task of the remote tier failed")

    def _next(self) -> Task | None:
        with self._lock:
            while not self._tasks and not self._closing:
                self._lock.wait()
            return None if self._closing else heapq.heappop(self._tasks)[2]


class Health:
    """Whether the backend answers. ``answered`` and ``failed`` come from any thread; ``alive``
    costs nothing. Dead at first, and after ``failures`` calls in a row that failed; while it is, a
    thread asks from time to time, and it is alive once ``again`` has gone through.
    """

    def __init__(
        self,
        backend: Backend,
        again: Callable[[float], None],
        told: Callable[[], None],
        *,
        failures: int,
        retry_s: float,
        timeout_s: float,
    ) -> None:
        """``again``: connects and finds out what must be known; ``told``: it is dead, or alive."""
        self._backend = backend
        self._again, self._told = again, told
        self._failures, self._retry_s, self._timeout_s = failures, retry_s, timeout_s
        self._lock = threading.Lock()
        self._row = 0
        self._stop = threading.Event()
        self._tried = threading.Event()
        self._thread: threading.Thread | None = None
        self.alive = False
        self.outages = 0

    def begin(self, wait_s: float) -> None:
        """Connects for the first time, in a thread; returns once that was tried, or takes longer
        than ``wait_s``.
        """
        self._start(0.0)
        if wait_s and not self._tried.wait(wait_s):
            self._out()

    @property
    def tried(self) -> bool:
        """Whether it is known by now if the backend answers."""
        return self._tried.is_set()

    def _out(self) -> None:
        """It did not answer when it was asked first: the first outage, counted once."""
        self.outages = max(1, self.outages)

    def answered(self) -> None:
        """A call went through."""
        self._row = 0

    def failed(self, why: object) -> None:
        """A call failed, or was late."""
        with self._lock:
            self._row += 1
            if self._row < self._failures or not self.alive or self._stop.is_set():
                return
            self.alive = False
            self.outages += 1
            self._start(self._retry_s)
        _LOG.warning("%s does not answer: %s", self._backend.url, why)
        self._told()

    def _start(self, wait_s: float) -> None:
        main = self._revive
        self._thread = threading.Thread(
            target=main, args=(wait_s,), name="remote-ping", daemon=True
        )
        self._thread.start()

    def _revive(self, wait_s: float) -> None:
        while not self._stop.wait(wait_s):
            wait_s = min(max(2 * wait_s, self._retry_s), max(MOST_RETRY_S, self._retry_s))
            if self._answers():
                return

    def _answers(self) -> bool:
        try:
            self._again(self._timeout_s)
            self._backend.ping(self._timeout_s)
        except BackendError as error:
            _LOG.info("%s: %s", self._backend.url, error)
            self._out()
            return False
        except Exception:  # outermost: it is tried again, and said
            _LOG.exception("%s: asking it again failed", self._backend.url)
            self._out()
            return False
        else:
            with self._lock:
                self._row, self.alive = 0, True
            self._told()
            return True
        finally:
            self._tried.set()

    def stop(self) -> None:
        """Asks no more; its thread ends once its call has come back."""
        self._stop.set()

    @property
    def threads(self) -> list[threading.Thread]:
        """That which asks, where one was started."""
        return [] if self._thread is None else [self._thread]
