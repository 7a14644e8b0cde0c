"""SGLang's prefix trees as children of the protocol:
``python -m bench.peers.sglang_child rust|python|radix``.

``rust`` is UnifiedRadixCache over the Rust tree core, SGLang's default; ``python`` the same over
the core in Python; ``radix`` the plain RadixCache. With ``window_tokens`` or ``states`` in the
sizes the unified trees have a window (SWA) or a state (Mamba) component beside the full one.

What is timed is what SGLang's scheduler calls, the key and parameter objects of each call included;
the token array (int64) and the tensor of slots are made before. Allocators only count what they are
given back, so that no time of a pool is on SGLang's account.
"""

from __future__ import annotations

import logging
import platform
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.peers.child import Sizes, Work, serve
from bench.peers.treework import Timed, TreeWork, timed
from bench.workloads import Prompts

ENDLESS = 1 << 40
STATE_SLOTS = 16_384


def _full_allocator() -> Any:
    """What a tree with a full component alone asks of its allocator."""

    class Counting:
        device = "cpu"
        page_size = 1
        size = ENDLESS

        def free(self, slots: Any, start_pos: int = 0) -> None:
            pass

        free_segment = free_full_segment = free

        def available_size(self) -> int:
            return 0

    return Counting()


def _window_allocator() -> Any:
    """The same for a window beside it: a slot of the window has its full slot's number."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    class Counting(SWATokenToKVPoolAllocator):  # type: ignore[misc]  # the engine has no types here
        device = "cpu"
        page_size = 1
        size = ENDLESS

        def __init__(self) -> None:
            pass

        @property
        def full_attn_allocator(self) -> Any:
            return self

        swa_attn_allocator = full_attn_allocator

        def free(self, slots: Any, start_pos: int = 0) -> None:
            pass

        free_segment = free_full_segment = free_swa_segment = free

        def available_size(self) -> int:
            return 0

        full_available_size = swa_available_size = available_size

        def translate_swa_indices_for_transfer(self, slots: Any) -> Any:
            return slots

        def set_full_to_swa_mapping(self, full: Any, window: Any) -> None:
            pass

        def clear_full_to_swa_mapping(self, full: Any) -> None:
            pass

    return Counting()


def _state_pool(page: int) -> Any:
    """SGLang's own pool of recurrent states, each a few bytes."""
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=16,
        n_groups=1,
        num_heads=1,
        head_dim=16,
        state_size=4,
        conv_kernel=4,
    )
    return HybridReqToTokenPool(
        size=4,
        mamba_size=STATE_SLOTS,
        mamba_spec_state_size=4,
        max_context_len=16,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=page > 1,
        speculative_num_draft_tokens=3,
    )


