"""The remote tier over a real Redis server, beside redis-py alone with the same bytes.

Kept here: the server is a process of its own on the loopback device, empty before each way has its
turn and without persistence; all ways move the same blocks in the same batches, and have them in
the same rows at the end. The tier names and seals each block, asks first whether it is there, and
verifies what comes back; the plain ways do nothing of that. "Two connections": two threads, as the
tier has for each direction.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import redis

from bench.measure import OURS, PLAIN, Benchmark, Outcome, Place, Rounds, Sizes, Skip, ratio
from radix.groups import Group
from radix.tier import Records, Transfer, Urgency
from tiers.host import AdoptedTier
from tiers.remote import RemoteTier

KIB = 1 << 10
PAGE_BYTES = 64
START_S = 30.0
STORE, LOAD = "store", "load"
TIER = "remote tier"
ONE, TWO = "MSET and MGET, one connection", "SET and GET pipelines, two connections"
WAYS = (TIER, ONE, TWO)
Rows = npt.NDArray[np.uint8]


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, str]]:
    """Its port and version, once it answers."""
    program = shutil.which("redis-server")
    if program is None:
        raise Skip("no redis-server is installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        with closing(redis.Redis(port=port)) as client:
            end = time.monotonic() + START_S
            while True:
                try:
                    info: Any = client.info("server")
                    break
                except redis.ConnectionError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise Skip("redis-server does not answer") from None
                    time.sleep(0.02)
        yield port, str(info["redis_version"])
    finally:
        process.kill()
        process.wait()


class TierWay:
    """The tier below memory; two batches are under way in each direction."""

    def __init__(self, port: int, rows: Rows, batch: int) -> None:
        group = Group.full("kv", rows.shape[1])
        self._rows, self._batch, self._job = rows, batch, 0
        self._upper = AdoptedTier([[rows]], "memory")
        self._upper.attach((group,), PAGE_BYTES, None)
        self.tier = RemoteTier(f"redis://127.0.0.1:{port}", blocks=2 * len(rows), deadline_s=30.0)
        self.tier.attach((group,), PAGE_BYTES, self._upper)
        self._slots: dict[int, npt.NDArray[np.int32]] = {}

    def store(self) -> None:
        """Every row, under names that no round before had."""
        self._run(self._stored, len(self._rows))

    def load(self) -> None:
        """Every row again."""
        self._run(self._loaded, len(self._rows))

    def _run(self, begin: Callable[[npt.NDArray[np.int32]], None], count: int) -> None:
        waiting = 0
        for first in range(0, count, self._batch):
            begin(np.arange(first, min(first + self._batch, count), dtype=np.int32))
            waiting += 1
            while waiting >= 2:
                waiting -= self._settle()
        while waiting:
            waiting -= self._settle()

    def _stored(self, rows: npt.NDArray[np.int32]) -> None:
        self._job += 1
        slots = self._slots[int(rows[0])] = self.tier.reserve(0, len(rows))
        keys = np.zeros((len(rows), 16), np.uint8)
        keys[:, :8] = np.full((len(rows), 1), self._job, np.uint64).view(np.uint8)
        keys[:, 8:12] = rows[:, None].view(np.uint8)
        parents, pages = np.zeros_like(keys), np.zeros((len(rows), PAGE_BYTES), np.uint8)
        records = Records(b"bench", keys, parents, pages, rows.astype(np.int64))
        transfer = Transfer(self._job, 0, rows, slots, Urgency.STORE, records)
        self.tier.store(transfer, self._upper)

    def _loaded(self, rows: npt.NDArray[np.int32]) -> None:
        self._job += 1
        slots = self._slots[int(rows[0])]
        transfer = Transfer(self._job, 0, rows, slots, Urgency.DEMAND, None)
        self.tier.load(transfer, self._upper)

    def _settle(self) -> int:
        self.tier.wait(30.0)
        done = self.tier.poll()
        for each in done:
            if each.error is not None or not each.good.all():
                raise RuntimeError(f"a transfer failed: {each.error}")
        return len(done)

    def clear(self) -> None:
        """Gives the slots back: the values are gone."""
        for slots in self._slots.values():
            self.tier.commit(0, slots)
            self.tier.free(0, slots)
        self._slots.clear()
        self.tier.flush()

    def close(self) -> None:
        """Ends its threads."""
        self.tier.close()
        self._upper.close()


class PlainWay:
    """redis-py alone, with so many connections, each in a thread of its own."""

    def __init__(self, port: int, rows: Rows, batch: int, connections: int) -> None:
        self._rows, self._batch = rows, batch
        self._clients = [redis.Redis(port=port, protocol=2) for _ in range(connections)]

    def store(self) -> None:
        """Every row."""
        self._run(self._stored)

    def load(self) -> None:
        """Every row again, into its place."""
        self._run(self._loaded)

    def _run(self, work: Callable[[redis.Redis, Sequence[int]], None]) -> None:
        batches = [
            range(first, min(first + self._batch, len(self._rows)))
            for first in range(0, len(self._rows), self._batch)
        ]

        def mine(number: int) -> None:
            for batch in batches[number :: len(self._clients)]:
                work(self._clients[number], batch)

        threads = [
            threading.Thread(target=mine, args=(number,)) for number in range(len(self._clients))
        ]
        for thread in threads[1:]:
            thread.start()
        mine(0)
        for thread in threads[1:]:
            thread.join()

    def _stored(self, client: redis.Redis, batch: Sequence[int]) -> None:
        if len(self._clients) == 1:
            client.mset({f"plain:{row}": self._rows[row].data for row in batch})
            return
        pipe = client.pipeline(transaction=False)
        for row in batch:
            pipe.set(f"plain:{row}", self._rows[row].data)
        pipe.execute()

    def _loaded(self, client: redis.Redis, batch: Sequence[int]) -> None:
        values: Any
        if len(self._clients) == 1:
            values = client.mget([f"plain:{row}" for row in batch])
        else:
            pipe = client.pipeline(transaction=False)
            for row in batch:
                pipe.get(f"plain:{row}")
            values = pipe.execute()
        for row, value in zip(batch, values, strict=True):
            self._rows[row] = np.frombuffer(value, np.uint8)

    def clear(self) -> None:
        """Nothing is held here."""

    def close(self) -> None:
        """Ends the connections."""
        for client in self._clients:
            client.close()


def _way(name: str, port: int, rows: Rows, batch: int) -> TierWay | PlainWay:
    if name == TIER:
        return TierWay(port, rows, batch)
    return PlainWay(port, rows, batch, 1 if name == ONE else 2)


def run_remote(sizes: Sizes, place: Place) -> Outcome:
    """Each size of block in turn; of each a batch of 2 MiB at most."""
    rounds, facts = Rounds(), {"wrong bytes": 0, "blocks stored": 0, "blocks loaded": 0}
    names = {64: "64 KiB", 1024: "1 MiB"}
    place.data.mkdir(parents=True, exist_ok=True)
    with _server(place.data) as (port, told), closing(redis.Redis(port=port)) as client:
        for kib, label in names.items():
            _measure(label, kib * KIB, port, client, sizes, rounds, facts)
    found = rounds.rows()
    pairs = [
        (f"{label}: {what}, {TIER}", f"{label}: {what}, {way}")
        for label in names.values()
        for what in (STORE, LOAD)
        for way in (ONE, TWO)
    ]
    return Outcome(
        rows=found,
        facts=facts,
        ratios=[ratio(found, name, to) for name, to in pairs],
        versions={"redis": told, "redis-py": version("redis")},
    )


def _empty(client: redis.Redis) -> None:
    """Nothing is left but the tier's epoch: without that it would begin another one, and know
    nothing that it stored before.
    """
    names = [name for name in client.scan_iter(count=1000) if b"epoch" not in name]
    if names:
        client.delete(*names)


def _measure(
    label: str,
    block_bytes: int,
    port: int,
    client: redis.Redis,
    sizes: Sizes,
    rounds: Rounds,
    facts: dict[str, int],
) -> None:
    count = sizes["mib"] * KIB * KIB // block_bytes
    batch = max(1, (8 << 20) // block_bytes // 4)
    rng = np.random.default_rng(block_bytes)
    wanted = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    rows = wanted.copy()
    gigabytes = rows.nbytes / 1e9
    with ExitStack() as stack:
        ways = {name: stack.enter_context(closing(_way(name, port, rows, batch))) for name in WAYS}
        for _ in range(sizes["rounds"]):
            for name, way in ways.items():
                _empty(client)
                subject = OURS if name == TIER else PLAIN
                for what, work in ((STORE, way.store), (LOAD, way.load)):
                    start = time.perf_counter()
                    work()
                    took = time.perf_counter() - start
                    rounds.add(f"{label}: {what}, {name}", subject, "GB/s", gigabytes / took)
                    if what == STORE:
                        rows[:] = 0
                facts["wrong bytes"] += int(np.count_nonzero(rows != wanted))
                rows[:] = wanted
                way.clear()
        tier = ways[TIER]
        assert isinstance(tier, TierWay)
        facts["blocks stored"] += tier.tier.counts.stored
        facts["blocks loaded"] += tier.tier.counts.loaded


BENCHMARKS = (
    Benchmark(
        "remote",
        "The remote tier over Redis, beside redis-py alone",
        run_remote,
        smoke={"rounds": 1, "mib": 8},
        full={"rounds": 7, "mib": 64},
    ),
)
