"""A real Mooncake master, and a process that gives the store memory, are killed, stopped and
started again under caches that use them: what that costs are hits. A call of the client then blocks
for seconds; no request waits for it, and what comes back is used again without anybody's help
(C116, C117).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from radix.tier import TierMode
from tests.remote import peer
from tests.remote.watched import Watched
from tests.remoterig import MooncakeMaster, MooncakeOwner, mooncake_master, until

PAGES = 8
ALL = PAGES * peer.PAGE
QUICK = {"deadline_s": 0.3, "retry_s": 0.05, "epoch_s": 0.1}


@pytest.fixture(scope="module")
def master() -> Iterator[MooncakeMaster]:
    """One master for the file."""
    with mooncake_master() as started:
        yield started


@pytest.fixture(scope="module")
def owners(master: MooncakeMaster) -> Iterator[list[MooncakeOwner]]:
    """The processes that have given it memory."""
    started = [MooncakeOwner(master, 32 << 20)]
    try:
        started[0].start()
        yield started
    finally:
        for owner in started:
            owner.kill()


@pytest.fixture
def store(master: MooncakeMaster, owners: list[MooncakeOwner]) -> Iterator[Watched]:
    """A client of a store that works, whatever a test before did to it."""
    if master.server.process is None:
        master.start()
    if owners[-1].process is None:
        owners.append(MooncakeOwner(master, 32 << 20))
        owners[-1].start()
    watched = Watched(peer.client_of(master.url))
    with peer.RankCache(watched) as cache:
        _polled(cache, "it takes values", lambda: _serves(cache))
    yield watched
    if master.server.process is not None:
        master.server.send(signal.SIGCONT)


_seeds = iter(range(1000, 10000))


def _serves(cache: peer.RankCache) -> bool:
    """Whether what is stored now is hit."""
    seed = next(_seeds)
    cache.compute(seed, PAGES)
    cache.reset(["device"])
    return cache.compute(seed, PAGES) == ALL


def _polled(cache: peer.RankCache, what: str, met: Callable[[], bool]) -> None:
    def turn() -> bool:
        cache.poll()
        return met()

    until(what, turn)


def test_a_master_that_is_killed_is_asked_nothing_and_used_again(
    master: MooncakeMaster, store: Watched
) -> None:
    with peer.RankCache(store, **QUICK) as cache:
        cache.compute(20, PAGES)
        cache.reset(["device"])
        master.server.kill()
        for seed in (20, 21, 22):
            assert cache.compute(seed, PAGES) == 0
        _polled(cache, "the tier is off", lambda: cache.remote.mode is TierMode.OFF)
        before = {name: store.calls[name] for name in ("get", "put", "exists")}
        for seed in range(23, 33):
            assert cache.compute(seed, PAGES) == 0
        assert {name: store.calls[name] for name in before} == before
        master.start()
        _polled(cache, "the tier is on again", lambda: cache.remote.mode is TierMode.ON)
        _polled(cache, "it takes values", lambda: _serves(cache))
        assert cache.compute(20, PAGES) == 0, "a master that was started again knows nothing"


def test_a_master_that_is_stopped_keeps_nobody_waiting(
    master: MooncakeMaster, store: Watched
) -> None:
    with peer.RankCache(store, **QUICK) as cache:
        cache.compute(40, PAGES)
        cache.reset(["device"])
        master.server.send(signal.SIGSTOP)
        assert cache.compute(40, PAGES) == 0
        seeds = iter(range(41, 60))

        def is_off() -> bool:
            cache.compute(next(seeds), PAGES)
            return cache.remote.mode is TierMode.OFF

        _polled(cache, "the tier is off", is_off)
        assert cache.remote.counts.late > 0
        master.server.send(signal.SIGCONT)
        _polled(cache, "the tier is on again", lambda: cache.remote.mode is TierMode.ON)
        _polled(cache, "it takes values", lambda: _serves(cache))


def test_values_of_an_owner_that_was_killed_are_misses(
    master: MooncakeMaster, owners: list[MooncakeOwner], store: Watched
) -> None:
    with peer.RankCache(store) as cache:
        cache.compute(60, PAGES)
        cache.reset(["device"])
        owners[-1].kill()
        assert store.there(store.names[-1]), "the master still believes in it"
        assert cache.compute(60, PAGES) == 0
        counts = cache.remote.counts
        assert (counts.gone, counts.corrupt, counts.outages) == (PAGES, 0, 0)
        owners.append(MooncakeOwner(master, 32 << 20))
        owners[-1].start()
        _polled(cache, "it takes values", lambda: _serves(cache))


def test_a_store_that_is_full_drops_what_is_old(store: Watched) -> None:
    with peer.RankCache(store, blocks=1 << 17) as cache:
        for seed in range(100, 130):
            cache.compute(seed, PAGES)
        room = bytes(1 << 20)
        for number in range(64):  # twice what there is
            store.inner.replace(f"filler-{number}", room, 10.0, absent=True)
        cache.reset(["device"])
        for seed in range(100, 130):
            cache.compute(seed, PAGES)  # bytes are looked at
        assert cache.remote.counts.outages == 0
        assert cache.remote.counts.corrupt == 0
