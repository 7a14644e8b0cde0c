"""What is declined for want of room is offered again in a later step. By then a chunk of several
blocks of a window may have lost its first ones, which the engine names as none, and a hit that ends
at this chunk would read what was never stored. With chunks of several blocks an offer is therefore
declined for good; with chunks of one block the engine leaves out one that is gone.
"""

from __future__ import annotations

import pytest

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.offload import Offload
from radix.engines.vllm.options import Options
from radix.store import FlatStore
from tests.vllm.offloadrig import BLOCK, SPACE, context_of, keys_of
from tests.vllm.workerrig import config_of
from tiers.host import HostTier

ROOM = 4


@pytest.mark.parametrize(("blocks_per_chunk", "again"), [(1, True), (2, False)])
def test_an_offer_without_room_comes_again_only_where_a_chunk_is_one_block(
    blocks_per_chunk: int, again: bool
) -> None:
    geometry = Geometry(1, blocks_per_chunk, (0,), ((BLOCK // blocks_per_chunk,),))
    offload = Offload(
        store=FlatStore(geometry.groups(), [HostTier(ROOM * BLOCK)], key_bytes=32),
        geometry=geometry,
        namespace=lambda: SPACE,
        options=Options(ROOM * BLOCK),
        config=config_of(),
    )
    try:
        context = context_of("r", keys_of(*range(ROOM + 2)))
        offload.on_new_request(context)
        under_way = [
            offload.prepare_store(keys_of(n, n + 1), context).keys_to_store
            for n in range(0, ROOM, 2)
        ]
        assert [len(keys) for keys in under_way] == [2, 2]
        answer = offload.prepare_store(keys_of(ROOM, ROOM + 1), context)
        if again:
            assert answer is None
        else:
            assert answer is not None
            assert (answer.keys_to_store, len(answer.store_spec)) == ([], 0)
        assert offload.counters()["declined.no room"] == 1
    finally:
        offload.shutdown()
