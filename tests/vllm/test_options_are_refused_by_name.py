"""What a user writes into the engine's extra configuration is taken whole or refused at the start,
with the name of what is wrong and what to write instead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingParallelConfig

from radix.engines.versions import require
from radix.engines.vllm.facts import kinds_of_layers, require_known_kinds, require_whole_chunks
from radix.engines.vllm.geometry import Geometry, Published
from radix.engines.vllm.identity import require_known_model
from radix.engines.vllm.options import ENGINE_KEYS, Options
from radix.engines.vllm.spec import NEEDED, RadixOffloadingSpec
from radix.errors import LayoutMismatchError, UnsupportedError
from tests.vllm.workerrig import caches_of, config_of


def test_a_budget_alone_is_enough() -> None:
    options = Options.of({"host_bytes": 1 << 30})
    assert options == Options(1 << 30)
    assert (options.directory, options.policy, options.canary) == (None, "lru", 0.0)


def test_keys_of_the_engine_pass() -> None:
    given = dict.fromkeys(ENGINE_KEYS) | {"host_bytes": 4096}
    assert Options.of(given) == Options(4096)


def test_every_option_is_taken() -> None:
    given = {
        "host_bytes": 4096,
        "directory": "/somewhere",
        "disk_bytes": 8192,
        "policy": "lru",
        "canary": 0.01,
        "canary_tolerance": 0.1,
        "verify": True,
        "revision": "r7",
        "service": "/run/radix.sock",
        "tenant": "chats",
        "secret_file": "/secret",
        "timeout_s": 1.5,
        "pool_bytes": 4096,
        "wait_s": 5,
    }
    assert Options.of(given) == Options(**given)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, ValueError, "kv_connector_extra_config needs host_bytes"),
        ({"host_bytes": 1, "host_byte": 1}, ValueError, "unknown keys host_byte; known are host"),
        ({"cpu_bytes_to_use": 1}, ValueError, "cpu_bytes_to_use is host_bytes here"),
        ({"host_bytes": 1, "eviction_policy": "arc"}, ValueError, "eviction_policy is policy here"),
        ({"host_bytes": 0}, ValueError, "host_bytes must be at least 1, not 0"),
        ({"host_bytes": "4GB"}, TypeError, "host_bytes must be an int, not str"),
        ({"host_bytes": True}, TypeError, "host_bytes must be an int, not bool"),
        ({"host_bytes": 1e9}, TypeError, "host_bytes must be an int, not float"),
        ({"host_bytes": 1, "directory": "d"}, ValueError, "disk_bytes is needed with a directory"),
        ({"host_bytes": 1, "disk_bytes": 1}, ValueError, "disk_bytes is given without a directory"),
        ({"host_bytes": 1, "directory": ""}, ValueError, "directory must not be empty"),
        ({"host_bytes": 1, "service": "here"}, ValueError, "a path with '/' or host:port"),
        ({"host_bytes": 1, "service": "/s", "wait_s": -1}, ValueError, "wait_s must be 0 or more"),
        ({"host_bytes": 1, "service": "/s", "timeout_s": 0}, ValueError, "timeout_s must be"),
        ({"host_bytes": 1, "service": "/s", "pool_bytes": 0.5}, ValueError, "pool_bytes must be"),
        ({"host_bytes": 1, "wait_s": 1}, ValueError, "wait_s.* need a service"),
        (
            {"host_bytes": 1, "directory": "d", "disk_bytes": -1},
            ValueError,
            "disk_bytes must not be negative, not -1",
        ),
        ({"host_bytes": 1, "policy": "dice"}, ValueError, "'dice' is unknown"),
        ({"host_bytes": 1, "policy": 3}, TypeError, "policy must be text"),
        ({"host_bytes": 1, "canary": 1.5}, ValueError, "canary must be from 0 to 1, not 1.5"),
        ({"host_bytes": 1, "canary": "1%"}, TypeError, "canary must be a number"),
        ({"host_bytes": 1, "canary_tolerance": -1}, ValueError, "canary_tolerance must be"),
        ({"host_bytes": 1, "verify": 1}, TypeError, "verify must be true or false"),
        ({"host_bytes": 1, "revision": 7}, TypeError, "revision must be text"),
        ({"host_bytes": 1, "canonical_layout": True}, UnsupportedError, "leave it out"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        Options.of(given)


def spec_of(**parallel: int) -> RadixOffloadingSpec:
    config = config_of()
    return RadixOffloadingSpec(replace(config, parallel=replace(config.parallel, **parallel)))


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"pp_size": 2, "world_size": 2}, "pipeline parallel 2 .* set --pipeline-parallel-size 1"),
        ({"pcp_size": 2, "world_size": 2}, "prefill context parallel 2"),
        ({"dcp_size": 2, "tp_size": 2, "world_size": 2}, "decode context parallel 2"),
        ({"world_size": 4, "tp_size": 2}, "4 workers at tensor parallel 2"),
    ],
)
def test_a_parallelism_that_no_layout_knows_is_refused(parallel: dict[str, int], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        spec_of(**parallel)


def test_blocks_that_no_hashes_cover_are_refused() -> None:
    config = config_of(cache=OffloadingCacheConfig(tokens_per_hash=48, blocks_per_chunk=1))
    with pytest.raises(UnsupportedError, match="blocks of 32 tokens under hashes of 48: set --bl"):
        RadixOffloadingSpec(config)


def test_tensors_that_the_engine_does_not_describe_so_are_refused() -> None:
    plain = caches_of([[(0, 64)]], [64], 4, seed=0)
    wide = caches_of([[(0, 65)]], [64], 4, seed=0)
    strange = caches_of([[(0, 64)]], [64], 4, seed=0)
    strange.tensors[0].tensor = strange.tensors[0].tensor.view(torch.float16)
    for caches, groups, said in (
        (plain, 2, "the configuration has 2 cache groups, the tensors 1"),
        (wide, 1, "a page of 65 bytes in rows of 64"),
        (strange, 1, "expected int8"),
    ):
        with pytest.raises(LayoutMismatchError, match=said):
            RadixOffloadingSpec(config_of(groups)).get_worker(caches)


class Layer:
    """A layer of a model, as far as it says what it keeps."""

    def __init__(self, kept: KVCacheSpec) -> None:
        self.kept = kept

    def get_kv_cache_spec(self, _: VllmConfig) -> KVCacheSpec:
        return self.kept


def test_chunks_of_several_blocks_are_taken_only_where_none_of_them_can_be_gone() -> None:
    """A window's first blocks may be reused before the engine stores the chunk that they are of; it
    then names them as none, and a hit at the end of that chunk would read what was never stored.
    """
    sizes = {"block_size": 32, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
    config = VllmConfig()
    config.compilation_config.static_forward_context.update(
        full=Layer(FullAttentionSpec(**sizes)),
        near=Layer(SlidingWindowSpec(**sizes, sliding_window=128)),
        state=Layer(MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))),
    )
    with set_current_vllm_config(config):
        require_whole_chunks(kinds_of_layers(["full", "state"]))
        for name, kind in (("near", "SlidingWindowSpec"), ("other", "of an unknown kind")):
            with pytest.raises(UnsupportedError, match=f"over layer {name}, {kind}.*leave out bl"):
                require_whole_chunks(kinds_of_layers(["full", name]))


def test_a_layer_that_keeps_something_unknown_is_refused_by_its_name() -> None:
    """Also where its class derives from a known one: vLLM's connector takes it for that."""
    sizes = {"block_size": 32, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
    config = VllmConfig()
    config.compilation_config.static_forward_context.update(
        full=Layer(FullAttentionSpec(**sizes)),
        near=Layer(SlidingWindowSpec(**sizes, sliding_window=128)),
        state=Layer(MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))),
        strange=Layer(RSWASpec(**sizes, rswa_window=128)),
    )
    with set_current_vllm_config(config):
        require_known_kinds(kinds_of_layers(["full", "near", "state", "shared with another"]))
        with pytest.raises(UnsupportedError, match="layer strange keeps a RSWASpec, expected one"):
            require_known_kinds(kinds_of_layers(["full", "strange"]))


