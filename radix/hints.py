"""Hints: what a request says, at its end, of the blocks that it used, for the policies that go by
it (docs/policies.md tells which goes by what). They are never needed, and wrong ones cost hits
alone: what is said decides the order of eviction and nothing else.

    expects_return   |--- until then it is worth what lies that far ahead ---| then it is late
    keep_for         |--- at least this priority ---| ordinary again
    ended            goes first
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from radix._native import lib

LEAST_PRIORITY, MOST_PRIORITY = -100, 100
MOST_SECONDS = 10.0 * 365 * 86400
_US = 1_000_000


def _seconds(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value <= MOST_SECONDS:
        raise ValueError(f"{name} is {value}, expected seconds of 0 to {MOST_SECONDS:.0f}")


@dataclass(frozen=True, slots=True)
class Hints:
    """What is said of the blocks of one request; seconds count from its end.

    ``expects_return``: when the next request that goes on from here is expected (a tool call that
    takes so long). ``keep_for``: a reservation: so long they have at least ``priority``, or, where
    none is said, go after all that is not reserved. ``priority``: -100 to 100, 0 is ordinary, the
    least goes first; it stays with the blocks unless ``keep_for`` ends it. ``ended``: no request
    goes on from here (``keep_for`` still holds).
    """

    expects_return: float | None = None
    keep_for: float | None = None
    priority: int | None = None
    ended: bool = False

    def __post_init__(self) -> None:
        """Raises ``ValueError`` or ``TypeError`` by name."""
        _seconds("expects_return", self.expects_return)
        _seconds("keep_for", self.keep_for)
        if self.priority is not None:
            if isinstance(self.priority, bool) or not isinstance(self.priority, int):
                kind = type(self.priority).__name__
                raise TypeError(f"priority must be an int or None, not {kind}")
            if not LEAST_PRIORITY <= self.priority <= MOST_PRIORITY:
                what = f"expected {LEAST_PRIORITY} to {MOST_PRIORITY}"
                raise ValueError(f"priority is {self.priority}, {what}")
        if not isinstance(self.ended, bool):
            raise TypeError(f"ended must be a bool, not {type(self.ended).__name__}")
        if self.ended and self.expects_return is not None:
            raise ValueError("ended: no request is expected, and expects_return names one")

    @property
    def timed(self) -> bool:
        """Whether it says seconds."""
        return self.expects_return is not None or self.keep_for is not None


class Said(NamedTuple):
    """Hints as the native tree takes them: times in microseconds, 0 where nothing is said."""

    returns: int
    until: int
    priority: int
    says: int


def check_hints(hints: object) -> Hints | None:
    """``TypeError`` for what is none."""
    if hints is not None and not isinstance(hints, Hints):
        raise TypeError(f"hints must be Hints or None, not {type(hints).__name__}")
    return hints


def said_of(hints: Hints, now_us: int) -> Said:
    """What hints say at a time. Cost: O(1)."""
    returns, until, priority, says = 0, 0, 0, 0
    if hints.expects_return is not None:
        returns = now_us + round(hints.expects_return * _US)
    if hints.keep_for is not None:
        until = now_us + round(hints.keep_for * _US)
    if hints.priority is not None:
        priority, says = hints.priority, int(lib.RDX_SAYS_PRIORITY)
    if hints.ended:
        says |= int(lib.RDX_SAYS_ENDED)
    return Said(returns, until, priority, says)


class Time:
    """The time of a cache in microseconds: of its clock, or, where it has none, a second for each
    step that it is told. Kept here: it never goes backwards.
    """

    def __init__(self, clock: Callable[[], int] | None, step: Callable[[], int]) -> None:
        """``clock``: nanoseconds."""
        self._clock = clock
        self._step = step
        self._last = 0

    def now(self) -> int:
        """What time it is. Cost: a look at the clock."""
        now = self._step() * _US if self._clock is None else self._clock() // 1000
        self._last = max(self._last, now, 0)
        return self._last
