"""R4: where groups share the bytes of the first tier, one may have its slots before the other finds
no room. Then the first gives its own back (I8): an admission that waits holds nothing.
"""

from __future__ import annotations

import pytest

from radix.cache import PrefixCache
from radix.errors import CapacityError
from radix.groups import Group
from tiers.host import HostTier

BLOCK_BYTES = 4096
GROUPS = [Group.full("kv", BLOCK_BYTES), Group.full("latent", BLOCK_BYTES)]


def test_group_that_finds_no_room_costs_the_other_nothing() -> None:
    host = HostTier(limit_bytes=10 * BLOCK_BYTES, segment_bytes=BLOCK_BYTES)
    with PrefixCache(GROUPS, page_tokens=1, tiers=[host]) as cache:
        first = cache.admit([1] * 2)
        assert sum(host.usage().used_blocks) == 4
        with pytest.raises(CapacityError):
            cache.admit([2] * 4)
        assert sum(host.usage().used_blocks) == 4
        first.abort()
        cache.poll()
        second = cache.admit([2] * 4)
        assert sum(host.usage().used_blocks) == 8
        second.abort()
        cache.poll()
        assert sum(host.usage().used_blocks) == 0
