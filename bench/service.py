"""The service beside what it stands on: a socket and a memory copy.

Kept here: the service and both echoes run in processes of their own, and what is compared is asked
in turn over connections of one kind, by one plain loop: a whole LOOKUP is sent, its answer read,
nothing else. Where there are two processors the asking side has the first and all that answer have
the second, as an engine and a service have; left to the kernel, one way shares a processor with who
asks, and another waits for an idle one to wake. The echo sends back the bytes it got; "the same
bytes" sends back as many as a LOOKUP does, which is the least that any answer could cost. Reads
through the pool are those of ``Client.load``: a lease, the copy, the look whether the connection
stands, the release; the memory copy moves as many bytes between other memory of the same size, in
one thread.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.measure import (
    LIMIT,
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Rounds,
    Sizes,
    Target,
    no_collection,
    ratio,
)
from radix.groups import Group
from radix.keys import Namespace
from radix.keysets import hash_keys
from radix.service import Client
from radix.service.opening import declared
from radix.service.protocol import (
    HEADER_BYTES,
    Flag,
    Frame,
    Op,
    Splitter,
    encode,
    text_of,
)
from tiers.host import AdoptedTier
from tiers.views import copy_blocks

PAGE_TOKENS = 16
LOOKUP, ECHO, SAME = "LOOKUP of 4,096 tokens", "socket echo", "socket, the same bytes"
LATE = "99th of 100"
PIPELINED = "pipelined LOOKUPs of 256 tokens"
READ, COPY = "read through the pool", "memory copy"
MANY = "LOOKUP, 64 clients and a writer"
RATE = "LOOKUPs of 64 clients and a writer"
GROUPS = (Group.full("kv", 4096),)


@contextmanager
def _running(processor: int | None, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.serving", *arguments],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        start_new_session=True,  # Ctrl-C is for this process, which ends it
    )
    try:
        if processor is not None:
            os.sched_setaffinity(process.pid, {processor})
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"bench.serving {arguments[0]} ended")
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def _apart() -> Iterator[int | None]:
    """This process on a processor of its own; the number of the one for those that answer, None
    where there is but one.
    """
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        yield None
        return
    first, second = sorted(mine)[:2]
    os.sched_setaffinity(0, {first})
    try:
        yield second
    finally:
        os.sched_setaffinity(0, mine)


def _connected(path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(path)
    return link


def _answers(link: socket.socket, count: int) -> list[Frame]:
    splitter = Splitter()
    frames: list[Frame] = []
    while len(frames) < count:
        frames += splitter.feed(link.recv(65536))
    return frames


def _opened(path: str) -> socket.socket:
    """A connection that may ask: its store is number 1."""
    link = _connected(path)
    asked = declared(GROUPS, 16, PAGE_TOKENS, Namespace(), 64 << 20)
    link.sendall(encode(Op.HELLO, 1, text_of({})) + encode(Op.OPEN, 2, text_of(asked)))
    if [frame.status for frame in _answers(link, 2)] != [0, 0]:
        raise RuntimeError("the service did not open a store")
    return link


def _question(tokens: npt.NDArray[np.int32], request: int = 1) -> bytes:
    return bytes(
        encode(
            *(Op.LOOKUP, request, tokens),
            flags=int(Flag.TOKENS),
            store=1,
            items=len(tokens),
            argument=1,
        )
    )


def _round_trips(link: socket.socket, question: bytes, answer: int, times: int) -> list[float]:
    """Microseconds of each."""
    room, clock = memoryview(bytearray(answer)), time.perf_counter_ns
    spans = []
    for _ in range(times):
        start, got = clock(), 0
        link.sendall(question)
        while got < answer:
            got += link.recv_into(room[got:])
        spans.append((clock() - start) / 1e3)
    return spans


def _pipelined(link: socket.socket, question: bytes, times: int, together: int = 64) -> float:
    """Lookups a second, ``together`` in each send, another thread reading the answers."""
    left = times * HEADER_BYTES

    def read() -> None:
        nonlocal left
        room = bytearray(1 << 16)
        while left:
            left -= link.recv_into(room, min(left, len(room)))

    batch, reader = question * together, threading.Thread(target=read)
    start = time.perf_counter()
    reader.start()
    for _ in range(times // together):
        link.sendall(batch)
    reader.join()
    return times / (time.perf_counter() - start)


def _many(path: str, question: bytes, clients: int, seconds: float) -> tuple[list[float], float]:
    """Microseconds of LOOKUPs of so many connections, each with one under way, and their rate;
    meanwhile another client brings blocks as fast as it can.
    """
    links = {link.fileno(): link for link in (_opened(path) for _ in range(clients))}
    watch, began, spans = select.epoll(), dict.fromkeys(links, 0.0), []
    for descriptor in links:
        watch.register(descriptor, select.EPOLLIN)
    done = threading.Event()
    writer = threading.Thread(target=_write, args=(path, done))
    writer.start()
    try:
        start = time.perf_counter()
        for descriptor, link in links.items():
            began[descriptor] = time.perf_counter()
            link.sendall(question)
        while time.perf_counter() - start < seconds:
            for descriptor, _ in watch.poll(1.0):
                links[descriptor].recv(HEADER_BYTES)
                now = time.perf_counter()
                spans.append((now - began[descriptor]) * 1e6)
                began[descriptor] = now
                links[descriptor].sendall(question)
        took = time.perf_counter() - start
    finally:
        done.set()
        writer.join()
        for link in links.values():
            link.close()
        watch.close()
    return spans, len(spans) / took


def _write(path: str, done: threading.Event) -> None:
    blocks = np.zeros((64, 4096), np.uint8)
    with Client(path, GROUPS, pool_bytes=64 << 20) as client:
        number = 0
        while not done.is_set():
            number += 1
            keys = hash_keys([f"{number} {i}".encode() for i in range(64)], "xxh3")
            client.write(keys, blocks)


def _reads(path: str, rounds: Rounds, sizes: Sizes, counts: dict[str, int]) -> None:
    """GB/s of blocks of 1 MiB into rows of memory, through the pool and copied plainly."""
    count, block = sizes["blocks"], 1 << 20
    rows = np.ones((2 * count, block), np.uint8)
    groups = [Group.full("large", block)]
    tier = AdoptedTier([[rows]], "rows")
    tier.attach(tuple(groups), 1, None)
    planes, order = tier.planes(0), np.arange(count, dtype=np.int32)
    keys = hash_keys([f"block {i}".encode() for i in range(count)], "xxh3")
    with Client(path, groups, memory=[[rows]], pool_bytes=2 * count * block) as client:
        if not client.store(keys, order).all():
            raise RuntimeError("the service did not take the blocks")
        for _ in range(sizes["rounds"]):
            for name, subject in ((READ, OURS), (COPY, LIMIT)):
                spans = []
                for _ in range(sizes["reads"]):
                    start = time.perf_counter()
                    if name == READ:
                        good = client.load(keys, order + count)
                        counts["blocks read"] += int(good.sum())
                    else:
                        copy_blocks(planes, order + count, planes, order)
                    spans.append(count * block / 1e9 / (time.perf_counter() - start))
                rounds.add_median(name, subject, "GB/s", spans)


def run_service(sizes: Sizes, place: Place) -> Outcome:
    """LOOKUPs beside an echo, reads beside a copy, many in a pipeline, many clients at once."""
    rounds = Rounds()
    tokens = np.random.default_rng(7).integers(0, 1 << 17, 4096).astype(np.int32)
    question, short = _question(tokens), _question(tokens[:256])
    counts = {"blocks read": 0}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="radix-"))
        paths = {name: f"{folder}/{name}" for name in ("service", "echo", "same")}  # short ones
        pool = f"{sizes['pool_mib']}MiB"
        flags = json.dumps({"socket": paths["service"], "host_bytes": pool, "store_share": "1"})
        other = stack.enter_context(_apart())
        stack.enter_context(_running(other, "service", flags))
        stack.enter_context(
            _running(other, "echo", paths["echo"], str(len(question)), str(len(question)))
        )
        stack.enter_context(
            _running(other, "echo", paths["same"], str(len(question)), str(HEADER_BYTES))
        )
        client = stack.enter_context(
            Client(paths["service"], GROUPS, page_tokens=PAGE_TOKENS, pool_bytes=64 << 20)
        )
        room = client.reserve(tokens=tokens)
        counts["pages stored"] = int(client.commit(room).sum())
        counts["pages hit"] = client.lookup(tokens).pages
        link = _opened(paths["service"])
        ways = [
            (LOOKUP, OURS, link, HEADER_BYTES),
            (ECHO, PLAIN, _connected(paths["echo"]), len(question)),
            (SAME, LIMIT, _connected(paths["same"]), HEADER_BYTES),
        ]
        with no_collection():
            for _ in range(sizes["rounds"]):
                for name, subject, way, answer in ways:
                    spans = _round_trips(way, question, answer, sizes["trips"])
                    rounds.add_median(name, subject, "us", spans)
                    rounds.add(f"{name}, {LATE}", subject, "us", float(np.quantile(spans, 0.99)))
                rounds.add(PIPELINED, OURS, "1/s", _pipelined(link, short, sizes["pipelined"]))
                spans, rate = _many(
                    paths["service"], question, sizes["clients"], sizes["many_ms"] / 1e3
                )
                rounds.add_median(MANY, OURS, "us", spans)
                rounds.add(f"{MANY}, {LATE}", OURS, "us", float(np.quantile(spans, 0.99)))
                rounds.add(RATE, OURS, "1/s", rate)
            _reads(paths["service"], rounds, sizes, counts)
        link.sendall(question)
        counts["pages hit at last"] = _answers(link, 1)[0].items
        for _, _, way, _ in ways:
            way.close()
    found = rounds.rows()
    return Outcome(
        rows=found,
        facts={**counts, "clients": sizes["clients"]},
        ratios=[
            ratio(found, LOOKUP, ECHO),
            ratio(found, LOOKUP, SAME),
            ratio(found, READ, COPY),
        ],
        targets=[
            Target(f"{LOOKUP} / {ECHO}", "at most", 1.5),
            Target(f"{READ} / {COPY}", "at least", 0.8),
            Target(PIPELINED, "at least", 100_000),
        ],
    )


BENCHMARKS = (
    Benchmark(
        "service",
        "The service beside a socket and a memory copy",
        run_service,
        smoke={
            "rounds": 1,
            "trips": 50,
            "pipelined": 640,
            "clients": 8,
            "many_ms": 50,
            "blocks": 4,
            "reads": 2,
            "pool_mib": 256,
        },
        full={
            "rounds": 5,
            "trips": 2000,
            "pipelined": 64_000,
            "clients": 64,
            "many_ms": 1000,
            "blocks": 128,
            "reads": 8,
            "pool_mib": 512,
        },
    ),
)
