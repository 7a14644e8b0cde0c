"""What waits costs a poll nothing until something changes for it, and a tenant's call nothing for
the other tenants: prefetches, blocks that go down later, drafts beside a long reservation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from radix import FlatStore, Group, Layout, Limits, Namespace, Patience, PrefixCache, Retention
from radix.drafts import ROOT
from radix.prefetching import Prefetch, PrefetchState
from radix.request import Request
from radix.shares import ANYBODY, Shares
from radix.tenants import Tenant, Tenants
from tests.counting import calls_of, memory_of
from tests.ticktier import TickTier
from tiers.index import IndexTier

PAGE = 4
PAGES = 3


def _prompt(number: int, pages: int = PAGES) -> npt.NDArray[np.generic]:
    return np.arange(number * pages * PAGE, (number + 1) * pages * PAGE, dtype=np.int32)


def _served(cache: PrefixCache, prompts: int) -> None:
    for at in range(prompts):
        with cache.admit(_prompt(at)) as request:
            request.computed(PAGES * PAGE)


# ---------------------------------------------------------------------- prefetches
def _ahead(prefetches: int, state: str) -> dict[str, int]:
    """Prefetches that are done, of which pages wait for loads of others, or that wait for room."""
    tiers = [TickTier(16 * (prefetches + 2), name) for name in ("device", "host", "disk")]
    limits = Limits(prefetch_blocks=2 * PAGES if state == "waiting" else None)
    with PrefixCache([Group.full("kv", PAGE)], tiers, page_tokens=PAGE, limits=limits) as cache:
        _served(cache, prefetches + 1)
        cache.flush()
        for tier in range(2):
            cache.residency.evict(tier, 0, tiers[tier].capacity_blocks(0))
        tiers[2].pace = float(state == "done")
        held = [cache.prefetch(_prompt(at)) for at in range(prefetches)]
        for _ in range(2 * prefetches if state == "done" else 2):
            cache.poll()
        expected = {
            "done": {PrefetchState.DONE},
            "crowded": {PrefetchState.RUNNING},
            "waiting": {PrefetchState.RUNNING, PrefetchState.WAITING},
        }
        assert {each.state for each in held} == expected[state]
        cache.check()
        counts = {"poll": calls_of(cache.poll)}
        one: list[Prefetch] = []
        counts["start"] = calls_of(lambda: one.append(cache.prefetch(_prompt(prefetches))))
        counts["release"] = calls_of(one[0].release)
        cache.check()
        for each in held[::2]:
            each.release()
        cache.check()
        tiers[2].pace = 1.0
        for _ in range(4 * prefetches):
            cache.poll()
        left = {each.state for each in held[1::2]}
        assert PrefetchState.RUNNING not in left
        assert cache._ahead.held(0) == sum(
            PAGES - 1
            for each in held
            if each.state is PrefetchState.DONE  # a token is left
        )
        cache.check()
        for each in held:
            each.release()
        assert cache._ahead.held(0) == 0
        cache.check()
    return counts


@pytest.mark.parametrize("state", ["done", "crowded", "waiting"])
def test_a_prefetch_costs_others_nothing(state: str) -> None:
    """The fault: each poll, and each new prefetch, went through all of them, those that were done
    included, and each of 250 looked up where its pages lie and counted the loads of all to learn
    that none may begin.
    """
    few, many = _ahead(6, state), _ahead(200, state)
    assert all(many[what] <= count + 5 for what, count in few.items()), (few, many)


# ---------------------------------------------------------------------- going down later
def _due(blocks: int) -> int:
    below, device = TickTier(4 * (blocks + 4), "below"), TickTier(4 * (blocks + 4), "device")
    limits = Limits(demote_after=Patience(polls=1), stores=2)
    with PrefixCache(
        [Group.full("kv", PAGE)],
        [device, below],
        page_tokens=PAGE,
        write="write_back",
        limits=limits,
    ) as cache:
        below.pace = 0.0
        _served(cache, blocks)
        for _ in range(4):
            cache.poll()
        assert len(cache.transfers.jobs) == 2, "the queue below is full"
        count = calls_of(cache.poll)
        below.pace = 1.0
        for _ in range(2 * blocks):
            cache.poll()
        assert cache.room(0)[0].dirty == 0, "what was refused was offered again"
        cache.check()
    return count


def test_what_a_full_queue_refused_is_not_offered_again_in_each_poll() -> None:
    """The fault: all blocks that had waited long enough were leased and offered in each poll,
    though the queue below had refused the first of them.
    """
    assert _due(4) == _due(200)


# ---------------------------------------------------------------------- tenants
def _of_tenants(tenants: int) -> tuple[int, int]:
    """What a turn of a request costs, embedded; and one of keys in a flat store."""
    known = {
        f"t{at}": Tenant(quota={"index": 100 * PAGE}, floor={"index": 2 * PAGE})
        for at in range(tenants)
    }
    spaces = [Namespace(salt=name.encode()) for name in known]
    group, terms = Group.full("kv", PAGE), Tenants(known=known)
    tier = IndexTier(8 * (tenants + 8), name="index")
    with PrefixCache([group], [tier], page_tokens=PAGE, tenants=terms) as cache:

        def turn(number: int, space: Namespace) -> None:
            request = cache.admit(_prompt(number), namespace=space)
            request.computed(PAGES * PAGE)
            request.finish()
            cache.poll()

        for at, space in enumerate(spaces):
            turn(at, space)
        turn(tenants, spaces[-1])
        count = calls_of(lambda: turn(tenants + 1, spaces[-1]))
        cache.check()
    tier = IndexTier(8 * (tenants + 8), name="index")
    with FlatStore([group], [tier], key_bytes=8, tenants=terms) as store:

        def put(number: int, space: Namespace) -> None:
            keys = np.arange(4 * number, 4 * number + 4, dtype=np.int64)[:, None].view(np.uint8)
            store.commit(store.reserve(keys, namespace=space))
            store.poll()

        for at, space in enumerate(spaces):
            put(at, space)
        put(tenants, spaces[-1])
        flat = calls_of(lambda: put(tenants + 1, spaces[-1]))
        store.check()
    return count, flat


def test_a_tenants_call_costs_nothing_for_the_other_tenants() -> None:
    """The faults: slots that became the tree's were counted off for each number up to that of
    their tenant, and each look at the room asked every tenant that has a floor, one by one.
    """
    assert _of_tenants(4) == _of_tenants(200)


def _withheld(shares: Shares, number: int, column: int) -> int:
    """The definition: of each other tenant what may go and does not stand above its floor."""
    kept = 0
    for other in set(shares._known) - {number}:
        own = shares._of_column(other, column)
        may_go = int(own.resident) - int(own.protected_blocks)
        above = max(0, int(own.pool_bytes) - shares._bounds[other].floor[column])
        kept += may_go - min(may_go, above // shares._sizes[column])
    return kept


def test_what_floors_keep_from_a_tenant_is_what_each_of_them_keeps() -> None:
    """Of two groups of one pool, with leases, without floors and far above them."""
    floors = [0, 0, 40, 7, 90, 1000, 64]
    known = {f"t{at}": Tenant(floor={"index": floor}) for at, floor in enumerate(floors)}
    groups = [Group.full("kv", 8), Group("window", Layout.opaque(4), Retention("window", tokens=8))]
    random, seen = np.random.default_rng(5), set()
    with PrefixCache(
        groups, [IndexTier(4000, name="index")], page_tokens=PAGE, tenants=Tenants(known=known)
    ) as cache:
        shares = cache.residency.shares
        assert shares is not None
        leases: list[Request] = []
        for at in range(60):
            space = Namespace(salt=f"t{random.integers(len(floors))}".encode())
            request = cache.admit(_prompt(at), namespace=space)
            request.computed(PAGES * PAGE)
            leases.append(request)
            if random.random() < 0.7:
                leases.pop(int(random.integers(len(leases)))).finish()
            cache.poll()
            for column in range(2):
                assert shares.withheld(ANYBODY, column) == 0
                for number in shares._known:
                    found = shares.withheld(number, column)
                    assert found == _withheld(shares, number, column)
                    seen.add(found)
        for request in leases:
            request.finish()
        cache.poll()
        cache.check()
    assert len(seen) > 10


# ---------------------------------------------------------------------- drafts
def _drafts(ahead: int) -> dict[str, int]:
    """Beside a request for which so many pages are reserved."""
    window = Group("window", Layout.opaque(PAGE), Retention("window", tokens=4 * PAGE))
    groups = [Group.full("kv", PAGE), window]
    with PrefixCache(groups, [IndexTier(2 * ahead + 100)], page_tokens=PAGE) as cache:
        request = cache.admit(_prompt(0), new_tokens=ahead * PAGE)
        request.computed(PAGES * PAGE - 1)
        stages = [request.stage()]
        stages[0].add(ROOT, range(10))
        stages[0].rollback()

        def grown() -> None:
            stages.append(request.stage())
            stages[-1].add(ROOT, range(10))

        counts = {"stage": memory_of(grown), "rollback": memory_of(stages[-1].rollback)}
        grown()
        counts["accept"] = memory_of(lambda: stages[-1].accept([0, 1, 2, 3, 4]))
        cache.check()
        request.finish()
        cache.poll()
        cache.check()
    return counts


def test_drafts_cost_the_pages_that_they_reach_and_not_all_that_is_reserved() -> None:
    """The fault: a stage listed every page that was reserved for tokens to come, and its end made a
    set of them. An accept copies the page tables, as bytes.
    """
    few, many = _drafts(8), _drafts(6000)
    assert many["stage"] < few["stage"] + 4096
    assert many["rollback"] < few["rollback"] + 4096
    tables = 2 * 6000 * (4 + 1)
    assert many["accept"] < few["accept"] + 2 * tables
