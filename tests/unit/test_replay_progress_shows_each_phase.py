"""A run tells its progress alike whether somebody looks or not; bars fill and stay."""

from __future__ import annotations

import sys

import pytest
from rich.progress import Progress as Bars

from radix.replay.progress import BarProgress, Progress, shown_progress


def test_each_phase_has_a_bar_and_the_last_one_is_filled_when_the_next_begins() -> None:
    bars = Bars(disable=True)
    progress = BarProgress(bars)
    progress.reach(3)  # nothing has begun, so nothing is shown
    progress.phase("cold", 10)
    progress.reach(4)
    progress.phase("warm", 7)
    progress.reach(2)
    shown = [(task.description, task.completed, task.total) for task in bars.tasks]
    assert shown == [("cold", 10, 10), ("warm", 2, 7)]


def test_nothing_is_shown_where_standard_error_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown_progress() as progress:
        progress.phase("cold", 10)
        progress.reach(10)
    assert type(progress) is Progress
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown_progress() as progress:
        assert isinstance(progress, BarProgress)
