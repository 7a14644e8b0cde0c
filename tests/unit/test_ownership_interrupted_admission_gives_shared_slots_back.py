"""Found by the simulation of seed 19: an admission that was interrupted while its first load began
told `SlotError` in place of the interrupt, because it wanted back slots that the request still held
until the next poll.
"""

from __future__ import annotations

import pytest

from radix.ownership import Ownership
from tests.cacherig import build

TOKENS = list(range(12))


def test_interrupt_of_an_admission_is_told_and_its_slots_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = build(below=(16,), ownership=Ownership.SHARED)
    rig.own = [list(range(16))]
    rig.serve(TOKENS)
    rig.empty()

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rig.ticks[0], "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.admit(TOKENS)
    rig.poll()
    rig.cache.check()
    rig.cache.spare(0)
    assert rig.cache.tiers[0].usage().used_blocks == (0,)
    rig.cache.close()
