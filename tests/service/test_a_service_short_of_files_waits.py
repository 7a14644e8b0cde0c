"""A service that has no descriptor left for another connection serves those that it has, and lets
the others in when some end.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from radix.service import Client
from radix.service.config import read_config
from radix.service.server import Server
from tests.remoterig import until
from tests.service.rig import GROUPS, contents, keys_of


class Short:
    """A socket that listens, in a process that is short of descriptors as long as it is told so."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.is_short = True
        self.refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_short:
            self.refusals += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    told = {"socket": str(tmp_path / "radix.sock"), "host_bytes": "4MiB", "data": "none"}
    with Server(read_config(None, told)) as running:
        yield running


def test_who_cannot_be_let_in_does_not_keep_it_awake(server: Server) -> None:
    """A connection that nobody could accept made the loop run without a pause, for it was told of
    in every turn: half a core as long as descriptors were short.
    """
    names: list[object] = list(range(8))
    with Client(server.addresses["socket"], GROUPS) as client:
        assert client.write(keys_of(names), contents(names)).all()
        ((descriptor, (kind, listener)),) = server._listeners.items()
        short = Short(listener)
        server.ask(lambda: server._listeners.update({descriptor: (kind, short)}))
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        waiting.connect(server.addresses["socket"])
        until("it has tried", lambda: short.refusals)
        looked = []

        def has_looked(times: int) -> bool:
            if server._looked not in looked:
                looked.append(server._looked)
            return len(looked) > times

        until("it has looked again and again", lambda: has_looked(3))
        assert 2 <= short.refusals <= len(looked) + 1
        assert client.read(keys_of(names))[0].all()
        short.is_short = False
        until("it lets in who waits", lambda: len(server.sessions) == 2)
        waiting.close()
        with Client(server.addresses["socket"], GROUPS) as another:
            assert another.read(keys_of(names))[0].all()


def test_it_ends_while_somebody_waits(server: Server) -> None:
    ((descriptor, (kind, listener)),) = server._listeners.items()
    short = Short(listener)
    server.ask(lambda: server._listeners.update({descriptor: (kind, short)}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        waiting.connect(server.addresses["socket"])
        until("it has tried", lambda: short.refusals)
        server.drain()
        until("it has ended", lambda: server._wake < 0)
        server.join()
