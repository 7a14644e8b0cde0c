"""A block that is on its way into a tier is not sent there again, whoever offers it meanwhile: two
copies at once would write the same bytes twice, and one of the slots would be given back (I22).
"""

from __future__ import annotations

from tests.cacherig import Rig, build

PROMPT = list(range(10))


def _sent(rig: Rig) -> int:
    return sum(job.move.blocks for job in rig.cache.transfers.jobs.values())


def test_block_on_its_way_down_is_not_offered_by_the_next_hit() -> None:
    rig = build(below=(32,), device=16)
    rig.ticks[0].pace = 0.0
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 10)
    sent = _sent(rig)
    assert sent > 0
    again = rig.until_ready(rig.admit(PROMPT))
    assert again.request.hit_tokens > 0
    assert _sent(rig) == sent
    rig.ticks[0].pace = 1.0
    rig.finish_all()
