"""One connection: who is on the other side, what was read and not understood yet, what is to be
written, and what it holds: leases, reservations, staging memory. All of that ends with it. A
connection that takes no answers is not read from, and cut when it stays so; it never holds up
another, for nothing here blocks.
"""

from __future__ import annotations

import mmap
import os
import socket
import ssl
import time
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radix._native import ffi
from radix.keys import Namespace
from radix.keysets import FlatLease, Reservation
from radix.service.encryption import name_of, shaken
from radix.service.hosting import Hosted
from radix.service.protocol import REPLY, VERSION, Splitter, Status, encode
from radix.service.tenants import Tenant
from radix.tier import Keys
from tiers.memory import memory_file
from tiers.slab import ALIGNMENT_BYTES

_MOST_READ = 1 << 20
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Opened:
    """What a store number of a connection stands for. ``namespace``: as it is kept, ``root``: by
    what the tree knew it last; ``seed``: what the keys of its pages chain from; ``limiting``: a
    mask of the groups that limit a hit, ``plain``: whether each of those needs every page.
    """

    __slots__ = ("hosted", "limiting", "namespace", "page", "plain", "root", "seed", "tree")

    def __init__(self, hosted: Hosted, namespace: Namespace) -> None:
        self.hosted = hosted
        self.namespace = namespace
        self.tree = hosted.flat.tree.native
        self.page = hosted.signature.page_tokens
        self.root = hosted.flat.root_of(namespace)
        self.seed = hosted.flat.root_key(namespace)
        groups, rules = range(len(hosted.signature.groups)), hosted.signature.rules
        limiting = [group for group in groups if not rules or rules[group].lookup]
        self.limiting = sum(1 << group for group in limiting)
        self.plain = not rules or all(rules[group].everywhere for group in limiting)


@dataclass(slots=True)
class Holding:
    """A lease of a connection: one for each call, over keys of one store."""

    hosted: Hosted
    lease: FlatLease
    keys: int


@dataclass(slots=True)
class Writing:
    """A reservation: slots in the pool, and as many in the staging memory from ``first`` on;
    ``others``: keys that were asked for with them and are there or coming already. ``copying``: the
    transfer threads read the staging memory and write the slots.
    """

    opened: Opened
    reservation: Reservation
    others: Keys
    first: int
    nbytes: int
    copying: bool = False
    dropped: bool = False


