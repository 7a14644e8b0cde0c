"""A restart is warm: every durable block is found under its own namespace, group, key and page, in
the order in which it was stored (I24; design section 8).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radix.groups import Group
from radix.pool import USED
from tests.crash.diskrig import BLOCK_BYTES, NAMESPACE, DiskRig, records_of

BOTH = pytest.mark.parametrize("payload", ["slab", "lmdb"])


@BOTH
def test_order_is_that_of_storing(tmp_path: Path, payload: str) -> None:
    """LRU order is id order, whatever slots the blocks were given."""
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        for numbers in ([9, 2], [7], [1, 8, 3]):
            rig.store(numbers)
        rig.free([7, 1])
        rig.tier.flush()
        rig.store([30, 20])
    for _ in range(2):
        with DiskRig(tmp_path / "d", payload=payload) as rig:
            assert rig.adopt(range(40)) == [9, 2, 8, 3, 30, 20]
            assert rig.verify(rig.slots) == list(rig.slots)
            slots = np.array(list(rig.slots.values()), np.int32)
            assert all(rig.tier._books.slab.state(0, slot) == USED for slot in slots.tolist())
            assert rig.tier.usage().used_blocks == (6,)


@BOTH
def test_each_field_of_a_record_comes_back(tmp_path: Path, payload: str) -> None:
    groups = (Group.full("kv", BLOCK_BYTES), Group.full("other", 1000))
    long_name = b"tenant" * 200
    with DiskRig(tmp_path / "d", groups=groups, payload=payload) as rig:
        rig.store([1, 2, 3])
        rig.store([4, 5], group=1)
        rig.store([6, 7], namespace=long_name)
        rig.store([8], namespace=b"flat", width=32, pages=False)
        rig.store([9], namespace=b"")
    with DiskRig(tmp_path / "d", groups=groups, payload=payload) as rig:
        assert rig.tier.restore() == (), "once"
        found = {(part.records.namespace, part.group): part for part in rig.restored}
        assert len(found) == len(rig.restored) == 5
        for namespace, group, numbers, width, pages in (
            (NAMESPACE, 0, [1, 2, 3], 16, True),
            (NAMESPACE, 1, [4, 5], 16, True),
            (long_name, 0, [6, 7], 16, True),
            (b"flat", 0, [8], 32, False),
            (b"", 0, [9], 16, True),
        ):
            records = found[namespace, group].records
            expected = records_of(numbers, namespace, width, pages)
            assert np.array_equal(records.keys, expected.keys)
            assert np.array_equal(records.parents, expected.parents)
            assert np.array_equal(records.positions, expected.positions)
            if pages:
                assert np.array_equal(records.pages, expected.pages)
            else:
                assert records.pages is None


def test_numbers_of_namespaces_are_not_mixed_up_over_restarts(tmp_path: Path) -> None:
    """A namespace whose last block went loses its number; the number then names another one."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store([1], namespace=b"a")
        rig.store([2], namespace=b"b")
        rig.free([1])
    with DiskRig(tmp_path / "d") as rig:
        rig.adopt([2])
        rig.store([3], namespace=b"c")
        rig.store([4], namespace=b"a")
    with DiskRig(tmp_path / "d") as rig:
        found = {part.records.namespace: part.records.positions.tolist() for part in rig.restored}
        assert found == {b"b": [2], b"c": [3], b"a": [4]}


def test_a_key_that_was_stored_again_is_found_once(tmp_path: Path) -> None:
    """Removed and stored again before a crash kept the removal from being durable."""
    with DiskRig(tmp_path / "d") as rig:
        rig.store([1, 2])
        first = rig.slots[1]
        rig.store([1])
        assert rig.slots[1] != first
    with DiskRig(tmp_path / "d") as rig:
        assert rig.adopt([1, 2]) == [2, 1], "the newer one holds"
        assert rig.tier.counts.dropped == 1
        assert rig.verify([1, 2]) == [1, 2]
        rig.tier.check()


def test_groups_share_the_segments_as_they_need_them(tmp_path: Path) -> None:
    groups = (Group.full("small", 4096), Group.full("large", 20000))
    with DiskRig(tmp_path / "d", groups=groups, limit_bytes=2 << 20) as rig:
        most = rig.tier.capacity_blocks(0)
        small: list[int] = []
        for first in range(0, most - 40, 32):
            assert rig.store(range(first, first + 32), 0).good.all()
            small += range(first, first + 32)
        rig.free(small[40:], 0)
        rig.tier.flush()
        large = range(1000, 1000 + rig.tier.free_blocks(1))
        assert len(large) > 30
        for first in large[::10]:
            numbers = [n for n in range(first, first + 10) if n in large]
            assert rig.store(numbers, 1).good.all()
        rig.tier.check()
        slots = dict(rig.slots)
    with DiskRig(tmp_path / "d", groups=groups, limit_bytes=2 << 20) as rig:
        found = set(rig.adopt(range(2000)))
        assert rig.slots == slots and found == set(slots)
        done = rig.load([slots[n] for n in large[:30]], 1)
        assert done.good.all() and rig.right(large[:30], 1).all()
        done = rig.load([slots[n] for n in small[:30]], 0)
        assert done.good.all() and rig.right(small[:30], 0).all()
        rig.tier.check()


def test_flush_makes_what_was_started_durable(tmp_path: Path) -> None:
    rig = DiskRig(tmp_path / "d")
    slots = rig.tier.reserve(0, 6)
    for i in range(6):
        rig.start_store([50 + i], slots[i : i + 1])
    rig.tier.flush()
    assert rig.tier._disk.index.entries() == 6
    assert sum(done.good.sum() for done in rig.tier.poll()) == 6
    rig.close()
    with DiskRig(tmp_path / "d") as rig:
        assert sorted(rig.adopt(range(60))) == list(range(50, 56))


@BOTH
def test_close_finishes_what_was_started(tmp_path: Path, payload: str) -> None:
    rig = DiskRig(tmp_path / "d", payload=payload)
    slots = rig.tier.reserve(0, 4)
    rig.start_store([1, 2, 3, 4], slots)
    rig.close()
    rig.close()
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert rig.adopt(range(5)) == [1, 2, 3, 4]
        assert rig.verify(rig.slots) == [1, 2, 3, 4]


def test_stores_that_wait_share_a_transaction(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        slots = rig.tier.reserve(0, 40)
        for i in range(40):
            rig.rows[0][i] = 1
            rig.start_store_of(records_of([i]), slots[i : i + 1])
        assert all(done.good.all() for done in rig.settle())
        assert rig.tier._transfers.committer.commits < 40
