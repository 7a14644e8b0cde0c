"""A disk tier under rows of plain memory, and what it must hold: each block is known by a number,
its key and its bytes are functions of that number (the content oracle), so that anything that comes
back can be judged, also by another process after a crash.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.tier import Records, Restored, Slots, Transfer, TransferDone, Urgency
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.host import AdoptedTier

PAGE_BYTES = 64
BLOCK_BYTES = 8192
ROWS = 64
NAMESPACE = b"model-a"


def key_of(number: int, width: int = 16) -> bytes:
    """The key of a block."""
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=width).digest()


def records_of(
    numbers: Sequence[int],
    namespace: bytes = NAMESPACE,
    width: int = 16,
    pages: bool = True,
    page_bytes: int = PAGE_BYTES,
) -> Records:
    """What a cache would say of these blocks."""
    count = len(numbers)
    keys = np.frombuffer(b"".join(key_of(n, width) for n in numbers), np.uint8)
    return Records(
        namespace=namespace,
        keys=keys.reshape(count, width).copy(),
        parents=np.zeros((count, 16), np.uint8),
        pages=expand(np.array(numbers, np.uint64) + np.uint64(1 << 40), page_bytes).copy()
        if pages
        else None,
        positions=np.array(numbers, np.int64),
    )


def aligned_rows(count: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Rows that a file opened with O_DIRECT can be read into."""
    return np.frombuffer(mmap.mmap(-1, count * nbytes), np.uint8).reshape(count, nbytes)


class DiskRig:
    """A disk tier in ``folder`` whose blocks are known by number.

    ``slots``: number -> slot of what is committed. ``rows`` is the memory above.
    """

    def __init__(
        self,
        folder: Path | Sequence[Path],
        *,
        limit_bytes: int = 1 << 20,
        groups: tuple[Group, ...] = (Group.full("kv", BLOCK_BYTES),),
        page_bytes: int = PAGE_BYTES,
        **options: Any,
    ) -> None:
        options.setdefault("segment_bytes", 65536)
        self.rows = [aligned_rows(ROWS, group.block_bytes) for group in groups]
        self.upper = AdoptedTier([[rows] for rows in self.rows], "rows")
        self.upper.attach(groups, page_bytes, None)
        self.groups, self.page_bytes = groups, page_bytes
        self.tier = DiskTier(folder, limit_bytes=limit_bytes, **options)
        self.jobs = 0
        self.slots: dict[int, int] = {}
        try:
            self.tier.attach(groups, page_bytes, self.upper)
        except BaseException:
            self.upper.close()
            raise
        self.restored: list[Restored] = list(self.tier.restore())

    def __enter__(self) -> DiskRig:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the tier, then the memory."""
        self.tier.close()
        self.upper.close()

    # ------------------------------------------------------------------ transfers

    def settle(self) -> list[TransferDone]:
        """Waits for every transfer under way."""
        done: list[TransferDone] = []
        while self.tier.pending():
            self.tier.wait(5.0)
            done += self.tier.poll()
        return done

    def start_store(
        self, numbers: Sequence[int], slots: Slots, group: int = 0, **record: Any
    ) -> int:
        """Starts writing blocks into reserved slots; the job's number. ``rows`` are used up."""
        nbytes = self.groups[group].block_bytes
        self.rows[group][: len(numbers)] = expand(np.array(numbers, np.uint64), nbytes)
        record.setdefault("page_bytes", self.page_bytes)
        return self.start_store_of(records_of(numbers, **record), slots, group)

    def start_store_of(self, records: Records | None, slots: Slots, group: int = 0) -> int:
        """Starts writing the first rows into reserved slots under these records."""
        self.jobs += 1
        rows = np.arange(len(slots), dtype=np.int32)
        transfer = Transfer(self.jobs, group, rows, slots, Urgency.STORE, records)
        self.tier.store(transfer, self.upper)
        return self.jobs

    def store(self, numbers: Iterable[int], group: int = 0, **record: Any) -> TransferDone:
        """Stores blocks as a cache does: reserve, store, commit the good and abort the rest."""
        listed = list(numbers)
        slots = self.tier.reserve(group, len(listed))
        self.start_store(listed, slots, group, **record)
        (done,) = self.settle()
        self.tier.commit(group, slots[done.good])
        self.tier.abort(group, slots[~done.good])
        good = np.flatnonzero(done.good).tolist()
        self.slots |= {listed[i]: int(slots[i]) for i in good}
        return done

    def load(self, slots: Iterable[int], group: int = 0) -> TransferDone:
        """Loads slots into the first rows."""
        wanted = np.fromiter(slots, np.int32)
        self.jobs += 1
        self.rows[group][:] = 0x5A
        rows = np.arange(len(wanted), dtype=np.int32)
        self.tier.load(Transfer(self.jobs, group, rows, wanted, Urgency.DEMAND, None), self.upper)
        (done,) = self.settle()
        return done

    def free(self, numbers: Iterable[int], group: int = 0) -> None:
        """Frees committed blocks."""
        slots = np.array([self.slots.pop(n) for n in numbers], np.int32)
        self.tier.free(group, slots)

    # ------------------------------------------------------------------ judging

    def right(self, numbers: Sequence[int], group: int = 0) -> npt.NDArray[np.bool_]:
        """Which of the first rows hold exactly the bytes of these blocks."""
        nbytes = self.groups[group].block_bytes
        expected = expand(np.array(numbers, np.uint64), nbytes)
        equal: npt.NDArray[np.bool_] = (self.rows[group][: len(numbers)] == expected).all(axis=1)
        return equal

    def adopt(self, known: Iterable[int]) -> list[int]:
        """Takes over what the tier found at opening; the numbers, oldest first. A key that no
        known number has is a failure: the tier made it up.
        """
        by_key = {key_of(n, width): n for n in known for width in (16, 32)}
        found = []
        for part in self.restored:
            for key, slot in zip(part.records.keys, part.slots.tolist(), strict=True):
                number = by_key[key.tobytes()]
                assert number not in self.slots, f"block {number} was found twice"
                self.slots[number] = slot
                found.append(number)
        return found

    def verify(self, numbers: Iterable[int]) -> list[int]:
        """Loads blocks; asserts that nothing wrong is called good; the numbers that were good."""
        good: list[int] = []
        listed = list(numbers)
        for first in range(0, len(listed), ROWS):
            part = listed[first : first + ROWS]
            done = self.load(self.slots[n] for n in part)
            right = self.right(part)
            assert not (done.good & ~right).any(), "wrong bytes were given out as good"
            assert not (done.good & done.corrupt).any()
            assert done.verified_blocks == int(done.good.sum())
            good += [n for n, ok in zip(part, done.good.tolist(), strict=True) if ok]
        return good


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
