"""Real servers for the tests of the remote tier, on free ports of the loopback device, each ended
by its own process id: three nodes of a Redis cluster, a Mooncake master.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

START_S = 30.0
NODES = 3


def free_ports(count: int) -> list[int]:
    """Ports that nothing listened on just now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def until(what: str, met: object, limit_s: float = START_S) -> None:
    """Waits until ``met()`` is true; fails with ``what``."""
    assert callable(met)
    end = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


class Server:
    """One process that a test started."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command, self._log = command, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, again after ``kill``."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once, stopped or not. Idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class RedisNodes:
    """A cluster of three masters without replicas, nothing on disk. ``secure``: settings that each
    node has instead of a plain port, given that, and what a client of theirs is told.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 0,
        secure: tuple[Callable[[int], list[str]], dict[str, Any]] | None = None,
    ) -> None:
        self._client = {} if secure is None else secure[1]
        self._folder = Path(tempfile.mkdtemp(prefix="radix-redis-"))
        named = os.environ.get("RADIX_REDIS_SERVER", "redis-server")  # valkey-server, say
        program = shutil.which(named) or named
        ports = free_ports(2 * NODES)
        self.ports = ports[:NODES]
        self.servers = []
        for port, bus in zip(self.ports, ports[NODES:], strict=True):
            home = self._folder / str(port)
            home.mkdir()
            listens = ["--port", str(port)] if secure is None else secure[0](port)
            command = [program, "--bind", "127.0.0.1", *listens]
            command += ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
            command += ["--cluster-require-full-coverage", "no", "--dir", str(home)]
            command += ["--save", "", "--appendonly", "no", "--cluster-node-timeout", "2000"]
            if memory_bytes:
                command += ["--maxmemory", str(memory_bytes)]
            self.servers.append(Server(command, home / "log"))
        self._buses = ports[NODES:]
        self.url = "redis://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def client(self, node: int) -> redis.Redis:
        """A plain client of one node."""
        where = {"host": "127.0.0.1", "port": self.ports[node]}
        return redis.Redis(**where, protocol=2, socket_timeout=5, **self._client)

    def start(self) -> None:
        """Starts the nodes and joins them."""
        for server in self.servers:
            server.start()
        for node in range(NODES):
            until(f"redis {node} listens", lambda node=node: self.answers(node))
        width = -(-16384 // NODES)
        for node in range(NODES):
            last = min(16383, (node + 1) * width - 1)
            with contextlib.closing(self.client(node)) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", node * width, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", node + 1)
        with contextlib.closing(self.client(0)) as client:
            for port, bus in zip(self.ports[1:], self._buses[1:], strict=True):
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        until("all nodes take values", self.is_whole)
        self.clear()

    def answers(self, node: int) -> bool:
        """Whether a node answers."""
        with contextlib.closing(self.client(node)) as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def is_whole(self) -> bool:
        """Whether all nodes know of all slots, and take values, which they do some time after."""
        return all(self._takes_values(node) for node in range(NODES))

    def _takes_values(self, node: int) -> bool:
        with contextlib.closing(self.client(node)) as client, contextlib.suppress(redis.RedisError):
            known = len(client.execute_command("CLUSTER", "SLOTS")) == NODES
            return known and all(client.set(self.name_at(node), b"") for _ in range(3))
        return False

    def name_at(self, node: int) -> str:
        """Some name that this node has."""
        width = -(-16384 // NODES)
        numbers = (f"probe-{number}" for number in range(1000))
        return next(name for name in numbers if key_slot(name.encode()) // width == node)

    def names(self) -> list[tuple[int, bytes]]:
        """Every name that a living node has, with the node's number."""
        found = []
        for node in range(NODES):
            with contextlib.closing(self.client(node)) as client:
                found += [(node, name) for name in client.keys("*")]
        return found

    def clear(self) -> None:
        """Drops all values."""
        for node in range(NODES):
            with contextlib.closing(self.client(node)) as client:
                client.flushall()

    def close(self) -> None:
        """Ends every node."""
        for server in self.servers:
            server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def redis_nodes(
    *,
    memory_bytes: int = 0,
    secure: tuple[Callable[[int], list[str]], dict[str, Any]] | None = None,
) -> Iterator[RedisNodes]:
    """A cluster that runs for the length of a block."""
    nodes = RedisNodes(memory_bytes=memory_bytes, secure=secure)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()


class MooncakeMaster:
    """A master without any memory of its own; clients bring theirs."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="radix-mooncake-"))
        self.port, metrics = free_ports(2)
        program = Path(sys.executable).with_name("mooncake_master")
        self.server = Server(
            [
                str(program),
                "--rpc_address=127.0.0.1",
                f"--rpc_port={self.port}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={metrics}",
                "--enable_http_metadata_server=false",
                "--default_kv_lease_ttl=5000",
                "--client_ttl=3",
                "--rpc_thread_num=2",
                "--logtostderr=true",
            ],
            self._folder / "log",
        )
        self.url = f"mooncake://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        self.server.start()
        until("the master listens", self.answers)

    def answers(self) -> bool:
        """Whether something listens at its port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        """Ends it."""
        self.server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def mooncake_master() -> Iterator[MooncakeMaster]:
    """A master that runs for the length of a block."""
    master = MooncakeMaster()
    try:
        master.start()
        yield master
    finally:
        master.close()


class MooncakeOwner:
    """A process that gives the store memory, and keeps it until it is killed."""

    def __init__(self, master: MooncakeMaster, segment_bytes: int = 64 << 20) -> None:
        code = (
            "import sys, time; from tiers.remote_mooncake import MooncakeBackend\n"
            f"backend = MooncakeBackend.of('{master.url}?segment_bytes={segment_bytes}')\n"
            "backend.open(10.0)\n"
            "print('ready', flush=True)\n"
            "time.sleep(3600)\n"
        )
        self._command = [sys.executable, "-c", code]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; returns once the store has its memory."""
        root = Path(__file__).resolve().parents[1]
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """Ends it at once. Idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@contextlib.contextmanager
def mooncake_store(segment_bytes: int = 64 << 20) -> Iterator[tuple[MooncakeMaster, MooncakeOwner]]:
    """A master, and one process with memory, for the length of a block."""
    with mooncake_master() as master:
        owner = MooncakeOwner(master, segment_bytes)
        try:
            owner.start()
            yield master, owner
        finally:
            owner.kill()
