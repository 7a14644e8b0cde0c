"""Random batches on our storage and on the engine's own file backend: the same answers and the same
bytes, whatever the pools, with zero-copy and with flat tensors, in a directory and in a service.
The file backend is the oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from tests.sglang.rig import (
    Below,
    file_backend,
    fill,
    flat_bytes,
    indices,
    key,
    mha_pool,
    mla_pool,
    ours,
    seeded,
    state_pool,
)

KEYS = 30
everywhere = pytest.mark.parametrize("below", ["directory", "service", "tcp"], indirect=True)
POOLS = {
    "keys and values": lambda: {"kv": mha_pool()},
    "layer first": lambda: {"kv": mha_pool("layer_first")},
    "latents": lambda: {"kv": mla_pool("page_first_direct")},
    "a state beside": lambda: {"kv": mha_pool("page_first_direct"), "mamba": state_pool()},
    "a window and a state": lambda: {
        "kv": mha_pool(),
        "swa": mha_pool("page_first", tokens=32, head_num=1),
        "mamba": state_pool(side=True),
    },
}


class Both:
    """Both storages, each over pools of its own that hold the same bytes."""

    def __init__(self, below: Below, folder: Path, make: Any, seed: int, v1: int) -> None:
        self.chance, self.where = seeded(seed)
        self.mine, self.theirs = make(), make()
        self.radix = ours(below, self.mine, extra={"interface_v1": v1})
        self.file = file_backend(folder / "file", self.theirs)
        self.seed = seed
        self.refill(0)

    def refill(self, round_: int) -> None:
        for name in self.mine:
            for pools in (self.mine, self.theirs):
                fill(pools[name], self.seed * 100 + round_ * 10 + len(name))

    def pages(self, name: str, count: int) -> list[int]:
        pool = self.mine[name]
        return self.chance.sample(range(pool.size // pool.page_size), count)

    def transfers(self, pages: dict[str, list[int]], keys: dict[str, list[str]]) -> Any:
        for pools in (self.mine, self.theirs):
            yield [
                PoolTransfer(PoolName(name), indices(pools[name], pages[name]), keys=keys[name])
                for name in pages
            ]

    def same_memory(self, text: str) -> None:
        for name, pool in self.mine.items():
            for page in range(pool.size // pool.page_size):
                same = flat_bytes(pool, page) == flat_bytes(self.theirs[name], page)
                assert same, self.where(f"{text}: {name} page {page} differs")

    def close(self) -> None:
        self.radix.close()


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Byte by byte: what is no number equals nothing, not even itself."""
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def batch(both: Both) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    names = [name for name in both.mine if both.chance.random() < 0.8] or ["kv"]
    pages, keys = {}, {}
    for name in names:
        count = both.chance.randint(0, 8)
        pages[name] = both.pages(name, count)
        keys[name] = [key(number) for number in both.chance.sample(range(KEYS), count)]
    return pages, keys


def asked(both: Both) -> list[PoolTransfer]:
    policies = [PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES]
    return [
        PoolTransfer(
            PoolName(name),
            keys=["any"] * both.chance.randint(0, 4),
            hit_policy=both.chance.choice(policies),
        )
        for name in both.mine
        if name != "kv"
    ]


@everywhere
@pytest.mark.parametrize("v1", [1, 0])
@pytest.mark.parametrize("kind", POOLS)
def test_batches_of_several_pools_answer_alike(
    below: Below, tmp_path: Path, kind: str, v1: int
) -> None:
    both = Both(below, tmp_path, POOLS[kind], seed=len(kind) + v1, v1=v1)
    for step in range(60):
        both.refill(step)
        pages, keys = batch(both)
        mine, theirs = both.transfers(pages, keys)
        if both.chance.random() < 0.6:
            answers = both.radix.batch_set_v2(mine), both.file.batch_set_v2(theirs)
        else:
            answers = both.radix.batch_get_v2(mine), both.file.batch_get_v2(theirs)
            both.same_memory(f"step {step}")
        assert answers[0] == answers[1], both.where(f"step {step}")
        run = [key(number) for number in range(both.chance.randint(0, KEYS))]
        both.chance.shuffle(run)
        first = both.radix.batch_exists(run), both.file.batch_exists(run)
        assert first[0] == first[1], both.where(f"step {step}: batch_exists")
        transfers = asked(both)
        found = [each.batch_exists_v2(run, transfers) for each in (both.radix, both.file)]
        assert found[0] == found[1], both.where(f"step {step}: batch_exists_v2")
    assert not {name for name in both.radix.counters() if name.startswith("failed")}
    both.close()


