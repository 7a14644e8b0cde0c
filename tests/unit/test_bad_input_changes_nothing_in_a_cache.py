"""A bad argument is a typed error that names the argument and what was expected; the cache, its
counters, its slots and its files are as before (C13, C24; I11).
"""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CacheError, RequestError, TierUnavailableError, UnsupportedError
from radix.groups import Group, Retention
from radix.keys import Namespace
from radix.layout import Layout
from radix.ownership import Ownership
from radix.plan import Demand
from radix.tier import TierMode
from radix.waiting import Waiting
from tests.cacherig import Rig, build
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier
from tiers.index import IndexTier

KV = Group.full("kv", 64)
WRONG_TOKENS = [
    ([1.5, 2.0], TypeError, "must be integers"),
    (["a", "b"], TypeError, "must be integers"),
    ([True, False], TypeError, "must be integers"),
    ([[1, 2], [3, 4]], ValueError, "one dimension"),
    (np.zeros((2, 2), np.int32), ValueError, "one dimension"),
    (7, ValueError, "one dimension"),
    ([1, -1, 2], ValueError, r"tokens\[1\] is -1"),
    (np.array([1, -1], np.int32), ValueError, r"tokens\[1\] is -1"),
    ([1 << 31], ValueError, r"in \[0, 2\^31\)"),
    ([1 << 32], ValueError, r"in \[0, 2\^31\)"),
    (np.array([1 << 31], np.uint32), ValueError, r"in \[0, 2\^31\)"),
    (np.array([1 << 40], np.int64), ValueError, r"in \[0, 2\^31\)"),
    (np.array([0.5], np.float32), TypeError, "must be integers"),
]


def _state(rig: Rig) -> tuple[object, ...]:
    cache = rig.cache
    cache.check()
    stats = cache.tree.stats()
    return (
        cache.counters(),
        cache.usage(),
        (stats.pages, stats.leases, stats.clock),
        len(cache.requests.works),
        len(cache.transfers.jobs),
        len(cache._events),
        len(cache.fences),
        [live.request.slots().tolist() for live in rig.live],
        [live.request.tokens().tolist() for live in rig.live],
    )


def _refused(rig: Rig, call: Callable[[], object], kind: type[Exception], message: str) -> None:
    before = _state(rig)
    with pytest.raises(kind, match=message):
        call()
    assert _state(rig) == before


@pytest.fixture
def rig() -> Rig:
    """A cache in use: something cached, one request that runs, events not yet polled."""
    made = build(below=(16,))
    made.serve([1, 2, 3, 4, 5])
    live = made.until_ready(made.admit([1, 2, 3, 4, 6, 7], new_tokens=2))
    made.compute(live, 6)
    return made


@pytest.mark.parametrize(("tokens", "kind", "message"), WRONG_TOKENS)
def test_tokens_that_cannot_be_stored_fail_alike_on_every_path(
    rig: Rig, tokens: object, kind: type[Exception], message: str
) -> None:
    """C24, TensorRT-LLM#17308: a fast path took ids that the slow one refused."""
    cache = rig.cache
    _refused(rig, lambda: cache.admit(tokens), kind, message)
    _refused(rig, lambda: cache.explain(tokens), kind, message)
    _refused(rig, lambda: rig.live[0].request.append(tokens), kind, message)
    with cache.lease(cache.match([9, 9, 9, 9])[1]) as lease:
        longer = tokens
        if isinstance(tokens, list | np.ndarray) and np.ndim(tokens) == 1:
            longer = np.concatenate((np.ones(2, np.asarray(tokens).dtype), np.asarray(tokens)))
        if (kind is ValueError and "31" in message) or "-1" in message:
            message = "31"
        _refused(rig, lambda: cache.insert(longer, lease), kind, message)
        assert not lease.released and lease.pages == 0
    rig.finish_all()


def test_owned_slots_that_nobody_has_written_cannot_be_inserted(rig: Rig) -> None:
    """The fault: pages over reserved slots were shared at once, with whatever the slots held."""
    cache = rig.cache
    with cache.lease(cache.match([9, 9, 9, 9])[1]) as lease:
        run = [9, 9, 9, 9, 8, 8, 8, 8]
        _refused(rig, lambda: cache.insert(run, lease), RequestError, "nobody has written")
    rig.finish_all()


