"""The engine's own cache controllers over our storage, on a CPU: made by its factory from the
flags, with their prefetch, prefetch I/O, and backup threads. Prompts that they backed up are found
again by them and by the next process, page for page and with their states; a detach gives the
directory back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

from radix.errors import TierUnavailableError
from tests.service.rig import Service
from tests.sglang.rig import (
    PAGE,
    Below,
    device_pool,
    fill,
    flat_bytes,
    mha_pool,
    options,
    seeded,
    state_pool,
)

WAIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    """A world of one process, as the engine has with --tp-size 1."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    ranks = {"tp_rank": 0, "pp_rank": 0, "attn_tp_rank": 0, "attn_dp_rank": 0, "attn_dcp_rank": 0}
    sizes = {"tp_size": 1, "pp_size": 1, "attn_tp_size": 1, "attn_dcp_size": 1}
    with get_parallel().override(**ranks, **sizes):
        yield
    torch.distributed.destroy_process_group()


def controller(below: Below, host: Any, kind: type = HiCacheController, **extra: Any) -> Any:
    """The engine's controller, attached by its flags."""
    return kind(
        PagedTokenToKVPoolAllocator(64, PAGE, torch.bfloat16, "cpu", device_pool(), False),
        host,
        PAGE,
        torch.distributed.group.WORLD,
        threading.Event(),
        write_policy="write_through",
        storage_backend="dynamic",
        prefetch_threshold=PAGE,
        model_name="org/model",
        storage_backend_extra_config=options(below) | extra,
    )


