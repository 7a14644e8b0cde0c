"""A timeline is valid Chrome trace JSON in which nothing overlaps that a viewer could not draw."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.replay.timeline import Timeline


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        return self.now


def written(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    path = folder / "timeline.json"
    timeline.write(path)
    assert [file.name for file in folder.iterdir()] == ["timeline.json"]
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_spans_instants_and_counters_lie_on_the_given_clock(tmp_path: Path) -> None:
    clock = Clock()
    timeline = Timeline(clock)
    clock.now += 2_000
    with timeline.measure("requests/chat 1", "admit", tokens=40):
        clock.now += 3_500
    timeline.instant("requests/chat 1", "RELEASED")
    timeline.counter("used bytes", device=10, host=20)
    timeline.span("transfers/device to host", "store", 0, 1_000, blocks=2)
    events = {event["name"]: event for event in written(timeline, tmp_path)}
    assert (events["admit"]["ph"], events["admit"]["ts"], events["admit"]["dur"]) == ("X", 2.0, 3.5)
    assert events["admit"]["args"] == {"tokens": 40}
    assert (events["RELEASED"]["ph"], events["RELEASED"]["ts"]) == ("i", 5.5)
    assert (events["used bytes"]["ph"], events["used bytes"]["args"]) == (
        "C",
        {"device": 10, "host": 20},
    )
    assert (events["store"]["ts"], events["store"]["dur"]) == (0.0, 1.0)


def test_tracks_are_named_processes_and_threads(tmp_path: Path) -> None:
    timeline = Timeline(Clock())
    for track in ("requests/chat 1", "requests/chat 2", "transfers/disk to host", "engine"):
        timeline.span(track, "x", 0, 1)
    events = written(timeline, tmp_path)
    names = {
        (event["name"], event["args"]["name"]): (event["pid"], event["tid"])
        for event in events
        if event["ph"] == "M"
    }
    assert {name for kind, name in names if kind == "process_name"} == {
        "requests",
        "transfers",
        "engine",
    }
    requests = names["process_name", "requests"][0]
    assert names["thread_name", "chat 1"][0] == names["thread_name", "chat 2"][0] == requests
    assert len({tid for (kind, _), (_, tid) in names.items() if kind == "thread_name"}) == 4


def test_span_is_recorded_when_its_body_raises(tmp_path: Path) -> None:
    timeline = Timeline(Clock())
    with pytest.raises(KeyError), timeline.measure("engine", "step"):
        raise KeyError
    assert [event["name"] for event in written(timeline, tmp_path) if event["ph"] == "X"] == [
        "step"
    ]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=25))
def test_spans_of_one_lane_follow_or_enclose_each_other(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    timeline = Timeline(Clock())
    for start, length in spans:
        timeline.span("transfers/device to host", "store", 1000 * start, 1000 * (start + length))
    lanes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in written(timeline, tmp_path_factory.mktemp("timeline")):
        if event["ph"] == "X":
            lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    found = [span for lane in lanes.values() for span in lane]
    assert sorted(found) == sorted((float(start), float(start + size)) for start, size in spans)
    for lane in lanes.values():
        for a in lane:
            for b in lane:
                crossing = a[0] < b[0] < a[1] < b[1]
                assert not crossing


def test_events_beyond_the_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    timeline = Timeline(Clock(), max_events=3)
    for number in range(5):
        timeline.instant("engine", f"e{number}")
    events = written(timeline, tmp_path)
    assert [event["name"] for event in events if event["ph"] == "i"] == ["e0", "e1", "e2"]
    assert timeline.dropped == 2
    whole = json.loads((tmp_path / "timeline.json").read_text())
    assert whole["otherData"] == {"dropped_events": 2}


def test_span_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    timeline = Timeline(Clock())
    with pytest.raises(ValueError, match="end_ns 1 lies before start_ns 2"):
        timeline.span("engine", "step", 2, 1)
    assert written(timeline, tmp_path) == []