def test_any_buffer_of_integers_is_a_prompt(rig: Rig) -> None:
    for tokens in (
        (1, 2, 3, 4, 5),
        range(1, 6),
        np.arange(1, 6, dtype=np.uint8),
        np.arange(1, 6, dtype=np.int64),
        np.arange(2, 12, dtype=np.int32)[::2] // 2,
        array.array("i", [1, 2, 3, 4, 5]),
        memoryview(np.arange(1, 6, dtype=np.int32)),
    ):
        assert rig.cache.explain(tokens).hit_tokens == 4
    rig.finish_all()


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"new_tokens": -1}, ValueError, "new_tokens must not be negative"),
        ({"new_tokens": 1.5}, TypeError, "new_tokens must be an int"),
        ({"new_tokens": "1"}, TypeError, "new_tokens must be an int"),
        ({"cacheable_upto": -1}, ValueError, "cacheable_upto must not be negative"),
        ({"cacheable_upto": True}, TypeError, "cacheable_upto must be an int"),
        ({"device_tokens": 4}, ValueError, "device_tokens: the device slots are owned"),
        ({"slots": [[1]]}, ValueError, "slots: the cache owns"),
        ({"namespace": "tenant"}, TypeError, "namespace must be a Namespace"),
    ],
)
def test_options_of_a_request_are_checked_by_name(
    rig: Rig, more: dict[str, object], kind: type[Exception], message: str
) -> None:
    """A negative limit was found out only at the end of the request, inside the tree."""
    _refused(rig, lambda: rig.cache.admit([1, 2], **more), kind, message)
    rig.finish_all()


def test_empty_prompt_is_refused_and_appending_nothing_is_nothing(rig: Rig) -> None:
    for call in (rig.cache.admit, rig.cache.explain):
        _refused(rig, lambda call=call: call([]), ValueError, "empty prompt")
    before = _state(rig)
    rig.live[0].request.append([])
    assert _state(rig) == before
    rig.finish_all()


def test_calls_on_a_running_request_are_checked_by_name(rig: Rig) -> None:
    request = rig.live[0].request
    for call, kind, message in (
        (lambda: request.computed(7), ValueError, "computed is 7, expected 6 to 6"),
        (lambda: request.computed(5), ValueError, "computed is 5"),
        (lambda: request.computed(6.0), TypeError, "computed must be an int"),
        (lambda: request.computed(-1), ValueError, "computed must not be negative"),
        (lambda: request.finish(cacheable_upto=-1), ValueError, "cacheable_upto"),
        (lambda: request.lend([[1]]), CacheError, "are the cache's"),
        (lambda: request.lend([]), ValueError, "one for each of 1 groups"),
    ):
        _refused(rig, call, kind, message)
    request.computed(np.int64(6))
    rig.finish_all()


def test_the_owners_calls_are_checked_by_name(rig: Rig) -> None:
    cache = rig.cache
    for call, kind, message in (
        (lambda: cache.evict(0, -1), ValueError, "count must not be negative"),
        (lambda: cache.evict(1, 1), ValueError, "group is 1, expected 0 to 0"),
        (lambda: cache.evict(0, 1, tier=2), ValueError, "tier is 2, expected 0 to 1"),
        (lambda: cache.evict(0, 1, tier=-1), ValueError, "tier is -1, expected 0 to 1"),
        (lambda: cache.set_mode("disk", TierMode.ON), ValueError, "'disk' is not one of"),
        (lambda: cache.set_mode("host", "off"), TypeError, "must be a TierMode"),
        (lambda: cache.match([1, 2], leave=-1), ValueError, "leave must not be negative"),
        (lambda: cache.match([1, 2], leave="1"), TypeError, "leave must be an int"),
        (lambda: cache.match([1.5]), TypeError, "tokens must be integers"),
        (lambda: cache.match([[1]]), ValueError, "one dimension"),
        (lambda: cache.match([1], namespace=b"x"), TypeError, "namespace must be a Namespace"),
        (lambda: cache.passed("5"), TypeError, "step must be an int"),
        (lambda: cache.passed(-5), ValueError, "step must not be negative"),
    ):
        _refused(rig, call, kind, message)
    rig.end(rig.live[0])
    rig.settle()
    assert len(cache.evict(0, 1 << 40)) == 1, "no more than there is, however much is asked for"
    rig.finish_all()


