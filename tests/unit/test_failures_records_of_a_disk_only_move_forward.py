"""What the disk says of a block after a restart is what was stored last, in whatever order writes
ended and whatever was removed beside them (C89; I24).
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.crash.diskrig import DiskRig


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("seed", range(4))
def test_older_record_never_replaces_a_newer_one(tmp_path: Path, payload: str, seed: int) -> None:
    """C89, LMCache#2734: a snapshot was taken under the lock and written outside it, so that an
    older one could be the last to be written. Here one thread commits, ids ascend, and a removal
    names the record that it removes: it never takes a newer one of the same key along.
    """
    rng = random.Random(seed)
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        for _ in range(30):
            # the older copy of a key goes while the newer one is on its way
            numbers = rng.sample(range(12), 4)
            slots = rig.tier.reserve(0, len(numbers))
            rig.start_store(numbers, slots)
            gone = [number for number in numbers if number in rig.slots]
            rig.free(gone)
            if rng.random() < 0.3 and rig.slots:
                rig.free([rng.choice(sorted(rig.slots))])
            (done,) = rig.settle()
            assert done.good.all(), f"seed {seed}"
            rig.tier.commit(0, slots)
            rig.slots |= dict(zip(numbers, slots.tolist(), strict=True))
        ids = rig.tier._disk.books.record_ids(0, np.array(sorted(rig.slots.values()), np.int32))
        assert len(set(ids.tolist())) == len(ids)
        kept = dict(rig.slots)
        rig.tier.flush()
        rig.tier.check()
    with DiskRig(tmp_path / "d", payload=payload) as rig:
        assert sorted(rig.adopt(range(12))) == sorted(kept), f"seed {seed}"
        assert rig.slots == kept, f"seed {seed}: an older slot came back"
        assert rig.verify(sorted(kept)) == sorted(kept)
