"""Tensors of an engine serve as they are, or are refused by name; and slots that an engine gives
out are adopted and given back, never handed out by us.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from radix.errors import LayoutMismatchError, TierError, UnsupportedError
from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.device import DeviceTier
from tiers.host import HostTier

ONE = (Group.full("kv", 64),)
TWO = (Group.full("kv", 64), Group.full("state", 12))


def _bytes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float64]
)
@pytest.mark.parametrize("inference", [False, True])
def test_every_dtype_goes_down_and_comes_back(
    staged: bool, dtype: torch.dtype, inference: bool
) -> None:
    with torch.inference_mode(inference):
        source = torch.randint(0, 2, (8, 3, 24 // dtype.itemsize), dtype=torch.uint8).to(dtype)
        odd = torch.randint(0, 2, (2, 8, 5), dtype=torch.uint8)
        expected = source.clone(), odd.clone()
    groups = (Group.full("kv", 72 + 10),)
    device = DeviceTier([source, odd.transpose(0, 1)], staged=staged)
    device.attach(groups, 64, None)
    host = HostTier(16 * 4096, verify=True)
    host.attach(groups, 64, device)
    upper = np.array([7, 0, 3, 1], np.int32)
    lower = host.reserve(0, 4)
    host.store(Transfer(1, 0, upper, lower, Urgency.STORE, None), device)
    host.wait(10.0)
    assert host.poll()[0].good.all()
    host.commit(0, lower)
    with torch.inference_mode(inference):
        source.zero_()
        odd.zero_()
    host.load(Transfer(2, 0, upper, lower, Urgency.DEMAND, None), device)
    host.wait(10.0)
    assert host.poll()[0].verified_blocks == 4
    chosen = torch.from_numpy(upper).long()
    assert torch.equal(source.float()[chosen], expected[0].float()[chosen])
    assert torch.equal(odd[:, chosen], expected[1][:, chosen])
    others = torch.tensor([2, 4, 5, 6])
    assert not source.float()[others].any() and not odd[:, others].any()
    host.close()
    device.close()


@pytest.mark.parametrize(
    ("given", "groups", "error", "named"),
    [
        ([_bytes(4, 63)], ONE, LayoutMismatchError, "rows of 63 bytes, its layout says 64"),
        ([_bytes(4, 32), _bytes(5, 32)], ONE, ValueError, "one count of blocks"),
        ([_bytes(0, 64)], ONE, ValueError, "one count of blocks"),
        ([_bytes(1, 64).expand(4, 64)], ONE, ValueError, "expanded"),
        ([_bytes(4, 64)], TWO, ValueError, "by group name"),
        ({"kv": [_bytes(4, 64)]}, TWO, ValueError, "tensors for"),
        ({"kv": [_bytes(4, 64)], "odd": [_bytes(4, 12)]}, TWO, ValueError, "'odd'"),
        ([np.zeros((4, 64), np.uint8)], ONE, TypeError, "torch.Tensor, not ndarray"),
        ([], ONE, ValueError, "one device"),
    ],
)
def test_tensors_that_hold_no_blocks_are_refused(
    given: Any, groups: tuple[Group, ...], error: Any, named: str
) -> None:
    with pytest.raises(error, match=named):
        DeviceTier(given).attach(groups, 64, None)


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({}, ValueError, "either tensors or blocks"),
        ({"blocks": 4, "tensors": [_bytes(4, 64)]}, ValueError, "either tensors or blocks"),
        ({"blocks": 0}, ValueError, "blocks must be at least 1, not 0"),
        ({"blocks": [4, 0]}, ValueError, "blocks must be at least 1, not 0"),
        ({"blocks": "4"}, TypeError, "blocks must be an int, not str"),
        ({"blocks": 4.0}, TypeError, "blocks must be an int, not float"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        DeviceTier(**given)


def test_blocks_for_another_number_of_groups_are_refused() -> None:
    tier = DeviceTier(blocks=[4, 4], device="cpu")
    with pytest.raises(ValueError, match="names 2 groups, the cache has 1"):
        tier.attach(ONE, 64, None)
    tier.attach(TWO, 64, None)
    assert [tier.capacity_blocks(group) for group in range(2)] == [4, 4]
    tier.close()


def test_a_device_below_another_tier_is_refused() -> None:
    first = DeviceTier(blocks=4, device="cpu")
    first.attach(ONE, 64, None)
    with pytest.raises(UnsupportedError, match="must be the first tier"):
        DeviceTier(blocks=4, device="cpu", name="second").attach(ONE, 64, first)
    slots = first.reserve(0, 1)
    for call in (first.store, first.load):
        with pytest.raises(UnsupportedError, match="first tier"):
            call(Transfer(1, 0, slots, slots, Urgency.STORE, None), first)
    first.close()


def test_slots_of_the_engine_are_adopted_and_given_back() -> None:
    tier = DeviceTier([_bytes(8, 64)], owned=False)
    tier.attach(ONE, 64, None)
    with pytest.raises(UnsupportedError, match="given out by the engine"):
        tier.reserve(0, 1)
    slots = np.array([5, 2], np.int32)
    tier.adopt(0, slots)
    assert tier.free_blocks(0) == 6
    with pytest.raises(TierError):
        tier.adopt(0, np.array([1, 2], np.int32))
    assert tier.free_blocks(0) == 6
    tier.free(0, slots)
    with pytest.raises(TierError):
        tier.free(0, slots)
    assert tier.free_blocks(0) == 8
    tier.check()
    with pytest.raises(UnsupportedError, match="its own"):
        owning = DeviceTier(blocks=4, device="cpu")
        owning.attach(ONE, 64, None)
        owning.adopt(0, slots)
    tier.close()


@pytest.mark.parametrize("staged", [False, True])
def test_one_block_of_an_odd_size_keeps_its_parts_apart(staged: bool) -> None:
    """The second part starts at no multiple of its own words in the block."""
    first, second = _bytes(4, 9).random_(0, 256), torch.rand(4, 2, dtype=torch.float64)
    expected = first[2].clone(), second[2].clone()
    groups = (Group.full("kv", 9 + 16),)
    device = DeviceTier([first, second], staged=staged)
    device.attach(groups, 64, None)
    host = HostTier(4096)
    host.attach(groups, 64, device)
    slot, lower = np.array([2], np.int32), host.reserve(0, 1)
    host.store(Transfer(1, 0, slot, lower, Urgency.STORE, None), device)
    host.wait(10.0)
    assert host.poll()[0].good.all()
    first[2], second[2] = 0, 0
    host.load(Transfer(2, 0, slot, lower, Urgency.DEMAND, None), device)
    host.wait(10.0)
    assert host.poll()[0].good.all()
    assert torch.equal(first[2], expected[0]) and torch.equal(second[2], expected[1])
    host.close()
    device.close()
