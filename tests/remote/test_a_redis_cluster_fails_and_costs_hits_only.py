"""Real nodes of a Redis cluster are killed, stopped, restarted and filled under caches that use
them: what that costs are hits. Requests end, their bytes are right, a dead backend is asked
nothing, and what comes back is used again without anybody's help (C117).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from radix.events import TierEvent
from radix.tier import TierMode
from tests.remote import peer
from tests.remote.watched import Watched
from tests.remoterig import NODES, RedisNodes, redis_nodes, until
from tiers.remote import backend_of

PAGES = 8
ALL = PAGES * peer.PAGE
QUICK = {"deadline_s": 0.3, "retry_s": 0.05, "epoch_s": 0.1}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """One cluster for the file."""
    with redis_nodes() as started:
        yield started


@pytest.fixture(autouse=True)
def _whole(nodes: RedisNodes) -> Iterator[None]:
    """Whatever a test did to the nodes, the next one finds all of them."""
    yield
    for server in nodes.servers:
        if server.process is None:
            server.start()
        server.send(signal.SIGCONT)
    until("all nodes take values", nodes.is_whole)


def _polled(cache: peer.RankCache, what: str, met: Callable[[], bool]) -> None:
    def turn() -> bool:
        cache.poll()
        return met()

    until(what, turn)


def test_a_node_that_is_killed_costs_its_own_values(nodes: RedisNodes) -> None:
    with peer.RankCache(nodes.url, **QUICK) as cache:
        for seed in range(10, 14):
            cache.compute(seed, PAGES)
        stored = cache.remote.counts.stored
        assert stored == 4 * PAGES
        cache.reset(["device"])
        nodes.servers[1].kill()
        hits = [cache.compute(seed, PAGES) for seed in range(10, 14)]  # bytes are looked at
        assert min(hits) < ALL and sum(hits) > 0, "a third of the names is away"
        assert cache.remote.mode is TierMode.ON
        assert cache.remote.counts.outages == 0
        assert not [event for event in cache.poll() if isinstance(event, TierEvent)]
        nodes.servers[1].start()
        _polled(cache, "it takes values again", nodes.is_whole)
        for seed in range(14, 18):
            cache.compute(seed, PAGES)
        cache.reset(["device"])
        time.sleep(2 * QUICK["epoch_s"])
    with peer.RankCache(nodes.url, **QUICK) as another:
        found = [another.found(seed, PAGES) for seed in range(14, 18)]
        assert all(right for _, right in found)
        assert sum(hit for hit, _ in found) > 0


def test_a_dead_cluster_is_asked_nothing_and_comes_back(nodes: RedisNodes) -> None:
    watched = Watched(backend_of(nodes.url))
    with peer.RankCache(watched, **QUICK) as cache:
        cache.compute(20, PAGES)
        cache.reset(["device"])
        for server in nodes.servers:
            server.kill()
        assert cache.compute(20, PAGES) == 0
        assert cache.compute(51, PAGES) == 0
        _polled(cache, "the tier is off", lambda: cache.remote.mode is TierMode.OFF)
        before = {name: watched.calls[name] for name in ("get", "put", "exists")}
        for seed in range(21, 41):
            assert cache.compute(seed, PAGES) == 0
        assert {name: watched.calls[name] for name in before} == before
        assert cache.remote.counts.outages == 1
        for server in nodes.servers:
            server.start()
        _polled(cache, "the tier is on again", lambda: cache.remote.mode is TierMode.ON)
        _polled(cache, "the cluster takes values", nodes.is_whole)
        cache.compute(50, PAGES)
        cache.reset(["device"])
        assert cache.compute(50, PAGES) == ALL


def test_a_cluster_that_dies_between_the_answer_and_the_load_shortens_the_hit(
    nodes: RedisNodes,
) -> None:
    with peer.RankCache(nodes.url) as writer:
        writer.compute(60, PAGES)
    with peer.RankCache(nodes.url, **QUICK) as cache:
        prompt = peer.prompt_of(60, PAGES)
        cache.admit(prompt).abort()
        _polled(cache, "it is found", lambda: cache.explain(prompt).hit_tokens == ALL)
        for server in nodes.servers:
            server.kill()
        assert cache.compute(60, PAGES) == 0


@pytest.mark.parametrize("stopped", [1, NODES])
def test_nodes_that_are_stopped_keep_nobody_waiting(nodes: RedisNodes, stopped: int) -> None:
    seeds = range(70 + 10 * stopped, 74 + 10 * stopped)
    with peer.RankCache(nodes.url, **QUICK) as cache:
        for seed in seeds:
            cache.compute(seed, PAGES)
        cache.reset(["device"])
        for server in nodes.servers[:stopped]:
            server.send(signal.SIGSTOP)
        hits = [cache.compute(seed, PAGES) for seed in seeds]
        assert min(hits) < ALL
        for server in nodes.servers[:stopped]:
            server.send(signal.SIGCONT)
        _polled(cache, "the tier is on", lambda: cache.remote.mode is TierMode.ON)
        _polled(cache, "all nodes take values", nodes.is_whole)

        def served() -> bool:
            cache.compute(seeds[0], PAGES)
            cache.reset(["device"])
            return cache.compute(seeds[0], PAGES) == ALL

        until("what is stored is hit again", served)


def test_a_tier_that_opens_before_its_cluster_is_off_until_that_answers(nodes: RedisNodes) -> None:
    for server in nodes.servers:
        server.kill()
    with peer.RankCache(nodes.url, **QUICK) as cache:
        assert cache.remote.mode is TierMode.OFF
        assert cache.compute(110, PAGES) == 0
        for server in nodes.servers:
            server.start()
        _polled(cache, "the tier is on", lambda: cache.remote.mode is TierMode.ON)
        _polled(cache, "all nodes take values", nodes.is_whole)
        cache.compute(111, PAGES)
        cache.reset(["device"])
        assert cache.compute(111, PAGES) == ALL


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_a_full_cluster_declines_or_drops_what_is_old(nodes: RedisNodes, policy: str) -> None:
    # About half of what is written fits. The room is many times what a node takes for the
    # buffers of its clients, which count against it: with less, all values had to go for those.
    prompts, room_bytes = 200, 480 << 10
    nodes.clear()
    for node in range(NODES):
        with nodes.client(node) as client:
            used = int(client.info("memory")["used_memory"])
            client.config_set("maxmemory-policy", policy)
            client.config_set("maxmemory", used + room_bytes)
    try:
        with peer.RankCache(nodes.url, blocks=4096, **QUICK | {"deadline_s": 5.0}) as cache:
            for seed in range(200, 200 + prompts):
                cache.compute(seed, PAGES)
            counts = cache.remote.counts
            assert counts.outages == 0
            if policy == "noeviction":
                assert 0 < counts.stored < prompts * PAGES
                assert counts.failed_stores > 0
            else:
                assert counts.stored == prompts * PAGES
            cache.reset(["device"])
            hits = [cache.compute(seed, PAGES) for seed in reversed(range(200, 200 + prompts))]
            assert 0 < sum(hits) < prompts * ALL
    finally:
        for node in range(NODES):
            with nodes.client(node) as client:
                client.config_set("maxmemory", 0)
        nodes.clear()
