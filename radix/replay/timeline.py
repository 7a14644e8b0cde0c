"""Record what happened when, as Chrome trace events that Perfetto and chrome://tracing open.

A timeline holds spans, instants and counters on named tracks (request states, transfers by
direction, an engine's own intervals), all on the one clock that it was given. Kept here: every
event lies on that clock, counted from the timeline's start; spans that overlap on a track are laid
out beside each other, so that no viewer has to guess; the number of events is bounded, and how many
were dropped is written too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from radix.events import Event, SpanEvent, TransferEvent
from radix.replay.output import draft_of

Value: TypeAlias = int | float | str
MAX_EVENTS = 1_000_000
ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class _Span:
    start_ns: int
    end_ns: int
    name: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class _Point:
    at_ns: int
    phase: str
    name: str
    values: Mapping[str, Value]


class Timeline:
    """A recorder of spans, instants and counters.

    Record: `measure`, `span`, `instant`, `counter`, `hear` for what a cache tells. Time: `now_ns`.
    Result: `write`, `dropped`.
    A track is named "process/thread", for instance "transfers/device to host"; without a slash the
    process is the whole name.
    """

    def __init__(
        self, clock_ns: Callable[[], int] = time.perf_counter_ns, max_events: int = MAX_EVENTS
    ) -> None:
        """Start at time 0 of the timeline, which is now on `clock_ns`. Cost: O(1)."""
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._free = max_events
        self._spans: dict[str, list[_Span]] = {}
        self._points: dict[str, list[_Point]] = {}
        self.dropped = 0

    def now_ns(self) -> int:
        """Return nanoseconds since the timeline's start, for `span` and `instant`. Cost: O(1)."""
        return self._clock_ns() - self._start_ns

    def span(self, track: str, name: str, start_ns: int, end_ns: int, **values: Value) -> None:
        """Record that `name` lasted from `start_ns` to `end_ns`. Cost: O(1), about 1 us.

        Raises:
            ValueError: the end lies before the start.
        """
        self._record(track, _Span(start_ns, end_ns, name, values))

    @contextmanager
    def measure(self, track: str, name: str, **values: Value) -> Iterator[None]:
        """Record how long the body took, whether it succeeds or raises. Cost: O(1)."""
        start_ns = self.now_ns()
        try:
            yield
        finally:
            self.span(track, name, start_ns, self.now_ns(), **values)

    def hear(self, event: Event) -> None:
        """Record the interval of a transfer or of the engine's own, `cache.span`, on its track.

        The cache's clock must be `now_ns`. Other events have no interval of their own: nothing is
        recorded. Cost: O(1).
        """
        if isinstance(event, TransferEvent):
            self.span(
                f"transfers/{event.source} to {event.target}",
                f"{event.good} blocks",
                event.start_ns,
                event.end_ns,
                bytes=event.nbytes,
            )
        elif isinstance(event, SpanEvent):
            self._record(ENGINE, _Span(event.start_ns, event.end_ns, event.name, event.args))

    def instant(self, track: str, name: str, at_ns: int | None = None, **values: Value) -> None:
        """Record that `name` happened at `at_ns` (now if left out). Cost: O(1)."""
        self._point(track, "i", name, at_ns, values)

    def counter(self, name: str, at_ns: int | None = None, **values: int | float) -> None:
        """Record the values of a counter, which viewers draw as a curve. Cost: O(1)."""
        self._point(name, "C", name, at_ns, values)

    def write(self, path: str | Path) -> None:
        """Write everything recorded so far; the file appears whole or not at all.

        Cost: O(events x log events).

        Raises:
            OSError: the file cannot be written.
        """
        with draft_of(path) as draft, draft.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "otherData": ')
            json.dump({"dropped_events": self.dropped}, file)
            file.write(', "traceEvents": [\n')
            separator = ""
            for event in self._events():
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
            file.write("\n]}\n")

    def _record(self, track: str, span: _Span) -> None:
        if span.end_ns < span.start_ns:
            raise ValueError(f"end_ns {span.end_ns} lies before start_ns {span.start_ns}")
        if self._take():
            self._spans.setdefault(track, []).append(span)

    def _point(
        self, track: str, phase: str, name: str, at_ns: int | None, values: Mapping[str, Value]
    ) -> None:
        if self._take():
            at_ns = self.now_ns() if at_ns is None else at_ns
            self._points.setdefault(track, []).append(_Point(at_ns, phase, name, values))

    def _take(self) -> bool:
        if not self._free:
            self.dropped += 1
            return False
        self._free -= 1
        return True

    def _events(self) -> Iterator[dict[str, object]]:
        processes: dict[str, int] = {}
        threads = 0
        for track in dict.fromkeys([*self._spans, *self._points]):
            process, _, thread = track.partition("/")
            if process not in processes:
                processes[process] = len(processes) + 1
                yield _named("process", process, processes[process], 0)
            for number, lane in enumerate(_lanes(self._spans.get(track, [])), 1):
                threads += 1
                label = thread or process
                label = label if number == 1 else f"{label} ({number})"
                yield _named("thread", label, processes[process], threads)
                place = {"pid": processes[process], "tid": threads}
                for span in lane:
                    yield _complete(span, place)
                if number == 1:
                    for point in self._points.get(track, []):
                        yield _at(point, place)


def _lanes(spans: list[_Span]) -> list[list[_Span]]:
    """Spread spans over lanes so that in each lane they follow or enclose each other.

    There is always a first lane, for the track's instants.
    """
    lanes: list[tuple[list[_Span], list[int]]] = [([], [])]
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        for lane, open_ends in lanes:
            while open_ends and open_ends[-1] <= span.start_ns:
                open_ends.pop()
            if not open_ends or span.end_ns <= open_ends[-1]:
                lane.append(span)
                open_ends.append(span.end_ns)
                break
        else:
            lanes.append(([span], [span.end_ns]))
    return [lane for lane, _ in lanes]


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, object]:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(span: _Span, place: Mapping[str, int]) -> dict[str, object]:
    times = {"ts": span.start_ns / 1000, "dur": (span.end_ns - span.start_ns) / 1000}
    return {"ph": "X", "name": span.name, **place, **times, "args": dict(span.values)}


def _at(point: _Point, place: Mapping[str, int]) -> dict[str, object]:
    event = {"ph": point.phase, "name": point.name, **place, "ts": point.at_ns / 1000}
    if point.phase == "i":
        event["s"] = "t"
    return {**event, "args": dict(point.values)}
