"""On a real GPU: a clone stands on the stream that computes, between what was queued before it and
the copies that are started after it; layers are told complete only when the device has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Slots, Transfer, TransferDone, Urgency, View
from tiers.device import DeviceTier
from tiers.host import HostTier

pytestmark = pytest.mark.gpu

LAYERS, LAYER_BYTES, BLOCKS = 8, 1 << 18, 16
KV = Part("kv", "uint8", (("layer", LAYERS), ("byte", LAYER_BYTES)))
GROUPS = (Group("kv", Layout((KV,))),)
ORDER = np.arange(BLOCKS, dtype=np.int32)


class _Pair:
    """Tensors of an engine on the GPU, one a layer, and a host tier below them."""

    def __init__(self) -> None:
        self.layers = [
            torch.zeros((BLOCKS, LAYER_BYTES), dtype=torch.uint8, device="cuda")
            for _ in range(LAYERS)
        ]
        self.device = DeviceTier(self.layers)
        self.device.attach(GROUPS, 64, None)
        self.host = HostTier(BLOCKS * LAYERS * LAYER_BYTES, verify=True)
        self.host.attach(GROUPS, 64, self.device)
        self.rows = self.host.reserve(0, BLOCKS)
        self.jobs = 0

    def start(self, above: Slots, below: Slots, *, storing: bool, part: View | None = None) -> int:
        """A store, or a load by layer."""
        self.jobs += 1
        urgency = Urgency.STORE if storing else Urgency.DEMAND
        transfer = Transfer(self.jobs, 0, above, below, urgency, None, part, not storing)
        (self.host.store if storing else self.host.load)(transfer, self.device)
        return self.jobs

    def end(self) -> TransferDone:
        """The one acknowledgement."""
        while not (done := self.host.poll()):
            self.host.wait(30.0)
        assert done[0].good.all(), f"{done}"
        return done[0]

    def close(self) -> None:
        """The lower tier first."""
        self.host.close()
        self.device.close()


@pytest.fixture
def pair() -> Iterator[_Pair]:
    made = _Pair()
    yield made
    made.close()


def test_a_clone_lies_between_what_was_queued_and_what_is_started(pair: _Pair) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for number, layer in enumerate(pair.layers):
            layer[0] = number + 1
        pair.device.clone(0, ORDER[:1], ORDER[1:2])
        for layer in pair.layers:
            layer[0] = 99
        pair.start(ORDER[:2], pair.rows[:2], storing=True)
    done = pair.end()
    assert done.nbytes == 2 * LAYERS * LAYER_BYTES
    pair.host.commit(0, pair.rows[:2])
    pair.start(ORDER[2:4], pair.rows[:2], storing=False)
    pair.end()
    torch.cuda.synchronize()
    for number, layer in enumerate(pair.layers):
        assert layer[2].unique().tolist() == [99]
        assert layer[3].unique().tolist() == [number + 1]


def test_layers_are_complete_on_the_device_when_they_are_told(pair: _Pair) -> None:
    for number, layer in enumerate(pair.layers):
        layer[:] = number + 1
    pair.start(ORDER, pair.rows, storing=True)
    pair.end()
    pair.host.commit(0, pair.rows)
    for part in (None, View((3, 7), (0, 1))):
        first, end = (0, LAYERS) if part is None else part.layers
        for layer in pair.layers:
            layer.zero_()
        torch.cuda.synchronize()
        job = pair.start(ORDER, pair.rows, storing=False, part=part)
        side = torch.cuda.Stream()
        for number in range(first, end):
            assert pair.host.wait_layer(job, number, 30.0)
            with torch.cuda.stream(side):  # it waits for nothing that the tier has queued
                seen = pair.layers[number].unique()
            assert seen.tolist() == [number + 1]
        assert pair.end().nbytes == BLOCKS * (end - first) * LAYER_BYTES
        for number in set(range(LAYERS)) - set(range(first, end)):
            assert pair.layers[number].unique().tolist() == [0]
