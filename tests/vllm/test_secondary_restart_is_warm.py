"""What was answered as stored is found by the next process over the same directory, and by none
for which the bytes under a hash would mean something else (I24, C27, C28).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.utils.hashing import sha256, xxhash
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import ReqContext

from radix.errors import TierUnavailableError, UnsupportedError
from radix.groups import Group
from radix.keys import Namespace
from radix.ownership import Ownership
from radix.store import FlatStore
from tests.vllm.secondaryrig import LIMIT, ROW_BYTES, ROWS, Host, config, content, key
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

NAMES = [key(number, number % 2) for number in range(10)]


def test_the_next_engine_finds_every_key_and_its_bytes(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES, range(10))
        first = host.spec.config.engine_id
    with Host(tmp_path) as host:
        assert host.spec.config.engine_id != first
        assert host.lookup(*NAMES, key(99)) == "H" * 10 + "M"
        assert host.load(NAMES, range(5, 15)).success
        assert [host.row(5 + i) for i in range(10)] == [content(name) for name in NAMES]
        assert host.counted()["restored_blocks"] == 10


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "another"},
        {"dtype": "bfloat16"},
        {"groups": [["layers.0"], ["layers.1", "layers.9"]]},
        {"tokens_per_hash": 16},
        {"kv_cache_layout": "HND"},
        {"canonical_layout": True},
        {"parallel": {"tp_size": 2}},
        {"parallel": {"pp_size": 2}},
        {"parallel": {"dcp_size": 2}},
        {"worker_kv_bytes_per_block": ROW_BYTES - 512},
        {
            "worker_kv_bytes_per_block": 2 * ROW_BYTES,
            "extra_config": {"cpu_bytes_to_use": 2 * ROWS * ROW_BYTES},
        },
    ],
    ids=str,
)
def test_an_engine_of_other_settings_is_cold_and_harms_nothing(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES, range(10))
    with Host(tmp_path, config=config(**changed)) as host:
        assert host.lookup(*NAMES) == "M" * 10
        assert host.store([key(0)], [0]).success
        assert host.load([key(0)], [1]).success
        assert host.row(1) == content(key(0), host.row_bytes)


def test_another_revision_is_another_cache(tmp_path: Path) -> None:
    with Host(tmp_path, revision="step 1") as host:
        host.store(NAMES, range(10))
    with Host(tmp_path, revision="step 2") as host:
        assert host.lookup(*NAMES) == "M" * 10
    with Host(tmp_path, revision="step 1") as host:
        assert host.lookup(*NAMES) == "H" * 10


def test_another_hash_to_chain_from_is_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Host(tmp_path) as host:
        host.store(NAMES, range(10))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with Host(tmp_path) as host:
        assert host.lookup(*NAMES) == "M" * 10


def test_keys_without_a_hash_to_chain_from_are_found_by_nobody_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with Host(tmp_path) as host:
            monkeypatch.delattr(kv_cache_utils, "NONE_HASH")
            assert host.lookup(*NAMES) == "M" * 10
            assert host.store(NAMES, range(10)).success
            assert host.lookup(*NAMES) == "H" * 10


def test_what_no_configuration_tells_from_another_model_is_found_by_nobody_later(
    tmp_path: Path,
) -> None:
    """Names that lacked the model's weights were those of every model of that name."""
    for _ in range(2):
        with Host(tmp_path, shown=False) as host:
            assert host.lookup(*NAMES) == "M" * 10
            assert host.counted()["blocks"] == 0, "what nobody can find takes no room"
            assert host.store(NAMES, range(10)).success
            assert host.lookup(*NAMES) == "H" * 10


def test_hashes_from_a_random_seed_are_refused_with_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with Host(tmp_path) as host:
        kv_cache_utils.init_none_hash(xxhash)
        with pytest.raises(UnsupportedError, match=r"random seed.*sha256_cbor, or PYTHONHASHSEED"):
            host.tier.on_new_request(ReqContext("r"))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with Host(tmp_path) as host:
        kv_cache_utils.init_none_hash(xxhash)
        host.tier.on_new_request(ReqContext("r"))
    kv_cache_utils.init_none_hash(sha256)


def test_each_data_parallel_replica_keeps_its_own_folder(tmp_path: Path) -> None:
    replicas = [
        config(parallel={"data_parallel_index": index, "data_parallel_size": 2})
        for index in range(2)
    ]
    with Host(tmp_path, config=replicas[0]) as one, Host(tmp_path, config=replicas[1]) as other:
        one.store([key(0)], [0])
        assert one.lookup(key(0)) == "H"
        assert other.lookup(key(0)) == "M"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dp-0", "dp-1"]


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.store([key(0)], [0])
        with pytest.raises(TierUnavailableError):
            Host(tmp_path)
        assert host.load([key(0)], [1]).success


def test_blocks_of_another_kind_of_cache_are_no_hit_and_no_harm(tmp_path: Path) -> None:
    rows = np.zeros((4, ROW_BYTES), np.uint8)
    tiers = [AdoptedTier([[rows]]), DiskTier(tmp_path, limit_bytes=LIMIT)]
    groups = [Group.full("row", ROW_BYTES)]
    with FlatStore(groups, tiers, ownership=Ownership.BORROWED) as store:
        names = np.frombuffer(key(0)[:32] + key(1)[:32], np.uint8).reshape(2, 32)
        store.store(names, [0, 1], namespace=Namespace(model="another"))
        store.store(names, [2, 3])
        store.flush()
    with Host(tmp_path) as host:
        assert host.lookup(key(0), key(1)) == "MM"
        assert host.store([key(0)], [0]).success
        host.tier.store.check()
