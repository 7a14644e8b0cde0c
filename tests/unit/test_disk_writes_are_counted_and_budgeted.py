"""What a disk was given to write is counted whole, with padding and index, beside what was asked to
be stored; and it stays within a budget a day by the owner's clock. A budget that is used up costs
copies, told by reason, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix.cache import PrefixCache
from radix.groups import Group
from radix.policy.limits import Limits, Patience
from radix.policy.wear import DAY_NS, Bucket
from radix.store import FlatStore
from tests.ranksrig import Meeting
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 4
SIZE = 5000  # two pages of 4 KiB on a disk
PADDED = 8192
KV = Group.full("kv", SIZE)


class Clock:
    """The owner's, which stands unless it is moved."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def cache_of(path: Path, clock: Callable[[], int], **options: object) -> PrefixCache:
    disk = DiskTier(path / "disk", limit_bytes=8 << 20, segment_bytes=1 << 20)
    host = HostTier(64 * PADDED, segment_bytes=PADDED)
    tiers = [DeviceTier(blocks=16), host, disk]
    return PrefixCache([KV], tiers, page_tokens=PAGE, clock=clock, **options)


def serve(cache: PrefixCache, number: int, pages: int = 4) -> int:
    """A request; how many tokens it hit."""
    request = cache.admit(np.array([number] * (pages * PAGE) + [0], np.int32))
    request.wait()
    request.computed(len(request))
    hit = request.hit_tokens
    request.finish()
    cache.flush()
    cache.poll()
    return hit


def written(cache: PrefixCache) -> int:
    """All that the disk says it was given."""
    counts = cache.tiers[-1].written()
    assert counts is not None
    assert counts.total_bytes == counts.payload_bytes + counts.index_bytes + counts.ahead_bytes
    return counts.total_bytes


def test_payload_padding_and_index_are_counted_beside_what_was_asked(tmp_path: Path) -> None:
    with cache_of(tmp_path, Clock()) as cache:
        for number in range(3):
            serve(cache, number)
        counters = cache.counters()
        assert counters["store.bytes.disk.kv"] == 12 * SIZE
        assert counters["write.payload_bytes.disk"] == 12 * PADDED
        wrote = counters["write.index_bytes.disk"]
        # at least the records, and of each transaction a page of the table and of meta data
        assert 2 * 4096 <= wrote <= 12 * 64 * 1024
        serve(cache, 0)
        assert cache.counters()["write.payload_bytes.disk"] == 12 * PADDED, "nothing new to write"
        assert "write.payload_bytes.host" not in counters and cache.tiers[1].written() is None


def test_blocks_in_the_index_are_all_the_indexs(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "disk", limit_bytes=8 << 20, payload="lmdb")
    tiers = [DeviceTier(blocks=16), HostTier(64 * PADDED, segment_bytes=PADDED), disk]
    with PrefixCache([KV], tiers, page_tokens=PAGE) as cache:
        serve(cache, 1)
        counts = disk.written()
        assert counts is not None and not counts.payload_bytes
        assert counts.index_bytes >= 4 * SIZE


def test_zeros_ahead_are_counted_too(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "disk", limit_bytes=100 << 20, segment_bytes=8 << 20)
    tiers = [DeviceTier(blocks=4), HostTier(4 << 20), disk]
    with PrefixCache([Group.full("kv", 1 << 20)], tiers) as cache:
        for _ in range(1000):
            cache.poll()
            time.sleep(0.01)
            if cache.counters().get("write.ahead_bytes.disk", 0) >= 8 << 20:
                break
        assert cache.counters()["write.ahead_bytes.disk"] % (8 << 20) == 0


@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_budget_holds_and_costs_copies_alone(tmp_path: Path, write: str) -> None:
    burst, clock = 16 * PADDED, Clock()
    limits = Limits(
        demote_after=Patience(polls=1),
        write_budget_bytes_per_day=48 * PADDED,
        write_burst_bytes=burst,
    )
    with cache_of(tmp_path, clock, write=write, limits=limits) as cache:
        most = burst
        for number in range(60):
            serve(cache, number)
            most = max(most, written(cache))
        # what a transaction takes beside its blocks is known only once it was written
        beyond = 4 * PADDED + 16 * 4096
        assert burst - 2 * PADDED <= most <= burst + beyond
        counters = cache.counters()
        assert counters["store.over_budget.disk.kv"] == counters["store.declined.disk.kv"] > 100
        assert serve(cache, 59) == 4 * PAGE, "still hit from above"
        cache.check()
        assert not any(name.startswith("tier.") for name in counters), "the disk is on"
        before = written(cache)
        clock.ns += DAY_NS // 4  # a quarter of a day's share, and no more
        for number in range(100, 130):
            serve(cache, number)
        fresh = written(cache) - before
        assert fresh >= 4 * PADDED and written(cache) <= burst + 12 * PADDED + beyond
        clock.ns += 100 * DAY_NS  # what was not used is not saved up
        for number in range(200, 260):
            serve(cache, number)
        assert written(cache) <= burst + 12 * PADDED + burst + 2 * beyond
        cache.check()


