"""A service in this process, a bridge that republishes what it holds, and what its stores say
themselves, in the form that a router has it in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from radix.events import BlocksStored
from radix.groups import Group
from radix.service import Client
from radix.service.config import read_config
from radix.service.kv_bridge import Bridge
from radix.service.kv_wire import MEDIA
from radix.service.link import Credentials
from radix.service.server import Server
from radix.service.watching import Watch
from tests.routers import Held, Router, nonempty
from tests.service.rig import contents

SIZE = 4096
GROUPS = [Group.full("kv", SIZE)]
PAGE = 16
NOBODY = Credentials("", None, None)


class Domain:
    """A server over a folder; ``tables``: its tenants."""

    def __init__(self, folder: Path, tables: Any = None, **flags: str) -> None:
        self.folder, self.tables = folder, tables
        self.path = str(folder / "s")
        told = {"socket": self.path, "admin": "none", "store_share": "1"}
        told |= {"host_bytes": "1MiB", "disk_bytes": "64MiB"}
        self.server = Server(read_config(None, told | flags, tables)).start()

    def client(self, groups: Sequence[Group] = GROUPS, **settings: Any) -> Client:
        return Client(self.path, groups, **settings)

    def watch(self) -> Watch:
        return Watch(self.path, NOBODY)

    def resident(self) -> list[tuple[bool, BlocksStored]]:
        """What every store says of itself, and whether its keys are those of prompts."""

        def look() -> list[tuple[bool, BlocksStored]]:
            stores = self.server.context.stores()
            return [(bool(s.signature.page_tokens), e) for s in stores for e in s.flat.resident()]

        told: list[tuple[bool, BlocksStored]] = self.server.ask(look)
        return told

    def held(self) -> Held:
        found: Held = {}
        for prompts, event in self.resident():
            where = found.setdefault((MEDIA[event.tier][0], 0), set())
            for row in event.keys:
                name = row.tobytes()
                where.add(int.from_bytes(name[16:24], "little") if prompts else name)
        return {place: names for place, names in found.items() if names}

    def idle(self) -> None:
        """Waits until nothing is under way."""
        for store in self.server.ask(self.server.context.stores):
            over = threading.Event()
            self.server.ask(lambda store=store, over=over: self._when_idle(store, over))
            assert over.wait(60), "a store is never idle"

    def _when_idle(self, store: Any, over: threading.Event) -> None:
        store.when_idle(over.set)
        self.server.context.active.add(store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.stop()


class Told:
    """A bridge as a router of tests/routers.py sees a publisher."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.endpoint = bridge.stream.endpoint
        self.replay_endpoint = bridge.stream.replay_endpoint

    @property
    def batches(self) -> int:
        return self.bridge.stream.batches

    def publish(self, events: Sequence[Any] = ()) -> int:
        self.bridge.stream.answer()
        return self.batches


def bridge_of(domain: Domain, **settings: Any) -> Bridge:
    return Bridge(domain.watch, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", **settings)


def catch_up(bridge: Bridge) -> None:
    """Steps until nothing is new."""
    while bridge.step():
        pass


def router_of(bridge: Bridge) -> Router:
    return Router(Told(bridge))  # type: ignore[arg-type]  # it has what a router asks of one


def agree(domain: Domain, bridge: Bridge, *routers: Router) -> None:
    """Every router knows what the stores say that they hold."""
    domain.idle()
    catch_up(bridge)
    for router in routers:
        router.hear(bridge.stream.batches)
        assert nonempty(router.held) == domain.held()


def write_prompt(client: Client, prompt: Sequence[int], size: int = SIZE) -> None:
    """Brings the full pages of a prompt, as many as there is room for."""
    room = client.reserve(tokens=np.array(prompt, np.int32))
    for index in np.flatnonzero(room.granted).tolist():
        room.block(index)[:] = contents([(tuple(prompt), index)], size)[0]
    client.commit(room, durable=False)


def only_me() -> dict[str, Any]:
    return {"me": {"uids": [os.getuid()]}}
