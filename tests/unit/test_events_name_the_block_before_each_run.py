"""Where a block has several pages its keys do not follow each other, so each is told by itself,
with the key of the block before it as its parent and all of its own pages (I32).
"""

from __future__ import annotations

import numpy as np

from radix.events import BlocksStored
from radix.keys import page_keys, root_key
from tests.cacherig import build
from tests.mixes import full

PROMPT = list(range(24))


def test_blocks_of_two_pages_name_the_block_before_them() -> None:
    rig = build(groups=(full(grid_tokens=8),), below=(32,))
    live = rig.until_ready(rig.admit(PROMPT))
    rig.compute(live, 24)
    events = [event for _ in range(20) for event in rig.poll()]
    root = root_key(rig.cache.namespace())
    keys = page_keys(root, live.request.tokens(), 4)
    for tier in ("device", "host"):
        stored = [e for e in events if isinstance(e, BlocksStored) and e.tier == tier]
        assert [(event.first, len(event.keys)) for event in stored] == [(1, 1), (3, 1), (5, 1)]
        for event in stored:
            before = keys[event.first - 2].tobytes() if event.first > 1 else root
            assert event.parent == before
            assert event.pages is not None and event.namespace == rig.cache.namespace()
            tokens = event.pages.reshape(-1).view(np.int32)
            assert tokens.tolist() == PROMPT[(event.first - 1) * 4 : (event.first + 1) * 4]
    rig.finish_all()
