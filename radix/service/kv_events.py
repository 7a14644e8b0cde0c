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

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from radix.cache import PrefixCache
from radix.events import BlocksRemoved, BlocksStored, Event
from radix.groups import Group, rule_of
from radix.keys import Namespace, root_key
from radix.service.kv_stream import Stream
from radix.service.kv_wire import (
    KINDS,
    MEDIA,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireEvent,
)
from radix.store import FlatStore
from radix.tier import Keys

Store = PrefixCache | FlatStore

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
        rule, kind = group.retention, KINDS.get(group.retention.rule, "unknown")
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
        self._stream = Stream(
            self._translation.snapshot,
            endpoint,
            replay_endpoint,
            topic=topic,
            rank=rank,
            kept_batches=kept_batches,
            high_water=high_water,
            now=now,
        )
        self.endpoint = self._stream.endpoint
        self.replay_endpoint = self._stream.replay_endpoint

    @property
    def batches(self) -> int:
        """Batches published so far."""
        return self._stream.batches

    def publish(self, events: Iterable[Event]) -> int:
        """Publishes what a poll told, as one batch, and answers who missed something; the batches
        published so far. Nothing of the stream in it: nothing is published. The first time all that
        is there by then, in as many batches as it takes.

        Call it after each poll, before the cache changes again. Never blocks. Raises
        ``ClosedError``. Cost: the blocks told, and what is given again.
        """
        stream = self._stream
        stream.check_open()
        if stream.batches:
            stream.send(self._translation.of(events))
        else:
            stream.restate()
        stream.answer()
        return self.batches

    def translated(self, events: Iterable[Event]) -> list[WireEvent]:
        """What ``publish`` would tell of them, and does not. Cost: their blocks."""
        return self._translation.of(events)

    def close(self) -> None:
        """Unbinds; what subscribers have not taken yet is given a second. Idempotent."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
