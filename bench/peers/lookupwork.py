"""An index of blocks that is asked how much of a prompt it has: built once a round, then asked for
every prompt in random order.

An adapter says how one program does it. Kept here: prompts are in the form that the program takes
before anything is timed; what is asked for is equal to what was put in, never the same memory;
memory is what the process takes more after its first build than before it, so that a size needs a
process of its own.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.peers.child import Found, Sizes
from bench.peers.treework import clock_us
from bench.workloads import Prompts, shared_prompts, shuffled

APPLY, MATCH, READ, HASH, BOTH, MEMORY = "apply", "match", "read", "hash", "both", "memory"


class Index(Protocol):
    """How one program keeps and finds blocks."""

    def versions(self) -> Mapping[str, str]:
        """Name and version of each package that takes part."""
        ...

    def prepare(self, page_tokens: int, prompts: Sequence[Prompts]) -> None:
        """What goes in, in the form that the program takes."""
        ...

    def build(self) -> tuple[float, int]:
        """Puts all of it into an empty index, one prompt after the other; us of all of it, and the
        blocks that are there then. The index of before is dropped first, not timed.
        """
        ...

    def key(self, tokens: Prompts) -> tuple[Any, float]:
        """A prompt as ``find`` wants it, and the us that computing it from the tokens took (0 where
        the tokens themselves are asked for).
        """
        ...

    def find(self, key: Any) -> int:
        """Blocks of a prompt that are there."""
        ...

    def own_bytes(self) -> int:
        """What the program says that it takes, 0 where it does not say."""
        ...


class LookupWork:
    """An index at work. Sizes: ``page_tokens``, ``prompts``, ``tokens``, ``group``,
    ``shared_tokens``.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked: list[Prompts] = []
        self._constant: dict[str, float] = {}

    def versions(self) -> Mapping[str, str]:
        """Those of the program's packages."""
        return self._index.versions()

    def prepare(self, workload: str, sizes: Sizes, seed: int) -> None:
        """Makes the prompts, and builds the index once for what it takes."""
        if workload != "lookups":
            raise ValueError(f"workload must be lookups, not {workload!r}")
        count, tokens = sizes["prompts"], sizes["tokens"]
        prompts = shared_prompts(count, tokens, sizes["group"], sizes["shared_tokens"], seed)
        order = shuffled(count, np.random.default_rng(seed))
        self._index.prepare(sizes["page_tokens"], [prompts[at] for at in order])
        asked = shuffled(count, np.random.default_rng(seed + 1))
        self._asked = [prompts[at].copy() for at in asked]
        before = _resident_bytes()
        _, blocks = self._index.build()
        grown = _resident_bytes() - before
        self._constant = {MEMORY: grown / blocks} if grown > 0 else {}
        if own := self._index.own_bytes():
            self._constant[f"{MEMORY}, as counted"] = own / blocks

    def round(self) -> Found:
        """Builds, hashes, asks; then asks for each prompt again right after it was read and hashed.
        ``apply`` is us a block; of memory it gives bytes a block.
        """
        index, clock = self._index, time.perf_counter_ns
        us, blocks = index.build()
        made = [index.key(prompt) for prompt in self._asked]
        spans: list[int] = []
        read: list[int] = []
        hit = 0
        for key, _ in made:
            start = clock()
            found = index.find(key)
            spans.append(clock() - start)
            hit += found
        for prompt in self._asked:
            prompt.max()
            key, _ = index.key(prompt)
            start = clock()
            index.find(key)
            read.append(clock() - start)
        reading = clock_us()
        found_us = {
            MATCH: statistics.median(spans) / 1e3 - reading,
            READ: statistics.median(read) / 1e3 - reading,
            APPLY: us / blocks,
        }
        hashed = [us for _, us in made]
        if any(hashed):
            found_us[HASH] = statistics.median(hashed) - reading
            both = [us + ns / 1e3 for us, ns in zip(hashed, spans, strict=True)]
            found_us[BOTH] = statistics.median(both) - 2 * reading
        return {**found_us, **self._constant}, {"blocks": blocks, "hit_blocks": hit}


def _resident_bytes() -> int:
    """Of this process; what was freed and not given back is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
