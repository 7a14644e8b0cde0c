"""Epochs: what was stored before a reset, or under other weights, is matched in no tier any more.
Blocks leave the tree at once; slots that requests, transfers or leases still read rest until these
have ended, and whatever ends late only gives back what it holds (I31). Two resets are one.

    reset   durable epoch --> jobs and requests of before outdated --> blocks leave, deepest first
    slot    read by nobody: free      by some: quarantine until the last of them has let go
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError, StaleError
from radix.events import RequestState
from radix.holding import Keeps
from radix.namespaces import Namespaces
from radix.plan import Cursor
from radix.prefetching import Prefetches
from radix.requests import Requests
from radix.residency import RESET, Residency
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT, NodeView

Place = tuple[int, int, int]
_LOADING = RequestState.LOADING
LEASES = 0  # who holds a slot, beside jobs and requests: leases of the owner's


class Epochs:
    """Begin: ``reset``, ``revise``. Go on: ``run``, once a poll; ``lift``."""

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        requests: Requests,
        spaces: Namespaces,
        prefetches: Prefetches,
        keeps: Keeps,
    ) -> None:
        self._residency = residency
        self._transfers = transfers
        self._requests = requests
        self._spaces = spaces
        self._prefetches = prefetches
        self._keeps = keeps
        self.begun = False  # a lease may cover what is not there any more
        self._late = False  # jobs of an older epoch are under way

    def reset(self, tiers: Sequence[int]) -> None:
        """A new epoch in these tiers, -1 being the engine's own. ``TierError`` of a persistent one
        that cannot keep it: nothing has changed but that persistent tiers below it may have begun
        theirs, which costs hits alone. Cost: what they hold.
        """
        self.begun = True
        numbers = [tier for tier in tiers if tier >= 0]
        for tier in reversed(numbers):  # first what may not answer
            self._residency.tiers[tier].renew()
        for item in list(self._prefetches.open.values()):
            self._prefetches.release(item)
        self._keeps.end_all(RESET)
        for job in self._transfers.jobs.values():
            if job.move.source in tiers or job.move.target in tiers:
                self._transfers.outdate(job)
                self._late = True
                if not job.storing:
                    self._transfers.cancel(job)
        loads = [work for work in self._requests.works.values() if work.state is _LOADING]
        computes = self._requests.loading.top in tiers
        if computes:
            for work in self._requests.works.values():
                if work.state is not _LOADING:
                    self._requests.ending.outdate(work)
        self._drop(numbers)
        if computes:
            for work in loads:
                self._requests.ending.restart(work)
        self._requests.stir()
        self._residency.metrics.add(("reset", "epochs"))

    def revise(self, revision: str) -> None:
        """Retires what is of the weights before. Requests that run go on by themselves."""
        self._spaces.revise(revision)
        self._keeps.end_all(RESET, sorted(self._spaces.retired))
        for work in self._requests.works.values():
            if work.at.root in self._spaces.retired:
                self._requests.ending.outdate(work)
        self._leave()

    def run(self) -> None:
        """Lets go what nobody holds any more. Cost: what retired namespaces still have."""
        if self._transfers.fenced and not self.leases():
            self._transfers.let_go(LEASES)
        if self._spaces.retired:
            self._leave()
        if self._late:
            self._transfers.lift(self._ended, swallowed=False)
            self._late = any(job.stale for job in self._transfers.jobs.values())

    def lift(self) -> None:
        """Whatever was under way at the last reset is over, though nobody said so."""
        self._transfers.lift(self._ended, swallowed=True)

    def _ended(self, job: Job, arrived: npt.NDArray[np.bool_]) -> None:
        self._requests.ended(job, arrived)
        if job.owner < 0:
            self._prefetches.ended(job, arrived)

    def leases(self) -> int:
        """Leases of the owner's, neither a request's nor a transfer's. Cost: the requests."""
        own = self._requests.ending.leases + self._prefetches.leases + len(self._transfers.jobs)
        own += self._keeps.leases
        return self._residency.tree.stats().leases - own

    # ------------------------------------------------------------ leaving
    def _leave(self) -> None:
        """What retired namespaces have goes as far as nobody holds it."""
        every = range(len(self._residency.tiers))
        for root in sorted(self._spaces.retired):
            for node in reversed(self._residency.tree.nodes(root)):
                with suppress(StaleError):
                    self._residency.forget(_end(root, node), node.start, every, RESET)
        self._spaces.drop_retired()

    def _drop(self, tiers: Sequence[int]) -> None:
        """Takes every block out of these tiers."""
        readers, leased = self._readers(tiers), self._requests.placed and self.leases() > 0
        while left := self._resident(tiers):
            for root in list(self._spaces.names):
                for node in reversed(self._residency.tree.nodes(root)):
                    with suppress(StaleError):
                        self._drop_node(_end(root, node), node.start, tiers, readers, leased)
            if self._resident(tiers) == left:
                raise InvariantError("I31", f"{left} blocks of an older epoch do not go")

    def _resident(self, tiers: Sequence[int]) -> int:
        tree, groups = self._residency.tree, range(len(self._residency.groups))
        columns = [tree.column(group, tier) for tier in tiers for group in groups]
        return sum(tree.column_stats(column).resident for column in columns)

    def _drop_node(
        self,
        at: Cursor,
        start: int,
        tiers: Sequence[int],
        readers: dict[Place, set[int]],
        leased: bool,
    ) -> None:
        residency, tree = self._residency, self._residency.tree
        residency.forget(at, start, tiers, RESET)
        for tier in tiers:
            for group in range(len(residency.groups)):
                lo, hi = tree.interval(at.node, tree.column(group, tier))
                slots = residency.slots(at, group, tier, start + lo, hi - lo)
                for index in np.flatnonzero(slots != NO_SLOT)[::-1].tolist():
                    place = tier, group, int(slots[index])
                    held = readers.pop(place, set())
                    if tier == 0 and leased:
                        held.add(LEASES)
                    page = start + lo + index
                    residency.drop(at, group, tier, page, read=bool(held), reason=RESET)
                    if held:
                        self._transfers.fenced[place] = held

    def _readers(self, tiers: Sequence[int]) -> dict[Place, set[int]]:
        """Who reads which slots: transfers, and in the first tier requests that compute."""
        found: dict[Place, set[int]] = {}
        for job in self._transfers.jobs.values():
            slots = job.upper_slots if job.storing else job.lower_slots
            if job.move.source in tiers:
                for slot in slots.tolist():
                    place = job.move.source, job.move.group, slot
                    found.setdefault(place, set()).add(job.number)
        for work in self._requests.ending.pinned.values():
            if work.state is _LOADING or 0 not in tiers or not self._requests.placed:
                continue
            for group, held in enumerate(work.held):
                for slot in held.slots[(held.slots != NO_SLOT) & ~held.own].tolist():
                    found.setdefault((0, group, slot), set()).add(-work.hop)
        return found


def _end(root: int, node: NodeView) -> Cursor:
    return Cursor(root, node.node, node.start + node.pages)
