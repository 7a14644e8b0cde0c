"""What the conformance suite stands on: a tier beside a neighbour in plain memory, and transfers
between the two that are followed to their only acknowledgement (I22). Public with the suite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Records, Slots, Tier, Transfer, TransferDone, Urgency
from tiers.host import AdoptedTier

PAGE_BYTES = 64
NEIGHBOUR_ROWS = 24
PATIENCE_S = 60.0


def groups_of_odd_sizes() -> tuple[Group, ...]:
    """A block of some bytes, one of a page and a byte, one of whole pages, one of two parts."""
    parts = Layout(
        (
            Part("conv", "bfloat16", (("channel", 5), ("width", 3))),
            Part("state", "float32", (("head", 3), ("row", 7), ("column", 11))),
        )
    )
    return (
        Group.full("tiny", 100),
        Group.full("odd", 4097),
        Group.full("even", 8192),
        Group("parts", parts),
    )


@contextmanager
def refused(*errors: type[Exception]) -> Iterator[None]:
    """Passes if the body raises one of ``errors``."""
    try:
        yield
    except errors:
        return
    raise AssertionError(f"nothing was raised, expected one of {[e.__name__ for e in errors]}")


class Rig:
    """A tier under test beside a neighbour in plain memory, and the transfers between them.

    ``tier`` is the lower of the two unless ``first``; ``rows[group]`` is the neighbour's memory.
    """

    def __init__(self, tier: Tier, groups: tuple[Group, ...], first: bool) -> None:
        self.tier, self.groups, self.first = tier, groups, first
        self.rows = [np.zeros((NEIGHBOUR_ROWS, g.block_bytes), np.uint8) for g in groups]
        self.neighbour = AdoptedTier([[rows] for rows in self.rows], "neighbour")
        self.jobs = 0
        self.done: list[TransferDone] = []
        upper, lower = (tier, self.neighbour) if first else (self.neighbour, tier)
        upper.attach(groups, PAGE_BYTES, None)
        lower.attach(groups, PAGE_BYTES, upper)
        self.mover = lower

    def close(self) -> None:
        """Closes both, the lower one first."""
        for tier in (self.mover, self.tier, self.neighbour):
            tier.close()

    def start(self, group: int, rows: Slots, slots: Slots, *, into: bool) -> int:
        """Starts a copy between rows of the neighbour and slots of the tier; the job's number."""
        self.jobs += 1
        upper, lower = (slots, rows) if self.first else (rows, slots)
        storing = into != self.first
        transfer = Transfer(
            job=self.jobs,
            group=group,
            upper_slots=upper,
            lower_slots=lower,
            urgency=Urgency.STORE if storing else Urgency.DEMAND,
            records=records_of(self.jobs, group, len(rows)) if storing else None,
        )
        peer = self.tier if self.first else self.neighbour
        (self.mover.store if storing else self.mover.load)(transfer, peer)
        return self.jobs

    def settle(self) -> list[TransferDone]:
        """Waits for every acknowledgement; returns them in the order in which they came."""
        deadline = time.monotonic() + PATIENCE_S
        came: list[TransferDone] = []
        while self.mover.pending():
            assert time.monotonic() < deadline, f"{self.mover.pending()} jobs never ended"
            self.mover.wait(1.0)
            came += self.mover.poll()
        assert self.mover.poll() == [], "an acknowledgement came after pending() was 0"
        self.done += came
        jobs = [done.job for done in self.done]
        assert len(set(jobs)) == len(jobs), "a job was acknowledged twice"
        return came

    def move(self, group: int, rows: Slots, slots: Slots, *, into: bool) -> TransferDone:
        """One copy, from start to its only acknowledgement."""
        job = self.start(group, rows, slots, into=into)
        came = self.settle()
        assert [done.job for done in came] == [job], f"job {job}: {came}"
        return came[0]

    def write(self, group: int, slots: Slots, content: npt.NDArray[np.uint8]) -> TransferDone:
        """Puts content into slots of the tier."""
        rows = np.arange(len(slots), dtype=np.int32)
        self.rows[group][rows] = content
        return self.move(group, rows, slots, into=True)

    def read(self, group: int, slots: Slots) -> npt.NDArray[np.uint8]:
        """What the tier holds in these slots, fetched over bytes that are known to be others."""
        rows = np.arange(len(slots), dtype=np.int32)[::-1].copy()
        self.rows[group][:] = 0xA5
        done = self.move(group, rows, slots, into=False)
        assert done.error is None and done.good.all(), f"{done}"
        return self.rows[group][rows]


def records_of(seed: int, group: int, count: int) -> Records:
    """Records of blocks that stand one after the other in a prompt of their own."""
    rng = np.random.default_rng((seed, group))
    chain = rng.integers(0, 256, (count + 1, 16), dtype=np.uint8)
    return Records(
        namespace=b"conformance",
        keys=chain[1:],
        parents=chain[:-1],
        pages=rng.integers(0, 256, (count, PAGE_BYTES), dtype=np.uint8),
        positions=np.arange(count, dtype=np.int64),
    )


def content_of(seed: int, group: int, count: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """(count, nbytes) random bytes, the same for the same arguments."""
    rng = np.random.default_rng((seed, group, count))
    return rng.integers(0, 256, (count, nbytes), dtype=np.uint8)
