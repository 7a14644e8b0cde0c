"""What happens to clients of a service when the backend below it is stopped, killed, slow, full, or
gives back other bytes: hits are lost, and nothing else. Who asked for what lies there waits for it,
so long; everybody else is answered meanwhile, which is shown by the order of answers, never by a
clock. What was promised durable is; a drain ends.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radix.errors import TierError
from radix.groups import Group
from radix.service import Client
from tests.remote.servicesrig import Pair, is_on, is_quiet, remote_blocks
from tests.remoterig import RedisNodes, redis_nodes, until
from tests.service.rig import SIZE, Service, content, contents, keys_of

COUNT = 12
OTHERS = [Group.full("another", SIZE)]
Names = list[object]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    with redis_nodes() as running:
        yield running


@pytest.fixture(scope="module")
def running(nodes: RedisNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair"), nodes.url, **{"limits.remote_s": "2"}) as services:
        yield services


@pytest.fixture
def pair(running: Pair) -> Iterator[Pair]:
    """Two services with 4 MiB for blocks of one kind; sound, and whole again, after each test."""
    yield running
    for each in (running.one, running.two):
        each.until(lambda status: is_on(status) and is_quiet(status), 60.0)
        each.check()


def client_of(service: Service) -> Client:
    return service.client(pool_bytes=4 << 20, timeout_s=60.0)


def stored(service: Service, tag: str, count: int = COUNT) -> Names:
    """Names that only this service has, in memory, on disk and in the backend. Nodes that were away
    are asked again after a while only, so it may take several of them.
    """
    end = time.monotonic() + 60
    with client_of(service) as client:
        client.has(keys_of([tag]))  # opens it
        for attempt in itertools.count():
            service.until(lambda status: is_on(status) and is_quiet(status), 60.0)
            names: Names = [f"{tag} {attempt} {number}" for number in range(count)]
            before = remote_blocks(service.status())
            assert client.write(keys_of(names), contents(names)).all()
            service.until(is_quiet, 60.0)
            if remote_blocks(service.status()) == before + count:
                return names
            assert time.monotonic() < end, "some node is never asked again"
            time.sleep(0.2)
    raise AssertionError


@contextlib.contextmanager
def stopped(nodes: RedisNodes) -> Iterator[None]:
    """All nodes take connections and answer nothing."""
    for server in nodes.servers:
        server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for server in nodes.servers:
            server.send(signal.SIGCONT)


def held(client: Client, names: list[object]) -> int:
    """How many of the names a lease holds; the bytes of each are its own."""
    with client.lease(keys=keys_of(names), timeout_s=60.0) as lease:
        for name, block in zip(names, lease.blocks(), strict=True):
            assert block is None or (block == content(name)).all()
        assert lease.intact()
        return int(lease.held().sum())


class Beside:
    """A call in a thread of its own; ``result`` waits for it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._found: list[object] = []
        self.over = threading.Event()

        def run() -> None:
            try:
                self._found.append(call())
            except BaseException as error:  # outermost: the test raises it
                self._found.append(error)
            finally:
                self.over.set()

        threading.Thread(target=run, daemon=True).start()

    def result(self) -> object:
        assert self.over.wait(60), "a call never returned"
        (found,) = self._found
        if isinstance(found, BaseException):
            raise found
        return found


def test_stopped_nodes_hold_up_nobody_but_who_asked(nodes: RedisNodes, pair: Pair) -> None:
    theirs, mine = stored(pair.one, "stop"), stored(pair.two, "stop mine")
    with client_of(pair.two) as there, client_of(pair.two) as beside:
        with stopped(nodes):
            asked = Beside(lambda: held(there, theirs))
            answered = 0
            while not asked.over.is_set():  # it waits for the backend: others do not
                assert held(beside, mine) == len(mine)
                assert beside.lookup(keys=keys_of(mine), leave=0).pages == len(mine)
                answered += not asked.over.is_set()
            assert asked.result() == 0  # a miss, and no error
            assert answered > 0
            for number in range(3):  # each is late, until the backend is taken to be dead
                assert held(there, [f"nothing {number} {at}" for at in range(COUNT)]) == 0
            pair.two.until(lambda status: not is_on(status), 60.0)
            assert held(there, theirs) == 0  # and from then on it is not asked
        pair.two.until(is_on, 60.0)
        assert held(there, theirs) == len(theirs)


