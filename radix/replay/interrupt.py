"""Ctrl-C as a question that a run asks where it can stop, instead of an exception anywhere.

A KeyboardInterrupt may be raised between any two steps of a call, also between taking a slot and
noting it. Kept here: while blocks with bytes move, it is raised only where the run asks, so that
what is durable is whole; a second Ctrl-C is an ordinary one; outside of the body nothing changes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed. Ask: `check`."""

    def __init__(self) -> None:
        self._came = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed. Cost: O(1)."""
        if self._came:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Defer Ctrl-C while the body runs. Only the main thread can; elsewhere none ever comes."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt._note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