def test_starting_again_and_again_writes_no_burst_each_time(tmp_path: Path) -> None:
    """Each life was given a full one: in a loop of crashes the day's budget held nothing."""
    burst, clock = 16 * PADDED, Clock()
    limits = Limits(write_budget_bytes_per_day=48 * PADDED, write_burst_bytes=burst)
    stored = []
    for life in range(6):
        with cache_of(tmp_path, clock, limits=limits) as cache:
            for number in range(8):
                serve(cache, 100 * life + number)
            stored.append(cache.metrics.get("store", "blocks", "disk", "kv"))
            cache.check()
    assert 8 <= stored[0] <= 16 and stored[1:] == [0] * 5
    with cache_of(tmp_path, clock, limits=limits) as cache:
        clock.ns += DAY_NS // 4  # twelve blocks' worth
        for number in range(8):
            serve(cache, 1000 + number)
        assert 4 <= cache.metrics.get("store", "blocks", "disk", "kv") <= 12


def test_budget_of_a_flat_store(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "disk", limit_bytes=8 << 20, segment_bytes=1 << 20)
    host, clock = HostTier(64 * PADDED, segment_bytes=PADDED), Clock()
    limits = Limits(write_budget_bytes_per_day=24 * 8 * PADDED)
    with FlatStore([KV], [host, disk], key_bytes=8, clock=clock, limits=limits) as store:
        for number in range(40):
            got = store.reserve(np.array([[number] * 8], np.uint8))
            store.commit(got)
            store.flush()
        counters = store.counters()
        assert 1 <= counters["store.blocks.disk.kv"] <= 8, "an hour's share of a day"
        assert counters["store.over_budget.disk.kv"] + counters["store.blocks.disk.kv"] == 40
        clock.ns = DAY_NS
        store.commit(store.reserve(np.full((1, 8), 99, np.uint8)))
        store.flush()
        assert store.counters()["store.blocks.disk.kv"] == counters["store.blocks.disk.kv"] + 1
        store.check()
    disk = DiskTier(tmp_path / "disk", limit_bytes=8 << 20, segment_bytes=1 << 20)
    host = HostTier(64 * PADDED, segment_bytes=PADDED)
    with FlatStore([KV], [host, disk], key_bytes=8, clock=clock, limits=limits) as store:
        assert store.has(np.full((1, 8), 99, np.uint8)).all()
        store.commit(store.reserve(np.full((1, 8), 98, np.uint8)))
        store.flush()
        assert store.counters()["store.over_budget.disk.kv"] == 1, "no burst in each life"


def test_replicas_go_by_the_one_that_wrote_most(tmp_path: Path) -> None:
    """The second keeps its blocks in LMDB, which writes more: both decide alike all the same."""
    meeting = Meeting(2)

    def replica(rank: int) -> tuple[list[int], int]:
        disk = DiskTier(
            tmp_path / f"{rank}",
            limit_bytes=8 << 20,
            segment_bytes=1 << 20,
            payload=("slab", "lmdb")[rank],
        )
        tiers = [DeviceTier(blocks=16), HostTier(64 * PADDED, segment_bytes=PADDED), disk]
        limits = Limits(write_budget_bytes_per_day=48 * PADDED, write_burst_bytes=16 * PADDED)
        agree, stored = meeting.agree(rank), []
        try:
            with PrefixCache(
                [KV], tiers, page_tokens=PAGE, clock=Clock(), limits=limits, agree=agree
            ) as cache:
                for number in range(12):
                    request = cache.admit(np.array([number] * (4 * PAGE) + [0], np.int32))
                    request.computed(len(request))
                    request.finish()
                    while cache.transfers.jobs:
                        cache.wait()
                        cache.poll()
                    stored.append(cache.metrics.get("store", "blocks", "disk", "kv"))
                    total = cache.tiers[2].written()
                    meeting.same(rank, total and total.total_bytes, "what was written")
                return stored, cache.counters()["store.over_budget.disk.kv"]
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(replica, range(2)))
    assert found[0] == found[1] and found[0][1] > 0


@given(
    st.integers(1, 10**13),
    st.integers(1, 10**10),
    st.lists(st.tuples(st.integers(-(10**12), 10**14), st.integers(0, 10**9)), max_size=30),
)
def test_bucket_never_gives_more_than_its_share(
    rate: int, burst: int, calls: list[tuple[int, int]]
) -> None:
    bucket, now, spent = Bucket(rate, burst, 0), 0, 0
    for step, wanted in calls:
        now += step
        bucket.fill(now)
        take = max(0, min(wanted, bucket.room))
        bucket.spend(take)
        spent += take
        latest = max(0, now)
        assert bucket.room <= burst
        assert spent * DAY_NS <= (burst * DAY_NS) + max(latest, _latest(calls)) * rate


def _latest(calls: list[tuple[int, int]]) -> int:
    now = latest = 0
    for step, _ in calls:
        now += step
        latest = max(latest, now)
    return latest


def test_limits_name_what_is_no_budget() -> None:
    with pytest.raises(ValueError, match="write_budget_bytes_per_day must be at least 1"):
        Limits(write_budget_bytes_per_day=0)
    wrong: Any = 1.5
    with pytest.raises(TypeError, match="write_burst_bytes must be an int"):
        Limits(write_budget_bytes_per_day=1, write_burst_bytes=wrong)


def test_tier_that_does_not_wear_has_no_budget() -> None:
    limits = Limits(write_budget_bytes_per_day=1)
    with PrefixCache(
        [KV], [DeviceTier(blocks=8), IndexTier(8, name="deep")], limits=limits
    ) as cache:
        request = cache.admit(np.ones(40, np.int32))
        request.computed(40)
        request.finish()
        cache.flush()
        assert cache.counters()["store.blocks.deep.kv"] == 2
