"""Write-after: a block goes down once it was asked for again as often as the limits say, whether it
was still there or had to be computed anew; what is asked for once never costs a write.
"""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.errors import UnsupportedError
from radix.groups import Group
from radix.policy.limits import Limits
from radix.store import FlatStore
from tests.cacherig import Rig, build
from tiers.host import HostTier
from tiers.index import IndexTier

PAGE = 4


def prompt(number: int, pages: int = 4) -> list[int]:
    return [1 + number] * (pages * PAGE) + [0]


def rig_of(again: int = 1, **options: object) -> Rig:
    options.setdefault("below", (16, 32))
    return build(write="write_after", limits=Limits(write_after=again), **options)


def stored(rig: Rig, tier: str = "host") -> int:
    return rig.cache.metrics.get("store", "blocks", tier, "kv")


def serve(rig: Rig, tokens: list[int]) -> None:
    live = rig.admit(tokens)
    rig.until_ready(live)
    rig.compute(live, len(tokens))
    rig.end(live)
    rig.settle()
    rig.cache.check()


@pytest.mark.parametrize("again", [1, 2, 3])
def test_block_goes_down_all_the_way_when_it_was_asked_for_again(again: int) -> None:
    rig = rig_of(again)
    for _ in range(again):
        serve(rig, prompt(0))
        assert stored(rig) == stored(rig, "deep") == 0
    serve(rig, prompt(0))
    assert stored(rig) == stored(rig, "deep") == 4
    serve(rig, prompt(0))
    assert stored(rig) == stored(rig, "deep") == 4, "what is below already is not written again"
    rig.finish_all()


def test_only_the_part_that_is_shared_goes_down() -> None:
    rig = rig_of()
    serve(rig, prompt(0, 2) + prompt(1, 2))
    serve(rig, prompt(0, 2) + prompt(2, 2))
    assert stored(rig) == 2
    rig.finish_all()


def test_what_is_asked_for_once_costs_no_write_and_is_gone_when_evicted() -> None:
    rig = rig_of(device=8)
    for number in range(6):
        serve(rig, prompt(number))
    assert stored(rig) == 0
    assert rig.cache.metrics.total("evict", "blocks", "device", "kv") >= 16
    rig.finish_all()


def test_what_was_evicted_and_is_computed_again_was_asked_for_again() -> None:
    rig = rig_of(device=8)
    for number in (0, 1, 2, 3):
        serve(rig, prompt(number))
    assert stored(rig) == 0
    assert rig.cache.match(prompt(0))[0].hit_pages == 0, "it went"
    serve(rig, prompt(0))
    assert stored(rig) == 4
    rig.finish_all()


def test_a_request_that_is_resumed_asks_once() -> None:
    rig = rig_of()
    serve(rig, prompt(0))
    live = rig.admit(prompt(1))
    rig.until_ready(live)
    rig.compute(live, 2 * PAGE)
    rig.preempt(live)
    live = rig.until_ready(rig.resume(live))
    for _ in range(10):
        rig.poll()
    assert stored(rig) == 0
    rig.compute(live, len(prompt(1)))
    rig.end(live)
    rig.settle()
    assert stored(rig) == 0
    rig.finish_all()


def test_an_engine_that_inserts_by_itself_asks_with_each_insert() -> None:
    tiers = [IndexTier(16), IndexTier(16, "host")]
    with PrefixCache([Group.full("kv", 1)], tiers, page_tokens=PAGE, write="write_after") as cache:
        for turn, expected in ((2, 0), (3, 2), (4, 3)):
            tokens = np.arange(turn * PAGE, dtype=np.int32)
            with cache.lease(cache.match(tokens, leave=0)[1]) as lease:
                cache.insert(tokens, lease)
            cache.flush()
            assert cache.metrics.get("store", "blocks", "host", "kv") == expected


@pytest.mark.parametrize("how", ["lease", "reserve"])
def test_keys_go_down_when_they_are_asked_for_again(how: str) -> None:
    keys = np.arange(60, dtype=np.uint8).reshape(3, 20)
    groups = [Group.full("kv", 64)]
    tiers = [HostTier(1 << 16, "host"), HostTier(1 << 16, "deep")]
    with FlatStore(groups, tiers, key_bytes=20, write="write_after") as store:
        store.commit(store.reserve(keys))
        store.flush()
        assert store.counters().get("store.blocks.deep.kv", 0) == 0
        if how == "lease":
            store.lease(keys[1:]).release()
        else:
            store.abort(store.reserve(keys[1:]))
        store.flush()
        assert store.counters()["store.blocks.deep.kv"] == 2
        store.check()


def test_a_policy_that_a_flat_store_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'write_back'"):
        FlatStore([Group.full("kv", 64)], [HostTier(1 << 16)], write="write_back")


@pytest.mark.parametrize("value", [0, -1, 255])
def test_counts_that_cannot_be_told_are_refused(value: int) -> None:
    with pytest.raises(ValueError, match="write_after must be"):
        Limits(write_after=value)


def test_what_is_no_count_is_refused() -> None:
    for value in (None, True, 1.5):
        with pytest.raises(TypeError, match="write_after must be an int"):
            Limits(write_after=value)  # type: ignore[arg-type]  # on purpose
