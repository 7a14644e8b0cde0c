"""Loads by layer: a layer is told complete when its bytes lie above and not before, in order; a
load that goes wrong stops being told at the layer that did; a full queue makes later layers wait,
and a cancelled load ends once (I22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radix._native import lib
from radix.errors import TierError, TierFullError
from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Tier, View
from tiers.disk import DiskTier
from tiers.faults import Fault, FaultPlan, FaultyTier
from tiers.host import HostTier
from tiers.rig import PATIENCE_S, Rig, bytes_of, content_of
from tiers.transfer import TransferEngine

LAYERS = 6
LAYOUT = Layout((Part("kv", "uint8", (("layer", LAYERS), ("byte", 700))),))
GROUPS = (Group("kv", LAYOUT),)
COUNT = 3
EVERY = 2**64 - 1
KINDS = ["host", "disk slab", "disk lmdb"]
MADE: dict[str, Callable[[Path], Tier]] = {
    "host": lambda folder: HostTier(1 << 20, verify=True),
    "disk slab": lambda folder: DiskTier(folder, limit_bytes=2 << 20, segment_bytes=32768),
    "disk lmdb": lambda folder: DiskTier(folder, limit_bytes=2 << 20, payload="lmdb"),
}


class _Loads(Rig):
    """A tier below plain memory that holds ``slots`` of ``content``."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier, GROUPS, first=False)
        self.content = content_of(1, 0, COUNT, LAYOUT.block_bytes)
        self.slots = tier.reserve(0, COUNT)
        assert self.write(0, self.slots, self.content).good.all()
        tier.commit(0, self.slots)
        self.rows[0][:] = 0xA5

    @property
    def engine(self) -> TransferEngine:
        """The threads that move its bytes."""
        tier = self.tier
        return tier._engine if isinstance(tier, HostTier) else tier._transfers.engine

    def begin(self, part: View | None = None) -> int:
        """Starts a load by layer of all blocks."""
        rows = np.arange(COUNT, dtype=np.int32)
        return self.start(0, rows, self.slots, into=False, part=part, by_layer=True)

    def has(self, layer: int) -> bool:
        """Whether a layer of every block lies above."""
        mine = bytes_of(LAYOUT, View((layer, layer + 1), (0, 1)))
        return np.array_equal(self.rows[0][:COUNT, mine], self.content[:, mine])


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Loads]:
    """Each kind of tier that reports layers."""
    made = _Loads(MADE[request.param](tmp_path / "d"))
    yield made
    made.close()


def test_each_kind_says_that_it_reports_layers(rig: _Loads) -> None:
    assert rig.tier.capability.layer_wise


@pytest.mark.parametrize("kind", ["host", "disk slab"])
def test_a_layer_is_told_once_it_lies_above_and_not_before(tmp_path: Path, kind: str) -> None:
    """As many native pieces are let go as one layer has; the next waits."""
    with closing(_Loads(MADE[kind](tmp_path / "d"))) as rig:
        lib.rdx_io_allow(rig.engine._io, 0)
        job = rig.begin()
        assert rig.tier.layers(job) == 0
        assert not rig.tier.wait_layer(job, 0, 0.0)
        for layer in range(LAYERS):
            lib.rdx_io_allow(rig.engine._io, 1 if kind == "host" else COUNT)
            assert rig.tier.wait_layer(job, layer, PATIENCE_S)
            assert rig.tier.layers(job) == layer + 1
            assert rig.has(layer) and not any(rig.has(n) for n in range(layer + 1, LAYERS))
            assert rig.tier.poll() == [] or layer == LAYERS - 1
        lib.rdx_io_allow(rig.engine._io, EVERY)
        assert rig.settle() or rig.tier.pending() == 0


def test_a_part_counts_from_its_first_layer(rig: _Loads) -> None:
    job = rig.begin(View((2, 5), (0, 1)))
    assert rig.tier.wait_layer(job, 4, PATIENCE_S)
    assert rig.tier.layers(job) == 3
    assert [rig.has(layer) for layer in range(LAYERS)] == [False, False, True, True, True, False]
    for wrong in (1, 5):
        with pytest.raises(ValueError, match=rf"layer {wrong}: job {job} moves layers"):
            rig.tier.wait_layer(job, wrong, 0.0)
    (done,) = rig.settle()
    assert done.good.all() and done.nbytes == COUNT * 3 * 700


