"""A reservation gets every slot that it asked for or changes nothing, protects what it names, and
ends once: committed, aborted or dropped (I8, I11, I14).
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from radix.errors import CapacityError, LeaseError, NeverFitsError
from radix.keys import Namespace
from tests.unit.storerig import StoreRig, keys


def test_key_is_there_only_once_it_was_committed() -> None:
    rig = StoreRig(8)
    got = rig.store.reserve(keys(1, 2))
    assert rig.where(1, 2) == [-1, -1]
    assert rig.store.coming(keys(1, 2, 3)).tolist() == [True, True, False]
    rig.store.commit(got)
    assert rig.where(1, 2) == [0, 0]
    assert rig.store.slots(keys(1, 2)).tolist() == got.slots.tolist()
    rig.store.check()


def test_keys_there_or_in_flight_are_reported_and_get_no_slot() -> None:
    rig = StoreRig(8)
    rig.bring(1)
    first = rig.store.reserve(keys(2))
    got = rig.store.reserve(keys(1, 2, 3, 3))
    assert got.there.tolist() == [True, False, False, False]
    assert got.coming.tolist() == [False, True, False, True]
    assert got.granted.tolist() == [False, False, True, False]
    assert np.array_equal(got.keys, keys(3)) and len(got) == 1
    rig.store.abort(got)
    rig.store.abort(first)
    rig.store.check()


def test_reservation_that_finds_no_room_changes_nothing() -> None:
    rig = StoreRig(8, events=True)
    rig.bring(1, 2, 3, 4, 5, 6)
    rig.store.poll()
    before = (rig.store.counters(), rig.store.tree.order(0), rig.store.usage())
    with rig.store.lease(keys(1, 2, 3, 4)):
        pinned = rig.store.tree.order(0)
        with pytest.raises(CapacityError) as caught:
            rig.store.reserve(keys(7, 8, 9, 10, 11))
        assert (caught.value.needed, caught.value.free, caught.value.evictable) == (5, 2, 2)
        assert rig.store.tree.order(0) == pinned
        assert rig.store.coming(keys(7, 8, 9, 10, 11)).any() == np.False_
    assert (rig.store.counters(), rig.store.usage()) == (before[0], before[2])
    assert rig.store.poll() == []
    with pytest.raises(NeverFitsError, match="needs 9 blocks, the pool holds 8"):
        rig.store.reserve(keys(*range(20, 29)))
    rig.store.check()


def test_victims_are_neither_among_the_keys_nor_among_those_to_keep() -> None:
    rig = StoreRig(8)
    rig.bring(*range(8))
    got = rig.store.reserve(keys(7, 6, 100, 101), keep=keys(5, 4, 999))
    assert rig.where(7, 6, 5, 4) == [0, 0, 0, 0]
    assert sorted(rig.where(0, 1, 2, 3)) == [-1, -1, 0, 0]
    rig.store.abort(got)
    with pytest.raises(CapacityError):
        rig.store.reserve(keys(*range(200, 206)), keep=keys(*range(8)))
    rig.store.check()


def test_blocks_that_are_not_good_are_given_back() -> None:
    rig = StoreRig(8)
    got = rig.store.reserve(keys(1, 2, 3))
    rig.store.commit(got, np.array([True, False, True]))
    assert rig.where(1, 2, 3) == [0, -1, 0]
    assert rig.store.usage()["rows"].used_blocks == (2,)
    assert not rig.store.coming(keys(2)).any()
    rig.store.check()


def test_abort_leaves_no_trace() -> None:
    rig = StoreRig(8, events=True)
    before = rig.store.usage()
    got = rig.store.reserve(keys(1, 2))
    rig.store.abort(got)
    assert rig.where(1, 2) == [-1, -1]
    assert rig.store.usage() == before and rig.store.poll() == []
    assert rig.store.tree.stats().leases == 0
    rig.store.check()


def test_reservation_ends_once() -> None:
    rig, other = StoreRig(8), StoreRig(8)
    got = rig.store.reserve(keys(1))
    with pytest.raises(LeaseError, match="another store"):
        other.store.commit(got)
    with pytest.raises(ValueError, match="good must be 1 booleans"):
        rig.store.commit(got, np.array([True, False]))
    rig.store.commit(got)
    for end in (rig.store.commit, rig.store.abort):
        with pytest.raises(LeaseError, match="committed or aborted already"):
            end(got)
    assert rig.where(1) == [0]
    rig.store.check()


def test_dropped_reservation_is_aborted_and_counted() -> None:
    rig = StoreRig(8)
    rig.store.reserve(keys(1, 2))
    gc.collect()
    assert not rig.store.coming(keys(1, 2)).any()
    assert rig.store.usage()["rows"].used_blocks == (0,)
    assert rig.store.counters()["reserve.dropped"] == 1
    rig.store.check()


def test_namespace_stays_while_a_reservation_is_open() -> None:
    rig = StoreRig(8)
    space = Namespace(salt=b"quiet")
    got = rig.store.reserve(keys(1), namespace=space)
    for number in range(300):  # empty namespaces go when many have come
        rig.store.has(keys(1), namespace=Namespace(salt=number.to_bytes(2, "big")))
    rig.store.commit(got)
    assert rig.store.slots(keys(1), namespace=space).tolist() == got.slots.tolist()
    rig.store.check()


def test_commit_without_memory_leaves_the_reservation_open() -> None:
    from radix._native import lib

    rig = StoreRig(8)
    for nth in range(1, 50):
        got = rig.store.reserve(keys(nth, 1000 + nth))
        lib.rdx_alloc_fail_at(nth)
        try:
            rig.store.commit(got)
        except MemoryError:
            lib.rdx_alloc_fail_at(0)
            assert rig.where(nth, 1000 + nth) == [-1, -1] and got.open
            rig.store.check()
            rig.store.commit(got)
        else:
            assert lib.rdx_alloc_fail_at(0) >= 0
            if nth > 10:
                break
        assert rig.where(nth, 1000 + nth) == [0, 0]
    rig.store.check()
