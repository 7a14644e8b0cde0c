"""A numbered stream of KV events over ZeroMQ, with a socket that gives again what a subscriber
missed. Whoever owns it says what is published, and what is there when somebody missed too much. A
batch that was published is never changed. There is no thread here: sending and answering happen in
the owner's calls, and none blocks.

    PUB: topic, 17, payload        ROUTER: "from 12 on" --> 12 .. 17 (or all there is, as 17), end
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec
import zmq

from radix.errors import ClosedError
from radix.service.kv_wire import KvEventBatch, WireEvent

BindError = zmq.ZMQError  # an address cannot be bound
_BATCH_EVENTS = 1024  # of a snapshot
_LINGER_MS = 1000
_MOST_ASKING = 64  # subscribers that are given something again at once


class Stream:
    """``send`` publishes a batch, ``restate`` all there is, ``answer`` gives again; ``close``.

    ``endpoint``, ``replay_endpoint``: the addresses that it is bound to, ports filled in.
    ``batches``: published so far, the number of the next one.
    """

    def __init__(
        self,
        everything: Callable[[], Sequence[WireEvent]],
        endpoint: str,
        replay_endpoint: str | None,
        *,
        topic: str,
        rank: int | None,
        kept_batches: int,
        high_water: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Binds. ``everything``: that nothing is held, and then all that is, as of what was sent
        last. Raises ``zmq.ZMQError`` for an address that cannot be bound.
        """
        self._everything = everything
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
        made.setsockopt(zmq.LINGER, _LINGER_MS)  # also of one that nobody closes
        made.bind(endpoint)
        return made, made.getsockopt_string(zmq.LAST_ENDPOINT)

    def _parts(self) -> Iterator[Sequence[WireEvent]]:
        events = self._everything()
        for at in range(0, len(events), _BATCH_EVENTS):
            yield events[at : at + _BATCH_EVENTS]

    def _payload(self, events: Sequence[WireEvent]) -> bytes:
        return self._encoder.encode(KvEventBatch(self._now(), list(events), self._rank))

    def send(self, events: Sequence[WireEvent]) -> None:
        """Publishes a batch; nothing of none. Raises ``ClosedError``."""
        self.check_open()
        if not events:
            return
        number, payload = self.batches, self._payload(events)
        self._kept.append((number, payload))
        self.batches = number + 1
        self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def restate(self) -> None:
        """Publishes all that is there, in as many batches as it takes."""
        for part in self._parts():
            self.send(part)

    def check_open(self) -> None:
        """``ClosedError`` after ``close``."""
        if self._context.closed:
            raise ClosedError("the publisher is closed")

    def wait(self, seconds: float) -> None:
        """Returns when somebody asks again, at the latest after so long."""
        if self._router is not None:
            self._router.poll(round(seconds * 1000))
        else:
            time.sleep(seconds)

    def answer(self) -> None:
        """Gives again what subscribers ask for. Cost: that."""
        if self._router is not None:
            self._hear(self._router)
            self._answer(self._router)

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
        if kept and first < kept[0][0]:
            # too old: all there is, as of the last batch; what follows it goes on from there
            first = self.batches - 1
            kept = [(first, self._payload(part)) for part in self._parts()]
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
            self._context.destroy(linger=_LINGER_MS)


def _first_again(
    batch: tuple[bytes, int, bytes], rest: Iterator[tuple[bytes, int, bytes]]
) -> Iterator[tuple[bytes, int, bytes]]:
    return itertools.chain([batch], rest)
