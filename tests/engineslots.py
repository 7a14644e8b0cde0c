"""What an engine does that owns the device slots itself: it lends or shares them, and takes them
back when they are free; and what it knows of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radix.cache import PrefixCache
from radix.errors import CapacityError
from radix.events import RequestState
from radix.keys import Namespace
from radix.lifecycle import Work
from radix.ownership import Ownership
from radix.policy.checkpoint import ROLLING
from radix.request import Request


class Point:
    """A fence that an engine asks, like an event of a stream."""

    def __init__(self) -> None:
        self.over = False

    def query(self) -> bool:
        """Whether it has passed."""
        return self.over


@dataclass
class Live:
    """One request of the engine."""

    request: Request
    namespace: Namespace | None
    name: bytes = b""  # of its namespace, as the cache told it at admission
    told: int = 0
    written: int = 0
    fence: object = None  # of its end
    checked: bool = False
    # snapshots whose kernel has not run: length in pages, group, slot
    aside: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """One admission, one of these: a request that is resumed gets another."""
        self.work: Work = self.request._work


class OwnSlots:
    """The engine's side of a rig. ``own``: its free slots by group; ``lent``: those of requests."""

    cache: PrefixCache
    own: list[list[int]]
    lent: list[tuple[Live, list[list[int]]]]
    step: int

    @property
    def _borrows(self) -> bool:
        return self.cache.ownership is Ownership.BORROWED

    @property
    def _page(self) -> int:
        return self.cache.page_tokens

    def _take(self, pages: int) -> list[list[int]]:
        """Free slots of the engine's, in every group; ``CapacityError`` where it has too few."""
        self.reclaim()
        free = min(len(row) for row in self.own)
        if free < pages:
            raise CapacityError(
                "the engine", needed=pages, free=free, evictable=0, leased=0, dirty=0
            )
        more = 0 if self._borrows else ROLLING + 1  # what a state takes, however short the prompt
        rows = [row[: max(pages, more)] for row in self.own]
        for row, taken in zip(self.own, rows, strict=True):
            del row[: len(taken)]
        return rows

    def _sparse(self, group: int, row: list[int]) -> list[int]:
        """A page table of the engine's: a slot where a block ends; the others it keeps."""
        size = self.cache.residency.rules[group].block_pages
        if size == 1:
            return row
        kept = [slot if (page + 1) % size == 0 else -1 for page, slot in enumerate(row)]
        self.own[group] += [slot for slot in row if slot not in kept]
        return kept

    def reclaim(self) -> None:
        """The engine takes back what is not in use and not on loan any more."""
        if self.cache.ownership is Ownership.SHARED:
            for group, free in enumerate(self.own):
                self._give(free, self.cache.spare(group).tolist())
        jobs = self.cache.transfers.jobs
        loans = [
            (jobs[number].move.group, set(slots.tolist()))
            for number, slots in self.cache.borrowed().items()
        ]
        for item in list(self.lent):
            live, rows = item
            if live.work.state is RequestState.RELEASED and self._over(live.fence):
                assert not any(loan.intersection(rows[group]) for group, loan in loans)
                self.lent.remove(item)
                for free, row in zip(self.own, rows, strict=True):
                    self._give(free, [slot for slot in row if slot >= 0])

    def _over(self, fence: object) -> bool:
        if isinstance(fence, Point):
            return fence.over
        return fence is None or self.step >= int(str(fence))

    @staticmethod
    def _give(free: list[int], row: list[int]) -> None:
        assert not set(free).intersection(row), "the engine got a slot twice"
        free += row

    def append(self, live: Live, tokens: Sequence[int]) -> None:
        """Sampled tokens; where the slots are the engine's it adds some first."""
        need = -(-(len(live.request) + len(tokens)) // self._page) - live.work.pages
        if self.own and need > 0:
            rows = self._take(need)
            if self.cache.ownership is Ownership.SHARED:
                for group, row in enumerate(rows):
                    self.cache.offer(group, row)
            else:
                live.request.lend(rows)
                for other, lent in self.lent:
                    if other is live:
                        for held, row in zip(lent, rows, strict=True):
                            held += row
        live.request.append(list(tokens))

    def evict(self, group: int, count: int, tier: int) -> int:
        """Evicts; how many went. Slots that the engine shares are its own again."""
        gone = self.cache.evict(group, count, tier=tier).tolist()
        if tier == 0 and self.own and self.cache.ownership is Ownership.SHARED:
            self._give(self.own[group], gone)
        return len(gone)
