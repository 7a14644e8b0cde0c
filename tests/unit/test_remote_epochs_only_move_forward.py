"""A reset outdates what was stored before it, for all who share a backend and whatever that goes
back to (I31): epochs have an order, and nobody goes by one of before the one that he knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tiers.remote_transfers
from radix.errors import TierUnavailableError
from radix.groups import Group
from radix.tier import Seek, Transfer, Urgency
from tests.crash.diskrig import aligned_rows, records_of
from tiers.host import AdoptedTier
from tiers.remote import RemoteTier, begin_epoch
from tiers.remote_backend import MISSING, Put
from tiers.remote_directory import Epochs, new_epoch, outdates
from tiers.remote_values import EPOCH_BYTES, sealed_epoch

GROUPS = (Group.full("kv", 4096),)
NAME = "radix:epoch"
SOON = 1e-6  # so that each question asks for the epoch first


class Memory:
    """A backend in this process that many tiers share; ``values`` is what it keeps."""

    url = "memory://"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.between: Callable[[], object] = lambda: None  # after a write, before it is read

    def open(self, timeout_s: float) -> None:
        pass

    def register(self, memory: memoryview) -> None:
        pass

    def put(self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float) -> Any:
        for name, value in zip(names, values, strict=True):
            self.values.setdefault(name, bytes(value))
        return [Put.STORED] * len(names)

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        sizes = []
        for name, memory in zip(names, into, strict=True):
            value = self.values.get(name)
            memory[: len(value or b"")] = value or b""
            sizes.append(MISSING if value is None else len(value))
        return sizes

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        return [name in self.values for name in names]

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        for name in names:
            self.values.pop(name, None)

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        with self.lock:
            if not absent or name not in self.values:
                self.values[name] = value
        self.between()
        return self.values[name]

    def ping(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class Sharer:
    """A remote tier over a backend, below one block of memory."""

    def __init__(self, backend: Memory) -> None:
        self.upper = AdoptedTier([[aligned_rows(1, 4096)]], "rows")
        self.upper.attach(GROUPS, 64, None)
        self.tier = RemoteTier(backend, blocks=16, epoch_s=SOON)
        self.tier.attach(GROUPS, 64, self.upper)
        self.jobs = 0

    @property
    def epoch(self) -> bytes:
        assert self.tier._transfers is not None
        return self.tier._transfers._epochs.current

    def store(self, number: int) -> None:
        """Stores one block."""
        self.jobs += 1
        slots, row = self.tier.reserve(0, 1), np.zeros(1, np.int32)
        records = records_of([number])
        self.tier.store(Transfer(self.jobs, 0, row, slots, Urgency.STORE, records), self.upper)
        self.tier.flush()
        (done,) = self.tier.poll()
        assert done.good.all()
        self.tier.commit(0, slots)

    def finds(self, number: int) -> bool:
        """Whether a block seems to be there; it asks for the epoch first."""
        self.jobs += 1
        self.tier.seek(Seek(self.jobs, 0, records_of([number]), False))
        while not (answers := self.tier.found()):
            self.tier.wait(5.0)
        return bool(answers[0].there[0])

    def close(self) -> None:
        self.tier.close()
        self.upper.close()


def test_a_backend_that_goes_back_takes_nobody_with_it() -> None:
    """Redis restored from an older copy, or a replica that lacked the last write, took whoever had
    joined since the reset back to before it: he had never seen the older epoch, so that he thought
    it newer, and found the blocks of the old weights. One who had seen both told the backend the
    newer again, and from then on the two took turns for ever.
    """
    backend = Memory()
    knows = Sharer(backend)
    knows.store(1)
    before = backend.values[NAME]
    knows.tier.renew()
    knows.store(2)
    joined = Sharer(backend)
    assert joined.finds(2) and not joined.finds(1)
    for _ in range(3):
        backend.values[NAME] = before
        assert not joined.finds(1) and joined.finds(2)
        assert knows.finds(2) and not knows.finds(1)
        assert joined.epoch == knows.epoch == backend.values[NAME][:EPOCH_BYTES]
    for sharer in (knows, joined):
        sharer.close()


def test_an_epoch_read_before_a_reset_does_not_come_into_force_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that had read the epoch entered it after its owner's reset: what had been stored
    before it was found again, and the backend was told the old epoch by the next one to ask.
    """
    backend = Memory()
    sharer = Sharer(backend)
    sharer.store(1)
    old, judge = sharer.epoch, tiers.remote_transfers.is_epoch
    transfers = sharer.tier._transfers
    assert transfers is not None

    judged = []

    def slowly(value: bytes) -> bool:
        if threading.current_thread() is late:
            judged.append(value)
            if len(judged) == 2:  # it was found to be one that nobody has left
                sharer.tier.renew()  # as if the owner did it now
        return judge(value)

    late = threading.Thread(target=transfers._refresh, args=(1.0,))
    monkeypatch.setattr(tiers.remote_transfers, "is_epoch", slowly)
    late.start()
    late.join()
    assert len(judged) >= 2
    assert sharer.epoch != old
    assert not sharer.finds(1)
    assert backend.values[NAME][:EPOCH_BYTES] == sharer.epoch != old
    sharer.close()


def test_all_who_reset_at_once_have_reset() -> None:
    """Of replicas that got new weights together most were refused their reset, with "the part of it
    that keeps the epoch does not answer": another's epoch stood there when they looked at theirs.
    """
    backend = Memory()
    sharers = [Sharer(backend) for _ in range(4)]
    meet, refused = threading.Barrier(len(sharers)), []
    backend.between = lambda: time.sleep(0.0005)

    def reset(sharer: Sharer) -> None:
        for _ in range(40):
            meet.wait()
            try:
                sharer.tier.renew()
            except TierUnavailableError as error:
                refused.append(error)

    for turn in range(3):
        sharers[turn].store(turn)
        threads = [threading.Thread(target=reset, args=(each,)) for each in sharers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not refused
        assert not any(each.finds(turn) for each in sharers for _ in range(2))
        assert {each.epoch for each in sharers} == {backend.values[NAME][:EPOCH_BYTES]}
    for sharer in sharers:
        sharer.close()


def test_a_reset_that_another_overtook_leaves_what_stands_under_the_others_epoch() -> None:
    """Between the begin of an epoch and the reset of the store another one's can come into force:
    what is stored under that until then is of before the reset as well.
    """
    backend = Memory()
    first, other = Sharer(backend), Sharer(backend)
    first.tier.begin_epoch()
    other.tier.renew()
    assert not first.finds(1)  # it hears of the other's
    first.store(1)
    first.tier.renew()
    assert not first.finds(1) and not other.finds(1)
    assert first.epoch == other.epoch == backend.values[NAME][:EPOCH_BYTES]
    for sharer in (first, other):
        sharer.close()


def test_epochs_are_in_order_and_older_kinds_are_in_none() -> None:
    one = new_epoch()
    two = new_epoch(one)
    future = new_epoch(two[:4] + b"\xff" * 5 + b"\x00" + bytes(6))
    chance = bytes(range(16))  # of before they had an order
    assert len({one, two, future}) == 3 and len(one) == EPOCH_BYTES
    assert outdates(two, one) and outdates(future, two) and not outdates(one, two)
    assert not outdates(one, chance) and not outdates(chance, one) and not outdates(one, one)
    seen = Epochs()
    assert seen.saw(chance) and seen.saw(two) and not seen.saw(one) and not seen.saw(chance)
    assert seen.left(one) and seen.left(chance) and not seen.left(future)
    assert seen.current == two and seen.saw(future)


def test_a_purge_outdates_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no epoch; the one in the backend may be ahead of the clock."""
    backend = Memory()
    ahead = new_epoch(new_epoch()[:4] + b"\xff" * 5 + b"\x00" + bytes(6))
    backend.values[NAME] = sealed_epoch(ahead)
    monkeypatch.setattr(tiers.remote, "backend_of", lambda url: backend)
    begin_epoch("memory://", "radix", 1.0)
    assert outdates(backend.values[NAME][:EPOCH_BYTES], ahead)
