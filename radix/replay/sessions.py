"""Whole sessions of agents as one stream of requests: one after another, or several at once.

A session is one record: its requests name runs of block ids that mean something in that session
alone, and the requests of an agent that it started are nested in it, at times counted from that
agent's start. Kept here: ids of two sessions never meet, and are the same however the sessions are
arranged; a request stands where its own time puts it, equal times in the order of the file; the
seed alone decides an arrangement, on every machine.

    session  t=0: a   t=9: agent(t=0: x   t=5: y)   t=12: b        ->  a 0   x 9   b 12   y 14
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

ID_LIMIT = 1 << 31
SIZE_LIMIT = 1 << 40
NESTING_LIMIT = 16


@dataclass(frozen=True, slots=True)
class Interleave:
    """Several sessions at once: in an order that the seed shuffles, at most `sessions` under way; a
    session starts `gap_s` seconds, on average and exponentially distributed, after the one before
    it, or, where all places were taken, after one of them was free.
    """

    sessions: int
    gap_s: float
    seed: int

    def __str__(self) -> str:
        return f"{self.sessions} at once, gap {self.gap_s:g} s, seed {self.seed}"

    def starts(self, durations: Sequence[float]) -> list[float]:
        """Return when each session starts, in seconds. Cost: a sort.

        >>> Interleave(2, 0.0, 0).starts([3.0, 3.0, 3.0, 3.0, 3.0])
        [6.0, 3.0, 0.0, 0.0, 3.0]
        """
        # Of Python's generator only random() is promised to give the same numbers for ever.
        draw = random.Random(self.seed).random
        order = [session for _, session in sorted((draw(), s) for s in range(len(durations)))]
        starts, ends, now_s = [0.0] * len(order), list[float](), 0.0
        for session in order:
            if len(ends) == self.sessions:
                now_s = max(now_s, heapq.heappop(ends))
            now_s -= self.gap_s * math.log(1 - draw())
            starts[session] = now_s
            heapq.heappush(ends, now_s + durations[session])
        return starts


class Fail(Protocol):
    """Refuses the record that is being read."""

    def __call__(self, field: str, what: str) -> NoReturn:
        """Raise what names the place of the fault."""


def tenant_of(record: dict[str, Any], fail: Fail) -> str:
    """Return whose a record is; "" where it does not say."""
    tenant = record.get("tenant", "")
    if type(tenant) is not str or not tenant.isprintable():
        fail("tenant", "expected a name of printable characters")
    return tenant


class Sessions:
    """The sessions of a file as they are read. Read: `add`. Then, once: `arrange`.

    `block_tokens` is what every id stands for, 0 before the first session. Of requests in the order
    of the file: `sessions`, numbers of their sessions, and `streams`, of their conversations: a
    session has one, an agent that it started another. `tenants`: whose each session is, "" where
    nobody says.
    """

    def __init__(self, fail: Fail) -> None:
        """`fail` is called with the field at fault and what is wrong; it raises."""
        self.block_tokens = 0
        self._fail = fail
        self._times = array("d")  # of requests, from the start of their session
        self._sessions = array("q")  # of requests, the number of their session
        self._streams = array("q")  # of requests, the number of their conversation
        self._lengths = array("q")
        self._runs = array("q")  # start, length, start, ... of all requests
        self._run_ends = array("q", [0])  # of requests, in `_runs`
        self._durations: list[float] = []
        self.tenants: list[str] = []
        self._used_ids = 0
        self._begun = 0  # conversations: of sessions, and of agents nested in them

    def add(self, record: dict[str, Any]) -> None:
        """Take the next session. Cost: its requests."""
        tokens = self._whole(record, "block_size", 1, SIZE_LIMIT)
        if self.block_tokens not in (0, tokens):
            what = f"blocks of {tokens} tokens, of {self.block_tokens} in the sessions before"
            self._fail("block_size", what)
        self.block_tokens = tokens
        first, self._end_s = len(self._runs), 0.0
        self._take(record, "", 0.0, 0)
        self._durations.append(self._end_s)
        self.tenants.append(tenant_of(record, self._fail))
        self._keep_apart(first)

    def _take(self, record: dict[str, Any], place: str, start_s: float, depth: int) -> None:
        """Take the requests of a session, or of an agent nested in it that started at `start_s`."""
        requests = record.get("requests")
        if depth > NESTING_LIMIT:
            self._fail(f"{place}requests", f"agents are nested deeper than {NESTING_LIMIT}")
        if type(requests) is not list:
            self._fail(f"{place}requests", "expected a list of requests")
        stream, self._begun = self._begun, self._begun + 1
        for number, request in enumerate(requests):
            here = f"{place}requests[{number}]."
            if type(request) is not dict:
                self._fail(here[:-1], "expected an object")
            at_s = start_s + self._seconds(request, here, "t")
            if "requests" in request:
                self._take(request, here, at_s, depth + 1)
                continue
            api_s = self._seconds(request, here, "api_time") if "api_time" in request else 0.0
            self._end_s = max(self._end_s, at_s + api_s)
            self._take_runs(request, here)
            self._lengths.append(self._whole(request, "in", 0, SIZE_LIMIT, here))
            self._times.append(at_s)
            self._sessions.append(len(self._durations))
            self._streams.append(stream)

    def _take_runs(self, request: dict[str, Any], here: str) -> None:
        field, values = f"{here}hash_runs", request.get("hash_runs")
        if type(values) is not list or len(values) % 2:
            self._fail(field, "expected a list of starts and lengths")
        for start, length in zip(values[::2], values[1::2], strict=True):
            if type(start) is not int or type(length) is not int:
                self._fail(field, "expected integers")
            if start < 0 or length < 0 or start + length > ID_LIMIT:
                self._fail(field, f"a run of {length} from {start} leaves [0, 2^31)")
        self._runs.fromlist(values)
        self._run_ends.append(len(self._runs))

    def _keep_apart(self, first: int) -> None:
        """Move the ids of the last session, whose runs begin at `first`, behind all others."""
        runs = np.frombuffer(self._runs, np.int64)[first:]
        used = int((runs[::2] + runs[1::2]).max()) if len(runs) else 0
        if self._used_ids + used > ID_LIMIT:
            self._fail("requests", "the sessions have more than 2^31 block ids")
        runs[::2] += self._used_ids
        del runs  # an array whose memory is looked at cannot grow
        self._used_ids += used

    def _whole(
        self, record: dict[str, Any], field: str, least: int, limit: int, place: str = ""
    ) -> int:
        value = record.get(field)
        if type(value) is not int or not least <= value < limit:
            self._fail(f"{place}{field}", f"expected an integer of [{least}, 2^40)")
        return value

    def _seconds(self, record: dict[str, Any], place: str, field: str) -> float:
        value = record.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fail(f"{place}{field}", "expected a number of seconds")
        if not 0 <= value < SIZE_LIMIT:
            self._fail(f"{place}{field}", "expected seconds of [0, 2^40)")
        return float(value)

    def arrange(
        self, interleave: Interleave | None
    ) -> tuple[Float64Array, Int32Array, Int64Array, Int64Array, Int64Array]:
        """Return the requests in order: times in seconds, block ids, offsets of each request in
        them with the end behind the last, lengths in tokens, and the place of each in the file.
        None puts one session after another, in the order of the file. Cost: the blocks.
        """
        if interleave is not None:
            starts = np.array(interleave.starts(self._durations), np.float64)
        else:
            starts = np.cumsum([0.0, *self._durations])[:-1]
        times = np.array(self._times, np.float64)
        times += starts[np.array(self._sessions, np.int64)] if len(times) else 0.0
        order = np.argsort(times, kind="stable")
        ends = self._run_ends.tolist()
        pieces = [
            np.array(self._runs[ends[number] : ends[number + 1]], np.int64)
            for number in order.tolist()
        ]
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum([int(piece[1::2].sum()) for piece in pieces], out=offsets[1:])
        ids = np.empty(int(offsets[-1]), np.int32)
        at = 0
        for piece in pieces:
            for start, length in piece.reshape(-1, 2).tolist():
                ids[at : at + length] = np.arange(start, start + length, dtype=np.int64)
                at += length
        return times[order], ids, offsets, np.array(self._lengths, np.int64)[order], order

    @property
    def streams(self) -> Int64Array:
        """Numbers of the conversations of requests. Cost: the requests."""
        return np.array(self._streams, np.int64)

    @property
    def sessions(self) -> Int64Array:
        """Numbers of the sessions of requests. Cost: the requests."""
        return np.array(self._sessions, np.int64)
