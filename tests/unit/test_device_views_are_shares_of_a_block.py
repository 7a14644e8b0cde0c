"""A device tier of a rank or a stage holds the runs of its view and says so; a view that a layout
does not have, or tensors of other bytes, are refused by name before anything is made.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from radix.errors import LayoutMismatchError
from radix.tier import Transfer, TransferDone, Urgency, View
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import AdoptedTier
from tiers.rig import PAGE_BYTES, bytes_of, content_of, groups_of_runs, records_of

GROUPS = groups_of_runs()[:2]
BLOCKS = 3


@pytest.mark.parametrize(
    ("views", "error", "words"),
    [
        (View((0, 1), (0, 1)), ValueError, "1 views, the cache has 2 groups"),
        ([View((0, 4), (0, 1)), None], ValueError, r"layers \(0, 4\) go beyond group 'both'.* 3"),
        ([None, View((0, 1), (3, 5))], ValueError, r"shards \(3, 5\) go beyond group 'mixed'.* 4"),
        (["all", None], TypeError, "must be a View, not str"),
    ],
)
def test_views_that_the_layouts_do_not_have_are_refused(
    views: object, error: type[Exception], words: str
) -> None:
    tier = DeviceTier(blocks=2, device="cpu", views=views)
    with pytest.raises(error, match=words):
        tier.attach(GROUPS, PAGE_BYTES, None)
    rows = [np.zeros((2, group.block_bytes), np.uint8) for group in GROUPS]
    if not isinstance(views, View):
        with pytest.raises(error, match=words):
            AdoptedTier([[r] for r in rows], views=views).attach(GROUPS, PAGE_BYTES, None)


def test_tensors_hold_the_bytes_of_the_view_and_no_others() -> None:
    view = View((0, 3), (1, 2))
    whole = torch.zeros((2, GROUPS[0].block_bytes), dtype=torch.uint8)
    with pytest.raises(LayoutMismatchError, match="its layout says"):
        DeviceTier([whole], views=view).attach(GROUPS[:1], PAGE_BYTES, None)
    share = torch.zeros((2, len(bytes_of(GROUPS[0].layout, view))), dtype=torch.uint8)
    tier = DeviceTier([share], views=view)
    tier.attach(GROUPS[:1], PAGE_BYTES, None)
    assert tier.view(0) == view
    tier.reserve(0, 1)
    assert tier.usage().used_bytes == share.shape[1]
    assert tier.usage().limit_bytes == 2 * share.shape[1]
    tier.close()


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("staged", [False, True])
def test_ranks_write_and_read_a_disk_directly(tmp_path: Path, payload: str, staged: bool) -> None:
    """Four ranks bring their shares at once, two of a coarser degree read them, by layer."""
    disk = DiskTier(tmp_path / "d", limit_bytes=3 << 20, payload=payload, segment_bytes=32768)
    layouts = [group.layout for group in GROUPS]
    whole = [content_of(3, g, BLOCKS, group.block_bytes) for g, group in enumerate(GROUPS)]

    def rank(shards: tuple[int, int]) -> DeviceTier:
        views = [View((0, layout.layers), shards) for layout in layouts]
        tier = DeviceTier(blocks=BLOCKS, device="cpu", staged=staged, views=views)
        tier.attach(GROUPS, PAGE_BYTES, None)
        return tier

    writers = [rank((shard, shard + 1)) for shard in range(4)]
    readers = [rank((0, 2)), rank((2, 4))]
    disk.attach(GROUPS, PAGE_BYTES, writers[0])
    with closing(disk):
        rows = np.arange(BLOCKS, dtype=np.int32)
        slots = [disk.reserve(group, BLOCKS) for group in range(2)]
        for number, tier in enumerate(writers):
            for group in range(2):
                mine = bytes_of(layouts[group], tier.view(group))
                tier.tensors[group][0][:] = torch.from_numpy(whole[group][:, mine].copy())
                records = records_of(0, group, BLOCKS)
                job = 1 + 2 * number + group
                disk.store(Transfer(job, group, rows, slots[group], Urgency.STORE, records), tier)
        for done in _ends(disk, 8):
            assert done.good.all() and done.error is None, done
        for number, tier in enumerate(readers):
            for group in range(2):
                disk.commit(group, slots[group]) if not number else None
                job = 10 + 2 * number + group
                ends = (rows, slots[group])
                disk.load(Transfer(job, group, *ends, Urgency.DEMAND, None, by_layer=True), tier)
                for layer in range(layouts[group].layers):
                    assert disk.wait_layer(job, layer, 60.0)
                (done,) = _ends(disk, 1)
                expected = whole[group][:, bytes_of(layouts[group], tier.view(group))]
                assert done.nbytes == expected.size and done.verified_blocks == BLOCKS
                assert np.array_equal(tier.tensors[group][0].numpy(), expected)
    for tier in (*writers, *readers):
        tier.close()


def _ends(disk: DiskTier, count: int) -> list[TransferDone]:
    done: list[TransferDone] = []
    while disk.pending():
        disk.wait(5.0)
        done += disk.poll()
    assert len(done) == count
    return done
