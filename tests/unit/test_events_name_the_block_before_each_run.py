"""Where a block has several pages its keys do not follow each other, so each is told by itself,
with the key of the page before it as its parent (I32).
"""

from __future__ import annotations

from radix.events import BlocksStored
from radix.keys import page_keys, root_key
from tests.cacherig import build
from tests.mixes import full

PROMPT = list(range(24))


def test_blocks_of_two_pages_name_the_page_before_them() -> None:
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
            assert event.parent == keys[event.first - 1].tobytes()
    rig.finish_all()
