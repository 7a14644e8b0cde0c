"""What ``RadixDiskTier`` reports through vLLM's own metrics: counters as what was added since the
last report, so that nothing is told twice, and the state of the directory as it is. Keeps I34 for
this tier: a block that was asked for is a hit, a miss or not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata

PREFIX = "vllm:radix_disk_tier_"
LABELS = ("directory",)
COUNTERS: Mapping[str, str] = {
    "lookup_hits": "Blocks asked for that the directory has.",
    "lookup_misses": "Blocks asked for that the directory does not have.",
    "lookup_retries": "Blocks asked for that are still being written.",
    "stored_blocks": "Blocks written, durable and found again after a restart.",
    "present_blocks": "Blocks offered that the directory had already.",
    "declined_blocks": "Blocks offered that were not kept: no room, a full queue, a failed medium.",
    "loaded_blocks": "Blocks read, verified and copied into the host tier.",
    "failed_load_blocks": "Blocks that were to be loaded and did not come.",
    "corrupt_blocks": "Blocks whose checksum did not hold: dropped, never served.",
    "evicted_blocks": "Blocks that had to go for others.",
    "hints_taken": "Requests that said hints, which were taken.",
    "hints_refused": "Requests that said what is no hint, which was left out.",
    "resets": "Resets of the engine's caches.",
    "faults": "Calls that failed inside the tier and were answered as a miss.",
}
GAUGES: Mapping[str, str] = {
    "used_bytes": "Bytes that index and blocks take now.",
    "limit_bytes": "Bytes that they may take.",
    "blocks": "Blocks that are kept now.",
    "restored_blocks": "Blocks of earlier runs that were found at the start.",
    "writable": "1 while blocks are taken, 0 while the medium only serves or is off.",
}


def definitions() -> dict[str, Any]:
    """The metrics of the tier, as the engine wants them declared."""
    found: dict[str, Any] = {
        PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=LABELS)
        for name, text in COUNTERS.items()
    }
    for name, text in GAUGES.items():
        found[PREFIX + name] = OffloadingGaugeMetadata(documentation=text, labelnames=LABELS)
    return found


class Reporter:
    """What is new since the last report."""

    def __init__(self, directory: str) -> None:
        self._labels = (directory,)
        self._told: dict[str, int] = {}

    def report(self, counts: Mapping[str, int], state: Mapping[str, int]) -> Any | None:
        """An OffloadingConnectorStats of what has changed, None where nothing has."""
        stats = OffloadingConnectorStats()
        for name in COUNTERS:
            now = counts.get(name, 0)
            if now != self._told.get(name, 0):
                added = now - self._told.get(name, 0)
                stats.increase_counter(PREFIX + name, added, self._labels)
        for name in GAUGES:
            if state[name] != self._told.get(name):
                stats.set_gauge(PREFIX + name, state[name], self._labels)
        self._told = {**counts, **state}
        return None if stats.is_empty() else stats
