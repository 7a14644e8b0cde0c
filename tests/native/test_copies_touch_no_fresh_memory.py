"""A copy touches memory that was touched before, and none else: a first touch costs ten times the
copy. Counted are the page faults of the whole process, transfer threads included.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch

from radix._native import ffi, lib
from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.device import DeviceTier
from tiers.host import HostTier
from tiers.transfer import PLANE

LAYERS, SEGMENT, BLOCKS = 8, 4096, 512  # 16 MiB: 4,096 pages a side
FEW = 64  # the interpreter's own


def faults_of(call: Callable[[], None]) -> int:
    """Minor and major faults while ``call`` runs for the second time."""
    call()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_minflt - before.ru_minflt + after.ru_majflt - before.ru_majflt


def test_faults_are_seen_at_all() -> None:
    def touch() -> None:
        np.ones(64 << 20, np.uint8)

    assert faults_of(touch) > 16  # fewer than its pages where the kernel gives huge ones


@pytest.mark.parametrize("blocks", [16, BLOCKS])
def test_a_gather_between_touched_pools_faults_nothing(blocks: int) -> None:
    """Below and above the size from which stores pass by the cache."""
    source = np.ones((LAYERS, BLOCKS, SEGMENT), np.uint8)
    target = np.ones((BLOCKS, LAYERS * SEGMENT), np.uint8)
    layers = np.zeros(LAYERS, PLANE)
    layers["base"] = [layer.ctypes.data for layer in source]
    layers["stride"] = layers["bytes"] = SEGMENT
    pages = np.array([(target.ctypes.data, LAYERS * SEGMENT, LAYERS * SEGMENT)], PLANE)
    slots = np.random.default_rng(1).permutation(BLOCKS)[:blocks].astype(np.int32)
    numbers = ffi.from_buffer("int32_t[]", slots)
    sides = [
        (ffi.from_buffer("rdx_plane[]", planes), len(planes), numbers) for planes in (pages, layers)
    ]

    def gather() -> None:
        assert lib.rdx_copy_blocks(*sides[0], *sides[1], blocks) == lib.RDX_OK
        assert lib.rdx_copy_blocks(*sides[1], *sides[0], blocks) == lib.RDX_OK

    assert faults_of(gather) <= FEW


def test_a_store_to_the_slab_and_a_load_fault_nothing() -> None:
    """Not even the first store: the slab was touched when it was made."""
    group = Group.full("kv", LAYERS * SEGMENT)
    pools = [torch.ones((BLOCKS, SEGMENT), dtype=torch.uint8) for _ in range(LAYERS)]
    device, host = DeviceTier({"kv": pools}), HostTier(LAYERS * SEGMENT * BLOCKS)
    device.attach((group,), 64, None)
    host.attach((group,), 64, device)
    lower, upper = host.reserve(0, BLOCKS), device.reserve(0, BLOCKS)
    numbers = iter(range(100))

    def move(start: Callable[[Transfer, DeviceTier], None]) -> None:
        start(Transfer(next(numbers), 0, upper, lower, Urgency.DEMAND, None), device)
        while not (done := host.poll()):
            host.wait(1.0)
        assert done[0].good.all()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    move(host.store)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before <= FEW
    assert faults_of(lambda: move(host.store)) <= FEW
    assert faults_of(lambda: move(host.load)) <= FEW
    host.close()
    device.close()
