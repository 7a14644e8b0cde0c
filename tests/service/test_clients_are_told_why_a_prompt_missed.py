"""EXPLAIN says how far a prompt is there and names the reason of the first block that is missing:
never stored, evicted (and from where), corrupt, gone by a reset, in a tier that is off, or what a
window or a state would need. It changes nothing and counts nothing; LOOKUP and LEASE agree with
it, and the counts by reason are the same words.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from radix.groups import Group, Retention
from radix.keys import Namespace
from radix.layout import Layout
from radix.service import AsyncClient, Client
from radix.service.config import read_config
from radix.service.explaining import why_no_further
from radix.service.hosting import Hosted, domains_of
from radix.service.opening import declared, parse_opening
from radix.tier import TierMode
from tests.service.rig import GROUPS, Service, contents, keys_of

PAGE = 16
MIXED = [
    Group("full", Layout.opaque(64)),
    Group("near", Layout.opaque(64), Retention("window", 32)),
    Group("state", Layout.opaque(64), Retention("state"), grid_tokens=32),
]


def stored(client: Client, prompt: np.ndarray, group: int, pages: list[int]) -> None:
    """The blocks of some pages of a prompt, of one group."""
    room = client.reserve(tokens=prompt, group=group)
    good = np.zeros(len(room.granted), np.bool_)
    good[pages] = True
    client.commit(room, good & room.granted)


def test_each_reason_is_named(tmp_path: Path) -> None:
    prompt = np.arange(10 * PAGE + 3, dtype=np.int32)
    with Service(tmp_path, host_bytes="1MiB") as service:
        with service.client(page_tokens=PAGE) as client:
            told = client.explain(prompt)
            assert (told.asked, told.hit, told.reason) == (10, 0, "cold")
            stored(client, prompt[: 6 * PAGE], 0, list(range(6)))
            before = service.status()["stores"][0]["asked"]
            told = client.explain(prompt)
            assert (told.hit, told.pool, told.there, told.tiers) == (6, 6, {"kv": 6}, {"host": 6})
            assert told.reason == "cold"
            assert client.lookup(prompt).pages == told.hit
            short = client.explain(prompt[: 5 * PAGE])  # the last token is computed in any case
            assert (short.hit, short.reason) == (4, "below one page")
            assert client.explain(prompt[: 5 * PAGE], leave=0).reason == ""
            assert service.status()["stores"][0]["asked"] == before
            for first in range(0, 512, 64):  # twice the pool
                names: list[object] = list(range(first, first + 64))
                client.write(keys_of(names)[:, :16], contents(names))
            assert client.explain(prompt).reason == "evicted from host"
            client.lease(prompt).release()
            misses = service.status()["stores"][0]["asked"]["misses"]
            assert misses == {"evicted from host": 6, "cold": 4}
            kept = keys_of(names)[:1, :16]
            client.forget(kept)
            assert client.explain(keys=kept, leave=0).reason == "corrupt"
            client.reset()
            other = keys_of(names)[1:2, :16]
            assert client.explain(keys=other, leave=0).reason == "reset"
            service.check()


def test_what_windows_and_states_would_need_is_named(tmp_path: Path) -> None:
    prompt = np.arange(8 * PAGE + 1, dtype=np.int32)
    with Service(tmp_path) as service, service.client(groups=MIXED, page_tokens=PAGE) as client:
        stored(client, prompt, 0, list(range(8)))
        stored(client, prompt, 1, [0, 1, 2, 3, 5, 6, 7])
        assert client.explain(prompt).reason == "no checkpoint"
        stored(client, prompt, 2, [3])
        told = client.explain(prompt)
        assert (told.hit, told.reason) == (4, "no checkpoint")
        stored(client, prompt, 2, [5])
        told = client.explain(prompt)
        assert (told.hit, told.reason) == (4, "window gap")
        assert client.lookup(prompt).pages == 4
        stored(client, prompt, 2, [7])
        assert (client.explain(prompt).hit, client.explain(prompt).reason) == (8, "")


def test_another_client_is_told_the_same_and_a_dead_service_says_so(tmp_path: Path) -> None:
    prompt = np.arange(3 * PAGE + 1, dtype=np.int32)
    with Service(tmp_path) as service:
        with service.client(page_tokens=PAGE) as client:
            stored(client, prompt, 0, [0, 1])

            async def asked() -> None:
                async with AsyncClient(service.path, GROUPS, page_tokens=PAGE) as other:
                    assert await other.explain(prompt) == client.explain(prompt)

            asyncio.run(asked())
            service.kill()
            assert client.explain(prompt).reason == "the service is gone"


def test_a_tier_that_is_off_is_the_reason(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path), "host_bytes": "1MiB", "disk_bytes": "16MiB", "store_share": "1"}
    (domain,) = domains_of(read_config(None, flags)).values()
    asked = declared(tuple(GROUPS), 32, 0, Namespace(), 0)
    hosted: Hosted = domain.store(parse_opening(asked, 1).signature, 0)
    keys = keys_of(list(range(400)))
    for first in range(0, 400, 40):
        part = keys[first : first + 40]
        hosted.flat.commit(hosted.flat.reserve(part))
        hosted.flat.flush()
    root = hosted.flat.root_of(None)
    assert why_no_further(hosted, root, keys[:40], 40).tiers == {"disk": 40}
    hosted.flat.set_mode("disk", TierMode.OFF)
    assert why_no_further(hosted, root, keys[:40], 40).reason == "tier out"
    hosted.flat.has(keys[:40])
    assert hosted.flat.metrics.below("has", "miss") == {"tier out": 40}
    domain.close(0.0)
