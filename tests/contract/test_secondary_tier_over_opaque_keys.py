"""The disk tier as an engine's secondary tier: the engine gives opaque keys of its own and rows of
a memory that it owns, and finds its blocks by key after a restart. It knows no tokens, parents or
pages, and no cache stands in between.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from radix.groups import Group
from radix.tier import Records, Transfer, Urgency
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

ROWS, ROW_BYTES = 16, 12_000
GROUP = Group.full("kv", ROW_BYTES)


class SecondaryTier:
    """Store and load by key, in forty lines: what an engine's plug-in has to do."""

    def __init__(self, folder: Path, memory: memoryview) -> None:
        rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW_BYTES)
        self.upper = AdoptedTier([[rows]])
        self.upper.attach((GROUP,), 32, None)
        self.disk = DiskTier(folder, limit_bytes=1 << 20)
        self.disk.attach((GROUP,), 32, self.upper)
        self.jobs, self.slot_of = 0, dict[bytes, int]()
        for part in self.disk.restore():
            keys = (key.tobytes() for key in part.records.keys)
            self.slot_of |= dict(zip(keys, part.slots.tolist(), strict=True))

    def _run(self, rows: list[int], slots: np.ndarray, records: Records | None) -> np.ndarray:
        self.jobs += 1
        urgency = Urgency.DEMAND if records is None else Urgency.STORE
        transfer = Transfer(self.jobs, 0, np.array(rows, np.int32), slots, urgency, records)
        (self.disk.load if records is None else self.disk.store)(transfer, self.upper)
        while not (done := self.disk.poll()):
            self.disk.wait(1.0)
        return done[0].good

    def store(self, keys: list[bytes], rows: list[int]) -> list[bool]:
        """Rows of the engine's memory under its keys."""
        slots = self.disk.reserve(0, len(keys))
        packed = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
        unknown = np.full(len(keys), -1, np.int64)
        parents = np.zeros((len(keys), 16), np.uint8)
        good = self._run(rows, slots, Records(b"engine", packed, parents, None, unknown))
        self.disk.commit(0, slots[good])
        self.disk.abort(0, slots[~good])
        self.slot_of |= {k: int(s) for k, s, ok in zip(keys, slots, good, strict=True) if ok}
        return good.tolist()

    def load(self, keys: list[bytes], rows: list[int]) -> list[bool]:
        """Blocks by key into rows of the engine's memory."""
        return self._run(rows, np.array([self.slot_of[k] for k in keys], np.int32), None).tolist()

    def close(self) -> None:
        """Everything acknowledged is durable."""
        self.disk.close()
        self.upper.close()


def test_rows_come_back_by_opaque_key_after_a_restart(tmp_path: Path) -> None:
    source = memoryview(bytearray(os.urandom(ROWS * ROW_BYTES)))
    keys = [os.urandom(32) for _ in range(ROWS)]
    engine = SecondaryTier(tmp_path / "d", source)
    assert all(engine.store(keys[:10], list(range(10))))
    assert all(engine.store(keys[10:], list(range(10, ROWS))))
    engine.close()
    target = memoryview(bytearray(ROWS * ROW_BYTES))
    engine = SecondaryTier(tmp_path / "d", target)
    assert set(engine.slot_of) == set(keys)
    assert all(engine.load(keys[::-1], list(range(ROWS))))
    for row, original in enumerate(reversed(range(ROWS))):
        mine, theirs = row * ROW_BYTES, original * ROW_BYTES
        assert target[mine : mine + ROW_BYTES] == source[theirs : theirs + ROW_BYTES]
    engine.close()
