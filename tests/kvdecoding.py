"""What we publish, read by the classes of an engine: each field that theirs and ours have in common
has our value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from radix.service.kv_events import KvPublisher
from tests.cacherig import build
from tests.mixes import full, state, window
from tests.routers import Router

PROMPT = list(range(24))
KINDS = {"AllBlocksCleared", "BlockRemoved", "BlockStored"}


def decoded_alike(batch: Any, *, groups: bool) -> None:
    """Publishes a stream of three groups and reads it with ``batch``, the engine's class of a
    batch. ``groups``: whether its events name groups, so that it can be known what is held.
    """
    rig = build(groups=(full(), window(9), state(8)), device=[12] * 3, below=(24,))
    publisher = KvPublisher(rig.cache, replay_endpoint="tcp://127.0.0.1:*", rank=3)
    rig.serve(PROMPT)
    publisher.publish(rig.poll())
    rig.cache.evict(0, 2)
    publisher.publish(rig.poll())
    ours = Router(publisher)
    theirs = Router(publisher, msgspec.msgpack.Decoder(batch).decode, keeps=groups)
    assert ours.again() == theirs.again() >= 2
    assert {type(event).__name__ for event in theirs.events} == KINDS
    for mine, read in zip(ours.events, theirs.events, strict=True):
        assert type(mine).__name__ == type(read).__name__
        for field in set(read.__struct_fields__) & set(mine.__struct_fields__):
            assert getattr(read, field) == getattr(mine, field), field
    assert theirs.held == (ours.held if groups else {})
    for router in (ours, theirs):
        router.close()
    rig.finish_all()
    publisher.close()