def test_a_directory_is_refused_where_the_engine_shows_no_configuration(tmp_path: Path) -> None:
    config = config_of()
    disk = {"directory": str(tmp_path), "disk_bytes": 256 << 20}
    spec = RadixOffloadingSpec(replace(config, extra_config={**config.extra_config, **disk}))
    with pytest.raises(UnsupportedError, match=r"no configuration.*leave out directory and di"):
        spec.get_worker(caches_of([[(0, 64)]], [64], 4, seed=0))
    require_known_model(spec.options, {"model": "told"})


def test_chunks_of_several_blocks_of_unknown_groups_are_refused_at_start() -> None:
    config = config_of(cache=OffloadingCacheConfig(tokens_per_hash=32, blocks_per_chunk=2))
    with pytest.raises(
        UnsupportedError, match=r"blocks_per_chunk above 1 over layer layers\.0\.attn"
    ):
        RadixOffloadingSpec(config).get_worker(caches_of([[(0, 64)]], [64], 4, seed=0))


class OlderWorker(OffloadingWorker):
    """An engine's class without what the adapter calls."""

    def submit_load(self, job_id: int) -> bool:
        return True


def test_an_engine_whose_classes_lack_a_parameter_is_refused_with_what_was_run() -> None:
    (needed,) = (methods for owner, methods in NEEDED if owner is OffloadingWorker)
    require("vllm", OffloadingWorker, needed)
    with pytest.raises(UnsupportedError, match=r"submit_load takes no src_spec, .* 0\.32\.0"):
        require("vllm", OlderWorker, needed)


