"""Clients and services of different versions speak the newest that both know, whichever of them is
the older; where there is none, each says which it speaks and which the other. Sides that claim to
speak more, or less, than version 1 stand for those that do not exist yet.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from radix.service import Client, ServiceGoneError, dispatch
from radix.service.context import Context
from radix.service.link import Credentials, Link
from radix.service.protocol import (
    MOST_FRAME_BYTES,
    REPLY,
    VERSION,
    Frame,
    Op,
    ProtocolError,
    Splitter,
    Status,
    agreed,
    encode,
    parse_text,
    text_of,
    versions_in,
)
from radix.service.session import Session
from radix.service.watching import Watch
from tests.bridgerig import GROUPS, Domain
from tests.service.rig import contents, keys_of

NOBODY = Credentials("", None, None)


def asked(path: str, told: dict[str, Any], version: int = VERSION) -> tuple[Frame, bool]:
    """What a service answers to a HELLO, and whether it takes no other in the connection then."""
    raw = encode(Op.HELLO, 7, text_of(told))
    raw[4:6] = version.to_bytes(2, "little")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(20)
        link.connect(path)
        link.sendall(raw)
        splitter = Splitter(MOST_FRAME_BYTES)
        while (frame := splitter.next()) is None:
            count = link.recv_into(splitter.room())
            assert count, "it closed the connection and said nothing"
            splitter.filled(count)
        try:
            link.sendall(raw)
            return frame, not link.recv(1)
        except ConnectionError:
            return frame, True


@pytest.mark.parametrize(
    ("client", "service"), [((1, 1), (1, 2)), ((1, 2), (1, 1)), ((1, 7), (1, 1)), ((1, 1), (1, 1))]
)
def test_the_newest_version_of_both_is_spoken(
    tmp_path: Path, client: tuple[int, int], service: tuple[int, int]
) -> None:
    with Domain(tmp_path) as domain:
        domain.server.context.spoken = service
        link = Link(domain.path, NOBODY, 20.0, spoken=client)
        assert link.version == 1
        frame = link.call(encode(Op.WATCH, link.next()))
        assert (frame.status, frame.items) == (Status.OK, 0)
        link.close()
        with domain.client() as whole:
            assert whole.write(keys_of(["a"]), contents(["a"])).all()
            assert whole.read(keys_of(["a"]))[0].all()


def test_a_client_of_before_there_were_others_is_served(tmp_path: Path) -> None:
    with Domain(tmp_path) as domain:
        domain.server.context.spoken = (1, 3)
        frame, closed = asked(domain.path, {"tenant": "", "nonce": "0" * 32})
        assert frame.status == Status.OK and not closed
        assert parse_text(frame.keys)["version"] == 1


@pytest.mark.parametrize(
    ("client", "service", "told"),
    [
        ((1, 1), (2, 2), "this side speaks version 2 only, the other version 1"),
        ((2, 3), (1, 1), "this side speaks version 1 only, the other version 2 to 3"),
    ],
)
def test_without_a_version_in_common_both_are_named(
    tmp_path: Path, client: tuple[int, int], service: tuple[int, int], told: str
) -> None:
    with Domain(tmp_path) as domain:
        domain.server.context.spoken = service
        with pytest.raises(ProtocolError, match=told) as refused:
            Link(domain.path, NOBODY, 20.0, spoken=client)
        assert refused.value.status == Status.VERSION
        frame, closed = asked(domain.path, {"tenant": "", "nonce": "", "versions": [*client]})
        assert frame.status == Status.VERSION and closed
        if client == (1, 1):
            with domain.client() as whole, pytest.raises(ProtocolError, match=told):
                whole.has(keys_of(["a"]))
        assert domain.server.status().connections == 0


def test_frames_of_another_version_are_refused_by_the_service(tmp_path: Path) -> None:
    with Domain(tmp_path) as domain:
        frame, closed = asked(domain.path, {"tenant": "", "nonce": ""}, version=2)
        assert frame.status == Status.VERSION and closed
        assert "a frame of version 2" in bytes(frame.data).decode()


@pytest.mark.parametrize("said", [[2], [2, 1], ["1", "1"], [True, 1], "1", [0, 1], [1, 1 << 16]])
def test_what_are_no_versions_is_refused(tmp_path: Path, said: object) -> None:
    with Domain(tmp_path) as domain:
        frame, closed = asked(domain.path, {"tenant": "", "nonce": "", "versions": said})
        assert frame.status == Status.BAD_REQUEST and not closed
        assert "versions must be" in bytes(frame.data).decode()
    with pytest.raises(ProtocolError, match="versions must be"):
        versions_in({"versions": said})


def test_the_newest_in_common_is_symmetric() -> None:
    sides = [(a, b) for a in range(1, 5) for b in range(a, 5)]
    for mine in sides:
        for theirs in sides:
            common = set(range(mine[0], mine[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
            if common:
                assert agreed(mine, theirs) == agreed(theirs, mine) == max(common)
            else:
                with pytest.raises(ProtocolError):
                    agreed(mine, theirs)


# ------------------------------------------------------------ services that are not of today
@contextmanager
def other_service(folder: Path, hello: dict[str, Any], version: int = VERSION) -> Iterator[str]:
    """A service that answers HELLO so, and everything else as an op that it does not know; its
    frames say that they are of ``version``.
    """
    path = str(folder / "other")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(8)

    def serve() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link:
                splitter = Splitter(MOST_FRAME_BYTES)
                while count := link.recv_into(splitter.room()):
                    splitter.filled(count)
                    for frame in splitter.frames():
                        link.sendall(answer(frame))

    def answer(frame: Frame) -> bytearray:
        if frame.op == Op.HELLO:
            raw = encode(Op.HELLO | REPLY, frame.request, text_of(hello))
        else:
            what = f"no such op: {frame.op}".encode()
            status = Status.BAD_REQUEST
            raw = encode(frame.op | REPLY, frame.request, data=what, status=status)
        raw[4:6] = version.to_bytes(2, "little")
        return raw

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(20)


HELLO = {"version": 1, "boot": "00" * 16, "tenant": "t", "max_frame_bytes": 1 << 20}


def test_an_older_service_is_told_from_one_that_fails(tmp_path: Path) -> None:
    """It knows no WATCH: what it does know goes on."""
    with other_service(tmp_path, HELLO) as path:
        watch = Watch(path, NOBODY, 20.0)
        with pytest.raises(ProtocolError, match="older than its client"):
            watch.stores()
        with pytest.raises(ProtocolError, match="no such op: 21"):
            watch.stores()
        watch.close()


@pytest.mark.parametrize("missing", [[], ["reason"], ["asked", "tiers"]])
def test_what_another_service_explains_is_taken_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    """A newer one may tell more; without what is asked for there is no answer."""
    told = {"asked": 1, "hit": 0, "pool": 0, "there": {"kv": 0}, "tiers": {}, "reason": "cold"}

    def explain(context: Context, session: Session, frame: Frame) -> None:
        text = {name: value for name, value in told.items() if name not in missing} | {"more": [7]}
        session.reply(Op.EXPLAIN, frame.request, text_of(text))

    monkeypatch.setitem(dispatch.ANSWERS, Op.EXPLAIN, explain)
    with Domain(tmp_path) as domain, domain.client() as client:
        if not missing:
            assert asdict(client.explain(keys=keys_of(["a"]), leave=0)) == told
            return
        with pytest.raises(ProtocolError, match=f"without {', '.join(missing)}"):
            client.explain(keys=keys_of(["a"]), leave=0)
        assert not client.lookup(keys=keys_of(["a"])).pages


@pytest.mark.parametrize("version", [2, 0, None, "1"])
def test_a_service_that_chooses_what_the_client_does_not_speak_is_refused(
    tmp_path: Path, version: object
) -> None:
    with other_service(tmp_path, {**HELLO, "version": version}) as path:
        with pytest.raises(ProtocolError, match="version"):
            Link(path, NOBODY, 20.0)
        with Client(path, GROUPS) as client, pytest.raises(ProtocolError):
            client.has(keys_of(["a"]))


def test_frames_of_another_version_are_refused_by_the_client(tmp_path: Path) -> None:
    with other_service(tmp_path, HELLO, version=2) as path:
        with pytest.raises(ProtocolError, match="a frame of version 2; this side speaks version 1"):
            Link(path, NOBODY, 20.0)
        with Client(path, GROUPS) as client, pytest.raises((ProtocolError, ServiceGoneError)):
            client.has(keys_of(["a"]))
