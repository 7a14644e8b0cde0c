"""One thread at a time, without a lock: taking the token is one atomic step, and a call that finds
it gone raises instead of waiting. No affinity: any thread may be the one.
"""

from __future__ import annotations

from radix.errors import BusyError, ClosedError


class Gate:
    """Entered around every public call of a cache; raises ``BusyError`` or ``ClosedError``."""

    __slots__ = ("_token", "closed")

    def __init__(self) -> None:
        self._token = [True]
        self.closed = False

    def __enter__(self) -> None:
        try:
            self._token.pop()
        except IndexError:
            raise BusyError("a call came while another one on this cache was running") from None
        if self.closed:
            self._token.append(True)
            raise ClosedError("the cache was closed")

    def __exit__(self, *error: object) -> None:
        self._token.append(True)

    def close(self) -> None:
        """From now on every entry raises ``ClosedError``."""
        self.closed = True
