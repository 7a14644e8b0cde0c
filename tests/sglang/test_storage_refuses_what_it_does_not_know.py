"""What may not be mixed is a miss, and what cannot be handled is refused at start, with what to
change: another dtype, layout, model, rank or revision under one directory; ranks that would share
pages; pools without pages of their own; options that do not exist; a directory that another holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolName
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.runtime_context import _ConfigBag, get_context

from radix.engines.sglang import RadixHiCache
from radix.engines.sglang.storage_options import Options
from radix.engines.versions import require
from radix.errors import RequestError, TierUnavailableError, UnsupportedError
from tests.sglang.rig import (
    attach,
    config,
    fill,
    indices,
    key,
    mha_pool,
    mla_pool,
    ours,
    page_bytes,
    state_pool,
)

KEYS = [key(n) for n in range(4)]
PAGES = [0, 1, 2, 3]


def stored(folder: Path) -> None:
    """Four pages under the usual configuration."""
    pool = mha_pool()
    fill(pool, 1)
    storage = ours(folder, {"kv": pool})
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    storage.close()


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dtype of the same width": (lambda: mha_pool(dtype=torch.float16), {}),
    "dtype of another width": (lambda: mha_pool(dtype=torch.float32), {}),
    "layout": (lambda: mha_pool("page_first_direct"), {}),
    "layout in more fragments": (lambda: mha_pool("layer_first"), {}),
    "heads": (lambda: mha_pool(head_num=4), {}),
    "kind of pool": (mla_pool, {}),
    "model": (mha_pool, {"model_name": "org/other"}),
    "no model": (mha_pool, {"model_name": None}),
    "revision": (mha_pool, {"extra": {"revision": "b"}}),
    "meaning of the bytes": (mha_pool, {"extra": {"kv_dtype": "fp8_e5m2"}}),
    "way of passing": (mha_pool, {"extra": {"interface_v1": 0}}),
    "rank": (mha_pool, {"tp_rank": 1, "tp_size": 2}),
    "number of ranks": (mha_pool, {"tp_size": 2}),
    "stage": (mha_pool, {"pp_rank": 0, "pp_size": 2}),
    "context rank": (mha_pool, {"attn_cp_rank": 1, "attn_cp_size": 2}),
    "data rank": (mha_pool, {"dp_rank": 1}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_configuration_under_one_directory_is_a_miss(tmp_path: Path, what: str) -> None:
    stored(tmp_path)
    make, changes = OTHERS[what]
    pool = make()
    fill(pool, 2)
    before = [page_bytes(pool, page) for page in PAGES]
    storage = ours(tmp_path, {"kv": pool}, **changes)
    assert storage.batch_exists(KEYS) == 0
    assert storage.batch_get_v1(KEYS, indices(pool, PAGES)) == [False] * 4
    assert [page_bytes(pool, page) for page in PAGES] == before
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    storage.close()


def test_one_more_pool_is_another_configuration(tmp_path: Path) -> None:
    stored(tmp_path)
    pools = {"kv": mha_pool(), "mamba": state_pool()}
    storage = ours(tmp_path, pools)
    assert storage.batch_exists(KEYS) == 0
    storage.close()


def test_the_same_configuration_finds_its_pages_though_pools_come_in_another_order(
    tmp_path: Path,
) -> None:
    first = {"kv": mha_pool(), "mamba": state_pool(), "swa": mha_pool(tokens=32)}
    storage = ours(tmp_path, first)
    storage.batch_set_v1(KEYS, indices(first["kv"], PAGES))
    storage.close()
    again = {"kv": mha_pool(), "swa": mha_pool(tokens=32), "mamba": state_pool()}
    storage = ours(tmp_path, again)
    assert storage.batch_exists(KEYS) == 4
    storage.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_mla_model": True, "tp_size": 2}, "an MLA model on 2 ranks.*name a 'service'"),
        ({"is_mla_model": True, "attn_cp_size": 4}, "an MLA model on 4 ranks of context"),
        (
            {"is_mla_model": True, "tp_size": 2, "dcp_size": 2, "logical_page_size": 8},
            "set --dcp-size 1",
        ),
    ],
)
def test_ranks_that_would_share_pages_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        RadixHiCache(config(tmp_path, **changes), {})
    assert not list(tmp_path.iterdir())


def test_stages_of_an_mla_model_hold_layers_of_their_own_and_are_let_in(tmp_path: Path) -> None:
    storages = []
    for stage in range(2):
        pool = mla_pool()
        changed = {"is_mla_model": True, "pp_rank": stage, "pp_size": 2}
        storages.append((ours(tmp_path, {"kv": pool}, **changed), pool))
    storage, pool = storages[0]
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    assert [each.batch_exists(KEYS) for each, _ in storages] == [4, 0]
    for each, _ in storages:
        each.close()


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"limit_byte": 5}, ValueError, "unknown keys limit_byte; known are directory"),
        ({"max_size": 5}, ValueError, "max_size is limit_bytes here"),
        ({"limit_bytes": 0}, ValueError, "limit_bytes must be at least 1"),
        ({"limit_bytes": "10G"}, TypeError, "limit_bytes must be an int, not str"),
        ({"limit_bytes": True}, TypeError, "limit_bytes must be an int, not bool"),
        ({"directory": ""}, ValueError, "directory must not be empty"),
        ({"directory": 5}, TypeError, "directory must be text"),
        ({"policy": "best"}, ValueError, "policy"),
        ({"threads": 0}, ValueError, "threads must be at least 1"),
    ],
)
def test_options_are_refused_whole(
    tmp_path: Path, extra: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        RadixHiCache(config(tmp_path, extra=extra), {})


def test_what_is_missing_is_named() -> None:
    for given in (None, {}, {"directory": "here"}):
        with pytest.raises(ValueError, match=r"extra-config needs .*limit_bytes, of directory"):
            Options.of(given)


def test_a_limit_without_room_for_a_page_is_refused_when_the_pools_are_known(
    tmp_path: Path,
) -> None:
    storage = RadixHiCache(config(tmp_path, extra={"limit_bytes": 1 << 16}), {})
    storage.register_mem_pool_host(mha_pool())
    with pytest.raises(ValueError, match=r"limit_bytes 65536 is too small .* needs at least \d+"):
        storage.on_host_pools_registered()
    assert storage.batch_exists(KEYS) == 0


def test_a_directory_that_is_held_or_of_another_kind_is_refused_at_start(tmp_path: Path) -> None:
    holder = ours(tmp_path / "a", {"kv": mha_pool()})
    with pytest.raises(TierUnavailableError, match="is held by pid"):
        ours(tmp_path / "a", {"kv": mha_pool()})
    assert holder.batch_exists(KEYS) == 0
    with pytest.raises(TierUnavailableError, match="is held by pid"):
        ours(tmp_path / "a", {"kv": mha_pool()})
    holder.close()
    ours(tmp_path / "a", {"kv": mha_pool()}).close()
    strange = RadixHiCache(config(tmp_path / "b"), {})
    strange.directory.mkdir(parents=True)
    (strange.directory / "thesis.txt").write_text("mine")
    with pytest.raises(TierUnavailableError, match="not a disk tier"):
        attach(strange, {"kv": mha_pool()})


def test_pools_whose_pages_cannot_be_had_are_refused_by_name(tmp_path: Path) -> None:
    storage = RadixHiCache(config(tmp_path), {})
    with pytest.raises(UnsupportedError, match="a LogicalHostPool has no memory"):
        storage.register_mem_pool_host(LogicalHostPool(64, 4))
    pool = mha_pool()
    pool.layout = "page_unified"  # its pages are named by keys of another kind
    with pytest.raises(UnsupportedError, match="start with --hicache-mem-layout page_first"):
        storage.register_mem_pool_host(pool)
    two_widths = mha_pool("page_first", v_head_dim=4)
    flat = RadixHiCache(config(tmp_path, extra={"interface_v1": 0}), {})
    with pytest.raises(UnsupportedError, match="neither in place"):
        flat.register_mem_pool_host(two_widths)
    pool = mha_pool()
    pool.shared_allocation_domain = object()
    with pytest.raises(UnsupportedError, match="moves its pages while they are in use"):
        storage.register_mem_pool_host(pool)


def test_a_cache_of_plain_bytes_must_say_what_they_mean(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="name it with 'kv_dtype'"):
        ours(tmp_path, {"kv": mha_pool(dtype=torch.float8_e4m3fn)})
    storage = ours(
        tmp_path, {"kv": mha_pool(dtype=torch.float8_e4m3fn)}, extra={"kv_dtype": "fp8_e4m3"}
    )
    assert storage.batch_exists(KEYS) == 0
    storage.close()


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tells parts of the engine's configuration, as a server does before its first request."""

    def tell(**parts: dict[str, Any]) -> None:
        bags = {name: _ConfigBag(name) for name in parts}
        for name, facts in parts.items():
            for field, fact in facts.items():
                bags[name]._set(field, fact)
        monkeypatch.setattr(get_context(), "_config_bags", bags)

    return tell


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_path", "org/b"),
        ("context_length", 65536),
        ("revision", "v2"),
        ("quantization", "fp8"),
        ("load_format", "dummy"),
    ],
)
def test_one_served_name_does_not_make_two_models_one(
    tmp_path: Path, publish: Callable[..., None], field: str, value: object
) -> None:
    """A storage is told the name that the server goes by; what runs is in the configuration."""
    told = {"model_path": "org/a", "load_format": "auto"}
    told |= dict.fromkeys(("revision", "quantization", "context_length"), "")

    def under(**changes: Any) -> int:
        publish(model=told | {"kv_cache_dtype": "auto"} | changes)
        storage = ours(tmp_path, {"kv": (pool := mha_pool())}, model_name="default")
        found: int = storage.batch_exists(KEYS)
        assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
        storage.close()
        return found

    assert [under(), under(), under(**{field: value}), under()] == [0, 4, 0, 4]


