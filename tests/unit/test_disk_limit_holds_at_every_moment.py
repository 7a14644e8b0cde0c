"""``limit_bytes`` is index and blocks together, while the tier fills, turns over, and right after
it was opened with less (C90, C91; I25).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.errors import TierFullError
from radix.groups import Group
from tests.crash.diskrig import DiskRig
from tiers.disk import DiskTier
from tiers.disk_open import limit_for


def bytes_on_disk(folder: Path) -> int:
    """What the file system says that the folder takes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_storing_without_end_stays_within_the_limit(tmp_path: Path, payload: str) -> None:
    """C90, C91: a capacity alone must bound the tier; nothing else has to be set for it."""
    limit = 1 << 20
    folder = tmp_path / "d"
    with DiskRig(folder, limit_bytes=limit, payload=payload) as rig:
        kept: list[int] = []
        for first in range(0, 600, 4):
            short = 4 - rig.tier.free_blocks(0)
            if short > 0:
                rig.free(kept[:short])
                del kept[:short]
            assert rig.store(range(first, first + 4)).good.all()
            kept += range(first, first + 4)
            assert bytes_on_disk(folder) <= limit
            assert rig.tier.usage().used_bytes <= limit
            rig.tier.check()
        assert 20 < len(kept) <= rig.tier.capacity_blocks(0)
        assert rig.verify(kept) == kept
    with DiskRig(folder, limit_bytes=limit, payload=payload) as rig:
        assert rig.adopt(range(600)) == kept
        assert bytes_on_disk(folder) <= limit


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_smaller_limit_holds_as_soon_as_it_is_open(tmp_path: Path, payload: str) -> None:
    """The oldest blocks go first; what stays is right; the files shrink before the first store."""
    folder = tmp_path / "d"
    with DiskRig(folder, limit_bytes=4 << 20, payload=payload) as rig:
        number = 0
        while rig.tier.free_blocks(0) >= 4:
            rig.store(range(number, number + 4))
            number += 4
        before = bytes_on_disk(folder)
    for limit in (2 << 20, 1 << 20):
        assert before > limit
        with DiskRig(folder, limit_bytes=limit, payload=payload) as rig:
            assert bytes_on_disk(folder) <= limit
            rig.tier.check()
            found = rig.adopt(range(number))
            assert 20 < len(found) <= rig.tier.capacity_blocks(0)
            assert found == list(range(number - len(found), number)), "the newest stay"
            assert rig.tier.counts.dropped > 0
            assert rig.verify(found) == found
            before = bytes_on_disk(folder)
    with DiskRig(folder, limit_bytes=1 << 20, payload=payload) as rig:
        found = rig.adopt(range(number))
        rig.free(found[:4])
        assert rig.store(range(number, number + 4)).good.all()
        assert rig.verify(rig.slots) == [*found[4:], *range(number, number + 4)]
        assert bytes_on_disk(folder) <= 1 << 20


def test_a_limit_below_the_segment_opens_cold(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d", limit_bytes=8 << 20, segment_bytes=1 << 20) as rig:
        rig.store(range(8))
    with DiskRig(tmp_path / "d", limit_bytes=1 << 20, segment_bytes=1 << 20) as rig:
        assert rig.restored == [] and rig.tier.capacity_blocks(0) > 8
        assert bytes_on_disk(tmp_path / "d") <= 1 << 20
        assert rig.store(range(8)).good.all()
    with DiskRig(tmp_path / "d", limit_bytes=1 << 20, segment_bytes=1 << 20) as rig:
        assert rig.adopt(range(8)) == list(range(8))


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_limit_asked_for_in_blocks_holds_them(tmp_path: Path, payload: str) -> None:
    groups = (Group.full("a", 5000), Group.full("b", 100))
    limit = limit_for(groups, 30, 64, payload=payload)
    with DiskRig(tmp_path / "d", limit_bytes=limit, groups=groups, payload=payload) as rig:
        for group in (0, 1):
            for first in (0, 10, 20):
                assert rig.store(range(first, first + 10), group).good.all()
        rig.tier.check()
        assert bytes_on_disk(tmp_path / "d") <= limit


def test_more_than_there_is_takes_nothing(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d") as rig:
        free = rig.tier.free_blocks(0)
        with pytest.raises(TierFullError) as raised:
            rig.tier.reserve(0, free + 1)
        assert raised.value.retryable and rig.tier.free_blocks(0) == free


@pytest.mark.parametrize("limit", [1, 4096, 1 << 17])
def test_a_limit_too_small_is_refused_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    with pytest.raises(ValueError, match="too small"):
        DiskRig(tmp_path / "d", limit_bytes=limit)
    assert not (tmp_path / "d").exists()
    with pytest.raises(ValueError, match="at least 1"):
        DiskTier(tmp_path / "d", limit_bytes=0)
