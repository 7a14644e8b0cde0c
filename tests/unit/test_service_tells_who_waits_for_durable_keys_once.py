"""Who waits for keys to be durable is told once, when they are, when they will not be, or when its
time is over; and costs a turn of the loop nothing until then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix import FlatStore, Group, Namespace
from radix.events import BlocksStored
from radix.keysets import Mask
from radix.service.settling import Settling, Settlings
from tests.counting import calls_of
from tests.ticktier import TickTier

KEY_BYTES = 8
SPACE = Namespace(model="m")
Keys = npt.NDArray[np.uint8]


def _keys(*numbers: int) -> Keys:
    return np.array(numbers, np.int64)[:, None].view(np.uint8)


class _Rig:
    """A store of so many keys that are on their way down, and who waits for them."""

    def __init__(self, keys: int) -> None:
        self.below = TickTier(4 * keys, "below", pace=0.0)
        self.store = FlatStore(
            [Group.full("kv", 4)],
            [TickTier(4 * keys, "host"), self.below],
            key_bytes=KEY_BYTES,
            events=True,
        )
        self.waits = Settlings(self.store, 1)
        self.told: dict[int, list[bool]] = {}
        for at in range(keys):
            self.put(at)
        self.turn()
        self.jobs = [transfer.job for transfer, *_ in self.below._waiting]
        assert len(self.jobs) == keys

    def put(self, *numbers: int) -> None:
        self.store.commit(self.store.reserve(_keys(*numbers), namespace=SPACE))

    def wait(self, name: int, *numbers: int, until: float = 9.0) -> None:
        self.waits.add(Settling(_keys(*numbers), 0, SPACE, self._tell(name), until))

    def _tell(self, name: int) -> Callable[[Mask], None]:
        def tell(below: Mask) -> None:
            assert name not in self.told, "told twice"
            self.told[name] = below.tolist()

        return tell

    def ends(self, *jobs: int) -> None:
        """From now on these copies end, and no others."""
        self.below.pace = 1.0
        self.below.held = set(self.jobs) - {self.jobs[job] for job in jobs}

    def turn(self, now: float = 0.0) -> None:
        for event in self.store.poll():
            if isinstance(event, BlocksStored):
                self.waits.came(event)
        self.waits.run(now)


def test_each_is_told_with_its_own_keys() -> None:
    """Of several who wait for one key, of one who waits for two, of one whose key nobody brings."""
    rig = _Rig(3)
    with rig.store:
        rig.wait(1, 0)
        rig.wait(2, 0, 1)
        rig.wait(3, 0, 2, 99)
        rig.turn()
        assert not rig.told and rig.waits
        rig.ends(0)
        rig.turn()
        assert rig.told == {1: [True]}
        rig.wait(4, 0)
        assert rig.told.pop(4) == [True], "it is there: told at once"
        rig.ends(0, 1)
        rig.turn()
        assert rig.told == {1: [True], 2: [True, True]}
        rig.ends(0, 1, 2)
        rig.turn()
        assert rig.told[3] == [True, True, False], "nothing is on its way: it will not come"
        assert not rig.waits and not rig.waits._lacking
        rig.store.check()


def test_what_came_and_went_again_is_not_told_as_durable() -> None:
    """A key that was below is evicted there before the other one has come."""
    rig = _Rig(3)
    with rig.store:
        rig.wait(1, 0, 1)
        rig.ends(0)
        rig.turn()
        rig.store.forget(_keys(0), namespace=SPACE)
        rig.ends(0, 1)
        rig.turn()
        assert not rig.told, "one of them is gone, and something is on its way yet"
        rig.ends(0, 1, 2)
        rig.turn()
        assert rig.told == {1: [False, True]}


def test_whose_time_is_over_is_told_how_it_stands() -> None:
    """By age: the oldest has the nearest end."""
    rig = _Rig(2)
    with rig.store:
        rig.wait(1, 0, 1, until=1.0)
        rig.wait(2, 1)
        rig.ends(0)
        rig.turn()
        assert not rig.told
        rig.turn(now=1.0)
        assert rig.told == {1: [True, False]}
        rig.waits.close()
        assert rig.told == {1: [True, False], 2: [False]} and not rig.waits


def _turns(keys: int) -> tuple[int, int]:
    rig = _Rig(keys)
    with rig.store:
        for at in range(keys):
            rig.wait(at, at)
        nothing = calls_of(rig.turn)
        assert not rig.told
        rig.ends(0)
        one = calls_of(rig.turn)
        assert rig.told == {0: [True]}
        rig.ends(*range(keys))
        rig.turn()
        assert rig.told == {at: [True] for at in range(keys)}
    return nothing, one


def test_a_turn_costs_nothing_for_those_who_wait_on() -> None:
    """The fault: each turn of the loop, one a message and one a millisecond, looked up the keys of
    everybody who waits.
    """
    few, many = _turns(4), _turns(200)
    assert many == few