def test_weights_that_replace_others_in_their_folder_are_another_model(
    tmp_path: Path, publish: Callable[..., None]
) -> None:
    """So is a configuration that was edited there: longer contexts are had so."""
    folder = tmp_path / "model"
    folder.mkdir()
    weights, said = folder / "model.safetensors", folder / "config.json"
    weights.write_bytes(bytes(1000))
    said.write_text("{}")
    publish(model={"model_path": str(folder), "kv_cache_dtype": "auto"})

    def found() -> int:
        storage = ours(tmp_path / "kept", {"kv": (pool := mha_pool())})
        there: int = storage.batch_exists(KEYS)
        assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
        storage.close()
        return there

    assert [found(), found()] == [0, 4]
    said.write_text('{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}')
    assert [found(), found()] == [0, 4]
    weights.write_bytes(b"\1" * 1000)
    assert [found(), found()] == [0, 4]


def test_adapters_need_a_revision(tmp_path: Path, publish: Callable[..., None]) -> None:
    publish(lora={"enable_lora": True})
    with pytest.raises(UnsupportedError, match=r"enable-lora.*name a 'revision'"):
        ours(tmp_path, {"kv": mha_pool()})
    ours(tmp_path, {"kv": mha_pool()}, extra={"revision": "one"}).close()
    publish(lora={"enable_lora": False})
    ours(tmp_path, {"kv": mha_pool()}).close()


