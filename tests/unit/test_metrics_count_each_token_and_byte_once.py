"""Every token asked for is a hit of one tier or a miss of one reason, every block moved is counted
by stage, tier and group, and what the cache tells adds up to what the tiers hold (I34; C105-C108).
"""

from __future__ import annotations

import pytest

from radix.metrics import MISS_REASONS, Metrics
from radix.tier import TierMode
from tests.cacherig import BLOCK_BYTES, GROUPS, Rig, build
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(18))


def _adds_up(rig: Rig) -> None:
    metrics = rig.cache.metrics
    hits, misses = metrics.total("match", "hit_tokens"), metrics.total("match", "miss")
    assert hits + misses == metrics.get("match", "queried_tokens")
    known = {*MISS_REASONS, *(f"evicted from {tier.name}" for tier in rig.cache.tiers)}
    assert set(metrics.misses()) <= known


def test_loads_and_stores_are_counted_in_blocks_and_bytes_by_tier_and_group() -> None:
    """C108, dynamo#4549: one direction was never counted."""
    rig = build(groups=2, below=(16, 16))
    rig.serve(PROMPT)
    rig.empty(0)
    rig.empty(1)
    rig.until_ready(rig.admit(PROMPT))
    count = rig.cache.metrics.get
    for tier in ("host", "deep"):
        for group in GROUPS:
            for stage in ("store", "load"):
                assert count(stage, "blocks", tier, group.name) == 4
        bytes_down = rig.cache.metrics.total("store", "bytes", tier)
        assert bytes_down == rig.cache.metrics.total("load", "bytes", tier) > 0
    assert count("evict", "blocks", "device", "kv") == 4
    rig.finish_all()
    _adds_up(rig)


def test_lookups_that_are_not_admitted_count_nothing() -> None:
    """C105, smg#946: telling a thing again inflated its size. Only admission counts."""
    rig = build()
    rig.serve(PROMPT)
    before = rig.cache.counters()
    for _ in range(3):
        rig.cache.explain(PROMPT)
        rig.cache.match(PROMPT)
        rig.poll()
    assert rig.cache.counters() == before
    rig.finish_all()


@pytest.mark.parametrize("served", ["device", "host", "deep"])
def test_hit_is_counted_once_by_the_tier_that_served_it(served: str) -> None:
    rig = build(below=(16, 16))
    rig.serve(PROMPT)
    for tier in range(["device", "host", "deep"].index(served)):
        rig.empty(tier)
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.sources == {served: 16}
    assert rig.cache.metrics.get("match", "hit_tokens", served) == 16
    assert rig.cache.metrics.total("match", "hit_tokens") == 16
    rig.finish_all()
    _adds_up(rig)


def test_every_miss_has_its_reason() -> None:
    rig = build(device=8, below=(4,), plans=(FaultPlan(script={"load": {2: Fault.FAIL}}),))
    cache, misses = rig.cache, rig.cache.metrics.misses

    def admit() -> None:
        live = rig.until_ready(rig.admit(PROMPT[:9]))
        rig.end(live, abort=True)
        rig.poll()

    admit()
    assert misses() == {"cold": 8, "below one page": 1}
    rig.serve(PROMPT[:9])
    rig.empty(0)
    cache.set_mode("host", TierMode.OFF)
    admit()
    assert misses()["tier out"] == 8
    cache.set_mode("host", TierMode.ON)
    admit()  # the first load is good, and brings both pages
    rig.empty(0)
    admit()
    assert misses()["load failed"] == 8
    rig.empty(0)
    rig.empty(1)
    admit()
    assert misses()["evicted from host"] == 8
    live = rig.until_ready(rig.admit(PROMPT[:9], cacheable_upto=9))
    rig.compute(live, 9)
    rig.end(live, cacheable_upto=0)
    rig.settle()
    admit()
    assert misses()["not cacheable"] == 8
    rig.finish_all()
    _adds_up(rig)


def test_hit_that_finds_no_room_above_is_a_miss_of_that_reason() -> None:
    """Three pages lie deep; the tier between has room for none that could go."""
    rig = build(device=16, below=(2, 16))
    rig.serve(PROMPT)
    rig.empty(0)
    rig.empty(1)
    rig.serve([7] * 9)
    with rig.cache.lease(rig.cache.match([7] * 9)[1]):
        live = rig.until_ready(rig.admit(PROMPT))
        assert live.request.hit_tokens == 0
    assert rig.cache.metrics.get("match", "miss", "no room") >= 4
    rig.finish_all()
    _adds_up(rig)


def test_two_tiers_are_two_places() -> None:
    """C106, Mooncake#3818: copies on device and host collapsed to one; a part of an eviction was
    silent.
    """
    rig = build(below=(16,))
    rig.serve(PROMPT)
    rig.cache.evict(0, 3)
    told = [event for event in rig.poll() if type(event).__name__ == "BlocksRemoved"]
    assert [(event.tier, len(event.keys)) for event in told] == [("device", 3)]
    assert {tier for tier, _, _ in rig.resident} == {"device", "host"}
    assert sum(tier == "host" for tier, _, _ in rig.resident) == 4
    rig.finish_all()


def test_counts_are_read_as_a_copy_under_dotted_names() -> None:
    metrics = Metrics()
    metrics.add(("match", "miss", "cold"), 3)
    metrics.add(("match", "miss", "cold"))
    seen = dict(metrics.snapshot())
    assert seen == {"match.miss.cold": 4} == dict(metrics.snapshot())
    seen["match.miss.cold"] = 0
    assert metrics.get("match", "miss", "cold") == 4
    assert metrics.total("match") == 4 and metrics.total("match", "hit") == 0


def test_usage_is_what_the_tree_holds_in_each_tier() -> None:
    rig = build(below=(16,))
    rig.serve(PROMPT)
    usage = rig.cache.usage()
    assert usage["device"].used_blocks == usage["host"].used_blocks == (4,)
    assert usage["device"].used_bytes == 4 * BLOCK_BYTES
    rig.finish_all()
