"""Fault: keys of a flat store that were forgotten, or whose namespace was purged, were there again
later. Mechanism: what was being copied was voided; what waited to be, the engine's rows that a full
queue had refused, was not, and went down once the queue had room. Source: storms of stores,
forgotten keys and purges over bounded queues (docs of ``forget`` and ``purge``: no tier has them
from now on, nor is given them).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radix.events import KeysDone
from radix.groups import Group
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.policy.limits import Limits
from radix.store import FlatStore
from tests.ticktier import TickTier
from tests.unit.storerig import WIDTH, keys
from tiers.host import AdoptedTier

OTHER = Namespace(salt=b"other")


def forget(store: FlatStore) -> None:
    """Keys 3 and 4 of the first group."""
    store.forget(keys(3, 4))


def purge(store: FlatStore) -> None:
    """All of the namespace."""
    store.purge(store.root_of(None))


@pytest.mark.parametrize(("lose", "left"), [(forget, [1, 2, 5]), (purge, [])], ids=["some", "all"])
def test_what_waits_to_be_stored_is_lost_with_its_keys(
    lose: Callable[[FlatStore], None], left: list[int]
) -> None:
    rows = [np.zeros((16, 64), np.uint8) for _ in range(2)]
    store = FlatStore(
        [Group.full("kv", 64), Group.full("more", 64)],
        [AdoptedTier([[row] for row in rows], "rows"), TickTier(16, "below")],
        key_bytes=WIDTH,
        ownership=Ownership.BORROWED,
        limits=Limits(stores=1),
    )
    with store:
        first = store.store(keys(1, 2), np.array([0, 1]))
        waiting = store.store(keys(3, 4, 5), np.array([2, 3, 4]))
        beside = store.store(keys(3), np.array([5]), namespace=OTHER)
        group = store.store(keys(3), np.array([6]), 1)
        assert len(store.transfers._waiting) == 3, "nothing waits"
        lose(store)
        store.check()
        told = {event.number: event for event in store.flush() if isinstance(event, KeysDone)}
        store.check()
        there = store.has(keys(1, 2, 3, 4, 5))
        assert (np.flatnonzero(there >= 0) + 1).tolist() == left
        assert told[first].good.tolist() == [1 in left, 2 in left]
        assert told[waiting].good.tolist() == [False, False, 5 in left]
        assert told[beside].good.tolist() == [True], "of another namespace"
        assert told[group].good.tolist() == [lose is forget], "of another group"
        again = store.store(keys(3, 4), np.array([2, 3]))
        [done] = [event for event in store.flush() if isinstance(event, KeysDone)]
        assert (done.number, done.good.tolist()) == (again, [True, True])
