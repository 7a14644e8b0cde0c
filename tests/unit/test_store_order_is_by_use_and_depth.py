"""What goes first is what was used longest ago; of keys used together the deepest (I16, I17). Use
is to be asked for, leased, touched, fetched, brought or offered again; a copy's timing is no use.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from radix.errors import LeaseError
from tests.unit.storerig import StoreRig, keys
from tiers.index import IndexTier


def victims(rig: StoreRig, *, column: int = 0) -> list[int]:
    """Every key in the order in which it would go."""
    core = rig.store.residency.core(rig.store._spaces.root(None))
    nodes = rig.store.tree.order(column)
    every = {int(n): i for i, n in enumerate(core.find(keys(*range(100))).tolist()) if n}
    return [every[node] for node in nodes]


def test_deepest_key_of_a_set_goes_first() -> None:
    rig = StoreRig(8)
    rig.bring(1, 2, 3)
    rig.bring(4, 5)
    assert victims(rig) == [3, 2, 1, 5, 4]
    got = rig.store.reserve(keys(6, 7, 8, 9, 10))
    assert rig.where(1, 2, 3, 4, 5) == [0, -1, -1, 0, 0]
    rig.store.abort(got)


def test_positions_say_which_key_is_the_deepest() -> None:
    rig = StoreRig(8)
    rig.bring(1, 2, 3, positions=[30, 10, 20])
    assert victims(rig) == [1, 3, 2]
    rig.store.touch(keys(1, 2, 3), positions=np.array([1, 2, 3]))
    assert victims(rig) == [3, 2, 1]
    rig.store.touch(keys(3, 1, 2), positions=[-1, 5, -1])
    assert victims(rig) == [1, 2, 3], "what has no position counts as the shallowest"


@pytest.mark.parametrize("use", ["has", "touch", "lease", "fetch", "reserve"])
def test_every_kind_of_use_counts(use: str) -> None:
    rig = StoreRig(8)
    rig.bring(1, 2, 3, 4)
    call = getattr(rig.store, use)
    got = call(keys(4, 3))
    if use == "lease":
        assert victims(rig) == [2, 1]
        got.release()
    assert victims(rig) == [2, 1, 3, 4]
    rig.store.check()


@pytest.mark.parametrize("ask", ["slots", "coming", "valid_lengths"])
def test_asking_without_use_changes_nothing(ask: str) -> None:
    rig = StoreRig(8)
    rig.bring(1, 2, 3, 4)
    before = (victims(rig), rig.store.tree.stats(), rig.store.counters())
    getattr(rig.store, ask)([keys(4, 3)] if ask == "valid_lengths" else keys(4, 3))
    assert (victims(rig), rig.store.tree.stats(), rig.store.counters()) == before


def test_end_of_a_copy_is_no_use() -> None:
    rig = StoreRig(8, IndexTier(8, "below"))
    rig.bring(1, 2, 3)  # copies begin
    rig.bring(4)
    rig.store.touch(keys(2))
    rig.end()
    assert victims(rig) == [3, 1, 4, 2]
    assert victims(rig, column=1) == [3, 1, 4, 2], "a copy is as old as its original"


def test_leased_keys_stay_and_are_the_youngest_after_it() -> None:
    rig = StoreRig(8)
    rig.bring(*range(8))
    lease = rig.store.lease(keys(7, 6, 99))
    assert lease.held.tolist() == [True, True, False]
    rig.store.abort(rig.store.reserve(keys(*range(20, 26))))
    assert rig.where(6, 7) == [0, 0] and rig.where(*range(6)) == [-1] * 6
    rig.store.release(lease)
    assert victims(rig) == [6, 7]
    assert lease.released
    with pytest.raises(LeaseError, match="released already"):
        lease.release()
    rig.store.check()


def test_lease_ends_once_and_in_its_own_store() -> None:
    rig, other = StoreRig(8), StoreRig(8)
    rig.bring(1, 2)
    with rig.store.lease(keys(1, 2)) as lease:
        with pytest.raises(LeaseError, match="another store"):
            other.store.release(lease)
        assert rig.store.tree.stats().leases == 2
    assert rig.store.tree.stats().leases == 0
    with rig.store.lease(keys(1)) as lease:
        lease.release()
    rig.store.check()


def test_dropped_lease_is_given_back_and_counted() -> None:
    rig = StoreRig(8)
    rig.bring(1, 2)
    rig.store.lease(keys(2, 1))
    gc.collect()
    rig.store.check()
    assert rig.store.tree.stats().leases == 0
    assert rig.store.counters()["lease.dropped"] == 1
    assert victims(rig) == [1, 2]


def test_lease_outlives_its_store() -> None:
    rig = StoreRig(8)
    rig.bring(1)
    lease = rig.store.lease(keys(1))
    rig.store.close()
    rig.store.close()
    lease.release()
    assert lease.released


def test_longest_prefix_of_many_runs_is_found_in_one_call() -> None:
    rig = StoreRig(8, IndexTier(8, "below"))
    rig.bring(1, 2, 3)
    rig.end()
    rig.store.abort(rig.store.reserve(keys(*range(20, 27))))  # 2 and 3 are only below now
    runs = [keys(1, 2, 3), keys(1, 9, 3), keys(9), keys(), keys(3, 2, 1, 9), keys(2)]
    assert rig.store.valid_lengths(runs).tolist() == [3, 1, 0, 0, 3, 1]
    assert rig.store.valid_lengths([]).tolist() == []
