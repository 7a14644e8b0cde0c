"""What is wrong about windows, grids, snapshots, boundaries, chunks and mixes of groups is a typed
error that names it, and the cache is as before: counters, usage, leases, page tables (C13, C24).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import CacheError, RequestError, UnsupportedError
from radix.groups import Group, Retention
from radix.layout import Layout
from radix.policy.checkpoint import Checkpoints
from tests.cacherig import Live, Rig, build
from tests.mixes import chunked, full, state, window
from tiers.index import IndexTier

KV, NEAR, STATE = 0, 1, 2
OPAQUE = Layout.opaque(64)


def seen(rig: Rig) -> tuple[object, ...]:
    """All that a caller, or a later call, could tell apart."""
    cache = rig.cache
    cache.check()
    stats = cache.tree.stats()
    return (
        cache.counters(),
        cache.usage(),
        (stats.pages, stats.leases, stats.clock, stats.roots),
        len(cache.requests.works),
        len(cache.transfers.jobs),
        len(cache.fences),
        [[live.request.slots(group).tolist() for group in range(3)] for live in rig.live],
        [live.request.running(STATE) for live in rig.live],
        [live.request.cuts(64) for live in rig.live],
        [live.request.tokens().tolist() for live in rig.live],
    )


def refused(
    rig: Rig,
    call: Callable[[], object],
    kind: type[Exception] | tuple[type[Exception], ...],
    message: str,
) -> None:
    """The call raises, and nothing has changed."""
    before = seen(rig)
    with pytest.raises(kind, match=message):
        call()
    assert seen(rig) == before


@pytest.fixture
def rig() -> Rig:
    """A path with a snapshot and a window, and a request at 6 of 12 tokens in steps of 6."""
    made = build(
        page_tokens=2, groups=(full(), window(5), state(4)), device=(32, 24, 12), below=(32,)
    )
    live = made.until_ready(made.admit(list(range(9))))
    made.compute(live, 9)
    made.end(live)
    made.settle()
    live = made.until_ready(made.admit([9] * 12, chunk_tokens=6, boundaries=[8], new_tokens=6))
    made.compute(live, 6)
    made.poll()
    return made


# ---------------------------------------------------------------- what a group is
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Retention("window", 0), ValueError, "retention window tokens.*not 0"),
        (lambda: Retention("window", -3), ValueError, "retention window tokens"),
        (lambda: Retention("window"), ValueError, "retention window tokens"),
        (lambda: Retention("chunked", 0), ValueError, "retention chunked tokens.*not 0"),
        (lambda: Retention("window", 2.5), TypeError, "retention window tokens"),
        (lambda: Retention("window", 4, -1), ValueError, "extra must not be negative"),
        (lambda: Retention("full", 4), ValueError, "retention full takes no tokens"),
        (lambda: Retention("state", 4), ValueError, "retention state takes no tokens"),
        (lambda: Retention("sliding", 4), ValueError, "'sliding' is not one of full, window"),
        (lambda: Group("g", OPAQUE, grid_tokens=0), ValueError, "'g' grid_tokens.*not 0"),
        (lambda: state(0), ValueError, "'state' grid_tokens.*not 0"),
        (lambda: state(-4), ValueError, "'state' grid_tokens"),
        (lambda: Group("g", OPAQUE, lookahead=-1), ValueError, "lookahead must not be negative"),
        (lambda: Group("", OPAQUE), ValueError, "name must not be empty"),
        (lambda: Checkpoints(spacing_tokens=-1), ValueError, "spacing_tokens must be at least 0"),
        (lambda: Checkpoints(per_path=0), ValueError, "per_path must be at least 1, not 0"),
        (lambda: Checkpoints(per_path="2"), TypeError, "per_path must be an int, not str"),
        (lambda: Checkpoints(spacing_tokens=True), TypeError, "spacing_tokens must be an int"),
    ],
)
def test_group_that_cannot_be_is_refused_when_it_is_made(
    make: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("groups", "kind", "message"),
    [
        ((), ValueError, "groups must not be empty"),
        ((full(), full()), ValueError, "two groups of one name: 'kv'"),
        ((full(grid_tokens=6),), ValueError, "'kv': grid_tokens 6 must be a multiple of the page"),
        ((Group("tmp", OPAQUE, Retention("scratch")),), ValueError, "none of them is ever cached"),
        ((full(), Group("o", OPAQUE, lookup=False)), UnsupportedError, "'o': a group without"),
        ((Group("s", OPAQUE, per_sequence=True),), UnsupportedError, "'s': one block a sequence"),
        ((full(lookahead=1, grid_tokens=8),), UnsupportedError, "'kv': lookahead .* of 8 tokens"),
        (
            (full(), Group("c", OPAQUE, Retention("chunked", 8), lookahead=1)),
            UnsupportedError,
            "'c': lookahead with retention 'chunked'",
        ),
        (
            (full(), Group("s", OPAQUE, Retention("state"), lookahead=1)),
            UnsupportedError,
            "'s': lookahead with retention 'state'",
        ),
        (tuple(full(f"g{n}") for n in range(65)), UnsupportedError, "65 groups over 1 tiers"),
        ((full(), "kv"), TypeError, "groups must hold Group, not str"),
    ],
)
def test_mix_that_is_not_supported_is_refused_by_the_name_of_its_group(
    groups: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        PrefixCache(groups, [IndexTier(8)], page_tokens=4)


@pytest.mark.parametrize("value", [0, -1])
def test_alignment_below_one_token_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="align_tokens"):
        PrefixCache((full(), state()), [IndexTier(8)], align_tokens=value)


# ---------------------------------------------------------------- what a request may ask
@pytest.mark.parametrize(
    ("position", "kind", "message"),
    [
        (7, ValueError, "position is 7, expected a multiple of 4, the grid of 'state'"),
        (6, ValueError, "multiple of 4"),
        (4, ValueError, "position is 4, expected 6 to 12"),
        (0, ValueError, "position is 0"),
        (16, ValueError, "position is 16, expected 6 to 12"),
        (-4, ValueError, "position must not be negative"),
        (8.0, TypeError, "position must be an int, not float"),
        ("8", TypeError, "position must be an int, not str"),
    ],
)
def test_snapshot_elsewhere_than_the_running_state_is_refused(
    rig: Rig, position: Any, kind: type[Exception], message: str
) -> None:
    """Off the grid, beyond what there is to compute, behind what was told computed."""
    for copy in (True, False):
        call = partial(rig.live[0].request.snapshot, position, copy=copy)
        refused(rig, call, kind, message)
    rig.finish_all()


def test_second_snapshot_of_a_position_is_refused(rig: Rig) -> None:
    """At a boundary and on the grid, before and after it is told computed."""
    request = rig.live[0].request
    for position in (8, 12):
        assert request.snapshot(position, copy=False)
        call = partial(request.snapshot, position)
        refused(rig, call, ValueError, "has a snapshot already")
    expected = rig.expected(None, request.tokens(), STATE)
    rig.live[0].aside = [
        (pages, STATE, int(request._work.held[STATE].slots[pages - 1])) for pages in (4, 6)
    ]
    assert len(expected) == 6
    request.prepare(6)
    rig.write(rig.live[0], 3, 6)
    rig.known.update((rig.cache.namespace(None), (9,) * n) for n in (2, 4, 6, 8, 10, 12))
    request.computed(8)
    refused(rig, lambda: request.snapshot(8), ValueError, "has a snapshot already")
    request.computed(12)
    refused(rig, lambda: request.snapshot(12), ValueError, "has a snapshot already")
    rig.live[0].told = rig.live[0].written = 12
    rig.end(rig.live[0])
    rig.settle()
    assert rig.cache.explain([9] * 14).hit_tokens == 12
    rig.finish_all()


def test_snapshot_of_a_request_without_states_is_refused() -> None:
    made = build(page_tokens=2, groups=(full(), window(3)), device=8)
    live = made.until_ready(made.admit([1, 2, 3, 4]))
    before = made.cache.usage(), dict(made.cache.counters())
    with pytest.raises(RequestError, match="snapshot: request 1 has no group with states"):
        live.request.snapshot(2)
    for group in (KV, NEAR):
        with pytest.raises(ValueError, match=f"group {group} has no state"):
            live.request.running(group)
    assert (made.cache.usage(), dict(made.cache.counters())) == before
    made.finish_all()


def test_request_that_does_not_run_takes_no_snapshot(rig: Rig) -> None:
    rig.empty()
    waits = rig.admit([*range(9), 1])
    ended: Live = rig.live[0]
    rig.end(ended)
    for request in (waits.request, ended.request):
        before = rig.cache.usage(), dict(rig.cache.counters())
        for call in (request.snapshot, request.cuts, request.prepare):
            with pytest.raises(RequestError, match="not running"):
                call(8)
        assert (rig.cache.usage(), dict(rig.cache.counters())) == before
    rig.finish_all()


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"boundaries": [0]}, ValueError, "boundaries: 0 is not in the prompt of 6 tokens"),
        ({"boundaries": [4, 7]}, ValueError, "boundaries: 7 is not in the prompt of 6 tokens"),
        ({"boundaries": [-2]}, ValueError, r"boundaries\[0\] must not be negative"),
        ({"boundaries": [2, 1.5]}, TypeError, r"boundaries\[1\] must be an int, not float"),
        ({"chunk_tokens": 0}, ValueError, "chunk_tokens must be at least 1, not 0"),
        ({"chunk_tokens": -4}, ValueError, "chunk_tokens must not be negative"),
        ({"chunk_tokens": 2.0}, TypeError, "chunk_tokens must be an int"),
        ({"leave": 0}, ValueError, "leave must be at least 1, not 0"),
        ({"slots": [[0], [1], [2]]}, ValueError, "slots: the cache owns the device slots"),
    ],
)
def test_admission_with_a_bad_term_takes_nothing(
    rig: Rig, more: dict[str, Any], kind: type[Exception], message: str
) -> None:
    refused(rig, lambda: rig.cache.admit([1, 2, 3, 4, 5, 6], **more), kind, message)
    rig.finish_all()


def test_step_beyond_the_chunk_of_the_admission_is_refused(rig: Rig) -> None:
    request = rig.live[0].request
    refused(rig, lambda: request.prepare(7), ValueError, "chunk is 7, expected at most the 6")
    refused(rig, lambda: request.prepare(-1), ValueError, "chunk must not be negative")
    refused(rig, lambda: request.cuts(-1), ValueError, "chunk must not be negative")
    request.prepare(6)
    rig.finish_all()


def test_step_that_was_not_prepared_is_refused(rig: Rig) -> None:
    """C41: its window has no slot, and no later request could hit what it says it computed."""
    request = rig.live[0].request
    refused(rig, lambda: request.computed(8), (ValueError, RequestError), "prepare")
    request.prepare(6)
    made = build(page_tokens=1, groups=(full(), window(4)), device=32)
    live = made.until_ready(made.admit(list(range(20)), chunk_tokens=4))
    live.request.prepare(4)
    before = made.cache.usage(), dict(made.cache.counters()), live.request.slots(NEAR).tolist()
    with pytest.raises((ValueError, RequestError), match=r"chunk|prepare"):
        live.request.computed(20)
    after = made.cache.usage(), dict(made.cache.counters()), live.request.slots(NEAR).tolist()
    assert after == before
    made.finish_all()
    rig.finish_all()


@pytest.mark.parametrize("group", [3, 9, -1])
def test_group_that_the_cache_does_not_have_is_refused_everywhere(rig: Rig, group: int) -> None:
    request = rig.live[0].request
    cursor = rig.cache.match(list(range(9)))[1]
    for call in (
        lambda: request.slots(group),
        lambda: request.running(group),
        lambda: request.loaded(group),
        lambda: rig.cache.evict(group, 1),
        lambda: rig.cache.lease(cursor, groups=[group]),
    ):
        refused(rig, call, ValueError, "group")
    rig.finish_all()


@pytest.mark.parametrize("group", [1.0, "near", None])
def test_group_that_is_no_number_is_refused_everywhere(rig: Rig, group: Any) -> None:
    request = rig.live[0].request
    cursor = rig.cache.match(list(range(9)))[1]
    for call in (
        lambda: request.slots(group),
        lambda: request.running(group),
        lambda: request.loaded(group),
        lambda: rig.cache.evict(group, 1),
        lambda: rig.cache.lease(cursor, groups=[group]),
    ):
        refused(rig, call, TypeError, "must be an int|integer")
    rig.finish_all()


# ---------------------------------------------------------------- an engine that drives itself
@pytest.mark.parametrize(
    ("boundaries", "kind", "message"),
    [
        ([6], ValueError, "boundaries: 6 is not a multiple of 4"),
        ([7], ValueError, "boundaries: 7 is not a multiple of 4"),
        ([0], ValueError, "boundaries: 0 lies outside the new pages, tokens 0 to 12"),
        ([16], ValueError, "boundaries: 16 lies outside"),
        ([4, 8, 4], ValueError, "boundaries: 4 is named twice"),
        ([-4], ValueError, r"boundaries\[0\] must not be negative"),
        (["8"], TypeError, r"boundaries\[0\] must be an int, not str"),
    ],
)
def test_insert_with_a_checkpoint_where_none_may_stand_is_refused(
    boundaries: list[Any], kind: type[Exception], message: str
) -> None:
    """Off the grid, beyond the prompt or its whole pages, twice at one place."""
    cache = PrefixCache((full(), chunked(4), state(4)), [IndexTier(16)], page_tokens=2)
    prompt = np.arange(13, dtype=np.int32)
    with cache.lease(cache.match(prompt)[1]) as lease:
        before = cache.usage(), cache.counters(), cache.tree.stats(), lease.pages
        with pytest.raises(kind, match=message):
            cache.insert(prompt, lease, boundaries=boundaries)
        assert (cache.usage(), cache.counters(), cache.tree.stats(), lease.pages) == before
        cache.check()
        cache.insert(prompt, lease, boundaries=[4, 12])
        with pytest.raises(ValueError, match="outside the new pages, tokens 12 to 12"):
            cache.insert(prompt, lease, boundaries=[8])  # the lease ends behind it
    assert cache.explain([*range(12), 99]).hit_tokens == 12
    cache.close()


def test_every_refusal_is_of_the_tree_of_errors_or_of_an_argument() -> None:
    assert issubclass(RequestError, CacheError) and issubclass(UnsupportedError, CacheError)
