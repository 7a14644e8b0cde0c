"""What we publish, read by the classes of an engine: each field that theirs and ours have in common
has our value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from radix.service.kv_events import KvPublisher
from tests.bridgerig import Domain, Told, bridge_of, catch_up, write_prompt
from tests.cacherig import build
from tests.mixes import full, state, window
from tests.routers import Router
from tests.service.rig import contents, keys_of

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
    _read_alike(publisher, batch, groups=groups)
    rig.finish_all()
    publisher.close()


def service_decoded_alike(batch: Any, folder: Path, *, groups: bool, keys: bool) -> None:
    """The same of what `radix events` tells of a service that has prompts; ``keys``: and keys that
    an engine made, which are bytes.
    """
    with Domain(folder, data=str(folder / "data")) as domain:
        bridge = bridge_of(domain, rank=3)
        with domain.client(page_tokens=4, pool_bytes=1 << 19) as client:
            write_prompt(client, PROMPT)
            domain.idle()
            catch_up(bridge)
            client.reset()
            domain.idle()
            catch_up(bridge)
            write_prompt(client, PROMPT[:16])
            if keys:
                with domain.client() as keyed:
                    keyed.write(keys_of(["a", "b"]), contents(["a", "b"]))
                    domain.idle()
                    catch_up(bridge)
        _read_alike(Told(bridge), batch, groups=groups)
        bridge.close()


def _read_alike(publisher: Any, batch: Any, *, groups: bool) -> None:
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
