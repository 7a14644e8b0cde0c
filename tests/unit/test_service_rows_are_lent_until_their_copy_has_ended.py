"""Whatever fails below a store that many threads call: a call returns or raises only when no
transfer touches its rows any more, and each of them does return.

The fault: what a poll raised came out of the call whose thread happened to poll. Its caller used
the rows for another prompt while a load still wrote them, or a store still read them, so that bytes
of one prompt were kept, or used, under the keys of another. And an end that a poll had taken before
it raised was told to nobody: those that waited for it waited for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import ClosedError
from radix.flat import FlatCore
from radix.flatmoves import FlatTransfers
from radix.front import FrontTier
from radix.service import BlockingStore
from radix.tier import TransferDone
from tests.servicerig import ROW, Rows, content, keys_of, over, over_disk, together
from tiers.disk import DiskTier


class Fault(Exception):
    """As planned."""


class FailingDisk(FrontTier):
    """A disk whose ``poll`` and ``close`` raise as often as ``polls`` and ``closes`` say; what the
    inner poll had to give is lost then where it ``loses``.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(DiskTier(folder, limit_bytes=16 << 20))
        self.polls = self.closes = 0
        self.loses = False

    def poll(self) -> list[TransferDone]:
        if self.polls and not self.loses:
            self.polls -= 1
            raise Fault
        done = self.inner.poll()
        if self.polls and done:
            self.polls -= 1
            raise Fault
        return done

    def close(self) -> None:
        if self.closes:
            self.closes -= 1
            raise Fault
        self.inner.close()


def untouched(store: BlockingStore, rows: list[int]) -> None:
    """No transfer reads or writes these rows."""
    with store.locked() as flat:
        for job in flat.transfers.jobs.values():
            assert not np.isin(job.upper_slots, rows).any(), "a transfer still touches the rows"


def moves(store: BlockingStore, rows: Rows, first: int, fails: list[int]) -> Callable[[], None]:
    """A thread that stores four blocks and brings them back, with rows of its own, which it uses
    for something else between calls. ``fails``: gets the number of calls that raised the fault.
    """

    def call(what: Callable[..., Any]) -> Any:
        mine = list(range(first, first + 4))
        try:
            return what(keys_of(mine), mine)
        except Fault:
            fails.append(first)
            return np.zeros(4, np.bool_)
        finally:
            untouched(store, mine)

    def work() -> None:
        for number in range(first, first + 4):
            rows[number] = content(number)
        call(store.store)
        rows[first : first + 4] = 0
        came = call(store.load)
        for number in (first + np.flatnonzero(came)).tolist():
            assert (rows[number] == content(number)).all()
        rows[first : first + 4] = 0

    return work


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (FlatCore, "release"),
        (FlatCore, "lease"),
        (FlatCore, "insert"),
        (FlatTransfers, "_account"),
        (FlatTransfers, "_loaded"),
        (FlatTransfers, "_finish"),
    ],
)
def test_every_call_ends_after_its_copies_whichever_step_fails(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The k-th call of one step raises, for each k; three threads move blocks meanwhile."""
    step = getattr(owner, name)
    at, made = 1, 1
    while made >= at:
        made = 0

        def counted(*given: Any, at: int = at, **named: Any) -> Any:
            nonlocal made
            made += 1
            if made == at:
                raise Fault
            return step(*given, **named)

        folder, rows = tmp_path / f"{at}", np.zeros((12, ROW), np.uint8)
        fails: list[int] = []
        store = over_disk(rows, folder, grace_s=60)
        with store, monkeypatch.context() as patch:
            patch.setattr(owner, name, counted)
            together(*(moves(store, rows, first, fails) for first in (0, 4, 8)))
            failed = store.counters().get("poll.failed", 0)
            assert failed + len(fails) == (made >= at), f"failure {at} was told by nobody"
        numbers = list(range(12))
        with over_disk(rows, folder) as store:
            for number in np.flatnonzero(store.load(keys_of(numbers), numbers)).tolist():
                assert (rows[number] == content(number)).all(), f"failure {at}, block {number}"
        at += 1
    assert at > 2, "the step was never taken"


def test_who_waits_goes_on_while_polls_fail(tmp_path: Path) -> None:
    rows = np.zeros((4, ROW), np.uint8)
    disk = FailingDisk(tmp_path)
    with over(rows, disk, grace_s=60) as store:
        rows[0] = content(1)
        assert store.store(keys_of([1]), [0]).all()
        disk.polls = 20
        assert store.load(keys_of([1]), [2]).all()
        assert disk.polls == 0
        assert (rows[2] == content(1)).all()
        assert store.counters()["poll.failed"] == 20
        store.check()


@pytest.mark.parametrize("loses", [False, True])
def test_what_never_ends_is_closed_before_its_caller_hears_of_it(
    loses: bool, tmp_path: Path
) -> None:
    """Polls that only fail, or that lost an end: the rows come back when no copy runs."""
    rows = np.zeros((4, ROW), np.uint8)
    disk = FailingDisk(tmp_path)
    store = over(rows, disk, grace_s=0.05)
    rows[0] = content(1)
    assert store.store(keys_of([1]), [0]).all()
    disk.loses, disk.closes = loses, 2
    disk.polls = 1 if loses else 10**9

    def loads() -> None:
        with pytest.raises(ClosedError, match="its polls failed") as told:
            store.load(keys_of([1]), [2])
        assert isinstance(told.value.__cause__, Fault)
        assert disk.closes == 0, "it waited until the disk was really closed"

    def flushes() -> None:
        with pytest.raises(ClosedError, match="its polls failed"):
            while True:
                with store.locked() as flat:
                    if flat.transfers.jobs:
                        break
            store.flush()

    together(loads, flushes)
    with pytest.raises(ClosedError):
        store.has(keys_of([1]))
    store.close()
    with over_disk(rows, tmp_path) as again:
        assert again.load(keys_of([1]), [3]).all()
        assert (rows[3] == content(1)).all()
