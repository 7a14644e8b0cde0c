"""A client that keeps an account of what a service holds and opens no store: which stores the
domain has, what lies in them, and what was stored and removed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radix.service.calls import StoredOrRemoved, Told, raise_refusal, told_in
from radix.service.link import Credentials, Link
from radix.service.protocol import Frame, Op, ProtocolError, header, parse_text


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """A group of a store: its number, the kind of its retention and that one's tokens (0: none),
    and how many tokens (keys, of stores without tokens) a block has.
    """

    number: int
    retention: str
    tokens: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """A store that the domain has open. ``number``: its name in this connection; ``page_tokens``:
    0 where engines make the keys; ``tiers``: their names in order; ``following``: the event that
    comes next.
    """

    number: int
    key_bytes: int
    page_tokens: int
    groups: tuple[WatchedGroup, ...]
    tiers: tuple[str, ...]
    following: int


class Watch:
    """One connection. Every call raises ``ServiceGoneError`` once it has ended, and
    ``ProtocolError`` for a service that is too old to be watched.
    """

    def __init__(self, address: str, who: Credentials, timeout_s: float = 5.0) -> None:
        """Connects; raises as ``Link``."""
        self._link = Link(address, who, timeout_s)
        self.boot = self._link.boot

    def _call(self, op: Op, number: int, store: int = 0, argument: int = 0) -> Frame:
        named = {"number": number, "store": store, "argument": argument}
        frame = self._link.call(header(op, self._link.next(), **named))
        raise_refusal(frame)
        return frame

    def stores(self) -> list[WatchedStore]:
        """Those that are open now. Cost: a round trip each."""
        found: dict[int, WatchedStore] = {}
        place, count = 0, 1
        while place < count:
            try:
                frame = self._call(Op.WATCH, place)
            except ValueError as error:
                what = f"this service cannot be watched ({error}): it is older than its client"
                raise ProtocolError(what) from None
            count = frame.items
            if len(frame.keys):
                store = _store_in(parse_text(frame.keys))
                found[store.number] = store
            place += 1
        return list(found.values())

    def resident(self, store: WatchedStore) -> Iterator[tuple[StoredOrRemoved, ...]]:
        """What lies where, a piece at a time. What changes meanwhile is among the events after the
        number that the store had ``following`` before. ``ClosedError`` where it was closed.
        """
        root = after = 0
        while True:
            frame = self._call(Op.RESIDENT, root, store.number, after)
            yield told_in(frame, store.key_bytes).events
            root, after = frame.number, frame.argument
            if not root:
                return

    def events(self, store: WatchedStore, since: int) -> Told:
        """What was stored and removed from event ``since`` on, as much as goes into one answer.
        ``ClosedError`` where the store was closed.
        """
        return told_in(self._call(Op.EVENTS, since, store.number), store.key_bytes)

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._link.close()


def _store_in(told: dict[str, Any]) -> WatchedStore:
    page = int(told["page_tokens"])
    groups = tuple(
        WatchedGroup(
            number,
            str(group["retention"]),
            int(group["tokens"]),
            page or int(group["grid_tokens"]) or 1,
        )
        for number, group in enumerate(told["groups"])
    )
    return WatchedStore(
        number=int(told["store"]),
        key_bytes=int(told["key_bytes"]),
        page_tokens=page,
        groups=groups,
        tiers=tuple(map(str, told["tiers"])),
        following=int(told["following"]),
    )
