"""A checkpoint stands where all groups can be hit, also one whose last entry depends on the next
token: at the end of a turn that is a page before the last, at a boundary it waits for that page.
"""

from __future__ import annotations

import pytest

from radix.groups import Group, Retention
from radix.layout import Layout
from tests.cacherig import Rig, build

STATE = Group("memory", Layout.opaque(32), Retention("state"), per_sequence=True)
AHEAD = {
    "full": Group("draft", Layout.opaque(24), lookahead=1),
    "window": Group("draft", Layout.opaque(24), Retention("window", 6), lookahead=1),
}
TURN = list(range(22))


def _rig(rule: str) -> Rig:
    return build(groups=(Group.full("kv", 64), STATE, AHEAD[rule]), device=24)


@pytest.mark.parametrize("rule", AHEAD)
def test_second_turn_hits_where_the_first_ended(rule: str) -> None:
    """The last snapshot was kept at 20 tokens, where the other group has no entry before 24 are
    computed, and the one at 16 given up: no turn of a conversation ever hit. Found by the
    reference engine.
    """
    rig = _rig(rule)
    live = rig.until_ready(rig.admit(TURN[:5], new_tokens=20))
    rig.compute(live, 5)
    for end in range(6, 23):
        rig.append(live, [TURN[end - 1]])
        rig.compute(live, end)
    rig.end(live)
    rig.settle()
    again = rig.until_ready(rig.admit([*TURN, 1, 2, 3, 4]))
    assert again.request.hit_tokens == 16
    rig.finish_all()


@pytest.mark.parametrize("rule", AHEAD)
@pytest.mark.parametrize("ends", [(12, 14, 17, 22), (22,)])
def test_boundary_is_hit_though_a_group_looked_behind_it(rule: str, ends: tuple[int, ...]) -> None:
    """Where prompts part behind the boundary its last entry that looks ahead is of one of them
    alone: what is kept is a page before, once that page's entry is there. It was kept at the
    boundary itself, where nothing could be hit.
    """
    rig = _rig(rule)
    live = rig.until_ready(rig.admit(TURN, boundaries=(13,)))
    for end in ends:
        rig.compute(live, end)
    rig.end(live)
    rig.settle()
    other = rig.until_ready(rig.admit([*TURN[:13], 30, 31, 32]))
    assert other.request.hit_tokens == 8
    rig.finish_all()


@pytest.mark.parametrize("rule", AHEAD)
def test_third_prompt_hits_where_the_second_parted_from_the_first(rule: str) -> None:
    """The branch signal named the end of the tree's knowledge, where a group that looks ahead has
    nothing for a prompt that goes on otherwise: no third prompt ever hit.
    """
    rig = _rig(rule)
    for last in range(3):
        prompt = [*TURN[:16], 50 + last, 60, 61, 62, 63]
        assert rig.cache.explain(prompt).branch_tokens == (12 if last == 1 else 0)
        live = rig.until_ready(rig.admit(prompt))
        assert live.request.hit_tokens == (12 if last == 2 else 0)
        rig.compute(live, len(prompt))
        rig.end(live)
        rig.settle()
    rig.finish_all()
