"""Whole requests, one after the other: what a scheduler asks of its block pool for each of them.

An adapter says how one program does it, in stages; which prompts come in which order and how much
room there is stands here once. Kept here: every round begins with an empty pool; a prompt is in the
form that its program takes before anything is timed; hits are counted as the program answered them.

    shared   prompts in groups that share their first tokens, in random order
    turns    sessions that go on by some tokens, turn after turn
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.peers.child import Found, Sizes
from bench.peers.treework import clock_us
from bench.workloads import Prompts, fresh_prompts, shared_prompts, shuffled

Spans = tuple[float, ...]
LEAST_US = 0.001


class Blocks(Protocol):
    """How one program serves a request. ``stages``: the names of what ``serve`` times."""

    stages: Sequence[str]

    def versions(self) -> Mapping[str, str]:
        """Name and version of each package that takes part."""
        ...

    def open(self, page_tokens: int, blocks: int) -> None:
        """An empty pool of so many blocks; one that was open is closed."""
        ...

    def prompt(self, tokens: Prompts) -> Any:
        """The tokens (int32) as the program wants them."""
        ...

    def serve(self, prompt: Any) -> tuple[Spans, int]:
        """One request: us of each stage, and tokens that hit."""
        ...


class RequestWork:
    """A block pool at work, as the protocol of children asks for it.

    Sizes: ``page_tokens``; ``percent`` of the room that all distinct blocks would take; and of
    "shared" ``prompts``, ``tokens``, ``group``, ``shared_tokens``, of "turns" ``sessions``,
    ``turns``, ``turn_tokens``.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._pool = blocks
        self._page = self._room = 0
        self._prompts: list[Any] = []

    def versions(self) -> Mapping[str, str]:
        """Those of the program's packages."""
        return self._pool.versions()

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        """Makes the prompts, as the program wants them."""
        if workload == "shared":
            prompts, distinct, longest = _shared(sizes, seed)
        elif workload == "turns":
            prompts, distinct, longest = _turns(sizes, seed)
        else:
            raise ValueError(f"workload must be shared or turns, not {workload!r}")
        self._page = sizes["page_tokens"]
        # one prompt more: what is being served has a last block that is not full, and holds others
        self._room = (distinct * sizes["percent"] // 100 + longest) // self._page + 1
        self._prompts = [self._pool.prompt(prompt) for prompt in prompts]

    def round(self) -> Found:
        """Serves every prompt once. What reading the clock takes is no part of any figure."""
        self._pool.open(self._page, self._room)
        spans: list[Spans] = []
        hit = 0
        for prompt in self._prompts:
            stages, tokens = self._pool.serve(prompt)
            spans.append(stages)
            hit += tokens
        clock = clock_us()
        columns = zip(self._pool.stages, zip(*spans, strict=True), strict=True)
        us = {name: max(statistics.median(column) - clock, LEAST_US) for name, column in columns}
        us["total"] = statistics.median(map(sum, spans)) - clock * len(self._pool.stages)
        return us, {"requests": len(self._prompts), "hit_tokens": hit}


def _shared(sizes: Sizes, seed: int) -> tuple[list[Prompts], int, int]:
    """Prompts, how many tokens of them are distinct, and the longest."""
    count, tokens, shared = sizes["prompts"], sizes["tokens"], sizes["shared_tokens"]
    prompts = shared_prompts(count, tokens, sizes["group"], shared, seed)
    order = shuffled(count, np.random.default_rng(seed))
    distinct = count * (tokens - shared) + count // sizes["group"] * shared
    return [prompts[at] for at in order], distinct, tokens


def _turns(sizes: Sizes, seed: int) -> tuple[list[Prompts], int, int]:
    turns, step = sizes["turns"], sizes["turn_tokens"]
    sessions = fresh_prompts(sizes["sessions"], turns * step, seed)
    prompts = [session[: (turn + 1) * step].copy() for turn in range(turns) for session in sessions]
    return prompts, sessions.size, turns * step
