"""An insert that takes its slots in the same crossing leaves what the steps leave: the same slots,
answers, errors, order and books, over full caches, duplicates, boundaries, several groups and a
tier below. The steps are the same cache behind a front, which has no pools to show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from radix import PrefixCache, pooled
from radix._native import Insert
from radix.errors import CacheError, CapacityError
from radix.front import FrontTier
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.lease import Lease
from radix.tier import Slots, TierMode
from tiers.index import IndexTier

PAGE = 2
FULL = Group.full("full", 1)
MORE = Group.full("more", 2)
NEAR = Group("near", Layout.opaque(1), Retention("window", 7))
CHUNK = Group("chunk", Layout.opaque(1), Retention("chunked", 8))
STATE = Group("state", Layout.opaque(1), Retention("state"))
WIDE = Group("wide", Layout.opaque(1), Retention("full"), grid_tokens=2 * PAGE)
MIXES = {
    "full": [FULL],
    "two full": [FULL, MORE],
    "window": [FULL, NEAR],
    "state": [FULL, STATE],
    "all": [FULL, NEAR, CHUNK, STATE],
    "wide": [FULL, WIDE],
    "window alone": [NEAR],
}
SIMPLE = set(MIXES) - {"wide"}


class Counting(IndexTier):
    """Counts the steps that take slots."""

    reserved = 0

    def reserve(self, group: int, count: int) -> Slots:
        self.reserved += 1
        return super().reserve(group, count)


def opened(groups: Sequence[Group], blocks: int, below: bool, *, steps: bool) -> PrefixCache:
    first = Counting([blocks] * len(groups))
    tiers = [FrontTier(first) if steps else first]
    if below:
        tiers.append(IndexTier([3 * blocks] * len(groups), "host"))
    return PrefixCache(groups, tiers, page_tokens=PAGE)


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, comparable."""
    try:
        found = call()
    except (CacheError, ValueError, TypeError) as error:
        return type(error), str(error)
    if found is None or isinstance(found, list):
        return found if found is None else len(found)
    if isinstance(found, np.ndarray):
        return found.tolist()
    existing, created, slots, twice = found
    return existing, created, [row.tolist() for row in slots], [row.tolist() for row in twice]