def pages_of(host: Any, slots: torch.Tensor) -> list[bytes]:
    return [flat_bytes(host, int(slot) // PAGE) for slot in slots[::PAGE]]


def backed_up(engine: Any, host: Any, tokens: list[int]) -> list[bytes]:
    """Writes a prompt to storage; the bytes of its pages."""
    slots = host.alloc(len(tokens))
    content = pages_of(host, slots)
    engine.write_storage(slots, tokens, get_storage_hash_str(tokens, None, page_size=PAGE))
    done = engine.ack_backup_queue.get(timeout=WAIT_S)
    assert done.completed_tokens == len(tokens)
    host.free(slots)
    return content


def brought(engine: Any, host: Any, tokens: list[int]) -> list[bytes]:
    """Prefetches a prompt as the scheduler does; the bytes of the pages that came."""
    engine.prefetch("request", tokens, None)
    found = engine.prefetch_hit_queue.get(timeout=WAIT_S)
    if not found.storage_hit_count:
        return []
    found.host_indices = host.alloc(found.storage_hit_count)
    engine.prefetch_buffer.put(found)
    came = 0
    while True:
        ack = engine.ack_prefetch_queue.get(timeout=WAIT_S)
        if ack.completed_req:
            break
        came = ack.completed_tokens
    content = pages_of(host, found.host_indices[:came])
    host.free(found.host_indices)
    return content


@pytest.mark.parametrize("v1", [1, 0])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_prompts_are_found_again_also_by_the_next_process(
    below: Below, layout: str, v1: int
) -> None:
    host = mha_pool(layout)
    engine = controller(below, host, interface_v1=v1)
    prompts = [list(range(n * 1000, n * 1000 + (3 + n) * PAGE)) for n in range(4)]
    kept = []
    for number, prompt in enumerate(prompts):
        fill(host, number)
        kept.append(backed_up(engine, host, prompt))
    fill(host, 50)
    for prompt, content in zip(prompts, kept, strict=True):
        assert brought(engine, host, prompt) == content
        assert brought(engine, host, [*prompt, *range(7, 7 + 2 * PAGE)]) == content
    assert brought(engine, host, list(range(90000, 90000 + 4 * PAGE))) == []
    engine.detach_storage_backend()
    again = mha_pool(layout)
    engine = controller(below, again, interface_v1=v1)
    for prompt, content in zip(prompts, kept, strict=True):
        assert brought(engine, again, prompt) == content
    engine.storage_backend.clear()
    assert brought(engine, again, prompts[0]) == []
    engine.detach_storage_backend()


def test_a_long_prompt_goes_in_batches_while_others_are_brought(below: Below) -> None:
    """More pages than one call holds (128), kept by one thread while two others ask and bring."""
    host = mha_pool(tokens=1024)
    engine = controller(below, host, interface_v1=1)
    chance, where = seeded(5)
    fill(host, 1)
    short = list(range(8 * PAGE))
    content = backed_up(engine, host, short)
    long = list(range(10**6, 10**6 + 200 * PAGE))
    slots = host.alloc(len(long))
    kept = pages_of(host, slots)
    engine.write_storage(slots, long, get_storage_hash_str(long, None, page_size=PAGE))
    for step in range(20):
        asked = short[: chance.randint(1, 8) * PAGE]
        assert brought(engine, host, asked) == content[: len(asked) // PAGE], where(f"step {step}")
    assert engine.ack_backup_queue.get(timeout=WAIT_S).completed_tokens == len(long)
    host.free(slots)
    assert brought(engine, host, long) == kept
    engine.detach_storage_backend()


def hybrid(below: Below, host: Any, states: Any) -> Any:
    """The engine's controller for models with several pools."""
    device = device_pool()
    entries = [
        PoolEntry(PoolName.KV, host, device, lambda layer: layer, is_primary_index_anchor=True),
        PoolEntry(PoolName.MAMBA, states, device, lambda layer: layer),
    ]
    return controller(below, HostPoolGroup(entries), HybridCacheController, interface_v1=1)


def test_a_prompt_comes_back_as_far_as_a_state_of_it_was_kept(below: Below) -> None:
    """Pages of ten, states at the ends of the third and the seventh: of all ten pages asked for,
    seven are brought, and with them the state that belongs there.
    """
    host, states = mha_pool(), state_pool()
    engine = hybrid(below, host, states)
    fill(host, 1)
    fill(states, 2)
    tokens = list(range(10 * PAGE))
    hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
    slots, kept = host.alloc(len(tokens)), states.alloc(2)
    content, of_states = pages_of(host, slots), [flat_bytes(states, int(at)) for at in kept]
    for first, end, at in ((0, 3, kept[:1]), (3, 7, kept[1:]), (7, 10, None)):
        span = slice(first * PAGE, end * PAGE)
        extra = [] if at is None else [PoolTransfer(PoolName.MAMBA, at, keys=[hashes[end - 1]])]
        engine.write_storage(slots[span], tokens[span], hashes[first:end], extra_pools=extra)
        done = engine.ack_backup_queue.get(timeout=WAIT_S)
        assert done.completed_tokens == (end - first) * PAGE
    fill(host, 3)
    fill(states, 4)
    into = states.alloc(1)
    ask = PoolTransfer(
        PoolName.MAMBA, into, keys=[hashes[-1]], hit_policy=PoolHitPolicy.TRAILING_PAGES
    )
    engine.prefetch(CacheRequestHandle("request", 0), tokens, None, extra_pools=[ask])
    found = engine.prefetch_hit_queue.get(timeout=WAIT_S)
    assert found.storage_hit_count == 7 * PAGE
    assert found.query_pool_hit_pages == {PoolName.KV: 10, PoolName.MAMBA: 7}
    assert found.pool_storage_result.restorable_prefix_pages == [3, 7]
    host.free(slots)
    found.host_indices = host.alloc(7 * PAGE)
    engine.prefetch_buffer.put(found)
    acks = []
    while not (acks and acks[-1].completed_req):
        acks.append(engine.ack_prefetch_queue.get(timeout=WAIT_S))
    assert max(ack.completed_tokens or 0 for ack in acks) == 7 * PAGE
    assert [ack.pool_hits[PoolName.MAMBA] for ack in acks if ack.pool_hits] == [1]
    assert pages_of(host, found.host_indices) == content[:7]
    assert flat_bytes(states, int(into[0])) == of_states[1]
    engine.detach_storage_backend()


def test_a_service_that_dies_under_the_engines_threads_costs_hits_alone(tmp_path: Path) -> None:
    host, data = mha_pool(), str(tmp_path / "data")
    prompt, other = list(range(5 * PAGE)), list(range(500, 500 + 3 * PAGE))
    with Service(tmp_path, data=data) as service:
        engine = controller({"service": service.path}, host, interface_v1=1)
        fill(host, 1)
        kept = backed_up(engine, host, prompt)
        engine.storage_backend._opened._writing.flush()
        service.kill()
    fill(host, 2)
    assert brought(engine, host, prompt) == []
    slots = host.alloc(len(other))
    engine.write_storage(slots, other, get_storage_hash_str(other, None, page_size=PAGE))
    assert engine.ack_backup_queue.get(timeout=WAIT_S).completed_tokens == 0
    host.free(slots)
    with Service(tmp_path, data=data) as service:
        end = time.monotonic() + WAIT_S
        while not (found := brought(engine, host, prompt)):  # left alone for a while
            assert time.monotonic() < end
        assert found == kept
        engine.detach_storage_backend()
        service.check()


def test_bad_options_stop_the_engine_at_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown keys limit; known are directory, limit_bytes"):
        controller(tmp_path, mha_pool(), limit=5)
    engine = controller(tmp_path, mha_pool(), interface_v1=1)
    assert brought(engine, mha_pool(), list(range(8))) == []
    with pytest.raises(TierUnavailableError, match="is held by pid"):
        controller(tmp_path, mha_pool(), interface_v1=1)
    engine.detach_storage_backend()
