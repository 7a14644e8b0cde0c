"""A consumer says what it reads of a hit, groups, layers and shards, and that alone moves to it:
the bytes are counted, everything else in its slots stays as it was. It waits for a layer, not for
all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix import Demand, Group, Layout, Part, PrefixCache, View
from radix.ownership import Ownership
from tests.ticktier import peek
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PAGE, PAGES = 4, 5
PROMPT = np.arange(PAGE * PAGES + 1, dtype=np.int32)
AXES = (("layer", 3), ("token", PAGE), ("head", 4), ("dim", 2))
KV = Group("kv", Layout((Part("k", "uint8", AXES, "head", 4),), store_shards=4))
LATENT = Group("latent", Layout((Part("c", "uint8", (("layer", 3), ("token", PAGE), ("dim", 8))),)))
SHARD_BYTES = PAGE * 2  # of one layer and one head


def _stored(tmp_path: Path, *, deep: bool) -> tuple[PrefixCache, list[np.ndarray]]:
    """A cache that holds the prompt below an engine's device, and what its blocks are."""
    tiers = [DeviceTier(blocks=32, device="cpu"), HostTier(1 << 20)]
    if deep:
        tiers.append(DiskTier(tmp_path / "disk", limit_bytes=8 << 20))
    cache = PrefixCache([KV, LATENT], tiers, page_tokens=PAGE, ownership=Ownership.BORROWED)
    rng = np.random.default_rng(5)
    wanted = []
    rows = [list(range(PAGES + 1))] * 2
    request = cache.admit(PROMPT, slots=rows)
    for group, spec in enumerate((KV, LATENT)):
        blocks = rng.integers(1, 255, (PAGES, spec.block_bytes), np.uint8)
        wanted.append(blocks)
        for page in range(PAGES):
            peek(tiers[0], group, page)[:] = blocks[page]
    request.computed(len(PROMPT))
    request.finish()
    cache.flush()
    if deep:
        for group in (0, 1):
            cache.evict(group, PAGES, tier=0)
    return cache, wanted


def _lent(cache: PrefixCache, demand: Any) -> tuple[object, list[list[int]]]:
    rows = [list(range(10, 10 + PAGES + 1))] * 2
    for group in (0, 1):
        for slot in rows[group]:
            peek(cache.tiers[0], group, slot)[:] = 0
    return cache.admit(PROMPT, slots=rows, demand=demand), rows


@pytest.mark.parametrize("deep", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("layers", [(0, 1), (1, 3), (0, 3)])
@pytest.mark.parametrize("shards", [(0, 1), (2, 4), (0, 4)])
def test_view_moves_its_layers_and_shards_and_nothing_else(
    tmp_path: Path, deep: bool, layers: tuple[int, int], shards: tuple[int, int]
) -> None:
    cache, wanted = _stored(tmp_path, deep=deep)
    before = cache.metrics.get("load", "bytes", "host", "kv")
    request, rows = _lent(cache, Demand(groups=(0,), view=View(layers, shards)))
    request.wait()
    assert request.hit_tokens == PAGE * PAGES
    runs = KV.layout.view(layers, shards)
    asked = int(runs["bytes"].sum())
    assert asked == (layers[1] - layers[0]) * (shards[1] - shards[0]) * SHARD_BYTES
    assert cache.metrics.get("load", "bytes", "host", "kv") - before == asked * PAGES
    for page in range(PAGES):
        expected = np.zeros(KV.block_bytes, np.uint8)
        for run in runs:
            span = slice(int(run["offset"]), int(run["offset"] + run["bytes"]))
            expected[span] = wanted[0][page][span]
        assert np.array_equal(peek(cache.tiers[0], 0, rows[0][page]), expected)
        assert not peek(cache.tiers[0], 1, rows[1][page]).any(), "nobody reads the other group"
    assert cache.metrics.get("load", "bytes", "host", "latent") == 0
    request.abort()
    cache.flush()
    cache.check()
    cache.close()


def test_layer_after_layer_comes_up_and_can_be_waited_for(tmp_path: Path) -> None:
    cache, wanted = _stored(tmp_path, deep=False)
    request, rows = _lent(cache, Demand(by_layer=True))
    for layer in range(3):
        for group in (0, 1):
            assert request.wait_layer(group, layer)
            assert request.layers(group) > layer
            run = [
                (int(offset), int(nbytes))
                for offset, nbytes in (cache.groups[group].layout.runs[:, layer]).tolist()
            ]
            for page in range(PAGES):
                found = peek(cache.tiers[0], group, rows[group][page])
                for offset, nbytes in run:
                    span = slice(offset, offset + nbytes)
                    assert np.array_equal(found[span], wanted[group][page][span])
    request.wait()
    assert request.layers(0) == 3 and request.wait_layer(0, 2)
    request.abort()
    cache.close()


def test_what_lies_deeper_is_not_on_its_way_before_a_poll(tmp_path: Path) -> None:
    cache, _ = _stored(tmp_path, deep=True)
    request, _ = _lent(cache, Demand(by_layer=True))
    assert request.layers(0) == 0 and not request.wait_layer(0, 0, 0.0)
    request.wait()
    assert request.layers(0) == 3
    request.abort()
    cache.close()


@pytest.mark.parametrize(
    ("demand", "kind", "message"),
    [
        ({"groups": (0,)}, TypeError, "demand must be a Demand, not dict"),
        (Demand(groups=(2,)), ValueError, "demand: group 2, expected 0 to 1"),
        (Demand(groups=(0,), view=View((0, 4), (0, 1))), ValueError, "layers"),
        (Demand(groups=(0,), view=View((0, 1), (3, 5))), ValueError, "shards"),
    ],
)
def test_demand_that_cannot_be_met_is_refused_by_name(
    tmp_path: Path, demand: object, kind: type[Exception], message: str
) -> None:
    cache, _ = _stored(tmp_path, deep=False)
    before = cache.counters(), cache.usage(), cache.tree.stats().leases
    with pytest.raises(kind, match=message):
        _lent(cache, demand)
    assert (cache.counters(), cache.usage(), cache.tree.stats().leases) == before
    cache.close()


def test_view_of_blocks_that_the_cache_would_share_is_refused() -> None:
    cache = PrefixCache(
        [KV], [DeviceTier(blocks=8, device="cpu"), HostTier(1 << 20)], page_tokens=4
    )
    with pytest.raises(ValueError, match="would share as whole ones"):
        cache.admit(PROMPT, demand=Demand(view=View((0, 1), (0, 1))))
    cache.close()
