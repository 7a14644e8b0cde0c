"""The content oracle through device, host and disk and over a restart: the bytes that come back to
the device are those of the prefix that they were stored for (I24), whatever each tier is made of.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from radix.groups import Group
from radix.tier import Records, Slots, Tier, Transfer, Urgency
from tests.oracle import blocks_for
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

NAMESPACE = b"model-a"
PAGE_TOKENS = 4
PAGES = 12
GROUPS = (Group.full("attention", 5000), Group.full("latent", 700))


class _Chain:
    """Three tiers over one another, and the jobs between neighbours."""

    def __init__(self, folder: Path, payload: str, staged: bool) -> None:
        tensors = {}
        for group in GROUPS:
            half = torch.zeros((2, PAGES, group.block_bytes // 4), dtype=torch.uint8)
            rest = torch.zeros((PAGES, group.block_bytes // 2), dtype=torch.uint8)
            tensors[group.name] = [half.transpose(0, 1), rest]
        self.device = DeviceTier(tensors, staged=staged)
        self.host = HostTier(64 * 8192, verify=True)
        self.disk = DiskTier(folder, limit_bytes=8 << 20, payload=payload, segment_bytes=1 << 18)
        above: Tier | None = None
        for tier in (self.device, self.host, self.disk):
            tier.attach(GROUPS, 4 * PAGE_TOKENS, above)
            above = tier
        self.jobs = 0

    def close(self) -> None:
        for tier in (self.disk, self.host, self.device):
            tier.close()

    def move(
        self,
        lower: Tier,
        upper: Tier,
        group: int,
        ends: tuple[Slots, Slots],
        records: Records | None,
    ) -> None:
        """Stores with records, loads without; all blocks must be good."""
        self.jobs += 1
        storing = records is not None
        urgency = Urgency.STORE if storing else Urgency.DEMAND
        transfer = Transfer(self.jobs, group, *ends, urgency, records)
        (lower.store if storing else lower.load)(transfer, upper)
        for _ in range(100):
            lower.wait(1.0)
            done = lower.poll()
            if done:
                break
        assert done[0].job == self.jobs and done[0].good.all(), f"{done}"
        assert storing or done[0].verified_blocks == len(ends[0])


def _records(group: int) -> Records:
    tokens = np.arange(PAGES * PAGE_TOKENS, dtype=np.int32)
    chain = blocks_for(NAMESPACE, tokens, PAGE_TOKENS, 100 + group, 16)
    parents = np.vstack([np.zeros((1, 16), np.uint8), chain[:-1]])
    pages = tokens.view(np.uint8).reshape(PAGES, -1)
    return Records(NAMESPACE, chain, parents, pages, np.arange(PAGES, dtype=np.int64))


def _fill(tensors: tuple[torch.Tensor, ...], content: np.ndarray) -> None:
    """Puts each row's bytes where the order of the tensors' own indices says."""
    first = 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape[1:]))
        part = torch.from_numpy(content[:, first : first + size].copy())
        tensor.copy_(part.reshape(tensor.shape))
        first += size


def _content(tensors: tuple[torch.Tensor, ...]) -> np.ndarray:
    return np.hstack([tensor.reshape(PAGES, -1).numpy() for tensor in tensors])


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("staged", [False, True])
def test_blocks_come_back_to_their_own_prefix(tmp_path: Path, payload: str, staged: bool) -> None:
    tokens = np.arange(PAGES * PAGE_TOKENS, dtype=np.int32)
    expected = [
        blocks_for(NAMESPACE, tokens, PAGE_TOKENS, group, kind.block_bytes)
        for group, kind in enumerate(GROUPS)
    ]
    chain = _Chain(tmp_path / "disk", payload, staged)
    assert list(chain.disk.restore()) == []
    for group in range(len(GROUPS)):
        _fill(chain.device.tensors[group], expected[group])
        on_device = chain.device.reserve(group, PAGES)
        chain.device.commit(group, on_device)
        below = chain.host.reserve(group, PAGES)
        chain.move(chain.host, chain.device, group, (on_device, below), _records(group))
        chain.host.commit(group, below)
        on_disk = chain.disk.reserve(group, PAGES)
        chain.move(chain.disk, chain.host, group, (below, on_disk), _records(group))
        chain.disk.commit(group, on_disk)
    chain.disk.flush()
    chain.close()
    chain = _Chain(tmp_path / "disk", payload, staged)
    order = np.random.default_rng(0).permutation(PAGES)
    for part in chain.disk.restore():
        keys = [key.tobytes() for key in part.records.keys]
        page_of = {key.tobytes(): page for page, key in enumerate(_records(part.group).keys)}
        slots = part.slots[[keys.index(key) for key in page_of]][order]
        above, top = chain.host.reserve(part.group, PAGES), chain.device.reserve(part.group, PAGES)
        chain.move(chain.disk, chain.host, part.group, (above, slots), None)
        chain.host.commit(part.group, above)
        chain.move(chain.host, chain.device, part.group, (top, above), None)
        chain.device.commit(part.group, top)
        found = _content(chain.device.tensors[part.group])[top]
        assert np.array_equal(found, expected[part.group][order])
    chain.close()
