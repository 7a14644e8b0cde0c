"""Who holds a block, a lease, a transfer or nobody, is counted once: it goes when the last of them
lets go, in whatever order, and a batch of evictions respects what one eviction does.
"""

from __future__ import annotations

import pytest

from radix.tier import TierMode
from tests.cacherig import Rig, build

PROMPT = list(range(8))


def _held(rig: Rig, tier: int = 0) -> tuple[int, int]:
    stats = rig.cache.tree.column_stats(rig.cache.tree.column(0, tier))
    return stats.resident, stats.protected


@pytest.mark.parametrize("first", [0, 1])
def test_block_may_go_when_the_last_of_two_pins_is_given_back(first: int) -> None:
    """C6, LMCache#1130: what was free to go was looked at when one kind of count fell to zero, and
    not when the other did.
    """
    rig = build(page_tokens=4)
    rig.serve(PROMPT)
    _, cursor = rig.cache.match([*PROMPT, 0])
    pins = [rig.cache.lease(cursor), rig.cache.lease(cursor)]
    pins.pop(first).release()
    assert _held(rig) == (2, 2) and rig.evict(0, 8, 0) == 0
    pins.pop().release()
    assert _held(rig) == (2, 0) and rig.evict(0, 8, 0) == 2
    rig.finish_all()


def test_evicting_many_leaves_what_a_load_still_reads() -> None:
    """C7, LMCache#3130: the batched path gave memory back directly, past the references that the
    path for one block looks at.
    """
    rig = build(page_tokens=4, below=(16,))
    rig.serve(PROMPT)
    rig.serve([9, 9, 9, 9])
    rig.empty()
    rig.ticks[0].pace = 0.0
    live = rig.admit([*PROMPT, 0])
    assert _held(rig, 1) == (3, 2)
    assert rig.evict(0, 8, 1) == 1, "only what nobody reads"
    assert rig.cache.usage()["host"].used_blocks == (2,)
    rig.ticks[0].pace = 1.0
    rig.until_ready(live)
    assert live.request.hit_tokens == 8
    rig.finish_all()


def test_used_blocks_are_those_of_the_tree_once_a_request_has_ended() -> None:
    """C9, xllm#829: the counter was updated after the cache had added a reference of its own, and
    never fell.
    """
    rig = build(page_tokens=4, device=16)
    rig.serve(list(range(12)))
    tier = rig.cache.tiers[0]
    assert tier.mode is TierMode.ON and _held(rig) == (3, 0)
    assert tier.usage().used_blocks == (3,)
    assert tier.free_blocks(0) + 3 == tier.capacity_blocks(0)
    rig.finish_all()
