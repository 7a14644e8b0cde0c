"""What was promised at each moment of a recording: which blocks must be there after a crash, which
may be, and how the directory is to be opened. Made from the marks of the recorded process.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from tests.powerloss.blocks import Config, config_of
from tests.powerloss.recording import Recording, marks


@dataclass(frozen=True, slots=True)
class Known:
    """What is promised of a directory: ``held`` blocks are there, those below ``last`` may be,
    unless they never ``begun``. ``is_made``: it was opened once.
    """

    held: frozenset[int] = frozenset()
    begun: frozenset[int] = frozenset()
    is_made: bool = False

    @property
    def last(self) -> int:
        """One more than the greatest number that may be there."""
        return max(self.begun, default=-1) + 1


@dataclass(slots=True)
class Ledger:
    """Events by position in the log."""

    faults: list[str] = field(default_factory=list)  # what the recorded process saw itself
    _events: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    _begun: list[tuple[int, int]] = field(default_factory=list)
    _opened: list[tuple[int, Config]] = field(default_factory=list)
    _ready_at: int | None = None
    _before: Known = Known()

    def config(self, point: int) -> Config:
        """How the directory is opened after a crash just before this position."""
        at = bisect_left(self._opened, point, key=lambda opened: opened[0]) - 1
        return self._opened[max(at, 0)][1]

    def promised(self, first: int, point: int) -> Known:
        """What is promised of a state that may be the one of a crash at any moment from ``first``
        until just before ``point``: all that is promised at any of these moments.
        """
        at = bisect_left(self._opened, point, key=lambda opened: opened[0]) - 1
        if at >= 0:  # it is opened as it was last
            first = max(first, self._opened[at][0])
        held = set()
        for number, events in self._events.items():
            after = bisect_right(events, first, key=lambda event: event[0])
            upto = bisect_left(events, point, key=lambda event: event[0])
            is_held = after > 0 and events[after - 1][1]
            if is_held or any(stays for _, stays in events[after:upto]):
                held.add(number)
        begun = {number for at, number in self._begun if at < point}
        is_made = self._before.is_made or (self._ready_at is not None and self._ready_at < point)
        return Known(frozenset(held), self._before.begun | begun, is_made)


def ledger_of(recording: Recording, before: Known) -> Ledger:
    """The ledger of a recording that began with ``before``."""
    ledger = Ledger(_before=before)
    held = set(before.held)
    events = ledger._events
    for number in before.held:
        events[number] = [(-1, True)]

    def settle(at: int, numbers: set[int], stays: bool) -> None:
        for number in numbers:
            events.setdefault(number, []).append((at, stays))
        held.difference_update(numbers)
        if stays:
            held.update(numbers)

    for at, mark in marks(recording):
        match mark:
            case {"open": fields, "loses": loses}:
                ledger._opened.append((at, config_of(fields)))
                if loses:
                    settle(at, set(held), False)
            case {"ready": found}:
                lost = held - set(found)
                if lost:
                    ledger.faults.append(f"at {at} the process did not find blocks {sorted(lost)}")
                settle(at, lost, False)
                settle(at, set(found), True)
                if ledger._ready_at is None:
                    ledger._ready_at = at
            case {"begin": numbers}:
                ledger._begun += [(at, number) for number in numbers]
            case {"stored": numbers}:
                settle(at, set(numbers), True)
            case {"freed": numbers}:
                settle(at, set(numbers), False)
            case {"fault": texts}:
                ledger.faults += [f"at {at} the process saw: {text}" for text in texts]
    return ledger
