"""A flat store that many threads call at once, each of them waiting until its bytes are there: for
engines whose threads know nothing of one another. The lock is held while books change, never while
bytes move or somebody waits. Keeps of the flat store that one thread at a time owns it.

    thread A   load: submit | poll . poll . poll | its load has ended: wakes B, which polls on
    thread B   store:          submit | waits . . . . . . . . . . . . | poll . poll | ended
    thread C   has:                             answered at once

One of the threads that wait polls for all; there is no thread of the store's own. It asks every
0.1 to 2 ms, for a tier has no descriptor that many could wait for.

Rows are the caller's again when a call returns or raises, and not while a transfer may still touch
them: what a poll raises ends no call. The calls under way then go on; if one of them has not ended
``grace_s`` later, the flat store is closed, which waits for every copy, and then all of them raise.
Only an interrupt (``KeyboardInterrupt``) leaves rows lent, until ``close`` has returned.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, Self

import numpy as np
import numpy.typing as npt

from radix.arguments import seconds_of
from radix.errors import ClosedError, TimedOutError
from radix.events import Event, KeysDone
from radix.keys import Namespace
from radix.keysets import Fetch, Mask
from radix.store import FlatStore
from radix.tier import Slots, TierMode, TierUsage, Urgency

P = ParamSpec("P")
_LOG = logging.getLogger("radix.service")
_GRACE_S = 10.0
_FIRST_PAUSE_S = 0.0001
_MOST_PAUSE_S = 0.002
_PAUSES = 8  # a pause is this part of what was waited: an end is noticed so much later at most
_MOST_EVENTS = 1024


class BlockingStore:
    """A flat store behind a lock, with calls that block; any thread may make any call.

    Ask: ``has``, ``valid_lengths``. Bring and take, each until it has ended: ``store``, ``load``,
    ``fetch``; ``settle`` one that was given up. Lose: ``forget``, ``reset``. Run: ``flush``,
    ``set_mode``, ``events``, ``counters``, ``usage``, ``check``, ``close``. Whatever else a flat
    store can do: ``locked``. Arguments and answers are those of ``FlatStore``.
    """

    def __init__(self, store: FlatStore, *, grace_s: float = _GRACE_S) -> None:
        """Takes the store over: from now on nobody else may call it, and ``close`` closes it.

        ``grace_s``: how long a call may go on after a poll that raised while it was under way.
        """
        if not isinstance(store, FlatStore):
            raise TypeError(f"store must be a FlatStore, not {type(store).__name__}")
        self._store = store
        self._grace_s = seconds_of("grace_s", grace_s)
        self._turn = threading.Condition()
        self._calls = 0  # that wait, and need somebody to poll until they have ended
        self._polling = False
        self._under_way: set[int] = set()
        self._ended: dict[int, Mask] = {}
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._closing = False
        self._doubted: set[int] = set()  # under way when a poll raised: it may have lost their end
        self._doubt_ends = 0.0
        self._failure: Exception | None = None  # what the first of those polls raised
        self._broken = False  # closed for it
        self._told: set[type[Exception]] = set()
        self._pid = os.getpid()

    # ------------------------------------------------------------ asking
    def has(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> Slots:
        """As ``FlatStore.has``: the first tier that has each key, -1 where none. Cost: the keys."""
        with self.locked() as store:
            return store.has(keys, group, namespace=namespace, positions=positions)

    def valid_lengths(
        self, runs: list[object], group: int = 0, *, namespace: Namespace | None = None
    ) -> npt.NDArray[np.int64]:
        """As ``FlatStore.valid_lengths``. Changes nothing. Cost: the keys."""
        with self.locked() as store:
            return store.valid_lengths(runs, group, namespace=namespace)

    # ------------------------------------------------------------ bringing and taking
    def store(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        timeout_s: float | None = None,
    ) -> Mask:
        """Copies rows of the engine's memory down; which keys are kept, durably where the tier is
        persistent. The rows must stay as they are until it returns.

        Raises as ``FlatStore.store``, and ``TimedOutError`` after ``timeout_s`` seconds: the rows
        are still lent then, until ``settle`` of its number or ``close`` returns. ``ClosedError``
        for a store that had to be closed. Cost: the bytes.
        """
        return self._run(
            timeout_s,
            self._store.store,
            keys,
            rows,
            group,
            namespace=namespace,
            positions=positions,
        )

    def load(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        urgency: Urgency = Urgency.DEMAND,
        timeout_s: float | None = None,
    ) -> Mask:
        """Copies keys into rows of the engine's memory; which of them arrived, verified. Rows of
        those that did not may hold anything.

        Raises as ``FlatStore.load``, and ``TimedOutError`` after ``timeout_s`` seconds: the rows
        may still be written then, until ``settle`` of its number or ``close`` returns.
        ``ClosedError`` for a store that had to be closed. Cost: the bytes.
        """
        return self._run(
            timeout_s,
            self._store.load,
            keys,
            rows,
            group,
            namespace=namespace,
            positions=positions,
            urgency=urgency,
        )

    def fetch(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        urgency: Urgency = Urgency.DEMAND,
        timeout_s: float | None = None,
    ) -> Mask:
        """Moves keys into the first tier of a store that owns it; which of them are there. Raises
        as ``FlatStore.fetch``, and ``TimedOutError``. Cost: the bytes.
        """
        return self._run(
            timeout_s,
            self._store.fetch,
            keys,
            group,
            namespace=namespace,
            positions=positions,
            urgency=urgency,
        )

    def settle(self, number: int, timeout_s: float | None = None) -> Mask:
        """Waits for a call that was given up with ``TimedOutError``: how each of its keys fared.

        Raises ``ValueError`` for a number that no such call has, ``TimedOutError`` again.
        """
        deadline = _deadline(timeout_s)
        with self._call():
            return self._wait(number, deadline)

    def _run(
        self,
        timeout_s: float | None,
        begin: Callable[P, int | Fetch],
        *given: P.args,
        **named: P.kwargs,
    ) -> Mask:
        deadline = _deadline(timeout_s)
        with self._call():
            with self._turn:
                before = self._numbers()
                try:
                    found = begin(*given, **named)
                except BaseException:  # what it had begun by then ends first
                    for number in self._numbers() - before:
                        self._under_way.add(number)
                        self._wait(number, deadline)
                    raise
                number = found if isinstance(found, int) else found.number
                self._under_way.add(number)
            return self._wait(number, deadline)

    def _numbers(self) -> set[int]:
        """What the flat store will tell the end of."""
        return {*self._store.transfers.climbs, *self._store.transfers.offers}

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Counted while it waits: ``close`` lets it end first."""
        with self.locked():
            self._calls += 1
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                self._turn.notify_all()

    def _wait(self, number: int, deadline: float | None) -> Mask:
        with self._turn:
            if number not in self._under_way and number not in self._ended:
                raise ValueError(f"number {number} is of no call that was given up")
            while number not in self._ended:
                left_s = _left(deadline)
                self._refuse_broken()
                if left_s is not None and left_s <= 0:
                    raise TimedOutError(f"call {number} has not ended in time", number=number)
                if self._polling:
                    self._turn.wait(left_s)
                else:
                    self._poll_for(number, deadline)
            return self._ended.pop(number)

    def _poll_for(self, number: int, deadline: float | None) -> None:
        """Polls for everybody until this one has ended or its time is over; the lock is open in
        every pause.
        """
        self._polling = True
        try:
            since = time.monotonic()
            while True:
                if self._poll():
                    since = time.monotonic()
                left_s = _left(deadline)
                over = left_s is not None and left_s <= 0
                if number in self._ended or self._broken or over:
                    return
                waited_s = time.monotonic() - since
                pause_s = min(max(_FIRST_PAUSE_S, waited_s / _PAUSES), _MOST_PAUSE_S)
                self._turn.wait(pause_s if left_s is None else min(pause_s, left_s))
        finally:
            self._polling = False
            self._turn.notify_all()  # the next of those that wait polls on

    def _poll(self) -> bool:
        """Whether a call has ended. The lock is held. What fails ends no call: its copy goes on."""
        any_ended = False
        try:
            for event in self._store.poll():
                if isinstance(event, KeysDone) and event.number in self._under_way:
                    self._under_way.remove(event.number)
                    self._ended[event.number] = event.good
                    any_ended = True
                else:
                    self._events.append(event)
        except Exception as error:  # outermost: of all that wait, not of the one that polls
            self._doubt(error)
        self._doubted &= self._under_way
        if self._doubted and time.monotonic() >= self._doubt_ends:
            self._break()
        if any_ended:
            self._turn.notify_all()
        return any_ended

    def _doubt(self, error: Exception) -> None:
        """From now on the calls under way have a time to end. Counted always, told once a kind."""
        self._store.metrics.add(("poll", "failed"))
        if type(error) not in self._told:
            self._told.add(type(error))
            _LOG.error("a poll failed; what is under way goes on", exc_info=error)
        if not self._doubted:
            self._doubt_ends = time.monotonic() + self._grace_s
            self._failure = error
        self._doubted |= self._under_way

    def _break(self) -> None:
        """Closes the store under those that wait. Where that fails a copy may run yet: they wait
        on, and it is tried again.
        """
        try:
            self._shut()
        except Exception as error:  # outermost: as above
            self._doubt(error)
            return
        self._closing = self._broken = True
        _LOG.error("the store was closed after polls that failed: every call is refused")
        self._turn.notify_all()

    def _refuse_broken(self) -> None:
        if self._broken:
            raise ClosedError("the store was closed: its polls failed") from self._failure

    def _shut(self) -> None:
        """Closes the flat store, and what an earlier try could not close."""
        with ExitStack() as closing:
            for tier in self._store.opened:  # the lowest first
                closing.callback(tier.close)
            self._store.close()

    # ------------------------------------------------------------ losing
    def forget(self, keys: object, group: int = 0, *, namespace: Namespace | None = None) -> None:
        """As ``FlatStore.forget``: these blocks are wrong, no tier has them from now on."""
        with self.locked() as store:
            store.forget(keys, group, namespace=namespace)

    def reset(self, tiers: list[str] | None = None) -> None:
        """As ``FlatStore.reset``: nothing stored before is found again. Calls that wait end, their
        keys not good. Blocks while the epoch is made durable.
        """
        with self.locked() as store:
            store.reset(tiers)

    # ------------------------------------------------------------ running
    @contextmanager
    def locked(self) -> Iterator[FlatStore]:
        """The flat store, for calls that do not wait: leases, reservations. Everybody else waits
        until the block is left; do not ``poll`` in it, nor call what blocks. ``ClosedError`` once
        it is being closed, or in a child that was forked.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                f"the store was opened before a fork, in process {self._pid}, and cannot be used "
                "in the child: open another one there"
            )
        with self._turn:
            self._refuse_broken()
            if self._closing:
                raise ClosedError("the store was closed")
            yield self._store

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns once everything under way has ended and what was stored is durable. Raises
        ``TimedOutError`` (its number is -1).
        """
        deadline = _deadline(timeout_s)
        with self._call(), self._turn:
            number = self._store.transfers.new_number()
            self._under_way.add(number)
            try:
                while True:
                    self._poll()
                    self._refuse_broken()
                    if self._store.transfers.idle():
                        break
                    left_s = _left(deadline)
                    if left_s is not None and left_s <= 0:
                        raise TimedOutError("something is still under way", number=-1)
                    self._turn.wait(_MOST_PAUSE_S)
            finally:
                self._under_way.remove(number)
            for tier in self._store.tiers:
                tier.flush()

    def set_mode(self, tier: str, mode: TierMode) -> None:
        """As ``FlatStore.set_mode``."""
        with self.locked() as store:
            store.set_mode(tier, mode)

    def events(self) -> list[Event]:
        """What tiers told since the last call, the latest 1,024 at most; a call that waits learns
        how it ended from its own return.
        """
        with self.locked():
            self._poll()
            told = list(self._events)
            self._events.clear()
            return told

    def counters(self) -> Mapping[str, int]:
        """Every counter by its dotted name, sorted."""
        with self.locked() as store:
            return store.counters()

    def usage(self) -> dict[str, TierUsage]:
        """Bytes and blocks in use by tier."""
        with self.locked() as store:
            return store.usage()

    def check(self) -> None:
        """As ``FlatStore.check``: ``InvariantError`` names the first invariant that is broken."""
        with self.locked() as store:
            store.check()

    def close(self) -> None:
        """Refuses new calls, lets those that wait end, closes the flat store. Idempotent; in a
        child that was forked it does nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._turn:
            self._closing = True
            while self._calls:
                self._turn.wait()
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _deadline(timeout_s: float | None) -> float | None:
    """When a call is given up, on the clock of this process."""
    return None if timeout_s is None else time.monotonic() + seconds_of("timeout_s", timeout_s)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
