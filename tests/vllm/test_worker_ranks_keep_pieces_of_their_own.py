"""Workers of an engine are processes of their own: each keeps its piece of every slot in one pool,
all of them checked to have one geometry, and what a process leaves in shared memory when it dies is
harmless and swept away.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from radix.engines.vllm.geometry import (
    PREFIX,
    Geometry,
    Published,
    published,
    shared_name,
    sweep,
)
from radix.engines.vllm.options import Options
from radix.engines.vllm.spec import RadixOffloadingSpec
from radix.errors import LayoutMismatchError, TierUnavailableError
from tests.vllm.workerrig import (
    HOST_BYTES,
    Rig,
    blocks_spec,
    caches_of,
    config_of,
    slots_spec,
)
from tiers.memory import SharedMemory

PAGES = [[(0, 560), (1, 560)], [(0, 1024)]]
SHARED = Path("/dev/shm")
ROOT = Path(__file__).resolve().parents[2]


def one_rank(engine_id: str, rank: int, pages: list, pipe: Connection) -> None:
    """A worker process: it makes its worker as the engine does, then does what it is told."""
    config = replace(config_of(group_count=len(pages), world=2, rank=rank), engine_id=engine_id)
    caches = caches_of(pages, [1024, 1024], 16, seed=rank)
    try:
        worker = RadixOffloadingSpec(config).get_worker(caches)
    except LayoutMismatchError as error:
        pipe.send(str(error))
        return
    rig = Rig(worker, caches, rank, 1)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        job, storing, blocks, slots = order
        if storing:
            worker.submit_store(job, blocks_spec(*blocks), slots)
        else:
            worker.submit_load(job, slots, blocks_spec(*blocks))
        rig.finish(job)
        pipe.send([[rig.block(g, n) for n in ids] for g, (ids, _) in enumerate(blocks)])
    worker.shutdown()
    pipe.send("over")


class Ranks:
    """Two worker processes of one engine."""

    def __init__(self, engine_id: str, pages: tuple[list, list]) -> None:
        # Not forked from here, whose threads would not come along; the engine is imported once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.vllm.workerrig", "radix.engines.vllm.spec"])
        self.pipes, self.processes = [], []
        for rank in range(2):
            mine, theirs = context.Pipe()
            process = context.Process(target=one_rank, args=(engine_id, rank, pages[rank], theirs))
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)

    def ask(self, order: object) -> list:
        for pipe in self.pipes:
            pipe.send(order)
        return [self.hear(rank) for rank in range(2)]

    def hear(self, rank: int) -> object:
        assert self.pipes[rank].poll(120), f"rank {rank} is silent"
        return self.pipes[rank].recv()

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join(60)


@pytest.fixture
def ranks_of() -> Callable[..., Ranks]:
    started: list[Ranks] = []

    def start(engine_id: str, *pages: list) -> Ranks:
        started.append(Ranks(engine_id, (pages[0], pages[-1])))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()


def test_two_processes_write_and_read_their_own_pieces_of_one_slot(
    ranks_of: Callable[..., Ranks],
) -> None:
    engine_id = config_of().engine_id
    ranks = ranks_of(engine_id, PAGES)
    geometry = published(engine_id)
    host = geometry.host(Options(HOST_BYTES), engine_id)
    host.attach(geometry.groups(), 1, None)
    try:
        assert [ranks.hear(rank) for rank in range(2)] == ["ready", "ready"]
        slots = [host.reserve(group, 2) for group in range(2)]
        stored = ranks.ask((1, True, (([3, 4], 0), ([5, 6], 0)), slots_spec(*slots)))
        assert stored[0] != stored[1]
        for group in range(2):
            (plane,) = host.planes(group)
            for index, slot in enumerate(slots[group]):
                at = int(plane["base"]) + int(slot) * int(plane["stride"])
                found = read(at, int(plane["bytes"]))
                assert found == stored[0][group][index] + stored[1][group][index]
        loaded = ranks.ask((2, False, (([8, 9], 0), ([10, 11], 0)), slots_spec(*slots)))
        assert loaded == stored
        assert ranks.ask(None) == ["over", "over"]
    finally:
        host.close()
    assert not left_over(engine_id)


def read(address: int, nbytes: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, nbytes)


def left_over(engine_id: str) -> list[Path]:
    stem = shared_name(engine_id, "")
    return sorted(SHARED.glob(f"{stem}*"))


def test_a_rank_with_other_pages_is_refused_by_name(ranks_of: Callable[..., Ranks]) -> None:
    other = [[(0, 560), (1, 512)], [(0, 1024)]]
    ranks = ranks_of(config_of().engine_id, PAGES, other)
    assert ranks.hear(0) == "ready"
    refusal = ranks.hear(1)
    assert "pages is ((560, 512), (1024,)) on rank 1 and ((560, 560), (1024,)) on rank 0" in refusal


def test_what_a_killed_worker_left_is_swept_and_a_live_ones_stays(
    ranks_of: Callable[..., Ranks],
) -> None:
    dead_id, live_id = config_of().engine_id, config_of().engine_id
    dead, live = ranks_of(dead_id, PAGES), ranks_of(live_id, PAGES)
    for ranks in (dead, live):
        assert [ranks.hear(rank) for rank in range(2)] == ["ready", "ready"]
    for process in dead.processes:
        os.kill(process.pid, signal.SIGKILL)
        process.join(60)
    assert len(left_over(dead_id)) == 2
    assert sweep() >= 2
    assert not left_over(dead_id)
    assert len(left_over(live_id)) == 2
    assert live.ask(None) == ["over", "over"]


def test_a_pool_that_is_just_made_is_not_swept_by_another_engines_start() -> None:
    """Its workers and its scheduler would map two files of one name, each its own."""
    name = shared_name(config_of().engine_id, "pool")
    over = threading.Event()

    def start_others() -> None:
        while not over.is_set():
            sweep()

    others = [threading.Thread(target=start_others, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for attempt in range(1500):
            first = SharedMemory("host", 4096, name, 1)
            second = SharedMemory("host", 4096, name, 1)
            try:
                assert (first.created, second.created) == (True, False), f"attempt {attempt}"
            finally:
                second.close()
                first.close()
    finally:
        over.set()
        for other in others:
            other.join()


def test_what_a_dead_engine_of_the_same_id_published_is_not_read(tmp_path: Path) -> None:
    geometry = Geometry(1, 1, (0,), ((64,),))
    dead = tmp_path / shared_name("again", "geometry")
    dead.write_text(replace(geometry, world=2).to_json())
    with pytest.raises(TierUnavailableError, match="no worker has published"):
        published("again", timeout_s=0.05, folder=tmp_path)
    told = Published(geometry, "again", tmp_path)
    assert published("again", 0.0, tmp_path) == geometry
    told.close()


def test_a_process_that_ends_without_a_word_leaves_no_names() -> None:
    engine_id = config_of().engine_id
    script = (
        "from dataclasses import replace\n"
        "from radix.engines.vllm.spec import RadixOffloadingSpec\n"
        "from tests.vllm.test_worker_ranks_keep_pieces_of_their_own import left_over\n"
        "from tests.vllm.workerrig import caches_of, config_of\n"
        f"config = replace(config_of(), engine_id={engine_id!r})\n"
        "worker = RadixOffloadingSpec(config).get_worker(caches_of([[(0, 64)]], [64], 4, 0))\n"
        "assert len(left_over(config.engine_id)) == 2\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300, cwd=ROOT)
    assert not left_over(engine_id)


def test_an_engine_id_that_a_live_engine_has_is_refused(tmp_path: Path) -> None:
    geometry = Geometry(1, 1, (0,), ((64,),))
    first = Published(geometry, "same", tmp_path)
    with pytest.raises(TierUnavailableError, match="engine_id 'same' is in use"):
        Published(geometry, "same", tmp_path)
    first.close()
    Published(geometry, "same", tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_a_geometry_that_nobody_publishes_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailableError, match=f"no worker has published .*{PREFIX}"):
        published("nobody", timeout_s=0.05, folder=tmp_path)


def test_a_published_geometry_is_read_as_it_was(tmp_path: Path) -> None:
    geometry = Geometry(2, 3, (0, 4), ((64, 32), (96,)), (("device", "cpu"), ("vllm", "1")))
    told = Published(geometry, "it", tmp_path)
    assert published("it", 0.0, tmp_path) == geometry
    told.close()


@pytest.mark.parametrize("text", ["[]", "{}", '{"world": 1}', "", '{"world": 0}'])
def test_other_text_is_no_geometry(text: str) -> None:
    with pytest.raises(ValueError):
        Geometry.of_json(text)


def test_names_in_shared_memory_are_plain_and_of_one_engine() -> None:
    assert shared_name("a", "pool") == "radix-vllm-ca978112ca1bbdca-pool"
    assert shared_name("../b", "pool") != shared_name("../c", "pool")
    assert "/" not in shared_name("../b", "pool")
