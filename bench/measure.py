"""What a benchmark is and what it finds, as values; and the loops that measure.

Kept here: everything that is compared was measured in one run, interleaved round by round, so that
a machine which slows down slows both; samples are kept raw, and only medians are shown.
"""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "radix"
LIMIT = "limit"  # no program could be faster at the same work
PLAIN = "plain"  # the plain way to do the same
Facts = Mapping[str, int | str]


class Skip(Exception):
    """A benchmark can't run here; the text says what it lacks."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``subject``: whose it is ("radix", "limit", "plain", or a peer's name);
    ``samples``: one number a round.
    """

    name: str
    subject: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Row ``name`` over row ``to``, paired round by round."""

    name: str
    to: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach. ``name``: a row, or "row / row" for a ratio; ``bound``: "at most" or
    "at least".
    """

    name: str
    bound: str
    value: float

    def holds(self, found: float) -> bool:
        """Whether ``found`` reaches it."""
        return found <= self.value if self.bound == "at most" else found >= self.value


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one benchmark found. ``facts`` are counts that the seed alone decides: the digest is
    made of them, so that a change which alters results, not only times, is seen. ``missing``: what
    could not be measured, with the reason; ``versions``: of what took part beside this project;
    ``commands``: command lines that were run, by the row that shows what they found; ``columns``:
    who was measured, where rows are "OPERATION, WHO": tables show them side by side.
    """

    rows: Sequence[Row]
    facts: Facts
    ratios: Sequence[Ratio] = ()
    targets: Sequence[Target] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a benchmark may write (``data``; it leaves nothing), the traces, if any, and whether
    peers are started (else they are missing: a smoke run takes seconds).
    """

    data: Path
    traces: Path | None
    peers: bool = True


Sizes = Mapping[str, int]
Run = Callable[[Sizes, Place], Outcome]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A measurement with parameters of two sizes: ``smoke`` shows that it works, in a second;
    ``full`` is what figures are quoted from. ``tags``: what it needs beside this project, "engine",
    "gpu" or "peers", or that it is asked for "by name"; a run goes through these only where it is
    told to.
    """

    name: str
    title: str
    run: Run
    smoke: Sizes
    full: Sizes
    tags: tuple[str, ...] = field(default=())


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out of what is timed."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def call_us(call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[float]:
    """Microseconds of each call, the two reads of the clock (about 0.08) included."""
    clock = time.perf_counter_ns
    spans: list[int] = []
    note = spans.append
    for each in arguments:
        start = clock()
        call(*each)
        note(clock() - start)
    return [span / 1e3 for span in spans]


def ratio(rows: Sequence[Row], name: str, to: str) -> Ratio:
    """Row ``name`` over row ``to``, round by round."""
    by_name = {row.name: row for row in rows}
    pairs = zip(by_name[name].samples, by_name[to].samples, strict=True)
    return Ratio(name, to, tuple(a / b for a, b in pairs))


def digest(values: Any) -> str:
    """Twelve hexadecimal digits that stand for plain JSON values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Rounds:
    """Collects one sample a round for rows that are measured in turn."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, str, list[float]]] = {}

    def add(self, name: str, subject: str, unit: str, sample: float) -> None:
        """One more sample of a row; rows appear in the order of their first sample."""
        self._rows.setdefault(name, (subject, unit, []))[2].append(sample)

    def add_median(self, name: str, subject: str, unit: str, samples: Sequence[float]) -> None:
        """The median of one round's calls as that round's sample."""
        self.add(name, subject, unit, statistics.median(samples))

    def rows(self) -> list[Row]:
        """All rows so far."""
        return [
            Row(name, subject, unit, tuple(samples))
            for name, (subject, unit, samples) in self._rows.items()
        ]
