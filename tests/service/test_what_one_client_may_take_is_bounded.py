"""Each limit that a configuration names holds, is told by what it was, and bounds nobody else: time
and room of KEEPs, staging memory, namespaces and requests of a connection, connections, idle ones,
and how long clients may take to end when the service does.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from radix.errors import NeverFitsError
from radix.keys import Namespace
from radix.service import Client, ServiceLimitError, entering
from radix.service.link import Credentials, Link
from radix.service.opening import declared
from radix.service.protocol import Op, ProtocolError, Status, encode, text_of
from tests.service.rig import GROUPS, Service, contents, keys_of


def names_of(count: int, word: str = "") -> list[object]:
    return [f"{word}{n}" for n in range(count)]


def _two_tenants(folder: Path, **terms: object) -> dict[str, Any]:
    """Of one domain, each with a secret of its own in a file."""
    tenants: dict[str, Any] = {}
    for name in ("chats", "batch"):
        file = folder / name
        file.write_text(f"the secret of {name}")
        file.chmod(0o600)
        tenants[name] = {"domain": "acme", "secret_file": str(file), **terms}
    return tenants


def test_a_keep_is_bounded_in_time_and_all_of_them_in_room(tmp_path: Path) -> None:
    with Service(tmp_path, host_bytes="1MiB", **{"limits.keep_most_s": "60"}) as service:
        with service.client() as client, service.client() as other:
            names = names_of(200)
            client.write(keys_of(names), contents(names))
            with pytest.raises(ValueError, match="1 to 60000 milliseconds"):
                client.keep(keys=keys_of(names[:1]), seconds=61)
            number, kept = client.keep(keys=keys_of(names[:120]), seconds=60)
            assert kept == 120
            for each in (client, other):  # of 256 blocks 128: whoever asks
                with pytest.raises(ServiceLimitError, match="129 keys would be kept"):
                    each.keep(keys=keys_of(names[120:129]), seconds=60)
            client.unkeep(number)
            assert other.keep(keys=keys_of(names[120:129]), seconds=60)[1] == 9
        service.check()


def test_keeps_of_one_account_are_not_in_the_way_of_another(tmp_path: Path) -> None:
    tenants = _two_tenants(tmp_path, own_blocks=True)
    told = {"listen": "127.0.0.1:0", "host_bytes": "1MiB"}
    with Service(tmp_path, tenants, **told) as service:
        names = names_of(80)
        for name in tenants:
            secret = f"the secret of {name}".encode()
            address = service.addresses["listen"]
            with Client(address, GROUPS, tenant=name, secret=secret) as client:
                client.write(keys_of(names), contents(names))
                with pytest.raises(ServiceLimitError, match="at most half of 128"):
                    client.keep(keys=keys_of(names[:65]), seconds=60)
                assert client.keep(keys=keys_of(names[:64]), seconds=60)[1] == 64
        service.check()


def test_a_keep_is_ended_by_its_own_tenant_alone(tmp_path: Path) -> None:
    """The fault: who gave the number of another tenant's KEEP ended it."""
    tenants = _two_tenants(tmp_path)
    with Service(tmp_path, tenants, listen="127.0.0.1:0", host_bytes="1MiB") as service:

        def client_of(name: str) -> Client:
            secret = f"the secret of {name}".encode()
            return Client(service.addresses["listen"], GROUPS, tenant=name, secret=secret)

        with client_of("chats") as owner, client_of("batch") as other:
            owner.write(keys_of(["kept"]), contents(["kept"]))
            number, _ = owner.keep(keys=keys_of(["kept"]), seconds=60)
            with pytest.raises(ProtocolError, match=f"no KEEP {number}"):
                other.unkeep(number)
            with pytest.raises(TypeError, match="number must be an int"):
                owner.unkeep("kept")  # type: ignore[arg-type]  # what is refused by name
            with client_of("chats") as again:
                again.unkeep(number)
            with pytest.raises(ProtocolError, match=f"no KEEP {number}"):
                owner.unkeep(number)
        service.check()


def test_staging_memory_is_a_clients_own_and_bounded(tmp_path: Path) -> None:
    with Service(tmp_path, **{"limits.staging_bytes": "64KiB"}) as service:
        with service.client() as client, service.client() as other:
            with pytest.raises(NeverFitsError, match="it has 65536"):
                client.reserve(keys_of(names_of(17)))
            first = client.reserve(keys_of(names_of(16)))
            assert other.write(keys_of(["other"]), contents(["other"])).all()
            client.abort(first)
            room = client.reserve(keys_of(names_of(16)))
            for row, block in enumerate(contents(names_of(16))):
                room.block(row)[:] = block
            assert client.commit(room).all()
            names = names_of(100, "more ")  # a write is cut into what fits
            assert client.write(keys_of(names), contents(names)).all()
            assert (other.read(keys_of(names))[1] == contents(names)).all()
        service.check()


