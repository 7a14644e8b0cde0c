"""On a real GPU: copies stand behind the kernels that write and read their slots, nothing is given
back before the device is done, and the slab is page-locked where it lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from radix.groups import Group
from radix.tier import Slots, Transfer, TransferDone, Urgency
from tiers.device import DeviceTier
from tiers.host import HostTier

pytestmark = pytest.mark.gpu

BLOCK = 1 << 18
BLOCKS = 64
GROUPS = (Group.full("kv", BLOCK),)


class _Pair:
    """Tensors of an engine on the GPU, two a block, and a host tier below them."""

    def __init__(self, block_bytes: int = BLOCK) -> None:
        groups = (Group.full("kv", block_bytes),)
        half = block_bytes // 2
        self.keys = torch.zeros((BLOCKS, half), dtype=torch.uint8, device="cuda")
        self.values = torch.zeros((BLOCKS, block_bytes - half), dtype=torch.uint8, device="cuda")
        self.device = DeviceTier([self.keys, self.values])
        self.device.attach(groups, 64, None)
        self.host = HostTier(BLOCKS * (-(-block_bytes // 4096) * 4096), verify=True)
        self.host.attach(groups, 64, self.device)
        self.jobs = 0

    def start(self, upper: Slots, lower: Slots, *, storing: bool) -> None:
        self.jobs += 1
        urgency = Urgency.STORE if storing else Urgency.DEMAND
        transfer = Transfer(self.jobs, 0, upper, lower, urgency, None)
        (self.host.store if storing else self.host.load)(transfer, self.device)

    def end(self) -> TransferDone:
        self.host.wait(30.0)
        (done,) = self.host.poll()
        assert done.good.all(), f"{done}"
        return done

    def held(self, slots: Slots) -> list[int]:
        """The first byte of each host block."""
        plane = self.host.planes(0)[0]
        return [_peek(int(plane["base"]) + int(s) * int(plane["stride"])) for s in slots]

    def close(self) -> None:
        self.host.close()
        self.device.close()


def _peek(address: int) -> int:
    return ctypes.c_uint8.from_address(address).value


def _busy() -> None:
    """Queues about a tenth of a second of work on the current stream."""
    torch.cuda._sleep(200_000_000)


@pytest.fixture
def pair() -> Iterator[_Pair]:
    pair = _Pair()
    yield pair
    pair.close()


def test_a_store_takes_what_a_queued_kernel_writes(pair: _Pair) -> None:
    """C68 (vllm#46278): a store that does not stand behind the kernel reads KV before it is
    written.
    """
    upper = np.arange(BLOCKS, dtype=np.int32)
    lower = pair.host.reserve(0, BLOCKS)
    _busy()
    pair.keys.fill_(7)
    pair.values.fill_(7)
    pair.start(upper, lower, storing=True)
    pair.end()
    assert set(pair.held(lower)) == {7}


def test_a_load_waits_for_kernels_that_still_read_its_slots(pair: _Pair) -> None:
    """C71 (rtx6kpro#47): a load that ignores the caller's event overwrites blocks which queued
    kernels still read.
    """
    upper = np.arange(BLOCKS, dtype=np.int32)
    lower = pair.host.reserve(0, BLOCKS)
    pair.keys.fill_(1)
    pair.values.fill_(1)
    pair.start(upper, lower, storing=True)
    pair.end()
    pair.host.commit(0, lower)
    pair.keys.fill_(2)
    pair.values.fill_(2)
    _busy()
    seen = pair.keys.clone()  # the last reader, queued behind the work
    pair.start(upper, lower, storing=False)
    assert pair.end().verified_blocks == BLOCKS
    assert bool((seen == 2).all())
    assert bool((pair.keys == 1).all()) and bool((pair.values == 1).all())


def test_a_copy_waits_for_an_event_of_another_stream(pair: _Pair) -> None:
    upper = np.arange(BLOCKS, dtype=np.int32)
    lower = pair.host.reserve(0, BLOCKS)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    with torch.cuda.stream(other):
        _busy()
        pair.keys.fill_(9)
        event.record()
    pair.device.after(event)
    pair.start(upper, lower, storing=True)
    pair.end()
    assert set(pair.held(lower)) == {9}


def test_memory_of_a_temporary_is_not_reused_under_a_copy(pair: _Pair) -> None:
    """C70 (torchrec#4231): without record_stream or a reference until the event, the allocator
    hands the gathered blocks to the next allocation while the copy still reads them.
    """
    upper = np.arange(BLOCKS, dtype=np.int32)
    lower = pair.host.reserve(0, BLOCKS)
    pair.keys.fill_(3)
    pair.values.fill_(3)
    pair.start(upper, lower, storing=True)
    for _ in range(50):
        torch.empty((BLOCKS, BLOCK), dtype=torch.uint8, device="cuda").fill_(255)
    pair.end()
    assert set(pair.held(lower)) == {3}


def test_the_slab_is_page_locked_where_it_lies(pair: _Pair) -> None:
    assert pair.host.registered
    pair.close()
    assert pair.host.close() is None


@pytest.mark.parametrize("block_bytes", [4096, 5001, BLOCK, 20 << 20])
def test_random_bytes_come_back_from_below(block_bytes: int) -> None:
    pair = _Pair(block_bytes)
    rng = np.random.default_rng(block_bytes)
    for tensor in (pair.keys, pair.values):
        tensor.copy_(torch.randint(0, 256, tensor.shape, dtype=torch.uint8, device="cuda"))
    expected = pair.keys.clone(), pair.values.clone()
    upper = rng.permutation(BLOCKS).astype(np.int32)
    lower = pair.host.reserve(0, BLOCKS)[rng.permutation(BLOCKS)]
    pair.start(upper, lower, storing=True)
    pair.end()
    pair.host.commit(0, lower)
    pair.keys.zero_()
    pair.values.zero_()
    pair.start(upper, lower, storing=False)
    pair.end()
    assert torch.equal(pair.keys, expected[0]) and torch.equal(pair.values, expected[1])
    pair.close()


def test_layers_of_a_pool_move_both_ways_at_once() -> None:
    """Stores and loads are on the bus at the same time, each on a stream of its own; the layers are
    one tensor to the device.
    """
    pool = torch.randint(0, 256, (8, BLOCKS, BLOCK // 8), dtype=torch.uint8, device="cuda")
    device, host = DeviceTier({"kv": list(pool)}), HostTier(BLOCKS * BLOCK)
    device.attach(GROUPS, 64, None)
    host.attach(GROUPS, 64, device)
    rng, half = np.random.default_rng(1), BLOCKS // 2
    first, second = np.split(rng.permutation(BLOCKS).astype(np.int32), 2)
    rows = host.reserve(0, BLOCKS)[rng.permutation(BLOCKS)]
    expected = pool[:, torch.from_numpy(first).long()].clone()

    def move(*transfers: tuple[int, bool, Slots, Slots]) -> None:
        for job, storing, upper, lower in transfers:
            transfer = Transfer(job, 0, upper, lower, Urgency.DEMAND, None)
            (host.store if storing else host.load)(transfer, device)
        ended: list[TransferDone] = []
        while len(ended) < len(transfers):
            host.wait(30.0)
            ended += host.poll()
        assert all(done.good.all() for done in ended)

    move((1, True, first, rows[:half]))
    host.commit(0, rows[:half])
    move((2, True, first, rows[half:]), (3, False, second, rows[:half]))
    host.commit(0, rows[half:])
    assert torch.equal(pool[:, torch.from_numpy(second).long()], expected)
    pool[:, torch.from_numpy(first).long()] = 0
    move((4, False, first, rows[half:]))
    assert torch.equal(pool[:, torch.from_numpy(first).long()], expected)
    host.close()
    device.close()
