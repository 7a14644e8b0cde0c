"""The flat store: opaque keys under one root, in sets. A call does all of it or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from radix._native import lib
from radix.errors import LeaseError
from radix.flat import FlatCore
from radix.flat import evict as evict_all
from radix.tree import Cursor, StaleError, TreeCore

WIDTH = 32


def keys(*numbers: int) -> np.ndarray:
    """Keys of 32 bytes that differ in the last ones only."""
    out = np.zeros((len(numbers), WIDTH), np.uint8)
    for row, number in enumerate(numbers):
        out[row, 28:] = np.frombuffer(np.uint32(number).tobytes(), np.uint8)
    return out


def store(tiers: int = 1) -> FlatCore:
    """An empty store of two groups."""
    tree = TreeCore(WIDTH, groups=2, tiers=tiers, check_ids=False, keep_keys=False)
    return FlatCore(tree, tree.root())


def fill(flat: FlatCore, *numbers: int) -> None:
    """Key k at slot k."""
    flat.insert(keys(*numbers), 0, np.array(numbers, np.int32))


def evict(flat: FlatCore, count: int, column: int = 0) -> list[int]:
    """The slots of the next victims; their keys are checked on the way."""
    slots = np.empty(count, np.int32)
    ids = np.empty((count, WIDTH), np.uint8)
    freed = flat.tree.evict(column, slots, ids)
    assert np.array_equal(ids[:freed], keys(*slots[:freed].tolist()))
    flat.tree.check()
    return slots[:freed].tolist()


def test_keys_are_found_with_their_slots() -> None:
    flat = store()
    fill(flat, 5, 6, 7)
    nodes = flat.find(keys(6, 9, 5))
    assert (nodes != 0).tolist() == [True, False, True]
    assert flat.slots(nodes, 0).tolist() == [6, -1, 5]
    assert flat.slots(nodes, 1).tolist() == [-1, -1, -1]
    flat.tree.check()


def test_key_offered_again_keeps_the_slot_that_counts() -> None:
    flat = store()
    fill(flat, 5)
    kept = flat.insert(keys(5, 8, 8), 0, np.array([50, 80, 81], np.int32))
    assert kept.tolist() == [5, 80, 80]
    flat.tree.check()


def test_order_is_that_of_inserts_touches_and_releases() -> None:
    flat = store()
    fill(flat, 1, 2, 3, 4, 5)
    leases = flat.lease(flat.find(keys(2, 1)))
    flat.touch(flat.find(keys(3, 99)))
    assert evict(flat, 2) == [4, 5]
    flat.release(leases)
    fill(flat, 3)
    assert evict(flat, 9) == [2, 1, 3]
    assert flat.tree.stats().nodes == 1


def test_leased_keys_are_no_victims_and_may_be_dropped() -> None:
    """A pin holds the key; a corrupt block goes all the same, and the key with the last pin."""
    flat = store()
    fill(flat, 1, 2)
    nodes = flat.find(keys(1, 2))
    leases = flat.lease(nodes)
    assert evict(flat, 2) == []
    assert flat.drop(nodes, 0).tolist() == [1, 2]
    assert flat.drop(nodes, 0).tolist() == [-1, -1]
    assert flat.find(keys(1)).tolist() == nodes[:1].tolist()
    flat.release(leases)
    assert flat.find(keys(1, 2)).tolist() == [0, 0]
    with pytest.raises(StaleError):
        flat.lease(nodes)


def test_lease_of_a_set_with_a_gone_key_pins_nothing_and_keeps_the_order() -> None:
    """What was pinned before the gone key came back as the most recently used."""
    flat = store()
    fill(flat, 1, 2, 3)
    nodes = flat.find(keys(1, 2))
    assert flat.drop(flat.find(keys(2)), 0).tolist() == [2]
    with pytest.raises(StaleError):
        flat.lease(nodes)
    assert flat.tree.stats().leases == 0
    assert evict(flat, 3) == [1, 3]


def test_release_is_all_or_nothing() -> None:
    flat = store()
    fill(flat, 1, 2, 3)
    leases = flat.lease(flat.find(keys(1, 2, 3)))
    for wrong in ([leases[0], leases[1], leases[0]], [leases[2], 12345]):
        with pytest.raises(LeaseError):
            flat.release(np.array(wrong, np.uint64))
        assert flat.tree.stats().leases == 3
        flat.tree.check()
    flat.release(leases)
    with pytest.raises(LeaseError):
        flat.release(leases[:1])


def test_one_key_may_be_leased_twice() -> None:
    flat = store()
    fill(flat, 1)
    leases = flat.lease(np.repeat(flat.find(keys(1)), 2))
    flat.release(leases[:1])
    assert evict(flat, 1) == []
    flat.release(leases[1:])
    assert evict(flat, 1) == [1]


def test_failed_allocation_leaves_a_set_as_it_was() -> None:
    """Half of an insert came out again, but as the most recently used."""
    for call in ("insert", "lease"):
        failures = 0
        for fail in range(1, 200):
            flat = store()
            fill(flat, *range(1, 6))
            nodes = np.tile(flat.find(keys(*range(1, 6))), 20)
            lib.rdx_alloc_fail_at(fail)
            try:
                if call == "insert":
                    flat.insert(keys(1, *range(50, 90)), 0, np.arange(41, dtype=np.int32) + 100)
                else:
                    flat.lease(nodes)
            except MemoryError:
                failures += 1
            else:
                break
            finally:
                lib.rdx_alloc_fail_at(0)
            assert flat.tree.stats().leases == 0
            assert flat.find(keys(*range(50, 90))).tolist() == [0] * 40
            assert evict(flat, 9) == [1, 2, 3, 4, 5]
        assert failures > 0


def test_groups_of_one_key_go_apart() -> None:
    flat = store()
    fill(flat, 1, 2)
    flat.insert(keys(2, 1), 1, np.array([2, 1], np.int32))
    assert evict(flat, 1, column=1) == [2]
    flat.touch(flat.find(keys(2)))
    assert evict(flat, 1, column=0) == [1]
    assert flat.slots(flat.find(keys(1, 2)), 0).tolist() == [-1, 2]
    assert flat.slots(flat.find(keys(1, 2)), 1).tolist() == [1, -1]


def test_copy_that_arrives_changes_no_order() -> None:
    flat = store(tiers=2)
    fill(flat, 1, 2, 3)
    nodes = flat.find(keys(1, 2))
    leases = flat.lease(nodes)
    kept = flat.attach(nodes, 1, np.array([1, 2], np.int32))
    assert kept.tolist() == [1, 2]
    assert flat.attach(nodes, 1, np.array([8, 9], np.int32)).tolist() == [1, 2]
    flat.release(leases, stamp=False)
    assert evict(flat, 3) == [1, 2, 3]
    assert evict(flat, 3, column=1) == [1, 2]
    with pytest.raises(StaleError):
        flat.attach(nodes, 1, np.array([1, 2], np.int32))


def test_victims_come_with_the_namespace_that_they_were_in() -> None:
    flat = store()
    other = FlatCore(flat.tree, flat.tree.root())
    fill(flat, 1)
    fill(other, 2)
    fill(flat, 3)
    slots, ids, roots = evict_all(flat.tree, 0, 5)
    assert (slots.tolist(), roots.tolist()) == ([1, 2, 3], [flat.root, other.root, flat.root])
    assert np.array_equal(ids, keys(1, 2, 3))


def test_what_is_no_set_of_keys_is_refused_by_name() -> None:
    flat = store()
    with pytest.raises(ValueError, match="keys must be uint8 of shape"):
        flat.find(np.zeros((2, 16), np.uint8))
    with pytest.raises(ValueError, match="slots must be one a key"):
        flat.insert(keys(1), 0, np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="opaque"):
        tokens = TreeCore(WIDTH, groups=1, tiers=1)
        FlatCore(tokens, tokens.root())
    with pytest.raises(ValueError, match="range"):
        flat.insert(keys(1), 7, np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="uint64"):
        flat.release(np.zeros(1, np.int64))


def test_prompts_of_opaque_keys_are_not_taken_apart_as_a_set() -> None:
    """Dropping the first page of a longer edge would split it, for which no room was made."""
    flat = store()
    tree, root = flat.tree, flat.root
    tree.insert(
        Cursor(root, root, 0),
        keys(1, 2, 3),
        np.zeros(1, np.uint32),
        np.array([1, 2, 3], np.int32),
    )
    nodes = flat.find(keys(1))
    with pytest.raises(ValueError):
        flat.drop(nodes, 0)
    with pytest.raises(ValueError):
        flat.insert(keys(1), 0, np.zeros(1, np.int32))
    tree.check()
