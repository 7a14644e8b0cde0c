"""SGLang's stream of KV placement events, told from the tree: blocks are named by the first eight
bytes of their chained page keys, which hold namespace and whole prefix and are equal in every rank
and after a restart. A block's parent is told before it, and its removal before its parent's (I32).
"""

from __future__ import annotations

from array import array

import numpy as np
from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, StorageMedium
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.events import KVCacheEventRecorder

from radix.tier import Keys

Space = tuple[str | None, str | None]  # extra key and cache salt: what separates two requests' KV


class Placements:
    """Tells what was stored and removed to SGLang's recorder, which hands it to the publisher."""

    def __init__(self, params: CacheInitParams, *, pairs: bool) -> None:
        """``pairs``: a unit is a token and the one after it."""
        self._page = params.page_size
        self._pairs = pairs
        self._dynamo = params.dynamo_kv_event_format
        self._names = params.kv_event_lora_names
        self.recorder = KVCacheEventRecorder(
            enabled=params.enable_kv_cache_events,
            page_size=self._page,
            dynamo_format=self._dynamo,
            lora_names=self._names,
        )

    def stored(self, keys: Keys, follows: bool, tokens: array[int], first: int, at: Space) -> None:
        """Pages from number ``first`` were stored. ``keys``: theirs, behind that of the page before
        them where there ``follows`` one. ``tokens``: of the whole path. Cost: the tokens.
        """
        names = _names(keys)
        parent = names.pop(0) if follows else None
        lo, hi = first * self._page, (first + len(names)) * self._page
        known = self._names.resolve if self._dynamo else self._names.get
        event = BlockStored(
            block_hashes=names,
            parent_block_hash=parent,
            token_ids=(
                list(zip(tokens[lo:hi], tokens[lo + 1 : hi + 1], strict=True))
                if self._pairs
                else list(tokens[lo:hi])
            ),
            block_size=self._page,
            lora_id=None,
            medium=StorageMedium.GPU,
            cache_salt=at[1],
            lora_name=known(at[0]),
        )
        self.recorder.enqueue(event)

    def removed(self, keys: Keys) -> None:
        """Pages went, children before their parents."""
        if len(keys):
            self.recorder.enqueue(BlockRemoved(block_hashes=_names(keys), medium=StorageMedium.GPU))


def _names(keys: Keys) -> list[int]:
    return keys[:, :8].copy().view(np.dtype("<i8")).reshape(-1).tolist()
