"""The stream of a cache for routers: blocks stored and removed (I32) as vLLM's KV events, numbered,
over ZeroMQ, with a socket that gives again what a subscriber missed.

    cache.poll() --> Translation --> batch 17 --> PUB: topic, 17, payload
                                        |
    ROUTER: "from 12 on" --> 12 .. 17 (or everything that is there, as batch 17), end

The first batch says that nothing is held and then what is: whoever believed a former process
forgets. A batch that was published is never changed; what happened since the last poll is in the
next. There is no thread here: sending and answering happen in the owner's calls, and none blocks.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import zmq

from radix.cache import PrefixCache
from radix.errors import ClosedError
from radix.events import BlocksRemoved, BlocksStored, Event
from radix.groups import Group, rule_of
from radix.keys import Namespace, root_key
from radix.service.kv_wire import (
    CPU,
    GPU,
    LOCAL,
    REMOTE,
    STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEventBatch,
    WireEvent,
)
from radix.store import FlatStore
from radix.tier import Keys

Store = PrefixCache | FlatStore

MEDIA: Mapping[str, tuple[str, str]] = {
    "device": (GPU, LOCAL),
    "host": (CPU, LOCAL),
    "disk": (STORAGE, LOCAL),
    "remote": (STORAGE, REMOTE),
}
_KINDS = {
    "full": "full_attention",
    "window": "sliding_window",
    "chunked": "chunked_local_attention",
    "state": "mamba",
}
_BATCH_EVENTS = 1024  # of a snapshot
_MOST_ASKING = 64  # subscribers that are given something again at once
_MOST_NAMED = 1024  # namespaces of which the names are kept


@dataclass(frozen=True, slots=True)
class _Place:
    """What the wire says of a group: its number, kind, window in tokens, tokens and pages a block,
    pages that it looks ahead.
    """

    number: int
    kind: str
    window: int | None
    block_tokens: int
    block_pages: int
    ahead_pages: int


class Translation:
    """Events of one cache as messages. ``of``: what a poll told; ``snapshot``: all there is."""

    def __init__(self, store: Store, media: Mapping[str, tuple[str, str]] = MEDIA) -> None:
        """``media``: by the name of a tier its medium and locality. ``ValueError`` for a tier that
        is not in it.
        """
        self._store = store
        for tier in store.tiers:
            if tier.name not in media:
                raise ValueError(f"media has no tier {tier.name!r}, only {sorted(media)}")
        self._media = dict(media)
        self._page = store.page_tokens if isinstance(store, PrefixCache) else 1
        self._tokens = isinstance(store, PrefixCache) and not store.keys.opaque
        self._flat = isinstance(store, FlatStore)
        self._places = {
            group.name: self._place(number, group) for number, group in enumerate(store.groups)
        }
        self._plain = self._canonical(Namespace())
        self._named: dict[bytes, tuple[bytes, str | None, tuple[str] | None]] = {}

    def _place(self, number: int, group: Group) -> _Place:
        rule, kind = group.retention, _KINDS.get(group.retention.rule, "unknown")
        window = rule.tokens if rule.rule == "window" else None
        if self._flat:
            return _Place(number, kind, window, group.grid_tokens or self._page, 1, 0)
        pages = rule_of(group, self._page)
        size = pages.block_pages
        return _Place(number, kind, window, size * self._page, size, pages.lookahead_pages)

    def _canonical(self, namespace: Namespace) -> bytes:
        return self._store.namespace(namespace) if isinstance(self._store, PrefixCache) else b""

    def of(self, events: Iterable[Event]) -> list[WireEvent]:
        """Those of them that are of the stream, in order. Cost: their blocks."""
        told: list[WireEvent] = []
        emptied = False
        for event in events:
            if isinstance(event, BlocksStored):
                told.append(self._stored(event))
                emptied = False
            elif isinstance(event, BlocksRemoved):
                told.append(self._removed(event))
                emptied |= event.reason == "reset"
        if emptied and self._empty():
            told.append(AllBlocksCleared())
        return told

    def _empty(self) -> bool:
        tree, tiers = self._store.tree, len(self._store.residency.tiers)
        columns = [tree.column(g, t) for g in range(len(self._store.groups)) for t in range(tiers)]
        return not any(tree.column_stats(column).resident for column in columns)

    def snapshot(self) -> list[WireEvent]:
        """That nothing is held, then what is held, parents first. Cost: everything."""
        stored = [self._stored(event) for event in self._store.resident()]
        return [AllBlocksCleared(), *stored]

    def _stored(self, event: BlocksStored) -> BlockStored:
        place = self._places[event.group]
        medium, locality = self._media[event.tier]
        root, lora, space = self._name(event.namespace)
        names = self._hashes(event.keys)
        tokens: list[int] = []
        if self._tokens and event.pages is not None:
            tokens = event.pages.reshape(-1).view(np.int32).tolist()
        return BlockStored(
            block_hashes=names,
            parent_block_hash=None if event.parent == root else _hash(event.parent),
            token_ids=tokens,
            block_size=place.block_tokens,
            lora_id=None,
            medium=medium,
            lora_name=lora,
            extra_keys=None if space is None else [space] * len(names),
            group_idx=place.number,
            kv_cache_spec_kind=place.kind,
            kv_cache_spec_sliding_window=place.window,
            locality=locality,
            block_positions=self._positions(place, event.first, len(names)),
        )

    def _positions(self, place: _Place, first: int, count: int) -> list[int] | None:
        """Tokens before each block of a run, the first of which ends with page ``first``."""
        if first < 0:
            return None
        step = place.block_tokens if self._flat else self._page
        begin = (first + 1 - place.ahead_pages - place.block_pages) * step
        return list(range(begin, begin + count * step, step))

    def _removed(self, event: BlocksRemoved) -> BlockRemoved:
        medium, locality = self._media[event.tier]
        number = self._places[event.group].number
        names = self._hashes(event.keys)
        return BlockRemoved(block_hashes=names, medium=medium, group_idx=number, locality=locality)

    def _name(self, canonical: bytes) -> tuple[bytes, str | None, tuple[str] | None]:
        """Root key, adapter and opaque name of a namespace."""
        known = self._named.get(canonical)
        if known is None:
            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            root = root_key(canonical)
            lora = Namespace.parse(canonical).adapter or None
            space = None if canonical == self._plain else (root.hex(),)
            known = self._named[canonical] = (root, lora, space)
        return known

    def _hashes(self, keys: Keys) -> list[int] | list[bytes]:
        if self._flat:
            return [key.tobytes() for key in keys]
        names: list[int] = np.ascontiguousarray(keys[:, :8]).view("<u8").reshape(-1).tolist()
        return names


def _hash(key: bytes) -> int:
    return int.from_bytes(key[:8], "little")


class KvPublisher:
    """Tells routers what a cache holds. ``publish`` after each ``poll`` of the cache; ``close``.

    ``endpoint``, ``replay_endpoint``: the addresses that it is bound to, ports filled in.
    ``batches``: published so far, the number of the next one.
    """

    def __init__(
        self,
        store: Store,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        rank: int | None = None,
        media: Mapping[str, tuple[str, str]] = MEDIA,
        kept_batches: int = 10_000,
        high_water: int = 100_000,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Binds. The first call of ``publish`` then publishes all that is there.

        ``endpoint``: a PUB socket; a subscriber that is too slow for ``high_water`` messages loses
        some, and sees it by their numbers. ``replay_endpoint``: a ROUTER socket that gives again
        from a number on (8 bytes, big endian), of the last ``kept_batches``; where that begins
        before them, everything that is there, numbered as the last batch. ``rank``: of
        data parallelism. Raises ``ValueError`` for a tier that ``media`` does not have, or a cache
        without ``events``; ``zmq.ZMQError`` for an address that cannot be bound.
        """
        if store.residency.events is None:
            raise ValueError("store must be made with events=True")
        self._translation = Translation(store, media)
        self._topic, self._rank, self._now = topic.encode(), rank, now
        self._encoder = msgspec.msgpack.Encoder()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_batches)
        self._asking: dict[bytes, Iterator[tuple[bytes, int, bytes]]] = {}
        self.batches = 0
        self._context = zmq.Context()
        try:
            self._pub, self.endpoint = self._bound(zmq.PUB, endpoint, high_water)
            self._router, self.replay_endpoint = None, None
            if replay_endpoint is not None:
                bound = self._bound(zmq.ROUTER, replay_endpoint, high_water)
                self._router, self.replay_endpoint = bound
                self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _bound(self, kind: int, endpoint: str, high_water: int) -> tuple[zmq.Socket[bytes], str]:
        made = self._context.socket(kind)
        made.set_hwm(high_water)
        made.bind(endpoint)
        return made, made.getsockopt_string(zmq.LAST_ENDPOINT)

    def _everything(self) -> list[list[WireEvent]]:
        events = self._translation.snapshot()
        return [events[at : at + _BATCH_EVENTS] for at in range(0, len(events), _BATCH_EVENTS)]

    def _payload(self, events: Sequence[WireEvent]) -> bytes:
        return self._encoder.encode(KvEventBatch(self._now(), list(events), self._rank))

    def _send(self, events: Sequence[WireEvent]) -> None:
        number, payload = self.batches, self._payload(events)
        self._kept.append((number, payload))
        self.batches = number + 1
        self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def publish(self, events: Iterable[Event]) -> int:
        """Publishes what a poll told, as one batch, and answers who missed something; the batches
        published so far. Nothing of the stream in it: nothing is published. The first time all that
        is there by then, in as many batches as it takes.

        Call it after each poll, before the cache changes again. Never blocks. Raises
        ``ClosedError``. Cost: the blocks told, and what is given again.
        """
        if self._context.closed:
            raise ClosedError("the publisher is closed")
        parts = [self._translation.of(events)] if self.batches else self._everything()
        for told in parts:
            if told:
                self._send(told)
        if self._router is not None:
            self._hear(self._router)
            self._answer(self._router)
        return self.batches

    def translated(self, events: Iterable[Event]) -> list[WireEvent]:
        """What ``publish`` would tell of them, and does not. Cost: their blocks."""
        return self._translation.of(events)

    def _hear(self, router: zmq.Socket[bytes]) -> None:
        """Takes requests; one that is none is answered by the end alone."""
        while len(self._asking) < _MOST_ASKING:
            try:
                frames = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            who, asked = frames[0], frames[-1]
            good = len(frames) == 3 and not frames[1] and len(asked) == 8
            first = int.from_bytes(asked, "big") if good else self.batches
            self._asking[who] = self._again(first)

    def _again(self, first: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Batches from ``first`` on, then the end. Copied at once: later ones are published."""
        kept = list(self._kept)
        if first < kept[0][0]:
            # too old: all there is, as of the last batch; what follows it goes on from there
            first = self.batches - 1
            kept = [(first, self._payload(part)) for part in self._everything()]
        for number, payload in kept:
            if number >= first:
                yield self._topic, number, payload
        yield b"", -1, b""

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        """Gives again as much as each who asked has room for; the rest when it has."""
        for who, batches in list(self._asking.items()):
            for topic, number, payload in batches:
                mark = number.to_bytes(8, "big", signed=number < 0)
                try:
                    router.send_multipart([who, b"", topic, mark, payload], zmq.NOBLOCK)
                except zmq.Again:
                    self._asking[who] = _first_again((topic, number, payload), batches)
                    break
                except zmq.ZMQError:  # it is gone
                    del self._asking[who]
                    break
            else:
                del self._asking[who]

    def close(self) -> None:
        """Unbinds; what subscribers have not taken yet is given a second. Idempotent."""
        if not self._context.closed:
            self._context.destroy(linger=1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def _first_again(
    batch: tuple[bytes, int, bytes], rest: Iterator[tuple[bytes, int, bytes]]
) -> Iterator[tuple[bytes, int, bytes]]:
    return itertools.chain([batch], rest)
