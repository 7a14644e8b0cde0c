"""Faults of an engine's inserts. (a) In a cache whose pages are digests, ``insert_many`` looked for
what the tree has behind a lease by memory that nobody had written, in place of the keys that the
lease covers: pages that are there were given room again, and a step was refused, or not, by what
the allocator had left. (b) A step was not told what time it is, as a single lease is: under
``priority`` its inserts evicted by the time of the last poll. (c) A boundary that fits no counter
raised ``OverflowError``, of the short way alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.groups import Group, Retention
from radix.hints import Hints
from radix.layout import Layout
from tiers.index import IndexTier

PAGE = 2
KV = Group.full("kv", 64)
NEAR = Group("near", Layout.opaque(64), Retention("window", PAGE))
PROMPT, LONGER = np.arange(8, dtype=np.int32), np.arange(10, dtype=np.int32)


@pytest.mark.parametrize("keys", ["tokens", "xxh3", "sha256"])
def test_a_step_reserves_for_what_is_new_alone(keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty

    def dirty(*args: Any, **more: Any) -> Any:
        """Memory as others left it."""
        found = empty(*args, **more)
        found.reshape(-1).view(np.uint8)[:] = 0xEE
        return found

    monkeypatch.setattr(np, "empty", dirty)
    with PrefixCache([KV, NEAR], [IndexTier([5, 64])], page_tokens=PAGE, keys=keys) as cache:
        with cache.lease(cache.match(PROMPT, leave=0)[1]) as lease:
            cache.insert(PROMPT, lease, boundaries=[4])
        end = cache.match(LONGER, leave=0)[1]
        with cache.lease(end), cache.lease(end._replace(pages=2)) as lease:
            [done] = cache.insert_many([LONGER], [lease])
            assert (done.existing_pages, done.created_pages) == (2, 1)
            cache.check()


@pytest.mark.parametrize("many", [False, True])
def test_a_step_evicts_by_the_time_that_it_is(many: bool) -> None:
    """What was kept for a second goes before what is of higher priority once that is over."""
    now = [0]
    with PrefixCache(
        [KV], [IndexTier(8)], page_tokens=PAGE, policy="priority", clock=lambda: now[0]
    ) as cache:
        kept, other, new = (np.full(8, token, np.int32) for token in range(3))
        for prompt, hints in ((kept, Hints(keep_for=1, priority=9)), (other, Hints(priority=1))):
            lease = cache.lease(cache.match(prompt)[1])
            cache.insert(prompt, lease)
            lease.release(hints=hints)
        now[0] = 5_000_000_000
        cursor = cache.match(new)[1]
        lease = cache.lease_many([cursor])[0] if many else cache.lease(cursor)
        cache.insert_many([new], [lease]) if many else cache.insert(new, lease)
        hits = [cache.match(prompt, leave=0)[0].hit_pages for prompt in (kept, other, new)]
        assert hits == [0, 4, 4]
        lease.release()


def test_a_boundary_beyond_every_counter_is_refused_by_name() -> None:
    with PrefixCache([KV], [IndexTier(64)], page_tokens=PAGE) as cache:
        with cache.lease(cache.match(PROMPT)[1]) as lease:
            for position in (1 << 33, 1 << 63, 1 << 64, 1 << 100):
                with pytest.raises(ValueError, match=r"boundaries: .* lies outside"):
                    cache.insert(PROMPT, lease, boundaries=[position])
            cache.check()
