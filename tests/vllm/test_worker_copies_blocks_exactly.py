"""A worker stores blocks of the device into slots of the host pool and loads them into others: byte
by byte what an oracle that knows only the definition of a slot says, nothing beside it touched.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.config import OffloadingCacheConfig

from radix.engines.vllm.worker import Slots
from tests.vllm.workerrig import Rig, blocks_spec, caches_of, config_of, slots_spec, worker_of

BLOCKS = 64
# Two groups overlay one tensor, as in a hybrid model: 35,840 of 65,536 bytes would be its like.
HYBRID = ([[(0, 560), (1, 560)], [(0, 1024), (1, 1024)], [(2, 96)]], [1024, 1024, 96])


def rig_of(per_chunk: int, seed: int, *, staged: bool | None = None, padding: int = 64) -> Rig:
    pages, rows = HYBRID
    config = config_of(group_count=len(pages))
    config = replace(config, cache=OffloadingCacheConfig(32, per_chunk))
    caches = caches_of(pages, rows, BLOCKS, seed, padding)
    return worker_of(caches, config, staged=staged)


def image(rig: Rig) -> list[np.ndarray]:
    """All bytes of the tensors' memory, the padding between rows too."""
    return [
        torch.as_strided(each.tensor, (BLOCKS, each.tensor.stride(0)), (each.tensor.stride(0), 1))
        .numpy()
        .copy()
        for each in rig.caches.tensors
    ]


@pytest.mark.parametrize("staged", [None, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("per_chunk", [1, 2, 3])
def test_what_was_stored_comes_back_in_other_blocks_and_touches_no_other_byte(
    per_chunk: int, staged: bool | None
) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rig = rig_of(per_chunk, seed, staged=staged)
        try:
            check_one_round_trip(rig, rng, f"seed {seed}")
        finally:
            rig.worker.shutdown()


def check_one_round_trip(rig: Rig, rng: np.random.Generator, said: str) -> None:
    per_chunk, groups = rig.per_chunk, len(rig.caches.group_data_refs)
    stored, slots, kept = [], [], []
    for group in range(groups):
        chunks = int(rng.integers(0, 4))
        skipped = int(rng.integers(0, per_chunk)) if chunks else 0
        count = chunks * per_chunk - skipped
        first = int(rng.integers(0, 5)) * per_chunk + skipped
        stored.append((rng.permutation(np.arange(1, BLOCKS))[:count].tolist(), first))
        slots.append(rng.permutation(rig.reserve(group, chunks)).tolist())
        kept.append([rig.block(group, block) for block in stored[-1][0]])
    assert rig.worker.submit_store(1, blocks_spec(*stored), interleaved(slots, rng))
    rig.finish(1)
    for group, (blocks, first) in enumerate(stored):
        for at, expected in enumerate(kept[group], first % per_chunk):
            found = rig.sub_block(group, slots[group][at // per_chunk], at % per_chunk)
            assert found == expected, f"{said}: group {group} place {at}"
        for sub in range(first % per_chunk if blocks else 0):
            assert not any(rig.sub_block(group, slots[group][0], sub)), f"{said}: not blank"
    expected_image = image(rig)
    loaded = []
    # Groups that overlay one tensor are loaded into blocks of their own, as the engine does.
    free = rng.permutation(np.arange(1, BLOCKS)).tolist()
    for group, (blocks, first) in enumerate(stored):
        entered = int(rng.integers(0, max(1, min(per_chunk, len(blocks)))))
        if (first % per_chunk) + entered >= per_chunk:
            entered = 0
        fresh, free = free[: len(blocks) - entered], free[len(blocks) - entered :]
        loaded.append((fresh, first + entered))
        sources = kept[group][entered:]
        overlay(expected_image, rig, group, fresh, sources)
    assert rig.worker.submit_load(2, slots_spec(*slots), blocks_spec(*loaded))
    rig.finish(2)
    for found, expected in zip(image(rig), expected_image, strict=True):
        assert np.array_equal(found, expected), said


def interleaved(slots: list[list[int]], rng: np.random.Generator) -> Slots:
    """The slots of all groups, mixed, in order within each group."""
    numbers = rng.permutation([g for g, each in enumerate(slots) for _ in each]).astype(int)
    left = [list(each) for each in slots]
    return Slots(numbers, [left[g].pop(0) for g in numbers])


def overlay(
    pictures: list[np.ndarray], rig: Rig, group: int, blocks: list[int], contents: list[bytes]
) -> None:
    """Draws what a load must leave behind."""
    for block, content in zip(blocks, contents, strict=True):
        at = 0
        for ref in rig.caches.group_data_refs[group]:
            size = ref.page_size_bytes
            row = np.frombuffer(content[at : at + size], np.int8)
            pictures[ref.tensor_idx][block, :size] = row
            at += size


def test_a_chunk_is_entered_at_the_block_that_the_engine_names() -> None:
    rig = rig_of(2, 7)
    try:
        kept = [rig.block(1, block) for block in (4, 5, 9)]
        one, two = rig.reserve(1, 2)
        assert rig.worker.submit_store(
            1, blocks_spec(([], 0), ([4, 5, 9], 3), ([], 0)), slots_spec([], [one, two], [])
        )
        rig.finish(1)
        found = [rig.sub_block(1, *at) for at in ((one, 1), (two, 0), (two, 1))]
        assert found == kept
        assert not any(rig.sub_block(1, one, 0))
        assert rig.worker.submit_load(
            2, slots_spec([], [two], []), blocks_spec(([], 0), ([17], 5), ([], 0))
        )
        rig.finish(2)
        assert rig.block(1, 17) == kept[2]
    finally:
        rig.worker.shutdown()


def test_null_blocks_are_left_out_of_a_load() -> None:
    rig = rig_of(2, 8)
    try:
        kept = rig.block(2, 6)
        slots = slots_spec([], [], rig.reserve(2, 1))
        rig.worker.submit_store(1, blocks_spec(([], 0), ([], 0), ([5, 6], 0)), slots)
        rig.finish(1)
        null = rig.block(2, 0)
        rig.worker.submit_load(2, slots, blocks_spec(([], 0), ([], 0), ([0, 9], 0)))
        rig.finish(2)
        assert (rig.block(2, 0), rig.block(2, 9)) == (null, kept)
    finally:
        rig.worker.shutdown()
