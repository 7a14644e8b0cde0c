"""The content oracle through first tier, host and disk, by key: what comes back is what was stored
for that namespace and key, also after a restart with another limit or a damaged disk; and nothing
of a store is ever found by another kind of cache (I24, I25, I20).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.events import KeysDone
from radix.groups import Group
from radix.keys import Namespace
from radix.store import FlatStore
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.host import AdoptedTier, HostTier

BLOCK = 4096 + 512
GROUPS = [Group.full("kv", BLOCK), Group.full("latent", 700)]
ROWS = 8
SPACES = (None, Namespace(salt=b"tenant"))
LIMIT = 8 << 20


def keys(numbers: range | list[int], width: int = 32) -> np.ndarray:
    """Keys that are spread over their whole width."""
    return expand([number + 1 for number in numbers], width).copy()


def content(space: int, group: int, numbers: range | list[int]) -> np.ndarray:
    return expand([space << 40 | group << 32 | n for n in numbers], GROUPS[group].block_bytes)


class Rig:
    """A store whose first tier can be seen, over host and disk."""

    def __init__(self, folder: Path, limit: int, payload: str, width: int) -> None:
        self.rows = [np.zeros((ROWS, group.block_bytes), np.uint8) for group in GROUPS]
        self.disk = DiskTier(folder, limit_bytes=limit, payload=payload, segment_bytes=1 << 18)
        self.store = FlatStore(
            GROUPS,
            [
                AdoptedTier([[rows] for rows in self.rows], "rows"),
                HostTier(2 * 12 * 8192, verify=True),
                self.disk,
            ],
            key_bytes=width,
        )
        self.width = width

    def keys(self, numbers: range | list[int]) -> np.ndarray:
        return keys(numbers, self.width)

    def bring(self, space: int, group: int, numbers: range) -> None:
        got = self.store.reserve(self.keys(numbers), group, namespace=SPACES[space])
        self.rows[group][got.slots] = content(space, group, numbers)[got.granted]
        self.store.commit(got)
        self.end()

    def end(self) -> list[KeysDone]:
        done = [event for event in self.store.flush() if isinstance(event, KeysDone)]
        self.store.check()
        return done

    def fetch_all(self, space: int, group: int, numbers: list[int]) -> list[int]:
        """Fetches keys a few at a time, checks every byte that comes; which came."""
        came: list[int] = []
        for first in range(0, len(numbers), ROWS):
            some = numbers[first : first + ROWS]
            fetch = self.store.fetch(self.keys(some), group, namespace=SPACES[space])
            (done,) = self.end()
            assert done.number == fetch.number
            slots = self.store.slots(self.keys(some), group, namespace=SPACES[space])
            assert ((slots >= 0) == done.good).all()
            here = np.flatnonzero(slots >= 0)
            expected = content(space, group, some)[here]
            assert np.array_equal(self.rows[group][slots[here]], expected)
            came += [some[i] for i in here]
        return came


@contextmanager
def opened(
    folder: Path, limit: int = LIMIT, payload: str = "slab", width: int = 32
) -> Iterator[Rig]:
    rig = Rig(folder, limit, payload, width)
    try:
        yield rig
    finally:
        rig.store.close()


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("width", [32, 7])
def test_every_block_comes_back_after_a_restart(tmp_path: Path, payload: str, width: int) -> None:
    with opened(tmp_path, payload=payload, width=width) as rig:
        for first in range(0, 24, 6):
            for space in range(2):
                for group in range(2):
                    rig.bring(space, group, range(first, first + 6))
        for space in range(2):
            assert rig.fetch_all(space, 0, list(range(24))) == list(range(24))
    with opened(tmp_path, payload=payload, width=width) as rig:
        assert rig.store.counters()["restore.blocks.disk"] == 96
        for space in range(2):
            for group in range(2):
                assert rig.fetch_all(space, group, list(range(24))) == list(range(24))
        assert rig.store.has(rig.keys([50])).tolist() == [-1]


def test_restart_keeps_the_order_of_use_deepest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        rig.bring(0, 0, range(4))
        rig.bring(0, 0, range(4, 8))
    with opened(tmp_path) as rig:
        core = rig.store.residency.core(rig.store._spaces.root(None))
        nodes = core.find(rig.keys(range(8))).tolist()
        order = [nodes.index(node) for node in rig.store.tree.order(rig.store.tree.column(0, 2))]
        assert order == [3, 2, 1, 0, 7, 6, 5, 4]


def test_smaller_limit_keeps_the_newest_blocks(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        for first in range(0, 96, 8):
            rig.bring(0, 0, range(first, first + 8))
    with opened(tmp_path, limit=1 << 20) as rig:
        found = rig.store.has(rig.keys(range(96)))
        assert 0 < (found >= 0).sum() < 96
        assert (found[-8:] >= 0).all()
        assert rig.store.usage()["disk"].used_bytes <= 1 << 20
        known = np.flatnonzero(found >= 0).tolist()
        assert rig.fetch_all(0, 0, known) == known


def test_damaged_block_is_a_miss_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as rig:
        rig.bring(0, 0, range(8))
    for slab in tmp_path.glob("slab-*"):
        raw = bytearray(slab.read_bytes())
        for offset in range(100, len(raw), 8192):
            raw[offset] ^= 1
            break
        slab.write_bytes(raw)
    with opened(tmp_path) as rig:
        came = rig.fetch_all(0, 0, list(range(8)))
        assert len(came) == 7
        (lost,) = set(range(8)) - set(came)
        assert rig.store.has(rig.keys([lost])).tolist() == [-1]
        assert rig.store.counters()["load.corrupt.disk.kv"] == 1
        rig.bring(0, 0, range(lost, lost + 1))
    with opened(tmp_path) as rig:
        assert rig.fetch_all(0, 0, list(range(8))) == list(range(8))


def test_directories_of_two_kinds_never_mix(tmp_path: Path) -> None:
    groups = [Group.full("kv", 4096)]
    tokens = np.arange(64, dtype=np.int32)

    def cache() -> PrefixCache:
        tiers = [HostTier(16 * 4096), DiskTier(tmp_path, limit_bytes=LIMIT)]
        return PrefixCache(groups, tiers, page_tokens=8)

    def flat() -> FlatStore:
        return FlatStore(groups, [HostTier(16 * 4096), DiskTier(tmp_path, limit_bytes=LIMIT)])

    with cache() as prompts:
        request = prompts.admit(tokens)
        request.computed(len(tokens))
        request.finish()
        prompts.flush()
    as_keys = tokens[: 64 - 64 % 8].view(np.uint8).reshape(-1, 32).copy()
    with flat() as store:
        assert store.has(as_keys).tolist() == [-1] * 8
        store.commit(store.reserve(as_keys))
        store.flush()
    with cache() as prompts:
        assert prompts.match(tokens)[0].hit_pages == 0
        prompts.check()
    with flat() as store:
        assert store.has(as_keys).tolist() == [-1] * 8
        store.check()


def test_other_width_of_keys_finds_nothing_and_reclaims(tmp_path: Path) -> None:
    with opened(tmp_path, width=32) as rig:
        rig.bring(0, 0, range(8))
    with opened(tmp_path, width=31) as rig:
        assert rig.store.has(rig.keys(range(8))).tolist() == [-1] * 8
        assert rig.store.counters()["restore.unlinked.disk"] == 8
        rig.store.check()
