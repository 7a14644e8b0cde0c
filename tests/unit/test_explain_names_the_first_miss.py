"""``explain`` says what serves a prompt and why no more of it, by the same rule as admission, and
changes nothing.
"""

from __future__ import annotations

from radix.tier import TierMode
from tests.cacherig import build

PROMPT = list(range(18))


def test_answer_follows_the_blocks_from_tier_to_tier() -> None:
    rig = build(below=(16, 16))
    cache = rig.cache
    assert str(cache.explain(PROMPT)) == ("0 of 18 tokens hit (no tier); known 0; the rest: cold")
    rig.serve(PROMPT)
    cache.evict(0, 1)
    cache.evict(0, 2, tier=1)
    told = cache.explain(PROMPT)
    assert told.tiers == {"device": 12, "deep": 4}
    assert (told.device_tokens, told.hit_tokens, told.structural_tokens) == (12, 16, 16)
    assert told.reason == "below one page"
    assert "16 of 18 tokens hit (device 12, deep 4)" in str(told)
    cache.set_mode("deep", TierMode.OFF)
    told = cache.explain(PROMPT)
    assert (told.hit_tokens, told.reason) == (12, "tier out")
    rig.finish_all()


def test_tier_that_is_off_is_no_reason_for_what_it_never_held() -> None:
    """With any tier off, every hole was laid to it."""
    rig = build(below=(16, 16), write="none")
    rig.serve(PROMPT)
    rig.cache.set_mode("deep", TierMode.OFF)
    rig.cache.evict(0, 2)
    told = rig.cache.explain(PROMPT)
    assert (told.hit_tokens, told.reason) == (8, "evicted from device")
    assert rig.cache.explain([*PROMPT[:8], 9, 9, 9, 9, 9]).reason == "cold"
    rig.finish_all()


def test_answer_is_that_of_the_admission_that_follows() -> None:
    rig = build(groups=2, below=(16, 16))
    rig.serve(PROMPT)
    rig.cache.evict(0, 1)
    rig.cache.evict(1, 3)
    rig.cache.evict(1, 4, tier=1)
    told = rig.cache.explain(PROMPT)
    assert told.tiers == {"device": 4, "deep": 12}
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.sources == told.tiers and live.request.hit_tokens == told.hit_tokens
    rig.finish_all()
