"""How SGLang finds the radix cache backend: through the entry point ``sglang.srt.plugins`` it calls
``plugin`` in the launcher and in every scheduler, before it reads its arguments; the name that is
registered then is what ``--radix-cache-backend`` takes. What the backend cannot keep is refused
when the server starts, by name and with what to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from radix.errors import UnsupportedError
from radix.policy.eviction import STEPPED_POLICIES

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

NAME = "radix"


class Refusal(NamedTuple):
    """Whether a configuration is refused, what of it, and what to change."""

    refused: bool
    what: str
    change: str


def plugin() -> None:
    """Registers the backend under ``radix``. A second call changes nothing.

    Raises: ``ValueError`` where another package has taken the name.
    """
    from sglang.srt.mem_cache.registry import (
        get_radix_cache_factory,
        register_radix_cache_backend,
    )

    if get_radix_cache_factory(NAME) is not factory:
        register_radix_cache_backend(NAME, factory)


def factory(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """The cache of one scheduler: ours, or SGLang's own where the prefix cache is switched off.

    Raises: ``UnsupportedError`` for a model or an option that the backend does not handle.
    """
    from sglang.srt.mem_cache.registry import default_radix_cache_factory

    from radix.engines.sglang.backend import RadixBackend

    if ctx.disable_radix_cache or ctx.params.disable:
        return default_radix_cache_factory(ctx)
    for refusal in _refusals(ctx):
        if refusal.refused:
            raise UnsupportedError(
                f"--radix-cache-backend {NAME}: {refusal.what} not supported; {refusal.change}"
            )
    return RadixBackend(ctx.params)


def _refusals(ctx: TreeCacheBuildContext) -> list[Refusal]:
    """Everything that is looked at, in the order in which it is told."""
    from sglang.srt.mem_cache.allocator import (
        PagedTokenToKVPoolAllocator,
        TokenToKVPoolAllocator,
    )
    from sglang.srt.mem_cache.allocator.page_interleave import page_interleave_shard_size
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    params, server = ctx.params, ctx.server_args
    allocator = params.token_to_kv_pool_allocator
    window = (
        ctx.is_hybrid_swa
        or params.sliding_window_size is not None
        or not params.swa_gates_prefix_match
        or params.decoder_swa_bounded_replay
        or isinstance(allocator, SWATokenToKVPoolAllocator)
    )
    tiers = "drop the option, or omit --radix-cache-backend"
    own_cache = "omit --radix-cache-backend"
    policy = params.eviction_policy.lower()
    return [
        Refusal(window, "a model with sliding-window layers is", own_cache),
        Refusal(ctx.is_hybrid_ssm, "a model with recurrent (Mamba) state is", own_cache),
        Refusal(
            hasattr(params.req_to_token_pool, "req_to_c128_sidecar"),
            "a request pool with a compressed sidecar is",
            own_cache,
        ),
        Refusal(ctx.enable_hierarchical_cache, "--enable-hierarchical-cache is", tiers),
        Refusal(bool(server.enable_lmcache), "--enable-lmcache is", tiers),
        Refusal(bool(server.enable_flexkv), "--enable-flexkv is", tiers),
        Refusal(params.enable_session_radix_cache, "--enable-session-radix-cache is", tiers),
        Refusal(
            server.disaggregation_decode_retraction_backup == "host_pool",
            "--disaggregation-decode-retraction-backup host_pool is",
            "use cpu_tensor",
        ),
        Refusal(page_interleave_shard_size(allocator) > 1, "a KV cache in shards is", own_cache),
        # The others may part a page's slots, or give numbers that stand for none.
        Refusal(
            not isinstance(allocator, PagedTokenToKVPoolAllocator | TokenToKVPoolAllocator),
            f"an allocator of class {type(allocator).__name__} is",
            own_cache,
        ),
        Refusal(
            policy not in STEPPED_POLICIES,
            f"--radix-eviction-policy {policy} is",
            f"use {', '.join(STEPPED_POLICIES)}",
        ),
        Refusal(
            params.page_size != allocator.page_size,
            f"a cache page of {params.page_size} tokens over an allocator's of "
            f"{allocator.page_size} is",
            "use one page size",
        ),
    ]
