"""The hit of a request on its way to the first tier: loads that move what is missing, pages
attached in order as they arrive, and a hit that becomes shorter, once and for all groups, where
something does not come (C78-C80). Keeps I21 (no gap on the first tier) and I22.

    pages   0 ........ frontier ........ hit
    tree    | canonical | other groups may have more
    table   | the same  | private: reserved, coming, ready
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix.errors import CapacityError, TierError
from radix.events import RequestState
from radix.lifecycle import Work
from radix.plan import Move
from radix.residency import Residency
from radix.tier import TierMode, Urgency
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT

Mask = npt.NDArray[np.bool_]


class Loading:
    """Loads for requests that are LOADING. Go on: ``advance``. End: ``ended``, ``shorten``.

    Ask: ``source_of``, ``origin_of``.
    """

    def __init__(self, residency: Residency, transfers: Transfers, page_tokens: int) -> None:
        self.residency = residency
        self.transfers = transfers
        self.page_tokens = page_tokens
        self.placed = transfers.borrowed is None
        self.top = 0 if self.placed else -1  # the number of the device in moves
        self._groups = len(residency.groups)

    # ------------------------------------------------------------ where blocks are
    def source_of(self, work: Work, group: int, lo: int, hi: int) -> npt.NDArray[np.int8]:
        """For pages [lo, hi) of the hit the uppermost readable tier that holds them, or -1."""
        source = np.full(hi - lo, -1, np.int8)
        for tier in reversed(range(len(self.residency.tiers))):
            if self.residency.tiers[tier].mode is not TierMode.OFF:
                have = self.residency.slots(work.at, group, tier, lo, hi - lo) != NO_SLOT
                source[have] = tier
        return source

    def origin_of(self, work: Work) -> npt.NDArray[np.int8]:
        """By page of the hit the tier that serves it: of several groups, the lowest."""
        origin = np.full(work.hit_pages, self.top, np.int8)
        lo, hi = work.frontier, work.hit_pages
        for group in range(self._groups if lo < hi else 0):
            origin[lo:] = np.maximum(origin[lo:], self.source_of(work, group, lo, hi))
        return origin

    # ------------------------------------------------------------ going on
    def advance(self, work: Work) -> bool:
        """Takes the hit further towards the device: what arrived is shared, what can move moves,
        what is nowhere shortens the hit. Whether nothing is missing or under way any more.
        """
        if self.placed:
            self._share(work)
        elif work.frontier < work.hit_pages:
            lo, hi = work.frontier, work.hit_pages
            work.frontier += min(_reach(ready[lo:hi]) for ready in work.ready)
        held = False  # by somebody else's load, whose end wakes this request
        for group in range(self._groups):
            held |= self._advance_group(work, group)
        if self.busy(work):
            return False
        if work.frontier < work.hit_pages and not held:
            self.shorten(work, work.frontier, "load failed")  # nothing moves, nothing will
        return work.frontier >= work.hit_pages

    def busy(self, work: Work) -> bool:
        """Whether a transfer of this request is under way."""
        return work.number in self.transfers.outstanding

    def _advance_group(self, work: Work, group: int) -> bool:
        """Starts what can start; whether somebody else's load brings some of the pages."""
        lo, hi = work.frontier, work.hit_pages
        if lo >= hi:
            return False
        wanted = ~(work.ready[group][lo:hi] | work.coming[group][lo:hi])
        source = self.source_of(work, group, lo, hi)
        if self.placed:
            wanted &= source != 0
        held = False
        for tier in range(self.top + 1, len(self.residency.tiers)):
            pages = np.flatnonzero(wanted & (source == tier)).astype(np.int64) + lo
            if len(pages):
                landing = self.transfers.landing(work.at, tier - 1, group, pages)
                held |= bool(landing.any())
                pages = pages[~landing]
            if len(pages):
                self._load(work, group, tier, pages)
        lost = np.flatnonzero(wanted & (source < 0))
        if len(lost):
            self.shorten(work, lo + int(lost[0]), "load failed")
        return held

    def _load(self, work: Work, group: int, tier: int, pages: npt.NDArray[np.int64]) -> None:
        """Starts one load, of as many pages as there is room for; a refusal shortens the hit,
        unless something of this request is under way, whose end brings it here again.
        """
        target = tier - 1
        direct = target == self.top
        if direct:
            slots = work.table[group][pages]
        else:
            if self.residency.available(target, group) < len(pages):
                self.transfers.make_way(work.at, group, target, len(pages), work.frontier)
            fits = min(len(pages), max(0, self.residency.available(target, group)))
            try:
                slots = self.residency.reserve(target, group, fits)
            except (CapacityError, TierError):
                fits = 0
            if fits == 0:
                if not self.busy(work):
                    self.shorten(work, int(pages[0]), "no room")
                return
            pages = pages[:fits]
        move = Move(work.at, group, tier, target, pages)
        if self.transfers.load(move, slots, work.number, Urgency.DEMAND) is not None:
            if direct:
                work.coming[group][pages] = True
            return
        if not direct:
            self.residency.tiers[target].abort(group, slots)
        if not self.busy(work):
            self.shorten(work, int(pages[0]), "load failed")

    def _share(self, work: Work) -> None:
        """Attaches what arrived in every group behind the frontier, in order. What another request
        brought meanwhile counts instead, and the slot kept for it goes back.
        """
        lo, hi = work.frontier, work.hit_pages
        if lo >= hi:
            return
        tree = self.residency.tree
        there = [
            tree.slots(work.at, tree.column(group, 0), lo, hi - lo) for group in range(self._groups)
        ]
        reach = min(
            _reach(((have != NO_SLOT) | ready[lo:hi]) & ~coming[lo:hi])
            for have, ready, coming in zip(there, work.ready, work.coming, strict=True)
        )
        if not reach:
            return
        for group, slots in enumerate(there):
            have, table = slots[:reach], work.table[group][lo : lo + reach]
            twice = (have != NO_SLOT) & (have != table)
            if twice.any():
                self.residency.tiers[0].abort(group, table[twice])
                table[twice] = have[twice]
            first = _reach(have != NO_SLOT)
            if first < reach:
                self.residency.attach(work.at, group, 0, lo + first, table[first:])
        work.frontier = lo + reach

    # ------------------------------------------------------------ the end of a load
    def ended(self, work: Work, job: Job, arrived: Mask) -> None:
        """One load of this request ended."""
        pages, group = job.move.pages, job.move.group
        if job.move.target == self.top:
            work.coming[group][pages] = False
            work.ready[group][pages[arrived]] = True
        if arrived.all() or work.state is not RequestState.LOADING:
            return
        if self.placed:
            self._share(work)  # what another request brought meanwhile is not missed
        lost = np.flatnonzero(~arrived & (pages >= work.frontier))
        if len(lost):
            first = int(lost[0])
            corrupt = job.done is not None and bool(job.done.corrupt[first])
            self.shorten(work, int(pages[first]), "corrupt" if corrupt else "load failed")

    def shorten(self, work: Work, page: int, reason: str) -> None:
        """Something does not come: the hit ends here, for all groups, decided once."""
        page = max(page, work.frontier)
        if page >= work.hit_pages:
            return
        lost = (work.hit_pages - page) * self.page_tokens
        self.residency.metrics.add(("match", "miss", reason), lost)
        self.residency.metrics.add(("admit", "hit shortened"), 1)
        work.hit_pages = page

    def cancel(self, work: Work) -> None:
        """Skips what has not begun; each job is still acknowledged."""
        for job in list(self.transfers.jobs.values()):
            if job.owner == work.number and not job.storing:
                self.residency.tiers[job.move.source].cancel(job.number)


def _reach(mask: Mask) -> int:
    """The length of the run of True at the start."""
    gaps = np.flatnonzero(~mask)
    return int(gaps[0]) if len(gaps) else len(mask)
