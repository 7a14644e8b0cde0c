"""A wrong entry in ``secondary_tiers`` is refused at the start, with what was wrong and what is
expected; a right one reaches the tier through vLLM's own factory.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import Locality, Medium, TierFilter, TierMatcher
from vllm.v1.kv_offload.config import OffloadingCacheConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from radix.engines.vllm import RadixDiskTier
from radix.engines.vllm.disk_options import DiskOptions
from radix.errors import UnsupportedError
from tests.vllm.secondaryrig import Host, config, key

GOOD: dict[str, Any] = {"directory": "kept", "limit_bytes": 1 << 30}


def test_defaults_are_those_of_the_page() -> None:
    options = DiskOptions.of(GOOD)
    assert (options.policy, options.revision, options.after_reset) == ("lru", "", "hide")
    assert (options.threads, options.locality) == (2, None)


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"limit": 1}, ValueError, r"unknown keys limit; known are directory, limit_bytes, policy"),
        ({"root_dir": "x"}, ValueError, r"unknown keys root_dir; root_dir is directory here"),
        ({"disk_bytes": 1}, ValueError, r"disk_bytes is limit_bytes here"),
        ({"directory": ""}, ValueError, r"directory must not be empty"),
        ({"directory": 3}, TypeError, r"directory must be text, not 3"),
        ({"limit_bytes": 0}, ValueError, r"limit_bytes must be at least 1, not 0"),
        ({"limit_bytes": 1.5}, TypeError, r"limit_bytes must be an int, not float"),
        ({"limit_bytes": True}, TypeError, r"limit_bytes must be an int, not bool"),
        ({"threads": 0}, ValueError, r"threads must be at least 1, not 0"),
        ({"policy": "newest"}, ValueError, r"eviction policy 'newest' is unknown; use one of lru"),
        ({"after_reset": "drop"}, ValueError, r"after_reset must be one of hide, keep, not 'drop'"),
        ({"locality": "HERE"}, ValueError, r"locality must be one of LOCAL, REMOTE, not 'HERE'"),
        ({"revision": 4}, TypeError, r"revision must be text, not 4"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(changed: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        DiskOptions.of(GOOD | changed)


@pytest.mark.parametrize("lacking", ["directory", "limit_bytes"])
def test_a_missing_option_is_named(lacking: str) -> None:
    given = {name: value for name, value in GOOD.items() if name != lacking}
    with pytest.raises(ValueError, match=f"RadixDiskTier needs {lacking}"):
        DiskOptions.of(given)


def test_an_unknown_key_is_refused_through_the_factory_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown keys limit"):
        Host(tmp_path / "kept", limit=1)
    assert not (tmp_path / "kept").exists()


def test_a_limit_below_one_row_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="limit_bytes 8192"):
        Host(tmp_path / "kept", 8192)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("view", "kind", "said"),
    [
        (np.zeros((4, 8192), np.int8), TypeError, "must be a memoryview, not ndarray"),
        (memoryview(np.zeros(8192, np.int8)), ValueError, r"in \(8192,\)"),
        (memoryview(np.zeros((4, 8192), np.int32)), ValueError, "items of 4 bytes"),
        (memoryview(np.zeros((4, 8192), np.int8)).toreadonly(), ValueError, "not read-only"),
        (memoryview(np.zeros((0, 8192), np.int8)), ValueError, r"in \(0, 8192\)"),
    ],
)
def test_a_view_of_another_kind_is_refused(
    tmp_path: Path, view: Any, kind: type[Exception], said: str
) -> None:
    spec = TieringOffloadingSpec(config())
    with pytest.raises(kind, match=said):
        RadixDiskTier(spec, view, "RadixDiskTier", directory=str(tmp_path), limit_bytes=1 << 24)


SIZES: dict[str, Any] = {
    "block_size": 32,
    "num_kv_heads": 1,
    "head_size": 64,
    "dtype": torch.float32,
}
FULL, NEAR = FullAttentionSpec(**SIZES), SlidingWindowSpec(**SIZES, sliding_window=128)
STRANGE = RSWASpec(**SIZES, rswa_window=128)
STATE = MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))


@pytest.mark.parametrize(
    ("kept", "per_chunk", "said"),
    [
        (FULL, 4, None),
        (NEAR, 1, None),
        (STATE, 1, None),
        (STATE, 4, "above 1 over layer layers.0, MambaSpec"),
        (NEAR, 4, "above 1 over layer layers.0, SlidingWindowSpec.*leave out blocks_per_chunk"),
        (None, 4, "above 1 over layer layers.0, of an unknown kind"),
        (STRANGE, 1, "layer layers.0 keeps a RSWASpec, expected one of FullAttentionSpec"),
    ],
    ids=str,
)
def test_what_a_chunk_may_lack_or_hold_otherwise_is_refused(
    tmp_path: Path, kept: KVCacheSpec | None, per_chunk: int, said: str | None
) -> None:
    """A window's first blocks may be gone when the engine stores the chunk that they are of. The
    tier reads what layers keep where vLLM has it: in the frames that start its scheduler.
    """
    groups = [] if kept is None else [KVCacheGroupSpec(["layers.0"], kept)]
    given = config(cache=OffloadingCacheConfig(32, per_chunk), groups=[["layers.0"]])

    def start(kv_cache_config: KVCacheConfig) -> None:
        with Host(tmp_path, config=given) as host:
            assert host.lookup(key(0)) == "M", kv_cache_config

    with nullcontext() if said is None else pytest.raises(UnsupportedError, match=said):
        start(KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups))


def test_it_is_known_as_storage_near_or_far(tmp_path: Path) -> None:
    assert RadixDiskTier.medium is Medium.STORAGE
    assert RadixDiskTier.cache_hit_source is CacheHitSource.DISK
    assert RadixDiskTier.tolerates_off_thread_polling is False
    with Host(tmp_path, locality="REMOTE") as host:
        tier = host.tier
        assert tier.locality is Locality.REMOTE
        near = TierFilter((TierMatcher(Medium.STORAGE, Locality.LOCAL),))
        far = TierFilter((TierMatcher(Medium.STORAGE, Locality.REMOTE),))
        assert not near.allows(tier.medium, tier.locality)
        assert far.allows(tier.medium, tier.locality)


def test_back_pressure_of_the_engine_reaches_the_tier(tmp_path: Path) -> None:
    chosen = {"backpressure_cls": "EMABackpressureDetector", "policy_cls": "DropStorePolicy"}
    with Host(tmp_path, backpressure=chosen) as host:
        assert host.tier.bp_detector is not None
        assert host.tier.bp_detector.should_store(4)


def test_the_engine_is_imported_with_the_adapter_only() -> None:
    code = "import sys, radix.engines; assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
