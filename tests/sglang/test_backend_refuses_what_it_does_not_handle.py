"""What SGLang calls at start: the plugin registers one name, and the factory refuses, by name and
with what to change, every model and option that the backend would get wrong.
"""

from __future__ import annotations

import dataclasses
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.mem_cache import registry
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.registry import TreeCacheBuildContext
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP
from sglang.srt.server_args import ServerArgs

from radix.engines.sglang.backend import NEEDED, RadixBackend
from radix.engines.sglang.plugin import NAME, factory, plugin
from radix.engines.versions import require
from radix.errors import UnsupportedError
from tests.sglang.scheduling import Scheduler, publish


def context(**changed: Any) -> TreeCacheBuildContext:
    """What SGLang hands to a factory. ``changed``: of the context, of its ``server_args`` and,
    behind ``params_``, of the parameters.
    """
    publish()
    server = ServerArgs(model_path="dummy")
    params = Scheduler(RadixBackend, changed.pop("page", 16), 16).params
    mine = {field.name for field in dataclasses.fields(TreeCacheBuildContext)}
    for name in list(changed):
        if name.startswith("params_"):
            params = dataclasses.replace(params, **{name[7:]: changed.pop(name)})
        elif name not in mine:
            setattr(server, name, changed.pop(name))
    given: dict[str, Any] = {
        "server_args": server,
        "params": params,
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "tp_worker": None,
        "model_config": None,
        "tp_size": 1,
        "tp_rank": 0,
        "tp_group": None,
        **changed,
    }
    return TreeCacheBuildContext(**given)


def test_the_package_names_the_plugin_where_sglang_looks_for_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"][GENERAL_PLUGINS_GROUP]
    assert points == {"radix": "radix.engines.sglang:plugin"}
    assert EntryPoint("radix", points["radix"], GENERAL_PLUGINS_GROUP).load() is plugin


def test_the_plugin_registers_one_name_however_often_it_is_called() -> None:
    plugin()
    plugin()
    assert registry.registered_radix_cache_backends().count(NAME) == 1
    found = registry.get_radix_cache_factory(NAME)
    assert found is factory
    assert isinstance(found(context()), RadixBackend)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"params_sliding_window_size": 128}, "sliding-window"),
        ({"params_swa_gates_prefix_match": False}, "sliding-window"),
        ({"params_decoder_swa_bounded_replay": True}, "sliding-window"),
        ({"is_hybrid_ssm": True}, "recurrent"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"enable_lmcache": True}, "--enable-lmcache"),
        ({"enable_flexkv": True}, "--enable-flexkv"),
        ({"params_enable_session_radix_cache": True}, "--enable-session-radix-cache"),
        ({"disaggregation_decode_retraction_backup": "host_pool"}, "host_pool"),
        ({"params_eviction_policy": "lfu"}, "--radix-eviction-policy lfu"),
        ({"params_page_size": 32}, "32 tokens over an allocator's of 16"),
    ],
)
def test_each_model_and_option_that_is_not_handled_is_refused_by_name(
    changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedError) as refused:
        factory(context(**changed))
    text = str(refused.value)
    assert text.startswith("--radix-cache-backend radix: ")
    assert named in text
    assert "not supported; " in text


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (SWATokenToKVPoolAllocator, "sliding-window"),
        (HiSparseTokenToKVPoolAllocator, "class HiSparseTokenToKVPoolAllocator"),
    ],
)
def test_an_allocator_that_numbers_slots_another_way_is_refused(kind: type, named: str) -> None:
    allocator = object.__new__(kind)
    allocator.page_size = 16
    with pytest.raises(UnsupportedError) as refused:
        factory(context(params_token_to_kv_pool_allocator=allocator))
    assert named in str(refused.value)


def test_a_cache_that_is_switched_off_is_sglangs_own() -> None:
    made = factory(context(disable_radix_cache=True, params_disable=True))
    assert not isinstance(made, RadixBackend)
    assert not made.supports_prefix_sharing()
    with pytest.raises(UnsupportedError, match="disabled"):
        RadixBackend(context(params_disable=True).params)


def test_a_base_class_without_what_the_adapter_needs_is_refused() -> None:
    class Older(BasePrefixCache):
        def unlock(self) -> None:
            pass

    with pytest.raises(UnsupportedError, match=r"Older\.unlock takes no lock"):
        require("sglang", Older, NEEDED)