def test_a_backend_that_dies_before_a_load_costs_hits_only(nodes: RedisNodes, pair: Pair) -> None:
    theirs, mine = stored(pair.one, "die"), stored(pair.two, "die mine")
    with client_of(pair.two) as there:
        assert (there.has(keys_of(theirs), seek=True) >= 0).all()  # found, and not loaded yet
        with stopped(nodes):
            assert held(there, theirs) == 0
            assert held(there, mine) == len(mine)


def test_a_store_opens_while_the_backend_is_away(nodes: RedisNodes, pair: Pair) -> None:
    mine = stored(pair.two, "open mine")
    with client_of(pair.two) as beside:
        with pair.two.client(groups=OTHERS, pool_bytes=1 << 20, timeout_s=60.0) as new:
            with stopped(nodes):
                opened = Beside(lambda: new.has(keys_of(mine)).tolist())
                answered = 0
                while not opened.over.is_set():
                    assert held(beside, mine) == len(mine)
                    answered += not opened.over.is_set()
                assert opened.result() == [-1] * len(mine)
                assert answered > 0
                assert new.write(keys_of(mine), contents(mine)).all()
            assert held(new, mine) == len(mine)


def test_a_reset_that_the_backend_does_not_hear_changes_nothing(
    nodes: RedisNodes, pair: Pair
) -> None:
    theirs, mine = stored(pair.one, "reset"), stored(pair.two, "reset mine")
    with client_of(pair.two) as there, client_of(pair.two) as beside:
        assert held(there, theirs) == len(theirs)
        with stopped(nodes):
            resets = Beside(there.reset)
            while not resets.over.is_set():
                assert held(beside, mine) == len(mine)
            with pytest.raises(TierError, match="no new epoch"):
                resets.result()
            assert held(beside, [*mine, *theirs]) == len(mine) + len(theirs)
        until("the epoch is begun", lambda: renewed(there), 60.0)
        assert held(there, [*mine, *theirs]) == 0
    with client_of(pair.two) as there:  # who only stores hears of it, too
        until("found", lambda: held(there, stored(pair.one, "after the reset")) > 0, 60.0)


def renewed(client: Client) -> bool:
    """Whether the node that keeps the epoch answers again."""
    try:
        client.reset()
    except TierError:
        return False
    return True


def test_slow_answers_cost_time_and_no_hits(nodes: RedisNodes, tmp_path: Path) -> None:
    with Pair(tmp_path, nodes.url, **{"limits.remote_s": "60"}) as pair:
        theirs, mine = stored(pair.one, "slow"), stored(pair.two, "slow mine")
        with client_of(pair.two) as there, client_of(pair.two) as beside:

            def late(call: Callable[[], Any]) -> Any:
                """What a call gives that others overtook until the nodes answered it."""
                with stopped(nodes):
                    asked = Beside(call)
                    until("it waits", lambda: pair.two.waiting() > 0, 60.0)
                    for _ in range(5):
                        assert held(beside, mine) == len(mine)
                    assert not asked.over.is_set()
                return asked.result()

            keys = keys_of(theirs)
            assert (late(lambda: there.has(keys, seek=True)) == 2).all()
            assert late(lambda: held(there, theirs)) == len(theirs)
            (store,) = pair.two.status()["stores"]
            assert store["counters"]["remote.late"] == 0


def test_other_bytes_are_misses_and_go(nodes: RedisNodes, pair: Pair) -> None:
    mine, before = stored(pair.two, "bytes mine"), set(nodes.names())
    theirs = stored(pair.one, "bytes")
    for node, name in set(nodes.names()) - before:
        with contextlib.closing(nodes.client(node)) as client:
            value = bytearray(client.get(name))
            value[-7] ^= 16
            client.set(name, bytes(value))
    with client_of(pair.two) as there:
        assert held(there, theirs) == 0
        assert counted(pair.two.status(), "load.corrupt.remote.kv") == len(theirs)
        assert (there.has(keys_of(theirs), seek=True) == -1).all()  # the damaged values are gone
        assert held(there, mine) == len(mine)


