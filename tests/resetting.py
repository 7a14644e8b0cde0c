"""Resets under a rig: what it then may find again, and the tokens that hit nothing any more."""

from __future__ import annotations

from collections.abc import Sequence

from radix.events import RequestState
from tests.cacherig import Rig


def reset(rig: Rig, tiers: Sequence[str] | None = None) -> None:
    """Resets the cache; with all tiers nothing that was computed before may be a hit."""
    shared = {
        work.hop: work.inserted
        for work in rig.cache.requests.works.values()
        if work.state is not RequestState.LOADING
    }
    rig.cache.reset(tiers)
    names = {tier.name for tier in rig.cache.opened}
    for number, tier in enumerate(rig.cache.residency.tiers):
        for group in range(len(rig.cache.groups)) if tiers is None or tier.name in tiers else ():
            column = rig.cache.tree.column(group, number)
            assert rig.cache.tree.column_stats(column).resident == 0, "a block outlived a reset"
    if tiers is None or set(tiers) >= names:
        rig.known.clear()
        for work in rig.cache.requests.works.values():
            if work.hop in shared:
                assert work.stale and work.inserted == shared[work.hop], "C53"


def served_again(rig: Rig, tokens: list[int]) -> int:
    """Tokens that a prompt would hit now, by all that the cache says."""
    told = rig.cache.explain(tokens).hit_tokens
    match, _ = rig.cache.match(tokens)
    assert match.hit_pages * rig.cache.page_tokens == told
    return told
