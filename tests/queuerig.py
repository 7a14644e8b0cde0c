"""A queue of requests over a cache whose slots hold no bytes, and an engine of one step at a time:
for tests of who is let in, and when.
"""

from __future__ import annotations

from collections.abc import Sequence

from radix import PrefixCache, Waiter, Waiting
from radix.groups import Group
from radix.tier import Tier
from tests.mixes import full
from tiers.index import IndexTier


def queue(
    blocks: int | Sequence[int],
    *below: Tier,
    groups: Sequence[Group] = (full(),),
    page: int = 1,
    first: Tier | None = None,
    write: str = "write_through",
    **rules: int,
) -> Waiting:
    """Over pools of so many blocks in the first tier."""
    tiers = [first or IndexTier(blocks), *below]
    cache = PrefixCache(groups, tiers, page_tokens=page, write=write)
    return Waiting(cache, **rules)


def let_in(waiting: Waiting, ticks: int = 1) -> list[int]:
    """The ages of those that so many ticks let in, in order."""
    return [waiter.age for _ in range(ticks) for waiter in waiting.tick().admitted]


def compute(waiting: Waiting, waiter: Waiter, upto: int, fence: int | None = None) -> bool:
    """Steps up to a length; False where one of them had to be left out."""
    request = waiter.request
    assert request is not None
    told = request._work.told
    while told < upto:
        step = waiting.prepare(waiter, upto - told)
        if not step:
            return False
        told += step
        request.computed(told, fence=fence, reuse=fence)
    return True


def end(waiting: Waiting, waiter: Waiter) -> None:
    """Computes what it has and ends it."""
    assert waiter.request is not None
    compute(waiting, waiter, len(waiter.request))
    waiter.request.finish()


def held(waiting: Waiting, group: int = 0) -> int:
    """Slots of the first tier that are not the tree's: those of requests."""
    cache = waiting._cache
    resident = cache.tree.column_stats(cache.tree.column(group, 0)).resident
    return cache.tiers[0].usage().used_blocks[group] - resident


def close(waiting: Waiting) -> None:
    """Nothing is left open, and every slot is free or the tree's."""
    cache = waiting._cache
    for waiter in (*waiting.running(), *waiting.queue()):
        if waiter.request is not None:
            waiter.request.abort()
    for _ in range(20):
        cache.passed(cache.fences.step + 1)
        cache.poll()
    cache.check()
    assert not cache.requests.works and not cache.tree.stats().leases
    assert all(held(waiting, group) == 0 for group in range(len(cache.groups)))
    cache.close()
