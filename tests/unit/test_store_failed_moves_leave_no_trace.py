"""A copy that fails costs a copy, a block that cannot be loaded is a miss from then on: no slot is
lost, nothing half-made is visible, nothing is tried for ever (I22, I23).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.errors import RequestError
from radix.events import KeysDone
from radix.keysets import FetchState
from radix.ownership import Ownership
from radix.tier import Tier, TierMode
from tests.unit.storerig import StoreRig, content, keys
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier
from tiers.index import IndexTier


def faulty(blocks: int = 16, name: str = "below", **script: dict[int, Fault]) -> FaultyTier:
    """A tier that checks what it gives, seen through a script of faults."""
    return FaultyTier(HostTier(blocks * 4096, name, verify=True), FaultPlan(script=script))


def empty_rows(rig: StoreRig) -> None:
    """Evicts all from the first tier."""
    count = rig.store.tiers[0].capacity_blocks(0)
    rig.store.abort(rig.store.reserve(keys(*range(5000, 5000 + count))))


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE, Fault.CORRUPT, Fault.OFF])
def test_failed_store_leaves_no_trace(fault: Fault) -> None:
    rig = StoreRig(8, faulty(store={1: fault}))
    rig.bring(1)
    rig.end()
    assert rig.where(1) == [0]
    assert rig.store.usage()["below"].used_blocks == (0,)
    assert rig.store.tree.stats().leases == 0


def test_store_in_part_keeps_the_part() -> None:
    rig = StoreRig(8, faulty(store={1: Fault.PART}))
    rig.bring(1, 2, 3, 4)
    rig.end()
    below = rig.store.slots(keys(1, 2, 3, 4), tier=1)
    assert (below >= 0).sum() == 2
    assert rig.store.counters()["store.failed.below.g0"] == 2


def test_store_refused_by_a_full_queue_is_offered_again() -> None:
    rig = StoreRig(8, faulty(store={2: Fault.REFUSE}))
    rig.bring(1)
    rig.bring(2)
    rig.end()
    assert (rig.store.slots(keys(1, 2), tier=1) >= 0).all()
    assert "store.declined.below.g0" not in rig.store.counters()


def test_store_that_is_always_refused_is_declined_in_the_end() -> None:
    refusals = dict.fromkeys(range(1, 9), Fault.REFUSE)
    rig = StoreRig(8, faulty(store=refusals))
    rig.bring(1, 2)
    rig.end()
    assert rig.where(1, 2) == [0, 0] and rig.store.transfers.idle()
    assert rig.store.counters()["store.declined.below.g0"] == 2


@pytest.mark.parametrize(
    ("fault", "counted"),
    [(Fault.CORRUPT, "corrupt"), (Fault.FAIL, "failed"), (Fault.LOSE, "failed")],
)
def test_block_that_cannot_be_loaded_is_a_miss_from_then_on(fault: Fault, counted: str) -> None:
    rig = StoreRig(8, faulty(load={1: fault}), events=True)
    rig.bring(1)
    rig.end()
    empty_rows(rig)
    assert rig.where(1) == [1]
    fetch = rig.store.fetch(keys(1))
    assert fetch.states.tolist() == [FetchState.COMING]
    assert rig.end() == {fetch.number: [False]}
    assert rig.where(1) == [-1]
    assert rig.store.counters()[f"load.{counted}.below.g0"] == 1
    assert rig.store.has(keys(1)).tolist() == [-1]
    assert rig.store.counters()[f"has.miss.{counted}"] == 1
    again = rig.store.fetch(keys(1))
    assert again.states.tolist() == [FetchState.ABSENT]
    assert rig.end() == {again.number: [False]}
    rig.bring(1)
    assert rig.where(1) == [0]


def test_flipped_bit_is_found_and_never_given() -> None:
    rig = StoreRig(8, faulty(store={1: Fault.FLIP}))
    rig.bring(1, 2)
    rig.end()
    empty_rows(rig)
    fetch = rig.store.fetch(keys(1, 2))
    good = rig.end()[fetch.number]
    assert sorted(good) == [False, True]
    slots = rig.store.slots(keys(1, 2))
    here = slots >= 0
    assert here.tolist() == good
    assert np.array_equal(rig.rows[0][slots[here]], content(1, 2)[here])


def test_deeper_copy_stands_in_for_a_corrupt_one() -> None:
    rig = StoreRig(8, faulty(8, load={1: Fault.CORRUPT}), faulty(16, "deep"))
    rig.bring(1)
    rig.end()
    empty_rows(rig)
    fetch = rig.store.fetch(keys(1))
    assert rig.end() == {fetch.number: [True]}
    assert np.array_equal(rig.rows[0][rig.store.slots(keys(1))], content(1))


def test_load_that_is_refused_ends_and_keeps_the_block() -> None:
    rig = StoreRig(8, faulty(load={1: Fault.REFUSE}))
    rig.bring(1)
    rig.end()
    empty_rows(rig)
    fetch = rig.store.fetch(keys(1))
    assert fetch.states.tolist() == [FetchState.NO_ROOM]
    assert rig.end() == {fetch.number: [False]}
    assert rig.where(1) == [1]
    fetch = rig.store.fetch(keys(1))
    assert rig.end() == {fetch.number: [True]}


def test_blocks_of_a_tier_that_went_off_count_again_when_it_is_back() -> None:
    rig = StoreRig(8, faulty(load={1: Fault.OFF}))
    rig.bring(1)
    rig.end()
    empty_rows(rig)
    fetch = rig.store.fetch(keys(1))
    assert rig.end() == {fetch.number: [False]}
    assert rig.store.has(keys(1)).tolist() == [-1]
    rig.store.set_mode("below", TierMode.ON)
    assert rig.store.has(keys(1)).tolist() == [1]


def test_fetch_takes_as_much_as_there_is_room_for() -> None:
    rig = StoreRig(8, IndexTier(32, "below"))
    rig.bring(*range(8))
    rig.end()
    rig.bring(*range(8, 16))
    rig.end()
    with rig.store.lease(keys(8, 9, 10, 11, 12)):
        fetch = rig.store.fetch(keys(13, 0, 1, 2, 3))
        assert fetch.states.tolist()[0] == FetchState.HERE
        good = rig.end()[fetch.number]
    assert good == [True, True, True, False, False]
    assert rig.where(13, 0, 1, 2) == [0, 0, 0, 1]


def test_fetch_of_more_than_fits_brings_the_first_keys_and_keeps_them() -> None:
    rig = StoreRig(8, IndexTier(32, "below"))
    rig.bring(*range(8))
    rig.end()
    rig.bring(*range(8, 16))
    rig.end()
    empty_rows(rig)
    fetch = rig.store.fetch(keys(*range(16)))
    assert fetch.states.tolist() == [FetchState.COMING] * 8 + [FetchState.NO_ROOM] * 8
    assert rig.end() == {fetch.number: [True] * 8 + [False] * 8}
    assert rig.where(*range(16)) == [0] * 8 + [1] * 8


def test_fetch_leaves_to_the_caller_what_the_caller_brings() -> None:
    rig = StoreRig(8, IndexTier(32, "below"))
    rig.bring(1)
    rig.end()
    empty_rows(rig)
    got = rig.store.reserve(keys(1, 2))
    fetch = rig.store.fetch(keys(1, 2, 3))
    assert fetch.states.tolist() == [FetchState.COMING, FetchState.COMING, FetchState.ABSENT]
    assert rig.end() == {fetch.number: [False, False, False]}
    rig.fill(got)
    rig.store.commit(got)
    assert rig.where(1, 2) == [0, 0]
    rig.end()


def test_two_fetches_of_a_key_move_it_once() -> None:
    rig = StoreRig(8, IndexTier(32, "below"))
    rig.bring(1, 2)
    rig.end()
    empty_rows(rig)
    first = rig.store.fetch(keys(1))
    second = rig.store.fetch(keys(1, 2, 2))
    assert second.states.tolist() == [FetchState.COMING] * 3
    answers = rig.end()
    assert answers[first.number] == [True] and answers[second.number] == [True] * 3
    assert rig.store.counters()["load.blocks.below.g0"] == 2


def test_two_fetches_from_far_below_wait_for_the_same_copy() -> None:
    rig = StoreRig(8, IndexTier(8, "near"), IndexTier(32, "far"))
    rig.bring(1)
    rig.end()
    for first in (100, 200):
        rig.bring(*range(first, first + 8))
        rig.end()
    assert rig.where(1) == [2]
    first, second = rig.store.fetch(keys(1)), rig.store.fetch(keys(1))
    assert second.states.tolist() == [FetchState.COMING]
    assert rig.end() == {first.number: [True], second.number: [True]}
    assert rig.store.counters()["load.blocks.far.g0"] == 1


# ---------------------------------------------------------------- rows that the engine lends


def lent(*below: Tier, rows: int = 32) -> StoreRig:
    """A store that owns nothing of the first memory."""
    return StoreRig(rows, *below, ownership=Ownership.BORROWED)


def test_rows_go_down_and_come_back_elsewhere() -> None:
    rig = lent(faulty(8))
    rig.rows[0][[4, 9]] = content(1, 2)
    number = rig.store.store(keys(1, 2), [4, 9])
    assert rig.end() == {number: [True, True]}
    rig.rows[0][:] = 0
    load = rig.store.load(keys(2, 3, 1), [0, 1, 2])
    assert load.states.tolist() == [FetchState.COMING, FetchState.ABSENT, FetchState.COMING]
    assert rig.end() == {load.number: [True, False, True]}
    assert np.array_equal(rig.rows[0][[0, 2]], content(2, 1))
    assert not rig.rows[0][1].any()


def test_store_of_rows_says_what_it_could_not_take() -> None:
    rig = lent(faulty(8, store={1: Fault.FAIL}))
    number = rig.store.store(keys(1), [0])
    assert rig.end() == {number: [False]}
    number = rig.store.store(keys(*range(12)), list(range(12)))
    good = rig.end()[number]
    assert good == [True] * 8 + [False] * 4, "the deepest find no room"
    again = rig.store.store(keys(0, 1, 20), [0, 1, 20])
    assert rig.end() == {again: [True, True, True]}


def test_load_streams_through_a_tier_that_is_smaller() -> None:
    rig = lent(faulty(8, "small"), faulty(40, "large"), rows=64)
    rig.rows[0][:24] = content(*range(24))
    for first in range(0, 24, 8):
        rig.store.store(keys(*range(first, first + 8)), list(range(first, first + 8)))
        rig.end()
    load = rig.store.load(keys(*range(24)), list(range(32, 56)))
    assert rig.end() == {load.number: [True] * 24}
    assert np.array_equal(rig.rows[0][32:56], content(*range(24)))
    assert rig.store.tree.stats().leases == 0


def test_row_is_written_by_one_load_at_a_time() -> None:
    rig = lent(IndexTier(8, "below"))
    rig.store.store(keys(1), [0])
    rig.end()
    rig.store.load(keys(1), [5])
    for rows in ([5], [6, 6]):
        with pytest.raises(ValueError, match="two loads into one row"):
            rig.store.load(keys(*range(1, 1 + len(rows))), rows)
    rig.end()
    with pytest.raises(ValueError, match="rows must be 1 rows below 32"):
        rig.store.load(keys(1), [32])
    with pytest.raises(RequestError, match="owns the slots"):
        StoreRig(8).store.store(keys(1), [0])


def test_corrupt_block_that_a_store_still_reads_keeps_its_slot_until_then() -> None:
    far = FaultyTier(HostTier(16 * 4096, "far"), FaultPlan(delay_polls=50))
    rig = lent(faulty(8, load={1: Fault.CORRUPT}), far)
    rig.rows[0][0] = content(1)
    rig.store.store(keys(1), [0])
    while not rig.store.transfers.targets(1, 0).size:  # until the copy to far has begun
        rig.store.wait()
        rig.store.poll()
    load = rig.store.load(keys(1), [5])
    done: list[KeysDone] = []
    while not done:
        rig.store.wait()
        done = [event for event in rig.store.poll() if isinstance(event, KeysDone)]
    assert [(e.number, e.good.tolist()) for e in done] == [(load.number, [False])]
    assert rig.store.transfers.jobs, "the copy to far is under way"
    assert rig.where(1) == [0]
    rig.store.check()
    assert rig.end() == {}
    load = rig.store.load(keys(1), [5])
    assert rig.end() == {load.number: [True]}
    assert np.array_equal(rig.rows[0][[5]], content(1))
