"""Replicas whose disks kept different blocks hit, after a restart, what every one of them kept, in
one order of eviction: each linked its own before, and their trees parted at the first match (I33).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from radix.cache import PrefixCache
from tests.cacherig import Rig
from tests.mixes import full, state, window
from tests.ranksrig import Meeting, picture, replicated
from tiers.device import DeviceTier
from tiers.disk import DiskTier

PAGE = 2
RANKS = 3
FIRST = [1, 2, 0, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2]
SECOND = [1, 2, 0, 1, 2, 2, 2, 2, 1, 0, 0, 1, 2]  # parts from the first after two pages
MODELS = {"full": (full(),), "mixed": (full(), window(5), state(4))}


def _open(folder: Path, model: str, rank: int, meeting: Meeting) -> Rig:
    disk = DiskTier(folder, limit_bytes=8 << 20, segment_bytes=1 << 16)
    device = DeviceTier(blocks=24, device="cpu")
    cache = PrefixCache(
        MODELS[model],
        [device, disk],
        page_tokens=PAGE,
        events=True,
        agree=meeting.agree(rank),
        seed=rank,
    )
    meeting.same(rank, picture(cache), "when opened")
    return Rig(cache, device)


def _close(rig: Rig) -> None:
    rig.finish_all()
    rig.cache.flush()
    rig.cache.close()


@pytest.mark.parametrize("model", MODELS)
def test_what_one_disk_lacks_is_hit_by_none(tmp_path: Path, model: str) -> None:
    def one(rank: int, meeting: Meeting) -> list[int]:
        folder, older = tmp_path / f"disk{rank}", tmp_path / f"older{rank}"
        rig = _open(folder, model, rank, meeting)
        rig.serve(FIRST)
        known = rig.known
        _close(rig)
        shutil.copytree(folder, older)
        rig = _open(folder, model, rank, meeting)
        rig.known = known
        rig.serve(SECOND)
        _close(rig)
        if rank == 1:  # put back from an older copy
            shutil.rmtree(folder)
            shutil.move(older, folder)
        rig = _open(folder, model, rank, meeting)
        rig.known = known
        hits = [
            rig.cache.match(np.array([*story, 0], np.int32))[0].hit_pages
            for story in (FIRST, SECOND)
        ]
        rig.until_ready(rig.admit([*FIRST, 0]))  # and its bytes are looked at
        meeting.same(rank, picture(rig.cache), "after a load")
        rig.cache.check()
        _close(rig)
        return hits

    told = replicated(RANKS, one)
    assert all(hits == told[0] for hits in told), told
    assert told[0][0] == len(FIRST) // PAGE and told[0][1] < len(SECOND) // PAGE, told[0]


def test_one_empty_disk_makes_all_of_them_empty(tmp_path: Path) -> None:
    def one(rank: int, meeting: Meeting) -> int:
        folder = tmp_path / f"disk{rank}"
        rig = _open(folder, "full", rank, meeting)
        rig.serve(FIRST)
        _close(rig)
        if rank == 2:
            shutil.rmtree(folder)
        rig = _open(folder, "full", rank, meeting)
        hit = rig.cache.match(np.array(FIRST, np.int32))[0].hit_pages
        rig.serve(FIRST)  # and is filled again
        meeting.same(rank, picture(rig.cache), "after a store")
        _close(rig)
        return hit

    assert replicated(RANKS, one) == [0] * RANKS