def test_tensor_parallelism_and_replicas_are_taken() -> None:
    spec_of(tp_size=4, world_size=4)
    spec_of(data_parallel_size=2, data_parallel_index=1)


def test_each_data_parallel_replica_has_a_folder_of_its_own() -> None:
    config = config_of()
    folders = []
    for index, size in ((0, 1), (0, 2), (1, 2)):
        parallel: OffloadingParallelConfig = replace(
            config.parallel, data_parallel_index=index, data_parallel_size=size
        )
        extra = {**config.extra_config, "directory": "/d", "disk_bytes": 1 << 20}
        spec = RadixOffloadingSpec(replace(config, parallel=parallel, extra_config=extra))
        folders.append(spec.directory())
    assert folders == [Path("/d"), Path("/d/dp-0"), Path("/d/dp-1")]


@pytest.mark.parametrize("over_disk", [False, True])
def test_what_the_engine_shows_of_the_configuration_is_declared(
    tmp_path: Path, over_disk: bool
) -> None:
    config = config_of()
    disk = {"directory": str(tmp_path), "disk_bytes": 256 << 20} if over_disk else {}
    spec = RadixOffloadingSpec(replace(config, extra_config={**config.extra_config, **disk}))
    told = Published(Geometry(1, 1, (0,), ((4096,),)), config.engine_id)
    try:
        offload = spec.get_manager()
        try:
            declared = spec.config_info_keys(spec.extra_config)
            [shown] = offload.config_info()
            assert sorted(shown) == sorted(declared)
            assert set(declared) == {"host_limit_bytes", *(["disk_limit_bytes"] * over_disk)}
        finally:
            offload.shutdown()
    finally:
        told.close()


def test_the_spec_refuses_what_the_options_refuse() -> None:
    config = config_of(extra_config={"host_bytes": 4096, "hostbytes": 1})
    with pytest.raises(ValueError, match="unknown keys hostbytes"):
        RadixOffloadingSpec(config)
