"""How far a long run has come, for people who wait: silent, or a bar on standard error.

Kept here: a run tells its progress the same way whether anybody looks or not, nothing is ever
written to standard output, and rich is loaded only where somebody looks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class Progress:
    """Nobody looks: every call does nothing. Begin: `phase`. Go on: `reach`."""

    def phase(self, label: str, total: int) -> None:
        """Begin something of `total` steps; what came before is done. Cost: O(1)."""

    def reach(self, done: int) -> None:
        """Say that `done` steps of the present phase are done. Cost: O(1)."""


class BarProgress(Progress):
    """A bar for each phase; finished ones stay above the present one until the end."""

    def __init__(self, bars: Bars) -> None:
        """Show phases in `bars`, which belong to the caller. Cost: O(1)."""
        self._bars = bars
        self._task: TaskID | None = None
        self._total = 0

    def phase(self, label: str, total: int) -> None:
        """Fill the bar of the last phase and begin one of `total` steps. Cost: O(1)."""
        self.reach(self._total)
        self._task, self._total = self._bars.add_task(label, total=total), total

    def reach(self, done: int) -> None:
        """Fill the present bar up to `done` steps. Cost: O(1)."""
        if self._task is not None:
            self._bars.update(self._task, completed=done)


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Give a progress that shows bars while the body runs where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        yield BarProgress(bars)
