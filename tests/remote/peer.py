"""A process beside the test: caches of the ranks of one run at some tensor parallel degree, over
one backend. Each rank has a cache, a device with its shards and the remote tier, as engines have
that run a scheduler a rank. Orders come as lines of JSON and are answered so.

    python -m tests.remote.peer    [url, "write" or "read", degree, seed, pages]  -->  {...}
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.cache import PrefixCache
from radix.groups import Group
from radix.layout import Layout, Part
from radix.policy.limits import Breaker, Limits, Patience
from radix.tier import View
from tests.oracle import expand
from tiers.host import AdoptedTier
from tiers.remote import Backend, RemoteTier, backend_of
from tiers.rig import bytes_of

PAGE = 16
LIMIT_S = 30.0
_HEADS = (("layer", 3), ("head", 4), ("row", 6))
LAYOUT = Layout(
    (
        Part("keys", "bfloat16", _HEADS, "head", 4),
        Part("latent", "uint8", (("layer", 3), ("row", 11))),
    ),
    4,
)
KV = Group("kv", LAYOUT)
ALL = View((0, LAYOUT.layers), (0, LAYOUT.store_shards))


def prompt_of(seed: int, pages: int) -> npt.NDArray[np.int32]:
    """A prompt of so many full pages and one token."""
    return np.random.default_rng(seed).integers(0, 50000, pages * PAGE + 1, dtype=np.int32)


def blocks_of(seed: int, pages: int) -> npt.NDArray[np.uint8]:
    """What the unsharded blocks of that prompt hold."""
    return expand(np.arange(pages, dtype=np.uint64) + (seed << 20), LAYOUT.block_bytes)


def view_of(degree: int, rank: int) -> View:
    """What a rank holds."""
    width = LAYOUT.store_shards // degree
    return View((0, LAYOUT.layers), (rank * width, (rank + 1) * width))


_clients: dict[str, Backend] = {}


def client_of(url: str) -> Backend:
    """A backend; of Mooncake one client for all tiers of a process, for to join takes seconds."""
    if not url.startswith("mooncake"):
        return backend_of(url)
    from tiers.remote_mooncake import MooncakeBackend

    class Kept(MooncakeBackend):
        def close(self) -> None:
            """A tier has done with it."""

    if url not in _clients:
        _clients[url] = Kept.of(url)
    return _clients[url]


class RankCache(PrefixCache):
    """The cache of one rank, over rows that stand for its device."""

    def __init__(self, where: str | Backend, view: View = ALL, **options: Any) -> None:
        """``where``: an URL or a backend; ``options``: of the remote tier."""
        backend = client_of(where) if isinstance(where, str) else where
        settings = {"blocks": 256, "staging_bytes": 1 << 20, "views": view} | options
        self.rows = np.zeros((32, len(bytes_of(LAYOUT, view))), np.uint8)
        self.remote = RemoteTier(backend, **settings)
        device = AdoptedTier([[self.rows]], "device", views=[view])
        soon = Limits(breaker=Breaker(retry=Patience(ns=50_000_000)))
        tiers, clock = [device, self.remote], time.monotonic_ns
        super().__init__([KV], tiers, page_tokens=PAGE, clock=clock, limits=soon)
        self.part = bytes_of(LAYOUT, view)

    def compute(self, seed: int, pages: int) -> int:
        """Serves a prompt: what is not there is computed, and stored as far as this rank holds it.
        The hit, in tokens.
        """
        request = self.admit(prompt_of(seed, pages))
        request.wait()
        slots = request.slots()[:pages]
        hit, blocks = request.hit_tokens // PAGE, blocks_of(seed, pages)[:, self.part]
        assert np.array_equal(self.rows[slots[:hit]], blocks[:hit]), "wrong bytes were a hit"
        self.rows[slots[hit:]] = blocks[hit:]
        request.computed(pages * PAGE + 1)
        request.finish()
        self.flush()
        self.check()
        return hit * PAGE

    def found(self, seed: int, pages: int) -> tuple[int, bool]:
        """The hit of a prompt after a prefetch, in tokens, and whether its bytes are right."""
        prompt, end = prompt_of(seed, pages), time.monotonic() + LIMIT_S
        with self.prefetch(prompt) as ahead:
            while not ahead.settled and time.monotonic() < end:
                self.poll()
                self.wait(0.05)
            request = self.admit(prompt)
            request.wait()
            hit = request.hit_tokens
            rows = self.rows[request.slots()[: hit // PAGE]]
            wanted = blocks_of(seed, pages)[: hit // PAGE][:, self.part]
            request.abort()
        self.check()
        return hit, bool(np.array_equal(rows, wanted))


def write(url: str, degree: int, seed: int, pages: int) -> dict[str, object]:
    """Computes a prompt on every rank and stores what each holds."""
    stored = 0
    for rank in range(degree):
        with RankCache(url, view_of(degree, rank)) as cache:
            cache.compute(seed, pages)
            stored += cache.remote.counts.stored
    return {"stored": stored}


def read(url: str, degree: int, seed: int, pages: int) -> dict[str, object]:
    """What each rank finds of a prompt, and whether every byte is what it should be."""
    found = []
    for rank in range(degree):
        with RankCache(url, view_of(degree, rank)) as cache:
            found.append(cache.found(seed, pages))
    return {"hits": [hit for hit, _ in found], "right": [right for _, right in found]}


if __name__ == "__main__":
    for line in sys.stdin:
        where, what, many, number, count = json.loads(line)
        act = write if what == "write" else read
        print(json.dumps(act(where, many, number, count)), flush=True)
