"""Blocks that are known by a number, over a real disk tier: group, key, namespace, bytes and all
else that a record says are functions of the number, so that what comes back after a power loss can
be judged by a process that has never seen it stored.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.groups import Group, Retention
from radix.layout import Layout
from radix.tier import Records, Restored, Slots, Transfer, TransferDone, Urgency
from tests.crash.diskrig import key_of
from tests.oracle import expand
from tiers.disk import DiskTier
from tiers.host import AdoptedTier
from tiers.rig import groups_of_runs

PAGE_BYTES = 64
ROWS = 16
SEGMENT_BYTES = 32768
LIMITS = (520 << 10, 640 << 10, 1200 << 10)
RUN = 16  # numbers that are of one kind
NAMESPACES = (b"model-a", b"model-b")
# Blocks of whole pages, of an odd size, one a checkpoint, and one of several runs.
GROUPS = (
    Group.full("kv", 8192),
    Group("window", Layout.opaque(5000), Retention("window", tokens=64)),
    Group("state", Layout.opaque(20000), Retention("state"), per_sequence=True),
    groups_of_runs()[2],
)


@dataclass(frozen=True, slots=True)
class Config:
    """How the tier of a directory is opened; ``folders``: below the root, the first has the
    index.
    """

    folders: tuple[str, ...]
    payload: str
    limit_bytes: int
    threads: int = 1


def group_of(number: int) -> int:
    """The group of a block."""
    return number % len(GROUPS)


def _width(number: int) -> int:
    return 32 if number // RUN % 3 == 0 else 16


def namespace_of(number: int) -> bytes:
    """The namespace of a block."""
    return NAMESPACES[number // RUN % 2]


def _has_pages(number: int) -> bool:
    return number // RUN % 5 != 0


def kind_of(number: int) -> tuple[bytes, int, bool]:
    """What blocks that one store brings must have alike."""
    return namespace_of(number), _width(number), _has_pages(number)


def content_of(numbers: Sequence[int], group: int) -> npt.NDArray[np.uint8]:
    """The bytes of blocks of one group."""
    return expand(np.array(numbers, np.uint64), GROUPS[group].block_bytes)


def records_of(numbers: Sequence[int]) -> Records:
    """What a cache would say of blocks of one kind."""
    count, (namespace, width, has_pages) = len(numbers), kind_of(numbers[0])
    keys = b"".join(key_of(n, width) for n in numbers)
    seeds = np.array(numbers, np.uint64)
    return Records(
        namespace=namespace,
        keys=np.frombuffer(keys, np.uint8).reshape(count, width).copy(),
        parents=expand(seeds + np.uint64(1 << 41), 16).copy(),
        pages=expand(seeds + np.uint64(1 << 40), PAGE_BYTES).copy() if has_pages else None,
        positions=np.array(numbers, np.int64) * 7,
    )


def rows_of(group: Group) -> npt.NDArray[np.uint8]:
    """Rows for blocks of a group that can be moved without a copy, where their size allows it."""
    size = group.block_bytes
    return np.frombuffer(mmap.mmap(-1, ROWS * size), np.uint8).reshape(ROWS, size)


class Disk:
    """A disk tier below ``root`` under rows of plain memory. ``slots``: number -> slot of what is
    committed.
    """

    def __init__(self, root: Path, config: Config) -> None:
        self.rows = [rows_of(group) for group in GROUPS]
        self.upper = AdoptedTier([[rows] for rows in self.rows], "rows")
        self.upper.attach(GROUPS, PAGE_BYTES, None)
        self.tier = DiskTier(
            [root / folder for folder in config.folders],
            limit_bytes=config.limit_bytes,
            payload=config.payload,
            segment_bytes=SEGMENT_BYTES,
            threads=config.threads,
        )
        self.jobs = 0
        self.slots: dict[int, int] = {}
        try:
            self.tier.attach(GROUPS, PAGE_BYTES, self.upper)
        except BaseException:
            self.upper.close()
            raise
        self.restored: list[Restored] = list(self.tier.restore())

    def close(self) -> None:
        """Closes the tier, then the memory."""
        self.tier.close()
        self.upper.close()

    def adopt(self, last: int) -> list[int]:
        """Takes over what the tier found; blocks below ``last`` are known. Asserts that each is
        there once and that its record says exactly what was stored.
        """
        by_key = {key_of(n, _width(n)): n for n in range(last)}
        for part in self.restored:
            records = part.records
            for i, key in enumerate(records.keys):
                assert key.tobytes() in by_key, "a key was found that nobody stored"
                number = by_key[key.tobytes()]
                assert number not in self.slots, f"block {number} was found twice"
                assert part.group == group_of(number), f"block {number} is in another group"
                wanted = records_of([number])
                assert records.namespace == wanted.namespace, f"block {number}: namespace"
                assert records.parents[i].tobytes() == wanted.parents.tobytes(), f"block {number}"
                assert int(records.positions[i]) == number * 7, f"block {number}: position"
                pages = None if records.pages is None else records.pages[i].tobytes()
                expected = None if wanted.pages is None else wanted.pages.tobytes()
                assert pages == expected, f"block {number}: the tokens of its page"
                self.slots[number] = int(part.slots[i])
        return sorted(self.slots)

    def start_store(self, numbers: Sequence[int], rows: Sequence[int], slots: Slots) -> int:
        """Starts writing blocks of one kind from these rows; the job's number."""
        group = group_of(numbers[0])
        at = np.array(rows[: len(numbers)], np.int32)
        self.rows[group][at] = content_of(numbers, group)
        return self._start(group, at, slots, records_of(numbers))

    def _start(self, group: int, rows: Slots, slots: Slots, records: Records | None) -> int:
        self.jobs += 1
        urgency = Urgency.DEMAND if records is None else Urgency.STORE
        transfer = Transfer(self.jobs, group, rows, slots, urgency, records)
        call = self.tier.load if records is None else self.tier.store
        call(transfer, self.upper)
        return self.jobs

    def settle(self) -> list[TransferDone]:
        """Waits for every transfer under way."""
        done: list[TransferDone] = []
        while self.tier.pending():
            self.tier.wait(5.0)
            done += self.tier.poll()
        return done

    def store(self, numbers: Sequence[int]) -> TransferDone:
        """Stores blocks of one kind and group and keeps what was good; nothing else may run."""
        group = group_of(numbers[0])
        slots = self.tier.reserve(group, len(numbers))
        self.start_store(numbers, range(ROWS), slots)
        (done,) = self.settle()
        self.keep(numbers, slots, done)
        return done

    def keep(self, numbers: Sequence[int], slots: Slots, done: TransferDone) -> None:
        """Commits what was stored and gives the other slots back."""
        group = group_of(numbers[0])
        self.tier.commit(group, slots[done.good])
        self.tier.abort(group, slots[~done.good])
        kept = np.flatnonzero(done.good).tolist()
        self.slots |= {numbers[i]: int(slots[i]) for i in kept}

    def free(self, numbers: Sequence[int]) -> None:
        """Frees committed blocks."""
        for group in range(len(GROUPS)):
            mine = [n for n in numbers if group_of(n) == group]
            if mine:
                self.tier.free(group, np.array([self.slots.pop(n) for n in mine], np.int32))

    def verify(self, numbers: Sequence[int]) -> list[str]:
        """Loads blocks; what is wrong with them. Nothing else may run."""
        faults: list[str] = []
        for group in range(len(GROUPS)):
            mine = [n for n in numbers if group_of(n) == group]
            for first in range(0, len(mine), ROWS):
                faults += self._verify_part(mine[first : first + ROWS], group)
        return faults

    def _verify_part(self, part: list[int], group: int) -> list[str]:
        self.rows[group][:] = 0x5A
        slots = np.array([self.slots[n] for n in part], np.int32)
        self._start(group, np.arange(len(part), dtype=np.int32), slots, None)
        (done,) = self.settle()
        right = (self.rows[group][: len(part)] == content_of(part, group)).all(axis=1)
        faults = []
        for n, good, ok in zip(part, done.good.tolist(), right.tolist(), strict=True):
            if good and not ok:
                faults.append(f"block {n} was served with wrong bytes")
            if not good:
                faults.append(f"block {n} has a record, but not its bytes: {done.error}")
        return faults


def config_of(fields: dict[str, Any]) -> Config:
    """A configuration from its JSON."""
    return Config(**{**fields, "folders": tuple(fields["folders"])})
