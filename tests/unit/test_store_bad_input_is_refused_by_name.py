"""A bad argument is refused before anything changes, naming it and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import BusyError, ClosedError, UnsupportedError
from radix.groups import Group
from radix.ownership import Ownership
from radix.store import FlatStore
from tests.unit.storerig import WIDTH, StoreRig, keys
from tiers.disk import DiskTier
from tiers.index import IndexTier

ONE = [Group.full("g", 64)]

CONSTRUCTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"groups": []}, ValueError, "group"),
    ({"groups": ONE * 2}, ValueError, "one name"),
    ({"tiers": []}, ValueError, "tiers must not be empty"),
    ({"tiers": [IndexTier(8), IndexTier(8)]}, ValueError, "two tiers of one name"),
    ({"tiers": [7]}, TypeError, "tiers must hold tiers"),
    ({"key_bytes": 0}, ValueError, "key_bytes must be 1 to 4096, not 0"),
    ({"key_bytes": "8"}, TypeError, "key_bytes must be an int, not str"),
    ({"key_bytes": True}, TypeError, "key_bytes must be an int, not bool"),
    ({"write": "later"}, ValueError, "write is 'later', expected one of"),
    ({"policy": "newest"}, ValueError, "eviction policy 'newest' is unknown"),
    ({"policy": "cost"}, UnsupportedError, "keys do not have"),
    ({"ownership": Ownership.SHARED}, ValueError, "expected owned or borrowed"),
    ({"ownership": Ownership.BORROWED}, ValueError, "a tier below them"),
]


@pytest.mark.parametrize(("options", "kind", "text"), CONSTRUCTED)
def test_store_that_makes_no_sense_is_refused(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    arguments = {"groups": ONE, "tiers": [IndexTier(8)]} | options
    with pytest.raises(kind, match=text):
        FlatStore(arguments.pop("groups"), arguments.pop("tiers"), **arguments)


def test_keys_wider_than_a_record_are_refused_before_the_disk_is_touched(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "disk", limit_bytes=8 << 20)
    with pytest.raises(ValueError, match="1 to 32 over the persistent tier 'disk', not 36"):
        FlatStore(ONE, [IndexTier(8), disk], key_bytes=36)
    assert not (tmp_path / "disk").exists()


def test_store_that_fails_to_open_leaves_no_tier_open(tmp_path: Path) -> None:
    first = IndexTier(8)
    with pytest.raises(ValueError, match="limit_bytes"):
        FlatStore(ONE, [first, DiskTier(tmp_path / "disk", limit_bytes=1)])
    with pytest.raises(ClosedError):
        first.poll()


BAD_KEYS: list[tuple[object, type[Exception], str]] = [
    (np.zeros((2, WIDTH), np.int8), TypeError, "must be uint8, not int8"),
    (np.zeros(WIDTH, np.uint8), ValueError, r"must have the shape \(n, 8\), not \(8,\)"),
    (np.zeros((2, WIDTH + 1), np.uint8), ValueError, "hash_keys brings keys"),
    ([b"12345678"], TypeError, "must be uint8"),
    (None, TypeError, "must be uint8"),
]
CALLS: list[tuple[str, Callable[[FlatStore, Any], object]]] = [
    ("keys", lambda store, bad: store.has(bad)),
    ("keys", lambda store, bad: store.coming(bad)),
    ("keys", lambda store, bad: store.slots(bad)),
    ("keys", lambda store, bad: store.lease(bad)),
    ("keys", lambda store, bad: store.touch(bad)),
    ("keys", lambda store, bad: store.reserve(bad)),
    ("keys", lambda store, bad: store.fetch(bad)),
    ("keep", lambda store, bad: store.reserve(keys(1), keep=bad if bad is not None else [None])),
    ("runs[1]", lambda store, bad: store.valid_lengths([keys(1), bad])),
]


@pytest.mark.parametrize(("bad", "kind", "text"), BAD_KEYS)
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_bad_keys_are_refused(
    name: str,
    call: Callable[[FlatStore, Any], object],
    bad: object,
    kind: type[Exception],
    text: str,
) -> None:
    store = StoreRig(8).store
    before = (store.counters(), store.usage(), store.tree.stats())
    with pytest.raises(kind, match=text) as caught:
        call(store, bad)
    assert str(caught.value).startswith(name)
    assert (store.counters(), store.usage(), store.tree.stats()) == before


@pytest.mark.parametrize(
    ("group", "kind", "text"),
    [
        (1, ValueError, "group is 1, expected 0 to 0"),
        (-1, ValueError, "group is -1, expected 0 to 0"),
        ("g", TypeError, "must be an int, not str"),
        (True, TypeError, "must be an int, not bool"),
    ],
)
def test_unknown_group_is_refused(group: Any, kind: type[Exception], text: str) -> None:
    store = StoreRig(8).store
    for call in (store.has, store.coming, store.slots, store.reserve, store.fetch):
        with pytest.raises(kind, match=text):
            call(keys(1), group)


@pytest.mark.parametrize(
    ("positions", "kind", "text"),
    [
        ([1], ValueError, r"positions must have the shape \(2,\), not \(1,\)"),
        ([1.0, 2.0], TypeError, "positions must be integers, not float64"),
        ([0, -2], ValueError, "must be -1 \\(unknown\\) or more, not -2"),
    ],
)
def test_bad_positions_are_refused(positions: Any, kind: type[Exception], text: str) -> None:
    store = StoreRig(8).store
    for call in (store.has, store.lease, store.touch, store.reserve, store.fetch):
        with pytest.raises(kind, match=text):
            call(keys(1, 2), positions=positions)


def test_tier_that_is_not_one_is_refused() -> None:
    store = StoreRig(8).store
    with pytest.raises(ValueError, match="tier is 1, expected 0 to 0"):
        store.slots(keys(1), tier=1)
    with pytest.raises(ValueError, match="tier 'disk' is not one of"):
        store.set_mode("disk", store.tiers[0].mode)
    with pytest.raises(TypeError, match="namespace must be a Namespace"):
        store.has(keys(1), namespace="tenant")  # a name is no namespace


def test_no_keys_are_a_set_too() -> None:
    rig = StoreRig(8)
    none = np.zeros((0, WIDTH), np.uint8)
    assert rig.store.has(none).tolist() == [] and rig.store.slots(none).tolist() == []
    rig.store.lease(none).release()
    rig.store.commit(rig.store.reserve(none))
    rig.store.touch(none)
    fetch = rig.store.fetch(none)
    assert rig.end() == {fetch.number: []}


def test_keys_in_any_layout_of_memory_are_the_same_keys() -> None:
    rig = StoreRig(8)
    rig.bring(1, 2, 3)
    double = np.repeat(keys(1, 2, 3), 2, axis=0)
    assert rig.store.has(double[::2]).tolist() == [0, 0, 0]
    assert rig.store.has(np.asfortranarray(keys(1, 2, 9))).tolist() == [0, 0, -1]
    assert rig.store.has(memoryview(keys(1))).tolist() == [0]


def test_closed_store_answers_nothing() -> None:
    store = StoreRig(8).store
    with store:
        got = store.reserve(keys(1))
    for call in (store.has, store.reserve, store.fetch, store.lease):
        with pytest.raises(ClosedError):
            call(keys(1))
    with pytest.raises(ClosedError):
        store.commit(got)
    with pytest.raises(ClosedError):
        store.poll()


def test_call_while_another_thread_is_inside_is_refused() -> None:
    import threading

    store = StoreRig(8).store
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with store.gate:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(10)
    try:
        with pytest.raises(BusyError):
            store.has(keys(1))
    finally:
        leave.set()
        thread.join()
    assert store.has(keys(1)).tolist() == [-1]
