"""Stores that close while they are read, and stores that are written faster than they are read, are
told of as they are (I32): nothing that went stays with a router, and nobody is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radix.groups import Group
from radix.keys import Namespace
from radix.service import hosting, kv_bridge
from radix.service.calls import StoredOrRemoved, Told
from radix.service.kv_bridge import Bridge
from radix.service.kv_wire import BlockRemoved
from radix.service.watching import Watch, WatchedStore
from tests.bridgerig import NOBODY, Domain, agree, router_of
from tests.service.rig import contents, keys_of


class Met(Watch):
    """A watch that something happens to right before it asks: ``happens`` is told for what."""

    happens: Callable[[str], None] | None = None

    def _tell(self, what: str) -> None:
        if self.happens is not None:
            self.happens(what)

    def stores(self) -> list[WatchedStore]:
        self._tell("stores")
        return super().stores()

    def resident(self, store: WatchedStore) -> Iterator[tuple[StoredOrRemoved, ...]]:
        self._tell("resident")
        return super().resident(store)

    def events(self, store: WatchedStore, since: int) -> Told:
        self._tell("events")
        return super().events(store, since)


def met_bridge(domain: Domain) -> tuple[Bridge, Met]:
    watch = Met(domain.path, NOBODY)
    return Bridge(lambda: watch, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"), watch


@pytest.mark.parametrize("when", [("stores", 2), ("resident", 1)], ids=lambda when: when[0])
def test_a_store_that_closes_while_a_gap_is_made_good_is_told_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: tuple[str, int]
) -> None:
    monkeypatch.setattr(hosting, "MOST_EVENTS", 8)
    asked: list[str] = []
    with Domain(tmp_path) as domain:
        bridge, watch = met_bridge(domain)
        router = router_of(bridge)
        with domain.client() as client:
            client.write(keys_of(["a", "b"]), contents(["a", "b"]))
            agree(domain, bridge, router)
            for turn in range(20):  # more events than are kept
                client.write(keys_of([turn]), contents([turn]), namespace=Namespace(f"m{turn}"))

        def closes(what: str) -> None:
            asked.append(what)
            if what == when[0] and asked.count(what) == when[1]:
                with domain.client([Group.full("other", 1 << 15)]) as other:
                    other.write(keys_of(["c"]), contents(["c"], 1 << 15))

        watch.happens = closes
        bridge.step()
        assert asked.count(when[0]) == when[1], "there was no gap"
        watch.happens = None
        agree(domain, bridge, router)
        assert len(router.held["CPU", 0]) == 1
        router.close()
        bridge.close()


def test_a_service_that_stores_faster_than_it_is_read_is_listed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_bridge, "_MOST_ROUNDS", 4)
    rounds = 0
    with Domain(tmp_path) as domain, domain.client(pool_bytes=1 << 17) as client:
        client.write(keys_of(["a", "b"]), contents(["a", "b"]))
        bridge, watch = met_bridge(domain)
        router = router_of(bridge)

        def stores(what: str) -> None:
            nonlocal rounds
            if what == "events":
                rounds += 1
                assert rounds < 40, "it waits for a service that never rests"
            names: list[object] = [(rounds, what, i) for i in range(10)]  # a third of the pool
            client.write(keys_of(names), contents(names))

        watch.happens = stores
        assert bridge.step() and bridge.step()
        assert rounds >= 8
        watch.happens = None
        agree(domain, bridge, router)
        assert any(isinstance(event, BlockRemoved) for event in router.events)
        router.close()
        bridge.close()
