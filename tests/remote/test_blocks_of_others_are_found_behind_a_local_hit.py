"""A cache finds what another one stored in a shared tier by the keys behind its own hit: for every
kind of group, at once with everything else, bounded, and not again and again. What it adopts is a
belief like any other: books stay whole (I7, I8), bytes are verified, a reset forgets it (I31).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from radix import FlatStore, Group, Layout, Namespace, Part, PrefixCache, Retention
from radix.events import BlocksStored, Event, KeysDone
from radix.finding import AGAIN_POLLS
from radix.prefetching import Prefetch, PrefetchState
from radix.tier import TierMode
from tests.oracle import expand
from tests.remote.watched import Watched
from tests.remoterig import RedisNodes, redis_nodes, until
from tiers.host import AdoptedTier, HostTier
from tiers.remote import RemoteTier, backend_of

PAGE = 8
KV = Group.full("kv", block_bytes=256)
WINDOW = Group("near", Layout((Part("k", "uint8", (("byte", 128),)),)), Retention("window", 20))
STATE = Group(
    "state",
    Layout((Part("s", "uint8", (("byte", 512),)),)),
    Retention("state"),
    grid_tokens=2 * PAGE,
)
PROMPT = np.arange(100, dtype=np.int32)
_prefixes = (f"found-{number}" for number in range(1000))


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """One cluster for the file."""
    with redis_nodes() as started:
        yield started


@pytest.fixture
def prefix() -> str:
    """Names of its own for each test."""
    return next(_prefixes)


def _cache(
    nodes: RedisNodes, prefix: str, groups: tuple[Group, ...] = (KV,), **options: Any
) -> PrefixCache:
    backend = options.pop("backend", nodes.url)
    blocks = options.pop("blocks", 256)
    remote = RemoteTier(backend, blocks=blocks, prefix=prefix)
    rows = [[np.zeros((64, group.block_bytes), np.uint8)] for group in groups]
    tiers = [AdoptedTier(rows, "device"), HostTier(1 << 20), remote]
    return PrefixCache(list(groups), tiers, page_tokens=PAGE, **options)


def _serve(cache: PrefixCache, prompt: np.ndarray, **options: Any) -> int:
    """Serves a prompt to its end; its hit."""
    request = cache.admit(prompt, **options)
    request.wait()
    if STATE in cache.groups:
        for stop in request.cuts(len(prompt)):
            if stop <= len(prompt):
                request.snapshot(stop)
    request.computed(len(prompt))
    request.finish()
    cache.flush()
    cache.check()
    return request.hit_tokens


def _settled(cache: PrefixCache, ahead: Prefetch) -> list[Event]:
    events: list[Event] = []

    def turn() -> bool:
        events.extend(cache.poll())
        return ahead.settled

    until("the prefetch is settled", turn)
    cache.check()
    return events


@pytest.mark.parametrize(
    "groups", [(KV,), (KV, WINDOW), (KV, STATE), (KV, WINDOW, STATE), (WINDOW, STATE)]
)
def test_every_kind_of_group_is_found(
    nodes: RedisNodes, prefix: str, groups: tuple[Group, ...]
) -> None:
    with _cache(nodes, prefix, groups) as mine:
        _serve(mine, PROMPT, boundaries=[64])
        expected = mine.explain(np.append(PROMPT, PROMPT)).hit_tokens
    assert expected > 0
    longer = np.append(PROMPT, PROMPT)
    with _cache(nodes, prefix, groups) as other:
        with other.prefetch(longer) as ahead:
            _settled(other, ahead)
            assert ahead.tokens == expected
            assert _serve(other, longer) == expected


def test_a_local_hit_is_gone_on_from(nodes: RedisNodes, prefix: str) -> None:
    with _cache(nodes, prefix) as mine:
        _serve(mine, PROMPT)
    with _cache(nodes, prefix, events=True) as other:
        _serve(other, PROMPT[:41])  # five pages of it are its own
        stored = other.tiers[2].counts.stored
        with other.prefetch(PROMPT) as ahead:
            events = _settled(other, ahead)
        assert ahead.tokens == 96
        told = [event for event in events if isinstance(event, BlocksStored)]
        assert sum(len(event.keys) for event in told if event.tier == "remote") == 7
        # Its first admission asked for the first five: taken over if it had not computed them yet.
        assert other.tiers[2].counts.found in (7, 5 + 7)
        assert other.tiers[2].counts.stored == stored, "what is there is not stored again"


def test_an_admission_asks_for_the_next_and_waits_for_nothing(
    nodes: RedisNodes, prefix: str
) -> None:
    with _cache(nodes, prefix) as mine:
        _serve(mine, PROMPT)
    with _cache(nodes, prefix) as other:
        first = other.admit(PROMPT)
        assert first.hit_tokens == 0
        first.abort()

        def known() -> bool:
            other.poll()
            return other.explain(PROMPT).hit_tokens == 96

        until("the answer has come", known)
        assert _serve(other, PROMPT) == 96


def test_what_was_asked_a_moment_ago_is_not_asked_again(nodes: RedisNodes, prefix: str) -> None:
    watched = Watched(backend_of(nodes.url))
    with _cache(nodes, prefix, backend=watched) as cache:
        cache.admit(PROMPT).abort()
        until("it was asked", lambda: bool(watched.calls["exists"]))
        for _ in range(20):
            cache.admit(PROMPT).abort()
            cache.poll()
        time.sleep(0.1)
        assert watched.calls["exists"] == 1
        for _ in range(AGAIN_POLLS):
            cache.poll()
        cache.admit(PROMPT).abort()
        until("it was asked again", lambda: watched.calls["exists"] == 2)


def test_a_long_prompt_that_nobody_has_costs_one_batch(nodes: RedisNodes, prefix: str) -> None:
    watched = Watched(backend_of(nodes.url))
    with _cache(nodes, prefix, backend=watched) as cache:
        with cache.prefetch(np.arange(8 * 1000, dtype=np.int32)) as ahead:
            _settled(cache, ahead)
            assert ahead.state is PrefetchState.OVER
        assert watched.calls["exists"] == 1


def test_a_directory_that_is_too_small_takes_what_fits(nodes: RedisNodes, prefix: str) -> None:
    with _cache(nodes, prefix) as mine:
        _serve(mine, PROMPT)
    with _cache(nodes, prefix, blocks=5) as other:
        with other.prefetch(PROMPT) as ahead:
            _settled(other, ahead)
            assert ahead.tokens == 5 * PAGE
            assert _serve(other, PROMPT) == 5 * PAGE


def test_other_namespaces_layouts_and_prefixes_find_nothing(nodes: RedisNodes, prefix: str) -> None:
    with _cache(nodes, prefix) as mine:
        _serve(mine, PROMPT, namespace=Namespace("m", salt=b"a"))
    wide = Group.full("kv", block_bytes=512)
    for groups, names, space in (
        ((KV,), prefix, Namespace("m", salt=b"b")),
        ((wide,), prefix, Namespace("m", salt=b"a")),
        ((KV,), prefix + "x", Namespace("m", salt=b"a")),
    ):
        with _cache(nodes, names, groups) as other:
            with other.prefetch(PROMPT, namespace=space) as ahead:
                _settled(other, ahead)
                assert ahead.tokens == 0
    with _cache(nodes, prefix) as same:
        with same.prefetch(PROMPT, namespace=Namespace("m", salt=b"a")) as ahead:
            _settled(same, ahead)
            assert ahead.tokens == 96


def test_a_reset_and_other_weights_forget_what_is_on_its_way(
    nodes: RedisNodes, prefix: str
) -> None:
    with _cache(nodes, prefix) as mine:
        _serve(mine, PROMPT)
    with _cache(nodes, prefix) as other:
        ahead = other.prefetch(PROMPT)
        other.set_revision("r2")
        _settled(other, ahead)
        assert other.explain(PROMPT).hit_tokens == 0
        other.set_revision("")
        with other.prefetch(PROMPT) as again:
            _settled(other, again)
            assert again.tokens == 96
        ahead = other.prefetch(np.append(PROMPT, 5))
        other.reset()
        for _ in range(50):
            other.poll()
            other.wait(0.01)
        assert other.explain(PROMPT).hit_tokens == 0
        other.check()


def test_a_tier_that_is_off_is_asked_nothing(nodes: RedisNodes, prefix: str) -> None:
    watched = Watched(backend_of(nodes.url))
    with _cache(nodes, prefix, backend=watched) as cache:
        cache.set_mode("remote", TierMode.OFF)
        with cache.prefetch(PROMPT) as ahead:
            assert ahead.state is PrefetchState.OVER
        assert _serve(cache, PROMPT) == 0
        assert not watched.calls["exists"]


def test_replicas_that_decide_alike_ask_nothing(nodes: RedisNodes, prefix: str) -> None:
    watched = Watched(backend_of(nodes.url))
    with _cache(nodes, prefix, backend=watched, agree=lambda row: row) as cache:
        with cache.prefetch(PROMPT) as ahead:
            assert ahead.settled
        assert not watched.calls["exists"]


# ---------------------------------------------------------------------- sets of keys
def _flat(nodes: RedisNodes, prefix: str) -> FlatStore:
    remote = RemoteTier(nodes.url, blocks=64, prefix=prefix)
    return FlatStore([KV], [HostTier(1 << 20), remote])


def _done(store: FlatStore, number: int) -> np.ndarray:
    found: list[KeysDone] = []

    def turn() -> bool:
        store.wait(0.01)
        found.extend(event for event in store.poll() if isinstance(event, KeysDone))
        return any(event.number == number for event in found)

    until("the keys are told", turn)
    store.check()
    return next(event.good for event in found if event.number == number)


def test_a_flat_store_finds_keys_of_another(nodes: RedisNodes, prefix: str) -> None:
    keys = expand(np.arange(12, dtype=np.uint64), 32)
    with _flat(nodes, prefix) as mine:
        taken = mine.reserve(keys[:8])
        mine.commit(taken)
        mine.flush()
        assert mine.tiers[1].counts.stored == 8
    with _flat(nodes, prefix) as other:
        assert (other.has(keys) == -1).all()
        good = _done(other, other.seek(keys))
        assert good.tolist() == [True] * 8 + [False] * 4
        assert other.has(keys).tolist() == [1] * 8 + [-1] * 4
        assert _done(other, other.fetch(keys[:8]).number).all()
        assert (other.has(keys[:8]) == 0).all()
        assert not _done(other, other.seek(keys[8:])).any()
        other.reset()
        assert not _done(other, other.seek(keys)).any()


def test_a_flat_store_without_such_a_tier_says_what_it_has() -> None:
    keys = expand(np.arange(3, dtype=np.uint64), 32)
    with FlatStore([KV], [HostTier(1 << 20)]) as store:
        store.commit(store.reserve(keys[:2]))
        assert _done(store, store.seek(keys)).tolist() == [True, True, False]
