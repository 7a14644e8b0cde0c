"""Copies in memory: blocks gathered from a pool that keeps a plane a layer into one that keeps
whole blocks, and scattered back, beside plain copies of the same bytes.

Kept here: all ways move the same number of bytes between the same two memories, which were touched
before; both are checked afterwards; the limit of a round is the fastest plain copy of that round,
whichever it was. A figure is the best of a few calls, since a busy neighbour only ever slows one.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from bench.measure import (
    LIMIT,
    OURS,
    PLAIN,
    Benchmark,
    Outcome,
    Place,
    Ratio,
    Rounds,
    Sizes,
    Target,
    no_collection,
    ratio,
)
from radix._native import ffi, lib
from radix.tier import Urgency
from tiers.copies import plane_array
from tiers.memory import SharedMemory
from tiers.transfer import DEFAULT_THREADS, Planes, TransferEngine

KIB, MIB = 1 << 10, 1 << 20
SEGMENTS = {4 * KIB: 0.75, 16 * KIB: 0.8, 64 * KIB: 0.9, 256 * KIB: 0.9}  # bytes: the least ratio
THREADS = DEFAULT_THREADS
NATIVE = "our own copy of one run"
BEST = "best plain copy"
BEST_THREADED = f"best plain copy, {THREADS} threads"
Call = Callable[[], object]
Slots = npt.NDArray[np.int32]


class Pools:
    """A pool with a plane for each layer, a page-first one of the same size, and the same blocks
    of both in random order. The memory is what host tiers use, and is given back by ``close``.
    """

    def __init__(self, nbytes: int, segment: int, layers: int, seed: int) -> None:
        """About ``nbytes`` a pool, of ``layers`` segments of ``segment`` bytes a block."""
        self.layers, self.segment, self.block = layers, segment, layers * segment
        self.count = nbytes // self.block
        self.nbytes = self.count * self.block
        self._memory = [SharedMemory("bench", self.nbytes, None, THREADS) for _ in range(2)]
        first, second = (memory.address for memory in self._memory)
        plane = self.count * segment
        self.by_layer = plane_array([(first + i * plane, segment, segment) for i in range(layers)])
        self.by_page = plane_array([(second, self.block, self.block)])
        self.ends = [plane_array([(base, self.nbytes, self.nbytes)]) for base in (first, second)]
        shape = (layers, self.count, segment // 8)
        self.pool, self.pages = (_words_at(base, self.nbytes) for base in (first, second))
        self.pool, self.pages = self.pool.view(shape), self.pages.view(shape)
        rng = np.random.default_rng(seed)
        self.rows, self.places = (rng.permutation(self.count).astype(np.int32) for _ in range(2))
        self.pool.copy_(torch.from_numpy(rng.integers(0, 1 << 60, shape)))
        self.zero = np.zeros(1, np.int32)
        self.index = torch.from_numpy(self.rows.astype(np.int64))

    def close(self) -> None:
        """Nobody may use the pools any more."""
        del self.pool, self.pages
        for memory in self._memory:
            memory.close()

    def verify(self) -> int:
        """Gathers into zeroed pages and scatters these into a zeroed pool; the blocks that are as
        numpy says, both ways (all: 2 * count).
        """
        pool = self.pool.numpy()
        before = pool.copy()
        self.pages.zero_()
        self.gather()
        pages = self.pages.numpy().reshape(self.count, self.layers, -1)
        good = (pages[self.places] == before[:, self.rows].swapaxes(0, 1)).all(axis=(1, 2)).sum()
        pool[:] = 0
        self.scatter()
        return int(good + (pool == before).all(axis=(0, 2)).sum())

    # ------------------------------------------------------------------ ways to move them
    def gather(self) -> None:
        """Every block from its layers to its page."""
        _copy(self.by_page, self.places, self.by_layer, self.rows)

    def scatter(self) -> None:
        """Every block from its page to its layers."""
        _copy(self.by_layer, self.rows, self.by_page, self.places)

    def in_one_run(self) -> None:
        """The same bytes as one run, by the same native code."""
        _copy(self.ends[1], self.zero, self.ends[0], self.zero)

    def memcpy(self) -> None:
        """The same bytes as one run."""
        ctypes.memmove(self._memory[1].address, self._memory[0].address, self.nbytes)

    def torch_copy(self) -> None:
        """The same bytes as one run."""
        self.pages.copy_(self.pool)

    def index_select(self) -> None:
        """The same blocks, layer by layer: the result is not page first."""
        torch.index_select(self.pool, 1, self.index, out=self.pages)

    def index_copy(self) -> None:
        """The other way round."""
        self.pool.index_copy_(1, self.index, self.pages)

    def in_threads(self, engine: TransferEngine, call: str) -> Call:
        """The gather, the scatter or the whole run as a job of transfer threads, to its end."""
        target, to, source, origin = {
            "gather": (self.by_page, self.places, self.by_layer, self.rows),
            "scatter": (self.by_layer, self.rows, self.by_page, self.places),
            "run": (self.ends[1], self.zero, self.ends[0], self.zero),
        }[call]

        def run() -> None:
            job = engine.new_job()
            engine.submit_copy(job, Urgency.DEMAND, target, to, source, origin)
            while not (ended := engine.poll()):
                engine.wait(1.0)
            if ended[0].status != lib.RDX_OK:
                raise AssertionError(f"a copy ended with status {ended[0].status}")

        return run


def _words_at(address: int, nbytes: int) -> torch.Tensor:
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.int64)


def _copy(target: Planes, places: Slots, source: Planes, rows: Slots) -> None:
    status = lib.rdx_copy_blocks(
        *(ffi.from_buffer("rdx_plane[]", target), len(target)),
        ffi.from_buffer("int32_t[]", places),
        *(ffi.from_buffer("rdx_plane[]", source), len(source)),
        *(ffi.from_buffer("int32_t[]", rows), len(rows)),
    )
    if status != lib.RDX_OK:
        raise AssertionError(f"a copy ended with status {status}")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch copies with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_speeds(calls: Mapping[str, Call], nbytes: int, repeats: int) -> dict[str, float]:
    """GB/s of the fastest of ``repeats`` calls of each; they take turns."""
    clock, best = time.perf_counter_ns, dict.fromkeys(calls, 1 << 62)
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return {name: nbytes / took for name, took in best.items()}


def _round(pools: Pools, engine: TransferEngine | None, title: str, repeats: int) -> Rows:
    """One sample of each row of these pools: name -> (whose, GB/s)."""
    plain: dict[str, Call] = {
        "memcpy": pools.memcpy,
        NATIVE: pools.in_one_run,
        "torch copy_": pools.torch_copy,
    }
    ours: dict[str, Call] = {"gather": pools.gather, "scatter": pools.scatter}
    ways: dict[str, Call] = {"index_select": pools.index_select, "index_copy_": pools.index_copy}
    with torch_threads(1):
        found = best_speeds({**plain, **ours, **ways}, pools.nbytes, repeats)
    rows: Rows = {f"{title}: {name}": (OURS, found[name]) for name in ours}
    rows[f"{title}: {BEST}"] = (LIMIT, max(found[name] for name in plain))
    rows |= {f"{title}: {name}": (PLAIN, found[name]) for name in (*plain, *ways)}
    if engine is None:
        return rows
    threaded = {name: pools.in_threads(engine, name) for name in ("gather", "scatter", "run")}
    with torch_threads(THREADS):
        found = best_speeds({**threaded, "torch": pools.torch_copy}, pools.nbytes, repeats)
    for name in ours:
        rows[f"{title}: {name}, {THREADS} threads"] = (OURS, found[name])
    rows[f"{title}: {BEST_THREADED}"] = (LIMIT, max(found["run"], found["torch"]))
    return rows


Rows = dict[str, tuple[str, float]]


def run_copies(sizes: Sizes, place: Place) -> Outcome:
    """All segment sizes: pools beyond every cache, with one thread and with those of a tier, and
    pools that fit into one, with one thread.
    """
    rounds = Rounds()
    facts: dict[str, int | str] = {}
    ratios: list[tuple[str, str]] = []
    targets: list[Target] = []
    engine = TransferEngine(THREADS)
    for kind, nbytes in (("cold", sizes["cold_bytes"]), ("hot", sizes["hot_bytes"])):
        for segment, least in SEGMENTS.items():
            title = f"{kind}, {segment // KIB} KiB"
            layers = min(sizes["layers"], nbytes // segment)
            pools = Pools(nbytes, segment, layers, seed=segment)
            try:
                with no_collection():
                    for _ in range(sizes["rounds"]):
                        threads = engine if kind == "cold" else None
                        repeats = sizes[f"{kind}_repeats"]
                        for name, (whose, speed) in _round(pools, threads, title, repeats).items():
                            rounds.add(name, whose, "GB/s", speed)
                facts[f"{title}: blocks"] = pools.count
                facts[f"{title}: blocks as they should be"] = pools.verify()
            finally:
                pools.close()
            for way in ("gather", "scatter"):
                ratios.append((f"{title}: {way}", f"{title}: {BEST}"))
                targets.append(Target(" / ".join(ratios[-1]), "at least", least))
                if kind == "cold":
                    name = f"{title}: {way}, {THREADS} threads"
                    ratios.append((name, f"{title}: {BEST_THREADED}"))
    engine.close()
    found = rounds.rows()
    pairs: list[Ratio] = [ratio(found, name, to) for name, to in ratios]
    return Outcome(rows=found, facts=facts, ratios=pairs, targets=targets)


BENCHMARKS = (
    Benchmark(
        "copies",
        "Gather and scatter in host memory, blocks in random order",
        run_copies,
        smoke={
            "cold_bytes": 5 * MIB,
            "hot_bytes": MIB,
            "layers": 4,
            "rounds": 2,
            "cold_repeats": 1,
            "hot_repeats": 1,
        },
        full={
            "cold_bytes": 200 * MIB,
            "hot_bytes": MIB,
            "layers": 16,
            "rounds": 7,
            "cold_repeats": 3,
            "hot_repeats": 30,
        },
    ),
)
