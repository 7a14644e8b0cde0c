"""TLS over TCP, with certificates made here: both sides show one, the name in the client's is its
tenant, and who shows none, or one of another authority, does not get as far as a frame.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.keys import Namespace
from radix.service import AsyncClient, Client, DeniedError, ServiceGoneError
from radix.service.encryption import client_context
from tests.certificates import authority, signed
from tests.service.rig import GROUPS, Service, contents, keys_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    root = authority(folder, "root")
    certificate, key = signed(root, "service", address="127.0.0.1")
    tenants = {
        "red": {"certificate_names": ["engine-red"], "namespaces": ["red/"]},
        "blue": {"certificate_names": ["engine-blue"]},
    }
    flags = {
        "tls.certificate": str(certificate),
        "tls.key": str(key),
        "tls.client_authority": str(root),
    }
    with Service(folder, tenants, listen="127.0.0.1:0", **flags) as running:
        yield running, root
        running.check()


def client_of(place: tuple[Service, Path], name: str, **settings: Any) -> Client:
    service, root = place
    tls = client_context(str(root), *map(str, signed(root, name)))
    return Client(service.addresses["listen"], GROUPS, tls=tls, **settings)


def test_the_name_in_the_certificate_is_the_tenant(place: tuple[Service, Path]) -> None:
    names: list[object] = list(range(300))  # more than a record of TLS, and than a socket takes
    keys, space = keys_of(names), Namespace("red/m")
    with client_of(place, "engine-red") as red, client_of(place, "engine-blue") as blue:
        assert red.write(keys, contents(names), namespace=space).all()
        good, blocks = red.read(keys, namespace=space)
        assert good.all() and (blocks == contents(names)).all()
        assert (blue.has(keys, namespace=space) == -1).all()
        with pytest.raises(DeniedError, match="may use 'red/'"):
            red.has(keys, namespace=Namespace("blue/m"))
        told = place[0].status()
    connected = {tenant["name"]: tenant["connections"] for tenant in told["tenants"]}
    assert connected == {"red": 1, "blue": 1}


def test_many_calls_at_once_are_answered_over_tls(place: tuple[Service, Path]) -> None:
    service, root = place
    tls = client_context(str(root), *map(str, signed(root, "engine-blue")))

    async def one(client: AsyncClient, n: int) -> None:
        names: list[object] = [(n, i) for i in range(40)]
        assert (await client.write(keys_of(names), contents(names))).all()
        good, blocks = await client.read(keys_of(names))
        assert good.all() and (blocks == contents(names)).all()

    async def run() -> None:
        async with AsyncClient(service.addresses["listen"], GROUPS, tls=tls) as client:
            await asyncio.gather(*(one(client, n) for n in range(6)))

    asyncio.run(run())


def test_who_shows_no_good_certificate_gets_no_answer(
    place: tuple[Service, Path], tmp_path: Path
) -> None:
    service, root = place
    keys = keys_of([1])
    with pytest.raises(DeniedError):  # of the right authority, but nobody's name
        client_of(place, "engine-green").has(keys)
    other = authority(tmp_path, "other")
    foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    foreign.load_verify_locations(str(root))
    foreign.load_cert_chain(*signed(other, "engine-red"))
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(str(root))
    for context in (foreign, bare, None):
        client = Client(service.addresses["listen"], GROUPS, tls=context, timeout_s=5.0)
        with pytest.raises((DeniedError, ServiceGoneError)):
            client.flush()
        client.close()
    with pytest.raises(DeniedError, match="certificate"):  # nor does a client believe another
        tls = client_context(str(other), *map(str, signed(other, "engine-red")))
        Client(service.addresses["listen"], GROUPS, tls=tls).has(keys)
    service.until(lambda told: told["connections"] == 0)


def test_a_handshake_that_is_begun_or_nonsense_is_cut(place: tuple[Service, Path]) -> None:
    service, _ = place
    host, port = service.addresses["listen"].rsplit(":", 1)
    links = []
    for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.0\r\n\r\n", np.random.bytes(500)):
        link = socket.create_connection((host, int(port)), 10)
        link.sendall(sent)
        links.append(link)
    service.until(lambda told: told["connections"] == 0, 30)
    for link in links:
        link.close()
    with client_of(place, "engine-blue") as blue:
        assert blue.write(keys_of([1]), contents([1])).all()
