"""Tiers are switched off, read-only and on again while requests load, compute and store: what
counts for a hit follows at once, transfers under way end, and nothing is lost (I7, I20, I22).
"""

from __future__ import annotations

import itertools

import pytest

from radix.events import TierEvent
from radix.tier import TierMode
from tests.cacherig import Rig, build

PAGE = 4
PROMPT = [1] * 16 + [2]
MODES = (TierMode.OFF, TierMode.READ_ONLY, TierMode.ON)


def _rig(**options: object) -> Rig:
    rig = build(below=(32, 64), device=24, **options)
    rig.serve(PROMPT)
    return rig


@pytest.mark.parametrize(("tier", "mode"), [*itertools.product(("host", "deep"), MODES)])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_request_that_loads_gets_its_bytes_or_a_shorter_hit(
    tier: str, mode: TierMode, write: str
) -> None:
    """The load begins, then its tier is switched; each byte of its hit is looked at."""
    rig = _rig(write=write)
    for level in (0, 1):
        for _ in range(4):
            rig.empty(level)
            rig.settle()
    for pick in rig.ticks:
        pick.pace = 0.0
    live = rig.admit(PROMPT)
    rig.poll()
    rig.cache.set_mode(tier, mode)
    for pick in rig.ticks:
        pick.pace = 1.0
    rig.until_ready(live)
    assert live.request.hit_tokens in (0, 16)
    rig.compute(live, len(PROMPT))
    rig.end(live)
    rig.settle()
    rig.cache.check()
    rig.finish_all()


def test_tier_that_is_off_counts_for_no_hit_and_has_lost_nothing() -> None:
    """Off: a miss, told why. On again: the hit is back."""
    rig = _rig()
    rig.empty(0)
    rig.empty(1)
    assert rig.cache.explain(PROMPT).tiers == {"deep": 16}
    rig.cache.set_mode("deep", TierMode.OFF)
    assert rig.cache.explain(PROMPT).hit_tokens == 0
    events = rig.poll()
    assert [event.mode for event in events if isinstance(event, TierEvent)] == ["off"]
    rig.cache.set_mode("deep", TierMode.READ_ONLY)
    assert rig.cache.explain(PROMPT).tiers == {"deep": 16}
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens in (0, 16)
    rig.finish_all()


def test_stores_under_way_end_though_their_tier_is_switched() -> None:
    """Each is acknowledged once, whatever it was switched to meanwhile; the request ends."""
    for mode in MODES:
        rig = build(below=(32,), device=24)
        rig.ticks[0].pace = 0.0
        live = rig.until_ready(rig.admit(PROMPT))
        rig.compute(live, len(PROMPT))
        rig.end(live)
        rig.poll()
        rig.cache.set_mode("host", mode)
        rig.ticks[0].pace = 1.0
        rig.settle()
        rig.cache.check()
        rig.cache.set_mode("host", TierMode.ON)
        assert rig.cache.usage()["host"].used_blocks == (4,)
        rig.finish_all()


def test_read_only_device_gives_no_slots_and_serves_what_it_has() -> None:
    """Nothing is admitted that needs slots; what runs goes on, and on again all is as before."""
    rig = build(below=(32,), device=24)
    live = rig.until_ready(rig.admit(PROMPT))
    rig.cache.set_mode("device", TierMode.READ_ONLY)
    rig.compute(live, len(PROMPT))
    rig.end(live)
    rig.settle()
    assert rig.cache.match(PROMPT)[0].hit_pages == 4
    rig.cache.set_mode("device", TierMode.ON)
    again = rig.until_ready(rig.admit(PROMPT))
    assert again.request.hit_tokens == 16
    rig.finish_all()
