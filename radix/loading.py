"""The hit of a request on its way to the first tier: what each group needs of it, loads that move
what is missing, blocks shared as they arrive, and a hit that becomes shorter, once and for all
groups, where something does not come (C78-C80). Keeps I21 (no gap on the first tier) and I22.

    pages            0 .............................. hit
    every block      | the tree's .. | own: coming, here |
    the last tokens                     | the tree's, own |
    one snapshot                                        s   loaded or copied into the running slot
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix.admission import blocks_needed, reserve_all
from radix.errors import CapacityError, TierError
from radix.events import RequestState
from radix.lifecycle import Held, Mask, Work, no_slots
from radix.misses import lookahead_pages, stepped
from radix.plan import Cursor, Move
from radix.residency import Residency
from radix.tier import TierMode, Urgency
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT

Pages = npt.NDArray[np.int64]


class Loading:
    """Loads for requests that are LOADING. Begin: ``lay``. Go on: ``advance``. End: ``ended``,
    ``shorten``. Ask: ``source_of``, ``origin_of``.
    """

    def __init__(
        self, residency: Residency, transfers: Transfers, page_tokens: int, align_tokens: int = 1
    ) -> None:
        self.residency = residency
        self.transfers = transfers
        self.page_tokens = page_tokens
        self.align_tokens = align_tokens
        # how far the last length that can be hit lies behind what is computed, at most
        self.behind_tokens = align_tokens + lookahead_pages(residency) * page_tokens
        self.placed = transfers.borrowed is None
        self.top = 0 if self.placed else -1  # the number of the device in moves

    # ------------------------------------------------------------ where blocks are
    def end(self, work: Work) -> Cursor:
        """The end of the longest path that the request pins: behind its hit, where a group that
        looks ahead has what the hit needs.
        """
        if not work.ahead:
            return work.at
        ahead = self.residency.tree.lease_end(work.at.root, work.ahead)
        return ahead if ahead.pages > work.at.pages else work.at

    def source_of(self, work: Work, group: int, pages: Pages) -> npt.NDArray[np.int8]:
        """For ascending pages of the hit the uppermost readable tier that holds them, or -1."""
        source = np.full(len(pages), -1, np.int8)
        if not len(pages):
            return source
        first = int(pages[0])
        count = int(pages[-1]) - first + 1
        for tier in reversed(range(len(self.residency.tiers))):
            if self.residency.tiers[tier].mode is not TierMode.OFF:
                have = self.residency.blocks(self.end(work), group, tier, first, count)
                source[have[pages - first] != NO_SLOT] = tier
        return source

    def origin_of(self, work: Work) -> npt.NDArray[np.int8]:
        """By page of the hit the tier that serves it: of several groups, the lowest."""
        origin = np.empty(work.hit_pages, np.int8)
        origin.fill(self.top)
        for group, held in enumerate(work.held):
            away = (held.needed & ~held.here).nonzero()[0]
            if len(away):
                size = held.rule.block_pages
                source = self.source_of(work, group, away)
                for back in range(size if not held.rule.per_position else 1):
                    page = away[away >= back] - back
                    origin[page] = np.maximum(origin[page], source[away >= back])
        return origin

    # ------------------------------------------------------------ the page table
    def lay(self, work: Work) -> None:
        """Says what the hit needs of each group, and gives the request what it has to have in the
        first tier: the tree's blocks where they stand, own slots for what comes or is computed.

        All or nothing: ``CapacityError`` and nothing changed. Cost: the pages.
        """
        wanted = [held.wanted(work.hit_pages) for held in work.held]
        theirs = [self._standing(work, group, pages) for group, pages in enumerate(wanted)]
        if self.placed:
            own = [
                self._own_pages(work, held, pages, there)
                for held, pages, there in zip(work.held, wanted, theirs, strict=True)
            ]
            counts = [
                max(0, self._charge(work, held, pages) - len(held.spare))
                for held, pages in zip(work.held, own, strict=True)
            ]
            more = reserve_all(self.residency, counts, work.at.root)
            for held, pages, slots in zip(work.held, own, more, strict=True):
                self._assign(work, held, pages, slots.tolist())
        for group, (held, there) in enumerate(zip(work.held, theirs, strict=True)):
            self._mark(work, group, held, wanted[group], there)

    def _standing(self, work: Work, group: int, wanted: Pages) -> npt.NDArray[np.int32]:
        """By page of the hit the slot in the first tier of what the hit needs, -1 elsewhere."""
        held, hit = work.held[group], work.hit_pages
        if not self.placed or not len(wanted):
            return no_slots(hit)
        first = int(wanted[0])
        slots = self.residency.blocks(self.end(work), group, 0, first, hit - first)
        if first:
            slots = np.concatenate((no_slots(first), slots))
        if held.rule.everywhere:
            reach = _reach(slots[wanted] != NO_SLOT)
            slots[reach * held.rule.block_pages :] = NO_SLOT
        return slots

    def _own_pages(
        self, work: Work, held: Held, wanted: Pages, theirs: npt.NDArray[np.int32]
    ) -> Pages:
        """The pages that get an own slot now and have none."""
        if held.rule.per_position:
            return np.empty(0, np.int64)
        pages: Pages = wanted[theirs[wanted] == NO_SLOT]
        if not held.reuses:
            behind = held.ends(work.hit_pages, len(held.slots))
            pages = np.concatenate((pages, behind)) if len(pages) else behind
        bare: Pages = pages[~held.own[pages]]
        return bare

    def _charge(self, work: Work, held: Held, pages: Pages) -> int:
        """Blocks that the group has to have beside the own ones that pages have: R1, what the
        pinned hit brings along is not charged.
        """
        if held.rule.per_position:
            return 0 if held.running != NO_SLOT else blocks_needed(held.rule, 0)
        if not held.reuses:
            return len(pages)
        tokens = work.pages * self.page_tokens
        bound = blocks_needed(held.rule, tokens, work.chunk, self.behind_tokens)
        left = len(held.ends(work.hit_pages, len(held.slots)))
        return max(len(pages), min(bound, left + len(pages)) - int(held.own.sum()))

    def _assign(self, work: Work, held: Held, pages: Pages, slots: list[int]) -> None:
        held.spare += slots
        if held.rule.per_position and held.running == NO_SLOT:
            held.running = held.spare.pop()
        if len(pages):
            held.slots[pages] = held.spare[: len(pages)]
            held.own[pages] = True
            del held.spare[: len(pages)]

    def _mark(
        self,
        work: Work,
        group: int,
        held: Held,
        wanted: Pages,
        theirs: npt.NDArray[np.int32],
    ) -> None:
        if not work.demand.wants(group):
            wanted = wanted[:0]
        held.needed[:] = False
        held.needed[wanted] = True
        if not self.placed:
            held.here[: work.device_pages] = True
            return
        stand = wanted[theirs[wanted] != NO_SLOT]
        held.here[stand] = True
        if held.rule.per_position:
            if len(stand):
                # updated in place from now on: a private copy (I28)
                source, target = theirs[stand], np.array([held.running], np.int32)
                self.residency.tiers[0].clone(group, source, target)
            return
        twice = stand[held.own[stand]]
        if len(twice):
            self.residency.tiers[0].abort(group, held.slots[twice])
            held.own[twice] = False
        held.slots[stand] = theirs[stand]
        if held.rule.everywhere:
            held.shared = len(stand) * held.rule.block_pages

    # ------------------------------------------------------------ going on
    def advance(self, work: Work) -> bool:
        """Takes the hit further towards the device: what arrived is shared, what can move moves,
        what is nowhere shortens the hit. Whether nothing is missing or under way any more.
        """
        if work.short and not self._relay(work):
            return False
        if self.placed:
            for group in range(len(work.held)):
                self._share(work, group)
        hit, held = -1, False  # by somebody else's load, whose end wakes this request
        while hit != work.hit_pages:  # a shorter one may be found where the longer was not
            hit = work.hit_pages
            for group in range(len(work.held)):
                held |= self._advance_group(work, group)
        if self.busy(work) or work.short:
            work.rests = not (work.short or held or work.lacking)
            return False
        if work.missing and not held:
            self.shorten(work, self._first_missing(work), "load failed")  # nothing will move
            return not work.missing and not work.short
        return not work.missing

    def _first_missing(self, work: Work) -> int:
        gaps = [(held.needed & ~held.here).nonzero()[0] for held in work.held]
        return min(int(gap[0]) for gap in gaps if len(gap))

    def busy(self, work: Work) -> bool:
        """Whether a transfer of this request is under way."""
        return work.hop in self.transfers.outstanding

    def _advance_group(self, work: Work, group: int) -> bool:
        """Starts what can start; whether somebody else's load brings some of the pages."""
        held = work.held[group]
        if work.short:
            return False
        wanted = (held.needed & ~held.here & ~held.coming).nonzero()[0]
        if not len(wanted):
            return False
        source = self.source_of(work, group, wanted)
        if self.placed and held.rule.per_position and source[0] == 0:
            # somebody brought it meanwhile
            slots = self.residency.blocks(work.at, group, 0, int(wanted[0]), 1)
            self.residency.tiers[0].clone(group, slots, np.array([held.running], np.int32))
            held.here[wanted] = True
            return False
        hit, waits = work.hit_pages, False
        ahead = held.rule.lookahead_pages
        for tier in range(self.top + 1, len(self.residency.tiers)):
            pages = wanted[source == tier]
            if len(pages):
                target = self.transfers.above(tier)
                landing = self.transfers.landing(self.end(work), target, group, pages + ahead)
                if target == self.top and held.rule.per_position:
                    landing[:] = False  # each request updates a copy of its own
                waits |= bool(landing.any())
                pages = pages[~landing]
            if len(pages):
                waits |= self._load(work, group, tier, pages)
            if work.hit_pages < hit:
                return waits  # what was wanted may lie behind the end of the path now
        lost = wanted[source < 0]
        if len(lost):
            self.shorten(work, int(lost[0]), "load failed")
        return waits

    def _load(self, work: Work, group: int, tier: int, pages: Pages) -> bool:
        """Starts one load, of as many pages as there is room for; a refusal shortens the hit,
        unless something of this request is under way, whose end brings it here again. Whether the
        end of what others move is waited for.
        """
        target, held = self.transfers.above(tier), work.held[group]
        if self.transfers.crowded(tier, self.transfers.limits.loads, storing=False):
            return True
        standing = pages + held.rule.lookahead_pages
        direct = target == self.top
        if direct:
            slots = held.slots[pages]
            if self.placed and held.rule.per_position:
                slots = np.array([held.running], np.int32)
        else:
            if self.residency.available(target, group, work.at.root) < len(pages):
                upto = int(pages[0]) if held.rule.everywhere else 0
                self.transfers.make_way(self.end(work), group, target, len(pages), upto)
            fits = self.residency.available(target, group, work.at.root)
            fits = min(len(pages), max(0, fits))
            try:
                slots = self.residency.reserve(target, group, fits, work.at.root)
            except (CapacityError, TierError):
                fits = 0
            if fits == 0:
                if self.residency.evictor is not None and self.transfers.draining(target):
                    return True  # what goes down makes room
                if not self.busy(work):
                    self.shorten(work, int(pages[0]), "no room")
                return False
            pages, standing = pages[:fits], standing[:fits]
        move = Move(self.end(work), group, tier, target, standing)
        demand = work.demand if direct else None
        if self.transfers.load(move, slots, work.hop, Urgency.DEMAND, demand) is not None:
            if direct:
                held.coming[pages] = True
            return False
        if not direct:
            self.residency.tiers[target].abort(group, slots)
        if not self.busy(work):
            self.shorten(work, int(pages[0]), "load failed")
        return False

    def _share(self, work: Work, group: int) -> None:
        """Attaches what arrived: where every block counts in order, elsewhere as it comes. What
        another request brought meanwhile counts instead, and the slot kept for it goes back.
        """
        held = work.held[group]
        if held.rule.per_position:
            return
        lo, hit = held.shared if held.rule.everywhere else 0, work.hit_pages
        pages = lo + (held.needed[lo:hit] & held.own[lo:hit] & ~held.coming[lo:hit]).nonzero()[0]
        if not len(pages):
            return
        first = int(pages[0])
        path = self.end(work)
        have = self.residency.blocks(path, group, 0, first, hit - first)
        stands = have[pages - first] != NO_SLOT
        good = stands | held.here[pages]
        if held.rule.everywhere:
            good &= pages == held.ends(lo, hit)[: len(pages)]
            good[_reach(good) :] = False
        twice, fresh = pages[good & stands], pages[good & ~stands]
        if len(twice):
            self.residency.tiers[0].abort(group, held.slots[twice])
            held.slots[twice] = have[twice - first]
        if len(fresh):
            start = int(fresh[0])
            row = np.full(int(fresh[-1]) - start + 1, NO_SLOT, np.int32)
            row[fresh - start] = held.slots[fresh]
            at = start + held.rule.lookahead_pages
            held.slots[fresh] = self.residency.attach(path, group, 0, at, row)[fresh - start]
        done = pages[good]
        held.own[done], held.here[done] = False, True
        if held.rule.everywhere:
            held.shared = lo + int(good.sum()) * held.rule.block_pages

    # ------------------------------------------------------------ the end of a load
    def ended(self, work: Work, job: Job, arrived: Mask) -> None:
        """One load of this request ended."""
        group = job.move.group
        held = work.held[group]
        pages = job.move.pages - held.rule.lookahead_pages
        if job.move.target == self.top:
            inside = pages < len(held.needed)  # not so of what a shorter hit does not need
            held.coming[pages[inside]] = False
            came = pages[inside & arrived]
            held.here[came] = held.loaded[came] = True
        if arrived.all() or work.state is not RequestState.LOADING:
            return
        if self.placed:
            self._share(work, group)  # what another request brought meanwhile is not missed
        lost = ~arrived & (pages < work.hit_pages)
        lost[lost] = held.needed[pages[lost]] & ~held.here[pages[lost]]
        if lost.any():
            first = int(np.flatnonzero(lost)[0])
            corrupt = job.done is not None and bool(job.done.corrupt[first])
            self.shorten(work, int(pages[first]), "corrupt" if corrupt else "load failed")

    def gave_up(self, work: Work, jobs: list[Job]) -> None:
        """Loads of this request are late: the slots that they write are their own from now on, and
        what they were to bring does not come.
        """
        lost: list[int] = []
        for job in jobs:  # all of them, before the hit is laid anew over what is left
            held = work.held[job.move.group]
            pages = job.move.pages - held.rule.lookahead_pages
            lost.append(int(pages[0]))
            if job.move.target != self.top:
                continue
            if held.rule.per_position:
                held.running = NO_SLOT
            else:
                mine = pages[held.own[pages]]
                held.slots[mine], held.own[mine] = NO_SLOT, False
            held.coming[pages[pages < len(held.coming)]] = False
        if work.state is RequestState.LOADING:
            self.shorten(work, min(lost), "load late")

    def shorten(self, work: Work, page: int, reason: str) -> None:
        """What ends with ``page`` does not come: the hit becomes the greatest length without it
        that all groups still have, decided once.
        """
        if page >= work.hit_pages:
            return
        readable, path, work.rests = self.residency.readable(), self.end(work), False
        hit, _ = self.residency.tree.joint(path, page, readable)
        hit = max(hit, work.device_pages)
        step = max(1, self.align_tokens // self.page_tokens)
        if hit > work.device_pages:
            hit = max(stepped(self.residency, path, hit, step, readable), work.device_pages)
        self._cut(work, hit, reason)
        work.short = not self._relay(work)

    def _cut(self, work: Work, hit: int, reason: str) -> None:
        """The hit is ``hit`` pages from now on, and its lease ends there."""
        lost = (work.hit_pages - hit) * self.page_tokens
        if not work.resumed:
            self.residency.metrics.add(("match", "miss", reason), lost)
        self.residency.metrics.add(("admit", "hit shortened"), 1)
        work.hit_pages = hit
        if hit < work.inserted:
            tree, path = self.residency.tree, self.end(work)
            if work.ahead:  # first: the other lease's end is asked for when no split is to come
                ahead = max(held.rule.lookahead_pages for held in work.held)
                behind = min(hit + ahead, path.pages) if hit else 0
                tree.move(work.ahead, path._replace(pages=behind))
            tree.move(work.lease, work.at._replace(pages=hit))
            work.at = tree.lease_end(work.at.root, work.lease)
            work.inserted = hit
            if self.placed:
                self._let_go(work)

    def _give_up(self, work: Work) -> None:
        """A request that has to wait holds nothing (R4): two that each kept what they had would
        wait for one another for ever.
        """
        if work.hit_pages:
            self._cut(work, 0, "no room")
        for group, held in enumerate(work.held):
            if len(slots := held.release()):
                self.residency.tiers[0].abort(group, slots)
            held.loaded = held.loaded[:0]

    @staticmethod
    def _let_go(work: Work) -> None:
        """What the shorter lease does not pin is not the request's to name."""
        for held in work.held:
            first = min(work.hit_pages, len(held.slots)) if held.rule.everywhere else 0
            held.slots[first:][~held.own[first:]] = NO_SLOT
            held.shared = min(held.shared, work.hit_pages)

    def _relay(self, work: Work) -> bool:
        """Lays the shorter hit; False while slots for what follows it are missing, or something
        still moves into those that it has.
        """
        if self.busy(work):
            return False
        for held in work.held:
            size = work.hit_pages
            held.needed, held.coming = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
            held.loaded = held.loaded[:size]
            here = held.loaded.copy()
            if held.rule.per_position:
                here[:] = False  # the snapshot that came is of another length
            else:
                here &= held.own[:size]
            held.here = here
            if held.reuses:  # what a longer hit was to bring is free for the pages of this one
                stale = np.setdiff1d(np.flatnonzero(held.own), held.wanted(size))
                held.spare += held.slots[stale].tolist()
                held.slots[stale], held.own[stale] = NO_SLOT, False
        try:
            self.lay(work)
        except CapacityError:
            if self.placed:
                self._give_up(work)
            return False
        work.short = False
        return True

    def layers(self, work: Work, group: int) -> int:
        """Layers of the group, from its first on, of which all that the hit needs is in the first
        tier.
        """
        held = work.held[group]
        whole = self.residency.groups[group].layout.layers
        if not (held.needed & ~held.here).any():
            return whole
        if (held.needed & ~held.here & ~held.coming).any():
            return 0
        tiers = self.residency.tiers
        jobs = self._jobs(work, group)
        return min((tiers[job.move.source].layers(job.number) for job in jobs), default=0)

    def wait_layer(self, work: Work, group: int, layer: int, timeout_s: float) -> bool:
        """Blocks until that layer of what comes now is there; False where not all of it is on its
        way, or the time is over.
        """
        held = work.held[group]
        if (held.needed & ~held.here & ~held.coming).any():
            return False
        return all(
            self.residency.tiers[job.move.source].wait_layer(job.number, layer, timeout_s)
            for job in self._jobs(work, group)
        )

    def _jobs(self, work: Work, group: int) -> list[Job]:
        """The loads of a request into the first tier."""
        return [
            job
            for job in self.transfers.jobs.values()
            if (job.owner, job.move.group, job.move.target) == (work.hop, group, self.top)
            and not job.storing
        ]

    def cancel(self, work: Work) -> None:
        """Skips what has not begun; each job is still acknowledged."""
        for job in list(self.transfers.jobs.values()):
            if job.owner == work.hop and not job.storing:
                self.transfers.cancel(job)


def _reach(mask: Mask) -> int:
    """The length of the run of True at the start."""
    gaps = (~mask).nonzero()[0]
    return int(gaps[0]) if len(gaps) else len(mask)
