"""One thread at a time: a call that finds another thread inside raises instead of waiting. No
affinity: any thread may be the one. A process that was forked has no cache: its copy of the books
would write over the parent's.
"""

from __future__ import annotations

import os

# A lock of the interpreter and no thread. A token taken from a list would be lost where Ctrl-C
# strikes between the taking and the ``with`` block, and the cache could not even be closed; a lock
# that its own thread may take again is no harm to that thread.
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn
from weakref import WeakSet

from radix.errors import BusyError, ClosedError

_GATES: WeakSet[Gate] = WeakSet()


def _nobody(_: bool) -> bool:
    return False


class Gate:
    """Entered around every public call of a cache; raises ``BusyError`` or ``ClosedError``.

    ``with gate:`` does it. Where tenths of a microsecond count, ``gate.take(False) or
    gate.refuse()`` enters and ``gate.leave()`` leaves, whatever happened in between.
    """

    __slots__ = ("__weakref__", "_parent", "closed", "leave", "take")

    def __init__(self) -> None:
        lock = RLock()
        self.take: Callable[[bool], bool] = lock.acquire
        self.leave: Callable[[], None] = lock.release
        self.closed = False
        self._parent = 0  # the process that it was forked from
        _GATES.add(self)

    def __enter__(self) -> None:
        if not self.take(False):
            self.refuse()
        if self.closed:
            self.leave()
            self.refuse()

    def __exit__(self, *error: object) -> None:
        self.leave()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Nobody comes in, not even who is inside: a user's own code is asked in between."""
        take, self.take = self.take, _nobody
        try:
            yield
        finally:
            if self.take is _nobody:  # and no child of a fork
                self.take = take

    def refuse(self) -> NoReturn:
        """Says why there is no way in."""
        if self._parent:
            raise ClosedError(
                f"the cache was opened before a fork, in process {self._parent}, and cannot be "
                "used in the child: open another one there"
            )
        if self.closed:
            raise ClosedError("the cache was closed")
        if self.take is _nobody:
            raise BusyError("what a cache asks may not call the cache")
        raise BusyError("a call came while another thread's call on this cache was running")

    def close(self) -> None:
        """From now on every entry raises ``ClosedError``."""
        self.closed = True

    def _forked(self) -> None:
        """In the child: a thread that does not exist here may have been inside."""
        lock = RLock()
        self.take, self.leave = lock.acquire, lock.release
        self._parent = self._parent or os.getppid()
        self.closed = True


def _close_all() -> None:
    for gate in list(_GATES):
        gate._forked()


os.register_at_fork(after_in_child=_close_all)
