"""What of a request's state is kept while it runs and when it ends: pages enter the tree as they
are computed, and, at lengths where a later request may go on, what a hit there needs of every
group; what falls behind gives its slot back. Keeps I10, I21, I26 (a boundary has all of its
window), I27 (a tombstone owns nothing) and I28 (a checkpoint stands on its grid, once).

    computed     0 ............................ computed
    every block  | the tree's ........................|
    a window     -1 -1 | kept at a mark | -1 -1 | own |     private until a length wants it
    a state      . . . . . . . s (mark) . . . . r . . r     rolling: the older gives way
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from radix.admission import reserve_all, reserve_leaving
from radix.errors import CapacityError, InvariantError, RequestError, TierError
from radix.events import RequestState
from radix.lifecycle import LIVE, Fence, Fences, Work
from radix.misses import lookahead_pages
from radix.plan import Cursor
from radix.policy.checkpoint import ROLLING, Checkpoints, grid_cuts
from radix.residency import EVICTED, Residency
from radix.tier import Slots
from radix.transfers import Transfers
from radix.tree import NO_SLOT

Pages = npt.NDArray[np.int64]


class Keeping:
    """Ask: ``cuts``. Change: ``snapshot``, ``prepare``, ``insert``, ``keep``, ``settle``,
    ``quarantine``. ``fenced``: slots of the first tier in quarantine, by group. ``unsettled``: by
    ``hop``, the requests that a poll has to look at; the others run, and nothing is due.
    """

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        fences: Fences,
        page_tokens: int,
        align_tokens: int,
        checkpoints: Checkpoints,
    ) -> None:
        self.residency = residency
        self.transfers = transfers
        self.fences = fences
        self.page_tokens = page_tokens
        self.align_pages = align_tokens // page_tokens
        self.checkpoints = checkpoints
        self.placed = transfers.borrowed is None
        self.top = 0 if self.placed else -1
        rules = residency.rules
        self.fenced: list[set[int]] = [set() for _ in rules]
        self.unsettled: dict[int, Work] = {}
        self._whole = [group for group, rule in enumerate(rules) if rule.everywhere]
        self.parts = [
            group for group, rule in enumerate(rules) if rule.kept and not rule.everywhere
        ]
        self._states = [group for group in self.parts if rules[group].per_position]
        self._ahead = lookahead_pages(residency)
        self.columns = np.array(
            [residency.tree.column(group, 0) for group in self._whole if self.placed], np.uint32
        )

    # ------------------------------------------------------------ where to stop
    def cuts(self, work: Work, chunk: int) -> list[int]:
        """Lengths in tokens, behind what was told computed and within the next ``chunk`` tokens,
        at which the forward has to stop or record and has not yet; ascending. Changes nothing.
        """
        if not self.parts:
            return []
        page, first = self.page_tokens, work.told
        last = first + chunk
        found = {mark * page for mark in work.marks if first < mark * page <= last}
        if self._states:
            grid, taken = self.align_pages * page, work.hit_pages * page
            for position in (*work.marks, *work.rolling):
                if position * page <= first:
                    taken = max(taken, position * page)
            found.update(
                grid_cuts(
                    first,
                    last,
                    work.prompt_tokens,
                    grid,
                    taken,
                    self.checkpoints.spacing_tokens,
                )
            )
        return sorted(found - {pages * page for pages in work.aside})

    # ------------------------------------------------------------ snapshots
    def snapshot(self, work: Work, position: int, copy: bool) -> dict[int, int]:
        """Slots, by group, for the state at ``position`` tokens; empty where there is no room."""
        page = self.page_tokens
        if not self._states:
            raise RequestError(f"snapshot: request {work.number} has no group with states")
        for group in self._states:
            grid = self.residency.rules[group].grid_tokens
            if position % grid:
                name = self.residency.groups[group].name
                raise ValueError(
                    f"position is {position}, expected a multiple of {grid}, the grid of {name!r}"
                )
        if not max(work.told, 1) <= position <= work.count:
            raise ValueError(
                f"position is {position}, expected {max(work.told, 1)} to {work.count}: the "
                f"running state of request {work.number} is of its last computed token"
            )
        pages = position // page
        if pages in work.aside:
            raise ValueError(f"position is {position}, which has a snapshot already")
        slots = self._snapshot_slots(work, pages)
        for group, slot in slots.items():
            held = work.held[group]
            if self.placed and copy:
                source = np.array([held.running], np.int32)
                self.residency.tiers[0].clone(group, source, np.array([slot], np.int32))
            if self.placed:
                held.slots[pages - 1], held.own[pages - 1] = slot, True
        if slots:
            work.aside.add(pages)
            if pages not in work.marks:
                work.rolling.append(pages)
        return slots

    def _snapshot_slots(self, work: Work, pages: int) -> dict[int, int]:
        if not self.placed:
            rows = {group: int(work.held[group].slots[pages - 1]) for group in self._states}
            return rows if min(rows.values()) >= 0 else {}
        if pages not in work.marks:
            if len(work.rolling) >= ROLLING:
                self._let_roll(work, work.rolling.pop(0))
            return {group: work.held[group].spare.pop() for group in self._states}
        counts = [int(group in self._states) for group in range(len(work.held))]
        try:
            fresh = reserve_all(self.residency, counts, work.at.root)
        except (CapacityError, TierError):
            self.residency.metrics.add(("checkpoint", "declined"))
            work.marks.remove(pages)
            return {}
        return {group: int(fresh[group][0]) for group in self._states}

    def _let_roll(self, work: Work, pages: int) -> None:
        for group in self._states:
            held = work.held[group]
            if held.own[pages - 1]:
                held.spare.append(int(held.slots[pages - 1]))
                held.slots[pages - 1], held.own[pages - 1] = NO_SLOT, False

    def check_step(self, work: Work, tokens: int) -> None:
        """What ``tokens`` says computed has slots: ``ValueError`` for a step beyond the chunk,
        ``RequestError`` for one that was not prepared. Accepted drafts bring theirs along.
        """
        if work.chunk is None or tokens == work.told:
            return
        first, upto = work.told // self.page_tokens, -(-tokens // self.page_tokens)
        for group, held in enumerate(work.held):
            ends = held.ends(first, len(held.slots)) if held.reuses else np.empty(0, np.int64)
            ends = ends[ends - held.rule.block_pages + 1 < upto]
            if (held.slots[ends] == NO_SLOT).any():
                if tokens - work.told > work.chunk:
                    raise ValueError(
                        f"computed is {tokens}, expected at most {work.told + work.chunk}: a step "
                        f"of at most chunk_tokens, {work.chunk}"
                    )
                name = self.residency.groups[group].name
                raise RequestError(
                    f"computed: request {work.number} has no slots of group {name!r} up to "
                    f"{tokens} tokens: prepare the step first"
                )

    def prepare(self, work: Work, chunk: int) -> None:
        """Gives the pages of the next ``chunk`` tokens the slots that others gave back."""
        if work.chunk is not None and chunk > work.chunk:
            raise ValueError(
                f"chunk is {chunk}, expected at most the {work.chunk} tokens of the admission"
            )
        upto = min(-(-(work.told + chunk) // self.page_tokens), work.pages)
        counts, bare = [0] * len(work.held), {}
        for group, held in enumerate(work.held):
            if held.reuses:
                ends = held.ends(work.told // self.page_tokens, len(held.slots))
                ends = ends[ends - held.rule.block_pages + 1 < upto]
                bare[group] = ends[held.slots[ends] == NO_SLOT]
                counts[group] = max(0, len(bare[group]) - len(held.spare))
        fresh = reserve_leaving(work, self.residency, self.transfers, counts, self.parts)
        for group, ends in bare.items():
            held = work.held[group]
            held.spare += fresh[group].tolist()
            held.slots[ends] = held.spare[: len(ends)]
            held.own[ends] = True
            del held.spare[: len(ends)]

    # ------------------------------------------------------------ into the tree
    def insert(self, work: Work, full: int, reuse: Fence) -> None:
        """Shares pages [inserted, full): pin the canonical blocks, remap, then free our own."""
        first, tree = work.inserted, self.residency.tree
        span = work.chain.span(work.tokens, first, full)
        whole = self._whole if self.placed else []
        slots = np.full((len(whole), full - first), NO_SLOT, np.int32)
        for offered, group in zip(slots, whole, strict=True):
            held, ahead = work.held[group], work.held[group].rule.lookahead_pages
            lo, hi = max(0, first - ahead), max(0, full - ahead)
            own = held.own[lo:hi]  # not those of the hit that stand behind its end
            offered[len(offered) - (hi - lo) :][own] = held.slots[lo:hi][own]
        canonical = np.empty_like(slots)
        result = tree.insert(work.at, span, self.columns, slots, canonical, work.lease)
        work.at = Cursor(work.at.root, result.node, result.pages)
        work.inserted = full
        self.transfers.asked(work.at, first, full - first)
        for row, group in enumerate(whole):
            self._settle_row(work, group, first, slots[row], canonical[row], reuse)

    def _settle_row(
        self, work: Work, group: int, at: int, slots: Slots, canonical: Slots, reuse: Fence
    ) -> None:
        """Own slots that entered the tree at page ``at`` and on are its now; where another block
        was there first, that one counts.
        """
        held, tier = work.held[group], self.residency.tiers[0]
        offered = slots != NO_SLOT
        if (canonical[offered] == NO_SLOT).any():
            raise InvariantError("I21", "a computed page found no place on the device")
        taken = offered & (canonical == slots)
        if taken.any():
            tier.commit(group, slots[taken])
        pages = at - held.rule.lookahead_pages + offered.nonzero()[0]
        held.slots[pages] = canonical[offered]
        held.own[pages] = False
        self.quarantine(group, slots[offered & ~taken], reuse)
        self.residency.stored(work.at, group, 0, at, taken)

    def keep(self, work: Work, pages: int, reuse: Fence) -> bool:
        """Keeps what a hit of ``pages`` pages needs of the groups that do not keep everything.

        All of them or none; False where something of it is not there any more, or its slots could
        not be replaced. Stores it below.
        """
        if pages + self._ahead > work.inserted:
            return False
        found: list[tuple[int, Pages]] = []
        for group in self.parts:
            held = work.held[group]
            need = held.wanted(pages)
            if not len(need):
                continue
            if not self.placed:
                found.append((group, need[held.slots[need] != NO_SLOT]))
                continue
            own = held.own[need]
            if not (own | self._stands(work, group, need)).all():
                return False
            found.append((group, need[own]))
        if self.placed and not self._replace(work, found):
            return False
        for group, need in found:
            if len(need):
                self._keep_group(work, group, need, reuse)
        if self.placed and any(len(need) for _, need in found):
            self.residency.tree.touch(work.at._replace(pages=pages))  # kept now, so young
        return True

    def _stands(self, work: Work, group: int, need: Pages) -> npt.NDArray[np.bool_]:
        """Which of the entries are in some tier."""
        first = int(need[0])
        stands = np.zeros(len(need), np.bool_)
        for tier in range(len(self.residency.tiers)):
            have = self.residency.blocks(work.at, group, tier, first, int(need[-1]) - first + 1)
            stands |= have[need - first] != NO_SLOT
        return stands

    def _replace(self, work: Work, found: list[tuple[int, Pages]]) -> bool:
        """New slots for those that pages reuse and the tree takes over; the request needs them."""
        counts = [0] * len(work.held)
        if work.state is not RequestState.RUNNING:
            return True
        for group, need in found:
            held = work.held[group]
            left = len(held.ends(work.told // self.page_tokens, len(held.slots)))
            if held.reuses:
                counts[group] = min(len(need), left)
        if not any(counts):
            return True
        try:
            more = reserve_all(self.residency, counts, work.at.root)
        except (CapacityError, TierError):
            self.residency.metrics.add(("checkpoint", "declined"))
            return False
        for held, slots in zip(work.held, more, strict=True):
            held.spare += slots.tolist()
        return True

    def _keep_group(self, work: Work, group: int, need: Pages, reuse: Fence) -> None:
        held, ahead = work.held[group], work.held[group].rule.lookahead_pages
        first, count = int(need[0]), int(need[-1]) - int(need[0]) + 1
        row = np.full(count, NO_SLOT, np.int32)
        row[need - first] = held.slots[need]
        if self.placed:
            column = self.residency.tree.column(group, 0)
            canonical = self.residency.tree.attach(work.at, column, first + ahead, row)
            self._settle_row(work, group, first + ahead, row, canonical, reuse)
            if held.rule.per_position:
                held.slots[need] = NO_SLOT  # the tree's; the request goes on in its own
                self._thin(work, group, int(need[0]))
        self.offer(work, first + ahead, count, self.top, groups=(group,))

    def _thin(self, work: Work, group: int, newest: int) -> None:
        """No more checkpoints on a path than asked for: of the others the deepest goes, so that
        what most requests share stays.
        """
        most, tree = self.checkpoints.per_path, self.residency.tree
        for tier in range(len(self.residency.tiers) if most is not None else 0):
            found = tree.entries(work.at, tree.column(group, tier)).tolist()
            pages = [page for page in found if page != newest][::-1]
            for page in pages[: max(0, len(pages) + 1 - (most or 0))]:
                slot = self.residency.slots(work.at, group, tier, page, 1)
                if not self.transfers.readers(tier, group, int(slot[0])):
                    self.residency.drop(work.at, group, tier, page, read=False, reason=EVICTED)

    def offer(
        self,
        work: Work,
        first: int,
        count: int,
        source: int,
        *,
        unless_below: bool = False,
        groups: tuple[int, ...] | None = None,
    ) -> None:
        """Write-through: what is new goes one tier down. ``first``: as the tree counts."""
        borrowed = None
        if not self.placed:
            borrowed = []
            for held in work.held:
                lo = first - held.rule.lookahead_pages
                row = np.full(count, NO_SLOT, np.int32)
                part = held.slots[max(0, lo) : lo + count]
                row[max(0, -lo) : max(0, -lo) + len(part)] = part
                borrowed.append(row)
        work.refused += self.transfers.store(
            work.at,
            first,
            count,
            source,
            work.hop,
            borrowed,
            unless_below=unless_below,
            groups=groups,
        )
        if work.refused:
            self.unsettled[work.hop] = work

    # ------------------------------------------------------------ as it runs
    def advanced(self, work: Work, before: int, upto: int, reuse: Fence) -> None:
        """The first ``upto`` tokens may be shared; ``before`` of them could be already."""
        page = self.page_tokens
        first, full = work.inserted, upto // page
        if full > first:
            self.insert(work, full, reuse)
            self.offer(work, first, full - first, self.top, groups=tuple(self._whole))
            self._adopt(work, reuse)
        if not self.parts:
            return
        for mark in list(work.marks):
            known = mark + self._ahead  # a group that looks ahead has its entry there
            if known <= full and known * page > before:
                self.keep(work, mark, reuse)
        self._slide(work, reuse)

    def _adopt(self, work: Work, reuse: Fence) -> None:
        """Blocks of its window that stand in the tree count instead of its own: its lease pins
        them, and of two equal ones a full pool has no room for the second.
        """
        for group in self.parts if self.placed else ():
            held, last = work.held[group], work.inserted
            first = held.rule.first_page(last)
            own = first + held.own[first:last].nonzero()[0]
            if held.rule.per_position or not len(own):
                continue
            have = self.residency.blocks(work.at, group, 0, first, last - first)
            twice = own[have[own - first] != NO_SLOT]
            if len(twice):
                slots = held.slots[twice]
                held.slots[twice], held.own[twice] = have[twice - first], False
                self._rest(work, group, slots, reuse)

    def _slide(self, work: Work, reuse: Fence) -> None:
        """What lies behind every window gives its slot back. Cost: what was left since the last."""
        if not self.placed or not work.computed:
            return
        # the last length that these tokens alone could hit
        last = max(0, (work.computed - 1) // self.page_tokens - self._ahead)
        last = last // self.align_pages * self.align_pages
        for group in self.parts:
            held = work.held[group]
            if held.rule.per_position:
                continue
            done, upto = held.passed, held.rule.first_page(last)
            gone = done + np.flatnonzero(held.own[done:upto])
            if len(gone):
                slots = held.slots[gone]
                held.slots[gone], held.own[gone] = NO_SLOT, False
                self._rest(work, group, slots, reuse)
            pinned = held.rule.first_page(work.inserted)
            held.slots[done:pinned][~held.own[done:pinned]] = NO_SLOT
            held.passed = max(done, min(upto, pinned))

    def _rest(self, work: Work, group: int, slots: Slots, reuse: Fence) -> None:
        """Own slots that no page needs: for other pages, or free, once the fence passes."""
        held = work.held[group]
        if not held.reuses or work.state not in LIVE:
            self.quarantine(group, slots, reuse)
        elif self.fences.holds(reuse):
            self.quarantine(group, slots, reuse, lambda: self._take_back(work, group, len(slots)))
        else:
            held.spare += slots.tolist()

    def _take_back(self, work: Work, group: int, count: int) -> None:
        """Slots that rested are the request's again, before anybody else gets them."""
        if work.state in LIVE:
            with suppress(TierError):
                slots = self.residency.tiers[0].reserve(group, count)
                if self.residency.shares is not None:
                    self.residency.shares.take_back(0, group, slots, work.at.root)
                work.held[group].spare += slots.tolist()

    # ------------------------------------------------------------ the end
    def settle(self, work: Work, upto: int) -> None:
        """Keeps what a hit at the end of the turn needs: at the last length that has it all."""
        if work.settled or not self.parts:
            return
        work.settled = True
        last = max(0, min(upto // self.page_tokens, work.inserted - self._ahead))
        last = last // self.align_pages * self.align_pages
        lengths = [last]
        if self._states:
            lengths = self._snapshots(work)
        if last * self.page_tokens >= work.count:
            # the same tokens alone can't hit at their end: they need a length before it, too
            lengths = sorted({*lengths, last - self.align_pages}, reverse=True)
        for pages in lengths:
            fits = work.hit_pages < pages <= last and not pages % self.align_pages
            if fits and self.keep(work, pages, None) and pages * self.page_tokens < work.count:
                return

    def _snapshots(self, work: Work) -> list[int]:
        """Lengths at which every state has a snapshot, the last first."""
        if self.placed:
            return sorted({*work.rolling, *work.marks}, reverse=True)
        rows = [work.held[group].slots for group in self._states]
        count = min(len(row) for row in rows)
        there = np.logical_and.reduce([row[:count] != NO_SLOT for row in rows])
        return [int(page) + 1 for page in np.flatnonzero(there)[::-1]]

    def quarantine(
        self,
        group: int,
        slots: Slots,
        fence: Fence,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Slots are free once the fence passes; until then nobody gets them."""
        tier = self.residency.tiers[0]
        if not len(slots):
            return
        if not self.fences.holds(fence):
            tier.abort(group, slots)
            then()
            return
        tier.fence(group, slots)
        self.fenced[group].update(slots.tolist())
        self.fences.after(fence, lambda: self._lift(group, slots, then))

    def _lift(self, group: int, slots: Slots, then: Callable[[], None]) -> None:
        self.residency.tiers[0].lift(group, slots)
        self.fenced[group].difference_update(slots.tolist())
        then()
