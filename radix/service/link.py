"""A connection of a client that waits: sends a frame, reads until its answer is there. The memory
that the service shares is mapped here, the pool for reading only. A connection that failed once, or
took too long, is never used again: an answer that comes late must not be taken for another's.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from radix.service.calls import DeniedError, ServiceGoneError, raise_refusal
from radix.service.protocol import (
    MOST_FRAME_BYTES,
    SPOKEN,
    Frame,
    Op,
    ProtocolError,
    Splitter,
    Status,
    agreed,
    encode,
    parse_text,
    proof,
    text_of,
    versions_in,
)

_MOST_FILES = 4


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who a client says it is. ``tenant`` "": whoever the user of this process is; ``secret``: what
    the tenant shares with the service (over TCP); ``tls``: of a client with a certificate.
    """

    tenant: str
    secret: bytes | None
    tls: ssl.SSLContext | None


class Link:
    """One connection to a service. ``call`` asks and waits; ``alive`` looks without waiting."""

    def __init__(
        self,
        address: str,
        who: Credentials,
        timeout_s: float,
        spoken: tuple[int, int] = SPOKEN,
    ) -> None:
        """Connects and says HELLO. Raises ``ServiceGoneError``, ``DeniedError``, ``ProtocolError``
        for a service of another version, ``ValueError`` for an address that is none.
        """
        self.timeout_s = timeout_s
        self.spoken = spoken
        self._splitter = Splitter(MOST_FRAME_BYTES)
        self._files: list[int] = []
        self._request = 0
        self.local = is_path(address)
        self.closed = False
        self.cut = False  # by the service: what was asked last was not answered late, but never
        self.pid = os.getpid()
        self._looking = threading.Lock()  # one at a time looks, and at no descriptor that ended
        try:
            self.socket = _connect(address, who, timeout_s)
        except ssl.SSLError as error:
            raise DeniedError(f"{address}: {error}") from None
        except OSError as error:
            raise ServiceGoneError(f"{address}: {error}") from None
        try:
            told = self._hello(who)
        except BaseException:
            self.close()
            raise
        self._watch = select.poll()
        self._watch.register(self.socket, select.POLLRDHUP)
        self.boot = bytes.fromhex(str(told["boot"]))
        self.most_bytes = int(told["max_frame_bytes"])

    def _hello(self, who: Credentials) -> dict[str, Any]:
        nonce = secrets.token_hex(16)
        asked = {"tenant": who.tenant, "nonce": nonce, "versions": self.spoken}
        frame = self.call(encode(Op.HELLO, self.next(), text_of(asked)))
        raise_refusal(frame)
        if frame.status == Status.PROVE:
            if who.secret is None:
                raise DeniedError("the service asks for a proof, and there is no secret")
            told = parse_text(frame.keys)
            theirs = str(told.get("nonce", ""))
            wanted = proof(who.secret, "server", who.tenant, nonce, theirs)
            if not secrets.compare_digest(wanted, str(told.get("proof", ""))):
                raise DeniedError("the service does not know the tenant's secret")
            mine = proof(who.secret, "client", who.tenant, nonce, theirs)
            frame = self.call(encode(Op.PROVE, self.next(), text_of({"proof": mine})))
            raise_refusal(frame)
        told = parse_text(frame.keys)
        version = told.get("version")
        self.version = agreed(self.spoken, versions_in({"versions": [version, version]}))
        return told

    # ------------------------------------------------------------ asking
    def next(self) -> int:
        """The number of the next request."""
        self._request += 1
        return self._request

    def call(self, request: bytes | bytearray, timeout_s: float | None = None) -> Frame:
        """The answer to the last request, whatever its status; its views last until the next call.

        Raises ``ServiceGoneError``: the connection is closed then.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + wait_s
        try:
            self.socket.settimeout(wait_s)
            self.socket.sendall(request)
            while True:
                frame = self._splitter.next()
                if frame is not None:
                    if frame.request == self._request or frame.request == 0:
                        return frame
                    continue
                self._receive(until)
        except ProtocolError:
            self.close()
            raise
        except (OSError, ServiceGoneError) as error:
            self.cut = not isinstance(error, TimeoutError)
            self.close()
            raise ServiceGoneError(f"the service does not answer: {error}") from None
        except BaseException:
            self.close()  # interrupted half-way: what comes next would be out of step
            raise

    def tell(self, request: bytes | bytearray) -> None:
        """Sends what nobody waits for: its answer is passed over by the next ``call``."""
        try:
            self.socket.settimeout(self.timeout_s)
            self.socket.sendall(request)
        except OSError as error:
            self.cut = not isinstance(error, TimeoutError)
            self.close()
            raise ServiceGoneError(f"the service does not answer: {error}") from None

    def _receive(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.socket.settimeout(left)
        room = self._splitter.room()
        if not self.local:
            count = self.socket.recv_into(room)
        else:
            space = socket.CMSG_SPACE(_MOST_FILES * 4)
            count, rights, flags, _ = self.socket.recvmsg_into(
                [room], space, socket.MSG_CMSG_CLOEXEC
            )
            self._files += rights_in(rights)
            if flags & socket.MSG_CTRUNC:
                raise ServiceGoneError("descriptors were cut off: too many files are open")
        if not count:
            raise ServiceGoneError("the service closed the connection")
        self._splitter.filled(count)

    def files(self) -> list[int]:
        """Descriptors that came with the last answer; the caller's from now on."""
        files, self._files = self._files, []
        return files

    def alive(self) -> bool:
        """Whether the service has not closed the connection: as long as it has not, nothing that is
        leased through it was given to another. Cost: one call of the kernel.
        """
        with self._looking:
            return not self.closed and not self._watch.poll(0)

    def close(self) -> None:
        """Ends the connection, and with it all that it holds. Idempotent."""
        self.closed = True
        for descriptor in self.files():
            os.close(descriptor)
        if hasattr(self, "socket"):
            with self._looking:
                self.socket.close()


def rights_in(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """Descriptors among what came beside the bytes."""
    files: list[int] = []
    for level, kind, raw in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files += np.frombuffer(raw[: len(raw) // 4 * 4], np.int32).tolist()
    return files


def is_path(address: str) -> bool:
    """Whether an address names a UNIX socket."""
    return "/" in address


def host_of(address: str) -> tuple[str, int]:
    """The host and the port of ``host:port``. ``ValueError`` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"address must be a path with '/' or host:port, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(address: str, who: Credentials, timeout_s: float) -> socket.socket:
    if is_path(address):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(timeout_s)
            link.connect(address)
        except BaseException:
            link.close()
            raise
        return link
    host, port = host_of(address)
    link = socket.create_connection((host, port), timeout_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if who.tls is None:
        return link
    return who.tls.wrap_socket(link, server_hostname=host)
