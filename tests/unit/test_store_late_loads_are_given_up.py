"""A load of a flat store that does not end in time is given up: who waits is told that it did not
come, its slots stay its own until it ends, and what it brings then is there for others (C86, C93).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.events import KeysDone
from radix.ownership import Ownership
from radix.policy.limits import Breaker, Limits, Patience
from radix.tier import TierMode
from tests.ticktier import TickTier
from tests.unit.storerig import StoreRig, content, keys

NOW = Limits(load_deadline=Patience(polls=3), breaker=Breaker(0))


def _rig(rows: int = 8, *, limits: Limits = NOW, tiers: int = 1, **options: object) -> StoreRig:
    """Keys 1 to 4 in the lowest of so many tiers below the rows, and nowhere else."""
    below = [TickTier(16, name) for name in ("host", "deep")[:tiers]]
    rig = StoreRig(rows, *below, limits=limits, **options)
    rig.bring(1, 2, 3, 4)
    rig.end()
    for tier in range(tiers):
        rig.store.residency.evict(tier, 0, 16)
    assert rig.where(1, 2, 3, 4) == [tiers] * 4
    return rig


def _told(rig: StoreRig, polls: int) -> dict[int, list[bool]]:
    told = {}
    for _ in range(polls):
        told |= {e.number: e.good.tolist() for e in rig.store.poll() if isinstance(e, KeysDone)}
        rig.store.check()
    return told


def _right(rig: StoreRig, *numbers: int) -> None:
    assert (rig.rows[0][rig.store.slots(keys(*numbers))] == content(*numbers)).all()


@pytest.mark.parametrize("tiers", [1, 2])
def test_fetch_that_hangs_is_told_at_its_deadline_and_can_be_asked_for_again(tiers: int) -> None:
    """C93, dynamo#5012: there was no deadline, and whoever waited for the keys waited for ever."""
    rig = _rig(tiers=tiers)
    slow = rig.store.tiers[tiers]
    slow.pace = 0.0
    fetch = rig.store.fetch(keys(1, 2))
    assert _told(rig, 2) == {}
    assert _told(rig, 4) == {fetch.number: [False, False]}
    target = rig.store.tiers[tiers - 1]
    assert target.usage().used_blocks == (2,), "its slots are its own until it ends"
    assert rig.where(1, 2) == [tiers] * 2, "late is not gone"
    slow.held = set(rig.store.transfers.jobs)
    slow.pace = 1.0
    again = rig.store.fetch(keys(1, 2))
    assert _told(rig, 6) == {again.number: [True, True]}
    _right(rig, 1, 2)
    slow.held.clear()
    assert _told(rig, 2) == {}, "nobody is told twice"
    assert target.usage().used_blocks == (2,), "of two equal blocks one is kept"
    _right(rig, 1, 2)
    assert not rig.store.transfers.jobs and not rig.store.tree.stats().leases


def test_what_comes_late_is_there_for_others() -> None:
    rig = _rig()
    host = rig.store.tiers[1]
    host.pace = 0.0
    rig.store.fetch(keys(1, 2))
    _told(rig, 4)
    host.pace = 1.0
    assert _told(rig, 1) == {}
    assert rig.where(1, 2) == [0, 0]
    _right(rig, 1, 2)


def test_rows_that_the_engine_lent_are_its_own_only_once_their_load_has_ended() -> None:
    below = [TickTier(8, "mid"), TickTier(16, "host")]
    rig = StoreRig(8, *below, limits=NOW, ownership=Ownership.BORROWED)
    rig.rows[0][:2] = content(1, 2)
    rig.store.store(keys(1, 2), np.arange(2))
    rig.end()
    below[0].pace = 0.0
    load = rig.store.load(keys(1, 2), np.array([4, 5]))
    assert _told(rig, 8) == {}, "they may still be written"
    assert rig.store.metrics.get("load", "late", "mid", "g0") == 2
    below[0].pace = 1.0
    assert _told(rig, 1) == {load.number: [True, True]}
    assert (rig.rows[0][4:6] == content(1, 2)).all()


def test_flush_waits_for_nothing_that_is_late() -> None:
    """What is late may never end: a flush, and with it a close, would hang."""
    rig = _rig()
    rig.store.tiers[1].held = {job + 1 for job in range(100)}
    fetch = rig.store.fetch(keys(1))
    told = rig.end()
    assert told == {fetch.number: [False]} and len(rig.store.transfers.jobs) == 1
    rig.store.close()


@pytest.mark.parametrize("how", ["reset", "forget"])
def test_load_of_before_a_reset_that_never_ends_is_told_at_its_deadline(how: str) -> None:
    """It had been cancelled, and what was cancelled had no deadline any more: who waited did so for
    ever, and so did a flush.
    """
    rig = _rig()
    rig.store.tiers[1].held = {job + 1 for job in range(100)}
    fetch = rig.store.fetch(keys(1))
    if how == "reset":
        rig.store.reset()
    else:
        rig.store.forget(keys(1))
    assert _told(rig, 6) == {fetch.number: [False]}
    assert rig.store.transfers.jobs and not rig.store.transfers.moving()
    assert rig.end() == {} and rig.where(1) == [-1]
    rig.store.close()


@pytest.mark.parametrize("how", ["reset", "forget"])
def test_late_load_brings_nothing_of_an_older_epoch(how: str) -> None:
    rig = _rig()
    host = rig.store.tiers[1]
    host.pace = 0.0
    rig.store.fetch(keys(1, 2))
    _told(rig, 4)
    if how == "reset":
        rig.store.reset()
    else:
        rig.store.forget(keys(1, 2))
    rig.store.check()
    host.pace = 1.0
    _told(rig, 2)
    assert rig.where(1, 2) == [-1, -1]
    assert rig.store.tiers[0].usage().used_blocks == (0,)
    assert not rig.store.transfers.jobs and not rig.store.tree.stats().leases


def test_late_loads_take_a_tier_out() -> None:
    breaker = Breaker(2, Patience(polls=5))
    rig = _rig(limits=Limits(load_deadline=Patience(polls=1), breaker=breaker))
    host = rig.store.tiers[1]
    host.pace = 0.0
    for key in (1, 2):
        rig.store.fetch(keys(key))
        _told(rig, 2)
    assert host.mode is TierMode.OFF and rig.store.has(keys(3)).tolist() == [-1]
    _told(rig, 8)
    assert host.mode is TierMode.ON


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_loads_of_a_tier_are_under_way_at_once(most: int) -> None:
    rig = _rig(limits=Limits(loads=most))
    host = rig.store.tiers[1]
    host.pace = 0.0
    fetches = [rig.store.fetch(keys(key)) for key in (1, 2, 3, 4)]
    _told(rig, 2)
    assert len(rig.store.transfers.jobs) == most
    host.pace = 1.0
    assert _told(rig, 6) == {fetch.number: [True] for fetch in fetches}
    _right(rig, 1, 2, 3, 4)


def test_limits_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="limits must be a Limits, not int"):
        StoreRig(4, limits=3)
