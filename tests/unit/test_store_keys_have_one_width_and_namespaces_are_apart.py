"""Keys have one width, which hashing brings others to; equal keys of two namespaces are two blocks,
and the event stream tells them apart (I5, I32).
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash

from radix.events import BlocksRemoved, BlocksStored
from radix.keys import Namespace, root_key
from radix.store import hash_keys
from tests.unit.storerig import StoreRig, keys
from tiers.index import IndexTier

VARYING = [b"", b"a", b"a\0", bytes(range(200)), b"\xff" * 36]


def test_hashed_keys_equal_the_public_hashes() -> None:
    sha = hash_keys(VARYING, "sha256")
    assert [row.tobytes() for row in sha] == [hashlib.sha256(key).digest() for key in VARYING]
    fast = hash_keys(VARYING, "xxh3")
    assert [row[:16].tobytes() for row in fast] == [xxhash.xxh3_128_digest(key) for key in VARYING]
    assert not fast[:, 16:].any()
    assert hash_keys([], "xxh3").shape == (0, 32)


def test_unknown_hash_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="how is 'md5', expected one of sha256, xxh3"):
        hash_keys([b"a"], "md5")


def test_equal_keys_of_two_namespaces_are_two_blocks() -> None:
    rig = StoreRig(8, IndexTier(16, "below"), events=True)
    spaces = [None, Namespace(salt=b"x"), Namespace(model="x")]
    for space in spaces:
        rig.store.commit(rig.store.reserve(keys(1, 2), namespace=space))
    slots = [rig.store.slots(keys(1, 2), namespace=space).tolist() for space in spaces]
    assert len({slot for pair in slots for slot in pair}) == 6
    stored = [event for event in rig.store.flush() if isinstance(event, BlocksStored)]
    names = {bytes(row[:16]) for event in stored for row in event.keys}
    canonical = [rig.store._spaces.canonical(space) for space in spaces]
    assert names == {root_key(name) for name in canonical}
    assert all(event.parent == bytes(event.keys[0][:16]) for event in stored)
    rig.store.abort(rig.store.reserve(keys(*range(20, 25))))
    removed = [event for event in rig.store.poll() if isinstance(event, BlocksRemoved)]
    gone = [bytes(row) for event in removed for row in event.keys]
    assert gone == [root_key(canonical[0]) + keys(n).tobytes() for n in (2, 1)] + [
        root_key(canonical[1]) + keys(2).tobytes()
    ]
    rig.store.check()


def test_events_name_positions_where_they_are_known() -> None:
    rig = StoreRig(8, events=True)
    rig.bring(1, 2, 3, 4, 5, positions=[7, 5, 6, -1, 9])
    runs = [
        (event.first, [int(row[-1]) for row in event.keys])
        for event in rig.store.poll()
        if isinstance(event, BlocksStored)
    ]
    assert sorted(runs) == [(-1, [4]), (5, [2, 3, 1]), (9, [5])]


def test_misses_are_counted_by_their_reason() -> None:
    rig = StoreRig(8)
    rig.bring(*range(8))
    rig.store.abort(rig.store.reserve(keys(50, 51)))
    rig.store.has(keys(7, 6, 5, 60, 61))
    counters = rig.store.counters()
    assert counters["has.blocks"] == 5
    assert counters["has.hit.rows"] == 1
    assert counters["has.miss.evicted from rows"] == 2
    assert counters["has.miss.cold"] == 2
    rig.store.has(keys(7, 6), namespace=Namespace(salt=b"x"))
    assert rig.store.counters()["has.miss.cold"] == 4, "another namespace never had them"


def test_two_groups_of_a_key_are_apart_but_as_old_as_their_key() -> None:
    rig = StoreRig(8, groups=2)
    rig.bring(1, 2)
    rig.bring(2, 3, group=1)
    assert rig.store.has(keys(1, 2, 3)).tolist() == [0, 0, -1]
    assert rig.store.has(keys(1, 2, 3), 1).tolist() == [-1, 0, 0]
    rig.bring(4, 5, 6, 7, 8, 9)
    rig.store.touch(keys(1))
    rig.store.abort(rig.store.reserve(keys(10)))
    assert rig.where(1, 2) == [0, -1]
    assert rig.store.slots(keys(2), 1).tolist() != [-1]
    rig.store.check()


def test_narrow_and_wide_keys_work() -> None:
    for width in (1, 3, 32, 33, 100):
        from radix.groups import Group
        from radix.store import FlatStore

        store = FlatStore([Group.full("g", 16)], [IndexTier(8)], key_bytes=width, events=True)
        wide = np.zeros((8, width), np.uint8)
        wide[:, -1] = range(8)
        store.commit(store.reserve(wide))
        assert store.has(wide).tolist() == [0] * 8
        store.commit(store.reserve(wide[:1] + 100))
        assert store.has(wide[7:]).tolist() == [-1]
        store.check()
        store.close()