class SglangTree:
    """One of SGLang's trees. ``kind``: "rust", "python" or "radix"."""

    def __init__(self, kind: str) -> None:
        from bench.peers import standin

        assert standin.STOOD_IN  # what is not installed can be imported from here on
        logging.disable(logging.INFO)
        import torch
        from sglang.srt.mem_cache import base_prefix_cache, cache_init_params, radix_cache

        torch.set_num_threads(1)
        self._torch, self._kind = torch, kind
        self._base, self._params, self._radix = base_prefix_cache, cache_init_params, radix_cache
        self._tree: Any = None
        self._window = self._states = 0
        self._pool: Any = None
        self._next = 0

    def versions(self) -> Mapping[str, str]:
        """SGLang's and what it stands on."""
        from importlib.metadata import version

        return {
            "sglang": version("sglang"),
            "torch": self._torch.__version__,
            "python": platform.python_version(),
        }

    def open(self, sizes: Sizes, capacity_tokens: int) -> None:
        """An empty tree; ``ValueError`` for components that the plain tree does not have."""
        page = sizes["page_tokens"]
        self._page, self._tree, self._next = page, None, 0
        self._window, self._states = sizes.get("window_tokens", 0), sizes.get("states", 0)
        if self._kind == "radix":
            if self._window or self._states:
                raise ValueError("RadixCache has neither windows nor states")
            self._tree = self._radix.RadixCache.create_simulated(
                mock_allocator=_full_allocator(), page_size=page
            )
            return
        self._tree = self._unified(page)

    def _unified(self, page: int) -> Any:
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
        from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

        settings = ServerArgs(model_path="dummy", page_size=page)
        settings._mamba_cache_chunk_size = max(64, page)
        set_global_server_args_for_scheduler(settings)
        parts = [ComponentType.FULL]
        if self._window:
            parts.append(ComponentType.SWA)
        if self._states:
            parts.append(ComponentType.MAMBA)
        self._window_part = ComponentType.SWA
        self._pool = _state_pool(page) if self._states else None
        params = self._params.CacheInitParams(
            disable=False,
            req_to_token_pool=self._pool,
            token_to_kv_pool_allocator=_window_allocator() if self._window else _full_allocator(),
            page_size=page,
            tree_components=tuple(parts),
            tree_core_backend=self._kind,
            sliding_window_size=self._window or None,
            enable_mamba_extra_buffer=bool(self._states) and page > 1,
        )
        tree = UnifiedRadixCache(params)
        core = type(tree.tree_core).__name__
        if core != {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[self._kind]:
            raise ValueError(f"asked for the {self._kind} core and was given {core}")
        return tree

    def key(self, tokens: Prompts) -> Any:
        """An array of int64, as SGLang's requests hold their tokens."""
        return array("q", tokens.astype(np.int64).tobytes())

    def conversions(self) -> Mapping[str, Callable[[Any], Any]]:
        """Each way into an array of int64."""
        return {
            "list": partial(array, "q"),
            "int64": lambda given: array("q", given.tobytes()),
            "int32": lambda given: array("q", given.astype(np.int64).tobytes()),
        }

    def _value(self, count: int) -> Any:
        """Slots for so many tokens, int64."""
        first, self._next = self._next, self._next + count
        return self._torch.arange(first, first + count, dtype=self._torch.int64)

    def _more(self, count: int) -> dict[str, Any]:
        """What an insert is given beside tokens and slots: a state, and how far the window has
        moved on, so that the tree keeps what a hit at the end needs.
        """
        more: dict[str, Any] = {}
        if self._states:
            more["mamba_value"] = self._pool.mamba_allocator.alloc(1)
        if self._window:
            behind = max(0, count - self._window) // self._page * self._page
            more["component_evicted_seqlens"] = {self._window_part: behind}
        return more

    def _insert(self, ids: Any, value: Any, more: Mapping[str, Any]) -> Any:
        key = self._radix.RadixKey(ids)
        return self._tree.insert(self._base.InsertParams(key=key, value=value, **more))

    def _match(self, ids: Any) -> Any:
        key = self._radix.RadixKey(ids)
        return self._tree.match_prefix(self._base.MatchPrefixParams(key=key))

    def insert(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """From the root, as SGLang always does."""
        arguments = [(key, self._value(len(key)), self._more(len(key))) for key in keys]
        spans, made = timed(self._insert, arguments)
        return spans, sum(each.prefix_len for each in made)

    def insert_behind(self, keys: Sequence[Any]) -> tuple[list[float], int]:
        """From the root again; it is told how much was matched, and frees none of that."""
        clock = time.perf_counter_ns
        spans: list[float] = []
        before = 0
        for key in keys:
            matched = self._match(key).full_kv_hit_length
            value, more = self._value(len(key)), self._more(len(key))
            start = clock()
            made = self._insert(key, value, {**more, "prev_prefix_len": matched})
            spans.append((clock() - start) / 1e3)
            before += made.prefix_len
        return spans, before

    def match(self, keys: Sequence[Any]) -> tuple[list[float], int, list[Any]]:
        """The whole prompt, its last token too."""
        spans, found = timed(self._match, [(key,) for key in keys])
        hit = sum(each.device_prefix_len for each in found)
        return spans, hit, [each.last_device_node for each in found]

    def lease(self, ends: Sequence[Any]) -> Timed:
        """``lock``."""
        return timed(self._tree.lock, [(end,) for end in ends])

    def release(self, leases: Sequence[Any]) -> list[float]:
        """``unlock``."""
        return timed(self._tree.unlock, [(lease,) for lease in leases])[0]

    def evict(self, tokens: int, times: int) -> tuple[list[float], int]:
        """Of the full component."""
        params = partial(self._base.EvictParams, num_tokens=tokens)
        spans, gone = timed(lambda: self._tree.evict(params()), [()] * times)
        return spans, sum(each.num_tokens_evicted for each in gone)

    def turn(self, key: Any) -> tuple[tuple[float, float, float, float], int]:
        """Match, lock, insert of the whole history, unlock."""
        clock, value, more = time.perf_counter_ns, self._value(len(key)), self._more(len(key))
        t0 = clock()
        found = self._match(key)
        t1 = clock()
        lock = self._tree.lock(found.last_device_node)
        t2 = clock()
        self._insert(key, value, more)
        t3 = clock()
        self._tree.unlock(lock)
        t4 = clock()
        us = ((t1 - t0) / 1e3, (t2 - t1) / 1e3, (t3 - t2) / 1e3, (t4 - t3) / 1e3)
        return us, found.device_prefix_len


def make(arguments: Sequence[str]) -> Work:
    """The work of one tree. ``ValueError`` for another name."""
    kinds = ("rust", "python", "radix")
    if len(arguments) != 1 or arguments[0] not in kinds:
        raise ValueError(f"give one of {', '.join(kinds)}, not {list(arguments)}")
    return TreeWork(SglangTree(arguments[0]))


if __name__ == "__main__":
    sys.exit(serve(make))
