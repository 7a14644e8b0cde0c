"""Below a disk the remote tier goes past it: blocks come from the host and return to it, for a disk
moves its own bytes and nobody else's. What the disk lost, or a machine without it needs, is a hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radix import FlatStore, Group, PrefixCache
from radix.events import KeysDone
from tests.oracle import expand
from tests.remoterig import RedisNodes, redis_nodes, until
from tiers.disk import DiskTier
from tiers.host import AdoptedTier, HostTier
from tiers.remote import RemoteTier

PAGE, PAGES = 8, 12
KV = Group.full("kv", block_bytes=4096)
PROMPT = np.arange(PAGE * PAGES + 1, dtype=np.int32)
BLOCKS = expand(np.arange(PAGES, dtype=np.uint64), KV.block_bytes)
TIERS = ("device", "host", "disk", "remote")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """One cluster for the file."""
    with redis_nodes() as started:
        yield started


class Cache(PrefixCache):
    """Over all four tiers; ``rows`` stand for the device."""

    def __init__(self, nodes: RedisNodes, folder: Path) -> None:
        self.rows = np.zeros((32, KV.block_bytes), np.uint8)
        self.remote = RemoteTier(nodes.url, blocks=64, prefix=folder.parent.name)
        disk = DiskTier(folder, limit_bytes=2 << 20, segment_bytes=65536)
        device = AdoptedTier([[self.rows]], "device")
        super().__init__([KV], [device, HostTier(1 << 20), disk, self.remote], page_tokens=PAGE)

    def serve(self) -> int:
        """Serves the prompt, and looks at the bytes of its hit."""
        request = self.admit(PROMPT)
        request.wait()
        slots, hit = request.slots()[:PAGES], request.hit_tokens // PAGE
        assert np.array_equal(self.rows[slots[:hit]], BLOCKS[:hit])
        self.rows[slots[hit:]] = BLOCKS[hit:]
        request.computed(len(PROMPT))
        request.finish()
        self.flush()
        self.check()
        return hit


def test_blocks_go_past_the_disk_both_ways(nodes: RedisNodes, tmp_path: Path) -> None:
    with Cache(nodes, tmp_path / "a") as cache:
        assert cache.serve() == 0
        assert {tier.name: tier.usage().used_blocks[0] for tier in cache.tiers} == dict.fromkeys(
            TIERS, PAGES
        )
        for lost in (["device"], ["device", "host"], ["device", "host", "disk"]):
            cache.reset(lost)
            assert cache.serve() == PAGES, f"without {lost}"
        assert cache.remote.counts.loaded == PAGES, "only what no other tier had"


def test_another_machine_has_neither_host_nor_disk_of_the_first(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    with Cache(nodes, tmp_path / "a") as cache:
        cache.serve()
    with Cache(nodes, tmp_path / "b") as other:
        with other.prefetch(PROMPT) as ahead:

            def settled() -> bool:
                other.poll()
                return ahead.settled

            until("the prefetch is settled", settled)
            assert other.serve() == PAGES
        assert other.remote.counts.loaded == PAGES


def test_a_flat_store_does_the_same(nodes: RedisNodes, tmp_path: Path) -> None:
    keys = expand(np.arange(6, dtype=np.uint64), 32)
    disk = DiskTier(tmp_path / "a", limit_bytes=2 << 20, segment_bytes=65536)
    remote = RemoteTier(nodes.url, blocks=64, prefix=tmp_path.name)
    with FlatStore([KV], [HostTier(1 << 20), disk, remote]) as store:
        store.commit(store.reserve(keys))
        store.flush()
        assert remote.counts.stored == 6
        store.reset(["host", "disk"])
        assert store.has(keys).tolist() == [2] * 6
        number = store.fetch(keys).number
        told: list[KeysDone] = []

        def done() -> bool:
            store.wait(0.01)
            told.extend(event for event in store.poll() if isinstance(event, KeysDone))
            return any(event.number == number for event in told)

        until("the keys have come", done)
        assert store.has(keys).tolist() == [0] * 6
        store.check()
