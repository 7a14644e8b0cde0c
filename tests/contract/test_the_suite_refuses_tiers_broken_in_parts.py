"""The half of the conformance suite that is about parts of blocks sees what it is there for: tiers
broken on purpose, one fault each, fail the test that names it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from radix.errors import CacheError
from radix.groups import Group
from radix.tier import Slots, Tier, Transfer, TransferDone, View
from tiers.host import HostTier
from tiers.slab import stride_bytes
from tiers.testing import TierConformance
from tiers.views import Cut


class _MovesWholeBlocks(HostTier):
    def load(self, transfer: Transfer, upper: Tier) -> None:
        super().load(replace(transfer, part=None), upper)


class _CountsWholeBlocks(HostTier):
    def poll(self) -> list[TransferDone]:
        largest = max(group.block_bytes for group in self._groups)
        return [replace(done, nbytes=len(done.good) * largest) for done in super().poll()]


class _KeepsOneSumABlock(HostTier):
    def sums(self, group: int, slots: Slots) -> npt.NDArray[np.uint64] | None:
        kept = super().sums(group, slots)
        return None if kept is None else kept[:, :1, :1]


class _CommitsWhatIsHalfThere(HostTier):
    def _require_whole(self, group: int, slots: Slots) -> None:
        return


class _RemembersPartsOfSlotsGivenBack(HostTier):
    def abort(self, group: int, slots: Slots) -> None:
        self._change(self._slab.abort, group, slots)

    def _wrote(self, transfer: Transfer, cut: Cut, good: npt.NDArray[np.bool_]) -> None:
        if not cut.whole:
            super()._wrote(transfer, cut, good)


class _BringsSharedPiecesTwice(HostTier):
    def store(self, transfer: Transfer, upper: Tier) -> None:
        part = transfer.part
        if part is not None:
            layout = self._groups[transfer.group].layout
            part = View(part.layers, (0, layout.store_shards))
        super().store(replace(transfer, part=part), upper)


class _TellsLayersEarly(HostTier):
    def layers(self, job: int) -> int:
        first, end = self._layers_of(job).span
        return end - first + 1


class _WaitsForNoLayer(HostTier):
    def wait_layer(self, job: int, layer: int, timeout_s: float) -> bool:
        return True


class _ForgetsTheViewAbove(HostTier):
    def load(self, transfer: Transfer, upper: Tier) -> None:
        view = upper.view(transfer.group)
        if transfer.part is None and view is not None:
            shards = view.shards
            view = View(view.layers, (shards[0], max(shards[0] + 1, shards[1] - 1)))
        super().load(replace(transfer, part=transfer.part or view), upper)


class _ClonesTheFirstBlockAlone(HostTier):
    def clone(self, group: int, sources: Slots, targets: Slots) -> None:
        super().clone(group, sources, targets[: len(sources)])
        if len(sources) > 1:
            super().clone(group, sources[:1], targets[-1:])


class _TakesAnyPart(HostTier):
    def load(self, transfer: Transfer, upper: Tier) -> None:
        layout, part = self._groups[transfer.group].layout, transfer.part
        if part is not None:
            layers = (min(part.layers[0], layout.layers - 1), min(part.layers[1], layout.layers))
            shards = (part.shards[0], min(part.shards[1], layout.store_shards))
            transfer = replace(transfer, part=View(layers, shards))
        super().load(transfer, upper)


def _fails(kind: type[HostTier], name: str) -> bool:
    class Suite(TierConformance):
        def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
            limit = sum(blocks * stride_bytes(group.block_bytes) for group in groups)
            return kind(limit, verify=True)

    suite = Suite()
    suite.setup_method()
    try:
        getattr(suite, name)()
    except (AssertionError, CacheError, ValueError):
        return True
    finally:
        suite.teardown_method()
    return False


NAMES = {
    _MovesWholeBlocks: "test_a_load_of_a_part_moves_its_runs_and_no_more",
    _CountsWholeBlocks: "test_a_load_of_a_part_moves_its_runs_and_no_more",
    _CommitsWhatIsHalfThere: "test_a_store_of_a_part_brings_the_pieces_that_begin_in_it",
    _RemembersPartsOfSlotsGivenBack: "test_a_store_of_a_part_brings_the_pieces_that_begin_in_it",
    _BringsSharedPiecesTwice: "test_a_store_of_a_part_brings_the_pieces_that_begin_in_it",
    _ForgetsTheViewAbove: "test_ranks_of_any_degree_read_what_others_wrote",
    _TellsLayersEarly: "test_layers_are_complete_in_order_and_not_before",
    _WaitsForNoLayer: "test_layers_are_complete_in_order_and_not_before",
    _KeepsOneSumABlock: "test_checksums_stand_for_each_run",
    _ClonesTheFirstBlockAlone: "test_a_clone_copies_whole_blocks_inside",
    _TakesAnyPart: "test_parts_that_a_layout_does_not_have_are_refused",
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_tier_broken_in_parts_fails_the_test_that_names_its_fault(kind: type[HostTier]) -> None:
    assert not _fails(HostTier, NAMES[kind])
    assert _fails(kind, NAMES[kind])
