"""A flat store that many threads call at once: each call returns when its own bytes have moved,
with what is true of them; nobody who only asks waits for bytes of others; a call that is given up
can be settled later; after the end every call is refused.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radix.errors import ClosedError, TimedOutError
from radix.events import TierEvent
from radix.groups import Group
from radix.service import BlockingStore
from radix.store import FlatStore
from radix.tier import TierMode
from tests.servicerig import ROW, Rows, content, keys_of, over, over_disk, together
from tests.ticktier import TickTier
from tiers.disk import DiskTier
from tiers.host import HostTier


def over_ticks(rows: Rows, blocks: int = 8) -> tuple[BlockingStore, TickTier]:
    tier = TickTier(blocks, "slow")
    return over(rows, tier), tier


def worker(
    store: BlockingStore, rows: Rows, first: int, seed: int, *, room: bool
) -> Callable[[], None]:
    """A thread with four rows of its own: stores and loads blocks that others use too. ``room``:
    for all of them, so that none is refused.
    """

    def work() -> None:
        chance = random.Random(seed)
        mine = list(range(first, first + 4))
        for step in range(40):
            numbers = chance.sample(range(24), 4)
            where = f"seed {seed} step {step}"
            if chance.random() < 0.5:
                for row, number in zip(mine, numbers, strict=True):
                    rows[row] = content(number)
                kept = store.store(keys_of(numbers), mine, timeout_s=60)
                rows[mine] = 0  # its bytes are out: the engine uses its rows for something else
                assert kept.all() or not room, where
            else:
                rows[mine] = 0
                came = store.load(keys_of(numbers), mine, timeout_s=60)
                for row, number, good in zip(mine, numbers, came, strict=True):
                    assert not good or (rows[row] == content(number)).all(), where
            if chance.random() < 0.3:
                store.has(keys_of(numbers))
                store.counters()

    return work


def test_many_threads_move_their_own_bytes_over_a_disk(tmp_path: Path) -> None:
    rows = np.zeros((24, ROW), np.uint8)
    with over_disk(rows, tmp_path) as store:
        together(*(worker(store, rows, 4 * n, 100 + n, room=True) for n in range(6)))
        store.flush(timeout_s=60)
        store.check()
        assert store.usage()["disk"].used_blocks[0] <= 24
    with over_disk(rows, tmp_path) as store:
        numbers = list(range(24))
        there = store.has(keys_of(numbers)) >= 0
        came = store.load(keys_of(numbers), numbers)
        assert (came == there).all(), "what a store said it keeps is there after a restart"
        for number in np.flatnonzero(came).tolist():
            assert (rows[number] == content(number)).all()


def test_threads_under_pressure_get_their_own_bytes_or_none(tmp_path: Path) -> None:
    """Room for few of the blocks: they push one another out while others load them."""
    rows = np.zeros((16, ROW), np.uint8)
    store, tier = over_ticks(rows, blocks=9)
    tier.pace = 0.4
    with store:
        together(*(worker(store, rows, 4 * n, 200 + n, room=False) for n in range(4)))
        store.flush(timeout_s=60)
        store.check()


def test_who_asks_does_not_wait_for_bytes_of_others() -> None:
    rows = np.zeros((8, ROW), np.uint8)
    store, tier = over_ticks(rows)
    tier.pace = 0.0  # nothing arrives
    began = threading.Event()
    kept: list[bool] = []

    def slow() -> None:
        began.set()
        kept.extend(store.store(keys_of([1, 2]), [0, 1]).tolist())

    def asks() -> None:
        assert began.wait(10)
        while not tier.pending():
            time.sleep(0)
        for _ in range(200):
            assert store.has(keys_of([1, 2, 3])).tolist() == [-1, -1, -1]
        assert not kept
        assert store.store(keys_of([]), []).tolist() == [], "nothing to move is done at once"
        tier.pace = 1.0

    together(slow, asks)
    assert kept == [True, True]
    store.close()


def test_each_of_several_that_wait_returns_when_its_own_has_ended() -> None:
    rows = np.zeros((8, ROW), np.uint8)
    store, tier = over_ticks(rows)
    tier.pace = 0.0
    order: list[int] = []

    def stores(number: int) -> Callable[[], None]:
        def work() -> None:
            assert store.store(keys_of([number]), [number]).tolist() == [True]
            order.append(number)

        return work

    def opens() -> None:
        while tier.pending() < 3:
            time.sleep(0)
        jobs = sorted(tier._running)
        tier.held = set(jobs[1:])
        tier.pace = 1.0
        while len(order) < 1:
            time.sleep(0)
        assert len(order) == 1, "one has ended, the others wait on"
        tier.held = set()

    together(stores(1), stores(2), stores(3), opens)
    assert sorted(order) == [1, 2, 3]
    store.check()
    store.close()


def test_a_call_that_is_given_up_is_settled_later() -> None:
    rows = np.zeros((8, ROW), np.uint8)
    store, tier = over_ticks(rows)
    rows[0] = content(5)
    tier.pace = 0.0
    with pytest.raises(TimedOutError, match="has not ended in time") as given_up:
        store.store(keys_of([5]), [0], timeout_s=0.01)
    with pytest.raises(TimedOutError):
        store.settle(given_up.value.number, timeout_s=0)
    with pytest.raises(TimedOutError):
        store.flush(timeout_s=0.01)
    tier.pace = 1.0
    assert store.settle(given_up.value.number, timeout_s=60).tolist() == [True]
    with pytest.raises(ValueError, match="of no call that was given up"):
        store.settle(given_up.value.number)
    rows[0] = 0
    assert store.load(keys_of([5, 6]), [3, 4]).tolist() == [True, False]
    assert (rows[3] == content(5)).all()
    store.close()


def test_a_reset_ends_who_waits_and_nothing_older_is_found() -> None:
    rows = np.zeros((8, ROW), np.uint8)
    store, tier = over_ticks(rows)
    assert store.store(keys_of([1]), [0]).tolist() == [True]
    tier.pace = 0.0
    answers: list[list[bool]] = []

    def waits() -> None:
        answers.append(store.store(keys_of([2]), [1]).tolist())

    def resets() -> None:
        while not tier.pending():
            time.sleep(0)
        store.reset()
        tier.pace = 1.0

    together(waits, resets)
    assert answers == [[False]]
    assert store.has(keys_of([1, 2])).tolist() == [-1, -1]
    store.check()
    store.close()


def test_closing_lets_calls_end_and_refuses_later_ones(tmp_path: Path) -> None:
    rows = np.zeros((8, ROW), np.uint8)
    store, tier = over_ticks(rows)
    tier.pace = 0.0
    kept: list[bool] = []

    def waits() -> None:
        kept.extend(store.store(keys_of([1]), [0]).tolist())

    def closes() -> None:
        while not tier.pending():
            time.sleep(0)
        threading.Timer(0.05, lambda: setattr(tier, "pace", 1.0)).start()
        store.close()

    together(waits, closes)
    assert kept == [True]
    for call in (
        lambda: store.has(keys_of([1])),
        lambda: store.store(keys_of([1]), [0]),
        lambda: store.flush(),
        lambda: store.events(),
    ):
        with pytest.raises(ClosedError):
            call()
    store.close()


def test_bad_arguments_are_refused_and_nothing_hangs(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be a FlatStore"):
        BlockingStore("no store")  # type: ignore[arg-type]  # it is refused
    rows = np.zeros((4, ROW), np.uint8)
    with over_disk(rows, tmp_path) as store:
        with pytest.raises(ValueError, match="rows below 4"):
            store.store(keys_of([1]), [4])
        with pytest.raises(ValueError, match="two loads into one row"):
            store.load(keys_of([1, 2]), [0, 0])
        with pytest.raises(TypeError, match="timeout_s"):
            store.store(keys_of([1]), [0], timeout_s="soon")  # type: ignore[arg-type]  # refused
        assert store.store(keys_of([1]), [0]).tolist() == [True]
        assert store.valid_lengths([keys_of([1, 2])]).tolist() == [1]
        store.forget(keys_of([1]))
        assert store.has(keys_of([1])).tolist() == [-1]


def test_what_tiers_tell_is_kept_for_who_asks(tmp_path: Path) -> None:
    rows = np.zeros((4, ROW), np.uint8)
    with over_disk(rows, tmp_path) as store:
        store.set_mode("disk", TierMode.READ_ONLY)
        assert store.store(keys_of([1]), [0]).tolist() == [False]
        assert [type(event) for event in store.events()] == [TierEvent]
        assert store.events() == []


def test_a_store_that_owns_its_slots_fetches_into_its_first_tier(tmp_path: Path) -> None:
    tiers = [HostTier(16 * ROW), DiskTier(tmp_path, limit_bytes=16 << 20)]
    with BlockingStore(FlatStore([Group.full("g", ROW)], tiers)) as store:
        with store.locked() as flat:
            flat.commit(flat.reserve(keys_of([1, 2])))
        store.flush()
    tiers = [HostTier(16 * ROW), DiskTier(tmp_path, limit_bytes=16 << 20)]
    with BlockingStore(FlatStore([Group.full("g", ROW)], tiers)) as store:
        assert store.has(keys_of([1, 2, 3])).tolist() == [1, 1, -1]
        assert store.fetch(keys_of([1, 2, 3]), timeout_s=60).tolist() == [True, True, False]
        assert store.has(keys_of([1, 2])).tolist() == [0, 0]


def test_a_forked_child_is_refused_even_while_the_lock_was_held(tmp_path: Path) -> None:
    rows = np.zeros((4, ROW), np.uint8)
    store = over_disk(rows, tmp_path)
    with store.locked():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.close()
                store.has(keys_of([1]))
            except ClosedError as error:
                code = 0 if "before a fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()
