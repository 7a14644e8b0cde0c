"""What an engine measures, drafting, verifying, communication, stands in the event stream of the
cache by the cache's own clock, and on a track of its own in the timeline.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radix import ClosedError, PrefixCache
from radix.events import Event, SpanEvent
from radix.groups import Group
from radix.replay.timeline import Timeline
from tiers.index import IndexTier


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        return self.now


def cache_on(clock: object) -> PrefixCache:
    return PrefixCache([Group.full("kv", 8)], [IndexTier(16)], page_tokens=4, clock=clock)


def spans(events: list[Event]) -> list[SpanEvent]:
    return [event for event in events if isinstance(event, SpanEvent)]


def test_span_lasts_as_long_as_its_body_by_the_clock_of_the_cache() -> None:
    clock = Clock()
    with cache_on(clock) as cache:
        with cache.span("draft", tokens=4, model="small"):
            clock.now += 300
        assert spans(cache.poll()) == [
            SpanEvent("draft", 5_000, 5_300, {"tokens": 4, "model": "small"})
        ]
        assert spans(cache.poll()) == [], "told twice"


def test_span_goes_round_calls_of_the_cache_and_other_spans() -> None:
    clock = Clock()
    with cache_on(clock) as cache:
        with cache.span("verify"):
            request = cache.admit([1, 2, 3, 4, 5])
            clock.now += 10
            with cache.span("all-gather", nbytes=1 << 20):
                clock.now += 5
            request.computed(5)
            heard = cache.poll()
        heard += cache.poll()
        assert [(span.name, span.end_ns - span.start_ns) for span in spans(heard)] == [
            ("all-gather", 5),
            ("verify", 15),
        ]
        assert len(heard) > 2, "its place is among what else happened"


def test_span_is_told_when_its_body_raises() -> None:
    with cache_on(Clock()) as cache:
        with pytest.raises(KeyError), cache.span("verify"):
            raise KeyError
        assert [span.name for span in spans(cache.poll())] == ["verify"]


def test_span_takes_an_argument_of_any_name() -> None:
    with cache_on(Clock()) as cache:
        with cache.span("draft", name="layer", self=3):
            pass
        assert spans(cache.poll())[0].args == {"name": "layer", "self": 3}


@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        ("", {}, ValueError, "name must not be empty"),
        (3, {}, TypeError, "name must be a str"),
        ("draft", {"path": [1]}, TypeError, "path must be a number or a str, not list"),
    ],
)
def test_bad_spans_are_refused_by_name_before_the_body(
    name: object, args: dict[str, object], error: type[Exception], words: str
) -> None:
    with cache_on(Clock()) as cache:
        with pytest.raises(error, match=words), cache.span(name, **args):
            raise AssertionError("the body ran")
        assert spans(cache.poll()) == []


def test_span_over_the_end_of_the_cache_ends_in_silence() -> None:
    cache = cache_on(Clock())
    with cache.span("shutdown"):
        cache.close()
    with pytest.raises(ClosedError), cache.span("draft"):
        pass


def test_timeline_draws_spans_on_a_track_of_their_own_beside_requests_and_transfers(
    tmp_path: Path,
) -> None:
    timeline = Timeline(clock := Clock())
    with cache_on(timeline.now_ns) as cache:
        timeline.span("requests/chat", "running", 0, 4_000)
        for name in ("draft", "verify"):
            with cache.span(name, tokens=4):
                clock.now += 1_000
                with cache.span("all-gather"):
                    clock.now += 500
        for event in cache.poll():
            timeline.hear(event)
    timeline.write(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    tracks = {
        event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"
    }
    assert set(tracks) == {"requests", "engine"}
    drawn = [event for event in events if event["ph"] == "X" and event["pid"] == tracks["engine"]]
    assert sorted((event["name"], event["ts"], event["dur"]) for event in drawn) == [
        ("all-gather", 1.0, 0.5),
        ("all-gather", 2.5, 0.5),
        ("draft", 0.0, 1.5),
        ("verify", 1.5, 1.5),
    ]
    assert len({event["tid"] for event in drawn}) == 1, "what encloses and what follows, one lane"
    assert drawn[0]["args"] == {"tokens": 4}
