"""What a service asks its backend for is asked beside its loop: one epoch for all resets that
coincide, a purge among them, and one patience for all questions of a request. The service runs in
this process, so that it is seen which thread asks, and how long is waited; its backend is real.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from radix.errors import CacheError
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.service import Client
from radix.service.choosing import anything
from radix.service.config import read_config
from radix.service.hosting import Hosted
from radix.service.purge import purge_service
from radix.service.server import Server
from tests.remote.servicesrig import is_on
from tests.remoterig import RedisNodes, redis_nodes, until
from tests.service.rig import GROUPS, SIZE, content, contents, keys_of
from tiers.remote import RemoteTier

NAMES: list[object] = [f"waits {number}" for number in range(8)]
PAGE = 16
PROMPT_GROUPS = [
    Group("full", Layout.opaque(SIZE)),
    Group("near", Layout.opaque(SIZE), Retention("window", 3 * PAGE)),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with redis_nodes() as running:
        yield running


@contextmanager
def serving(folder: Path, nodes: RedisNodes, **flags: str) -> Iterator[Server]:
    told = {"socket": str(folder / "radix.sock"), "host_bytes": "16MiB", "store_share": "1"}
    patience = {"remote": nodes.url, "limits.remote_s": "60"}
    with Server(read_config(None, {**told, "data": "none", **patience, **flags})) as server:
        yield server


@contextmanager
def stopped(nodes: RedisNodes) -> Iterator[Callable[[], None]]:
    """No node answers, until what this gives is called, or the end."""

    def go_on() -> None:
        for server in nodes.servers:
            server.send(signal.SIGCONT)

    for server in nodes.servers:
        server.send(signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


def client_of(server: Server, groups: list[Group] = GROUPS, **settings: int) -> Client:
    return Client(server.addresses["socket"], groups, timeout_s=60.0, **settings)


def held(client: Client) -> int:
    with client.lease(keys=keys_of(NAMES)) as lease:
        return int(lease.held().sum())


def filled(server: Server, client: Client) -> None:
    """The names are stored, and the backend has them."""
    client.has(keys_of(NAMES))  # opens it
    until("it answers", lambda: is_on(server.status().as_json()), 60.0)
    assert client.write(keys_of(NAMES), contents(NAMES)).all()
    client.flush()


def waiting(server: Server) -> int:
    """Requests that are not answered yet."""
    return int(server.ask(lambda: sum(each.unanswered for each in server.sessions.values())))


def counted(server: Server, name: str) -> int:
    return sum(int(store.counters.get(name, 0)) for store in server.status().stores)


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that asked the backend for a new epoch."""
    threads: list[str] = []
    begin = RemoteTier.begin_epoch

    def seen(tier: RemoteTier) -> None:
        threads.append(threading.current_thread().name)
        begin(tier)

    monkeypatch.setattr(RemoteTier, "begin_epoch", seen)
    return threads


def test_resets_that_coincide_are_one(nodes: RedisNodes, tmp_path: Path, began: list[str]) -> None:
    with serving(tmp_path, nodes) as server, ExitStack() as stack:
        clients = [stack.enter_context(client_of(server)) for _ in range(3)]
        filled(server, clients[0])
        with ThreadPoolExecutor(3) as threads, stopped(nodes) as go_on:
            resets = [threads.submit(client.reset) for client in clients]
            until("all wait", lambda: waiting(server) == len(clients), 60.0)
            go_on()
            for each in resets:
                each.result(60)
        assert began == ["radix-epoch"]
        assert counted(server, "reset.epochs") == 1
        assert held(clients[0]) == 0
        clients[0].reset()  # and what is asked for later begins another
        assert (began, counted(server, "reset.epochs")) == (["radix-epoch"] * 2, 2)


@pytest.mark.parametrize("first", ["reset", "purge"])
def test_a_purge_shares_the_epoch_of_a_reset(
    nodes: RedisNodes, tmp_path: Path, began: list[str], first: str
) -> None:
    with serving(tmp_path, nodes) as server, client_of(server) as client:
        filled(server, client)
        (store,) = server.context.stores()
        asked: list[Future[object]] = []
        with ThreadPoolExecutor(2) as threads, stopped(nodes) as go_on:
            for name in (first, *({"reset", "purge"} - {first})):
                if name == "reset":
                    asked.append(threads.submit(client.reset))
                else:
                    asked.append(threads.submit(purge_service, server, anything()))
                until(f"{name} waits", lambda: len(store._resetting) == len(asked), 60.0)
            go_on()
            for each in asked:
                each.result(60)
        assert began == ["radix-epoch"]
        assert counted(server, "reset.epochs") == 1
        assert (client.has(keys_of(NAMES), seek=True) == -1).all()
        assert purge_service(server, anything()).remotes == 1
        assert began == ["radix-epoch"] * 2


def test_whatever_keeps_an_epoch_away_the_store_is_not_reset(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tier: RemoteTier) -> None:
        raise RuntimeError("a fault")

    with serving(tmp_path, nodes) as server, client_of(server) as client:
        filled(server, client)
        with monkeypatch.context() as patched:
            patched.setattr(RemoteTier, "begin_epoch", broken)
            with pytest.raises(CacheError, match="a fault of the server"):
                client.reset()
            with pytest.raises(RuntimeError, match="a fault"):
                purge_service(server, anything())
        assert held(client) == len(NAMES)
        client.reset()
        assert held(client) == 0


def test_a_store_that_is_closed_while_an_epoch_is_begun_ends_nothing(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    begin = RemoteTier.begin_epoch

    def late(tier: RemoteTier) -> None:
        assert go_on.wait(60)
        begin(tier)

    monkeypatch.setattr(RemoteTier, "begin_epoch", late)
    with serving(tmp_path, nodes) as server, ThreadPoolExecutor(1) as threads:
        with client_of(server) as client:
            filled(server, client)
        try:
            purged = threads.submit(purge_service, server, anything())
            (store,) = server.context.stores()
            until("the purge waits", lambda: len(store._resetting) == 1, 60.0)
            other = [Group.full("another", 2 * SIZE)]
            with client_of(server, other, pool_bytes=16 << 20) as client:
                assert client.write(keys_of([1]), content(1, 2 * SIZE)[None]).all()
                assert store.closed  # it had to go
                with pytest.raises(CacheError, match="the store was closed"):
                    purged.result(60)
                assert client.has(keys_of([1])).tolist() == [0]
        finally:
            go_on.set()


def test_all_questions_of_a_request_have_one_patience(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    after = Hosted.after

    def seen(hosted: Hosted, number: int, tell: Callable[..., None], patience_s: float) -> None:
        waits.append(patience_s)
        after(hosted, number, tell, patience_s)

    tokens = np.arange(10 * PAGE + 1, dtype=np.int32)
    with serving(tmp_path, nodes, **{"limits.remote_s": "1"}) as server:
        with client_of(server, PROMPT_GROUPS, page_tokens=PAGE) as client:
            client.lookup(tokens)  # opens it
            until("it answers", lambda: is_on(server.status().as_json()), 60.0)
            room = client.reserve(tokens=tokens[: 4 * PAGE], group=0)
            for page in range(4):
                room.block(page)[:] = content(page)
            client.commit(room, np.ones(4, np.bool_))
            client.flush()
            monkeypatch.setattr(Hosted, "after", seen)
            with stopped(nodes):
                assert client.lookup(tokens, seek=True).pages == 0
            first, second = waits  # what all need; then, of the four pages here, the window
            assert second < first
