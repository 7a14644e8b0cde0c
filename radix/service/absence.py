"""What a client does while its service does not answer: it asks nothing, so that each call costs a
microsecond and is a miss, and tries again after a pause that doubles. Pure: whoever calls gives the
time.
"""

from __future__ import annotations

FIRST_S = 0.05
MOST_S = 5.0


class Absence:
    """``open`` says whether to try now; ``failed`` and ``back`` tell what came of it."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._until = 0.0
        self.failures = 0

    def open(self, now: float) -> bool:
        """Whether to ask: it answered last, or the pause is over."""
        return now >= self._until

    def failed(self, now: float) -> None:
        """It did not answer."""
        self.failures += 1
        self._pause_s = min(self._most_s, 2 * self._pause_s) or self._first_s
        self._until = now + self._pause_s

    def back(self) -> None:
        """It answers."""
        self._pause_s = self._until = 0.0