def test_pools_are_fixed_by_the_first_use_and_known_before_it(tmp_path: Path) -> None:
    early = RadixHiCache(config(tmp_path), {})
    with pytest.raises(RequestError, match="no KV host pool was registered"):
        early.on_host_pools_registered()
    pool = mha_pool()
    storage = RadixHiCache(config(tmp_path), {})
    storage.register_mem_pool_host(pool)
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [False] * 4, (
        "not all pools are known"
    )
    assert storage.batch_set(KEYS, []) is False and storage.batch_get(KEYS) == [None] * 4
    storage.on_host_pools_registered()
    storage.register_mem_host_pool_v2(state_pool(), PoolName.MAMBA)  # a pool that comes late
    storage.register_mem_host_pool_v2(pool, PoolName.KV)
    assert storage.batch_set_v1(KEYS, indices(pool, PAGES)) == [True] * 4
    with pytest.raises(UnsupportedError, match="'swa' came after the first use"):
        storage.register_mem_host_pool_v2(mha_pool(), PoolName.SWA)
    with pytest.raises(UnsupportedError, match="two different host pools"):
        storage.register_mem_host_pool_v2(mha_pool(), PoolName.KV)
    assert storage.batch_exists(KEYS) == 4
    storage.close()


def test_an_engine_without_what_the_adapter_needs_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"HiCacheFile.batch_get_v3 is not there.*0\.5\.23"):
        require("sglang", HiCacheFile, {"batch_get_v3": ["keys"]})