def counted(status: dict[str, Any], name: str) -> int:
    return sum(int(store["counters"].get(name, 0)) for store in status["stores"])


def test_durable_is_what_the_disk_has(nodes: RedisNodes, tmp_path: Path) -> None:
    later: Names = [f"later {number}" for number in range(40)]
    flags = {"limits.remote_s": "2"}
    with Pair(tmp_path, nodes.url, **flags) as pair:
        first = stored(pair.one, "durable")
        with client_of(pair.one) as here, stopped(nodes):
            assert here.write(keys_of(later), contents(later), durable=True).all()
            here.flush()
            pair.one.kill()
        pair.one = pair.start(0)
        with client_of(pair.one) as here:
            assert held(here, [*first, *later]) == len(first) + len(later)
        pair.one.check()


def test_a_service_starts_and_drains_without_its_backend(nodes: RedisNodes, tmp_path: Path) -> None:
    names: Names = [f"away {number}" for number in range(COUNT)]
    flags = {"limits.drain_s": "2", "limits.remote_s": "1"}
    with stopped(nodes), Pair(tmp_path, nodes.url, **flags) as pair:
        for service in (pair.one, pair.two):
            with client_of(service) as client:
                assert client.write(keys_of(names), contents(names)).all()
                assert held(client, names) == len(names)
            assert service.drain() == 0


def test_a_drain_gives_up_what_a_stopped_backend_does_not_take(
    nodes: RedisNodes, tmp_path: Path
) -> None:
    later: Names = [f"given up {number}" for number in range(COUNT)]
    flags = {"limits.drain_s": "2", "limits.remote_s": "600"}  # no call is ever late
    with Pair(tmp_path, nodes.url, **flags) as pair:
        first = stored(pair.one, "taken")
        with client_of(pair.one) as client, stopped(nodes):
            assert client.write(keys_of(later), contents(later)).all()
            assert not is_quiet(pair.one.status())
            client.close()
            assert pair.one.drain() == 0
        pair.one = pair.start(0)
        with client_of(pair.one) as client:
            assert held(client, [*first, *later]) == len(first) + len(later)


@pytest.mark.long
def test_a_full_backend_declines_and_the_service_goes_on(tmp_path: Path) -> None:
    flags = {"limits.remote_s": "5"}
    with redis_nodes(memory_bytes=4 << 20) as nodes, Pair(tmp_path, nodes.url, **flags) as pair:
        with pair.one.client() as here, pair.two.client() as there:
            many: Names = [f"many {number}" for number in range(3600)]  # 15 MB for three times 4
            for first in range(0, len(many), 400):
                some = many[first : first + 400]
                assert here.write(keys_of(some), contents(some)).all()
            pair.one.until(is_quiet, 60.0)
            assert held(here, many) == len(many)
            assert held(there, many) < len(many)
        pair.one.check()
        pair.two.check()


@pytest.mark.long
def test_killed_nodes_cost_their_own_names(tmp_path: Path) -> None:
    with redis_nodes() as nodes, Pair(tmp_path, nodes.url) as pair:
        many = stored(pair.one, "many", 60)
        with client_of(pair.two) as there, client_of(pair.one) as here:
            assert held(there, ["nothing"]) == 0  # it knows the epoch, which one of them keeps
            nodes.servers[1].kill()
            some = held(there, many)
            assert 0 < some < len(many)
            assert held(here, many) == len(many)
            for server in nodes.servers:
                server.kill()
            for number in range(3):
                assert held(there, [f"nothing {number} {at}" for at in range(COUNT)]) == 0
            pair.two.until(lambda status: not is_on(status), 60.0)
            assert held(there, many) == some
            names: Names = [f"after {number}" for number in range(COUNT)]
            assert there.write(keys_of(names), contents(names)).all()
        assert pair.two.drain() == 0
