"""What the adapter counts is told through the engine's own definitions, once each, by tier and
reason; a name that was not declared would be an error of the engine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)

from radix.engines.vllm.metrics import DEFINITIONS
from tests.vllm.offloaddriver import Driver
from tests.vllm.offloadrig import HIT, OffloadRig, keys_of


def values(stats: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """What a statement says, by metric and labels."""
    found: dict[str, dict[tuple[str, ...], float]] = stats.data["data"]
    return found


def test_every_name_and_label_was_declared(tmp_path: Path) -> None:
    driver = Driver(3, tmp_path / "d", version="0.32", groups=2, canary=0.3)
    total = OffloadingConnectorStats()
    for _ in range(60):
        driver.step()
        stats = driver.rig.offload.get_stats()
        if stats is not None:
            total.aggregate(stats)
    driver.reset()
    driver.finish()
    for name, by_label in values(total).items():
        for labels in by_label:
            assert len(labels) == len(DEFINITIONS[name].labelnames), (name, labels)


def test_hits_loads_and_bytes_are_told_by_tier_once(tmp_path: Path) -> None:
    rig = OffloadRig(8, tmp_path)
    keys = keys_of(1, 2)
    rig.keep(keys)
    rig.evict_host()
    request = rig.request([*keys, *keys_of(3)])
    assert rig.answer(keys, request) == [HIT, HIT]
    rig.look(keys_of(3), request)
    assert rig.load(keys, request) == []
    rig.step()
    told = values(rig.offload.get_stats())
    assert told["vllm:radix_loaded_blocks"] == {("disk",): 2}
    assert told["vllm:radix_hit_blocks"] == {("host",): 2}
    assert told["vllm:radix_miss_blocks"] == {("cold",): 1}
    assert told["vllm:radix_promoted_blocks"] == {("arrived",): 2}
    assert told["vllm:radix_moved_bytes"]["load", "disk", "group-0"] == 2 * 4096
    assert told["vllm:radix_limit_bytes"]["host",] == 8 * 4096
    assert told["vllm:radix_requests"]["released",] == 5
    assert rig.offload.get_stats() is None, "told once"
    rig.close()
