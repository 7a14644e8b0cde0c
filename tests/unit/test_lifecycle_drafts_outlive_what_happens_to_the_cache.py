"""Drafts are staged while the cache is reset, gets other weights or takes the request's slots away:
what is accepted holds the right bytes, and nothing of it is shared or lost (C53, I8).
"""

from __future__ import annotations

import pytest

from radix.drafts import ROOT
from radix.groups import Group
from tests.draftrig import attention, build, recurrent, window

PROMPT = [1, 2, 3, 4, 5, 6]
MIXES = {
    "attention": lambda: [attention("kv", 2)],
    "window": lambda: [attention("kv", 2), window("near", 2, 4)],
    "state": lambda: [attention("kv", 2), recurrent("state", 2)],
}


def _mix(name: str) -> list[Group]:
    return MIXES[name]()


@pytest.mark.parametrize("how", ["reset", "weights"])
@pytest.mark.parametrize("fence", [None, 5])
@pytest.mark.parametrize("mix", MIXES)
def test_drafts_are_accepted_after_a_reset_and_shared_with_nobody(
    mix: str, fence: int | None, how: str
) -> None:
    rig = build(_mix(mix), 2, below=64)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    first = rig.add(run, stage, ROOT, [10, 11, 12])
    rig.add(run, stage, first[0], [20])
    if how == "reset":
        rig.cache.reset()
    else:
        rig.cache.set_revision("r1")
    rig.cache.check()
    rig.verify(run, stage)
    rig.accept(run, stage, first, 7, fence=fence)
    rig.cache.check()
    rig.cache.passed(5)
    rig.cache.poll()
    tokens = run.request.tokens().tolist()
    assert rig.cache.explain([*tokens, 0]).hit_tokens == 0
    run.request.finish()
    rig.settle()
    assert rig.cache.explain([*tokens, 0]).hit_tokens == 0
    assert rig.cache.tiers[0].usage().used_blocks == (0,) * len(rig.cache.groups)


@pytest.mark.parametrize("mix", MIXES)
def test_preemption_rolls_the_open_stage_back_and_the_request_drafts_again(mix: str) -> None:
    rig = build(_mix(mix), 2, below=64)
    run = rig.start(PROMPT, 9)
    stage = run.request.stage()
    rig.add(run, stage, ROOT, [10, 11, 12])
    run.request.preempt()
    assert not stage.open
    rig.cache.check()
    rig.cache.poll()
    rig.cache.check()
    held = sum(rig.cache.tiers[0].usage().used_blocks)
    columns = [rig.cache.tree.column(group, 0) for group in range(len(rig.cache.groups))]
    assert held == sum(rig.cache.tree.column_stats(column).resident for column in columns)
    run.request.resume(new_tokens=4)
    run.request.wait()
    run.told = run.request.hit_tokens
    assert run.told, "what it had computed is found again"
    rig.compute(run, len(run.request))
    run.request.append([8])
    again = run.request.stage()
    path = rig.add(run, again, ROOT, [10, 11])
    rig.verify(run, again)
    rig.accept(run, again, path, None)
    run.request.finish()
    rig.settle()