def test_what_reservations_remember_of_others_is_bounded(tmp_path: Path) -> None:
    """Fault: a client took memory of the service that nothing bounded. Mechanism: a reservation
    keeps the keys that it was not granted, to tell when they are durable, and 65,536 reservations
    of keys that are there cost neither pool nor staging memory. One alone is bounded by its frame.
    """
    with Service(tmp_path, **{"limits.max_leases": "20"}) as service, service.client() as client:
        keys, new = keys_of(names_of(24)), keys_of(["new"])
        client.write(keys, contents(names_of(24)))
        rooms = [client.reserve(keys[:8]), client.reserve(keys[:12])]
        for refused in (keys[:1], [*keys[:1], *new]):
            with pytest.raises(ServiceLimitError, match="would name 21 keys that are there"):
                client.reserve(refused)
        assert client.stat()["writing"] == 2
        client.abort(client.reserve(new))  # which the refused one has not kept from others
        client.commit(rooms[0])
        client.abort(client.reserve(keys[:8]))
        client.abort(rooms[1])
        assert client.reserve(keys).there.all()
        client.abort(client.reserve(new))
        service.check()


def test_namespaces_of_a_connection_are_bounded_far_above_what_engines_use(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as client:
        for number in range(400):  # one a user, say
            space = Namespace("m", salt=str(number).encode())
            assert (client.has(keys_of(["x"]), namespace=space) == -1).all()
        link = Link(service.path, Credentials("", None, None), 30.0)
        for number in range(entering.MOST_STORES + 1):
            asked = declared(tuple(GROUPS), 32, 0, Namespace(salt=str(number).encode()), 0)
            frame = link.call(encode(Op.OPEN, link.next(), text_of(asked)))
            for descriptor in link.files():
                os.close(descriptor)
        assert frame.status == Status.LIMIT and b"4096 namespaces" in bytes(frame.data)
        link.close()
        assert client.write(keys_of(["x"]), contents(["x"])).all()
        service.check()


def test_more_requests_than_are_taken_at_once_are_all_answered(tmp_path: Path) -> None:
    told = {"data": str(tmp_path / "data"), "limits.max_pipeline": "2"}
    with Service(tmp_path, **told) as service, service.client() as client:
        names = names_of(64)
        client.write(keys_of(names), contents(names))
        link = Link(service.path, Credentials("", None, None), 30.0)
        asked = text_of(declared(tuple(GROUPS), 32, 0, Namespace(), 0))
        store = link.call(encode(Op.OPEN, link.next(), asked)).number
        for descriptor in link.files():
            os.close(descriptor)
        many = [
            encode(Op.FLUSH if n % 2 else Op.READ, link.next(), keys, store=store, items=1)
            for n, keys in enumerate(keys_of(names))
        ]
        link.tell(b"".join(many[:-1]))  # each waits for bytes, or for the disk
        last = link.call(bytes(many[-1]), 60.0)
        assert last.status == Status.OK
        link.close()
        service.check()


def test_an_idle_client_is_cut_and_comes_back_by_itself(tmp_path: Path) -> None:
    with Service(tmp_path, **{"limits.idle_s": "0.5"}) as service, service.client() as client:
        assert client.write(keys_of(["x"]), contents(["x"])).all()
        service.until(lambda told: told["connections"] == 0)
        assert "connection.cut: idle" in service.status()["counters"]
        assert (client.has(keys_of(["x"])) == 0).all()
        assert client.restarts == 0


def test_draining_waits_for_a_client_so_long_and_no_longer(tmp_path: Path) -> None:
    told = {"data": str(tmp_path / "data"), "limits.drain_s": "1"}
    with Service(tmp_path, **told) as service, service.client() as client:
        client.write(keys_of(["x"]), contents(["x"]))
        leased = client.lease(keys=keys_of(["x"]))  # and is never given back
        began = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert time.monotonic() - began >= 1
        assert not leased.intact()


def test_the_socket_has_the_permissions_that_were_said(tmp_path: Path) -> None:
    with Service(tmp_path, socket_mode="660") as service:
        assert os.stat(service.path).st_mode & 0o777 == 0o660
