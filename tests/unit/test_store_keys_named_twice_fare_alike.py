"""A flat store that borrows its rows is offered one key twice in one call. Fault: of a key that
stood in a call twice only one place was told, the other answered "not kept", though the key was
there. Mechanism: repeats were taken out before the copy and never put back into the answer.
Source: random batches compared with an engine's own storage.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix.events import KeysDone
from radix.groups import Group
from radix.ownership import Ownership
from radix.store import FlatStore, hash_keys
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

ROW_BYTES = 4096


def open_store(rows: np.ndarray, folder: Path, limit_bytes: int) -> FlatStore:
    tiers = [AdoptedTier([[rows]], "rows"), DiskTier(folder, limit_bytes=limit_bytes)]
    return FlatStore([Group.full("g", ROW_BYTES)], tiers, ownership=Ownership.BORROWED)


def test_a_key_is_told_alike_at_each_of_its_places(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (8, ROW_BYTES), np.uint8)
    keys = hash_keys([b"a", b"b", b"a", b"c", b"b", b"a"], "sha256")
    with open_store(rows, tmp_path, 8 << 20) as store:
        for _ in range(2):  # new, then there already
            number = store.store(keys, [0, 1, 0, 2, 1, 0])
            (done,) = [event for event in store.flush() if isinstance(event, KeysDone)]
            assert (done.number, done.good.tolist()) == (number, [True] * 6)
        assert store.counters()["store.blocks.disk.g"] == 3, "each key is copied once"
        store.check()


def test_repeats_of_what_finds_no_room_are_not_told_as_kept(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).integers(0, 256, (8, ROW_BYTES), np.uint8)
    with open_store(rows, tmp_path, 8 << 20) as store:
        room = store.opened[1].capacity_blocks(0)
        names = [f"{number}".encode() for number in range(room + 40)] * 2
        number = store.store(hash_keys(names, "sha256"), np.zeros(len(names), np.int32))
        (done,) = [event for event in store.flush() if isinstance(event, KeysDone)]
        assert done.number == number
        firsts, repeats = np.split(done.good, 2)
        assert (firsts == repeats).all()
        assert 0 < firsts.sum() <= room
        store.check()
