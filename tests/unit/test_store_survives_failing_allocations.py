"""Whatever native allocation fails, a call of the store does all or nothing, a copy that could not
be begun is a copy less, and every slot keeps one owner (I7, I8, I11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from radix._native import lib
from radix.ownership import Ownership
from tests.unit.storerig import StoreRig, content, keys
from tiers.index import IndexTier

DEEPEST = 25  # no call makes so many allocations


@contextmanager
def failing(nth: int) -> Iterator[None]:
    """The nth native allocation of the body fails."""
    lib.rdx_alloc_fail_at(nth)
    try:
        yield
    finally:
        lib.rdx_alloc_fail_at(0)


def commit(rig: StoreRig) -> None:
    got = rig.store.reserve(keys(20, 21, 22))
    try:
        rig.store.commit(got)
    except MemoryError:
        lib.rdx_alloc_fail_at(0)
        rig.store.abort(got)
        raise


CALLS: list[Callable[[StoreRig], object]] = [
    commit,
    lambda rig: rig.store.reserve(keys(20, 21, 22), keep=keys(1, 2)),
    lambda rig: rig.store.lease(keys(1, 2, 3, 4)),
    lambda rig: rig.store.fetch(keys(1, 2, 3, 4)),
    lambda rig: rig.store.has(keys(1, 2)),
    lambda rig: rig.store.poll(),
]


@pytest.mark.parametrize("nth", range(1, DEEPEST))
@pytest.mark.parametrize("call", CALLS)
def test_call_does_all_or_nothing(call: Callable[[StoreRig], object], nth: int) -> None:
    rig = StoreRig(12, IndexTier(8, "near"), IndexTier(32, "far"))
    rig.bring(1, 2, 3, 4)
    rig.end()
    rig.store.abort(rig.store.reserve(keys(*range(100, 112))))  # these four are below only
    rig.bring(*range(5, 13))
    before = rig.where(*range(30))
    with failing(nth):
        try:
            result = call(rig)
        except MemoryError:
            lib.rdx_alloc_fail_at(0)
            assert rig.where(*range(30)) == before
            result = None
    rig.store.check()
    del result
    rig.end()
    assert rig.store.transfers.idle()
    assert rig.store.tree.stats().leases == 0


@pytest.mark.parametrize("nth", range(1, DEEPEST))
def test_lent_rows_arrive_or_are_told_not_to(nth: int) -> None:
    rig = StoreRig(8, IndexTier(8, "near"), IndexTier(32, "far"), ownership=Ownership.BORROWED)
    rig.rows[0][:3] = content(1, 2, 3)
    number = rig.store.store(keys(1, 2, 3), [0, 1, 2])
    with failing(nth):
        rig.store.poll()
    rig.store.check()
    good = rig.end().get(number)
    there = (rig.store.slots(keys(1, 2, 3)) >= 0).tolist()
    assert good in (None, there), "None: it was answered while the allocation failed"
    assert np.unique(there).size == 1
    assert rig.store.tree.stats().leases == 0
