"""What every answer of the service needs: its configuration, its stores, the threads that copy, its
counts, and the number by which one life of the server is told from the next.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np

from radix.keys import page_keys
from radix.keysets import keys_of
from radix.metrics import Metrics
from radix.plan import Pages
from radix.service.config import ServiceConfig
from radix.service.hosting import Domain, Hosted, domains_of
from radix.service.protocol import (
    POSITIONS,
    SPOKEN,
    TOKENS,
    Frame,
    ProtocolError,
    Status,
    keys_in,
    numbers_in,
    tokens_in,
)
from radix.service.session import Opened, Session
from radix.tier import Keys, Slots, Urgency
from tiers.transfer import Completion, Planes, TransferEngine

MOST_HELD = 1 << 16
_CALLS_S = 1.0


class Copier:
    """Copies between memory that both sides of a connection see and a pool, in threads; ``poll``
    tells the ends. Its ``descriptor`` is readable while there are some.
    """

    def __init__(self, threads: int) -> None:
        self._engine = TransferEngine(threads)
        self._waiting: dict[int, Callable[[bool], None]] = {}
        self.descriptor = self._engine.event_fd

    def copy(
        self,
        target: tuple[Planes, Slots],
        source: tuple[Planes, Slots],
        keep: object,
        tell: Callable[[bool], None],
    ) -> bool:
        """Starts copying; ``tell`` is called with whether it went well, and ``keep`` is held until
        then. False where the queue is full: nothing was started.
        """
        job = self._engine.new_job()
        status = self._engine.submit_copy(job, Urgency.DEMAND, *target, *source, keep=keep)
        if status:
            return False
        self._waiting[job] = tell
        return True

    def poll(self) -> None:
        """Tells what has ended."""
        for done in self._engine.poll():
            self._end(done)

    def _end(self, done: Completion) -> None:
        self._waiting.pop(done.job)(done.status == 0)

    @property
    def pending(self) -> int:
        """Copies under way."""
        return len(self._waiting)

    def close(self) -> None:
        """Waits for every copy and tells it."""
        while self._waiting:
            self._engine.wait(0.05)
            self.poll()
        self._engine.close()


class Context:
    """Made once a server. ``boot``: 16 bytes that no other life of a server has."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.domains: dict[str, Domain] = domains_of(config)
        self.copier = Copier(config.threads)
        self.metrics = Metrics()
        self.counted = {tenant.name: Metrics() for tenant in config.tenants}
        self.boot = secrets.token_bytes(16)
        self.spoken = SPOKEN
        self.tally = [0, 0, 0]  # LOOKUPs, pages (keys) of them and of those hits, not yet counted
        self.draining = False
        self.active: set[Hosted] = set()  # in which something may have begun
        # Of leases, reservations and keeps: none is given twice, nor by the next life of a server.
        self.numbers = itertools.count(secrets.randbits(38) << 24)

    def count(self, session: Session, opened: Opened, found: Slots) -> None:
        """Counts what a tenant asked for, by the tier that has it."""
        if session.tenant is None:
            return
        counted = self.counted[session.tenant.name]
        tiers = opened.hosted.flat.tiers
        counts = np.bincount(found + 1, minlength=len(tiers) + 1).tolist()
        for name, count in zip([None, *(tier.name for tier in tiers)], counts, strict=True):
            if count:
                counted.add(
                    ("has", "miss", "absent") if name is None else ("has", "hit", name), count
                )

    def counters(self) -> Mapping[str, int]:
        """Every counter of the server itself, by its dotted name."""
        for what, count in zip(("requests", "asked", "hits"), self.tally, strict=True):
            self.metrics.add(("lookup", what), count)
        self.tally = [0, 0, 0]
        return self.metrics.snapshot()

    def stores(self) -> list[Hosted]:
        """Every store that is open."""
        return [store for domain in self.domains.values() for store in domain.stores.values()]

    def close(self, until: float) -> None:
        """Ends what copies, then every store; for what goes to remote tiers it waits ``until``
        then, and a second at most for calls that are out.
        """
        self.copier.close()
        remotes = [store.remote.tier for store in self.stores() if store.remote is not None]
        for domain in self.domains.values():
            domain.close(until)
        last = time.monotonic() + _CALLS_S
        for tier in remotes:
            tier.join(max(0.0, last - time.monotonic()))


def opened_of(session: Session, frame: Frame) -> Opened:
    """The store of a frame. ``ProtocolError`` for a number that this connection has not opened."""
    opened = session.stores.get(frame.store)
    if opened is None:
        raise ProtocolError(
            f"store {frame.store} was not opened in this connection", Status.UNKNOWN, frame.request
        )
    return opened


def may_hold(context: Context, session: Session, frame: Frame, keys: int) -> None:
    """``ProtocolError`` where a connection would hold more than one may: keys that it leased, and
    leases and reservations however small.
    """
    most = context.config.limits.max_leases
    held = len(session.leases) + len(session.writing)
    if session.leased_keys + keys > most or held >= min(most, MOST_HELD):
        raise ProtocolError(
            f"{session.leased_keys} keys are leased by this connection, at most {most}; and "
            f"{held} leases and reservations are held, at most {min(most, MOST_HELD)}",
            *(Status.LIMIT, frame.request),
        )


def keys_of_frame(opened: Opened, frame: Frame) -> Keys:
    """The keys that a frame names, or those of the full pages of its tokens."""
    signature = opened.hosted.signature
    if not frame.flags & TOKENS:
        return keys_of("keys", keys_in(frame, signature.key_bytes), signature.key_bytes)
    if not signature.page_tokens:
        raise ProtocolError(
            "tokens: the store was opened for keys", Status.BAD_REQUEST, frame.request
        )
    return page_keys(opened.seed, tokens_in(frame), signature.page_tokens)


def positions_in(frame: Frame, count: int) -> Pages | None:
    """The positions of a frame's keys: said, or of pages of tokens their own order."""
    if frame.flags & POSITIONS:
        found: Pages = numbers_in(frame, np.int64, count)
        return found
    return np.arange(count, dtype=np.int64) if frame.flags & TOKENS else None


def group_of(opened: Opened, frame: Frame) -> int:
    """The group of a frame. ``ProtocolError`` beyond those of the store."""
    if frame.group >= len(opened.hosted.signature.groups):
        raise ProtocolError(
            f"group {frame.group}: the store has {len(opened.hosted.signature.groups)}",
            Status.BAD_REQUEST,
            frame.request,
        )
    return frame.group
