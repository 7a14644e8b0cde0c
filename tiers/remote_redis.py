"""Redis or Valkey as a backend of the remote tier: a cluster, or a single server. Each node is
asked by itself, in pipelines, so that one that is down costs its own names and nothing else: they
are missing, and it is left alone for a while. Keeps no invariant of its own.

    names --slot of the part in braces--> node --pipeline--> answers, one a name
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from tiers.remote_backend import MISSING, TOO_LONG, BackendError, Put

SLOTS = 16384
DOWN_S = 0.5  # a node that failed is left alone so long, then twice that, up to MOST_DOWN_S
MOST_DOWN_S = 8.0
_READ_BYTES = 1 << 16
_Place = tuple[str, int]
_Fill = Callable[[Any, int], object]  # adds the command of one name to a pipeline


class _Node:
    """One server. ``down_until``: it failed, and is not asked before; ``silent``: it has not
    answered since.
    """

    def __init__(self, place: _Place, settings: dict[str, Any], timeout_s: float) -> None:
        host, port = place
        self.client = redis.Redis(
            host=host,
            port=port,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            socket_read_size=_READ_BYTES,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **settings,
        )
        self.down_until = 0.0
        self.silent = False
        self._wait_s = DOWN_S

    @property
    def up(self) -> bool:
        """Whether it is asked."""
        return time.monotonic() >= self.down_until

    def failed(self) -> None:
        """A call did not go through."""
        self.silent = True
        self.down_until = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_DOWN_S)
        self.client.connection_pool.disconnect(inuse_connections=False)

    def answered(self) -> None:
        """A call did."""
        self.silent = False
        self._wait_s = DOWN_S


class RedisBackend:
    """A Redis or Valkey cluster by the addresses of some of its nodes."""

    def __init__(self, url: str) -> None:
        """``url``: redis://[user:password@]host:port[,host:port...], what is special in user and
        password percent-encoded; rediss:// for TLS, with ?authority=FILE (who signed the servers'
        certificates; else who the system trusts) and &certificate=FILE&key=FILE (to show). Connects
        to nothing. Raises ``ValueError``, ``OSError`` for a file that cannot be read.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss"):
            raise ValueError(f"url must begin with redis:// or rediss://, not {url!r}")
        login, _, hosts = parts.netloc.rpartition("@")
        self._seeds = [_place_of(host, url) for host in hosts.split(",")]
        self._settings: dict[str, Any] = _encryption(parts)
        if login:
            user, _, password = login.partition(":") if ":" in login else ("", "", login)
            self._settings |= {"username": unquote(user) or None, "password": unquote(password)}
        self._url = f"{parts.scheme}://{hosts}"
        self._nodes: dict[_Place, _Node] = {}
        self._owner: list[_Place] = []  # by slot; empty: one server has all
        self._single = self._seeds[0]
        self._lock = threading.Lock()
        self._timeout_s = 1.0
        self._mapped_s = 0.0

    @property
    def url(self) -> str:
        """Its seeds; no password."""
        return self._url

    def open(self, timeout_s: float) -> None:
        """Asks some node who has what. ``BackendError`` where none answers."""
        self._timeout_s = timeout_s
        self._map(force=True)

    def register(self, memory: memoryview) -> None:
        """Nothing: any memory will do."""

    # ------------------------------------------------------------------ who has what
    def _map(self, *, force: bool) -> None:
        with self._lock:
            if not force and time.monotonic() < self._mapped_s + DOWN_S:
                return
            self._mapped_s = time.monotonic()
            known = [place for place, node in self._nodes.items() if node.up]
            places = list(dict.fromkeys([*known, *self._seeds]))
            why: object = "no address"
            for place in places:
                try:
                    self._owner = self._owners(place)
                    self._drop_nodes(known)
                    return
                except (ConnectionError, TimeoutError) as error:
                    why = error
                except RedisError as error:
                    why = error
        raise BackendError(f"{self._url}: {why}")

    def _owners(self, place: _Place) -> list[_Place]:
        """By slot the node that has it, as one node says."""
        node = self._node(place)
        try:
            ask: Any = node.client.execute_command  # it is untyped
            rows = ask("CLUSTER", "SLOTS")
        except ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            self._single = place
            return []
        owner: list[_Place] = [place] * SLOTS
        for first, last, primary, *_ in rows:
            host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            found = (host or place[0], int(primary[1]))
            owner[first : last + 1] = [found] * (last - first + 1)
        return owner

    def _drop_nodes(self, known: list[_Place]) -> None:
        used = set(self._owner) | set(self._seeds)
        for place in known:
            if place not in used:
                self._nodes.pop(place).client.close()

    def _node(self, place: _Place) -> _Node:
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = _Node(place, self._settings, self._timeout_s)
        return node

    def _place(self, name: str) -> _Place:
        return self._owner[key_slot(name.encode())] if self._owner else self._single

    def _by_node(self, names: Sequence[str], chosen: Sequence[int]) -> dict[_Place, list[int]]:
        result: dict[_Place, list[int]] = {}
        for at in chosen:
            result.setdefault(self._place(names[at]), []).append(at)
        return result

    # ------------------------------------------------------------------ asking
    def _ask(self, names: Sequence[str], fill: _Fill, chosen: Sequence[int]) -> dict[int, Any]:
        """The answers to one command a name, of the names whose node answers. ``BackendError``
        where no node of the backend does.
        """
        answers: dict[int, Any] = {}
        down = 0
        for attempt in range(2):
            moved: list[int] = []
            for place, mine in self._by_node(names, chosen).items():
                for at, answer in zip(mine, self._pipeline(place, fill, mine), strict=False):
                    if isinstance(answer, MovedError | AskError):
                        moved.append(at)
                    elif isinstance(answer, ClusterDownError):
                        down += 1
                    else:
                        answers[at] = answer
            if not moved or attempt:
                break
            self._map(force=True)
            chosen = moved
        if not answers and chosen:
            if down:
                raise BackendError(f"{self._url}: the cluster says that it is down")
            # By now the first may be due again: each took its time to be found out.
            if all(node.silent for node in list(self._nodes.values())):
                raise BackendError(f"{self._url}: no node answers")
        return answers

    def _pipeline(self, place: _Place, fill: _Fill, mine: list[int]) -> list[Any]:
        """What a node answers; nothing where it is down."""
        node = self._node(place)
        if not node.up:
            return []
        try:
            pipe = node.client.pipeline(transaction=False)
            for at in mine:
                fill(pipe, at)
            result: list[Any] = pipe.execute(raise_on_error=False)
        except RedisError:
            node.failed()
            return []
        node.answered()
        return result

    # ------------------------------------------------------------------ the contract
    def put(
        self, names: Sequence[str], values: Sequence[memoryview], timeout_s: float
    ) -> list[Put]:
        """Sets what is not there yet: what another cache stored is not sent again."""
        there = self.exists(names, timeout_s)
        absent = [at for at, has in enumerate(there) if not has]
        result = [Put.STORED] * len(names)
        found = self._ask(names, lambda pipe, at: pipe.set(names[at], values[at]), absent)
        for at in absent:
            answer = found.get(at)
            if answer is None:
                result[at] = Put.FAILED
            elif isinstance(answer, Exception):
                result[at] = Put.FULL if str(answer).startswith("OOM") else Put.FAILED
        return result

    def get(self, names: Sequence[str], into: Sequence[memoryview], timeout_s: float) -> list[int]:
        """Reads; one copy from what the client received."""
        found = self._ask(names, lambda pipe, at: pipe.get(names[at]), range(len(names)))
        result = []
        for at, memory in enumerate(into):
            value = found.get(at)
            if not isinstance(value, bytes):
                result.append(MISSING)
            elif len(value) > len(memory):
                result.append(TOO_LONG)
            else:
                memory[: len(value)] = value
                result.append(len(value))
        return result

    def exists(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """One EXISTS a name."""
        found = self._ask(names, lambda pipe, at: pipe.exists(names[at]), range(len(names)))
        return [found.get(at) == 1 for at in range(len(names))]

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """UNLINK: the server frees the memory beside its other work."""
        self._ask(names, lambda pipe, at: pipe.unlink(names[at]), range(len(names)))

    def replace(self, name: str, value: bytes, timeout_s: float, *, absent: bool) -> bytes | None:
        """SET, with NX where ``absent``; one that was not answered may not have been heard."""
        told = self._ask([name], lambda pipe, at: pipe.set(name, value, nx=absent), [0])
        if not absent and told.get(0) is not True:
            return None
        found = self._ask([name], lambda pipe, at: pipe.get(name), [0]).get(0)
        return found if isinstance(found, bytes) else None

    def ping(self, timeout_s: float) -> None:
        """Whether one node answers; learns again who has what."""
        for node in list(self._nodes.values()):
            node.down_until = 0.0
        self._map(force=True)

    def close(self) -> None:
        """Closes every connection."""
        for node in self._nodes.values():
            node.client.close()
        self._nodes.clear()


def _encryption(parts: SplitResult) -> dict[str, Any]:
    """What redis-py is told of TLS. Names of servers are verified, by whichever authority."""
    try:
        given = dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else ())
    except ValueError:
        raise ValueError("url: what follows its ? must be NAME=FILE pairs") from None
    known = {"authority": "ssl_ca_certs", "certificate": "ssl_certfile", "key": "ssl_keyfile"}
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"url: unknown {unknown[0]!r} behind its ?, only {', '.join(known)}")
    if given and parts.scheme != "rediss":
        raise ValueError("url: files of TLS need rediss://")
    if ("certificate" in given) != ("key" in given):
        raise ValueError("url: certificate and key go together")
    for file in given.values():
        with open(file, "rb"):
            pass
    if parts.scheme != "rediss":
        return {}
    files = {known[name]: file for name, file in given.items()}
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **files}


def _place_of(host: str, url: str) -> _Place:
    name, _, port = host.rpartition(":")
    if not name or not port.isdigit():
        raise ValueError(f"url must name host:port, not {host!r}, in {urlsplit(url).scheme}://...")
    return name.strip("[]"), int(port)
