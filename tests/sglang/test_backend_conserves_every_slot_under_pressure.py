"""A pool of a few pages under more traffic than it holds: every page is free, the tree's or one
request's own after every step, rows hold what their tokens say, and an eviction frees what was
asked for as long as anything is not locked.
"""

from __future__ import annotations

import pytest

from radix.engines.sglang.backend import RadixBackend
from radix.policy.eviction import STEPPED_POLICIES
from tests.sglang.driving import Traffic
from tests.sglang.scheduling import Scheduler

STEPS = 400
LONGEST = 200


@pytest.mark.parametrize("policy", STEPPED_POLICIES)
@pytest.mark.parametrize("eagle", [False, True], ids=["tokens", "pairs"])
@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("seed", range(3))
def test_no_slot_leaks_is_freed_twice_or_is_reused_while_it_is_locked(
    page: int, eagle: bool, seed: int, policy: str
) -> None:
    pages = max(8, 300 // page)
    scheduler = Scheduler(RadixBackend, page, pages, eagle=eagle, events=True, policy=policy)
    traffic = Traffic(seed, [scheduler], LONGEST, hinted=seed > 0)
    for step in range(STEPS):
        try:
            traffic.step()
            scheduler.cache.sanity_check()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}")
            raise
    assert sum(scheduler.hits()) > 0
    assert any(freed for name, freed in scheduler.log if name == "evict")
    for _, runs in traffic.running:
        scheduler.retract(runs[0])
    assert scheduler.cache.protected_size() == 0
    total = scheduler.cache.total_size()
    assert scheduler.evict(10**9) == total
    assert scheduler.allocator.available_size() == scheduler.pages * page


@pytest.mark.parametrize("page", [1, 16])
def test_an_eviction_frees_whole_pages_and_no_more_than_was_asked_for(page: int) -> None:
    scheduler = Scheduler(RadixBackend, page, 64)
    for number in range(3):
        run = scheduler.start(scheduler.request([number] * (5 * page)))
        assert run is not None
        scheduler.finish(run)
    locked = scheduler.start(scheduler.request([0] * (5 * page) + [7]))
    assert locked is not None
    assert scheduler.cache.evictable_size() == 10 * page
    assert scheduler.evict(2 * page - page // 2) == 2 * page
    assert scheduler.evict(0) == 0
    assert scheduler.evict(10**9) == 8 * page
    assert scheduler.evict(1) == 0
    scheduler.check()
    assert locked.req.prefix_len == 5 * page


def test_the_least_recently_used_goes_first_and_a_path_from_its_end() -> None:
    scheduler = Scheduler(RadixBackend, 1, 64)
    for token in (1, 2, 3):
        run = scheduler.start(scheduler.request([token] * 10))
        assert run is not None
        scheduler.finish(run)
    again = scheduler.start(scheduler.request([1] * 10 + [9]))
    assert again is not None
    scheduler.retract(again)
    scheduler.evict(14)
    lengths = []
    for token in (1, 2, 3):
        run = scheduler.start(scheduler.request([token] * 10 + [9]))
        assert run is not None
        lengths.append(run.req.prefix_len)
        scheduler.retract(run)
    assert lengths == [10, 0, 6]
