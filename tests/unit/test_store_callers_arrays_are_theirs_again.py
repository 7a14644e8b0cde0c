"""Arrays that a flat store was called with are the caller's again when the call returns. Fault: a
load through a tier in between reads its keys and rows again when the next hop begins. Mechanism:
they were kept as they came, so that a caller who fills one array for call after call had the bytes
of the first in the rows of the second. Source: reading the code.
"""

from __future__ import annotations

import numpy as np

from radix.ownership import Ownership
from tests.ticktier import TickTier
from tests.unit.storerig import StoreRig, content, keys


def _deep() -> StoreRig:
    """Keys 1 to 4 in the lower of two tiers below lent rows, and nowhere else."""
    below = [TickTier(16, name) for name in ("host", "deep")]
    rig = StoreRig(12, *below, ownership=Ownership.BORROWED)
    rig.rows[0][:4] = content(1, 2, 3, 4)
    rig.store.store(keys(1, 2, 3, 4), np.arange(4))
    rig.end()
    rig.store.residency.evict(0, 0, 16)
    assert rig.where(1, 2, 3, 4) == [1] * 4
    return rig


def test_rows_and_keys_of_a_load_may_be_filled_anew_at_once() -> None:
    rig = _deep()
    asked, rows = keys(1, 2), np.array([4, 5], np.int32)
    load = rig.store.load(asked, rows)
    asked[:], rows[:] = keys(3, 4), [6, 7]
    again = rig.store.load(asked, rows)
    asked[:], rows[:] = keys(9, 9), [10, 11]
    assert rig.end() == {load.number: [True, True], again.number: [True, True]}
    assert (rig.rows[0][4:8] == content(1, 2, 3, 4)).all()
    assert not rig.rows[0][8:].any()


def test_keys_of_a_fetch_and_of_a_store_may_be_filled_anew_at_once() -> None:
    rig = _deep()
    asked, rows = keys(1, 2), np.array([4, 5], np.int32)
    fetch = rig.store.fetch(asked)
    asked[:] = keys(7, 8)
    rig.rows[0][4:6] = content(7, 8)
    number = rig.store.store(asked, rows)
    asked[:], rows[:] = keys(9, 9), [10, 11]
    assert rig.end() == {fetch.number: [True, True], number: [True, True]}
    assert rig.where(1, 2, 7, 8, 9) == [0, 0, 0, 0, -1]
    load = rig.store.load(keys(7, 8, 1), np.array([8, 9, 10], np.int32))
    assert rig.end() == {load.number: [True] * 3}
    assert (rig.rows[0][8:11] == content(7, 8, 1)).all()
