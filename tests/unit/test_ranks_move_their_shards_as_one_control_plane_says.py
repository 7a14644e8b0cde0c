"""One control plane, four rank processes over torch.distributed: the plans are frozen values, each
rank moves the bytes of its shards, the minimum of their reports is acted upon, and one process owns
the disk. A block is there once all who write it have acknowledged; read at another degree, every
rank holds its share byte for byte (C101, C103, C104; I22, I23, I24). And four processes that each
run the whole control plane stay identical, whatever their hash seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.ranks import Ranks
from radix.request import Request
from radix.shards import Parallelism
from tests.rankprocs import BLOCKS, DEVICE, HOST_BYTES, RANKS, SEGMENT, Team, model, team
from tests.shardrig import P
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan
from tiers.host import HostTier
from tiers.index import IndexTier

PROMPT = np.arange(BLOCKS * P + 1, dtype=np.int32)
STATE = 2  # the number of the group
PATIENCE = 4000


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Four processes for all tests of this file: to start one takes seconds."""
    with team(tmp_path_factory.mktemp("ranks")) as some:
        yield some


def _cache(ranks: Team, folder: Path, file_name: str) -> PrefixCache:
    plans = Ranks(ranks.exchange)
    host = HostTier(HOST_BYTES, file_name=file_name, segment_bytes=SEGMENT, verify=True)
    disk = DiskTier(folder / "disk", limit_bytes=32 << 20, segment_bytes=SEGMENT)
    tiers = [plans.device(IndexTier(DEVICE)), plans.host(host), disk]
    return PrefixCache(model(), tiers, page_tokens=P, events=True)


def _idle(cache: PrefixCache) -> None:
    for _ in range(PATIENCE):
        cache.wait(0.002)
        cache.poll()
        if not cache.transfers.jobs and not cache.requests.works:
            return
    raise AssertionError(f"never idle: {cache.transfers.jobs}")


def _ready(cache: PrefixCache, request: Request) -> Request:
    for _ in range(PATIENCE):
        if request.ready:
            cache.poll()  # copies that were ordered are carried
            return request
        cache.wait(0.002)
        cache.poll()
    raise AssertionError(f"never ready: {cache.transfers.jobs}")


def _compute(ranks: Team, request: Request) -> None:
    """The forward: every rank writes its share of what the hit does not cover."""
    first = request.hit_tokens // P
    pages = list(range(first, BLOCKS))
    for group in (0, 1):
        slots = request.slots(group)[first:BLOCKS].tolist()
        ranks.tell("write", group, slots, pages)
    ranks.tell("write", STATE, [request.running(STATE)], [BLOCKS - 1])


def _look(ranks: Team, request: Request) -> None:
    """Every rank holds its share of the hit, byte for byte."""
    for group in (0, 1):
        slots = request.slots(group)[:BLOCKS].tolist()
        assert ranks.tell("holds", group, slots, list(range(BLOCKS))) == [True] * RANKS
    running = [request.running(STATE)]
    assert ranks.tell("holds", STATE, running, [BLOCKS - 1]) == [True] * RANKS


def _serve(ranks: Team, cache: PrefixCache) -> None:
    request = _ready(cache, cache.admit(PROMPT))
    _compute(ranks, request)
    request.snapshot(BLOCKS * P)
    cache.poll()
    request.computed(BLOCKS * P)
    request.finish()
    _idle(cache)


def _resident(cache: PrefixCache, tier: int) -> list[int]:
    tree = cache.tree
    return [
        int(tree.column_stats(tree.column(group, tier)).resident)
        for group in range(len(cache.groups))
    ]


def _name(what: str) -> str:
    return f"radix-ranks-{os.getpid()}-{what}"


@pytest.mark.parametrize(
    "reader", [Parallelism(2, 2), Parallelism(1, 4), Parallelism(4)], ids=["2x2", "1x4", "4"]
)
def test_what_four_ranks_stored_is_loaded_at_another_degree(
    ranks: Team, tmp_path: Path, reader: Parallelism
) -> None:
    with closing(_cache(ranks, tmp_path, _name("w"))) as cache:
        ranks.open(Parallelism(4), _name("w"))
        _serve(ranks, cache)
        assert _resident(cache, 1) == _resident(cache, 2) == [BLOCKS, BLOCKS, 1]
        blocks = sum(cache.metrics.get("store", "blocks", "host", g.name) for g in cache.groups)
        assert blocks == 2 * BLOCKS + 1, "each block is counted once, whoever wrote what of it"
        cache.check()
        ranks.tell("close")
    with closing(_cache(ranks, tmp_path, _name("r"))) as cache:
        ranks.open(reader, _name("r"))
        request = _ready(cache, cache.admit(PROMPT))
        assert request.hit_tokens == BLOCKS * P and set(request.sources) == {"disk"}
        _look(ranks, request)
        request.finish()
        _idle(cache)
        cache.check()
        ranks.tell("close")


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_block_that_one_writer_did_not_store_is_not_there(
    ranks: Team, tmp_path: Path, rank: int
) -> None:
    """C101 (vllm#49499): every group needs the shards of all its writers. The state is no replica
    anywhere, the latent is one everywhere: of that the others' blocks count up to the lost one.
    """
    with closing(_cache(ranks, tmp_path, _name("f"))) as cache:
        every = dict.fromkeys(range(1, 10), Fault.FAIL)
        ranks.open(Parallelism(4), _name("f"), {rank: FaultPlan(script={"store": every})})
        _serve(ranks, cache)
        kv, _, state = _resident(cache, 1)
        assert (kv, state) == (0, 0), "a block is there that one of its writers lacks"
        assert cache.match(PROMPT)[0].hit_pages == BLOCKS, "the device still has it"
        cache.check()
        ranks.tell("close")


def test_a_load_that_fails_on_one_rank_shortens_the_hit(ranks: Team, tmp_path: Path) -> None:
    with closing(_cache(ranks, tmp_path, _name("l"))) as cache:
        ranks.open(Parallelism(4), _name("l"), {2: FaultPlan(script={"load": {1: Fault.FAIL}})})
        _serve(ranks, cache)
        for group in range(len(cache.groups)):
            cache.evict(group, BLOCKS)
        request = _ready(cache, cache.admit(PROMPT))
        assert request.hit_tokens == 0
        _compute(ranks, request)
        request.abort()
        _idle(cache)
        request = _ready(cache, cache.admit(PROMPT))
        assert request.hit_tokens == BLOCKS * P, "it was refused for ever"
        _look(ranks, request)
        request.finish()
        _idle(cache)
        cache.check()
        ranks.tell("close")


def test_replicas_in_processes_of_other_hash_seeds_stay_identical(ranks: Team) -> None:
    taken = ranks.tell("replicas", [31, 32], 60)
    assert taken == [taken[0]] * RANKS and min(taken[0]) > 10, taken
