"""A turn of the service's loop serves who is ready; who may ask nothing more now, because he takes
no answers or waits for as many as he may, costs it a look.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from radix.service.config import read_config
from radix.service.server import Server
from radix.service.session import Session
from tests.counting import calls_of


def _turn(folder: Path, paused: int) -> int:
    """Python calls of a turn with so many who have a frame begun and wait for all they may."""
    folder.mkdir()
    told = {"socket": str(folder / "s"), "admin": "none", "host_bytes": "1MiB"}
    server = Server(read_config(None, told, None))
    with ExitStack() as stack:
        stack.callback(server._close_all)
        for number in range(1, paused + 1):
            here, there = socket.socketpair()
            stack.callback(there.close)
            here.setblocking(False)
            session = Session(here, number, 0, 1 << 16, server._answered)
            stack.callback(here.close)
            session.splitter.room()[:4] = b"RDX1"
            session.splitter.filled(4)
            session.unanswered = server.config.limits.max_pipeline
            server._poll.register(here.fileno(), session.mask)
            server._paused.add(session)
        server.drain()  # wakes the loop, so that no turn waits for anybody
        server._ends = None
        count = calls_of(server._turn)
        assert len(server._paused) == paused, "they are served once they take something"
        session = next(iter(server._paused))
        session.unanswered = 0
        server._turn()
        served = session not in server._paused
        assert served
    return count


def test_who_takes_nothing_costs_a_turn_a_look(tmp_path: Path) -> None:
    """The fault: in each turn everybody who was paused was served in vain, and what had not been
    queued for him was sent: twelve calls each, where a look tells.
    """
    few, many = _turn(tmp_path / "few", 4), _turn(tmp_path / "many", 100)
    assert many - few <= 4 * 96, (few, many)
