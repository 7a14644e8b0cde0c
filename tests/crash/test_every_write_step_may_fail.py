"""Whatever step of a write fails, the store that it belongs to fails without a trace, the others
hold, and a restart finds exactly what was acknowledged (C81; I22, I24). Every file operation and
every step of a transaction is made to fail once, and from then on.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from radix._native import lib
from radix.errors import TierError
from radix.tier import TierMode
from tests.crash.diskrig import DiskRig

KNOWN = range(200)


class _Acked:
    """What the scenario was told: durable for sure, and possibly still there."""

    def __init__(self) -> None:
        self.durable: set[int] = set()
        self.unsure: set[int] = set()


def _scenario(rig: DiskRig, acked: _Acked) -> None:
    """Stores, frees, stores into the room, loads; a refusal is taken as a cache takes it."""
    for first in (0, 3, 6, 9):
        try:
            done = rig.store(range(first, first + 3))
        except TierError:
            continue
        acked.durable |= {first + i for i in range(3) if done.good[i]}
    gone = sorted(acked.durable & {1, 4, 7})
    rig.free(gone)
    acked.durable -= set(gone)
    acked.unsure |= set(gone)
    try:
        done = rig.store([20, 21], namespace=b"model-b")
        acked.durable |= {20 + i for i in range(2) if done.good[i]}
    except TierError:
        pass
    rig.tier.flush()
    assert set(rig.verify(sorted(acked.durable))) == acked.durable
    rig.tier.check()


def _judge_after_restart(folder: Path, acked: _Acked, payload: str) -> None:
    with DiskRig(folder, payload=payload) as rig:
        found = set(rig.adopt(KNOWN))
        assert acked.durable <= found
        assert found <= acked.durable | acked.unsure
        assert set(rig.verify(found)) >= acked.durable
        rig.tier.check()
        assert rig.store(range(100, 104)).good.all(), "the tier works again"


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_each_file_operation_may_fail(tmp_path: Path, sticky: bool) -> None:
    for k in range(1, 100):
        folder, acked = tmp_path / str(k), _Acked()
        with DiskRig(folder) as rig:
            engine = rig.tier._transfers.engine
            engine.fail_at(k, lib.RDX_EIO, sticky=sticky)
            for first in (0, 3, 6):
                try:
                    done = rig.store(range(first, first + 3))
                except TierError:
                    assert rig.tier.mode is TierMode.READ_ONLY
                    continue
                assert done.good.all() == (done.error is None)
                acked.durable |= {first + i for i in range(3) if done.good[i]}
            failed = len(acked.durable) < 9
            assert failed == (rig.tier.mode is TierMode.READ_ONLY)
            engine.fail_at(0, 0)
            assert set(rig.verify(sorted(acked.durable))) == acked.durable
            rig.tier.check()
        _judge_after_restart(folder, acked, "slab")
        if not failed:
            assert k > 12, "fewer steps failed than a store has"
            return
    raise AssertionError("the scenario never came through")


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_each_step_of_a_transaction_may_fail(tmp_path: Path, payload: str, sticky: bool) -> None:
    for k in range(1, 100):
        folder, acked, steps = tmp_path / str(k), _Acked(), 0

        def fail(step: str, k: int = k) -> None:
            nonlocal steps
            steps += 1
            if steps == k or (sticky and steps > k):
                raise lmdb.DiskError(f"injected at step {k}, {step}")

        with DiskRig(folder, payload=payload) as rig:
            rig.tier._disk.index.hook = fail
            _scenario(rig, acked)
        _judge_after_restart(folder, acked, payload)
        if steps < k:
            assert k > 12, "fewer steps failed than the scenario has"
            return
    raise AssertionError("the scenario never came through")


def test_a_full_index_fails_stores_but_not_the_tier(tmp_path: Path) -> None:
    """A full map is a shortage, not a failure of the medium: removals go on in small steps, and
    with room there are stores again.
    """
    with DiskRig(tmp_path / "d") as rig:
        rig.store(range(6))

        def full(step: str) -> None:
            if step == "put":
                raise lmdb.MapFullError("injected")

        rig.tier._disk.index.hook = full
        rig.free([0, 1])
        done = rig.store([10, 11])
        assert not done.good.any() and done.error is not None and done.error.retryable
        assert rig.tier.mode is TierMode.ON
        rig.tier._disk.index.hook = lambda step: None
        assert rig.store([12, 13]).good.all()
        rig.tier.check()
    with DiskRig(tmp_path / "d") as rig:
        assert set(rig.adopt(KNOWN)) == {2, 3, 4, 5, 12, 13}
