"""The flat store as one engine's keys see it: a key names a block hash and a cache group, the store
knows the hash, the group and the namespace of everything that decides what the bytes mean. Keeps
C27: no two configurations of an engine ever ask under one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.identity import KeyReader
from radix.keys import Namespace
from radix.keysets import FlatLease
from radix.plan import Pages
from radix.store import FlatStore
from radix.tier import Keys

HOST = 0


class Blocks:
    """Keys of the engine as keys of ``store``, in ``space``.

    ``chunk_tokens``: tokens a block of each group; ``tiers``: names, fastest first; ``roots``: the
    root keys of this namespace and of those that it had before.
    """

    def __init__(self, store: FlatStore, geometry: Geometry, config: Any) -> None:
        """``config``: the engine's OffloadingConfig. ``begin`` comes before the first question."""
        self.store = store
        self.space = Namespace()
        self.roots: set[bytes] = set()
        self.reader = KeyReader(geometry.group_ids)
        self.tiers = tuple(tier.name for tier in store.tiers)
        by_id = {group.group_id: group.tokens_per_block for group in config.groups}
        self.chunk_tokens = tuple(
            by_id[number] * geometry.blocks_per_chunk for number in geometry.group_ids
        )

    def begin(self, space: Namespace) -> None:
        """From now on keys are of this namespace."""
        self.space = space
        self.roots.add(self.store.root_key(space))

    def position(self, key: bytes, group: int, context: Any) -> int:
        """Blocks before this one in its request; -1 where the engine does not say."""
        end = context.get_offload_key_position(key)
        return -1 if end is None else (end - 1) // self.chunk_tokens[group]

    def positions(self, keys: Sequence[bytes], groups: Sequence[int], context: Any) -> Pages:
        """The same for many. Cost: the keys."""
        pairs = zip(keys, groups, strict=True)
        return np.array([self.position(key, group, context) for key, group in pairs], np.int64)

    def whole(self, key: bytes, group: int, context: Any) -> bool:
        """Whether the request's tokens fill the block: of a tail, what lies behind is anything."""
        end = context.get_offload_key_position(key)
        return end is not None and end % self.chunk_tokens[group] == 0

    def lease(self, names: Keys, positions: Pages | None) -> FlatLease:
        """Pins blocks in every tier."""
        return self.store.lease(names, namespace=self.space, positions=positions)


def joined(names: Sequence[bytes], width: int) -> Keys:
    """Names one behind the other, as the store takes them. Cost: the names."""
    return np.frombuffer(bytearray(b"".join(names)), np.uint8).reshape(-1, width)
