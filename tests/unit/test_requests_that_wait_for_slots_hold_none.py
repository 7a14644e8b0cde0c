"""R4, hold and wait: a hit that fails while it loads may leave a request short of slots, because
the blocks that it was to read are now to be computed while others still read them. Such requests
kept the slots that they had; two of them could wait for each other for ever, though each fitted.
"""

from __future__ import annotations

from radix.events import RequestState
from tests.cacherig import build
from tests.mixes import full, state
from tiers.faults import Fault, FaultPlan

PREFIX = [token % 3 for token in range(20)]


def test_request_whose_hit_failed_holds_nothing_until_it_gets_everything() -> None:
    plan = FaultPlan(script={"load": dict.fromkeys(range(1, 9), Fault.FAIL)})
    rig = build(groups=(full(), state()), device=30, page_tokens=1, below=(64,), plans=(plan, None))
    rig.serve(PREFIX)
    reader = rig.until_ready(rig.admit([*PREFIX, 1]))
    assert reader.request.hit_tokens == 20
    rig.evict(1, 8, 0)  # the snapshot is on the host alone, and does not come up
    short = rig.admit([*PREFIX, 2])
    for _ in range(5):
        rig.poll()
        rig.cache.check()
    work = short.request._work
    assert not short.request.ready and work.hit_pages == 0
    assert [len(held.private()) for held in work.held] == [0, 0], "who waits holds nothing"
    rig.compute(reader, 21)
    rig.end(reader)
    rig.until_ready(short)
    assert short.request.hit_tokens == 0, "decided once"
    rig.compute(short, 21)
    rig.end(short)
    rig.settle()
    assert rig.states[short.request.id][-1] is RequestState.RELEASED
    rig.finish_all()
