"""Faults: an engine's insert left blocks of a group of which every block is needed over a gap on
the first tier (I21). Mechanisms: (a) whether the lease ends behind what that tier holds was not
asked of groups whose blocks have several pages, or that look ahead; (b) an engine's row of slots
was taken that named none where a block of several pages ends; (c) in a step each prompt counts on
the pages that stand behind its lease, but only its own room was made with them pinned: room for the
prompts behind it could take them. Source: storms of requests and an engine's inserts in one cache.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError, LeaseError
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.ownership import Ownership
from tiers.index import IndexTier

PAGE = 2
KV = Group.full("kv", 64)
PAIRS = Group("pairs", Layout.opaque(64), grid_tokens=2 * PAGE)
AHEAD = Group("ahead", Layout.opaque(64), lookahead=1)
NEAR = Group("near", Layout.opaque(64), Retention("window", PAGE))
PROMPT = np.arange(8, dtype=np.int32)
LONGER = np.arange(12, dtype=np.int32)


def put(cache: PrefixCache, prompt: np.ndarray) -> None:
    """A prompt by itself."""
    with cache.lease(cache.match(prompt, leave=0)[1]) as lease:
        cache.insert(prompt, lease)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("group", [PAIRS, AHEAD], ids=lambda group: group.name)
def test_an_insert_behind_what_the_tier_lacks_of_any_group_is_refused(
    group: Group, many: bool
) -> None:
    with PrefixCache([KV, group], [IndexTier(64)], page_tokens=PAGE) as cache:
        put(cache, PROMPT)
        assert len(cache.evict(1, 1)) == 1
        match, cursor = cache.match(LONGER, leave=0)
        assert match.device_pages < match.structural_pages == 4
        with cache.lease(cursor) as lease:
            with pytest.raises(LeaseError, match="does not hold"):
                cache.insert_many([LONGER], [lease]) if many else cache.insert(LONGER, lease)
            cache.check()
        with cache.lease(cursor._replace(pages=match.device_pages)) as lease:
            cache.insert_many([LONGER], [lease]) if many else cache.insert(LONGER, lease)
            cache.check()
        assert cache.match(LONGER, leave=0)[0].hit_pages >= 5


@pytest.mark.parametrize("many", [False, True])
def test_a_row_without_a_slot_where_a_block_ends_is_refused_by_name(many: bool) -> None:
    shared, pages = Ownership.SHARED, len(PROMPT) // PAGE
    with PrefixCache([KV, PAIRS], [IndexTier(64)], page_tokens=PAGE, ownership=shared) as cache:
        with cache.lease(cache.match(PROMPT)[1]) as lease:
            for row in ([-1, -1, -1, 9], [-1, 8, -1, -1]):
                given = [list(range(pages)), row]
                with pytest.raises(ValueError, match=r"slots\[1\]: none at page [13]"):
                    if many:
                        cache.insert_many([PROMPT], [lease], slots=[given])
                    else:
                        cache.insert(PROMPT, lease, slots=given)
                cache.check()
                assert lease.pages == 0
            cache.insert(PROMPT, lease, slots=[list(range(pages)), [-1, 8, -1, 9]])
            cache.check()
        assert cache.match(PROMPT, leave=0)[0].hit_pages == pages


@pytest.mark.parametrize("blocks", [4, 5])
def test_what_one_prompt_of_a_step_finds_stays_while_room_is_made_for_another(blocks: int) -> None:
    """Two pages are there behind a lease on nothing; the step needs three more."""
    with PrefixCache([KV, NEAR], [IndexTier([blocks, 64])], page_tokens=PAGE) as cache:
        put(cache, LONGER[: 2 * PAGE])
        prompts = [LONGER[: 3 * PAGE], np.full(2 * PAGE, 99, np.int32)]
        leases = [cache.lease(cache.match(prompt)[1]._replace(pages=0)) for prompt in prompts]
        if blocks == 4:
            with pytest.raises(CapacityError, match="request 1 of the batch"):
                cache.insert_many(prompts, leases)
            cache.check()
            assert cache.match(prompts[0], leave=0)[0].hit_pages == 2
        else:
            done = cache.insert_many(prompts, leases)
            cache.check()
            assert done.existing_pages.tolist() == [2, 0]
            assert cache.match_many(prompts, leave=0).hit_pages.tolist() == [3, 2]
        cache.release_many(leases)
        assert cache.tree.stats().leases == 0
        cache.check()
