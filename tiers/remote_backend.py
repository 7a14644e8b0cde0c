"""The contract between the remote tier and a distributed backend: batches of values by name, each
call within a time limit, and nothing believed. A backend is an existing system behind these calls;
it decides nothing. Keeps no invariant of its own: what it gives back is verified by who asked.

Calls come from several threads at once, never from the owner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

MISSING = -1  # of ``get``: there is no such value, or nobody who still has it
TOO_LONG = -2  # it is longer than the memory given: it is not ours


class Put(IntEnum):
    """How one value fared. STORED: it is there, perhaps since before. FULL: there is no room now.
    FAILED: the part of the backend that should have it does not answer.
    """

    STORED = 0
    FULL = 1
    FAILED = 2


class BackendError(Exception):
    """The whole backend does not answer, or not in time. Nothing of the call may be believed."""


class Backend(Protocol):
    """A store of values by name.

    Names are text without blanks, up to 200 characters. ``timeout_s`` bounds a call; one that
    cannot keep it (the caller then no longer waits) still returns some time. All but ``close``
    raise ``BackendError`` and nothing else where the backend fails as a whole.
    """

    @property
    def url(self) -> str:
        """Where it is, for messages; without a password."""
        ...

    def open(self, timeout_s: float) -> None:
        """Connects, or connects again; called before all else, and after each ``BackendError``
        until it succeeds.
        """
        ...

    def register(self, memory: memoryview) -> None:
        """This memory is where values are read from and written to; it outlives the backend."""
        ...

    def put(
        self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float
    ) -> list[Put]:
        """Stores values. Of a name that has one already the old one may stay: one name never stands
        for two different values. Cost: the bytes.
        """
        ...

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        """Reads values into memory from its beginning: bytes of each, ``MISSING`` or ``TOO_LONG``.

        What is written beside a negative answer is not defined. Cost: the bytes.
        """
        ...

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """Which names seem to have a value: a hint. Cost: the names."""
        ...

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """Removes values as far as that is possible; those that are not there are passed over."""
        ...

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        """Gives a short value (64 bytes at most) a name that had another one; ``absent``: unless it
        has one. What stands there afterwards; None where just the part of the backend that has this
        name does not answer.
        """
        ...

    def ping(self, timeout_s: float) -> None:
        """Returns if it answers."""
        ...

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        ...
