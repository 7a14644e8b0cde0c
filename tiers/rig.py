"""What the conformance suite stands on: a tier beside a neighbour in plain memory, and transfers
between the two that are followed to their only acknowledgement (I22). Public with the suite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from radix.groups import Group
from radix.layout import Layout, Part
from radix.tier import Records, Slots, Tier, Transfer, TransferDone, Urgency, View
from tiers.host import AdoptedTier
from tiers.views import view_bytes

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


def groups_of_runs() -> tuple[Group, ...]:
    """Blocks in several shard pieces and layers, of one, two and three dtypes in a block: runs of
    odd bytes, of whole pages, ones that every rank holds, and layers that have less than others.
    """
    keys = (("layer", 3), ("head", 4), ("row", 5))
    both = Layout(
        (
            Part("keys", "bfloat16", keys, "head", 4),
            Part("values", "float8_e4m3fn", keys, "head", 4),
        ),
        4,
    )
    mixed = Layout(
        (
            Part("state", "float32", (("layer", 2), ("head", 8), ("row", 3)), "head", 8, 1),
            Part("keys", "bfloat16", (("layer", 4), ("head", 2), ("row", 9)), "head", 2),
            Part("latent", "uint8", (("row", 11),), first_layer=2),
        ),
        4,
    )
    pages = Part("pages", "uint8", (("layer", 2), ("half", 2), ("byte", 4096)), "half", 2)
    return (
        Group("both", both),
        Group("mixed", mixed),
        Group("pages", Layout((pages,), 2)),
        Group.full("plain", 100),
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
        self._ranks: list[AdoptedTier] = []
        upper, lower = (tier, self.neighbour) if first else (self.neighbour, tier)
        upper.attach(groups, PAGE_BYTES, None)
        lower.attach(groups, PAGE_BYTES, upper)
        self.mover = lower

    def close(self) -> None:
        """Closes both, the lower one first."""
        for tier in (self.mover, self.tier, self.neighbour, *self._ranks):
            tier.close()

    def start(
        self,
        group: int,
        rows: Slots,
        slots: Slots,
        *,
        into: bool,
        part: View | None = None,
        by_layer: bool = False,
    ) -> int:
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
            part=part,
            by_layer=by_layer,
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

    def rank(self, views: Sequence[View | None]) -> Rank:
        """A tier beside the neighbour that holds these views of the blocks; closed with the rig."""
        rank = Rank(self.groups, views)
        self._ranks.append(rank.tier)
        return rank

    def start_of(self, rank: Rank, group: int, slots: Slots, *, storing: bool) -> int:
        """Starts a copy between the first rows of a rank and slots of the tier below it."""
        self.jobs += 1
        transfer = Transfer(
            job=self.jobs,
            group=group,
            upper_slots=np.arange(len(slots), dtype=np.int32),
            lower_slots=slots,
            urgency=Urgency.STORE if storing else Urgency.DEMAND,
            records=records_of(0, group, len(slots)) if storing else None,
        )
        (self.tier.store if storing else self.tier.load)(transfer, rank.tier)
        return self.jobs

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


class Rank:
    """Plain memory that holds a view of each group's blocks, as a rank or a stage does.

    ``tier`` is attached already; ``rows[group]`` is its memory.
    """

    def __init__(self, groups: tuple[Group, ...], views: Sequence[View | None]) -> None:
        sizes = [view_bytes(group.layout, view) for group, view in zip(groups, views, strict=True)]
        self.rows = [np.zeros((NEIGHBOUR_ROWS, size), np.uint8) for size in sizes]
        self.tier = AdoptedTier([[rows] for rows in self.rows], "rank", views=views)
        self.tier.attach(groups, PAGE_BYTES, None)


def bytes_of(layout: Layout, view: View, *, beginning: bool = False) -> npt.NDArray[np.int64]:
    """Where the bytes of a view lie in a stored block, one by one, in order."""
    runs = layout.view(view.layers, view.shards, beginning=beginning)
    spans = [np.arange(run["offset"], run["offset"] + run["bytes"]) for run in runs]
    return np.concatenate([np.empty(0, np.int64), *spans]).astype(np.int64)


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
