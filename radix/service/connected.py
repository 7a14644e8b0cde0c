"""The connection of a client that waits: made at the first call, made again when it has ended, left
alone for a while when nobody answers. What a call asks is asked once more where the service had
closed the connection before; what a lease of an older connection named is never used again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy.typing as npt

from radix.arguments import seconds_of
from radix.errors import CacheError, ClosedError, LeaseError
from radix.groups import Group
from radix.keys import Namespace
from radix.service.absence import Absence
from radix.service.calls import ServiceGoneError, raise_refusal
from radix.service.held import OpenedStore, ServiceLease, Views, opened_store
from radix.service.link import Credentials, Link, host_of, is_path
from radix.service.opening import declared
from radix.service.operations import Ask, Operations, Steps
from radix.service.protocol import NO_FRAME, Op, encode, text_of

T = TypeVar("T")
_PLAIN = Namespace()


class Connected:
    """What every call of ``Client`` stands on: ``_run`` takes its steps."""

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
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._stores: dict[Namespace, OpenedStore] = {}
        self._views = Views()
        self._absence = Absence()
        self._closed = False
        self.boot: bytes | None = None
        self.restarts = 0

    # ------------------------------------------------------------ the connection
    @property
    def connected(self) -> bool:
        """Whether the last question was answered: what is a miss then is one. Cost: O(1)."""
        link = self._link
        return link is not None and not link.closed

    @contextmanager
    def _linked(self) -> Iterator[Link]:
        with self._lock:
            if self._closed:
                raise ClosedError("the client was closed")
            link = self._link
            if link is None or link.closed or link.pid != os.getpid():
                link = self._connect()
            try:
                yield link
            except ServiceGoneError:
                self._absence.failed(time.monotonic())
                raise

    def _connect(self) -> Link:
        if not self._absence.open(time.monotonic()):
            raise ServiceGoneError(f"{self.address} did not answer lately")
        self._link, self._stores, self._views = None, {}, Views()
        try:
            link = Link(self.address, self._who, self.timeout_s)
        except ServiceGoneError:
            self._absence.failed(time.monotonic())
            raise
        self._absence.back()
        if self.boot is not None and self.boot != link.boot:
            self.restarts += 1
        self.boot, self._link = link.boot, link
        return link

    def _store(self, link: Link, namespace: Namespace | None) -> OpenedStore:
        """The number of a namespace in this connection, asked for at its first use."""
        name = namespace if namespace is not None else _PLAIN
        found = self._stores.get(name)
        if found is None:
            does = self.does
            asked = declared(does.groups, does.key_bytes, does.page_tokens, name, self._pool_bytes)
            frame = link.call(encode(Op.OPEN, link.next(), text_of(asked)))
            raise_refusal(frame)
            found = self._stores[name] = opened_store(link, frame, link.files(), self._views)
        return found

    # ------------------------------------------------------------ asking
    def _run(self, steps: Steps[T]) -> T:
        """Takes steps to their end, asking what they yield."""
        try:
            ask = next(steps)
            while True:
                try:
                    answer = self._asked(ask)
                except (CacheError, ValueError, TypeError) as error:
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value

    def _asked(self, ask: Ask) -> Any:
        """The answer; asked once more where the service had closed the connection before."""
        with self._lock:
            was = self._link
            if ask.store is not None and (ask.store.link is not was or was is None or was.closed):
                raise LeaseError("it ended with its connection")
            try:
                return self._asked_once(ask)
            except ServiceGoneError:
                known = was is not None and self._link is was and was.cut
                if not known or ask.store is not None:
                    raise
                self._absence.back()
                return self._asked_once(ask)

    def _asked_once(self, ask: Ask) -> Any:
        with self._linked() as link:
            store = ask.store if ask.store is not None else self._store(link, ask.namespace)
            if ask.make is None:
                return ask.read(store, NO_FRAME)
            frame = link.call(ask.make(store.number, link.next()), ask.timeout_s)
            raise_refusal(frame)
            return ask.read(store, frame)

    def _let_go(self, lease: ServiceLease) -> None:
        store = lease.store
        if store is None:
            return
        with self._lock, suppress(ServiceGoneError):
            link = self._link
            if link is not None and store.link is link and not link.closed:
                link.tell(encode(Op.RELEASE, link.next(), number=lease.number))

    def close(self) -> None:
        """Ends the connection, and with it every lease and reservation. Idempotent."""
        with self._lock:
            self._closed = True
            if self._link is not None and self._link.pid == os.getpid():
                self._link.close()
            self._link = None
