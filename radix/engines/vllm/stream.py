"""The stream of blocks stored and removed (I32), in the engine's form: with the medium of their
tier, under the engine's own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent

from radix.engines.vllm.blocks import HOST, Blocks
from radix.engines.vllm.identity import GROUP_BYTES, ROOT_BYTES
from radix.events import BlocksRemoved, BlocksStored, Event
from radix.metrics import Metrics


class Stream:
    """``take`` what ``tell`` was told since. Only keys whose hash stands in the store as it is can
    be told: others are hashed there, and nothing leads back.
    """

    def __init__(self, blocks: Blocks, group_ids: Sequence[int], metrics: Metrics) -> None:
        self._blocks = blocks
        self._metrics = metrics
        self._ends = {
            group.name: number.to_bytes(GROUP_BYTES, "big")
            for group, number in zip(blocks.store.groups, group_ids, strict=True)
        }
        self._media = {
            name: Medium.CPU if number == HOST else Medium.STORAGE
            for number, name in enumerate(blocks.tiers)
        }
        self._waiting: list[BlocksStored | BlocksRemoved] = []
        self.plain = True  # whether keys of the store are the engine's

    def tell(self, event: Event) -> None:
        """Keeps an event of the store, if it is of the stream."""
        if isinstance(event, BlocksStored | BlocksRemoved):
            self._waiting.append(event)

    def take(self) -> list[Any]:
        """OffloadingEvents of the engine's, in order. Cost: their keys."""
        waiting, self._waiting = self._waiting, []
        if not waiting or not self.plain:
            return []
        mine = self._blocks.roots
        told = []
        for event in waiting:
            end = self._ends[event.group]
            raw = [key.tobytes() for key in event.keys]
            keys = [key[ROOT_BYTES:] + end for key in raw if key[:ROOT_BYTES] in mine]
            if keys:
                removed = isinstance(event, BlocksRemoved)
                self._metrics.add(("told", "removed" if removed else "stored"), len(keys))
                told.append(
                    OffloadingEvent(
                        keys=keys,
                        medium=self._media[event.tier],
                        removed=removed,
                        locality=Locality.LOCAL,
                    )
                )
        return told
