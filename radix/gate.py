"""One thread at a time: a call that finds another thread inside raises instead of waiting. No
affinity: any thread may be the one.
"""

from __future__ import annotations

# A lock of the interpreter and no thread. A token taken from a list would be lost where Ctrl-C
# strikes between the taking and the ``with`` block, and the cache could not even be closed; a lock
# that its own thread may take again is no harm to that thread.
from _thread import RLock

from radix.errors import BusyError, ClosedError


class Gate:
    """Entered around every public call of a cache; raises ``BusyError`` or ``ClosedError``."""

    __slots__ = ("_lock", "closed")

    def __init__(self) -> None:
        self._lock = RLock()
        self.closed = False

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            raise BusyError("a call came while another thread's call on this cache was running")
        if self.closed:
            self._lock.release()
            raise ClosedError("the cache was closed")

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """From now on every entry raises ``ClosedError``."""
        self.closed = True
