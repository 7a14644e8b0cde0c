"""A copy of little memory with nothing else under way is made by the caller's thread. Whatever a
tier promises of transfers holds for it: it is told once, by ``poll``, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from radix.groups import Group
from radix.tier import Transfer, Urgency
from tests.ticktier import peek
from tiers.copies import AT_ONCE_BYTES
from tiers.host import AdoptedTier, HostTier

BLOCK = AT_ONCE_BYTES // 4
ROWS = 16


class Rig:
    """Rows of random bytes above a host tier."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(7).integers(0, 256, (ROWS, BLOCK), np.uint8)
        self.top = AdoptedTier([[self.rows]], "rows")
        self.host = HostTier(ROWS * BLOCK)
        group = Group.full("kv", BLOCK)
        self.top.attach((group,), 1, None)
        self.host.attach((group,), 1, self.top)

    def transfer(self, job: int, first: int, count: int) -> Transfer:
        rows = np.arange(first, first + count, dtype=np.int32)
        return Transfer(job, 0, rows, rows, Urgency.DEMAND, None)

    def store(self, job: int, first: int, count: int) -> None:
        self.host.store(self.transfer(job, first, count), self.top)

    def ended(self, count: int) -> dict[int, bool]:
        """The next ``count`` ends."""
        told: dict[int, bool] = {}
        while len(told) < count:
            self.host.wait(5.0)
            for done in self.host.poll():
                assert done.job not in told and done.error is None
                told[done.job] = bool(done.good.all())
        return told

    def same(self, *slots: int) -> bool:
        return all((peek(self.host, 0, slot) == self.rows[slot]).all() for slot in slots)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    assert made.host.reserve(0, ROWS).tolist() == list(range(ROWS))
    yield made
    made.host.close()
    made.top.close()


def test_bytes_are_there_when_the_call_returns_and_its_end_is_told_once(rig: Rig) -> None:
    rig.store(1, 0, 4)
    assert rig.same(0, 1, 2, 3)
    assert rig.host.pending() == 1
    [done] = rig.host.poll()
    assert (done.job, done.good.tolist(), done.nbytes) == (1, [True] * 4, AT_ONCE_BYTES)
    assert rig.host.poll() == [] and rig.host.pending() == 0
    was = rig.rows[:4].copy()
    rig.rows[:4] = 0
    rig.host.load(rig.transfer(2, 0, 4), rig.top)
    assert (rig.rows[:4] == was).all()
    assert rig.ended(1) == {2: True}


def test_what_comes_while_an_end_is_untold_is_left_to_the_threads(rig: Rig) -> None:
    rig.store(1, 0, 1)
    for job in range(2, 9):
        rig.store(job, job, 1)
    assert rig.host._engine.pending == 7
    assert rig.ended(8) == dict.fromkeys(range(1, 9), True)
    assert rig.same(0, *range(2, 9))
    rig.store(9, 9, 1)
    assert rig.host._engine.pending == 0 and rig.same(9)
    assert rig.ended(1) == {9: True}


def test_what_is_large_is_left_to_the_threads(rig: Rig) -> None:
    rig.store(1, 0, 5)
    assert rig.host._engine.pending == 1
    assert rig.ended(1) == {1: True}
    assert rig.same(0, 1, 2, 3, 4)


def test_a_cancel_that_comes_after_the_copy_changes_nothing(rig: Rig) -> None:
    rig.store(1, 0, 1)
    rig.host.cancel(1)
    assert rig.ended(1) == {1: True}
    assert rig.same(0)


def test_an_end_that_nobody_asked_for_is_no_hindrance_to_closing(rig: Rig) -> None:
    rig.store(1, 0, 1)
    rig.host.close()
    assert rig.host.pending() == 0