def test_layers_of_what_is_no_load_are_refused(rig: _Loads) -> None:
    with pytest.raises(TierError, match="no load"):
        rig.tier.layers(77)
    job = rig.begin()
    rig.settle()
    for ask in (lambda: rig.tier.layers(job), lambda: rig.tier.wait_layer(job, 0, 1.0)):
        with pytest.raises(TierError, match=f"job {job} is no load that is under way"):
            ask()


def test_a_wait_for_a_layer_of_a_failed_load_ends(tmp_path: Path) -> None:
    """Damage in layer 3 of one block: what is before it counts, from there on nothing does."""
    folder = tmp_path / "d"
    with closing(_Loads(MADE["disk slab"](folder))) as rig:
        with (folder / "slab-0000").open("r+b") as file:
            file.seek(int(rig.slots[1]) * 8192 + 3 * 700 + 5)
            file.write(b"damage")
        job = rig.begin()
        assert rig.tier.wait_layer(job, 2, PATIENCE_S)
        for layer in (3, 4, LAYERS - 1):
            assert not rig.tier.wait_layer(job, layer, PATIENCE_S)
        assert rig.tier.layers(job) == 3
        (done,) = rig.settle()
        assert done.good.tolist() == [True, False, True] and done.corrupt.tolist() == [
            False,
            True,
            False,
        ]
        assert np.array_equal(rig.rows[0][:COUNT][done.good], rig.content[done.good])


@pytest.mark.parametrize("kind", ["host", "disk slab"])
def test_a_cancelled_load_by_layer_ends_once(tmp_path: Path, kind: str) -> None:
    with closing(_Loads(MADE[kind](tmp_path / "d"))) as rig:
        lib.rdx_io_allow(rig.engine._io, 0)
        job = rig.begin()
        rig.tier.cancel(job)
        lib.rdx_io_allow(rig.engine._io, EVERY)
        (done,) = rig.settle()
        assert done.job == job and not done.good.all() and done.error is not None
        rig.begin()
        (done,) = rig.settle()
        assert done.good.all() and all(rig.has(layer) for layer in range(LAYERS))
        rig.tier.check()


@pytest.mark.parametrize("kind", ["host", "disk slab"])
def test_a_full_queue_makes_later_layers_wait(tmp_path: Path, kind: str) -> None:
    """A load that finds no room for its first layer starts nothing; one that does goes on."""
    with closing(_Loads(MADE[kind](tmp_path / "d"))) as rig:
        small = TransferEngine(1, 2)
        owner = rig.tier if kind == "host" else rig.tier._transfers
        name = "_engine" if kind == "host" else "engine"
        large = getattr(owner, name)
        if kind != "host":
            owner._poller.register(small.event_fd)
        setattr(owner, name, small)
        large.close()
        lib.rdx_io_allow(small._io, 0)
        job = rig.begin()
        with pytest.raises(TierFullError) as refused:
            rig.begin()
        assert refused.value.retryable and rig.tier.pending() == 1
        lib.rdx_io_allow(small._io, EVERY)
        assert rig.tier.wait_layer(job, LAYERS - 1, PATIENCE_S)
        (done,) = rig.settle()
        assert done.good.all() and all(rig.has(layer) for layer in range(LAYERS))


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE, Fault.PART, Fault.CORRUPT])
def test_no_layer_of_a_faulty_load_is_told_complete(fault: Fault) -> None:
    plan = FaultPlan(script={"load": {1: fault}}, delay_polls=2)
    with closing(_Loads(FaultyTier(HostTier(1 << 20), plan))) as rig:
        job = rig.begin()
        assert not rig.tier.wait_layer(job, 0, 0.01) and rig.tier.layers(job) == 0
        (done,) = rig.settle()
        assert not done.good.all()
        job = rig.begin()
        assert rig.tier.wait_layer(job, LAYERS - 1, PATIENCE_S)
        rig.tier.poll()
        rig.settle()
