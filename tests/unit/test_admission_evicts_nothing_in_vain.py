"""R4: an admission that one group cannot serve evicts nothing of another: what was cached is hit as
far as before.
"""

from __future__ import annotations

import pytest

from radix.errors import CapacityError
from tests.cacherig import build
from tests.mixes import full, window


@pytest.mark.parametrize("groups", [(full(), window(8)), (window(8), full())])
def test_refused_admission_leaves_every_block_where_it_is(groups: tuple[object, ...]) -> None:
    rig = build(groups=groups, device=12, page_tokens=1)
    rig.serve([1, 1, 1, 1, 1, 1])
    held = rig.until_ready(rig.admit([2, 2, 2, 2, 2, 2, 2, 2], chunk_tokens=1))
    cache = rig.cache
    before = cache.counters(), cache.usage(), cache.explain([1] * 7).hit_tokens
    wanted = cache.tiers[0].capacity_blocks(0)
    with pytest.raises(CapacityError):
        rig.admit([3] * wanted)
    assert (cache.counters(), cache.usage(), cache.explain([1] * 7).hit_tokens) == before
    assert held.request.ready
    rig.finish_all()
