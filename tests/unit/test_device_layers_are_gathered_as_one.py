"""Tensors that lie at even distances in one memory are moved as one, and the same bytes as before:
the layers of a pool, keys and values beside each other, other memory between them.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from radix.groups import Group
from radix.tier import Transfer, Urgency
from tiers.device import DeviceTier
from tiers.device_side import row_bytes, stacked
from tiers.host import HostTier

SLOTS = 12


def _pool(layers: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    rng = np.random.default_rng(layers * width)
    words = torch.from_numpy(rng.integers(0, 256, (layers, SLOTS, width * dtype.itemsize)))
    return words.to(torch.uint8).view(dtype)


def _cases() -> dict[str, tuple[list[torch.Tensor], int]]:
    """Tensors of a group, and how many are left once neighbours are one."""
    pool, other = _pool(6, 64), _pool(5, 64)
    both = _pool(4, 2 * 64).view(4, SLOTS, 2, 64)
    return {
        "layers of a pool": (list(pool), 1),
        "layers downwards": ([pool[2], pool[1], pool[0]], 3),
        "every second layer": ([pool[0], pool[2], pool[4]], 1),
        "uneven distances": ([pool[0], pool[1], pool[3]], 2),
        "two pools": ([*pool, *other], 2),
        "keys and values": ([t for layer in both for t in (layer[:, 0], layer[:, 1])], 4),
        "another width": ([pool[0], pool[1], pool[2][:, :32]], 2),
        "one alone": ([pool[3]], 1),
        "the same twice": ([pool[3], pool[3]], 2),
        "allocated apart": ([layer.clone() for layer in pool], 6),
    }


@pytest.mark.parametrize("name", _cases())
def test_rows_are_those_of_the_tensors_one_after_the_other(name: str) -> None:
    tensors, count = _cases()[name]
    found = stacked(tensors)
    assert len(found) == count
    for slot in range(SLOTS):
        rows = [
            torch.cat([t[slot].flatten().view(torch.uint8) for t in each])
            for each in (found, tensors)
        ]
        assert torch.equal(*rows)
    assert sum(map(row_bytes, found)) == sum(map(row_bytes, tensors))


def _held_and_brought_back(tensors: list[torch.Tensor], staged: bool) -> list[bytes]:
    """What the slab holds after a store of some blocks, and the tensors after they were wiped and
    loaded.
    """
    group = Group.full("kv", sum(row_bytes(tensor) for tensor in tensors))
    device, host = DeviceTier({"kv": tensors}, staged=staged), HostTier(SLOTS * 8192)
    device.attach((group,), 64, None)
    host.attach((group,), 64, device)
    upper = np.array([7, 1, 4, 10, 0], np.int32)
    lower = host.reserve(0, len(upper))[::-1].copy()
    for job, start in enumerate((host.store, host.load)):
        start(Transfer(job, 0, upper, lower, Urgency.DEMAND, None), device)
        host.wait(10.0)
        (done,) = host.poll()
        assert done.good.all()
        if start == host.store:
            host.commit(0, lower)
            (plane,) = host.planes(0)
            places = [int(plane["base"]) + int(slot) * int(plane["stride"]) for slot in lower]
            found = [ctypes.string_at(place, group.block_bytes) for place in places]
            for tensor in tensors:
                tensor[torch.from_numpy(upper.astype(np.int64))] = 0
    host.close()
    device.close()
    return found + [bytes(t.contiguous().view(torch.uint8).numpy()) for t in tensors]


@pytest.mark.parametrize("name", [name for name in _cases() if name != "the same twice"])
def test_stores_and_loads_move_the_same_bytes_as_copies_by_address(name: str) -> None:
    tensors, _ = _cases()[name]
    before = [bytes(t.contiguous().view(torch.uint8).numpy()) for t in tensors]
    found = _held_and_brought_back(tensors, staged=True)
    assert found[5:] == before
    assert found == _held_and_brought_back(tensors, staged=False)
