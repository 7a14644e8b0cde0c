"""The requests of one cache: admission as a transaction, loads that become a shorter hit when they
fail, pages shared as they are computed, and an end in three events (I9, I10, I19, I30).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix._native import Match, lib
from radix.admission import blocks_needed, check_fits, reserve_all
from radix.errors import CapacityError, InvariantError, RequestError
from radix.events import Event, RequestEvent, RequestState
from radix.keys import Tokens
from radix.lifecycle import Fence, Fences, Work
from radix.plan import Cursor, Move
from radix.residency import Residency
from radix.tier import Slots, TierMode, Urgency
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT

LIVE = (RequestState.LOADING, RequestState.RUNNING)


class Requests:
    """All requests of one cache.

    ``admit``, ``append``, ``computed``, ``finish``; ``ended`` for each job that ends; ``run`` once
    a poll. ``placed``: the first tier's slots are columns of the tree (not so when borrowed).
    """

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        fences: Fences,
        page_tokens: int,
        clock: Callable[[], int],
        events: list[Event],
    ) -> None:
        self.residency = residency
        self.transfers = transfers
        self.fences = fences
        self.page_tokens = page_tokens
        self.works: dict[int, Work] = {}
        self.placed = transfers.borrowed is None
        self._top = 0 if self.placed else -1  # the number of the device in moves
        self._groups = len(residency.groups)
        placed_groups = self._groups if self.placed else 0
        self.columns = np.array(
            [residency.tree.column(group, 0) for group in range(placed_groups)], np.uint32
        )
        self._clock = clock
        self._events = events
        self._next = 1
        self._moved = False

    # ------------------------------------------------------------ admission
    def admit(
        self,
        root: int,
        tokens: Tokens,
        new_tokens: int,
        match: Match,
        lent: list[Slots] | None,
        device_pages: int,
    ) -> Work:
        """Pins the hit and reserves every page of the request, or raises and changes nothing."""
        residency = self.residency
        pages = blocks_needed(len(tokens) + new_tokens, self.page_tokens)
        if self.placed:
            check_fits(residency, pages)
            device_pages = match.device_pages
        hit = max(match.hit_pages, device_pages)
        lease, node, leased = residency.tree.lease(Cursor(root, match.node, match.hit_pages))
        at = Cursor(root, node, leased)
        if self.placed:
            try:
                private = reserve_all(residency, pages - device_pages)
            except CapacityError:
                residency.tree.release(lease, stamp=False)
                raise
            table = [
                np.concatenate((residency.slots(at, group, 0, 0, device_pages), slots))
                for group, slots in enumerate(private)
            ]
        else:
            table = [np.ascontiguousarray(slots, np.int32).copy() for slots in lent or []]
        work = Work(
            number=self._next,
            tokens=tokens.copy(),
            count=len(tokens),
            prompt_tokens=len(tokens),
            lease=lease,
            at=at,
            table=table,
            pages=pages,
            hit_pages=hit,
            frontier=device_pages,
            inserted=leased,
            ready=[np.zeros(hit, np.bool_) for _ in range(self._groups)],
            coming=[np.zeros(hit, np.bool_) for _ in range(self._groups)],
            sources={},
        )
        self._next += 1
        self.works[work.number] = work
        self._tell(work, RequestState.LOADING)
        self._sources(work)
        work.admitted_pages = hit
        self.advance(work)
        return work

    def _sources(self, work: Work) -> None:
        """Counts the hit by the tier that serves it: of group 0, which stands for the prompt."""
        if work.frontier:
            work.sources[self.transfers.tier_name(self._top)] = work.frontier
        left = work.hit_pages - work.frontier
        for tier in range(1 if self.placed else 0, len(self.residency.tiers)):
            if left <= 0:
                break
            have = self._source_of(work, 0, work.frontier, work.hit_pages) == tier
            if have.any():
                work.sources[self.residency.tiers[tier].name] = int(have.sum())

    def _source_of(self, work: Work, group: int, lo: int, hi: int) -> npt.NDArray[np.int64]:
        """For pages [lo, hi) of the hit the uppermost readable tier that holds them, or -1."""
        source = np.full(hi - lo, -1, np.int64)
        for tier in reversed(range(len(self.residency.tiers))):
            if self.residency.tiers[tier].mode is not TierMode.OFF:
                have = self.residency.slots(work.at, group, tier, lo, hi - lo) != NO_SLOT
                source[have] = tier
        return source

    # ------------------------------------------------------------ loading
    def advance(self, work: Work) -> None:
        """Takes the hit further towards the device: what arrived is shared, what can move moves,
        what is nowhere shortens the hit. RUNNING once nothing is missing.
        """
        if work.state is not RequestState.LOADING:
            return
        for group in range(self._groups):
            self._advance_group(work, group)
        if self.placed:
            self._share(work)
        else:
            arrived = [
                self._reach(work.ready[group], work.frontier) for group in range(self._groups)
            ]
            work.frontier = min([*arrived, work.hit_pages])
        if work.frontier >= work.hit_pages and not self._busy(work):
            self._run(work)

    @staticmethod
    def _reach(ready: npt.NDArray[np.bool_], first: int) -> int:
        """The end of the run of True that begins at ``first``."""
        gaps = np.flatnonzero(~ready[first:])
        return first + int(gaps[0]) if len(gaps) else len(ready)

    def _advance_group(self, work: Work, group: int) -> None:
        lo, hi = work.frontier, work.hit_pages
        if lo >= hi:
            return
        wanted = ~(work.ready[group][lo:hi] | work.coming[group][lo:hi])
        source = self._source_of(work, group, lo, hi)
        if self.placed:
            wanted &= source != 0
        for tier in range(self._top + 1, len(self.residency.tiers)):
            pages = np.flatnonzero(wanted & (source == tier)).astype(np.int64) + lo
            if len(pages):
                pages = pages[~self.transfers.landing(work.at, tier - 1, group, pages)]
            if len(pages):
                self._load(work, group, tier, pages)
        lost = np.flatnonzero(wanted & (source < 0))
        if len(lost):
            self.shorten(work, lo + int(lost[0]), "load failed")

    def _load(self, work: Work, group: int, tier: int, pages: npt.NDArray[np.int64]) -> None:
        if tier - 1 == self._top:
            slots = work.table[group][pages]
        else:
            fits = min(len(pages), self.residency.available(tier - 1, group))
            try:
                slots = self.residency.reserve(tier - 1, group, fits)
            except CapacityError:
                fits = 0
            if fits == 0:
                if not self._busy(work):
                    self.shorten(work, int(pages[0]), "tier out")
                return
            pages, slots = pages[:fits], slots[:fits]
        move = Move(work.at, group, tier, tier - 1, pages)
        job = self.transfers.load(move, slots, work.number, Urgency.DEMAND)
        if job is not None:
            if tier - 1 == self._top:
                work.coming[group][pages] = True
            return
        if tier - 1 != self._top:
            self.residency.tiers[tier - 1].abort(group, slots)
        if not self._busy(work):
            self.shorten(work, int(pages[0]), "load failed")

    def _share(self, work: Work) -> None:
        """Attaches what arrived behind the frontier, in order: the tree's device has no gap."""
        tree = self.residency.tree
        reach = work.hit_pages
        for group in range(self._groups):
            lo, hi = work.frontier, work.hit_pages
            column = tree.column(group, 0)
            have = tree.slots(work.at, column, lo, hi - lo)
            mine = work.ready[group][lo:hi]
            # another request brought these pages meanwhile: its blocks count, ours go back
            twice = (have != NO_SLOT) & (have != work.table[group][lo:hi])
            twice &= ~work.coming[group][lo:hi]
            if twice.any():
                self.residency.tiers[0].abort(group, work.table[group][lo:hi][twice])
                work.table[group][lo:hi][twice] = have[twice]
            end = self._reach((have != NO_SLOT) | mine, 0)
            first = self._reach(have != NO_SLOT, 0)
            if end > first:
                self.residency.attach(
                    work.at, group, 0, lo + first, work.table[group][lo + first : lo + end]
                )
            reach = min(reach, lo + end)
        work.frontier = max(work.frontier, reach)

    def shorten(self, work: Work, page: int, reason: str) -> None:
        """A load failed: the hit ends here, for all groups, decided once."""
        if page >= work.hit_pages:
            return
        lost = (work.hit_pages - page) * self.page_tokens
        self.residency.metrics.add(("match", "miss", reason), lost)
        self.residency.metrics.add(("admit", "hit shortened"), 1)
        work.hit_pages = page

    def _run(self, work: Work) -> None:
        metrics = self.residency.metrics
        left = work.hit_pages
        for name, pages in work.sources.items():
            served = min(pages, left)
            left -= served
            metrics.add(("match", "hit_tokens", name), served * self.page_tokens)
        work.ran = True
        work.computed = work.told = work.hit_pages * self.page_tokens
        if self.placed and work.hit_pages < work.inserted:
            tree = self.residency.tree
            tree.move(work.lease, work.at._replace(pages=work.hit_pages))
            work.at = tree.lease_end(work.at.root, work.lease)
            work.inserted = work.hit_pages
        self._tell(work, RequestState.RUNNING)
        if self.placed:
            self._offer(work, 0, work.inserted)

    # ------------------------------------------------------------ running
    def append(self, work: Work, tokens: Tokens) -> None:
        """Adds sampled tokens; reserves pages as needed (all groups or none)."""
        self._live(work, "append")
        need = blocks_needed(work.count + len(tokens), self.page_tokens) - work.pages
        if need > 0:
            if not self.placed:
                raise RequestError(
                    f"request {work.number}: lend {need} more slots a group before appending"
                )
            check_fits(self.residency, work.pages + need)
            more = reserve_all(self.residency, need)
            work.table = [
                np.concatenate((work.table[group], slots)) for group, slots in enumerate(more)
            ]
            work.pages += need
        work.append(tokens)

    def lend(self, work: Work, slots: list[Slots]) -> None:
        """More of the engine's slots, a run behind the others (borrowed only)."""
        self._live(work, "lend")
        work.table = [
            np.concatenate((work.table[group], np.asarray(more, np.int32)))
            for group, more in enumerate(slots)
        ]
        work.pages = min(len(row) for row in work.table)

    def computed(self, work: Work, tokens: int, fence: Fence, reuse: Fence) -> None:
        """The state of the first ``tokens`` tokens is written once ``fence`` passes."""
        if work.state is not RequestState.RUNNING:
            raise RequestError(f"request {work.number} is {work.state.value}, not running")
        if not work.told <= tokens <= work.count:
            raise ValueError(
                f"computed is {tokens}, expected {work.told} to {work.count} tokens "
                f"of request {work.number}"
            )
        work.told = tokens
        work.waiting += 1
        self.fences.after(fence, lambda: self._computed(work, tokens, reuse))

    def _computed(self, work: Work, tokens: int, reuse: Fence) -> None:
        work.waiting -= 1
        work.computed = max(work.computed, tokens)
        upto = work.computed if work.cacheable is None else min(work.computed, work.cacheable)
        full = upto // self.page_tokens
        if full > work.inserted:
            self._insert(work, full, reuse)

    def _insert(self, work: Work, full: int, reuse: Fence) -> None:
        """Shares pages [inserted, full): pin the canonical blocks, remap, then free our own."""
        first = work.inserted
        tree = self.residency.tree
        span = work.tokens[first * self.page_tokens : full * self.page_tokens]
        slots = np.empty((len(self.columns), full - first), np.int32)
        for group in range(len(self.columns)):
            slots[group] = work.table[group][first:full]
        canonical = np.empty_like(slots)
        result = tree.insert(work.at, span, self.columns, slots, canonical, work.lease)
        work.at = Cursor(work.at.root, result.node, result.pages)
        work.inserted = full
        for group in range(len(self.columns)):
            taken = canonical[group] == slots[group]
            if (canonical[group] == NO_SLOT).any():
                raise InvariantError("I21", "a computed page found no place on the device")
            tier = self.residency.tiers[0]
            tier.commit(group, slots[group][taken])
            if not taken.all():
                work.table[group][first:full] = canonical[group]
                self._quarantine(group, slots[group][~taken], reuse)
            self.residency.stored(work.at, group, 0, first, taken)
        self._offer(work, first, full - first)

    def _offer(self, work: Work, first: int, count: int) -> None:
        """Write-through: what is new goes one tier down."""
        borrowed = None
        if not self.placed:
            borrowed = [row[first : first + count] for row in work.table]
        work.refused += self.transfers.store(
            work.at, first, count, self._top, work.number, borrowed
        )

    def _quarantine(self, group: int, slots: Slots, fence: Fence) -> None:
        """Slots are free once the fence passes; until then nobody gets them."""
        tier = self.residency.tiers[0]
        if not len(slots):
            return
        if not self.fences.holds(fence):
            tier.abort(group, slots)
            return
        tier.fence(group, slots)
        self.fences.after(fence, lambda: tier.lift(group, slots))

    # ------------------------------------------------------------ the end
    def finish(self, work: Work, cacheable: int | None, fence: Fence, *, aborted: bool) -> None:
        """No more tokens: GENERATION_DONE now, the rest as stores and transfers allow."""
        self._live(work, "finish")
        if cacheable is not None and cacheable < 0:
            raise ValueError(f"cacheable_upto must not be negative, not {cacheable}")
        limits = [value for value in (work.cacheable, cacheable) if value is not None]
        work.cacheable = min(limits) if limits else None
        work.end_fence = fence
        work.aborted = aborted
        if work.state is RequestState.LOADING:
            for job in list(self.transfers.jobs.values()):
                if job.owner == work.number and not job.storing:
                    self.residency.tiers[job.move.source].cancel(job.number)
        self._tell(work, RequestState.GENERATION_DONE)
        self._close(work)

    def _close(self, work: Work) -> None:
        if work.state is RequestState.GENERATION_DONE:
            self._retry(work)
            loads = any(
                job.owner == work.number and not job.storing for job in self.transfers.jobs.values()
            )
            if work.waiting or work.refused or loads:
                return
            self._finalize(work)
        if work.state is RequestState.FINALIZED and not self._busy(work):
            self._tell(work, RequestState.RELEASED)
            del self.works[work.number]

    def _finalize(self, work: Work) -> None:
        tree = self.residency.tree
        if self.placed:
            shared = work.inserted if work.ran else work.frontier
            for group in range(self._groups):
                self._quarantine(group, work.table[group][shared:], work.end_fence)
        old = work.at
        if work.cacheable is not None and work.cacheable // self.page_tokens < work.inserted:
            keep = work.cacheable // self.page_tokens
            tree.move(work.lease, work.at._replace(pages=keep))
            self.residency.forget(old, keep)
        tree.release(work.lease)
        if not work.ran:
            lost = work.hit_pages * self.page_tokens
            self.residency.metrics.add(("match", "miss", "aborted"), lost)
        self._tell(work, RequestState.FINALIZED)

    def _retry(self, work: Work) -> None:
        again, work.refused = work.refused, []
        for move, upper in again:
            if not self.transfers.submit_store(move, upper, work.number):
                work.refused.append((move, upper))

    # ------------------------------------------------------------ events
    def ended(self, job: Job, good: npt.NDArray[np.bool_]) -> None:
        """A job ended, while its lease stands."""
        self._moved = True
        work = self.works.get(job.owner)
        if work is None:
            return
        if job.storing:
            return
        pages = job.move.pages
        if job.move.target == self._top:
            work.coming[job.move.group][pages] = False
            work.ready[job.move.group][pages[good]] = True
        if not good.all() and work.state is RequestState.LOADING:
            self.shorten(work, int(pages[~good][0]), "load failed")

    def run(self) -> None:
        """Once a poll: fences, loads that can go on, stores to offer again, ends."""
        self.fences.run()
        moved, self._moved = self._moved, False
        for work in list(self.works.values()):
            if work.state is RequestState.LOADING:
                if moved:
                    self.advance(work)
            elif work.state is RequestState.RUNNING:
                if work.refused:
                    self._retry(work)
            else:
                self._close(work)

    def _busy(self, work: Work) -> bool:
        return work.number in self.transfers.outstanding

    def _live(self, work: Work, what: str) -> None:
        if work.state not in LIVE:
            raise RequestError(f"{what}: request {work.number} is {work.state.value}")

    def _tell(self, work: Work, state: RequestState) -> None:
        work.state = state
        self.residency.metrics.add(("request", state.value))
        self._events.append(RequestEvent(work.number, state, self._clock()))


def miss_reason(residency: Residency, match: Match, at: Cursor, tokens: Tokens, page: int) -> str:
    """Why the match is not longer: the reason of its first missing page."""
    if match.stop == lib.RDX_STOP_LIMIT:
        return "below one page"
    if match.stop == lib.RDX_STOP_HOLE:
        off = any(tier.mode is TierMode.OFF for tier in residency.tiers)
        return "tier out" if off else "evicted"
    first = match.structural_pages
    span = tokens[first * page : (first + 1) * page]
    if len(span) < page:
        return "below one page"
    if not residency.tree.key_bytes:
        return "cold"
    parent = residency.parent_key(at, first)
    return "evicted" if residency.was_evicted(parent, span.tobytes()) else "cold"
