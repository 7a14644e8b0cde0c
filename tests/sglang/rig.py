"""SGLang's host pools on a CPU, small, with bytes that tell where they belong; and the storages
over them, ours and the file backend of the engine itself.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolName,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

from radix.engines.sglang import RadixHiCache

PAGE = 4
LAYERS = 3
LIMIT = 24 << 20
Below = Path | dict[str, Any]  # a directory, or the options of a service


def device_pool(
    tokens: int = 64, dtype: torch.dtype = torch.bfloat16, head_num: int = 2, v_head_dim: int = 8
) -> Any:
    """Keys and values where the model computes."""
    return MHATokenToKVPool(
        size=tokens,
        page_size=PAGE,
        dtype=dtype,
        head_num=head_num,
        head_dim=8,
        v_head_dim=v_head_dim,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


def _host(kind: type, layout: str, device: Any, buffers: Any, **more: int) -> Any:
    return kind(
        buffers,
        2.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=LAYERS,
        **more,
    )


def mha_pool(
    layout: str = "page_first", tokens: int = 64, dtype: torch.dtype = torch.bfloat16, **shape: int
) -> Any:
    """A pool of keys and values; ``v_head_dim``: values of another width than keys."""
    device = device_pool(tokens, dtype, **shape)
    kind = AsymmetricMHATokenToKVPoolHost if "v_head_dim" in shape else MHATokenToKVPoolHost
    return _host(kind, layout, device, device._mha_buffer_info())


def mla_pool(layout: str = "page_first", tokens: int = 64) -> Any:
    """A pool of latents."""
    device = MLATokenToKVPool(
        size=tokens,
        page_size=PAGE,
        dtype=torch.bfloat16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    buffers = device._mla_buffer_info()
    return _host(MLATokenToKVPoolHost, layout, device, buffers, target_layer_num=LAYERS)


def state_pool(slots: int = 16, *, side: bool = False) -> Any:
    """A pool of recurrent states: float32 beside bfloat16. ``side``: with a registered side state,
    which the pool gives only as flat tensors.
    """
    info = MambaStateBufferInfo(
        temporal=torch.zeros((2, slots, 4, 5), dtype=torch.float32),
        conv=(
            torch.zeros((2, slots, 3, 7), dtype=torch.bfloat16),
            torch.zeros((2, slots, 2, 3), dtype=torch.bfloat16),
        ),
        extra_checkpoint_buffers=(torch.zeros((slots, 6), dtype=torch.int16),) if side else (),
    )
    return MambaPoolHost(info, 2.0, 0, device_capacity=slots, pin_memory=False, layout="page_first")


def buffers_of(pool: Any) -> list[torch.Tensor]:
    """The memory of a pool, as bytes."""
    found = pool.kv_buffer if isinstance(pool.kv_buffer, list | tuple) else [pool.kv_buffer]
    return [buffer.view(torch.uint8).reshape(-1) for buffer in found]


def fill(pool: Any, seed: int) -> None:
    """Fills all of a pool with bytes of this seed."""
    for number, buffer in enumerate(buffers_of(pool)):
        maker = torch.Generator().manual_seed(seed * 1000 + number)
        buffer[:] = torch.randint(0, 256, buffer.shape, dtype=torch.uint8, generator=maker)


def page_bytes(pool: Any, page: int) -> bytes:
    """The bytes of a page by the addresses that the pool names, fragment after fragment."""
    first = page * pool.page_size
    meta = pool.get_page_buffer_meta(torch.arange(first, first + pool.page_size))
    out = []
    for address, size in zip(*meta, strict=True):
        for buffer in buffers_of(pool):
            offset = address - buffer.data_ptr()
            if 0 <= offset < buffer.numel():
                out.append(bytes(buffer[offset : offset + size].numpy()))
                break
        else:
            raise AssertionError("a fragment lies in no buffer of the pool")
    return b"".join(out)


def flat_bytes(pool: Any, page: int) -> bytes:
    """The bytes of a page as the pool's flat tensor has them."""
    flat = pool.get_data_page(page * pool.page_size, flat=True)
    return bytes(flat.contiguous().view(torch.uint8).numpy())


def mark(pool: Any, page: int, number: int) -> None:
    """Fills a page with a number."""
    flat = torch.full_like(pool.get_dummy_flat_data_page().view(torch.int16), number)
    pool.set_from_flat_data_page(page * pool.page_size, flat.view(pool.dtype))


def number_of(pool: Any, page: int) -> int:
    """The number of a page that ``mark`` filled, all of it."""
    (found,) = set(pool.get_data_page(page * pool.page_size).view(torch.int16).tolist())
    return int(found)


def indices(pool: Any, pages: list[int]) -> torch.Tensor:
    """Host indices of whole pages, as the engine names them."""
    size = pool.page_size
    spans = [torch.arange(page * size, (page + 1) * size) for page in pages]
    return torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64)


def key(number: int) -> str:
    """A page hash as the engine makes them."""
    return hashlib.sha256(number.to_bytes(8, "big")).hexdigest()


def options(below: Below) -> dict[str, Any]:
    """What --hicache-storage-backend-extra-config holds."""
    named = {"backend_name": "radix", "module_path": "radix.engines.sglang"}
    named |= {"class_name": "RadixHiCache"}
    if isinstance(below, Path):
        below = {"directory": str(below), "limit_bytes": LIMIT}
    return named | below


def config(below: Below, **changes: Any) -> HiCacheStorageConfig:
    """A configuration of one rank; ``extra`` changes the options, the rest the engine's fields."""
    told = options(below) | {"interface_v1": 1} | changes.pop("extra", {})
    base = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="org/model",
        extra_config=told,
    )
    return replace(base, **changes)


def attach(storage: HiCacheStorage, pools: dict[str, Any]) -> Any:
    """Registers pools in the engine's order: the KV pool, then each by name, then the end."""
    storage.register_mem_pool_host(pools["kv"])
    for name, pool in pools.items():
        storage.register_mem_host_pool_v2(pool, PoolName(name))
    storage.on_host_pools_registered()
    return storage


def ours(below: Below, pools: dict[str, Any], **changes: Any) -> Any:
    """Our storage, attached."""
    return attach(RadixHiCache(config(below, **changes), {}), pools)


def file_backend(directory: Path, pools: dict[str, Any]) -> Any:
    """The engine's own file backend, attached: the oracle."""
    directory.mkdir(parents=True, exist_ok=True)
    return attach(
        HiCacheFile(config(directory, extra={"file_storage_path": str(directory)})), pools
    )


def seeded(seed: int) -> tuple[random.Random, Callable[[str], str]]:
    """A generator, and what puts its seed before the text of a failure."""
    return random.Random(seed), lambda text: f"seed {seed}: {text}"
