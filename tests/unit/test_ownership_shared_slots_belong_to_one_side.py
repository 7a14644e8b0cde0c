"""Device slots that the engine allocates: offered, adopted, given back. At each moment a slot is
the engine's or the cache's, never both, and its bytes are those of its page (I7, I8; C3, C11).
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, LeaseError, RequestError, SlotError, TierError
from radix.ownership import AdoptedSlots, Ownership
from tests.cacherig import GROUPS, Rig, build
from tests.ticktier import TickTier, peek
from tiers.device import DeviceTier
from tiers.index import IndexTier

BLOCKS = 16


class Engine(Rig):
    """An engine with a slot allocator of its own, over a cache that adopts."""

    def __init__(self, below: int = 32, groups: int = 1) -> None:
        device = DeviceTier(blocks=BLOCKS, device="cpu")
        tick = TickTier(below, "host")
        cache = PrefixCache(
            GROUPS[:groups],
            [device, tick],
            page_tokens=4,
            ownership=Ownership.SHARED,
            events=True,
        )
        super().__init__(cache, device, (tick,), ticks=[tick])
        self.free = [list(range(BLOCKS)) for _ in range(groups)]

    def take(self, count: int) -> list[list[int]]:
        """Slots of the engine's, one row a group."""
        rows = []
        for group, free in enumerate(self.free):
            rows.append(free[:count])
            self.free[group] = free[count:]
        return rows

    def give(self, rows: list[np.ndarray]) -> None:
        """The engine has these again."""
        for free, row in zip(self.free, rows, strict=True):
            assert not set(free) & set(row.tolist()), "given back twice"
            free += row.tolist()

    def fill(self, rows: list[list[int]], tokens: list[int], first: int) -> None:
        """What a kernel writes for the pages from ``first`` on."""
        for group, row in enumerate(rows):
            wanted = self.expected(None, np.array(tokens, np.int32), group)
            for page, slot in enumerate(row, first):
                peek(self.device, group, slot)[:] = wanted[page]

    def conserved(self) -> None:
        """Every slot is free with the engine, or known to the cache (I8)."""
        self.cache.check()
        self.walk()
        for group, free in enumerate(self.free):
            spare = self.cache.tiers[0].free_blocks(group)
            used = self.cache.usage()["device"].used_blocks[group]
            assert len(free) + spare + used == BLOCKS


def _insert(engine: Engine, tokens: list[int]) -> list[int]:
    """Computes what is missing and shares it, as an engine with its own allocator does."""
    cache = engine.cache
    found, cursor = cache.match(tokens)
    with cache.lease(cursor._replace(pages=found.device_pages)) as lease:
        pages = len(tokens) // 4 - lease.pages
        rows = engine.take(pages)
        engine.fill(rows, tokens, lease.pages)
        result = cache.insert(tokens, lease, slots=rows)
        engine.give(result.duplicates)
        return result.slots[0].tolist()


@pytest.mark.parametrize("groups", [1, 2])
def test_insert_adopts_exactly_the_slots_that_hold_the_bytes(groups: int) -> None:
    """Slots were taken from the oldest that lay spare, not those that held the new pages: the
    bytes of one prefix were served for another.
    """
    engine = Engine(groups=groups)
    engine.cache.offer(0, [15])  # something lies spare already
    engine.free[0].remove(15)
    slots = _insert(engine, list(range(12)))
    assert slots == [0, 1, 2]
    engine.conserved()
    engine.poll()
    engine.give([engine.cache.spare(0), *[np.empty(0, np.int32)] * (groups - 1)])
    engine.conserved()
    engine.cache.close()


def test_second_insert_of_equal_pages_gets_the_first_ones_slots_and_its_own_back() -> None:
    """C3, mini-sglang#142: the second of two equal computations keeps the canonical blocks."""
    engine = Engine()
    tokens = list(range(12))
    cache = engine.cache
    first, second = cache.lease(cache.match(tokens)[1]), cache.lease(cache.match(tokens)[1])
    for lease, existing in ((first, 0), (second, 3)):
        rows = engine.take(3)
        engine.fill(rows, tokens, 0)
        result = cache.insert(tokens, lease, slots=rows)
        assert result.existing_pages == existing
        assert result.slots[0].tolist() == [0, 1, 2]
        assert result.duplicates[0].tolist() == (rows[0] if existing else [])
        engine.give(result.duplicates)
        engine.conserved()
    first.release()
    second.release()
    engine.poll()
    engine.cache.close()


def test_slots_stand_under_one_node_only() -> None:
    """C11, sglang#35270: rewritten tokens put the same slots under a second node."""
    engine = Engine()
    cache = engine.cache
    slots = _insert(engine, [1, 1, 1, 1, 8, 8, 8, 8])
    before = cache.counters(), cache.usage(), cache.tree.stats()
    _, cursor = cache.match([1, 1, 1, 1, 9, 9, 9, 9])
    with cache.lease(cursor) as lease:
        with pytest.raises(SlotError, match="expected the engine's"):
            cache.insert([1, 1, 1, 1, 9, 9, 9, 9], lease, slots=[[slots[1]]])
        engine.conserved()
    assert cache.counters() == before[0] and cache.usage() == before[1]
    cache.close()


