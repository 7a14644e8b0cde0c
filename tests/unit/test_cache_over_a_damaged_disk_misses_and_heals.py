"""What a disk lost or bent while nobody looked costs a hit, is counted, dropped, and stored again;
never does it come back as bytes (I24, I25; C78, C87, C92).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.cache import PrefixCache
from tests.cacherig import GROUPS, Rig
from tiers.device import DeviceTier
from tiers.disk import DiskTier
from tiers.host import HostTier

PROMPT = list(range(18))
OTHER = [3, *range(1, 18)]


def _start(folder: Path) -> Rig:
    disk = DiskTier(folder, limit_bytes=4 << 20, segment_bytes=1 << 18)
    tiers = [DeviceTier(blocks=16, device="cpu"), HostTier(32 * 4096, segment_bytes=4096), disk]
    cache = PrefixCache(GROUPS[:1], tiers, page_tokens=4, events=True)
    return Rig(cache, cache.tiers[0])


def _filled(folder: Path) -> Rig:
    rig = _start(folder)
    rig.serve(PROMPT)
    rig.cache.flush()
    rig.cache.close()
    return rig


def _slabs(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1 << 17]
    return [path for path in found if path.suffix not in (".mdb",)]


def _flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def _truncate(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.truncate(offset)


def _delete(path: Path, offset: int) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [_flip, _truncate, _delete])
def test_damaged_block_is_a_miss_once_and_is_stored_again(tmp_path: Path, damage: object) -> None:
    before = _filled(tmp_path)
    slabs = _slabs(tmp_path)
    assert slabs, "the payload lies in files"
    for path in slabs:
        damage(path, 2 * 4096)  # the third block that was stored, or all from there on
    rig = _start(tmp_path)
    rig.known = before.known
    live = rig.until_ready(rig.admit(PROMPT))
    hit = live.request.hit_tokens
    assert hit < 16 and hit % 4 == 0
    if damage is not _delete:
        assert hit == 8
    metrics = rig.cache.metrics
    assert metrics.get("match", "miss", "corrupt") == 16 - hit
    assert metrics.get("load", "corrupt", "disk", "kv") >= 1
    rig.cache.check()
    rig.compute(live, 18)
    rig.end(live)
    rig.settle()
    rig.serve(OTHER)
    rig.cache.flush()
    for tier in (0, 1):
        rig.empty(tier)
    again = rig.until_ready(rig.admit(OTHER))
    assert again.request.hit_tokens == 16
    rig.finish_all()
    rig.cache.close()


def test_warm_start_serves_every_block_that_was_durable(tmp_path: Path) -> None:
    before = _filled(tmp_path)
    rig = _start(tmp_path)
    rig.known = before.known
    assert rig.cache.metrics.get("restore", "blocks", "disk") == 4
    assert rig.cache.explain(PROMPT).tiers == {"disk": 16}
    live = rig.until_ready(rig.admit(PROMPT))
    assert live.request.hit_tokens == 16
    assert rig.cache.metrics.get("load", "verified", "disk", "kv") == 4
    rig.finish_all()
    rig.cache.close()