@everywhere
@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_flat_tensors_answer_alike(below: Below, tmp_path: Path, layout: str) -> None:
    both = Both(below, tmp_path, lambda: {"kv": mha_pool(layout)}, 7, v1=0)
    pool = both.mine["kv"]
    for step in range(60):
        both.refill(step)
        count = both.chance.randint(1, 6)
        keys = [key(number) for number in both.chance.sample(range(KEYS), count)]
        if both.chance.random() < 0.5:
            values = [pool.get_data_page(p * pool.page_size) for p in both.pages("kv", count)]
            answers: list[Any] = [each.batch_set(keys, values) for each in (both.radix, both.file)]
        else:
            into = [[pool.get_dummy_flat_data_page() for _ in keys] for _ in range(2)]
            got = both.radix.batch_get(keys, into[0]), both.file.batch_get(keys, into[1])
            answers = [[page is not None for page in pages] for pages in got]
            for mine, theirs in zip(*got, strict=True):
                assert mine is None or same(mine, theirs), both.where(f"step {step}")
        assert answers[0] == answers[1], both.where(f"step {step}")
        assert both.radix.exists(keys[0]) == both.file.exists(keys[0])
        page = pool.get_data_page(both.pages("kv", 1)[0] * pool.page_size)
        assert both.radix.set(keys[-1], page) and both.file.set(keys[-1], page)
        one = [each.get(keys[-1], torch.zeros_like(page)) for each in (both.radix, both.file)]
        assert same(*one), both.where(f"step {step}: one page")
        assert both.radix.get(key(KEYS + step)) is None
    both.close()


def test_every_length_is_told_at_which_all_pools_can_be_restored(
    below: Below, tmp_path: Path
) -> None:
    both = Both(below, tmp_path, POOLS["a window and a state"], seed=3, v1=1)
    run = [key(number) for number in range(10)]
    places = {"kv": range(8), "swa": (0, 1, 2, 4, 5, 6, 7), "mamba": (1, 4, 6)}
    for name, held in places.items():
        pages = {name: list(range(len(list(held))))}
        for each, transfers in zip(
            (both.radix, both.file),
            both.transfers(pages, {name: [run[p] for p in held]}),
            strict=True,
        ):
            assert all(each.batch_set_v2(transfers)[PoolName(name)])
    transfers = [
        PoolTransfer(PoolName.SWA, keys=["", ""], hit_policy=PoolHitPolicy.TRAILING_PAGES),
        PoolTransfer(PoolName.MAMBA, keys=[""], hit_policy=PoolHitPolicy.TRAILING_PAGES),
    ]
    found = both.radix.batch_exists_v2(run, transfers)
    assert found == both.file.batch_exists_v2(run, transfers)
    assert found.restorable_prefix_pages == [2, 7], "5 lacks a page of the window"
    assert found.kv_hit_pages == 7
    assert found.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.SWA: 8, PoolName.MAMBA: 7}
    both.close()


def test_blocks_of_keys_give_a_verdict_of_their_own_and_limit_nothing(below: Below) -> None:
    """The file backend knows no such policy: what the engine's own words say is asked here."""
    pools = {"kv": mha_pool(), "indexer": mha_pool(head_num=1)}
    with_blocks = ours(below, pools)
    run = [key(number) for number in range(12)]
    with_blocks.batch_set_v1(run, indices(pools["kv"], list(range(12))))
    held = [run[0], run[4]]  # the first pages of two blocks of four; of the third none
    with_blocks.batch_set_v2(
        [PoolTransfer(PoolName.INDEXER, indices(pools["indexer"], [0, 1]), keys=held)]
    )
    ask = PoolTransfer(
        PoolName.INDEXER, hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=4, group_pages=1
    )
    found = with_blocks.batch_exists_v2(run, [ask])
    assert found.kv_hit_pages == 12
    assert found.restorable_prefix_pages == list(range(1, 13))
    assert found.extra_pool_hit_pages == {PoolName.KV: 12, PoolName.INDEXER: 8}
    ask.group_pages = 2
    assert PoolName.INDEXER not in with_blocks.batch_exists_v2(run, [ask]).extra_pool_hit_pages
    with_blocks.close()
