"""What we publish is what vLLM's own classes decode: every field of theirs has our value."""

from __future__ import annotations

import msgspec
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)

from radix.service.kv_events import KvPublisher
from tests.cacherig import build
from tests.mixes import full, state, window
from tests.routers import Router

PROMPT = list(range(24))


def test_their_decoder_reads_our_batches() -> None:
    rig = build(groups=(full(), window(9), state(8)), device=[12] * 3, below=(24,))
    publisher = KvPublisher(rig.cache, replay_endpoint="tcp://127.0.0.1:*", rank=3)
    rig.serve(PROMPT)
    publisher.publish(rig.poll())
    rig.cache.evict(0, 2)
    publisher.publish(rig.poll())
    ours = Router(publisher)
    theirs = Router(publisher, msgspec.msgpack.Decoder(KVEventBatch).decode)
    assert ours.again() == theirs.again() >= 2
    assert {type(event) for event in theirs.events} == {AllBlocksCleared, BlockRemoved, BlockStored}
    for mine, read in zip(ours.events, theirs.events, strict=True):
        assert type(mine).__name__ == type(read).__name__
        for field in set(read.__struct_fields__) & set(mine.__struct_fields__):
            assert getattr(read, field) == getattr(mine, field), field
    assert ours.held == theirs.held
    for router in (ours, theirs):
        router.close()
    rig.finish_all()
    publisher.close()
