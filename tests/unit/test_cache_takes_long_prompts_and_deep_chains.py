"""A prompt of a million tokens and a chain that grows by one page twenty thousand times go through
the facade like any other: nothing recurses, nothing is kept a token (C111, C113).
"""

from __future__ import annotations

import numpy as np

from radix.cache import PrefixCache
from radix.groups import Group
from tiers.index import IndexTier

KV = [Group.full("kv", 64)]


def test_prompt_of_a_million_tokens_goes_down_and_comes_up_again() -> None:
    tiers = [IndexTier(70_000), IndexTier(70_000, "host"), IndexTier(140_000, "deep")]
    prompt = np.random.default_rng(0).integers(0, 1 << 31, 1_000_000).astype(np.int32)
    with PrefixCache(KV, tiers) as cache:
        request = cache.admit(prompt)
        request.computed(len(prompt))
        request.finish()
        cache.flush()
        assert [usage.used_blocks for usage in cache.usage().values()] == [(62_500,)] * 3
        assert len(cache.evict(0, 70_000)) == len(cache.evict(0, 70_000, tier=1)) == 62_500
        request = cache.admit(prompt)
        assert not request.ready
        request.wait()
        assert request.hit_tokens == 999_984 and request.sources == {"deep": 999_984}
        request.abort()
        cache.poll()
        cache.check()


def test_chain_that_grows_page_by_page_is_evicted_page_by_page() -> None:
    """C111, sglang#3029: helpers that recursed overflowed on deep trees."""
    tokens = np.random.default_rng(1).integers(0, 1000, 20_001, dtype=np.int32)
    with PrefixCache(KV, [IndexTier(20_010)], page_tokens=1) as cache:
        request = cache.admit(tokens[:1], new_tokens=20_000)
        for length in range(1, 20_001):
            request.computed(length)
            request.append(tokens[length : length + 1])
        with cache.lease(cache.match(tokens[:10_000])[1]):
            request.finish()
            cache.poll()
            cache.check()
            assert cache.explain(tokens).hit_tokens == 20_000
            assert len(cache.evict(0, 30_000)) == 10_000
        assert len(cache.evict(0, 30_000)) == 10_000
        cache.check()