def _open(**more: object) -> PrefixCache:
    groups, tiers = more.pop("groups", [KV]), more.pop("tiers", [IndexTier(4)])
    return PrefixCache(groups, tiers, **more)


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"page_tokens": 0}, ValueError, "page_tokens must be 1 to 65536, not 0"),
        ({"page_tokens": -4}, ValueError, "page_tokens"),
        ({"page_tokens": 1 << 20}, ValueError, "page_tokens"),
        ({"page_tokens": 4.0}, TypeError, "page_tokens must be an int"),
        ({"page_tokens": True}, TypeError, "page_tokens must be an int"),
        ({"groups": []}, ValueError, "groups must not be empty"),
        ({"groups": [KV, KV]}, ValueError, "two groups of one name: 'kv'"),
        ({"groups": ["kv"]}, TypeError, "groups must hold Group"),
        ({"tiers": []}, ValueError, "tiers must not be empty"),
        ({"tiers": ["host"]}, TypeError, "tiers must hold tiers, not str"),
        ({"tiers": [IndexTier(1), IndexTier(1)]}, ValueError, "two tiers of one name"),
        ({"policy": "random"}, ValueError, "'random'"),
        ({"policy": "cost"}, ValueError, "group 'kv' says no cost"),
        ({"write": "back"}, ValueError, "write is 'back'"),
        ({"ownership": "owned"}, TypeError, "ownership must be an Ownership"),
        ({"ownership": Ownership.BORROWED}, ValueError, "a tier below the device"),
        (
            {"groups": [Group("w", KV.layout, Retention("window", 8), per_sequence=True)]},
            UnsupportedError,
            "'w': one block a sequence",
        ),
        (
            {"groups": [Group("c", KV.layout, Retention("chunked", 8), lookahead=1)]},
            UnsupportedError,
            "'c': lookahead with retention 'chunked'",
        ),
        ({"groups": [Group("s", KV.layout, Retention("scratch"))]}, ValueError, "none of them"),
        ({"groups": [Group("g", KV.layout, grid_tokens=30)]}, ValueError, "'g': grid_tokens 30"),
        ({"groups": [Group("l", KV.layout, lookup=False)]}, UnsupportedError, "'l': a group"),
        (
            {"groups": [Group.full(f"g{n}", 8) for n in range(65)]},
            UnsupportedError,
            "at most 64",
        ),
    ],
)
def test_cache_that_cannot_be_opened_says_why(
    more: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        _open(**more)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group.full("kv", 0), "block_bytes must be at least 1"),
        (lambda: Group("kv", Layout(())), "a group without bytes"),
        (lambda: IndexTier(0), "at least 1"),
        (lambda: DeviceTier(blocks=0), "at least 1"),
        (lambda: HostTier(0), "limit_bytes must be at least 1"),
        (lambda: DiskTier("x", limit_bytes=0), "limit_bytes must be at least 1"),
    ],
)
def test_capacity_of_nothing_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_tier_that_does_not_open_leaves_the_others_closed(tmp_path: Path) -> None:
    """A directory that another cache holds; the tiers above it were open already."""
    held = tmp_path / "disk"
    first = _open(
        tiers=[DeviceTier(blocks=4), DiskTier(held, limit_bytes=4 << 20, segment_bytes=1 << 18)]
    )
    device, host = DeviceTier(blocks=4), HostTier(8 * 4096)
    again = DiskTier(held, limit_bytes=4 << 20, segment_bytes=1 << 18)
    with pytest.raises(TierUnavailableError):
        _open(tiers=[device, host, again])
    for tier in (device, host):
        with pytest.raises(CacheError, match="closed"):
            tier.poll()
    first.check()
    first.close()
    first.close()
    _open(tiers=[DeviceTier(blocks=4), again]).close()


def test_namespace_of_other_types_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="salt must be bytes"):
        Namespace(salt="tenant")


@pytest.mark.parametrize(
    ("time", "kind"),
    [(float("nan"), ValueError), (None, TypeError), ("1", TypeError), (True, TypeError)],
)
def test_time_to_wait_is_a_number_of_seconds(time: object, kind: type[Exception]) -> None:
    """A time that is no number was never over: ``Request.wait`` polled for ever, and ``wait`` told
    of a conversion inside, or nothing at all where nothing was under way.
    """
    rig = build(below=(16,))
    rig.serve([1, 2, 3, 4, 5])
    rig.empty()
    rig.ticks[0].pace = 0.0
    waiting = Waiting(rig.cache)
    for _ in range(2):  # with nothing under way, and with a load
        for call in (rig.cache.wait, waiting.wait):
            _refused(rig, lambda call=call: call(time), kind, "timeout_s must be a number of sec")
        live = rig.admit([1, 2, 3, 4, 6]).request
        _refused(rig, lambda live=live: live.wait(time), kind, "timeout_s must be a number of sec")
        _refused(rig, lambda live=live: live.wait_layer(0, 0, time), kind, "timeout_s must be a nu")
    rig.ticks[0].pace = 1.0
    rig.finish_all()


@pytest.mark.parametrize("time", [-1, 0, float("-inf"), float("inf"), 1e300, 10**400])
def test_any_number_of_seconds_can_be_waited(tmp_path: Path, time: float) -> None:
    """Endless and enormous times became nanoseconds that no clock takes."""
    tiers = [
        DeviceTier(blocks=8, device="cpu"),
        HostTier(1 << 20),
        DiskTier(tmp_path / "disk", limit_bytes=8 << 20),
    ]
    with PrefixCache([KV], tiers, page_tokens=4) as cache:
        request = cache.admit(list(range(16)))
        request.computed(16)
        request.finish()
        while cache.transfers.jobs:
            cache.wait(time)
            cache.poll()
        cache.evict(0, 8)
        again = cache.admit(list(range(16)), demand=Demand(by_layer=True))
        again.wait_layer(0, 0, time)
        if time > 0:
            again.wait(time)
        again.abort()
        cache.flush()


def test_as_many_tokens_as_one_likes_are_left_to_compute(rig: Rig) -> None:
    """``leave`` beyond 64 bits was told of as an integer too big to convert."""
    for leave in (5, 1 << 31, 1 << 70):
        assert rig.cache.match([1, 2, 3, 4, 6], leave=leave)[0].hit_pages == 0
        live = rig.until_ready(rig.admit([1, 2, 3, 4, 6], leave=leave))
        assert live.request.hit_tokens == 0
        rig.end(live, abort=True)
        assert rig.cache.prefetch([1, 2, 3, 4, 6], leave=leave).tokens == 0
    rig.finish_all()
