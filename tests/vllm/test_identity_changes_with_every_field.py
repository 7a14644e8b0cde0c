"""A directory is warm for the same engine settings alone: everything that decides what the bytes
under a block hash mean changes the namespace, and what changes from start to start does not. Golden
vectors hold the encoding: a directory of an earlier version of the adapter stays warm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
)

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.identity import (
    KeyReader,
    hash_is_stable,
    namespace,
    require_stable_hashes,
)
from radix.engines.vllm.options import Options
from radix.errors import UnsupportedError
from tests.vllm.workerrig import config_of

NONE_HASH = bytes(range(32))
GEOMETRY = Geometry(
    1, 1, (0,), ((4096, 4096),), (("device", "cpu"), ("hash_algorithm", "sha256_cbor"))
)
OPTIONS = Options(1 << 30)


def digest(
    config: OffloadingConfig | None = None,
    geometry: Geometry = GEOMETRY,
    options: Options = OPTIONS,
    none_hash: bytes = NONE_HASH,
) -> str:
    found = namespace(config or config_of(engine_id="e"), geometry, options, none_hash)
    return hashlib.sha256(found.canonical()).hexdigest()


def test_the_encoding_stays_as_it_is() -> None:
    found = namespace(config_of(engine_id="e"), GEOMETRY, OPTIONS, NONE_HASH)
    assert found.layout == (
        b'{"blocks_per_chunk":1,"dcp":1,"dtype":"float32","engine":"vllm",'
        b'"facts":[["device","cpu"],["hash_algorithm","sha256_cbor"]],'
        b'"groups":[[0,32,["layers.0.attn"]]],"kv_cache_layout":"NHD",'
        b'"none_hash":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",'
        b'"pages":[[4096,4096]],"pcp":1,"pp":1,"tokens_per_hash":32,"tp":1,"world":1}'
    )
    assert (found.model, found.revision) == ("tiny", "")
    assert digest() == "5906a675172d22bfb235413bbf143bb8a920461dcbb8f596f34c464e24f43ad6"


def model(**changes: str) -> OffloadingConfig:
    return config_of(
        engine_id="e", model=replace(OffloadingModelConfig("tiny", "float32"), **changes)
    )


def parallel(**changes: int) -> OffloadingConfig:
    config = config_of(engine_id="e")
    return replace(config, parallel=replace(config.parallel, **changes))


def group(**changes: Any) -> OffloadingConfig:
    plain = OffloadingGroupConfig(32, ("layers.0.attn",), 0)
    return config_of(engine_id="e", groups=(replace(plain, **changes),))


DIFFERENT: dict[str, Callable[[], str]] = {
    "model name": lambda: digest(model(name="other")),
    "dtype": lambda: digest(model(dtype="bfloat16")),
    "revision": lambda: digest(options=replace(OPTIONS, revision="r2")),
    "layout": lambda: digest(config_of(engine_id="e", kv_cache_layout="HND")),
    "no layout": lambda: digest(config_of(engine_id="e", kv_cache_layout=None)),
    "tokens a hash": lambda: digest(config_of(engine_id="e", cache=OffloadingCacheConfig(16, 1))),
    "blocks a chunk": lambda: digest(config_of(engine_id="e", cache=OffloadingCacheConfig(32, 2))),
    "tensor parallel": lambda: digest(parallel(tp_size=2)),
    "pipeline parallel": lambda: digest(parallel(pp_size=2)),
    "prefill context": lambda: digest(parallel(pcp_size=2)),
    "decode context": lambda: digest(parallel(dcp_size=2)),
    "world": lambda: digest(parallel(world_size=2)),
    "tokens a block": lambda: digest(group(tokens_per_block=64)),
    "layer names": lambda: digest(group(layer_names=("layers.1.attn",))),
    "group number": lambda: digest(group(group_id=1)),
    "page bytes": lambda: digest(geometry=replace(GEOMETRY, pages=((4096, 2048),))),
    "fewer pages": lambda: digest(geometry=replace(GEOMETRY, pages=((8192,),))),
    "a fact": lambda: digest(geometry=replace(GEOMETRY, facts=(("device", "cuda 9.0"),))),
    "hash algorithm": lambda: digest(
        geometry=replace(GEOMETRY, facts=(("device", "cpu"), ("hash_algorithm", "sha256")))
    ),
    "start of the chains": lambda: digest(none_hash=bytes(32)),
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_another_value_of_the_field_is_another_namespace(field: str) -> None:
    assert DIFFERENT[field]() != digest()


def test_no_two_of_these_are_alike() -> None:
    found = [make() for make in DIFFERENT.values()]
    assert len(set(found)) == len(found)


def test_what_changes_from_start_to_start_changes_nothing() -> None:
    assert digest(config_of(engine_id="another")) == digest()
    assert digest(parallel(rank=0, data_parallel_index=3, data_parallel_size=4)) == digest()
    budgets = Options(1 << 20, directory="/d", disk_bytes=1 << 30, canary=0.5, verify=True)
    assert digest(options=budgets) == digest()


@pytest.mark.parametrize(
    ("algorithm", "none_hash", "environment", "stable"),
    [
        ("sha256", None, {}, True),
        ("sha256_cbor", NONE_HASH, {}, True),
        ("xxhash", None, {}, False),
        ("xxhash_cbor", bytes(16), {}, False),
        ("xxhash", bytes(16), {"PYTHONHASHSEED": "0"}, True),
        ("xxhash", bytes(16), {"PYTHONHASHSEED": ""}, False),
        ("", None, {}, True),
        ("", NONE_HASH, {}, True),
        ("", bytes(16), {}, False),
    ],
)
def test_hashes_with_a_seed_of_chance_are_known(
    algorithm: str, none_hash: bytes | None, environment: dict[str, str], stable: bool
) -> None:
    assert hash_is_stable(algorithm, none_hash, environment) is stable


def test_a_directory_under_hashes_of_chance_is_refused_with_what_to_change() -> None:
    kept = Options(1 << 20, directory="/d", disk_bytes=1 << 30)
    with pytest.raises(UnsupportedError, match="--prefix-caching-hash-algo sha256_cbor, or PYTHON"):
        require_stable_hashes(kept, "xxhash", None, {})
    require_stable_hashes(OPTIONS, "xxhash", None, {})
    require_stable_hashes(kept, "sha256", NONE_HASH, {})


def test_keys_of_the_engine_are_read_as_group_and_hash() -> None:
    hashes = [bytes([n]) * 32 for n in range(3)]
    keys = [make_offload_key(h, g) for h, g in zip(hashes, (5, 2, 5), strict=True)]
    groups, rows = KeyReader((2, 5)).read(keys)
    assert groups.tolist() == [1, 0, 1]
    assert rows.dtype == np.uint8 and [row.tobytes() for row in rows] == hashes


def test_a_hash_of_another_length_is_hashed_to_one_key_whatever_stands_beside_it() -> None:
    short = make_offload_key(b"a" * 16, 0)
    reader = KeyReader((0,))
    _, alone = reader.read([short])
    _, beside = reader.read([make_offload_key(b"b" * 32, 0), short])
    assert alone.shape == (1, 32)
    assert alone[0].tobytes() == beside[1].tobytes() == hashlib.sha256(b"a" * 16).digest()


def test_no_keys_are_no_rows() -> None:
    groups, rows = KeyReader((0,)).read([])
    assert (groups.shape, rows.shape) == ((0,), (0, 32))


def test_a_key_of_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a key of group 7; the engine's groups are \[0, 2\]"):
        KeyReader((0, 2)).read([make_offload_key(bytes(32), 7)])
