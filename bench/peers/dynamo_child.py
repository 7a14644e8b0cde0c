"""NVIDIA Dynamo's RadixTree (Rust) as a child of the protocol:
``python -m bench.peers.dynamo_child``, in its environment.

It is a router's index of what workers hold: an event names the blocks that a worker stored by two
hashes each, and ``find_matches`` counts how many of a prompt's hashes stand in a row. Comparable:
which prompts, of which blocks, asked for in which order. Not: it holds no tokens and compares none,
nor slots, order, pins or eviction; a prompt has to be hashed first (a row of its own); events come
as JSON, as its wire has them, and are taken in by a thread of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from bench.peers.child import Work, serve
from bench.peers.lookupwork import LookupWork
from bench.workloads import Prompts

WORKER = 0
_MASK = (1 << 64) - 1


def _chained(hashes: Sequence[int]) -> list[int]:
    """A number for each block and all before it, as an engine would give."""
    value, found = 0x9E3779B97F4A7C15, []
    for each in hashes:
        value = (value * 6364136223846793005 + each + 1442695040888963407) & _MASK
        found.append(value)
    return found


class DynamoIndex:
    """Its tree, with one worker that holds everything."""

    def __init__(self) -> None:
        from dynamo._core import RadixTree, compute_block_hash_for_seq

        self._tree_of, self._hash = RadixTree, compute_block_hash_for_seq
        self._page = self._blocks = 0
        self._tree: Any = None
        self._events: list[bytes] = []
        self._first: list[int] = []

    def versions(self) -> Mapping[str, str]:
        """That of its runtime."""
        return {"ai-dynamo-runtime": version("ai-dynamo-runtime")}

    def prepare(self, page_tokens: int, prompts: Sequence[Prompts]) -> None:
        """One event a prompt, of the blocks that no earlier one brought."""
        self._page, self._blocks, self._events = page_tokens, 0, []
        seen: set[int] = set()
        for prompt in prompts:
            hashes = self._hash(prompt.tolist(), page_tokens)
            chain = _chained(hashes)
            old = 0
            while old < len(chain) and chain[old] in seen:
                old += 1
            seen.update(chain)
            if old < len(chain):
                self._events.append(_event(len(self._events), hashes, chain, old))
                self._blocks += len(chain) - old
            self._first = self._first or hashes[:1]

    def build(self) -> tuple[float, int]:
        """Applies every event; the answer to one question says that all are in."""
        self._tree = None
        self._tree = self._tree_of()
        apply, events = self._tree.apply_event, self._events
        start = time.perf_counter()
        for event in events:
            apply(WORKER, event)
        self._tree.find_matches(self._first)
        return (time.perf_counter() - start) * 1e6, self._blocks

    def key(self, tokens: Prompts) -> tuple[Any, float]:
        """The hashes of its blocks, from a list."""
        row = tokens.tolist()
        start = time.perf_counter()
        hashes = self._hash(row, self._page)
        return hashes, (time.perf_counter() - start) * 1e6

    def find(self, key: Any) -> int:
        """The score of the worker: there is only one."""
        return sum(self._tree.find_matches(key).scores.values())

    def own_bytes(self) -> int:
        """It does not say."""
        return 0


def _event(number: int, hashes: Sequence[int], chain: Sequence[int], first: int) -> bytes:
    blocks = [
        {"block_hash": chain[at], "tokens_hash": hashes[at], "mm_extra_info": None}
        for at in range(first, len(chain))
    ]
    parent = chain[first - 1] if first else None
    stored = {"stored": {"parent_hash": parent, "blocks": blocks}}
    return json.dumps({"event_id": number, "data": stored, "dp_rank": 0}).encode()


def make(arguments: Sequence[str]) -> Work:
    """Its work. It takes no arguments."""
    return LookupWork(DynamoIndex())


if __name__ == "__main__":
    sys.exit(serve(make))
