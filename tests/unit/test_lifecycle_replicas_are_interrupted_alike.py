"""Preemptions, resets and other weights are calls like any other to replicas of one cache: they
stay identical, and an epoch that one rank cannot keep begins on none (I31, I33).
"""

from __future__ import annotations

import random

import pytest

from radix.cache import PrefixCache
from radix.errors import TierError, TierUnavailableError
from tests.cacherig import GROUPS
from tests.ranksrig import Meeting, ReplicaMachine, replicated
from tests.ticktier import TickTier
from tiers.device import DeviceTier


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_are_interrupted_stay_identical(seed: int, mixed: bool) -> None:
    def one(rank: int, meeting: Meeting) -> int:
        machine = ReplicaMachine(rank, meeting)
        machine.start(seed, 2 + seed % 2, mixed=mixed)
        rng = random.Random(seed)
        for _ in range(70):
            machine.step(rng)
            machine.rig.cache.check()
        machine.teardown()
        return meeting.steps

    try:
        replicated(3, one)
    except BaseException as error:
        error.add_note(f"seed {seed}, mixed {mixed}")
        raise


class _Stuck(TickTier):
    """A tier that cannot begin a new epoch."""

    def renew(self) -> None:
        raise TierError(self.name, "as planned")


def test_epoch_that_one_rank_cannot_keep_begins_on_none() -> None:
    def one(rank: int, meeting: Meeting) -> int:
        below = (_Stuck if rank == 1 else TickTier)(16, "host")
        device = DeviceTier(blocks=8, device="cpu")
        cache = PrefixCache(GROUPS[:1], [device, below], page_tokens=4, agree=meeting.agree(rank))
        with cache.admit(list(range(8))) as request:
            request.computed(8)
        cache.flush()
        with pytest.raises(TierUnavailableError, match="epoch"):
            cache.reset()
        cache.check()
        found = cache.explain([*range(8), 0]).hit_tokens
        cache.reset(["device"])
        cache.check()
        cache.close()
        return found

    assert replicated(3, one) == [8, 8, 8]
