"""Pages come back as they were stored: from every layout of a pool straight from its memory, after
a restart, under pressure, from three threads at once, through the engine's own injector of faults.
What is damaged on the disk is a miss, never other bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageFailureInjector,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from radix.errors import TierUnavailableError
from radix.policy.limits import Breaker
from radix.tier import TierMode
from tests.servicerig import together
from tests.sglang.rig import (
    Below,
    attach,
    config,
    fill,
    flat_bytes,
    indices,
    key,
    mark,
    mha_pool,
    mla_pool,
    number_of,
    ours,
    page_bytes,
    seeded,
    state_pool,
)
from tiers.disk import DiskTier
from tiers.disk_open import limit_for

MAKERS: dict[str, tuple[Callable[[], Any], int]] = {
    "mha layer_first": (lambda: mha_pool("layer_first"), 6),
    "mha page_first": (lambda: mha_pool("page_first"), 2),
    "mha page_first_direct": (lambda: mha_pool("page_first_direct"), 2),
    "mha page_head": (lambda: mha_pool("page_head"), 2),
    "mha of two widths": (lambda: mha_pool("page_first", v_head_dim=4), 2),
    "mha of two widths, direct": (lambda: mha_pool("page_first_direct", v_head_dim=4), 2),
    "mla layer_first": (lambda: mla_pool("layer_first"), 3),
    "mla page_first": (lambda: mla_pool("page_first"), 1),
    "mla page_first_direct": (lambda: mla_pool("page_first_direct"), 1),
    "state": (state_pool, 3),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_pages_leave_and_enter_the_pool_in_place(below: Below, kind: str) -> None:
    make, fragments = MAKERS[kind]
    pools = {"kv": mha_pool(), "mamba": make()} if kind == "state" else {"kv": make()}
    name = PoolName.MAMBA if kind == "state" else PoolName.KV
    pool = pools[str(name)]
    storage = ours(below, pools)
    assert storage._pools[str(name)].lent
    assert len(storage._pools[str(name)].arrays) == fragments
    fill(pool, 1)
    keys, pages = [key(n) for n in range(9)], list(range(9))
    before = [page_bytes(pool, page) for page in pages]
    stored = storage.batch_set_v2([PoolTransfer(name, indices(pool, pages), keys=keys)])
    assert stored == {name: [True] * 9}
    fill(pool, 2)
    rest = {page: page_bytes(pool, page) for page in range(pool.size // pool.page_size)}
    into = [10, 3, 30, 12, 7, 31, 20, 0, 15]
    loaded = storage.batch_get_v2([PoolTransfer(name, indices(pool, into), keys=keys)])
    assert loaded == {name: [True] * 9}
    for page, content in rest.items():
        expected = before[into.index(page)] if page in into else content
        assert page_bytes(pool, page) == expected, f"page {page} of {kind}"
    storage.close()


@pytest.mark.parametrize("v1", [1, 0])
def test_a_restart_is_warm_and_durable_without_a_close(tmp_path: Path, v1: int) -> None:
    pool, again = mha_pool(), mha_pool()
    fill(pool, 1)
    keys, pages = [key(n) for n in range(6)], list(range(6))
    child = os.fork()
    if child == 0:  # a process that stores and dies at once
        code = 1
        try:
            first = ours(tmp_path, {"kv": pool}, extra={"interface_v1": v1})
            code = int(first.batch_set_v1(keys, indices(pool, pages)) != [True] * 6)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    second = ours(tmp_path, {"kv": again}, extra={"interface_v1": v1})
    assert second.batch_exists([*keys, key(99)]) == 6
    assert second.batch_get_v1(keys, indices(again, pages)) == [True] * 6
    for page in pages:
        assert flat_bytes(again, page) == flat_bytes(pool, page)
    second.close()


def test_damaged_pages_are_misses_and_are_stored_anew(tmp_path: Path) -> None:
    pool = mha_pool()
    fill(pool, 1)
    keys, pages = [key(n) for n in range(8)], list(range(8))
    with_damage = ours(tmp_path, {"kv": pool})
    assert all(with_damage.batch_set_v1(keys, indices(pool, pages)))
    before = [page_bytes(pool, page) for page in pages]
    with_damage.close()
    for slab in sorted(tmp_path.rglob("*")):
        if slab.is_file() and slab.stat().st_size > 8 * 4096 and "mdb" not in slab.name:
            raw = bytearray(slab.read_bytes())
            for page in (2, 5):  # found by their bytes: where they lie is the tier's affair
                at = raw.find(before[page])
                assert at >= 0
                raw[at + 7] ^= 1
            slab.write_bytes(raw)
    storage = ours(tmp_path, {"kv": pool})
    fill(pool, 2)
    assert storage.batch_exists(keys) == 8, "nothing was read yet"
    good = storage.batch_get_v1(keys, indices(pool, pages))
    assert good == [n not in (2, 5) for n in range(8)]
    assert [page_bytes(pool, p) for p in pages if good[p]] == [before[p] for p in pages if good[p]]
    assert storage.batch_exists(keys) == 2
    fill(pool, 1)
    assert storage.batch_set_v1(keys, indices(pool, pages)) == [True] * 8
    assert storage.batch_exists(keys) == 8
    storage.close()


def test_the_limit_holds_and_the_oldest_pages_go(tmp_path: Path) -> None:
    pool = mha_pool(tokens=256)
    probe = ours(tmp_path / "probe", {"kv": pool})
    limit = limit_for([probe._pools["kv"].group], 16, 1)
    storage = ours(tmp_path / "small", {"kv": pool}, extra={"limit_bytes": limit})
    fill(pool, 1)
    for start in range(0, 120, 8):
        keys = [key(n) for n in range(start, start + 8)]
        assert storage.batch_set_v1(keys, indices(pool, list(range(8)))) == [True] * 8
        files = [path for path in (tmp_path / "small").rglob("*") if path.is_file()]
        assert sum(path.stat().st_blocks * 512 for path in files) <= limit
    assert storage.batch_exists([key(n) for n in range(112, 120)]) == 8
    assert storage.batch_exists([key(0)]) == 0
    many = [key(1000 + n) for n in range(pool.size // pool.page_size)]
    kept = storage.batch_set_v1(many, indices(pool, list(range(len(many)))))
    assert 0 < sum(kept) < len(many), "what finds no room is told, one by one"
    assert storage.batch_exists(many) == kept.index(False)
    storage.close()


def test_three_threads_at_once_get_their_own_pages(below: Below) -> None:
    """As the engine calls: one asks, one brings, one keeps; each page says which key it is of."""
    pools = {"kv": mha_pool(tokens=128), "mamba": state_pool(32)}
    storage = ours(below, pools)
    pool, seed = pools["kv"], 11
    size = pool.size // pool.page_size
    spans = [range(n * size // 3, (n + 1) * size // 3) for n in range(3)]

    def work(which: int) -> None:
        chance, where = seeded(seed * 10 + which)
        for step in range(40):
            pages = chance.sample(spans[which], 5)
            numbers = chance.sample(range(1, 40), 5)
            keys = [key(n) for n in numbers]
            if which == 2 or chance.random() < 0.3:
                for page, number in zip(pages, numbers, strict=True):
                    mark(pool, page, number)
                assert storage.batch_set_v1(keys, indices(pool, pages)) == [True] * 5, where("set")
                for page in pages:
                    mark(pool, page, -1)  # the engine uses its slots again at once
            elif chance.random() < 0.7:
                good = storage.batch_get_v1(keys, indices(pool, pages))
                for page, number, came in zip(pages, numbers, good, strict=True):
                    assert not came or number_of(pool, page) == number, where(f"step {step}")
            else:
                transfer = PoolTransfer(PoolName.MAMBA, keys=[""])
                assert storage.batch_exists(keys) <= 5
                assert storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
                storage.get_stats()

    together(*(partial(work, which) for which in range(3)))
    assert not {name for name in storage.counters() if name.startswith("failed")}
    storage.close()


def test_the_engine_makes_it_and_its_injected_faults_cost_hits_only(
    below: Below, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.002")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    pool = mha_pool()
    made = StorageBackendFactory.create_backend("dynamic", config(below), pool)
    assert isinstance(made, HiCacheStorageFailureInjector)
    assert type(made._backend).__name__ == "RadixHiCache"
    attach(made, {"kv": pool})
    fill(pool, 1)
    before = [page_bytes(pool, page) for page in range(10)]
    kept, brought = 0, 0
    for _ in range(12):
        for page in range(10):
            kept += sum(made.batch_set_v1([key(page)], indices(pool, [page])))
            good = made.batch_get_v1([key(page)], indices(pool, [20]))
            brought += sum(good)
            assert not good[0] or page_bytes(pool, 20) == before[page]
            assert made.batch_exists_v2([key(page)]).kv_hit_pages in (0, 1)
    assert 0 < kept < 120 and 0 < brought < 120
    made.close()


def test_clear_forgets_every_page_for_good(tmp_path: Path) -> None:
    pool = mha_pool()
    storage = ours(tmp_path, {"kv": pool})
    keys = [key(n) for n in range(4)]
    assert all(storage.batch_set_v1(keys, indices(pool, [0, 1, 2, 3])))
    assert storage.clear() is True
    assert storage.batch_exists(keys) == 0
    assert all(storage.batch_set_v1(keys[:1], indices(pool, [0])))
    storage.close()
    again = ours(tmp_path, {"kv": pool})
    assert again.batch_exists(keys) == 1, "only what was stored afterwards"
    again.close()


def test_what_cannot_be_forgotten_is_served_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on with other weights, whatever clear answers."""
    pool = mha_pool()
    storage = ours(tmp_path, {"kv": pool})
    assert storage.batch_set_v1([key(0)], indices(pool, [0])) == [True]

    def refuses(tier: DiskTier) -> None:
        raise TierUnavailableError(tier.name, "no new epoch: the medium is read-only")

    monkeypatch.setattr(DiskTier, "renew", refuses)
    assert storage.clear() is False
    assert storage.batch_exists([key(0)]) == 0
    assert storage.batch_get_v1([key(0)], indices(pool, [0])) == [False]
    assert storage.batch_set_v1([key(0)], indices(pool, [0])) == [False]
    storage.close()


