"""One directory under an engine whose cache changes from start to start: what another dtype, layout
or page size wrote is a miss, never bytes of the wrong kind, and is warm again for the settings that
wrote it.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.config import OffloadingConfig, OffloadingModelConfig

from radix.engines.vllm.geometry import Geometry
from radix.engines.vllm.identity import namespace
from radix.engines.vllm.spec import RadixOffloadingSpec
from radix.store import FlatStore
from tests.vllm.workerrig import config_of

NONE_HASH = bytes(range(32))
KEYS = np.arange(4 * 32, dtype=np.uint8).reshape(4, 32)
GEOMETRY = Geometry(2, 2, (0,), ((4096, 2048),))


class Start:
    """One start of an engine over a directory, as far as its store goes."""

    def __init__(self, config: OffloadingConfig, geometry: Geometry) -> None:
        spec = RadixOffloadingSpec(config)
        self.store: FlatStore = spec._store(geometry)
        self.space = namespace(config, geometry, spec.options, NONE_HASH)
        self.bytes = geometry.groups()[0].block_bytes

    def slot_address(self, slot: int) -> int:
        (plane,) = self.store.tiers[0].planes(0)
        return int(plane["base"]) + slot * int(plane["stride"])

    def put(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        reservation = self.store.reserve(KEYS, namespace=self.space)
        for slot in reservation.slots.tolist():
            content = rng.bytes(self.bytes)
            ctypes.memmove(self.slot_address(slot), content, len(content))
        self.store.commit(reservation)

    def found(self) -> list[bool]:
        return (self.store.has(KEYS, namespace=self.space) >= 0).tolist()

    def contents(self) -> list[bytes]:
        """What the keys hold, brought up from the disk."""
        self.store.fetch(KEYS, namespace=self.space)
        self.store.flush()
        slots = self.store.slots(KEYS, namespace=self.space).tolist()
        return [ctypes.string_at(self.slot_address(slot), self.bytes) for slot in slots]

    def close(self) -> None:
        self.store.flush()
        self.store.close()


def config_over(directory: Path) -> OffloadingConfig:
    config = config_of(engine_id="e", world=2)
    extra = {**config.extra_config, "directory": str(directory), "disk_bytes": 256 << 20}
    return replace(config, extra_config=extra)


# What is another namespace in blocks of one size stands beside the first; blocks of another size
# take the place of those that lie there.
BESIDE, INSTEAD = ("dtype", "layout"), ("page bytes", "groups", "world")


def changed(config: OffloadingConfig, change: str) -> tuple[OffloadingConfig, Geometry]:
    if change == "dtype":
        return replace(config, model=OffloadingModelConfig("tiny", "bfloat16")), GEOMETRY
    if change == "layout":
        return replace(config, kv_cache_layout="HND"), GEOMETRY
    if change == "page bytes":
        return config, replace(GEOMETRY, pages=((4096, 4096),))
    if change == "groups":
        groups = config_of(group_count=2).groups
        return replace(config, groups=groups), Geometry(2, 2, (0, 1), ((4096, 2048), (512,)))
    parallel = replace(config.parallel, world_size=1, tp_size=1)
    return replace(config, parallel=parallel), replace(GEOMETRY, world=1)


@pytest.mark.parametrize("change", [*BESIDE, *INSTEAD])
def test_another_cache_in_the_same_directory_finds_nothing_of_the_first(
    tmp_path: Path, change: str
) -> None:
    config = config_over(tmp_path)
    starts = {1: (config, GEOMETRY), 2: changed(config, change)}
    for seed, warm in ((1, False), (1, True), (2, False), (2, True), (1, change in BESIDE)):
        engine = Start(*starts[seed])
        try:
            assert engine.found() == [warm] * len(KEYS)
            if warm:
                rng = np.random.default_rng(seed)
                assert engine.contents() == [rng.bytes(engine.bytes) for _ in KEYS]
            else:
                engine.put(seed)
        finally:
            engine.close()
