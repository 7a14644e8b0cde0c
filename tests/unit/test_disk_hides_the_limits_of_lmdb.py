"""What LMDB cannot do never reaches the caller: views that go stale, a full table of readers, keys
longer than it takes, a map in one size (C95, C98, C99; design section 8).
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from radix.groups import Group
from radix.tier import Records
from tests.crash.diskrig import DiskRig, key_of

# Each child takes a slot of the table and dies with it.
KILLED_READERS = """
import os, signal, sys, lmdb
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        txn = lmdb.open(sys.argv[1], max_dbs=128, max_readers=64).begin()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_nothing_that_was_read_changes_when_the_file_does(tmp_path: Path) -> None:
    """C98: a view kept after its transaction showed other bytes, without an error."""
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.store(range(12))
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        (part,) = rig.restored
        kept = [part.records.keys, part.records.parents, part.records.pages, part.slots]
        before = [array.copy() for array in kept if array is not None]
        rig.adopt(range(12))
        done = rig.load([rig.slots[n] for n in range(12)])
        rows = rig.rows[0].copy()
        assert done.good.all()
        for turn in range(6):
            rig.free(list(rig.slots)[:8])
            rig.tier.flush()
            assert rig.store(range(100 + 8 * turn, 108 + 8 * turn)).good.all()
        after = [array for array in kept if array is not None]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.array_equal(rows[20:], rig.rows[0][20:])


def test_a_full_table_of_readers_is_cleared_and_tried_again(tmp_path: Path) -> None:
    """C95: slots of readers that were killed stay taken until somebody looks."""
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.store(range(4))
        index = rig.tier._disk.index
        readers = index._env.info()["max_readers"]
        assert 16 <= readers <= 64
        command = [sys.executable, "-c", KILLED_READERS, str(tmp_path / "d"), str(readers + 2)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "MDB_READERS_FULL" in done.stderr, "the table of readers never filled"
        assert rig.verify(range(4)) == [0, 1, 2, 3]
        assert rig.store([10]).good.all()


def test_keys_longer_than_lmdb_takes_never_reach_it(tmp_path: Path) -> None:
    """C99: LMDB takes keys of 1 to 511 bytes. Ours are ids of 8; what is longer is refused here."""
    with DiskRig(tmp_path / "d") as rig:
        namespace = bytes(range(256)) * 16
        assert rig.store([1, 2], namespace=namespace, width=32).good.all()
        slots = rig.tier.reserve(0, 1)
        for width in (0, 33, 600):
            records = Records(
                namespace=b"n",
                keys=np.zeros((1, width), np.uint8),
                parents=np.zeros((1, 16), np.uint8),
                pages=None,
                positions=np.zeros(1, np.int64),
            )
            with pytest.raises(ValueError, match=r"records\.keys must be \(1, 1 to 32\)"):
                rig.start_store_of(records, slots)
        rig.tier.abort(0, slots)
        assert rig.tier.pending() == 0
        rig.tier.check()
    with DiskRig(tmp_path / "d") as rig:
        (part,) = rig.restored
        assert part.records.namespace == namespace and part.records.keys.shape == (2, 32)
        assert part.records.keys[0].tobytes() == key_of(1, 32)


def test_writemap_is_never_on(tmp_path: Path) -> None:
    """With it a full disk is a SIGBUS; syncs stay as LMDB has them by default."""
    with DiskRig(tmp_path / "d") as rig:
        flags = rig.tier._disk.index._env.flags()
        assert not flags["writemap"] and not flags["map_async"]
        assert flags["sync"] and flags["metasync"]


def test_no_read_transaction_outlives_a_call(tmp_path: Path) -> None:
    """A long reader makes the file grow, and even removals fail once the map is full."""
    with DiskRig(tmp_path / "d", payload="lmdb") as rig:
        rig.store(range(8))
        assert rig.verify(range(8)) == list(range(8))
        readers = rig.tier._disk.index._env.readers()
        assert all(line.split()[-1] == "-" for line in readers.splitlines()[1:]), readers


def test_the_index_stays_small_when_the_tier_turns_over(tmp_path: Path) -> None:
    with DiskRig(tmp_path / "d", limit_bytes=2 << 20) as rig:
        sizes = []
        for first in range(0, 2400, 8):
            if rig.tier.free_blocks(0) < 8:
                rig.free(list(rig.slots)[:8])
            assert rig.store(range(first, first + 8)).good.all()
            sizes.append(rig.tier._disk.index.file_bytes())
        assert max(sizes) <= rig.tier._disk.plan.map_bytes * 0.9
        assert sizes[-1] <= 1.5 * sizes[len(sizes) // 2], "free pages are used again"


@pytest.mark.parametrize("page_bytes", [64, 1024, 4096])
@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_scattered_removals_leave_room_in_the_map(
    tmp_path: Path, payload: str, page_bytes: int
) -> None:
    """LMDB keeps pages that are a quarter full, writes every page that it touches anew, and gives
    freed ones out two commits later: the map must be large enough for all that.
    """
    rng = random.Random(page_bytes)
    with DiskRig(
        tmp_path / "d",
        limit_bytes=2 << 20,
        groups=(Group.full("kv", 4096),),
        page_bytes=page_bytes,
        payload=payload,
    ) as rig:
        number = 0
        for turn in range(15):
            while free := rig.tier.free_blocks(0):
                count = min(free, 32)
                assert rig.store(range(number, number + count)).good.all()
                number += count
            live = list(rig.slots)
            few = len(live) // 3
            for part in (rng.sample(live, 2 * few), live[::2], live[:few])[turn % 3 :][:1]:
                rig.free(part)
            rig.tier.flush()
            rig.tier.check()
        assert rig.verify(list(rig.slots)) == list(rig.slots)
