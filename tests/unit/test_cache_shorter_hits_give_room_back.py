"""A hit that becomes shorter while it loads pins nothing behind its new end, and what it lacks then
it gets as soon as it is free (R5, I15). Both were found by the reference engine, which stood still.
"""

from __future__ import annotations

from radix.groups import Group, Retention
from radix.layout import Layout
from tests.cacherig import Rig, build
from tiers.faults import Fault, FaultPlan

PROMPT = list(range(17))  # four pages of four, and one token
AHEAD = (Group.full("kv", 64), Group("draft", Layout.opaque(24), lookahead=1))
STATE = (
    Group.full("kv", 64),
    Group("memory", Layout.opaque(32), Retention("state"), per_sequence=True),
)


def _served(groups: tuple[Group, ...], device: int) -> Rig:
    """A rig that served the prompt; the next load is refused."""
    plan = FaultPlan(script={"load": {1: Fault.REFUSE}})
    rig = build(below=(32,), plans=(plan,), groups=groups, device=device)
    rig.serve(PROMPT)
    return rig


def test_shorter_hit_pins_nothing_that_a_group_looked_ahead_for() -> None:
    """What lies behind the hit was pinned by a second lease, which stayed where the longer hit had
    ended: the device was full of pages that nobody could use, and the request waited for ever.
    """
    rig = _served(AHEAD, 16)
    assert rig.evict(1, 16, 0) == 3, "the last page's entry would need another token"
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 0
    assert rig.evict(0, 16, 0) == 4, "what stands on the device is pinned by nobody"
    rig.finish_all()


def test_request_that_lacks_slots_runs_when_another_ends_without_a_transfer() -> None:
    """A request whose hit had become shorter asked again for what it lacked only when some transfer
    had ended; where the others ended without one it never ran.
    """
    rig = _served(STATE, 8)
    other = rig.until_ready(rig.admit([*PROMPT, 1]))
    assert other.request.hit_tokens == 16
    assert rig.evict(1, 8, 0) == 1
    live = rig.admit([*PROMPT, 2])
    rig.poll()
    assert not live.request.ready, "five pages of its own, and eight are there"
    rig.end(other)
    rig.until_ready(live)
    assert live.request.hit_tokens == 0
    rig.finish_all()
