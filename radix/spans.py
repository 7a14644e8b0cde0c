"""Intervals of the engine's own on the cache's clock, so that drafting, verifying, communication
and the management of the cache are seen apart, on one timeline. Keeps no invariant: it records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from radix.events import Event, SpanEvent
from radix.gate import Gate

Value = int | float | str


@contextmanager
def recorded_span(
    gate: Gate,
    clock: Callable[[], int],
    events: list[Event],
    name: str,
    args: dict[str, Value],
) -> Iterator[None]:
    """Puts a ``SpanEvent`` over the body into ``events``, also where the body raises; none where it
    closed the cache. The body may call the cache. Cost: two readings of the clock.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    if not name:
        raise ValueError("name must not be empty")
    for key, value in args.items():
        if not isinstance(value, int | float | str):
            raise TypeError(f"{key} must be a number or a str, not {type(value).__name__}")
    with gate:
        start_ns = clock()
    try:
        yield
    finally:
        if not gate.closed:
            with gate:
                events.append(SpanEvent(name, start_ns, max(start_ns, clock()), args))
