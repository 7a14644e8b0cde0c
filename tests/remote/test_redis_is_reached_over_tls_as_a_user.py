"""A real Redis cluster that takes TLS alone, wants a certificate, and gives a user what the tier
needs and nothing else: caches share prefixes through it, and who shows the wrong certificate, the
wrong password or trusts another authority gets nothing; those are misses, and no password is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from radix.tier import TierMode
from tests.certificates import authority, signed
from tests.remote import peer
from tests.remoterig import RedisNodes, redis_nodes
from tiers.remote import backend_of
from tiers.remote_backend import BackendError, Put

PAGES = 8
PROMPTS = 6
PASSWORD = "p:a/s@s word%41"  # all of it means something in an URL
QUICK = {"deadline_s": 2.0, "retry_s": 0.05, "epoch_s": 0.1}
RIGHTS = "+get +set +exists +unlink +cluster|slots +ping"


class Place:
    """The nodes, and the files of those who may come in."""

    def __init__(self, nodes: RedisNodes, root: Path, client: tuple[Path, Path], other: Path):
        self.nodes, self.root, self.client, self.other = nodes, root, client, other

    def url(
        self,
        login: str = f"tier:{quote(PASSWORD, safe='')}",
        root: Path | None = None,
        client: tuple[Path, Path] | None = None,
    ) -> str:
        certificate, key = client or self.client
        hosts = self.nodes.url.removeprefix("redis://")
        files = f"authority={root or self.root}&certificate={certificate}&key={key}"
        return f"rediss://{login}@{hosts}?{files}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("tls")
    root, other = authority(folder, "root"), authority(folder, "other")
    certificate, key = signed(root, "node", address="127.0.0.1")
    client = signed(root, "client")

    def listens(port: int) -> list[str]:
        files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
        files += ["--tls-ca-cert-file", str(root), "--tls-auth-clients", "yes"]
        acl = folder / f"{port}.acl"
        acl.write_text(
            "user default off\n"
            "user admin on >admin-password ~* &* +@all\n"
            f"user tier on #{digest(PASSWORD)} ~radix:* {RIGHTS}\n"
        )
        ports = ["--port", "0", "--tls-port", str(port), "--tls-cluster", "yes"]
        return [*ports, *files, "--aclfile", str(acl)]

    admin = {"username": "admin", "password": "admin-password", "ssl": True}
    admin |= {
        "ssl_ca_certs": str(root),
        "ssl_certfile": str(client[0]),
        "ssl_keyfile": str(client[1]),
    }
    with redis_nodes(secure=(listens, admin)) as nodes:
        yield Place(nodes, root, client, other)


def digest(password: str) -> str:
    import hashlib

    return hashlib.sha256(password.encode()).hexdigest()


def test_caches_share_prefixes_over_tls(place: Place) -> None:
    with pytest.raises(redis.RedisError):
        redis.Redis(port=place.nodes.ports[0], socket_timeout=5).ping()  # nothing in the clear
    with peer.RankCache(place.url(), **QUICK) as cache:
        for seed in range(1, PROMPTS + 1):  # so many that each node gets some, whatever the names
            cache.compute(seed, PAGES)
        assert cache.remote.counts.stored == PROMPTS * PAGES and cache.remote.mode is TierMode.ON
        assert "@" not in cache.remote.url and PASSWORD not in cache.remote.url
    with peer.RankCache(place.url(), **QUICK) as another:
        assert another.found(1, PAGES) == (PAGES * peer.PAGE, True)
    assert {node for node, _ in place.nodes.names()} == {0, 1, 2}


def test_every_call_is_within_the_rights_of_the_user(place: Place) -> None:
    backend = backend_of(place.url())
    backend.open(5.0)
    names = [f"radix:{{{number}}}:0" for number in range(30)]
    values = [memoryview(name.encode()) for name in names]
    assert backend.put(names, values, 5.0) == [Put.STORED] * 30
    into = [memoryview(bytearray(64)) for _ in names]
    assert backend.get(names, into, 5.0) == [len(name) for name in names]
    assert backend.exists(names, 5.0) == [True] * 30
    assert backend.replace("radix:{e}:epoch", b"one", 5.0, absent=True) == b"one"
    backend.remove(names, 5.0)
    assert backend.exists(names, 5.0) == [False] * 30
    backend.ping(5.0)
    assert backend.put(["other:{1}:0"], [memoryview(b"x")], 5.0) != [Put.STORED]  # not its own
    backend.close()


@pytest.mark.parametrize("what", ["password", "nobody", "authority", "certificate"])
def test_who_may_not_come_in_misses_and_tells_no_secret(
    place: Place, what: str, tmp_path: Path
) -> None:
    wrong = {
        "password": lambda: place.url(login="tier:wrong-password"),
        "nobody": lambda: place.url(login="nobody:wrong-password"),
        "authority": lambda: place.url(root=place.other),
        "certificate": lambda: place.url(client=signed(place.other, "stranger")),
    }[what]()
    backend = backend_of(wrong)
    with pytest.raises(BackendError) as refused:
        backend.open(5.0)
    backend.close()
    assert "wrong-password" not in str(refused.value) and PASSWORD not in str(refused.value)


def test_what_is_no_url_of_tls_is_refused_by_name(place: Place, tmp_path: Path) -> None:
    for url, why in (
        (f"redis://127.0.0.1:1?authority={place.root}", "need rediss"),
        (f"rediss://127.0.0.1:1?ca={place.root}", "unknown 'ca'"),
        ("rediss://127.0.0.1:1?authority", "NAME=FILE"),
        (f"rediss://127.0.0.1:1?certificate={place.root}", "go together"),
    ):
        with pytest.raises(ValueError, match=why):
            backend_of(url)
    with pytest.raises(FileNotFoundError):
        backend_of(f"rediss://127.0.0.1:1?authority={tmp_path / 'none'}")
