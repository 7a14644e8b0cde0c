"""What is on its way between two neighbouring tiers: a move, however its blocks are named, and the
job that makes it. Keeps the values behind I22: a job owns its slots and its pin until its one end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from radix.policy.limits import Moment
from radix.tier import Slots, TransferDone, View

Key = bytes


class AnyMove(Protocol):
    """Blocks of one group that go from one tier to its neighbour, however they are named."""

    @property
    def group(self) -> int:
        """The number of the group."""
        ...

    @property
    def source(self) -> int:
        """The number of the tier that is copied from; -1 is the engine's own."""
        ...

    @property
    def target(self) -> int:
        """The number of the tier that is copied to."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks to move."""
        ...


M = TypeVar("M", bound=AnyMove)


@dataclass(slots=True)
class Job(Generic[M]):
    """A transfer under way: it pins its blocks and owns both sides' slots until its one
    acknowledgement. ``unpin`` gives the pin back.
    """

    number: int
    move: M
    upper_slots: Slots
    lower_slots: Slots
    keys: list[Key]
    owner: int
    start_ns: int
    unpin: Callable[[], None]
    since: Moment
    part: View | None = None
    by_layer: bool = False
    cancelled: bool = False
    late: bool = False  # given up by who waited for it: its slots are its own until it ends
    stale: bool = False  # of an older epoch: it only gives back what it holds
    done: TransferDone | None = None  # its acknowledgement, while it is acted upon

    @property
    def storing(self) -> bool:
        """Down, not up."""
        return self.move.target > self.move.source

    @property
    def lower(self) -> int:
        """The number of the tier that moves the bytes."""
        return max(self.move.source, self.move.target)