class Pair:
    """The same calls to both; what they say must be alike."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng = random.Random(f"{name} {seed}")
        self.groups = MIXES[name]
        blocks, below = self.rng.choice((6, 12, 40)), self.rng.random() < 0.3
        self.caches = [opened(self.groups, blocks, below, steps=steps) for steps in (False, True)]
        self.leases: list[list[Lease]] = []
        self.prompts: list[np.ndarray] = []
        self.inserts = 0

    def prompt(self) -> np.ndarray:
        """Grown from an earlier one, as a rule: it shares, and diverges anywhere."""
        rng = self.rng
        old = rng.choice(self.prompts) if self.prompts and rng.random() < 0.8 else []
        kept = list(old[: rng.randrange(len(old) + 1)])
        grown = np.array(kept + [rng.randrange(4) for _ in range(rng.randrange(12))], np.int32)
        # Where parts of a path are kept, steps that refuse a token have used what it hit by then.
        if rng.random() < 0.02 and len(grown) and all(g in (FULL, MORE) for g in self.groups):
            grown[-1 - rng.randrange(len(grown))] = -5
        self.prompts.append(grown)
        return grown

    def insert(self) -> None:
        rng, prompt = self.rng, self.prompt()
        cut = rng.random() < 0.2
        found = [cache.match(prompt, leave=0) for cache in self.caches]
        assert found[0][0] == found[1][0]
        pages = found[0][0].hit_pages
        pages -= rng.randrange(pages + 1) if cut else 0
        pair = [
            cache.lease(cursor._replace(pages=min(pages, cursor.pages)))
            for cache, (_, cursor) in zip(self.caches, found, strict=True)
        ]
        if rng.random() < 0.1:  # somebody else's pages come in between
            other = np.concatenate((prompt, prompt[:4]))
            for cache in self.caches:
                with cache.lease(cache.match(other, leave=0)[1]) as lease:
                    answer(lambda cache=cache, lease=lease: cache.insert(other, lease))
        marks: Sequence[Any] = ()
        end = len(prompt) // PAGE * PAGE
        if rng.random() < 0.5:
            marks = rng.choice(([end], [end], [end], [PAGE, end], [end - PAGE], [1], [0], [-PAGE]))
        partial = rng.random() < 0.2
        said = [
            answer(
                lambda cache=cache, lease=lease: cache.insert(
                    prompt, lease, boundaries=marks, partial=partial
                )
            )
            for cache, lease in zip(self.caches, pair, strict=True)
        ]
        assert said[0] == said[1]
        assert pair[0].cursor == pair[1].cursor
        self.inserts += 1
        self.leases.append(pair)

    def release(self) -> None:
        if self.leases:
            for lease in self.leases.pop(self.rng.randrange(len(self.leases))):
                lease.release()

    def evict(self) -> None:
        group, count = self.rng.randrange(len(self.groups)), self.rng.randrange(4)
        said = [answer(lambda cache=cache: cache.evict(group, count)) for cache in self.caches]
        assert said[0] == said[1]

    def switch(self) -> None:
        mode = self.rng.choice((TierMode.ON, TierMode.ON, TierMode.READ_ONLY))
        for cache in self.caches:
            cache.tiers[0].set_mode(mode)

    def look(self) -> None:
        one, other = self.caches
        one.check()
        other.check()
        assert one.usage() == other.usage()
        here, there = (cache.tree.stats()._replace(bytes=0) for cache in self.caches)
        assert here == there  # the room in hand may differ
        for column in range(len(self.groups) * one.tree.tiers):
            assert one.tree.order(column) == other.tree.order(column)

    def step(self) -> None:
        drawn = self.rng.random()
        if drawn < 0.6:
            self.insert()
        elif drawn < 0.8 or len(self.leases) > 6:
            self.release()
        elif drawn < 0.9:
            self.evict()
        elif drawn < 0.93:
            self.switch()
        else:
            said = [answer(cache.poll) for cache in self.caches]
            assert said[0] == said[1]


@pytest.mark.parametrize("name", MIXES)
def test_one_crossing_leaves_what_the_steps_leave(name: str) -> None:
    taken = [0, 0]
    for seed in range(25):
        pair = Pair(name, seed)
        for step in range(120):
            pair.step()
            if step % 10 == 9:
                pair.look()
        first = [pair.caches[0].tiers[0], pair.caches[1].tiers[0].inner]
        taken = [count + tier.reserved for count, tier in zip(taken, first, strict=True)]
        for cache in pair.caches:
            cache.close()
    if name in SIMPLE:
        assert taken[0] < 0.75 * taken[1]  # those that are alike went in in one crossing
    else:
        assert taken[0] == taken[1]


@pytest.mark.parametrize("name", sorted(SIMPLE))
def test_a_refused_insert_leaves_slots_and_order_as_they_were(name: str) -> None:
    groups = MIXES[name]
    prompt = np.arange(12, dtype=np.int32)
    with opened(groups, 40, below=False, steps=False) as cache:
        for tokens in (prompt[:6], np.arange(50, 58, dtype=np.int32)):
            with cache.lease(cache.match(tokens, leave=0)[1]) as lease:
                cache.insert(tokens, lease, boundaries=[len(tokens)])
        lease = cache.lease(cache.match(prompt, leave=0)[1])
        before = cache.usage(), cache.tree.stats()
        orders = [cache.tree.order(column) for column in range(len(groups))]
        prompt[9] = -1
        with pytest.raises(ValueError, match="outside"):
            cache.insert(prompt, lease, boundaries=[len(prompt)])
        assert (cache.usage(), cache.tree.stats()) == before
        assert [cache.tree.order(column) for column in range(len(groups))] == orders
        prompt[9] = 9
        assert cache.insert(prompt, lease, boundaries=[len(prompt)]).created_pages == 3
        lease.release()
        cache.check()


def test_what_a_refused_retry_evicted_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first crossing finds its pool short, as it may; the one behind it evicts, and refuses."""
    crossing, calls = pooled.tree_insert_pooled, 0

    def short_at_first(*given: Any) -> Insert:
        nonlocal calls
        calls += 1
        return Insert(0, 0, 1, 0, 0, 0) if calls == 1 else crossing(*given)

    with opened([FULL], 6, below=False, steps=False) as cache:
        old = np.arange(12, dtype=np.int32)
        with cache.lease(cache.match(old, leave=0)[1]) as lease:
            cache.insert(old, lease)
        monkeypatch.setattr(pooled, "tree_insert_pooled", short_at_first)
        bad = np.array([50, 51, 52, 53, 54, -5], np.int32)
        with (
            cache.lease(cache.match(bad[:4], leave=0)[1]) as lease,
            pytest.raises(ValueError, match="outside"),
        ):
            cache.insert(bad, lease)
        assert calls == 2
        assert cache.tree.column_stats(0).resident == 3
        assert cache.counters()["evict.blocks.device.full"] == 3
        cache.check()


@pytest.mark.parametrize("steps", [False, True], ids=["crossing", "steps"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("second", [MORE, NEAR, WIDE], ids=["full", "window", "wide"])
def test_nothing_goes_of_one_group_where_the_next_has_no_room(
    second: Group, told: bool, steps: bool
) -> None:
    first = IndexTier([6, 2])
    tiers = [FrontTier(first) if steps else first]
    with PrefixCache([FULL, second], tiers, page_tokens=PAGE) as cache:
        if told:  # then the steps make room for a crossing
            cache.tree.before_choice = lambda _: None
        old, new = np.arange(2 * PAGE, dtype=np.int32), np.arange(50, 62, dtype=np.int32)
        with cache.lease(cache.match(old, leave=0)[1]) as lease:
            cache.insert(old, lease)
        before = cache.usage(), [cache.tree.order(column) for column in range(2)]
        with (
            cache.lease(cache.match(new, leave=0)[1]) as lease,
            pytest.raises(CapacityError, match=second.name),
        ):
            cache.insert(new, lease)
        assert (cache.usage(), [cache.tree.order(column) for column in range(2)]) == before
        assert cache.match(old, leave=0)[0].hit_pages == 2
        cache.check()
