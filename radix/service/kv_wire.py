"""Events of blocks stored and removed as messages that routers of this field understand: the schema
of vLLM's KV events (batches are arrays, events are maps with a ``type``), encoded by msgspec. Field
names and order are that schema's; what it does not have comes behind, where its decoders skip it.
Keeps of I32 that positions are told with sparse groups.

Source: vLLM 0.32, ``vllm/distributed/kv_events.py`` (names, types and order of fields).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

GPU, CPU, STORAGE = "GPU", "CPU", "STORAGE"
LOCAL, REMOTE = "LOCAL", "REMOTE"

# By the name of a tier its medium and locality; by that of a retention what the schema calls it.
MEDIA: Mapping[str, tuple[str, str]] = {
    "device": (GPU, LOCAL),
    "host": (CPU, LOCAL),
    "disk": (STORAGE, LOCAL),
    "remote": (STORAGE, REMOTE),
}
KINDS: Mapping[str, str] = {
    "full": "full_attention",
    "window": "sliding_window",
    "chunked": "chunked_local_attention",
    "state": "mamba",
}


class KvEvent(msgspec.Struct, omit_defaults=True, gc=False, frozen=True, tag=True):
    """One change of what a cache holds."""


class BlockStored(KvEvent, frozen=True):
    """Blocks of one group came to one medium.

    ``block_hashes``: n names of 64 bits, each of a block and all before it (of a flat store bytes:
    the root key of a namespace and the key); ``parent_block_hash``: that of the block before the
    first, None for the beginning. ``token_ids``: of these blocks, n * ``block_size``, empty where
    pages are digests or keys. ``block_positions``: tokens before each
    block, None where unknown: of a sparse group the block before may be missing, and a parent alone
    would say that it is there. ``extra_keys``: what apart from tokens a hash depends on, by block:
    the name of its namespace (32 hex digits, nothing of its contents), where it is not the plain
    one.
    """

    block_hashes: Sequence[int | bytes]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    block_positions: list[int] | None = None


class BlockRemoved(KvEvent, frozen=True):
    """Blocks of one group left one medium, children before their parents."""

    block_hashes: Sequence[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KvEvent, frozen=True):
    """Nothing is held any more, in any medium."""


class KvEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, frozen=True):
    """What happened at ``ts`` (seconds since 1970), in order."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared
