"""The connection of a client in an event loop: frames go out as they are asked, answers are taken
as they come and given to who waits, by the number of the request. Broken, it ends for all that
wait; it is made again at the next call.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy.typing as npt

from radix.arguments import seconds_of
from radix.errors import CacheError, ClosedError, LeaseError
from radix.groups import Group
from radix.keys import Namespace
from radix.service.absence import Absence
from radix.service.calls import ServiceGoneError, raise_refusal
from radix.service.held import OpenedStore, ServiceLease, Views, opened_store
from radix.service.link import Credentials, Link, host_of, is_path, rights_in
from radix.service.opening import declared
from radix.service.operations import Ask, Operations, Steps
from radix.service.protocol import NO_FRAME, Frame, Op, ProtocolError, Splitter, encode, text_of

T = TypeVar("T")
_PLAIN = Namespace()
_MOST_FILES = 16
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_Waiting = tuple["asyncio.Future[Any]", Callable[[Frame], Any]]


class AsyncLink:
    """A connection that has said HELLO, in an event loop. ``ask`` sends and waits for one answer;
    ``tell`` sends what nobody waits for.
    """

    def __init__(self, link: Link) -> None:
        """Takes over the socket of a link that is connected, and what came with it."""
        self.local, self.most_bytes, self.boot = link.local, link.most_bytes, link.boot
        self.pid = os.getpid()
        self.socket = link.socket
        self.socket.setblocking(False)
        self.cut = False
        self.closed = False
        self._files: list[int] = []
        self._splitter = Splitter()
        self._request = link.next()
        self._waiting: dict[int, _Waiting] = {}
        self._out = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.socket, self._readable)
        self._watch = select.poll()
        self._watch.register(self.socket, select.POLLRDHUP)

    def next(self) -> int:
        """The number of the next request."""
        self._request += 1
        return self._request

    async def ask(
        self, number: int, request: bytearray, read: Callable[[Frame], Any], timeout_s: float
    ) -> Any:
        """What ``read`` takes from the answer. ``ServiceGoneError``: the connection is closed."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = future, read
        self.tell(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close("no answer in time")
            raise ServiceGoneError("the service does not answer in time") from None
        finally:
            self._waiting.pop(number, None)  # an answer that nobody waits for is passed over

    def tell(self, request: bytearray) -> None:
        """Sends a frame, now or as soon as the socket takes it."""
        if self.closed:
            raise ServiceGoneError("the connection has ended")
        idle = not self._out
        self._out += request
        if idle:
            self._writable()
            if self._out and not self.closed:
                self._loop.add_writer(self.socket, self._writable)

    def _writable(self) -> None:
        try:
            while self._out:
                with memoryview(self._out) as view:
                    count = self.socket.send(view[: 1 << 20])
                del self._out[:count]
        except _LATER:
            return
        except OSError as error:
            self._cut(str(error))
            return
        self._loop.remove_writer(self.socket)

    def _readable(self) -> None:
        if self.closed:
            return
        try:
            room = self._splitter.room()
            if isinstance(self.socket, ssl.SSLSocket):
                count = self._read_decrypted(self.socket, room)
            elif self.local:
                space = socket.CMSG_SPACE(_MOST_FILES * 4)
                count, rights, _, _ = self.socket.recvmsg_into(
                    [room], space, socket.MSG_CMSG_CLOEXEC
                )
                self._files += rights_in(rights)
            else:
                count = self.socket.recv_into(room)
            self._splitter.filled(count)
            for frame in self._splitter.frames():
                self._take(frame)
        except _LATER:
            return
        except (OSError, ProtocolError) as error:
            self._cut(str(error))
            return
        if not count:
            self._cut("the service closed the connection")

    def _read_decrypted(self, link: ssl.SSLSocket, room: memoryview) -> int:
        """Reads, and comes back where more was decrypted: that makes no socket readable."""
        count = link.recv_into(room)
        if link.pending():
            self._loop.call_soon(self._readable)
        return count

    def _take(self, frame: Frame) -> None:
        future, read = self._waiting.pop(frame.request, (None, None))
        if future is None or read is None or future.done():
            return
        try:
            raise_refusal(frame)
            future.set_result(read(frame))
        except (CacheError, ValueError) as error:
            future.set_exception(error)

    def files(self) -> list[int]:
        """Descriptors that came since; the caller's from now on."""
        files, self._files = self._files, []
        return files

    def alive(self) -> bool:
        """Whether the service has not closed it."""
        return not self.closed and not self._watch.poll(0)

    def _cut(self, why: str) -> None:
        self.cut = True
        self.close(why)

    def close(self, why: str = "the connection was closed") -> None:
        """Ends it, for all that wait. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.socket)
        self._loop.remove_writer(self.socket)
        self.socket.close()
        for descriptor in self.files():
            os.close(descriptor)
        for future, _ in list(self._waiting.values()):
            if not future.done():
                future.set_exception(ServiceGoneError(why))
        self._waiting.clear()


class AsyncConnected:
    """What every call of ``AsyncClient`` stands on: ``_run`` takes its steps."""

    def __init__(
        self,
        address: str,
        groups: Sequence[Group],
        key_bytes: int,
        page_tokens: int,
        memory: Sequence[Sequence[npt.NDArray[Any]]] | None,
        *,
        who: Credentials,
        timeout_s: float,
        pool_bytes: int,
    ) -> None:
        """Arguments as of ``Client``."""
        self.address = str(address)
        local = is_path(self.address)
        if not local:
            host_of(self.address)
        self.does = Operations(groups, key_bytes, page_tokens, memory, local)
        self.timeout_s = seconds_of("timeout_s", timeout_s)
        self._who = who
        self._pool_bytes = pool_bytes
        self._link: AsyncLink | None = None
        self._stores: dict[Namespace, OpenedStore] = {}
        self._views = Views()
        self._absence = Absence()
        self._making = asyncio.Lock()  # of the connection and its stores
        self._closed = False
        self.boot: bytes | None = None
        self.restarts = 0

    async def _linked(self) -> AsyncLink:
        if self._closed:
            raise ClosedError("the client was closed")
        link = self._link
        if link is None or link.closed or link.pid != os.getpid():
            async with self._making:
                link = self._link
                if link is None or link.closed or link.pid != os.getpid():
                    link = await self._connect()
        return link

    async def _connect(self) -> AsyncLink:
        if not self._absence.open(time.monotonic()):
            raise ServiceGoneError(f"{self.address} did not answer lately")
        self._link, self._stores, self._views = None, {}, Views()
        try:  # connecting and HELLO are blocking calls, once: in a thread
            plain = await asyncio.to_thread(Link, self.address, self._who, self.timeout_s)
        except ServiceGoneError:
            self._absence.failed(time.monotonic())
            raise
        self._absence.back()
        if self.boot is not None and self.boot != plain.boot:
            self.restarts += 1
        self.boot = plain.boot
        self._link = AsyncLink(plain)
        return self._link

    async def _store(self, link: AsyncLink, namespace: Namespace | None) -> OpenedStore:
        name = namespace if namespace is not None else _PLAIN
        found = self._stores.get(name)
        if found is not None:
            return found
        async with self._making:
            found = self._stores.get(name)
            if found is None:
                does = self.does
                asked = declared(
                    does.groups, does.key_bytes, does.page_tokens, name, self._pool_bytes
                )
                number = link.next()
                found = await link.ask(
                    number,
                    encode(Op.OPEN, number, text_of(asked)),
                    lambda frame: opened_store(link, frame, link.files(), self._views),
                    self.timeout_s,
                )
                self._stores[name] = found
            return found

    async def _run(self, steps: Steps[T]) -> T:
        """Takes steps to their end, asking what they yield."""
        try:
            ask = next(steps)
            while True:
                try:
                    answer = await self._asked(ask)
                except (CacheError, ValueError, TypeError) as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _asked(self, ask: Ask) -> Any:
        was = self._link
        if ask.store is not None and (ask.store.link is not was or was is None or was.closed):
            raise LeaseError("it ended with its connection")
        try:
            return await self._asked_once(ask)
        except ServiceGoneError:
            if was is None or not was.cut or ask.store is not None:
                self._absence.failed(time.monotonic())
                raise
            return await self._asked_once(ask)

    async def _asked_once(self, ask: Ask) -> Any:
        link = await self._linked()
        store = ask.store
        if store is None:
            store = await self._store(link, ask.namespace)
        if ask.make is None:
            return ask.read(store, NO_FRAME)
        number, wait_s = link.next(), ask.timeout_s
        request = ask.make(store.number, number)
        given = store
        return await link.ask(
            number,
            request,
            lambda frame: ask.read(given, frame),
            self.timeout_s if wait_s is None else wait_s,
        )

    def _let_go(self, lease: ServiceLease) -> None:
        link, store = self._link, lease.store
        if link is not None and store is not None and store.link is link and not link.closed:
            link.tell(encode(Op.RELEASE, link.next(), number=lease.number))

    async def close(self) -> None:
        """Ends the connection, and with it every lease and reservation. Idempotent."""
        self._closed = True
        if self._link is not None:
            self._link.close()
        self._link = None
