"""Bad arguments are refused where they are given, by name, and leave everything as it was (I11)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix.errors import ClosedError, TierError, TierUnavailableError
from radix.groups import Group
from radix.layout import Layout, Part
from tests.crash.diskrig import DiskRig, records_of
from tiers.disk import DiskTier
from tiers.disk_open import limit_for


@pytest.mark.parametrize(
    ("paths", "options", "words"),
    [
        ([], {}, "paths must not be empty"),
        (["a", "./a"], {}, "named twice"),
        (["a"], {"payload": "tar"}, "payload must be one of slab, lmdb"),
        (["a", "b"], {"payload": "lmdb"}, "in one path"),
        (["a"], {"limit_bytes": 0}, "limit_bytes must be at least 1"),
        (["a"], {"threads": 0}, "threads must be at least 1"),
        (["a"], {"segment_bytes": -1}, "segment_bytes must be at least 1"),
        (["a"], {"name": ""}, "name must not be empty"),
    ],
)
def test_construction_names_what_is_wrong(
    paths: list[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DiskTier(paths, **({"limit_bytes": 1 << 20} | options))


def test_a_block_that_fits_no_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too small"):
        DiskRig(tmp_path / "d", groups=(Group.full("kv", 3 << 20),))
    fine = Layout((Part("kv", "uint8", (("head", 64),), "head", 64),), store_shards=64)
    with pytest.raises(ValueError, match=r"group 'kv': a block in 64 shard pieces, .* at most 32"):
        DiskRig(tmp_path / "d", groups=(Group("kv", fine),))
    with pytest.raises(ValueError, match="blocks must be at least 1"):
        limit_for((Group.full("kv", 100),), 0, 64)
    assert not (tmp_path / "d").exists()


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    for path in (tmp_path / "f", tmp_path / "f" / "d"):
        with pytest.raises(TierUnavailableError):
            DiskRig(path)
    assert (tmp_path / "f").read_text() == "mine"


def test_a_tier_that_is_not_attached_says_so(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "d", limit_bytes=1 << 20)
    assert tier.poll() == [] and tier.pending() == 0 and tier.restore() == ()
    tier.flush()
    tier.check()
    with pytest.raises(TierError, match="not attached"):
        tier.reserve(0, 1)
    with pytest.raises(TierError, match="not attached"):
        tier.capacity_blocks(0)
    tier.close()
    with pytest.raises(ClosedError):
        tier.reserve(0, 1)
    assert not (tmp_path / "d").exists()


def test_records_that_do_not_fit_the_blocks_start_nothing(tmp_path: Path) -> None:
    good = records_of([1, 2])
    bad = {
        "needs records": None,
        r"records\.keys must be": replace(good, keys=good.keys[:1]),
        r"records\.parents must be": replace(good, parents=np.zeros((2, 32), np.uint8)),
        r"records\.pages must be": replace(good, pages=np.zeros((2, 63), np.uint8)),
        r"records\.positions must be": replace(good, positions=np.zeros(3, np.int64)),
    }
    with DiskRig(tmp_path / "d") as rig:
        slots = rig.tier.reserve(0, 2)
        for words, records in bad.items():
            with pytest.raises(ValueError, match=words):
                rig.start_store_of(records, slots)
            assert rig.tier.pending() == 0
        rig.start_store_of(good, slots)
        (done,) = rig.settle()
        assert done.good.all()
        rig.tier.check()
