"""What comes with a request of an engine is read as hints by name, or refused by name; where the
cache itself reads it, inside the engine's loop, it is counted and left out and nothing is raised.
"""

from __future__ import annotations

import logging
from types import MappingProxyType

import pytest

from radix.engines.hinting import KEY, Hearing, hints_in
from radix.hints import Hints
from radix.metrics import Metrics

WRONG: tuple[tuple[object, str], ...] = (
    (None, "radix_hints must be a dictionary of expects_return, keep_for, priority, ended"),
    ([], "not list"),
    ({"keepfor": 3}, "unknown keepfor; known are expects_return, keep_for, priority, ended"),
    ({7: 3, "a": 1}, "unknown 7, a"),
    ({"priority": 101}, "priority is 101, expected -100 to 100"),
    ({"priority": "high"}, "priority must be an int or None, not str"),
    ({"keep_for": float("nan")}, "keep_for is nan, expected seconds"),
    ({"expects_return": -1}, "expects_return is -1"),
    ({"ended": "yes"}, "ended must be a bool, not str"),
    ({"ended": True, "expects_return": 3}, "ended: no request is expected"),
)


def test_hints_are_read_by_their_names_and_null_says_nothing() -> None:
    assert hints_in({}) == Hints()
    assert hints_in({"expects_return": 2.5, "keep_for": None, "ended": None}) == Hints(
        expects_return=2.5
    )
    assert hints_in(MappingProxyType({"priority": -100, "ended": True})) == Hints(
        priority=-100, ended=True
    )


@pytest.mark.parametrize(("given", "text"), WRONG, ids=repr)
def test_what_is_no_hint_is_refused_by_name(given: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as told:
        hints_in(given)
    assert text in str(told.value)


@pytest.mark.parametrize(("given", "text"), WRONG[1:], ids=repr)
def test_what_is_heard_wrong_is_counted_told_once_and_left_out(
    given: object, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    hearing = Hearing(metrics)
    with caplog.at_level(logging.WARNING, "radix.engines.hinting"):
        assert hearing.of("r1", {KEY: given}) is None
        assert hearing.of("r2", {KEY: given}) is None
    assert metrics.snapshot() == {"hints.refused": 2}
    assert [text in record.getMessage() for record in caplog.records] == [True]
    assert "r1: hints left out" in caplog.text
    assert hearing.of("r3", {KEY: {"priority": 3}}) == Hints(priority=3)
    assert metrics.snapshot() == {"hints.refused": 2, "hints.taken": 1}


@pytest.mark.parametrize("params", [None, {}, {"other": 1}, {KEY: None}, [KEY], 3], ids=repr)
def test_whoever_says_nothing_is_not_counted(params: object) -> None:
    metrics = Metrics()
    assert Hearing(metrics).of("r", params) is None
    assert metrics.snapshot() == {}


def test_seconds_are_left_out_where_nobody_counts_them() -> None:
    metrics = Metrics()
    hearing = Hearing(metrics, untimed="its ranks have no clock in common")
    assert hearing.of("r", {KEY: {"keep_for": 3}}) is None
    assert hearing.of("r", {KEY: {"ended": True}}) == Hints(ended=True)
    assert metrics.snapshot() == {"hints.refused": 1, "hints.taken": 1}
