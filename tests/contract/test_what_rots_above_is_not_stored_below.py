"""A block that rots in memory after it was committed is not stored on the disk, where it would get
a true checksum of wrong bytes. The fault: a checksum of what is written vouches for the copy, not
for the block (I24); with ``verify`` the one taken at commit decides.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from radix.errors import CorruptBlockError
from radix.groups import Group
from radix.tier import Slots, TierMode, Transfer, TransferDone, Urgency
from tests.crash.diskrig import PAGE_BYTES, records_of
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.host import HostTier

BLOCK_BYTES = 8192
KV = (Group.full("kv", BLOCK_BYTES),)


def _filled(host: HostTier, count: int) -> Slots:
    slots = host.reserve(0, count)
    rows = expand(np.arange(count, dtype=np.uint64), BLOCK_BYTES)
    for slot, row in zip(slots.tolist(), rows, strict=True):
        ctypes.memmove(_address(host, slot), row.tobytes(), BLOCK_BYTES)
    host.commit(0, slots)
    return slots


def _address(host: HostTier, slot: int) -> int:
    plane = host.planes(0)[0]
    return int(plane["base"]) + slot * int(plane["stride"])


def _stored(disk: DiskTier, host: HostTier, slots: Slots) -> tuple[TransferDone, Slots]:
    lower = disk.reserve(0, len(slots))
    records = records_of(range(len(slots)))
    disk.store(Transfer(1, 0, slots, lower, Urgency.STORE, records), host)
    while disk.pending():
        disk.wait(5.0)
        if done := disk.poll():
            return done[0], lower
    raise AssertionError("the store was never acknowledged")


@pytest.mark.parametrize("payload", ["slab", "lmdb"])
def test_a_rotten_block_gets_no_record_and_its_neighbours_do(tmp_path: Path, payload: str) -> None:
    with_sums = HostTier(limit_bytes=64 * BLOCK_BYTES, verify=True)
    disk = DiskTier(tmp_path, limit_bytes=2 << 20, segment_bytes=65536, payload=payload)
    with_sums.attach(KV, PAGE_BYTES, None)
    disk.attach(KV, PAGE_BYTES, with_sums)
    slots = _filled(with_sums, 6)
    ctypes.memset(_address(with_sums, int(slots[2])) + 5000, 0x5A, 1)
    ctypes.memset(_address(with_sums, int(slots[2])) + 5001, 0xA5, 1)
    done, lower = _stored(disk, with_sums, slots)
    assert done.good.tolist() == [True, True, False, True, True, True]
    assert isinstance(done.error, CorruptBlockError)
    assert disk.mode is TierMode.ON, "the drive is not to blame"
    disk.commit(0, lower[done.good])
    disk.abort(0, lower[~done.good])
    disk.check()
    disk.close()
    again = DiskTier(tmp_path, limit_bytes=2 << 20, segment_bytes=65536, payload=payload)
    again.attach(KV, PAGE_BYTES, with_sums)
    (found,) = again.restore()
    assert found.records.positions.tolist() == [0, 1, 3, 4, 5]
    again.close()
    with_sums.close()
