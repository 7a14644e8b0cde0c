"""The server: one thread that owns every store, and waits on all sockets at once. Nothing in it
blocks on a client: it reads what is there, writes what a socket takes, and goes on; a connection
that takes no answers is not read from, and cut after a while. Keeps of every store that one thread
calls it, and that leases and reservations end with their connection.

    turn   sockets that have bytes --> frames --> answers, or work that goes on
           copies that ended --> COMMITs become visible      stores that are busy --> poll
           answers --> sockets                               once a second: who is late
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from radix.errors import CacheError, ClosedError
from radix.service.asking import answer_lookups
from radix.service.config import Address, ServiceConfig
from radix.service.context import Context
from radix.service.dispatch import serve
from radix.service.encryption import server_context
from radix.service.protocol import REPLY, Status, encode
from radix.service.reporting import status_of
from radix.service.session import Session
from radix.service.status import Status as ServiceStatus

_LOG = logging.getLogger("radix.service")
_BUSY_S, _CALM_S = 0.001, 1.0
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_LOCAL, _REMOTE = "socket", "listen"
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CREDENTIALS = struct.Struct("3i")


class ServiceError(CacheError):
    """The service could not start: it names what."""


class Server:
    """A service over ``config``. ``start`` in a thread of its own, or ``run`` in this one;
    ``drain`` lets clients end and then ends, ``stop`` ends now; ``status`` from any thread. A
    context manager starts and stops it.
    """

    def __init__(self, config: ServiceConfig) -> None:
        """Listens already when it returns, and serves from ``run`` or ``start`` on.

        Raises ``ServiceError`` for an address that is not to be had.
        """
        self.config = config
        self.addresses: dict[str, str] = {}
        self.began = time.time()
        self.context = Context(config)
        self.sessions: dict[int, Session] = {}
        self._answered: set[Session] = set()
        self._paused: set[Session] = set()  # have frames that were read and wait
        self._listeners: dict[int, tuple[str, socket.socket]] = {}
        self._resting: set[int] = set()  # of these, not looked at until the next second
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._gate = threading.Lock()  # of the calls of other threads
        self._numbers = 0
        self._looked = time.monotonic()
        self._ends: float | None = None  # when what is left is cut
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        self._tls: ssl.SSLContext | None = None
        try:
            if config.tls is not None:
                self._tls = server_context(config.tls)
            if config.socket is not None:
                self._listen_local(config.socket, config.socket_mode)
            if config.listen is not None:
                self._listen_remote(config.listen)
        except OSError as error:
            self._close_all()
            raise ServiceError(f"cannot listen: {error}") from None
        self._poll.register(self._wake, _IN)
        self._poll.register(self.context.copier.descriptor, _IN)

    # ------------------------------------------------------------ listening
    def _listen_local(self, path: Path, mode: int) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(path)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            link.bind(str(path))
        finally:
            os.umask(before)
        os.chmod(path, mode)
        self._listen(_LOCAL, link, str(path))

    def _listen_remote(self, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        link = socket.socket(family, socket.SOCK_STREAM)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link.bind((address.host, address.port))
        self._listen(_REMOTE, link, str(Address(address.host, link.getsockname()[1])))

    def _listen(self, kind: str, link: socket.socket, shown: str) -> None:
        link.setblocking(False)
        link.listen(512)
        self._listeners[link.fileno()] = kind, link
        self._poll.register(link.fileno(), _IN)
        self.addresses[kind] = shown

    # ------------------------------------------------------------ running
    def start(self) -> Self:
        """Serves in a thread of its own."""
        self._thread = threading.Thread(target=self._run_thread, name="radix-service", daemon=True)
        self._thread.start()
        return self

    def _run_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:  # outermost: of the thread; join and status raise it
            self.failure = error
            _LOG.exception("the service ended")

    def run(self) -> None:
        """Serves until ``stop``, or until ``drain`` is through; then makes durable what is under
        way and closes everything.
        """
        try:
            while not self._over():
                self._turn()
        finally:
            self._close_all()

    def _over(self) -> bool:
        if self._stopping:
            return True
        if self._ends is None:
            return False
        return not self.sessions or time.monotonic() >= self._ends

    def drain(self) -> None:
        """No new connections, stores or blocks; those who read end, at the latest after the time
        that the configuration gives. From any thread, or a signal's handler.
        """
        self._call(self._begin_drain)

    def _begin_drain(self) -> None:
        if self._ends is None:
            self.context.draining = True
            self._ends = time.monotonic() + self.config.limits.drain_s
            self._stop_listening()
            _LOG.info("draining: %d connections", len(self.sessions))

    def stop(self) -> None:
        """Ends now: connections are cut, stores closed. From any thread."""
        self._stopping = True
        self._call(lambda: None)
        self.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for a thread that ``start`` began; raises what ended it."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        if self.failure is not None:
            raise ServiceError(f"the service ended: {self.failure!r}") from self.failure

    def status(self, timeout_s: float = 10.0) -> ServiceStatus:
        """What the service is and holds now. From any thread but the loop's; ``TimeoutError``."""

        def make() -> ServiceStatus:
            sessions = list(self.sessions.values())
            return status_of(self.context, sessions, self.addresses, self.began)

        told: ServiceStatus = self.ask(make, timeout_s)
        return told

    def ask(self, call: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        """What ``call`` returns, made by the thread that owns the stores, between two turns."""
        future: Future[Any] = Future()

        def make() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # outermost: of another thread's call; it raises there
                future.set_exception(error)

        if not self._call(make):
            raise ClosedError("the service has ended")
        return future.result(timeout_s)

    def _call(self, call: Callable[[], None]) -> bool:
        """Whether the loop will make this call: it does so long as it runs."""
        with self._gate:
            if self._wake < 0:
                return False
            self._calls.append(call)
            os.eventfd_write(self._wake, 1)
            return True

    # ------------------------------------------------------------ a turn
    def _turn(self) -> None:
        active = self.context.active
        wait_s = 0.0 if self._paused and self._hurried() else _BUSY_S if active else _CALM_S
        for descriptor, mask in self._poll.poll(wait_s):
            self._ready(descriptor, mask)
        for session in [each for each in self._paused if self._takes(each)]:
            self._serve(session)
        self._flush_all()
        for store in list(active):
            store.run()
            if not store.busy:
                active.discard(store)
        self._flush_all()
        now = time.monotonic()
        if now - self._looked >= _CALM_S or self._ends is not None:
            self._looked = now
            self._look(now)

    def _flush_all(self) -> None:
        while self._answered:
            self._flush(self._answered.pop())

    def _hurried(self) -> bool:
        return any(self._takes(session) for session in self._paused)

    def _ready(self, descriptor: int, mask: int) -> None:
        session = self.sessions.get(descriptor)
        if session is not None:
            if session.shaking:
                self._shake(session)
                return
            if mask == _IN and session.quick is not None and answer_lookups(self.context, session):
                return
            if mask & _OUT:
                self._answered.add(session)
            if mask & ~_OUT:
                again, session.again = session.again, False
                if again or session.fill():
                    self._serve(session)
                else:
                    self._close(session, "closed by its client")
        elif descriptor in self._listeners:
            self._accept(*self._listeners[descriptor])
        elif descriptor == self._wake:
            os.eventfd_read(self._wake)
            while self._calls:
                self._calls.popleft()()
        elif descriptor == self.context.copier.descriptor:
            self.context.copier.poll()
            self.context.active.update(self.context.stores())

    def _shake(self, session: Session) -> None:
        """A handshake of TLS goes on; both sides of it may wait for the socket."""
        if not session.shake():
            self._close(session, "refused: TLS")
        elif session.shaking:
            self._watch(session, _IN)
        elif session.fill():  # with the end of the handshake there may have come more
            self._serve(session)
        else:
            self._close(session, "closed by its client")

    def _watch(self, session: Session, mask: int) -> None:
        if mask != session.mask:
            session.mask = mask
            self._poll.modify(session.link.fileno(), mask)

    def _takes(self, session: Session) -> bool:
        """Whether it may ask more: what it has not taken, or waits for, is bounded."""
        limits = self.config.limits
        return (
            session.unanswered < limits.max_pipeline
            and len(session.out) < limits.max_frame_bytes
            and not session.ending
        )

    def _serve(self, session: Session) -> None:
        self._paused.discard(session)
        if session.closed:
            return
        serve(self.context, session, lambda: self._takes(session))
        if session.splitter.begun and not self._takes(session):
            self._paused.add(session)
        self._answered.add(session)

    def _flush(self, session: Session) -> None:
        """Sends what it takes, and watches for what it waits for from now on."""
        if session.closed:
            return
        if not session.flush() or (session.ending and not session.out):
            self._close(session, "refused" if session.ending else "gone")
            return
        self._watch(session, (_IN if self._takes(session) else 0) | (_OUT if session.out else 0))

    # ------------------------------------------------------------ connections
    def _accept(self, kind: str, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                link, _ = listener.accept()
            except OSError as error:  # none is left, or it went again before it was taken
                if error.errno in _SHORT:
                    self._rest(listener, error)
                return
            link.setblocking(False)
            if len(self.sessions) >= self.config.limits.max_connections:
                self._turn_away(link)
                continue
            if kind == _REMOTE:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    link = self._tls.wrap_socket(
                        link, server_side=True, do_handshake_on_connect=False
                    )
            self._numbers += 1
            session = Session(
                link,
                self._numbers,
                _user_of(link) if kind == _LOCAL else None,
                self.config.limits.max_frame_bytes,
                self._answered,
            )
            session.mask = _IN
            self.sessions[link.fileno()] = session
            self._poll.register(link.fileno(), _IN)

    def _rest(self, listener: socket.socket, why: OSError) -> None:
        """Nobody can be let in now: who waits at the door would be told of in every turn, so that
        the loop never slept. It looks again once a second.
        """
        _LOG.warning("%d connections are open, others wait: %s", len(self.sessions), why.strerror)
        self._poll.modify(listener.fileno(), 0)
        self._resting.add(listener.fileno())

    def _turn_away(self, link: socket.socket) -> None:
        what = f"{len(self.sessions)} connections are open, as many as are taken".encode()
        with suppress(OSError):
            link.send(encode(REPLY, 0, data=what, status=Status.LIMIT))
        link.close()
        self.context.metrics.add(("connection", "turned away"))

    def _close(self, session: Session, why: str) -> None:
        if session.closed:
            return
        descriptor = session.link.fileno()
        self._poll.unregister(descriptor)
        del self.sessions[descriptor]
        self._paused.discard(session)
        session.close()
        self._answered.discard(session)
        self.context.metrics.add(("connection", why))

    def _look(self, now: float) -> None:
        """Cuts connections that are late, lets go what was kept long enough. Cost: what is open."""
        limits = self.config.limits
        while self._resting:
            self._poll.modify(self._resting.pop(), _IN)
        for session in list(self.sessions.values()):
            if session.tenant is None and now - session.began > limits.handshake_s:
                self._close(session, "cut: no handshake")
            elif session.out and now - session.moved > limits.slow_s:
                self._close(session, "cut: takes no answers")
            elif self._takes(session) and session.splitter.begun:
                if now - session.heard > limits.slow_s:
                    self._close(session, "cut: a frame begun")
            elif limits.idle_s and not session.unanswered and now - session.heard > limits.idle_s:
                self._close(session, "cut: idle")
            elif self._ends is not None and session.idle:
                self._close(session, "drained")
        for store in self.context.stores():
            store.expire(now)

    # ------------------------------------------------------------ the end
    def _stop_listening(self) -> None:
        for descriptor, (kind, link) in list(self._listeners.items()):
            self._poll.unregister(descriptor)
            self._resting.discard(descriptor)
            link.close()
            if kind == _LOCAL and self.config.socket is not None:
                self.config.socket.unlink(missing_ok=True)
        self._listeners.clear()

    def _close_all(self) -> None:
        if self._wake < 0:
            return
        self._stop_listening()
        for session in list(self.sessions.values()):
            self._close(session, "ended")
        self.context.close(self._ends if self._ends is not None else time.monotonic())
        self._poll.close()
        with self._gate:
            wake, self._wake = self._wake, -1
            os.close(wake)
        while self._calls:
            self._calls.popleft()()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def _user_of(link: socket.socket) -> int:
    """The user on the other side, as the kernel says."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user


def _remove_stale(path: Path) -> None:
    """Takes a socket away that nobody listens to. Raises ``OSError`` where somebody does."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(f"{path}: another service listens there")
