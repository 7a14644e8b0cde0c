"""Every fault shows as its docstring says, is acknowledged exactly once, and the same plan over the
same calls does the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import CorruptBlockError, TierError, TierFullError, TierUnavailableError
from radix.groups import Group
from radix.tier import Records, TierMode, Transfer, TransferDone, Urgency
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan, FaultyTier, part_of
from tiers.host import AdoptedTier, HostTier
from tiers.index import IndexTier

GROUPS = (Group.full("kv", 1000),)


class _Pair:
    """A host tier behind a plan, and rows above it."""

    def __init__(self, plan: FaultPlan) -> None:
        self.rows = np.random.default_rng(4).integers(0, 256, (8, 1000), dtype=np.uint8)
        self.engine = AdoptedTier([[self.rows]])
        self.engine.attach(GROUPS, 64, None)
        self.tier = FaultyTier(HostTier(64 * 4096, verify=True), plan)
        self.tier.attach(GROUPS, 64, self.engine)
        self.jobs = 0

    def start(self, call: str, slots: Any) -> int:
        self.jobs += 1
        upper = np.arange(len(slots), dtype=np.int32)
        transfer = Transfer(self.jobs, 0, upper, slots, Urgency.STORE, None)
        (self.tier.store if call == "store" else self.tier.load)(transfer, self.engine)
        return self.jobs

    def end(self) -> list[TransferDone]:
        came: list[TransferDone] = []
        while self.tier.pending():
            self.tier.wait(10.0)
            came += self.tier.poll()
        assert self.tier.poll() == []
        return came

    def move(self, call: str, slots: Any) -> TransferDone:
        job = self.start(call, slots)
        (done,) = self.end()
        assert done.job == job and len(done.good) == len(done.corrupt) == len(slots)
        return done

    def filled(self) -> Any:
        slots = self.tier.reserve(0, 8)
        assert self.move("store", slots).good.all()
        self.tier.commit(0, slots)
        return slots


def _plan(call: str, fault: Fault, k: int = 1) -> FaultPlan:
    return FaultPlan(script={call: {k: fault}})  # type: ignore[dict-item]  # the test's own names


@pytest.mark.parametrize("call", ["reserve", "store", "load"])
@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.REFUSE, TierFullError), (Fault.OFF, TierUnavailableError)]
)
def test_a_refused_call_starts_nothing(call: str, fault: Fault, error: Any) -> None:
    pair = _Pair(_plan(call, fault, 2))
    slots = pair.filled()
    free = pair.tier.free_blocks(0)
    if call == "load":
        assert pair.move("load", slots).good.all()
    with pytest.raises(error):
        pair.tier.reserve(0, 1) if call == "reserve" else pair.start(call, slots)
    assert pair.tier.pending() == 0
    assert pair.tier.mode is (TierMode.OFF if fault is Fault.OFF else TierMode.ON)
    pair.tier.set_mode(TierMode.ON)
    assert pair.tier.free_blocks(0) == free
    assert pair.move("load", slots).good.all()
    assert pair.tier.shown[fault] == 1
    pair.tier.close()


@pytest.mark.parametrize("call", ["store", "load"])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE])
def test_a_failed_transfer_has_no_good_block(call: str, fault: Fault) -> None:
    pair = _Pair(_plan(call, fault, 2 if call == "store" else 1))
    slots = pair.filled()
    kept = pair.rows.copy()
    if call == "store":
        slots = pair.tier.reserve(0, 8)
    else:
        pair.rows[:] = 0
    done = pair.move(call, slots)
    assert not done.good.any() and not done.corrupt.any() and done.verified_blocks == 0
    assert isinstance(done.error, TierError) and done.error.retryable
    moved = fault is Fault.LOSE
    assert done.nbytes == (8000 if moved else 0)
    if call == "load":
        assert np.array_equal(pair.rows, kept if moved else np.zeros_like(kept))
        assert pair.move("load", slots).good.all(), "a failed load must not spoil what is below"
    else:
        pair.tier.abort(0, slots)
    pair.tier.check()
    pair.tier.close()


@pytest.mark.parametrize("call", ["store", "load"])
def test_half_a_transfer_is_half_good(call: str) -> None:
    pair = _Pair(_plan(call, Fault.PART, 2 if call == "store" else 1))
    slots = pair.filled()
    kept = pair.rows.copy()
    if call == "store":
        slots = pair.tier.reserve(0, 8)
    pair.rows[:] = kept if call == "store" else 0
    done = pair.move(call, slots)
    assert done.good.tolist() == [True] * 4 + [False] * 4 and not done.corrupt.any()
    assert done.error is not None and done.nbytes == 4000
    if call == "load":
        assert np.array_equal(pair.rows[:4], kept[:4]) and not pair.rows[4:].any()
    pair.tier.close()


def test_half_of_one_block_is_none() -> None:
    pair = _Pair(_plan("store", Fault.PART))
    done = pair.move("store", pair.tier.reserve(0, 1))
    assert not done.good.any() and done.nbytes == 0
    pair.tier.close()


@pytest.mark.parametrize("call", ["store", "load"])
def test_a_corrupt_block_is_one_and_named(call: str) -> None:
    pair = _Pair(_plan(call, Fault.CORRUPT, 2 if call == "store" else 1))
    slots = pair.filled()
    done = pair.move(call, slots if call == "load" else pair.tier.reserve(0, 8))
    assert np.count_nonzero(~done.good) == 1 and isinstance(done.error, CorruptBlockError)
    assert done.corrupt.tolist() == ((~done.good).tolist() if call == "load" else [False] * 8)
    pair.tier.close()


def test_acknowledgements_come_late_in_any_order_and_once() -> None:
    pair = _Pair(FaultPlan(seed=1, delay_polls=5, reorder=True))
    slots = pair.tier.reserve(0, 8)
    jobs = [pair.start("store", slots[i : i + 1]) for i in range(8)]
    came = [done.job for done in pair.end()]
    assert sorted(came) == jobs and came != jobs
    pair.tier.close()


def _outcomes(seed: int) -> list[object]:
    rates: Any = {
        "reserve": {Fault.REFUSE: 0.2},
        "store": {Fault.FAIL: 0.2, Fault.PART: 0.1, Fault.LOSE: 0.1},
        "load": {Fault.CORRUPT: 0.2, Fault.REFUSE: 0.1},
    }
    pair = _Pair(FaultPlan(rates=rates, seed=seed, delay_polls=2, reorder=True))
    seen: list[object] = []
    for _ in range(120):
        try:
            slots = pair.tier.reserve(0, 4)
        except TierFullError:
            seen.append("reserve")
            continue
        stored = pair.move("store", slots)
        seen.append(stored.good.tolist())
        good, bad = slots[stored.good], slots[~stored.good]
        pair.tier.abort(0, bad)
        pair.tier.commit(0, good)
        if len(good):
            try:
                seen.append(pair.move("load", good).good.tolist())
            except TierFullError:
                seen.append("load")
        pair.tier.free(0, good)
        pair.tier.check()
        assert pair.tier.free_blocks(0) == 64
    shown = {fault for fault, times in pair.tier.shown.items() if times}
    assert shown == {Fault.REFUSE, Fault.FAIL, Fault.PART, Fault.LOSE, Fault.CORRUPT}
    pair.tier.close()
    return seen


def test_the_same_seed_shows_the_same_faults() -> None:
    assert _outcomes(7) == _outcomes(7) != _outcomes(8)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"script": {"free": {1: Fault.FAIL}}}, "'free' is not one of reserve, store, load"),
        ({"script": {"reserve": {1: Fault.CORRUPT}}}, "a reserve cannot corrupt"),
        ({"script": {"load": {1: Fault.FLIP}}}, "a load cannot flip"),
        ({"rates": {"reserve": {Fault.PART: 0.5}}}, "a reserve cannot part"),
        ({"delay_polls": -1}, "delay_polls"),
    ],
)
def test_a_plan_outside_the_fault_model_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FaultPlan(**wrong)


def test_part_of_a_transfer_takes_its_records_along() -> None:
    records = Records(
        namespace=b"n",
        keys=np.arange(64, dtype=np.uint8).reshape(4, 16),
        parents=np.arange(64, dtype=np.uint8).reshape(4, 16) + 1,
        pages=None,
        positions=np.arange(4, dtype=np.int64),
    )
    slots = np.arange(4, dtype=np.int32)
    whole = Transfer(3, 0, slots, slots + 10, Urgency.STORE, records)
    part = part_of(whole, np.array([True, False, False, True]))
    assert part.job == 3 and part.lower_slots.tolist() == [10, 13]
    assert part.records is not None and part.records.positions.tolist() == [0, 3]
    assert np.array_equal(part.records.keys, records.keys[[0, 3]])
    assert np.array_equal(part.records.parents, records.parents[[0, 3]])


def test_a_tier_without_bytes_fails_as_told_too() -> None:
    tier = FaultyTier(IndexTier(8, "index"), _plan("store", Fault.FAIL, 2))
    tier.attach(GROUPS, 64, None)
    slots = tier.reserve(0, 2)
    for job, good in ((1, True), (2, False), (3, True)):
        tier.store(Transfer(job, 0, slots, slots, Urgency.STORE, None), tier)
        (done,) = tier.poll()
        assert done.job == job and done.good.all() == good
    tier.close()


def test_a_clone_fails_as_told_and_copies_nothing() -> None:
    rows = np.random.default_rng(3).integers(0, 256, (8, 1000), dtype=np.uint8)
    before = rows.copy()
    tier = FaultyTier(AdoptedTier([[rows]]), FaultPlan(script={"clone": {2: Fault.FAIL}}))
    tier.attach(GROUPS, 64, None)
    slots = tier.reserve(0, 4)
    tier.clone(0, slots[:1], slots[1:2])
    assert np.array_equal(rows[slots[1]], before[slots[0]])
    with pytest.raises(TierError) as failed:
        tier.clone(0, slots[2:3], slots[3:4])
    assert failed.value.retryable and tier.shown[Fault.FAIL] == 1
    assert np.array_equal(rows[slots[2:]], before[slots[2:]])
    tier.check()
    tier.close()


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.PART, Fault.CORRUPT, Fault.FAIL])
def test_a_failed_store_leaves_no_trace_on_disk(tmp_path: Path, fault: Fault) -> None:
    """C81 (LMCache#4991): a store that failed stayed visible in the index. Here even one that the
    disk had done, and whose answer was lost, is gone after a restart: its slots were given back.
    """
    rows = np.random.default_rng(4).integers(0, 256, (8, 1000), dtype=np.uint8)
    stored = np.zeros(8, np.bool_)
    for turn in range(2):
        engine = AdoptedTier([[rows]])
        engine.attach(GROUPS, 64, None)
        disk = DiskTier(tmp_path / "disk", limit_bytes=4 << 20, segment_bytes=1 << 16)
        tier = FaultyTier(disk, _plan("store", fault))
        tier.attach(GROUPS, 64, engine)
        found = {key.tobytes() for part in tier.restore() for key in part.records.keys}
        keys = np.arange(128, dtype=np.uint8).reshape(8, 16)
        if turn:
            assert found == {key.tobytes() for key in keys[stored]}
        else:
            slots = tier.reserve(0, 8)
            order = np.arange(8, dtype=np.int64)
            pages = np.zeros((8, 64), np.uint8)
            records = Records(b"n", keys, np.zeros_like(keys), pages, order)
            upper = order.astype(np.int32)
            tier.store(Transfer(1, 0, upper, slots, Urgency.STORE, records), engine)
            done: list[TransferDone] = []
            while not done:
                tier.wait(10.0)
                done = tier.poll()
            stored = done[0].good
            tier.commit(0, slots[stored])
            tier.abort(0, slots[~stored])
            tier.flush()
        tier.check()
        tier.close()
        engine.close()
