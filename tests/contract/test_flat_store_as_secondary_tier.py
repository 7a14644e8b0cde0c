"""FlatStore as an engine's secondary tier: opaque keys only, rows of one memoryview that the engine
owns as source and destination, over a real disk and across a restart (I24, I25).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from radix.events import KeysDone
from radix.groups import Group
from radix.keysets import FetchState
from radix.ownership import Ownership
from radix.store import FlatStore, hash_keys
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

ROWS, ROW_BYTES = 16, 8192


def engine_key(number: int) -> bytes:
    """A block hash and four bytes of group: 36 bytes."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest() + (0).to_bytes(4, "big")


def row_of(number: int) -> bytes:
    return hashlib.shake_128(engine_key(number)).digest(ROW_BYTES)


def open_store(view: memoryview, folder: Path, payload: str) -> FlatStore:
    rows = np.frombuffer(view, np.uint8).reshape(ROWS, ROW_BYTES)
    return FlatStore(
        [Group.full("chunks", ROW_BYTES)],
        [AdoptedTier([[rows]], "primary"), DiskTier(folder, limit_bytes=16 << 20, payload=payload)],
        ownership=Ownership.BORROWED,
    )


def answers(store: FlatStore) -> dict[int, list[bool]]:
    return {e.number: e.good.tolist() for e in store.flush() if isinstance(e, KeysDone)}


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_rows_are_stored_by_key_and_loaded_after_a_restart(tmp_path: Path, payload: str) -> None:
    view = memoryview(bytearray(ROWS * ROW_BYTES))
    keys = hash_keys([engine_key(n) for n in range(8)], "sha256")
    with open_store(view, tmp_path / "disk", payload) as store:
        for row, number in enumerate(range(8)):
            view[row * ROW_BYTES : (row + 1) * ROW_BYTES] = row_of(number)
        job = store.store(keys, np.arange(8, dtype=np.int32))
        assert answers(store) == {job: [True] * 8}
        again = store.store(keys[:3], np.arange(3, dtype=np.int32))
        assert answers(store) == {again: [True] * 3}
        assert store.counters()["store.blocks.disk.chunks"] == 8, "what it has is not written again"
        store.check()
    view[:] = bytes(len(view))
    with open_store(view, tmp_path / "disk", payload) as store:
        unknown = hash_keys([engine_key(99)], "sha256")
        assert store.has(np.concatenate((keys, unknown))).tolist() == [0] * 8 + [-1]
        load = store.load(np.concatenate((keys[::-1], unknown)), np.arange(4, 13, dtype=np.int32))
        assert load.states.tolist() == [FetchState.COMING] * 8 + [FetchState.ABSENT]
        assert answers(store) == {load.number: [True] * 8 + [False]}
        for row, number in enumerate(range(7, -1, -1), start=4):
            assert bytes(view[row * ROW_BYTES : (row + 1) * ROW_BYTES]) == row_of(number)
        assert store.counters()["load.verified.disk.chunks"] == 8
        store.check()