class Staging:
    """Memory that one client writes and the server reads. ``take`` and ``give`` lend extents of it,
    the lowest that fit. The mapping lasts as long as somebody holds ``view``.
    """

    def __init__(self, nbytes: int) -> None:
        """Raises ``OSError``. Cost: O(1), for pages come as they are touched."""
        self.nbytes = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.descriptor = memory_file("radix-staging", self.nbytes)
        try:
            self.view = mmap.mmap(self.descriptor, self.nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._buffer = ffi.from_buffer(self.view)
        self.address = int(ffi.cast("uintptr_t", self._buffer))
        self._lent: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """The offset of ``nbytes``, None where no extent is so long. Cost: what is lent."""
        at = 0
        for first in sorted(self._lent):
            if first - at >= nbytes:
                break
            at = first + self._lent[first]
        if self.nbytes - at < nbytes:
            return None
        if nbytes:
            self._lent[at] = nbytes
        return at

    def give(self, first: int) -> None:
        """An extent is free again."""
        self._lent.pop(first, None)

    @property
    def lent_bytes(self) -> int:
        """Bytes lent now."""
        return sum(self._lent.values())

    def close(self) -> None:
        """Closes the descriptor; the mapping goes with the last that holds it."""
        os.close(self.descriptor)


class Session:
    """A connection. The loop fills ``splitter`` and empties ``out``; ``reply`` and ``refuse`` add
    to it. ``local``: over the UNIX socket, so that memory can be shared.
    """

    def __init__(
        self,
        link: socket.socket,
        number: int,
        uid: int | None,
        most_bytes: int,
        answered: set[Session],
    ) -> None:
        """``uid``: of the other side's user, None where that is another machine. ``answered``: it
        enters itself there whenever it has something to send.
        """
        self.link = link
        self.number = number
        self.local = uid is not None
        self.uid = uid
        self.answered = answered
        self.splitter = Splitter(most_bytes)
        self.out = bytearray()
        self.files: deque[tuple[int, list[int]]] = deque()  # (bytes before them, descriptors)
        self.sent = 0
        self.queued = 0
        self.shaking = isinstance(link, ssl.SSLSocket)
        self.certificate: str | None = None  # whom a certificate that was verified names
        self.tenant: Tenant | None = None
        self.version = VERSION  # that both sides agreed on
        self.challenge: dict[str, Any] | None = None
        self.began = self.heard = self.moved = time.monotonic()
        self.stores: dict[int, Opened] = {}
        self.hosts: set[Hosted] = set()  # in which those lie
        self.watched: dict[int, Hosted] = {}  # of which it hears, and which it does not hold open
        self.watches = 0  # how many those were so far: none gets the number of another
        self.leases: dict[int, Holding] = {}
        self.leased_keys = 0
        self.writing: dict[int, Writing] = {}
        self.other_keys = 0  # that those remember beside their own
        self.staging: Staging | None = None
        self.again = False  # what was read waits, and the socket need not be asked
        self.quick: tuple[int, Opened] | None = None  # the store of the last LOOKUP
        self.unanswered = 0
        self.ending = False  # what is queued is sent, then it is closed
        self.closed = False
        self.mask = 0  # what the poll watches

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way, nor held."""
        return not (self.unanswered or self.out or self.leases or self.writing)

    # ------------------------------------------------------------ in
    def fill(self) -> bool:
        """Reads what is there, up to the room there is. False: the other side has closed."""
        link, splitter = self.link, self.splitter
        while True:
            room = splitter.room()
            try:
                count = link.recv_into(room, min(len(room), _MOST_READ))
            except _LATER:
                return True
            except OSError:
                return False
            splitter.filled(count)
            self.heard = time.monotonic()
            # What was decrypted and not given yet makes no socket readable.
            if not count or not isinstance(link, ssl.SSLSocket) or not link.pending():
                return count > 0

    def shake(self) -> bool:
        """Takes the handshake of TLS further. False: it failed."""
        link = self.link
        if not isinstance(link, ssl.SSLSocket) or not self.shaking:
            return True
        try:
            self.shaking = not shaken(link)
        except OSError:
            return False
        if not self.shaking:
            self.certificate = name_of(link)
        return True

    # ------------------------------------------------------------ out
    def reply(
        self,
        op: int,
        request: int,
        keys: bytes | memoryview | npt.NDArray[Any] = b"",
        data: bytes | memoryview | npt.NDArray[Any] = b"",
        files: list[int] | None = None,
        **fields: int,
    ) -> None:
        """Queues an answer; ``files`` go with its first byte and stay the caller's."""
        if self.closed:
            return
        if files:
            self.files.append((self.queued, files))
        self.queue(encode(op | REPLY, request, keys, data, **fields))

    def queue(self, frames: bytes | bytearray | memoryview) -> None:
        """Queues whole frames."""
        if not self.closed:
            self.out += frames
            self.queued += len(frames)
            self.answered.add(self)

    def refuse(
        self, op: int, request: int, status: Status, what: str, numbers: bytes = b""
    ) -> None:
        """Queues a refusal with its text."""
        self.reply(op, request, numbers, what.encode()[:4096], status=status)

    def flush(self) -> bool:
        """Sends what the socket takes. False: the connection is gone."""
        while self.out:
            try:
                count = self._send()
            except _LATER:
                return True
            except OSError:
                return False
            self.sent += count
            self.moved = time.monotonic()
            if count == len(self.out):
                self.out.clear()
            else:
                del self.out[:count]
        return True

    def _send(self) -> int:
        if not self.files:
            if len(self.out) <= _MOST_READ:
                return self.link.send(self.out)
            with memoryview(self.out) as view:
                return self.link.send(view[:_MOST_READ])
        before, files = self.files[0]
        if before > self.sent:  # what comes before their frame goes alone
            with memoryview(self.out) as view:
                return self.link.send(view[: before - self.sent])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))]
        end = self.files[1][0] - self.sent if len(self.files) > 1 else len(self.out)
        with memoryview(self.out) as view:
            count = self.link.sendmsg([view[:end]], rights)
        self.files.popleft()
        return count

    # ------------------------------------------------------------ what it holds
    def hold(self, number: int, holding: Holding) -> int:
        """Enters a lease under a number that nothing else has; that number."""
        self.leases[number] = holding
        self.leased_keys += holding.keys
        return number

    def let_go(self, number: int) -> bool:
        """Releases a lease. False where there is none of that number."""
        holding = self.leases.pop(number, None)
        if holding is None:
            return False
        self.leased_keys -= holding.keys
        holding.lease.release()
        return True

    def begin_writing(self, number: int, writing: Writing) -> None:
        """Enters a reservation under a number that nothing else has."""
        self.writing[number] = writing
        self.other_keys += len(writing.others)

    def end_writing(self, number: int) -> None:
        """A reservation ended: its staging memory is free."""
        writing = self.writing.pop(number)
        self.other_keys -= len(writing.others)
        if self.staging is not None and writing.nbytes:  # else its place is another's
            self.staging.give(writing.first)

    def close(self) -> None:
        """Closes the connection, and then gives back what it held: a client that sees no end of its
        connection has read nothing that was given to another. What transfer threads still read is
        given back when they have ended. Idempotent.
        """
        if self.closed:
            return
        self.closed = True
        self.link.close()
        self.out.clear()
        for number in list(self.leases):
            self.let_go(number)
        for number, writing in list(self.writing.items()):
            if writing.copying:
                writing.dropped = True
            else:
                writing.opened.hosted.flat.abort(writing.reservation)
                self.end_writing(number)
        for hosted in self.hosts:
            hosted.users -= 1
            hosted.used = time.monotonic()
        self.stores.clear()
        self.hosts.clear()
        self.watched.clear()
        if self.staging is not None:
            self.staging.close()


def block_rows(address: int, offsets: npt.NDArray[np.int64], nbytes: int) -> list[memoryview]:
    """Each block at ``address`` + offset, as bytes of this process."""
    return [
        memoryview(ffi.buffer(ffi.cast("char *", address + offset), nbytes))
        for offset in offsets.tolist()
    ]
