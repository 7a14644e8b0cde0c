"""NVIDIA Dynamo's own index of what workers hold (Rust), fed with our messages, finds of every
prompt exactly what we hold of it: on the device, on the host, after evictions, and after a reset.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from dynamo._core import RadixTree, compute_block_hash_for_seq

from radix.cache import PrefixCache
from radix.events import Event
from radix.plan import Cursor
from radix.service.kv_events import KvPublisher
from tests.cacherig import build
from tests.mixes import full
from tests.routers import Router

PAGE = 4
WORKERS = {"GPU": 0, "CPU": 1}


class Index:
    """Dynamo's tree behind a subscriber, a worker for each medium."""

    def __init__(self) -> None:
        self.tree = RadixTree()
        self._events = 0

    def apply(self, event: Any) -> None:
        """One of our messages as Dynamo's listener would put it."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            for worker in WORKERS.values():
                self._tell(worker, "cleared")
        elif kind == "BlockRemoved":
            removed = {"block_hashes": list(event.block_hashes)}
            self._tell(WORKERS[event.medium], {"removed": removed})
        else:
            size = event.block_size
            hashes = compute_block_hash_for_seq(list(event.token_ids), size)
            names = zip(event.block_hashes, hashes, strict=True)
            blocks = [{"block_hash": a, "tokens_hash": b, "mm_extra_info": None} for a, b in names]
            stored = {"parent_hash": event.parent_block_hash, "blocks": blocks}
            self._tell(WORKERS[event.medium], {"stored": stored})

    def _tell(self, worker: int, data: Any) -> None:
        event = {"event_id": self._events, "data": data, "dp_rank": 0}
        self._events += 1
        self.tree.apply_event(worker, json.dumps(event).encode())

    def found(self, prompt: Sequence[int]) -> dict[int, int]:
        """By worker how many leading blocks it is said to hold."""
        hashes = compute_block_hash_for_seq(list(prompt), PAGE)
        scores = self.tree.find_matches(hashes).scores
        return {(who[0] if isinstance(who, tuple) else who): n for who, n in scores.items()}


def holds(cache: PrefixCache, prompt: Sequence[int]) -> dict[int, int]:
    """By tier how many leading pages of a prompt are there, by the tree's own columns."""
    asked = cache._prompts.of(np.array([*prompt, 0], np.int32), None, None)
    walked = cache._prompts.match(asked, 1)
    at = Cursor(asked.root, walked.node, walked.structural_pages)
    found = {}
    for tier in range(2):
        there = cache.residency.slots(at, 0, tier, 0, at.pages) >= 0
        leading = len(there) if there.all() else int(np.argmin(there))
        if leading:
            found[tier] = leading
    return found


def test_dynamo_finds_exactly_what_is_held() -> None:
    rng = random.Random(7)
    rig = build(groups=(full(),), device=12, below=(24,))
    publisher = KvPublisher(rig.cache, replay_endpoint="tcp://127.0.0.1:*")
    poll = rig.poll

    def published() -> list[Event]:
        events = poll()
        publisher.publish(events)
        return events

    rig.poll = published  # type: ignore[method-assign]  # every poll is published
    router, index = Router(publisher), Index()
    router.apply = index.apply  # type: ignore[method-assign]  # every poll is published
    prompts: list[list[int]] = []
    partly = 0
    for step in range(60):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 7) * PAGE)]
        prompts.append(prompt)
        rig.serve(prompt)
        if step == 40:
            rig.cache.reset()
        rig.poll()
        router.hear(publisher.batches)
        for known in prompts[-20:]:
            wanted = holds(rig.cache, known)
            assert index.found(known) == wanted
            partly += 0 < wanted.get(0, 0) < len(known) // PAGE
    assert partly, "nothing was evicted: it could not be seen whether a removal is told"
    router.close()
    rig.finish_all()
    publisher.close()
