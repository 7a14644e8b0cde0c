"""What the cache counts, as the engine's own metrics: declared before the engine starts, told as
what came since it last asked. Counters by tier, group and reason stay apart, so that hits, copies
and evictions are never one number. Keeps no invariant of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata

from radix.metrics import Metrics
from radix.tier import TierUsage

_PREFIX = "vllm:radix_"
# name: what it counts, and its labels
_COUNTERS = {
    "hit_blocks": ("Blocks that a lookup found, by the tier that had them.", ("tier",)),
    "miss_blocks": ("Blocks that a lookup did not find, by reason.", ("reason",)),
    "loaded_blocks": ("Blocks handed to the workers, by the tier they came from.", ("tier",)),
    "moved_blocks": ("Blocks copied to (store) or from (load) a tier.", ("what", "tier", "group")),
    "moved_bytes": ("Bytes copied to (store) or from (load) a tier.", ("what", "tier", "group")),
    "failed_blocks": ("Blocks whose copy failed.", ("what", "tier", "group")),
    "corrupt_blocks": ("Blocks found corrupt, dropped.", ("what", "tier", "group")),
    "evicted_blocks": ("Blocks that made room for others.", ("tier", "group")),
    "declined_blocks": ("Blocks that a tier did not take.", ("tier", "group")),
    "declined_stores": ("Offers not taken, or in part, by reason.", ("reason",)),
    "promoted_blocks": ("Blocks asked up into the host, by outcome.", ("outcome",)),
    "canary_blocks": ("Blocks under the canary, by outcome.", ("outcome",)),
    "hints": ("Requests that said hints, by whether they were taken.", ("outcome",)),
    "requests": ("Requests, by event of their end.", ("event",)),
    "events": ("Blocks told in cache events, by what happened.", ("what",)),
    "late_completions": ("Completions of nothing that is under way.", ("what",)),
    "resets": ("Epochs begun by a reset.", ()),
}
_GAUGES = {
    "used_bytes": ("Bytes that a tier takes.", ("tier",)),
    "limit_bytes": ("Bytes that a tier may take.", ("tier",)),
}
DEFINITIONS: Mapping[str, Any] = {
    **{
        _PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=labels)
        for name, (text, labels) in _COUNTERS.items()
    },
    **{
        _PREFIX + name: OffloadingGaugeMetadata(documentation=text, labelnames=labels)
        for name, (text, labels) in _GAUGES.items()
    },
}
# (stage, what) of our counters: the metric, and the first words of its labels; the others are the
# rest of the counter's name
_PLACES: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("has", "hit"): ("hit_blocks", ()),
    ("has", "miss"): ("miss_blocks", ()),
    ("load", "blocks"): ("moved_blocks", ("load",)),
    ("store", "blocks"): ("moved_blocks", ("store",)),
    ("load", "bytes"): ("moved_bytes", ("load",)),
    ("store", "bytes"): ("moved_bytes", ("store",)),
    ("load", "failed"): ("failed_blocks", ("load",)),
    ("store", "failed"): ("failed_blocks", ("store",)),
    ("load", "corrupt"): ("corrupt_blocks", ("load",)),
    ("store", "corrupt"): ("corrupt_blocks", ("store",)),
    ("evict", "blocks"): ("evicted_blocks", ()),
    ("store", "declined"): ("declined_blocks", ()),
    ("reset", "epochs"): ("resets", ()),
    ("missed",): ("miss_blocks", ()),
    ("loaded",): ("loaded_blocks", ()),
    ("declined",): ("declined_stores", ()),
    ("promoted",): ("promoted_blocks", ()),
    ("canary",): ("canary_blocks", ()),
    ("hints",): ("hints", ()),
    ("request",): ("requests", ()),
    ("told",): ("events", ()),
    ("late",): ("late_completions", ()),
}


class Report:
    """What was counted since the last time, in the engine's form."""

    def __init__(self, *sources: Metrics) -> None:
        self._sources = sources
        self._told: list[Mapping[str, int]] = [{} for _ in sources]

    def since_last(self, usage: Callable[[], Mapping[str, TierUsage]]) -> Any | None:
        """An OffloadingConnectorStats with what came since the last call, None where nothing did.
        Cost: the counters.
        """
        stats = OffloadingConnectorStats()
        for index, source in enumerate(self._sources):
            now, before = source.snapshot(), self._told[index]
            self._told[index] = now
            for key, count in now.items():
                if count != before.get(key, 0):
                    _add(stats, tuple(key.split(".")), count - before.get(key, 0))
        if stats.is_empty():
            return None
        for tier, use in usage().items():
            stats.set_gauge(_PREFIX + "used_bytes", use.used_bytes, (tier,))
            stats.set_gauge(_PREFIX + "limit_bytes", use.limit_bytes, (tier,))
        return stats


def _add(stats: Any, key: tuple[str, ...], count: int) -> None:
    for size in (2, 1):
        place = _PLACES.get(key[:size])
        if place is not None:
            name, first = place
            stats.increase_counter(_PREFIX + name, count, (*first, *key[size:]))
            return
