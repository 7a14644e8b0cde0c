"""What an embedded store and a client of a service both do they call alike: names, arguments and
defaults; what differs stands here, and nothing else may. Both clients have the same calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radix.service import AsyncClient, Client
from radix.store import FlatStore
from tests.service.rig import GROUPS, Service, contents, keys_of

# Of calls that both have, the arguments of the embedded one that a client does not take, and those
# that have another name or order there.
DIFFERENT = {
    "lease": {"positions"},  # and what is leased may be tokens, which come first
    "load": {"positions", "urgency"},
    "touch": {"hints"},
    "keep": {"max_bytes", "positions"},
    "reserve": {"keep"},
    "commit": {"reservation"},  # a Room: it names memory of the service
    "abort": {"reservation"},
    "release": {"hints"},
    "reset": {"tiers"},  # a client resets all
}
# What only an embedded store has: its owner runs it, and asks it key by key.
EMBEDDED = {
    *("check", "poll", "wait", "set_mode", "set_tenants", "tenant_use"),  # the service's own
    *("probe", "prober", "coming", "slots", "seek", "fetch"),  # has(seek=), lookup, lease
    *("namespaces", "purge", "resident", "root_key", "root_of"),  # radix purge, events
}


def calls_of(kind: type) -> dict[str, Callable[..., Any]]:
    """Public calls by name."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {name: getattr(kind, name) for name in names if callable(getattr(kind, name))}


def test_both_clients_have_the_same_calls() -> None:
    waiting, tasks = calls_of(Client), calls_of(AsyncClient)
    assert waiting.keys() == tasks.keys()
    for name, call in waiting.items():
        assert inspect.signature(call) == inspect.signature(tasks[name]), name


def test_a_client_takes_what_an_embedded_store_takes() -> None:
    embedded, client = calls_of(FlatStore), calls_of(Client)
    assert set(embedded) - set(client) == EMBEDDED
    for name in sorted(set(embedded) & set(client)):
        mine = inspect.signature(embedded[name]).parameters
        theirs = inspect.signature(client[name]).parameters
        assert set(mine) - set(theirs) == DIFFERENT.get(name, set()), name
        for each in set(mine) & set(theirs):
            known = mine[each].default is not inspect.Parameter.empty
            assert not known or mine[each].default == theirs[each].default, (name, each)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_a_store_counts_and_takes_is_told_as_an_embedded_one_tells_it(
    kind: type, tmp_path: Path
) -> None:
    """And a lease that is given back is released, whichever way."""

    async def told() -> None:
        async def run(found: Any) -> Any:
            return await found if inspect.isawaitable(found) else found

        with Service(tmp_path) as service:
            client = kind(service.path, GROUPS)
            keys = keys_of([1, 2, 3])
            assert (await run(client.write(keys, contents([1, 2, 3])))).all()
            lease = await run(client.lease(keys=keys))
            assert lease.held().all()
            client.release(lease)
            client.release(lease)
            assert lease.released
            usage = await run(client.usage())
            assert usage["host"].used_blocks == (3,)
            assert 0 < usage["host"].used_bytes <= usage["host"].limit_bytes
            assert (await run(client.has(keys))).tolist() == [0, 0, 0]
            assert (await run(client.counters()))["has.hit.host"] >= 3
            await run(client.close())
            service.check()

    asyncio.run(told())