def test_a_disk_that_was_taken_out_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the store had no clock, by which a disk that was away for a moment comes back."""
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    storage = ours(tmp_path, {"kv": mha_pool()})
    assert storage.batch_exists([key(0)]) == 0
    monkeypatch.undo()
    assert storage._opened is not None
    flat = storage._opened._store
    number = len(flat.tiers) - 1
    for _ in range(Breaker().failures):
        flat.transfers.breakers.ended(number, storing=False, good=False)
    flat.poll()
    assert flat.tiers[number].mode is TierMode.OFF
    now[0] += 2_000_000_000
    flat.poll()
    assert flat.tiers[number].mode is TierMode.ON
    storage.close()


def test_nothing_is_raised_while_the_engine_serves(below: Below) -> None:
    pool = mha_pool()
    storage = ours(below, {"kv": pool})
    keys, rows = [key(0), key(1)], indices(pool, [0, 1])
    assert storage.batch_set_v1(keys, rows[:-1]) == [False, False], "too few indices"
    assert storage.batch_set_v1(keys, rows + 1) == [False, False], "within a page"
    assert storage.batch_get_v1(keys, indices(pool, [0, 10**6])) == [False, False]
    assert storage.batch_get_v1(keys, indices(pool, [3, 3])) == [False, False], "one row, twice"
    unknown = PoolTransfer(PoolName.SWA, rows, keys=keys)
    assert storage.batch_set_v2([unknown, PoolTransfer(PoolName.KV, rows, keys=keys)]) == {
        PoolName.SWA: [False, False],
        PoolName.KV: [True, True],
    }
    assert storage.batch_exists_v2(keys, [unknown]).kv_hit_pages == 0
    assert storage.get(key(0)) is None and storage.set(key(0), torch.zeros(8)) is False
    assert {name for name in storage.counters() if name.startswith("failed")} >= {
        "failed.set.ValueError",
        "failed.get.ValueError",
        "failed.set.RequestError",
        "failed.set.UnsupportedError",
    }
    storage.close()
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, rows) == [False, False]
    assert storage.clear() is False
    storage.close()


def test_the_engines_metrics_tell_pages_and_speed(tmp_path: Path) -> None:
    pool = mha_pool()
    storage = ours(tmp_path, {"kv": pool}, enable_storage_metrics=True)
    keys, rows = [key(n) for n in range(3)], indices(pool, [0, 1, 2])
    storage.batch_set_v1(keys, rows)
    storage.batch_get_v1(keys, rows)
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [3])
    assert stats.backup_bandwidth[0] > 0 and stats.prefetch_bandwidth[0] > 0
    assert storage.get_stats().backup_pgs == []
    assert storage.counters()["load.verified.disk.kv"] == 3
    storage.close()
    plain = ours(tmp_path, {"kv": pool})
    assert plain.get_stats() is None
    plain.close()
