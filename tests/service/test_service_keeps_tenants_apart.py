"""One tenant can neither read, write, evict nor observe another's blocks, nor come in as him; who
is not known learns nothing; what is outside of a tenant's namespaces is refused. Hostile frames end
in refusals, and leave the service as it was.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import NeverFitsError
from radix.groups import Group
from radix.keys import Namespace
from radix.service import Client, DeniedError, ServiceGoneError
from radix.service.opening import declared
from radix.service.protocol import (
    VERSION,
    Frame,
    Op,
    ProtocolError,
    Splitter,
    Status,
    encode,
    parse_text,
    text_of,
)
from tests.service.rig import GROUPS, Service, contents, keys_of

SECRETS = {"red": b"red secret of many bytes", "blue": b"blue secret of many bytes"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    tenants: dict[str, Any] = {"here": {"uids": [os.getuid()], "quota_bytes": "2MiB"}}
    for name, secret in SECRETS.items():
        file = tmp_path / name
        file.write_bytes(secret)
        file.chmod(0o600)
        tenants[name] = {
            "secret_file": str(file),
            "quota_bytes": "2MiB",
            "namespaces": [f"{name}/"],
        }
    data = str(tmp_path / "data")
    with Service(tmp_path, tenants, listen="127.0.0.1:0", data=data) as running:
        yield running
        running.check()


def tenant(service: Service, name: str, secret: bytes | None = None) -> Client:
    return Client(
        service.addresses["listen"],
        GROUPS,
        tenant=name,
        secret=SECRETS[name] if secret is None else secret,
    )


def test_the_same_keys_are_anothers_blocks_for_another_tenant(service: Service) -> None:
    names: list[object] = list(range(40))
    keys = keys_of(names)
    red_space, blue_space = Namespace("red/m"), Namespace("blue/m")
    with tenant(service, "red") as red, tenant(service, "blue") as blue:
        assert red.write(keys, contents(names), namespace=red_space).all()
        assert (blue.has(keys, namespace=blue_space) == -1).all()
        assert not blue.read(keys, namespace=blue_space)[0].any()
        assert blue.lookup(keys=keys, namespace=blue_space).pages == 0
        others: list[object] = [f"blue {i}" for i in names]
        assert blue.write(keys, contents(others), namespace=blue_space).all()
        assert (red.read(keys, namespace=red_space)[1] == contents(names)).all()
        assert (blue.read(keys, namespace=blue_space)[1] == contents(others)).all()
        blue.forget(keys, namespace=blue_space)
        blue.reset(namespace=blue_space)
        assert (red.has(keys, namespace=red_space) >= 0).all()
        assert (blue.events(0, namespace=blue_space).events) != ()
        told = blue.stat(namespace=blue_space)
        assert told["counters"].get("has.hit.host", 0) == 40 * 1  # of its own reads alone
    places = {store["domain"] for store in service.status()["stores"]}
    assert places == {"red", "blue"}


def test_a_tenant_that_fills_its_pool_evicts_only_its_own(service: Service) -> None:
    names: list[object] = list(range(64))
    keys = keys_of(names)
    red_space, blue_space = Namespace("red/m"), Namespace("blue/m")
    with tenant(service, "red") as red, tenant(service, "blue") as blue:
        assert red.write(keys, contents(names), namespace=red_space).all()
        before = red.stat(namespace=red_space)
        for turn in range(20):
            more: list[object] = [(turn, name) for name in names]
            assert blue.write(keys_of(more), contents(more), namespace=blue_space).all()
        assert (red.has(keys, namespace=red_space) == 0).all()
        after = red.stat(namespace=red_space)
        for name in ("tiers", "events"):
            assert after[name] == before[name]


def test_a_namespace_beyond_a_tenants_is_denied(service: Service) -> None:
    with tenant(service, "red") as red:
        for model in ("blue/m", "", "re", "xred/"):
            with pytest.raises(DeniedError, match="may use 'red/'"):
                red.has(keys_of([1]), namespace=Namespace(model))
        # What a client writes into the other fields never makes it another's namespace.
        for salt in (b"domain\x00\x04blue", b""):
            space = Namespace("red/m", salt=salt, layout=b"x")
            assert red.write(keys_of([1]), contents([1]), namespace=space).all()
    with tenant(service, "blue") as blue:
        space = Namespace("blue/m", salt=b"domain\x00\x03red")
        assert (blue.has(keys_of([1]), namespace=space) == -1).all()


def test_who_cannot_prove_who_he_is_learns_nothing(service: Service) -> None:
    for name, secret in [("red", SECRETS["blue"]), ("nobody", b"x" * 20), ("here", b"y" * 20)]:
        client = Client(service.addresses["listen"], GROUPS, tenant=name, secret=secret)
        with pytest.raises(DeniedError, match="does not know the tenant's secret"):
            client.has(keys_of([1]))
    with pytest.raises(DeniedError, match="no secret"):
        Client(service.addresses["listen"], GROUPS, tenant="red").has(keys_of([1]))
    # The service does not take a proof that was made for another handshake, or for the other side.
    nonce = "0" * 32
    with _connected(service) as link:
        told = parse_text(_asked(link, encode(Op.HELLO, 1, _hello("red", nonce))).keys)
        wrong = encode(Op.PROVE, 2, text_of({"proof": told["proof"]}))
        assert _asked(link, wrong).status == Status.DENIED
        assert link.recv(1) == b""
    with _connected(service) as link:
        assert _asked(link, encode(Op.HAS, 1, store=1)).status == Status.DENIED
        assert link.recv(1) == b""


def _hello(name: str, nonce: str) -> bytes:
    return text_of({"tenant": name, "nonce": nonce})


def _connected(service: Service) -> socket.socket:
    host, port = service.addresses["listen"].rsplit(":", 1)
    link = socket.create_connection((host, int(port)), 10)
    return link


def _asked(link: socket.socket, request: bytearray) -> Frame:
    link.sendall(request)
    splitter = Splitter()
    while True:
        for frame in splitter.feed(link.recv(65536)):
            return frame


def test_a_user_that_no_tenant_names_is_denied_by_the_kernels_word(tmp_path: Path) -> None:
    user = os.getuid()
    with Service(tmp_path, {"other": {"uids": [user + 1]}}) as service:
        for name in ("", "other"):  # whatever it says that it is
            with pytest.raises(DeniedError, match=f"user {user} is no tenant"):
                service.client(tenant=name).has(keys_of([1]))
        service.until(lambda told: told["connections"] == 0 and not told["stores"])


def test_another_version_is_refused_with_what_is_spoken(service: Service) -> None:
    with _connected(service) as link:
        raw = encode(Op.HELLO, 5, text_of({}))
        raw[4:6] = (VERSION + 1).to_bytes(2, "little")
        frame = _asked(link, raw)
        assert (frame.status, frame.request) == (Status.VERSION, 5)
        assert f"speaks version {VERSION} only" in bytes(frame.data).decode()
        assert link.recv(1) == b""


def test_a_store_beyond_what_a_domain_has_is_refused_and_changes_nothing(
    service: Service,
) -> None:
    with tenant(service, "red") as red:
        assert (red.has(keys_of([1]), namespace=Namespace("red/m")) == -1).all()
        large = Client(
            service.addresses["listen"],
            [Group.full("large", 1 << 20)],
            tenant="red",
            secret=SECRETS["red"],
        )
        with pytest.raises(NeverFitsError, match="domain 'red' has 0 of its 2097152 bytes"):
            large.has(keys_of([1]), namespace=Namespace("red/m"))
        large.close()
    service.until(lambda told: told["connections"] == 0)
    # Nobody has the first open any more: it makes room for the other.
    with Client(
        service.addresses["listen"],
        [Group.full("other", 1 << 16)],
        tenant="red",
        secret=SECRETS["red"],
    ) as other:
        assert other.write(keys_of([1]), contents([1], 1 << 16), namespace=Namespace("red/m")).all()
    assert len(service.status()["stores"]) == 1


# ---------------------------------------------------------------------- hostile frames
def _hostile(draw: np.random.Generator, request: int) -> bytearray:
    """A frame that is whole, and asks nonsense more often than not."""
    count = int(draw.integers(0, 5))
    runs = [b"", draw.bytes(count * 32), draw.bytes(int(draw.integers(0, 64))), text_of(_odd(draw))]
    keys = runs[int(draw.integers(0, len(runs)))]
    data = runs[int(draw.integers(0, 3))]
    numbers = [0, 1, 2, 3, 7, 2**31, 2**63, int(draw.integers(0, 2**63))]

    def number(most: int) -> int:
        return numbers[int(draw.integers(0, len(numbers)))] % most

    return encode(
        int(draw.integers(0, 23)) if draw.random() < 0.97 else number(1 << 15),
        request,
        keys,
        data,
        flags=int(draw.integers(0, 32)),
        store=int(draw.integers(0, 3)),
        items=count if draw.random() < 0.7 else number(1 << 32),
        group=int(draw.integers(0, 3)) if draw.random() < 0.9 else number(1 << 32),
        number=number(1 << 64),
        argument=number(1 << 63) - (1 << 62 if draw.random() < 0.1 else 0),
    )


def _odd(draw: np.random.Generator) -> dict[str, Any]:
    asked = declared(tuple(GROUPS), 32, 0, Namespace("red/m"), 0)
    values: list[Any] = [None, -1, 2**70, "x", [], {}, [[]], True, "\ud800", 1.5, "00" * 16]
    name = ["key_bytes", "page_tokens", "groups", "namespace", "pool_bytes", "more", "tenant"]
    at = name[int(draw.integers(0, len(name)))]
    asked[at] = values[int(draw.integers(0, len(values)))]
    if draw.random() < 0.3:
        asked["groups"] = [{**declared_group(), name[0]: 1}, declared_group()]
    return asked


def declared_group() -> dict[str, Any]:
    found: dict[str, Any] = declared(tuple(GROUPS), 32, 0, Namespace(), 0)["groups"][0]
    return found


def _fuzz(service: Service, frames: int) -> None:
    draw = np.random.default_rng(frames)
    names: list[object] = list(range(8))
    keys, space = keys_of(names), Namespace("blue/m")
    sent = 0
    with tenant(service, "blue") as blue:
        assert blue.write(keys, contents(names), namespace=space).all()
        while sent < frames:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(service.path)
            link.settimeout(30)
            link.sendall(encode(Op.HELLO, 1, text_of({"tenant": "here"})))
            opened = text_of(declared(tuple(GROUPS), 32, 0, Namespace("m"), 0))
            link.sendall(encode(Op.OPEN, 2, opened))
            batch = [_hostile(draw, 3 + n) for n in range(250)]
            if draw.random() < 0.5:  # a byte that makes one of them no frame at all
                bad = batch[int(draw.integers(100, 250))]
                bad[int(draw.integers(0, 8))] ^= 1 << int(draw.integers(0, 8))
            answers = _exchange(link, b"".join(batch))
            assert all(frame_status in set(Status) for frame_status in answers)
            assert Status.INTERNAL not in answers
            link.close()
            sent += len(batch)
        assert (blue.read(keys, namespace=space)[1] == contents(names)).all()
    service.until(lambda told: told["connections"] == 0)
    service.check()
    counters = service.status()["counters"]
    assert "refused.internal" not in counters


def _exchange(link: socket.socket, raw: bytes) -> set[int]:
    """Sends while it reads, until the other side has answered all or closes."""
    splitter, statuses, at, answers = Splitter(), set(), 0, 0
    link.setblocking(False)
    while True:
        readable, writable, _ = select.select([link], [link] if at < len(raw) else [], [], 0.5)
        if not readable and not writable:
            return statuses
        try:
            if writable:
                at += link.send(raw[at : at + 65536])
            if readable:
                room = splitter.room()
                count = link.recv_into(room)
                if not count:
                    return statuses
                splitter.filled(count)
                for frame in splitter.frames():
                    statuses.add(frame.status)
                    answers += 1
                    if answers == 252:
                        return statuses
        except (BrokenPipeError, ConnectionResetError):
            return statuses


def test_hostile_frames_leave_a_service_as_it_was(service: Service) -> None:
    _fuzz(service, 10_000)


@pytest.mark.long
def test_a_million_hostile_frames_leave_a_service_as_it_was(service: Service) -> None:
    _fuzz(service, 100_000)
    files, resident = service.open_files, service.resident_bytes
    for _ in range(9):
        _fuzz(service, 100_000)
    assert service.open_files == files
    assert service.resident_bytes - resident < 16 << 20


def test_refusals_are_the_clients_own_errors(service: Service) -> None:
    with service.client() as client:
        with pytest.raises(ProtocolError, match="no KEEP 77"):
            client.unkeep(77)
        with pytest.raises(ServiceGoneError):
            Client("/nonexistent/radix.sock", GROUPS).flush()
    assert json.loads(text_of(_odd(np.random.default_rng(0))))
