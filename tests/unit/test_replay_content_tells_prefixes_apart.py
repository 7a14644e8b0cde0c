"""What a replay writes is decided by the whole prefix of a block, and every fault is seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.groups import Group
from radix.replay.content import Content
from tiers.device import DeviceTier

BLOCKS = 70


@pytest.fixture(params=[8, 24, 40_001, 65_536])
def device(request: pytest.FixtureRequest) -> Iterator[DeviceTier]:
    tier = DeviceTier(blocks=BLOCKS, device="cpu")
    with PrefixCache([Group.full("kv", request.param)], [tier], page_tokens=2):
        yield tier


def rows(device: DeviceTier, slots: np.ndarray) -> np.ndarray:
    found: np.ndarray = device.tensors[0][0].numpy()[slots]
    return found


def slots_of(count: int) -> np.ndarray:
    return np.random.default_rng(7).permutation(BLOCKS)[:count].astype(np.int32)


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_was_written_is_found_right_and_a_flipped_bit_wrong(
    device: DeviceTier, in_memory: bool
) -> None:
    content = Content(device, b"space", 2)
    if not in_memory:
        content._memory = None  # as on a device without addresses: through its tensor
    keys = content.keys(np.arange(2 * BLOCKS, dtype=np.int32))
    slots = slots_of(BLOCKS)
    content.write(slots, keys)
    assert content.wrong(slots, keys) == 0
    memory = device.tensors[0][0].numpy()
    for where in (0, -1):
        memory[slots[5], where] ^= 1
        memory[slots[66], where] ^= 128
        assert content.wrong(slots, keys) == 2
        memory[slots[[5, 66]], where] ^= np.array([1, 128], np.uint8)
    assert content.wrong(slots, keys) == 0


def test_blocks_of_other_prefixes_orders_or_namespaces_are_wrong(device: DeviceTier) -> None:
    content = Content(device, b"space", 2)
    keys = content.keys(np.array([1, 2, 3, 4, 5, 6], np.int32))
    slots = slots_of(3)
    content.write(slots, keys)
    other = content.keys(np.array([9, 2, 3, 4, 5, 6], np.int32))
    assert content.wrong(slots, other) == 3
    assert content.wrong(slots[::-1].copy(), keys) == 2
    elsewhere = Content(device, b"other space", 2)
    assert elsewhere.wrong(slots, elsewhere.keys(np.array([1, 2, 3, 4, 5, 6], np.int32))) == 3


def test_two_blocks_differ_in_every_word(device: DeviceTier) -> None:
    content = Content(device, b"space", 2)
    slots = slots_of(2)
    content.write(slots, content.keys(np.array([1, 2, 3, 4], np.int32)))
    first, second = rows(device, slots)
    words = len(first) // 8 * 8
    assert (first[:words].view(np.int64) != second[:words].view(np.int64)).all()


def test_no_block_is_neither_written_nor_wrong(device: DeviceTier) -> None:
    content = Content(device, b"space", 2)
    before = device.tensors[0][0].numpy().copy()
    none = content.keys(np.array([1], np.int32))
    content.write(np.empty(0, np.int32), none)
    assert content.wrong(np.empty(0, np.int32), none) == 0
    assert (device.tensors[0][0].numpy() == before).all()
