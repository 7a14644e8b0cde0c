"""A router as the tests see one: it subscribes to the stream of a cache, asks again for what it
missed, and keeps for each group and medium what is said to be there. It refuses what I32 rules out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from radix.service.kv_events import KvPublisher
from radix.service.kv_wire import BlockRemoved, BlockStored, KvEventBatch, WireEvent

Held = dict[tuple[str, int], set[Any]]
_DECODER = msgspec.msgpack.Decoder(KvEventBatch)


class Router:
    """What one subscriber believes. ``decode``: bytes to a batch, by whichever classes. ``keeps``:
    whether it applies what it hears.
    """

    def __init__(
        self,
        publisher: KvPublisher,
        decode: Callable[[bytes], Any] = _DECODER.decode,
        *,
        keeps: bool = True,
    ) -> None:
        self._publisher, self._decode, self._keeps = publisher, decode, keeps
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(publisher.endpoint)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._ask = self._context.socket(zmq.DEALER)
        if publisher.replay_endpoint is not None:
            self._ask.connect(publisher.replay_endpoint)
        self.next = 0  # the number of the batch that it waits for
        self.held: Held = {}
        self.positions: dict[int, int] = {}  # of each block, as far as told
        self.events: list[WireEvent] = []

    def again(self) -> int:
        """Asks for all from ``next`` on, and applies it; the batches that came."""
        self._ask.send_multipart([b"", self.next.to_bytes(8, "big")])
        came = 0
        for _ in range(200):
            self._publisher.publish(())
            while self._ask.poll(20):
                _, _, mark, payload = self._ask.recv_multipart()
                number = int.from_bytes(mark, "big", signed=True)
                if number < 0:
                    return came
                came += 1
                self._take(number, payload)
        raise AssertionError("no end came")

    def hear(self, upto: int) -> None:
        """Applies what is published until batch ``upto`` - 1 is in; a gap is asked for again."""
        while self.next < upto:
            if not self._sub.poll(200):
                self.again()
                continue
            _, mark, payload = self._sub.recv_multipart()
            number = int.from_bytes(mark, "big")
            if number > self.next:
                self.again()
            elif number == self.next:
                self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        batch = self._decode(payload)
        for event in batch.events:
            self.events.append(event)
            if self._keeps:
                self.apply(event)
        self.next = number + 1

    def apply(self, event: Any) -> None:
        """One event. A second time it changes nothing (C105)."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.held.clear()
            return
        there = self.held.setdefault((event.medium, event.group_idx), set())
        if kind == BlockRemoved.__name__:
            there.difference_update(event.block_hashes)
            return
        assert kind == BlockStored.__name__
        there.update(event.block_hashes)
        places = getattr(event, "block_positions", None)
        if places is not None:
            assert len(places) == len(event.block_hashes)
            self.positions.update(zip(event.block_hashes, places, strict=True))

    def close(self) -> None:
        """Gives its sockets up."""
        self._context.destroy(linger=0)


def held(publisher: KvPublisher, resident: Sequence[Any]) -> Held:
    """What is there, by the cache's own list, in the form that a router has it in."""
    found: Held = {}
    for event in publisher.translated(resident):
        found.setdefault((event.medium, event.group_idx), set()).update(event.block_hashes)
    return found


def nonempty(held: Held) -> Held:
    """Without media that hold nothing."""
    return {key: names for key, names in held.items() if names}
