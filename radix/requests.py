"""The requests of one cache: admission as a transaction, pages shared as they are computed, and an
end in three events (I9, I10, I19, I30).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from radix._native import Match
from radix.admission import blocks_needed, check_fits, reserve_all
from radix.errors import CapacityError, InvariantError, RequestError
from radix.events import Event, RequestEvent, RequestState
from radix.keys import Tokens
from radix.lifecycle import Fence, Fences, Work
from radix.loading import Loading
from radix.plan import Cursor
from radix.residency import Residency
from radix.tier import Slots
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT

_NO_ORIGIN = np.empty(0, np.int8)
LIVE = (RequestState.LOADING, RequestState.RUNNING)


class Requests:
    """All requests of one cache.

    ``admit``, ``append``, ``lend``, ``computed``, ``finish``; ``ended`` for each job that ends;
    ``run`` once a poll. ``placed``: the first tier's slots are columns of the tree (not so when
    borrowed). ``fenced``: slots of the first tier in quarantine, by group.
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
        self.loading = Loading(residency, transfers, page_tokens)
        self.page_tokens = page_tokens
        self.works: dict[int, Work] = {}
        self.placed = self.loading.placed
        self._groups = len(residency.groups)
        self.fenced: list[set[int]] = [set() for _ in range(self._groups)]
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
        cacheable: int | None,
    ) -> Work:
        """Pins the hit and reserves every page of the request, or raises and changes nothing."""
        residency = self.residency
        pages = blocks_needed(len(tokens) + new_tokens, self.page_tokens)
        if self.placed:
            check_fits(residency, pages)
            device_pages = match.device_pages
        else:
            pages = min(len(row) for row in lent or [])
        hit = max(match.hit_pages, device_pages)
        lease, at, table = self._pinned(root, match, pages, device_pages, lent or [])
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
            inserted=at.pages,
            admitted_pages=hit,
            origin=_NO_ORIGIN,
            ready=[np.zeros(hit, np.bool_) for _ in range(self._groups)],
            coming=[np.zeros(hit, np.bool_) for _ in range(self._groups)],
            cacheable=cacheable,
        )
        self._next += 1
        self.works[work.number] = work
        try:
            self._tell(work, RequestState.LOADING)
            if at.pages < match.hit_pages:
                self.loading.shorten(work, at.pages, "no room")
            work.origin = self.loading.origin_of(work)
            self._advance(work)
        except BaseException:
            # nobody knows of it: the next poll ends it, once what it began has ended
            work.state, work.hit_pages, work.ran = RequestState.GENERATION_DONE, 0, False
            self.loading.cancel(work)
            raise
        return work

    def _pinned(
        self, root: int, match: Match, pages: int, device_pages: int, lent: list[Slots]
    ) -> tuple[int, Cursor, list[Slots]]:
        """Pins the hit and takes the page table: of the whole hit, or else, so that a prefix never
        makes a request less admissible (R5), of what the device holds in every group.
        """
        tree = self.residency.tree
        for hit in (match.hit_pages, device_pages):
            lease, node, leased = tree.lease(Cursor(root, match.node, hit))
            at = Cursor(root, node, leased)
            try:
                return lease, at, self._table(at, pages, device_pages, lent)
            except CapacityError:
                tree.release(lease, stamp=False)
                if hit == device_pages:
                    raise
            except BaseException:
                tree.release(lease, stamp=False)
                raise
        raise InvariantError("I19", "the hit on the device is longer than the hit")

    def _table(self, at: Cursor, pages: int, device_pages: int, lent: list[Slots]) -> list[Slots]:
        """The page table: the tree's slots of the hit on the device, then private ones."""
        if not self.placed:
            return [slots.copy() for slots in lent]
        private = reserve_all(self.residency, pages - device_pages)
        if not device_pages:
            return private
        return [
            np.concatenate((self.residency.slots(at, group, 0, 0, device_pages), slots))
            for group, slots in enumerate(private)
        ]

    def _advance(self, work: Work) -> None:
        here = work.frontier >= work.hit_pages or self.loading.advance(work)
        if here and not self.loading.busy(work):
            self._run(work)

    def _run(self, work: Work) -> None:
        """The hit is on the device: the request runs."""
        metrics, page = self.residency.metrics, self.page_tokens
        served = work.origin[: work.hit_pages]
        for tier in range(self.loading.top, len(self.residency.tiers) if len(served) else -1):
            if pages := int(np.count_nonzero(served == tier)):
                name = self.transfers.tier_name(tier)
                metrics.add(("match", "hit_tokens", name), pages * page)
        work.ran = True
        work.computed = work.told = work.hit_pages * page
        if work.hit_pages < work.inserted:
            tree = self.residency.tree
            tree.move(work.lease, work.at._replace(pages=work.hit_pages))
            work.at = tree.lease_end(work.at.root, work.lease)
            work.inserted = work.hit_pages
        self._tell(work, RequestState.RUNNING)
        if self.placed and work.inserted:
            # what was refused or lost below since it was computed is offered once more
            for source in range(self.transfers.deepest):
                self._offer(work, 0, work.inserted, source, unless_below=True)

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
        if self.placed:
            raise RequestError(f"lend: the device slots of request {work.number} are the cache's")
        work.table = [np.concatenate((work.table[group], more)) for group, more in enumerate(slots)]
        work.pages = min(len(row) for row in work.table)

    def computed(self, work: Work, tokens: int, fence: Fence, reuse: Fence) -> None:
        """The state of the first ``tokens`` tokens is written once ``fence`` passes."""
        if work.state is not RequestState.RUNNING:
            raise RequestError(
                f"computed: request {work.number} is {work.state.value}, not running"
            )
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
            if taken.all():
                tier.commit(group, slots[group])
            else:
                tier.commit(group, slots[group][taken])
                work.table[group][first:full] = canonical[group]
                self._quarantine(group, slots[group][~taken], reuse)
            self.residency.stored(work.at, group, 0, first, taken)
        self._offer(work, first, full - first, self.loading.top)

    def _offer(
        self, work: Work, first: int, count: int, source: int, *, unless_below: bool = False
    ) -> None:
        """Write-through: what is new goes one tier down."""
        borrowed = None
        if not self.placed:
            borrowed = [row[first : first + count] for row in work.table]
        work.refused += self.transfers.store(
            work.at, first, count, source, work.number, borrowed, unless_below=unless_below
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
        self.fenced[group].update(slots.tolist())
        self.fences.after(fence, lambda: self._lift(group, slots))

    def _lift(self, group: int, slots: Slots) -> None:
        self.residency.tiers[0].lift(group, slots)
        self.fenced[group].difference_update(slots.tolist())

    # ------------------------------------------------------------ the end
    def finish(self, work: Work, cacheable: int | None, fence: Fence, what: str = "finish") -> None:
        """No more tokens: GENERATION_DONE now, the rest as stores and transfers allow."""
        self._live(work, what)
        limits = [value for value in (work.cacheable, cacheable) if value is not None]
        work.cacheable = min(limits) if limits else None
        work.end_fence = fence
        if work.state is RequestState.LOADING:
            self.loading.cancel(work)
        self._tell(work, RequestState.GENERATION_DONE)
        self._close(work)

    def _close(self, work: Work) -> None:
        if work.state is RequestState.GENERATION_DONE:
            if work.refused:
                self._retry(work)
            loads = not work.ran and self.loading.busy(work)
            if work.waiting or work.refused or loads:
                return
            self._finalize(work)
        if work.state is RequestState.FINALIZED and not self.loading.busy(work):
            self._tell(work, RequestState.RELEASED)
            del self.works[work.number]
            self._forget(work)

    def _finalize(self, work: Work) -> None:
        """No store is submitted any more: private slots go, and the pin, each behind the fence."""
        if self.placed:
            for group in range(self._groups):
                self._quarantine(group, work.table[group][work.shared :], work.end_fence)
        if not work.ran:
            lost = work.hit_pages * self.page_tokens
            self.residency.metrics.add(("match", "miss", "aborted"), lost)
        self._tell(work, RequestState.FINALIZED)
        # what computes up to the fence reads the shared pages too: they stay as long
        self.fences.after(work.end_fence, lambda: self._let_go(work))

    def _let_go(self, work: Work) -> None:
        tree = self.residency.tree
        if work.cacheable is not None and work.ran:
            # what was there before this request is not its own to give up
            kept = max(work.cacheable // self.page_tokens, work.hit_pages)
            if kept < work.inserted:
                work.kept = kept
                tree.move(work.lease, work.at._replace(pages=kept))
                self._forget(work)
        tree.release(work.lease)

    def _forget(self, work: Work) -> None:
        """Gives up what may not be kept: when the pin goes, and again once no transfer holds it."""
        if work.kept is None:
            return
        at = self.residency.tree.resolve(work.at)
        if at.pages > work.kept:
            self.residency.forget(at, work.kept)

    def _retry(self, work: Work) -> None:
        again, work.refused = work.refused, []
        for move, upper in again:
            if not self.transfers.store_again(move, upper, work.number):
                work.refused.append((move, upper))

    # ------------------------------------------------------------ events
    def ended(self, job: Job, arrived: npt.NDArray[np.bool_]) -> None:
        """A job ended, while its lease stands."""
        self._moved = True
        work = self.works.get(job.owner)
        if work is not None and not job.storing:
            self.loading.ended(work, job, arrived)

    def run(self) -> None:
        """Once a poll: fences, loads that can go on, stores to offer again, ends."""
        self.fences.run()
        moved, self._moved = self._moved, False
        for work in list(self.works.values()):
            if work.state is RequestState.LOADING:
                if moved:
                    self._advance(work)
            elif work.state is RequestState.RUNNING:
                if work.refused:
                    self._retry(work)
            else:
                self._close(work)

    def check(self) -> None:
        """Page tables name the tree's slots where they are shared (I10); counts are in order (I9).

        Cost: the live requests' pages.
        """
        for work in self.works.values():
            who = f"request {work.number}"
            if not work.computed <= work.told <= work.count or work.hit_pages > work.pages:
                raise InvariantError("I9", f"{who}: {work.computed} computed of {work.count}")
            if not self.placed or work.state not in LIVE:
                continue
            for group in range(self._groups):
                have = self.residency.slots(work.at, group, 0, 0, work.shared)
                if not np.array_equal(have, work.table[group][: work.shared]):
                    raise InvariantError("I10", f"{who}: its page table is not the tree's")

    def _live(self, work: Work, what: str) -> None:
        if work.state not in LIVE:
            raise RequestError(f"{what}: request {work.number} is {work.state.value}")

    def _tell(self, work: Work, state: RequestState) -> None:
        work.state = state
        self.residency.metrics.add(("request", state.value))
        self._events.append(RequestEvent(work.number, state, self._clock()))
