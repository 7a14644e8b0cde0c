"""The half of the conformance suite that is about parts of blocks; ``tiers.testing`` inherits it,
so that every adapter that subclasses that one is held to this. What it holds: a transfer of a part
moves the runs asked for and not a byte more, and counts them so; blocks that several ranks write
are there once every one of them has (I24); ranks of any degree read them back; layers are told
complete in order and only when they are; checksums stand for each run; clones copy whole blocks;
what a layout does not have is refused, and nothing was started (I22).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.errors import TierError
from radix.groups import Group
from radix.layout import Layout
from radix.tier import Slots, Tier, Transfer, TransferDone, Urgency, View
from tiers.rig import PATIENCE_S, Rig, bytes_of, content_of, groups_of_runs, records_of, refused

Rows = npt.NDArray[np.uint8]
BEFORE = 0xA5  # what lies where nothing was written


def views_of(layout: Layout) -> list[View]:
    """Parts of a block: all of it, each layer, each shard, the middle, a corner."""
    layers, shards = (0, layout.layers), (0, layout.store_shards)
    each_layer = [View((layer, layer + 1), shards) for layer in range(layout.layers)]
    each_shard = [View(layers, (shard, shard + 1)) for shard in range(layout.store_shards)]
    middle = View((layout.layers // 2, layout.layers), (0, (layout.store_shards + 1) // 2))
    corner = View((layout.layers - 1, layout.layers), (shards[1] - 1, shards[1]))
    return [View(layers, shards), *each_layer, *each_shard, middle, corner]


class PartConformance:
    """The tests; ``TierConformance`` says what the adapter is and how to make it."""

    first = False
    moves_bytes = True

    def rig(
        self,
        blocks: int = 8,
        make: Callable[..., Tier] | None = None,
        groups: tuple[Group, ...] | None = None,
    ) -> Rig:
        """A tier beside its neighbour."""
        raise NotImplementedError

    def reopen_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
        """The persistent tier that was made and closed since."""
        raise NotImplementedError

    def parts_rig(self, make: Callable[..., Tier] | None = None) -> Rig:
        """A tier whose blocks are of several runs, beside its neighbour."""
        rig = self.rig(8, make, groups_of_runs())
        rig.tier.restore()
        return rig

    # ------------------------------------------------------------------ parts of a block
    def test_a_load_of_a_part_moves_its_runs_and_no_more(self) -> None:
        """I22, I24: the bytes asked for, exactly, all else stays as it was; counted so."""
        rig = self.parts_rig()
        for group, kind in enumerate(rig.groups):
            slots = rig.tier.reserve(group, min(3, rig.tier.free_blocks(group)))
            content = content_of(1, group, len(slots), kind.block_bytes)
            rig.write(group, slots, content)
            rig.tier.commit(group, slots)
            for view in views_of(kind.layout):
                done, found = self._load(rig, group, slots, content, view)
                assert done.good.all() and not done.corrupt.any() and done.error is None, view
                if not self.moves_bytes:
                    continue
                mine = bytes_of(kind.layout, view)
                assert done.nbytes == len(slots) * len(mine), f"{kind.name} {view}"
                expected = np.full_like(content, BEFORE)
                expected[:, mine] = content[:, mine]
                assert np.array_equal(found, expected), f"{kind.name} {view}"
            rig.tier.free(group, slots)
            rig.tier.check()

    def _load(
        self, rig: Rig, group: int, slots: Slots, content: Rows, view: View
    ) -> tuple[TransferDone, Rows]:
        """Loads a part of blocks to where other bytes were; what lies there then."""
        rows = np.arange(len(slots), dtype=np.int32)
        if self.first:
            rig.write(group, slots, np.full_like(content, BEFORE))
            rig.rows[group][rows] = content
        else:
            rig.rows[group][rows] = BEFORE
        job = rig.start(group, rows, slots, into=self.first, part=view)
        (done,) = rig.settle()
        assert done.job == job
        return done, rig.read(group, slots) if self.first else rig.rows[group][rows]

    def test_a_store_of_a_part_brings_the_pieces_that_begin_in_it(self) -> None:
        """So the stores of all shards bring every byte once, and a block is there with the last of
        them: until then it can neither be committed nor read, and what is given up leaves no trace.
        """
        rig = self.parts_rig()
        for group, kind in enumerate(rig.groups):
            at_first = rig.tier.free_blocks(group)
            slots = rig.tier.reserve(group, 3)
            content = content_of(2, group, 3, kind.block_bytes)
            if self.first:
                rig.write(group, slots, content)
                rig.rows[group][:] = BEFORE
            else:
                rig.rows[group][:3] = content
            parts = self._parts(kind.layout)
            left = np.ones(kind.block_bytes, np.bool_)
            for view in parts:
                mine = bytes_of(kind.layout, view, beginning=True)
                if not len(mine):
                    continue
                assert left[mine].all(), "two writers bring one byte"
                left[mine] = False
                rows = np.arange(3, dtype=np.int32)
                rig.start(group, rows, slots, into=not self.first, part=view)
                (done,) = rig.settle()
                assert done.good.all() and done.error is None, f"{kind.name} {view}"
                assert done.nbytes == 3 * len(mine) or not self.moves_bytes
                if left.any() and not self.first:
                    with refused(TierError):
                        rig.tier.commit(group, slots)
                    assert rig.tier.usage().used_blocks[group] == 3
                rig.tier.check()
            assert not left.any()
            if self.first:
                assert np.array_equal(rig.rows[group][:3], content)
            rig.tier.commit(group, slots)
            if self.moves_bytes and not self.first:
                assert np.array_equal(rig.read(group, slots), content)
            rig.tier.free(group, slots)
            self._give_up_half(rig, group, parts[0])
            rig.tier.flush()
            assert rig.tier.free_blocks(group) == at_first

    @staticmethod
    def _parts(layout: Layout) -> list[View]:
        """Every shard of every layer, the last first."""
        return [
            View((layer, layer + 1), (shard, shard + 1))
            for layer in reversed(range(layout.layers))
            for shard in reversed(range(layout.store_shards))
        ]

    def _give_up_half(self, rig: Rig, group: int, view: View) -> None:
        """A writer that never comes: the slots go back, and are whole for who takes them next."""
        layout, count = rig.groups[group].layout, 2
        slots = rig.tier.reserve(group, count)
        rows = np.arange(count, dtype=np.int32)
        if len(bytes_of(layout, view, beginning=True)):
            rig.start(group, rows, slots, into=not self.first, part=view)
            rig.settle()
        rig.tier.abort(group, slots)
        rig.tier.flush()
        slots = rig.tier.reserve(group, count)
        rig.write(group, slots, content_of(3, group, count, layout.block_bytes))
        rig.tier.commit(group, slots)
        rig.tier.free(group, slots)

    # ------------------------------------------------------------------ ranks
    def test_ranks_of_any_degree_read_what_others_wrote(self) -> None:
        """I24: each gets its own bytes, byte for byte, and only these are moved; so do stages."""
        if self.first:
            return
        for written in (1, 2, 4):
            rig = self.parts_rig()
            whole, slots = self._write_by_ranks(rig, written)
            for group in range(len(rig.groups)):
                rig.tier.commit(group, slots[group])
            for degree in (1, 2, 4):
                for shard in range(degree):
                    for stage in range(2):
                        views = [
                            self._view(kind.layout, degree, shard, stage) for kind in rig.groups
                        ]
                        self._read_by_rank(rig, views, whole, slots)
            rig.tier.check()

    def _view(self, layout: Layout, degree: int, shard: int, stage: int | None = None) -> View:
        """What one of ``degree`` ranks holds, of the upper or the lower half of the layers."""
        degree = min(degree, layout.store_shards)
        width, half = layout.store_shards // degree, (layout.layers + 1) // 2
        first = shard % degree * width
        layers = [(0, half), (min(half, layout.layers - 1), layout.layers)]
        return View((0, layout.layers) if stage is None else layers[stage], (first, first + width))

    def _write_by_ranks(self, rig: Rig, degree: int) -> tuple[list[Rows], list[Slots]]:
        """Blocks of every group, each rank bringing its share, all at once."""
        whole = [content_of(4, g, 2, kind.block_bytes) for g, kind in enumerate(rig.groups)]
        slots = [rig.tier.reserve(group, 2) for group in range(len(rig.groups))]
        for shard in reversed(range(degree)):
            views = [self._view(kind.layout, degree, shard) for kind in rig.groups]
            rank = rig.rank(views)
            for group, kind in enumerate(rig.groups):
                rank.rows[group][:2] = whole[group][:, bytes_of(kind.layout, views[group])]
                if shard < kind.layout.store_shards:
                    rig.start_of(rank, group, slots[group], storing=True)
        for done in rig.settle():
            assert done.good.all() and done.error is None, f"{done}"
        return whole, slots

    def _read_by_rank(
        self, rig: Rig, views: list[View], whole: list[Rows], slots: list[Slots]
    ) -> None:
        rank = rig.rank(views)
        for group, kind in enumerate(rig.groups):
            rank.rows[group][:] = BEFORE
            rig.start_of(rank, group, slots[group], storing=False)
            (done,) = rig.settle()
            assert done.good.all() and done.error is None, f"{views[group]} {done}"
            if self.moves_bytes:
                expected = whole[group][:, bytes_of(kind.layout, views[group])]
                assert np.array_equal(rank.rows[group][:2], expected), f"{kind.name} {views[group]}"
                assert (rank.rows[group][2:] == BEFORE).all()
                assert done.nbytes == expected.size, f"{kind.name} {views[group]}"

    def test_a_restart_finds_blocks_of_which_every_part_came(self) -> None:
        """I24: a block of which one shard is missing is missing for all, also after a restart."""
        if self.first or not self.rig().tier.capability.persistent:
            return
        rig = self.parts_rig()
        whole, slots = self._write_by_ranks(rig, 4)
        for group, kind in enumerate(rig.groups):
            rig.tier.commit(group, slots[group])
            if kind.layout.store_shards > 1:
                half, rows = rig.tier.reserve(group, 2), np.arange(2, dtype=np.int32)
                first = View((0, kind.layout.layers), (0, 1))
                rig.start(group, rows, half, into=True, part=first)
                assert all(done.good.all() for done in rig.settle())
        rig.tier.flush()
        rig.close()
        again = self.rig(8, self.reopen_tier, groups_of_runs())
        found = {part.group: part for part in again.tier.restore()}
        assert sorted(found) == list(range(len(rig.groups)))
        for group, part in found.items():
            expected = records_of(0, group, 2).keys
            assert sorted(map(bytes, part.records.keys)) == sorted(map(bytes, expected))
            order = [list(map(bytes, expected)).index(bytes(key)) for key in part.records.keys]
            assert np.array_equal(again.read(group, part.slots), whole[group][order])
        again.tier.check()

    # ------------------------------------------------------------------ layer by layer
    def test_layers_are_complete_in_order_and_not_before(self) -> None:
        """Each that is told complete lies in the tier above; all are, once the load has ended."""
        rig = self.parts_rig()
        for group, kind in enumerate(rig.groups):
            layout = kind.layout
            slots = rig.tier.reserve(group, 3)
            content = content_of(5, group, 3, kind.block_bytes)
            rig.write(group, slots, content)
            rig.tier.commit(group, slots)
            upper = View((layout.layers // 2, layout.layers), (0, layout.store_shards))
            for view in (None, upper):
                rows = np.arange(3, dtype=np.int32)
                rig.rows[group][rows] = content if self.first else BEFORE
                job = rig.start(group, rows, slots, into=self.first, part=view, by_layer=True)
                first, end = upper.layers if view else (0, layout.layers)
                for layer in range(first, end):
                    assert rig.mover.wait_layer(job, layer, PATIENCE_S), f"{kind.name} {layer}"
                    assert layer - first < rig.mover.layers(job) <= end - first
                    mine = bytes_of(layout, View((layer, layer + 1), (0, layout.store_shards)))
                    if self.moves_bytes and not self.first:
                        assert np.array_equal(rig.rows[group][:3, mine], content[:, mine])
                for wrong in (first - 1, end):
                    with refused(ValueError):
                        rig.mover.wait_layer(job, wrong, 0.0)
                (done,) = rig.settle()
                assert done.good.all() and done.error is None
                every = bytes_of(layout, View((first, end), (0, layout.store_shards)))
                assert done.nbytes == 3 * len(every) or not self.moves_bytes
                with refused(TierError):
                    rig.mover.layers(job)
            if self.moves_bytes and self.first:
                assert np.array_equal(rig.read(group, slots), content)
            rig.tier.free(group, slots)
        rig.mover.check()

    def test_a_load_in_one_piece_has_all_layers_at_its_end(self) -> None:
        """Who waits for a layer needs not know how the load was asked for."""
        rig = self.parts_rig()
        slots = rig.tier.reserve(0, 2)
        rig.write(0, slots, content_of(6, 0, 2, rig.groups[0].block_bytes))
        rig.tier.commit(0, slots)
        job = rig.start(0, np.arange(2, dtype=np.int32), slots, into=self.first)
        last = rig.groups[0].layout.layers - 1
        assert rig.mover.wait_layer(job, last, PATIENCE_S)
        assert rig.mover.layers(job) == last + 1
        rig.settle()
        rig.tier.free(0, slots)

    # ------------------------------------------------------------------ sums, clones, bad input
    def test_checksums_stand_for_each_run(self) -> None:
        """Of committed blocks, where any are kept: (n, pieces, layers) of xxh3-64."""
        rig = self.parts_rig()
        for group, kind in enumerate(rig.groups):
            slots = rig.tier.reserve(group, 2)
            content = content_of(7, group, 2, kind.block_bytes)
            rig.write(group, slots, content)
            rig.tier.commit(group, slots)
            sums = rig.tier.sums(group, slots)
            runs = kind.layout.runs
            if sums is not None:
                assert sums.shape == (2, *runs.shape[:2]) and sums.dtype == np.uint64
                for piece, layer in zip(*np.nonzero(runs[:, :, 1]), strict=True):
                    offset, size = (int(value) for value in runs[piece, layer])
                    for block in range(2):
                        run = content[block, offset : offset + size].tobytes()
                        expected = int(lib.rdx_xxh3_64(ffi.from_buffer(run), size))
                        assert sums[block, piece, layer] == expected, f"{kind.name} {piece} {layer}"
            rig.tier.free(group, slots)

    def test_a_clone_copies_whole_blocks_inside(self) -> None:
        """Where the tier has memory for it; else it is refused by name, and nothing changes."""
        rig = self.parts_rig()
        tier = rig.tier
        for group, kind in enumerate(rig.groups):
            slots = tier.reserve(group, 3)
            content = content_of(8, group, 3, kind.block_bytes)
            rig.write(group, slots, content)
            tier.commit(group, slots)
            copies = tier.reserve(group, 2)
            with refused(ValueError):
                tier.clone(group, slots, copies)
            with refused(TierError):
                tier.clone(group, slots[:1], np.array([-1], np.int32))
            for targets in (slots[1:], copies[[0, 0]]):  # one is a source too, one is named twice
                with refused(TierError):
                    tier.clone(group, slots[:2], targets)
            try:
                tier.clone(group, slots[1:], copies)
            except TierError:
                assert not self.first and not tier.capability.address_mapped
                tier.abort(group, copies)
            else:
                tier.commit(group, copies)
                if self.moves_bytes:
                    assert np.array_equal(rig.read(group, copies), content[1:])
                tier.free(group, copies)
            tier.clone(group, slots[:0], slots[:0]) if tier.capability.address_mapped else None
            if self.moves_bytes:
                assert np.array_equal(rig.read(group, slots), content)
            tier.free(group, slots)
            tier.check()

    def test_parts_that_a_layout_does_not_have_are_refused(self) -> None:
        """By name, and nothing was started."""
        for span in ((1, 1), (2, 1), (-1, 1)):
            with refused(ValueError):
                View(span, (0, 1))
            with refused(ValueError):
                View((0, 1), span)
        rig = self.parts_rig()
        rows = np.arange(2, dtype=np.int32)
        slots = rig.tier.reserve(0, 2)
        rig.write(0, slots, content_of(9, 0, 2, rig.groups[0].block_bytes))
        rig.tier.commit(0, slots)
        layout = rig.groups[0].layout
        for view in (
            View((0, layout.layers + 1), (0, 1)),
            View((0, 1), (0, layout.store_shards + 1)),
            View((layout.layers, layout.layers + 1), (0, 1)),
        ):
            for into in (False, True):
                with refused(ValueError):
                    rig.start(0, rows, slots, into=into, part=view)
        with refused(ValueError):
            rig.start(0, rows, slots, into=not self.first, by_layer=True)
        if not self.first:
            views = [View((0, 1), (0, 1)) for _ in rig.groups]
            rank = rig.rank(views)
            with refused(ValueError):
                self._ask_beyond(rig, rank.tier, slots)
        assert rig.mover.pending() == 0
        rig.tier.free(0, slots)
        rig.tier.check()

    @staticmethod
    def _ask_beyond(rig: Rig, rank: Tier, slots: Slots) -> None:
        """A load of what the tier above has no place for."""
        job = rig.jobs + 1
        rig.tier.load(
            Transfer(job, 0, slots[:1], slots[:1], Urgency.DEMAND, None, View((0, 2), (0, 1))), rank
        )
