"""After a reset no tier of a flat store has anything of before, nor gets it from what is under way,
nor finds it when it is opened again; slots that are read meanwhile rest (I7, I8, I31). A block that
was found to be wrong leaves alike.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from radix.errors import CapacityError, ClosedError, TierUnavailableError
from radix.events import BlocksRemoved, BlocksStored, KeysDone
from radix.groups import Group
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.store import FlatStore
from tests.ticktier import TickTier, peek
from tests.unit.storerig import BLOCK, WIDTH, StoreRig, content, keys
from tiers.disk import DiskTier
from tiers.faults import FaultPlan, FaultyTier
from tiers.host import AdoptedTier, HostTier


def two_tiers(rows: int = 8, blocks: int = 8, **options: object) -> StoreRig:
    return StoreRig(rows, TickTier(blocks, "below"), **options)


def test_nothing_is_found_in_any_tier_and_every_slot_is_free() -> None:
    rig = two_tiers()
    rig.bring(1, 2, 3)
    rig.end()
    rig.store.reset()
    rig.end()
    assert rig.where(1, 2, 3) == [-1, -1, -1]
    assert [use.used_blocks for use in rig.store.usage().values()] == [(0,), (0,)]
    assert rig.store.tree.stats().nodes == 1, "a root and nothing else"


def test_two_resets_are_one() -> None:
    rig = two_tiers()
    rig.bring(1)
    held = rig.store.lease(keys(1))
    rig.store.reset()
    rig.store.reset()
    rig.store.check()
    held.release()
    rig.end()
    assert [use.used_blocks for use in rig.store.usage().values()] == [(0,), (0,)]


def test_second_reset_finds_the_load_of_before_still_under_way() -> None:
    """It took the load for one of its own, which somebody still waited for."""
    rig = two_tiers()
    rig.bring(1)
    rig.end()
    rig.store.abort(rig.store.reserve(keys(*range(50, 58))))
    fetch = rig.store.fetch(keys(1))
    rig.store.reset()
    rig.store.reset()
    assert rig.end() == {fetch.number: [False]}


def test_only_the_tiers_that_are_named_begin_anew() -> None:
    rig = two_tiers()
    rig.bring(1)
    rig.end()
    rig.store.reset(["rows"])
    rig.end()
    assert rig.where(1) == [1]
    with pytest.raises(ValueError, match="tiers: 'tape' is not one of"):
        rig.store.reset(["tape"])


def test_copy_under_way_brings_nothing_and_its_source_rests() -> None:
    rig = two_tiers()
    rig.bring(1)  # its copy down waits for a poll
    slot = int(rig.store.slots(keys(1))[0])
    rig.store.reset()
    rig.store.check()
    taken = rig.store.reserve(keys(*range(10, 17)))
    assert slot not in taken.slots.tolist(), "read by the copy until it ends"
    rig.fill(taken)
    rig.store.abort(taken)
    rig.end()
    assert rig.where(1) == [-1]
    assert len(rig.store.reserve(keys(*range(20, 28)))) == 8


def test_load_under_way_brings_nothing_and_its_fetch_ends() -> None:
    rig = two_tiers()
    rig.bring(1)
    rig.end()
    rig.store.abort(rig.store.reserve(keys(*range(50, 58))))  # the rows forget it
    fetch = rig.store.fetch(keys(1))
    rig.store.reset()
    rig.store.check()
    ends = rig.end()
    assert ends[fetch.number] == [False]
    assert rig.where(1) == [-1]


def test_key_stored_anew_while_its_old_load_runs_holds_the_new_bytes() -> None:
    rig = two_tiers()
    rig.bring(1)
    rig.end()
    rig.store.abort(rig.store.reserve(keys(*range(50, 58))))
    rig.store.fetch(keys(1))
    rig.store.reset()
    got = rig.store.reserve(keys(1))
    rig.rows[0][got.slots] = 77
    rig.store.commit(got)
    rig.end()
    slot = int(rig.store.slots(keys(1))[0])
    assert (rig.rows[0][slot] == 77).all()


def test_reservation_of_before_shows_nothing_when_it_is_committed() -> None:
    rig = two_tiers()
    old = rig.store.reserve(keys(1, 2))
    rig.store.reset()
    rig.store.check()
    new = rig.store.reserve(keys(1))
    assert not set(old.slots.tolist()) & set(new.slots.tolist()), "still being written"
    rig.store.commit(old)
    rig.store.check()
    assert rig.where(1, 2) == [-1, -1]
    rig.fill(new)
    rig.store.commit(new)
    rig.end()
    assert rig.where(1, 2) == [0, -1]


def test_slot_under_a_lease_rests_until_it_is_released() -> None:
    rig = two_tiers(rows=2)
    rig.bring(1)
    rig.end()
    slot = int(rig.store.slots(keys(1))[0])
    held = rig.store.lease(keys(1))
    rig.store.reset()
    rig.end()
    assert rig.where(1) == [-1]
    got = rig.store.reserve(keys(2))
    assert slot not in got.slots.tolist()
    rig.store.abort(got)
    held.release()
    rig.end()
    assert len(rig.store.reserve(keys(2, 3))) == 2


def test_slot_under_a_lease_that_was_dropped_is_free_again() -> None:
    rig = two_tiers(rows=2)
    rig.bring(1)
    rig.end()
    held = rig.store.lease(keys(1))
    rig.store.reset()
    del held
    rig.end()
    assert len(rig.store.reserve(keys(2, 3))) == 2


def test_rows_of_the_engine_are_told_done_only_when_nothing_touches_them() -> None:
    rows = np.zeros((4, BLOCK), np.uint8)
    top, below = AdoptedTier([[rows]], "lent"), TickTier(8, "below")
    store = FlatStore(
        [Group.full("g0", BLOCK)], [top, below], key_bytes=WIDTH, ownership=Ownership.BORROWED
    )
    rows[:2] = content(1, 2)
    stored = store.store(keys(1), np.array([0], np.int32))
    store.flush()
    store.poll()
    loaded = store.load(keys(1), np.array([3], np.int32)).number
    again = store.store(keys(2), np.array([1], np.int32))
    below.pace = 0.0
    store.reset()
    assert not [e for e in store.poll() if isinstance(e, KeysDone)], "copies still run"
    below.pace = 1.0
    ends = {e.number: e.good.tolist() for e in store.flush() if isinstance(e, KeysDone)}
    ends |= {e.number: e.good.tolist() for e in store.poll() if isinstance(e, KeysDone)}
    assert stored not in ends and ends == {loaded: [False], again: [False]}
    store.check()
    assert below.usage().used_blocks == (0,)


def test_stream_tells_of_every_block_that_a_reset_takes_once() -> None:
    rig = two_tiers(events=True)
    rig.bring(1, 2)
    resident: set[tuple[str, bytes]] = set()
    held = rig.store.lease(keys(2))

    def replay() -> None:
        for event in rig.store.poll() + rig.store.flush():
            if isinstance(event, BlocksStored | BlocksRemoved):
                for key in event.keys:
                    place = event.tier, key[16:].tobytes()
                    assert (place in resident) == isinstance(event, BlocksRemoved)
                    resident.symmetric_difference_update([place])

    replay()
    assert len(resident) == 4
    rig.store.reset()
    replay()
    assert not resident
    held.release()


def test_reset_is_durable_and_what_came_later_is_found(tmp_path: Path) -> None:
    def opened() -> StoreRig:
        return StoreRig(8, DiskTier(tmp_path / "d", limit_bytes=64 << 20, segment_bytes=1 << 20))

    rig = opened()
    rig.bring(1, 2)
    rig.end()
    rig.bring(3)  # on its way down
    rig.store.reset()
    rig.bring(4)
    rig.end()
    rig.store.close()
    rig = opened()
    assert rig.where(1, 2, 3, 4) == [-1, -1, -1, 1]
    rig.store.close()


def test_epoch_that_cannot_be_kept_changes_nothing() -> None:
    class Failing(FaultyTier):
        def renew(self) -> None:
            raise TierUnavailableError(self.name, "no new epoch")

    rig = StoreRig(8, Failing(HostTier(1 << 20, "below"), FaultPlan()))
    rig.bring(1)
    rig.end()
    with pytest.raises(TierUnavailableError, match="no new epoch"):
        rig.store.reset()
    rig.store.check()
    assert rig.where(1) == [0] and (rig.store.slots(keys(1), tier=1) >= 0).all()


def test_probe_answers_as_has_and_changes_and_counts_nothing() -> None:
    rig = two_tiers(rows=2)
    rig.bring(1)
    rig.end()
    rig.bring(2, 3)
    rig.end()
    before = rig.store.counters()
    order = rig.store.tree.order(rig.store.tree.column(0, 0))
    asked = [rig.store.probe(key.tobytes()) for key in keys(1, 2, 9)]
    assert asked == [1, 0, -1]
    assert rig.store.counters() == before
    assert rig.store.tree.order(rig.store.tree.column(0, 0)) == order
    assert rig.store.has(keys(1, 2, 9)).tolist() == asked
    with pytest.raises(ValueError, match="key must have 8 bytes, not 3"):
        rig.store.probe(b"abc")


def test_probe_finds_a_namespace_that_went_and_came_again() -> None:
    rig = two_tiers()
    space = Namespace("comes and goes")
    ask = rig.store.prober(space)
    assert ask(keys(1)[0].tobytes(), 0) == -1
    for number in range(200):  # empty ones are let go
        rig.store.has(keys(1), namespace=Namespace(f"n{number}"))
    assert ask(keys(1)[0].tobytes(), 0) == -1
    rig.bring(1, namespace=space)
    assert ask(keys(1)[0].tobytes(), 0) == 0
    rig.store.close()
    with pytest.raises(ClosedError):
        ask(keys(1)[0].tobytes(), 0)


def test_forgotten_block_leaves_every_tier_and_the_copy_under_way_brings_it_nowhere() -> None:
    rig = two_tiers()
    rig.bring(1, 2)
    rig.store.forget(keys(1))  # both on their way down
    rig.store.check()
    rig.end()
    assert rig.where(1, 2) == [-1, 0]
    rig.bring(1)
    rig.end()
    assert rig.where(1) == [0] and (rig.store.slots(keys(1), tier=1) >= 0).all()
    rig.store.forget(keys(1, 9))
    rig.end()
    assert rig.where(1) == [-1]


@pytest.mark.parametrize("seed", range(12))
def test_resets_at_any_moment_leave_no_slot_and_no_old_byte(seed: int) -> None:
    chance = random.Random(seed)
    rig = StoreRig(6, TickTier(5, "below", pace=0.4, seed=seed))
    epoch, leases, open_ = 0, [], []
    for _ in range(300):
        what = chance.randrange(9)
        number = chance.randrange(12)
        if what < 3:
            try:
                got = rig.store.reserve(keys(number))
            except CapacityError:
                continue
            open_.append((epoch, got))
        elif what < 5 and open_:
            made, got = open_.pop(chance.randrange(len(open_)))
            rig.rows[0][got.slots] = made + 1
            rig.store.commit(got)
        elif what == 5:
            rig.store.fetch(keys(number))
        elif what == 6:
            leases.append(rig.store.lease(keys(number)))
        elif what == 7 and leases:
            leases.pop(chance.randrange(len(leases))).release()
        elif chance.random() < 0.2:
            rig.store.reset()
            epoch += 1
        if chance.random() < 0.5:
            rig.store.poll()
        rig.store.check()
        for tier in range(2):
            for slot in rig.store.slots(keys(*range(12)), tier=tier).tolist():
                if slot >= 0:
                    found = set(peek(rig.store.tiers[tier], 0, slot).tolist())
                    assert found == {epoch + 1}, f"seed {seed}: {found} in epoch {epoch}"
    for _, got in open_:
        rig.store.abort(got)
    for lease in leases:
        lease.release()
    rig.store.reset()
    rig.end()
    assert [use.used_blocks for use in rig.store.usage().values()] == [(0,), (0,)], f"seed {seed}"
