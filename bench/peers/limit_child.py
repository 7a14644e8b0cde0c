"""What the machine asks of any tree that verifies tokens, as a child of the protocol:
``python -m bench.peers.limit_child``.

There is no tree. Of a match it is ``memcmp`` of the prompt with the same bytes as they lie after an
insert, what prompts share once; of an insert ``memcmp`` of what is there, and a copy of the tokens
behind it and of their slots; of an eviction a copy of the slots; of all else nothing. Each goes
through calls of Python's own that do just that (``bytes.startswith``, ``bytes.endswith``, giving a
``memoryview`` its bytes), so that a call of nothing is the least of each. Where everything lies is
known from before. A tree that compares in several streams, or asks for what comes next, may take
less than ``memcmp``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.peers.child import Found, Sizes, Work, serve
from bench.peers.treework import Timed, TreeWork, timed
from bench.workloads import Prompts

SEEN = 64  # bytes by which one prompt is told from another before the clock runs
ALL = slice(None)


class LimitTree:
    """No tree: the bytes that one would hold, and what is done with them."""

    def __init__(self) -> None:
        self._heads: dict[bytes, bytes] = {}  # what prompts share, by how it begins
        self._tails: dict[bytes, bytes] = {}
        self._turns: list[bytes] = []
        self._names: dict[int, tuple[bytes, bytes]] = {}  # of prompts, which stay as they are
        self._room = memoryview(b"")

    def versions(self) -> Mapping[str, str]:
        """None but ours, which is told elsewhere."""
        return {}

    def key(self, tokens: Prompts) -> bytes:
        """A prompt's bytes."""
        return tokens.tobytes()

    def conversions(self) -> Mapping[str, Callable[[Any], Any]]:
        """Nothing takes part."""
        return {}

    def open(self, sizes: Sizes, capacity_tokens: int) -> None:
        """What was inserted is forgotten; memory that is written to was touched before."""
        self._page = 4 * sizes["page_tokens"]
        self._shared = 4 * sizes.get("shared_tokens", 0)
        self._sessions = sizes.get("sessions", 0)
        self._heads.clear()
        self._tails.clear()
        self._turns.clear()
        if self._room.nbytes < 4 * capacity_tokens:
            self._room = np.zeros(4 * capacity_tokens, np.uint8).data
        self._used = 0

    def _take(self, size: int) -> memoryview:
        """Memory for so many bytes, in which nothing was written for long."""
        first, self._used = self._used, self._used + size
        return self._room[first : first + size]

    def _filled(self, keys: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """What each insert compares and copies."""
        plans = []
        for key in keys:
            begin = key[:SEEN]
            known = self._heads.get(begin, b"")
            self._heads.setdefault(begin, key[: self._shared])
            tail = key[self._shared :]
            self._tails[tail[:SEEN]] = tail
            new = memoryview(key)[len(known) :]
            slots = memoryview(bytes(len(new) // self._page * 4))
            plans.append((key, known, new, self._take(len(new)), slots, self._take(len(slots))))
        return plans

    def insert(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """Compares what is there, copies the rest and its slots."""
        clock = time.perf_counter_ns
        spans: list[float] = []
        for key, known, new, tokens, slots, places in self._filled(keys):
            start = clock()
            same = key.startswith(known)
            tokens[ALL] = new
            places[ALL] = slots
            spans.append((clock() - start) / 1e3)
            _expect(same)
        return spans, 0

    def insert_behind(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """Copies what a match, which is not timed, did not find."""
        clock = time.perf_counter_ns
        spans: list[float] = []
        for key, known, new, tokens, slots, places in self._filled(keys):
            _expect(key.startswith(known))
            start = clock()
            tokens[ALL] = new
            places[ALL] = slots
            spans.append((clock() - start) / 1e3)
        return spans, 0

    def match(self, keys: Sequence[Any]) -> tuple[list[float], int, list[Any]]:
        """``memcmp`` of what is there."""
        clock = time.perf_counter_ns
        spans: list[float] = []
        for key in keys:
            if id(key) not in self._names:
                ends = key[:SEEN], key[self._shared : self._shared + SEEN]
                self._names[id(key)] = ends
            begin, behind = self._names[id(key)]
            head, tail = self._heads.get(begin, b""), self._tails.get(behind, b"")
            start = clock()
            same = key.startswith(head) and key.endswith(tail)
            spans.append((clock() - start) / 1e3)
            _expect(same)
        return spans, 0, list(keys)

    def lease(self, ends: Sequence[Any]) -> Timed:
        """A call of nothing."""
        return timed(b"".startswith, [(b"",) for _ in ends])

    def release(self, leases: Sequence[Any]) -> list[float]:
        """A call of nothing."""
        return timed(b"".startswith, [(b"",) for _ in leases])[0]

    def evict(self, tokens: int, times: int) -> tuple[list[float], int]:
        """Copies the slots of a leaf out; between two of them lies the leaf itself."""
        clock, size = time.perf_counter_ns, tokens * 4 // self._page * 4
        step = size + 4 * tokens
        out = np.zeros(size, np.uint8).data
        spans: list[float] = []
        for first in range(0, min(times * step, self._room.nbytes - step + 1), step):
            slots = self._room[first : first + size]
            start = clock()
            out[ALL] = slots
            spans.append((clock() - start) / 1e3)
        return spans, 0

    def turn(self, key: Any) -> tuple[tuple[float, float, float, float], int]:
        """What is there lies as the turn before gave it."""
        clock = time.perf_counter_ns
        at = len(self._turns) - self._sessions
        known = self._turns[at] if at >= 0 else b""
        self._turns.append(key)
        new = memoryview(key)[len(known) :]
        slots = memoryview(bytes(len(new) // self._page * 4))
        tokens, places = self._take(len(new)), self._take(len(slots))
        nothing = b"".startswith
        t0 = clock()
        same = key.startswith(known)
        t1 = clock()
        nothing(b"")
        t2 = clock()
        tokens[ALL] = new
        places[ALL] = slots
        t3 = clock()
        nothing(b"")
        t4 = clock()
        _expect(same)
        return ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t3 - t2) / 1e3, (t4 - t3) / 1e3), 0


def _expect(same: bool) -> None:
    if not same:
        raise AssertionError("what was compared differs")


class LimitWork(TreeWork):
    """The workloads of a tree, of which nothing is counted: what is compared has to be alike."""

    def round(self) -> Found:
        """The times alone."""
        return super().round()[0], {}


def make(arguments: Sequence[str]) -> Work:
    """The work. ``ValueError`` for any argument."""
    if arguments:
        raise ValueError(f"give nothing, not {list(arguments)}")
    return LimitWork(LimitTree())


if __name__ == "__main__":
    sys.exit(serve(make))