def test_evict_hands_the_slots_back_to_the_engine() -> None:
    """What eviction freed was the engine's again and spare in the cache at once."""
    engine = Engine()
    _insert(engine, list(range(12)))
    for _ in range(3):
        engine.poll()
    gone = engine.cache.evict(0, 2)
    assert sorted(gone.tolist()) == [1, 2]
    assert engine.cache.spare(0).tolist() == []
    engine.give([gone])
    engine.conserved()
    assert engine.cache.explain(list(range(13))).tiers == {"device": 4, "host": 8}
    engine.cache.close()


def test_requests_run_in_offered_slots_and_leave_the_rest() -> None:
    engine = Engine()
    cache = engine.cache
    tokens = list(range(10))
    rows = engine.take(3)
    live = engine.until_ready(engine.admit(tokens, slots=rows))
    assert live.request.slots().tolist() == rows[0]
    engine.compute(live, 10)
    engine.conserved()
    engine.end(live, fence=engine.fence())
    engine.poll()
    assert cache.spare(0).tolist() == [], "the last page is read until the fence"
    engine.pass_step()
    engine.settle()
    engine.give([cache.spare(0)])
    engine.conserved()
    engine.give([cache.evict(0, 9)])
    rows = engine.take(3)
    again = engine.until_ready(engine.admit(tokens, slots=rows))
    assert again.request.hit_tokens == 8 and again.request.sources == {"host": 8}
    engine.conserved()
    engine.finish_all()
    engine.give([cache.spare(0)])
    engine.conserved()
    cache.close()


def test_admission_that_fails_leaves_the_slots_with_the_engine() -> None:
    engine = Engine(groups=2)
    before = engine.cache.usage(), engine.cache.counters()
    rows = engine.take(2)
    with pytest.raises(CapacityError):
        engine.admit(list(range(12)), slots=rows)
    with pytest.raises(SlotError, match="twice"):
        engine.admit(list(range(4)), slots=[[0], [1, 1]])
    with pytest.raises(SlotError, match="slots 0 to 15"):
        engine.admit(list(range(4)), slots=[[0], [16]])
    with pytest.raises(ValueError, match="one for each of 2 groups"):
        engine.admit(list(range(4)), slots=[[0]])
    assert (engine.cache.usage(), engine.cache.counters()) == before
    assert [engine.cache.spare(group).tolist() for group in (0, 1)] == [[], []]
    engine.give([np.array(row) for row in rows])
    engine.conserved()
    engine.cache.close()


def test_slot_moves_only_from_the_state_that_the_call_needs() -> None:
    """I11: a slot freed twice, foreign or out of range is refused, and nothing has moved."""
    tier = AdoptedSlots(IndexTier(4))
    tier.attach(GROUPS[:1], 16, None)
    every = np.arange(4, dtype=np.int32)
    tier.offer(0, every[:3])
    for wrong in ([0], [3, 2], [4], [-1], [3, 3]):
        with pytest.raises(SlotError):
            tier.offer(0, np.array(wrong, np.int32))
    taken = tier.reserve(0, 2)
    for call in (tier.free, tier.lift, tier.withdraw, tier.offer):
        with pytest.raises(SlotError, match="expected"):
            call(0, taken)
    with pytest.raises(TierError):
        tier.reserve(0, 2)
    tier.commit(0, taken)
    tier.fence(0, taken[:1])
    tier.free(0, taken[1:])
    with pytest.raises(SlotError):
        tier.free(0, taken[1:])
    assert (tier.free_blocks(0), tier.usage().used_blocks) == (2, (1,))
    tier.lift(0, taken[:1])
    tier.check()
    assert sorted(tier.spare(0).tolist()) == [0, 1, 2]
    tier.check()


def test_calls_for_shared_slots_are_refused_elsewhere_by_name() -> None:
    rig = build()
    with pytest.raises(RequestError, match="owned, not shared"):
        rig.cache.offer(0, [1])
    with pytest.raises(RequestError, match="owned, not shared"):
        rig.cache.spare(0)
    with pytest.raises(ValueError, match="the cache owns"):
        rig.admit([1, 2], slots=[[0]])
    with rig.cache.lease(rig.cache.match([1, 2, 3, 4])[1]) as lease:
        with pytest.raises(ValueError, match="owned"):
            rig.cache.insert([1, 2, 3, 4], lease, slots=[[0]])
    rig.finish_all()


def test_insert_behind_what_the_device_holds_is_refused() -> None:
    """I21: a page on the device behind one that is only below would be a hole that match cannot
    see; the lease says where the device ends.
    """
    engine = Engine()
    cache, tokens = engine.cache, list(range(12))
    _insert(engine, tokens)
    for _ in range(3):
        engine.poll()
    engine.give([cache.evict(0, 2)])
    _, cursor = cache.match(tokens)
    with cache.lease(cursor) as lease:
        with pytest.raises(LeaseError, match="ends at page 3"):
            cache.insert([*tokens, 1, 1, 1, 1], lease, slots=engine.take(1))
    engine.free[0].insert(0, 3)
    assert _insert(engine, [*tokens, 1, 1, 1, 1])
    engine.conserved()
    cache.close()
