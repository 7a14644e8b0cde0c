"""The requests of one cache: admission as a transaction, pages shared as they are computed, and an
end in three events (I9, I10, I19, I30).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from radix._native import Match
from radix.admission import (
    LeftWindows,
    blocks_needed,
    check_fits,
    leave_windows,
    reserve_more,
)
from radix.content import Prompt
from radix.ending import Ending
from radix.errors import CapacityError, InvariantError, RequestError
from radix.events import Event, RequestState
from radix.hints import Hints, Time
from radix.keeping import Keeping
from radix.keys import Tokens
from radix.lifecycle import LIVE, Fence, Fences, Held, Terms, Work
from radix.loading import Loading
from radix.misses import known_pages, lookahead_pages
from radix.plan import Cursor
from radix.policy.checkpoint import Checkpoints, alignment
from radix.residency import Residency
from radix.stages import Stages
from radix.tier import Slots
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT


class Requests:
    """All requests of one cache.

    ``admit``, ``append``, ``lend``, ``computed``, ``finish``; ``ended`` for each job that ends;
    ``run`` once a poll. ``placed``: the first tier's slots are columns of the tree (not so when
    borrowed).
    """

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        fences: Fences,
        page_tokens: int,
        clock: Callable[[], int],
        events: list[Event],
        align_tokens: int = 1,
        checkpoints: Checkpoints | None = None,
        time: Time | None = None,
    ) -> None:
        self.residency = residency
        self.transfers = transfers
        self.fences = fences
        self.page_tokens = page_tokens
        self.align_tokens = alignment(residency.rules, align_tokens)
        self.loading = Loading(residency, transfers, page_tokens, self.align_tokens)
        self.keeping = Keeping(
            residency,
            transfers,
            fences,
            page_tokens,
            self.align_tokens,
            checkpoints or Checkpoints(),
        )
        self.stages = Stages(self.keeping, self.append)
        self.ending = Ending(
            residency,
            transfers,
            fences,
            self.loading,
            self.keeping,
            self.stages,
            clock,
            events,
            time or Time(clock, lambda: fences.step),
        )
        self.works = self.ending.works
        self.placed = self.loading.placed
        self.fenced = self.keeping.fenced
        states = [group for group, rule in enumerate(residency.rules) if rule.per_position]
        # a checkpoint that a request took its copy of is no longer its concern
        self._unpinned = ((1 << len(residency.rules)) - 1) & ~sum(1 << group for group in states)
        self._states = bool(states)
        self._ahead = max((rule.lookahead_pages for rule in residency.rules), default=0)
        self._looking = sum(
            1 << group for group, rule in enumerate(residency.rules) if rule.lookahead_pages
        )
        self._next = 1
        self._moved = False

    # ------------------------------------------------------------ admission
    def admit(
        self,
        prompt: Prompt,
        match: Match,
        lent: list[Slots] | None,
        device_pages: int,
        terms: Terms,
        earlier: Work | None = None,
    ) -> Work:
        """Pins the hit and reserves what the request holds at once, or raises and changes
        nothing. ``earlier``: what was preempted of it.
        """
        total = len(prompt.tokens) + terms.new
        pages = -(-total // self.page_tokens)
        if self.placed:
            behind = self.loading.behind_tokens
            needed = [
                blocks_needed(rule, total, terms.chunk, behind, match.hit_pages)
                for rule in self.residency.rules
            ]
            check_fits(self.residency, needed, prompt.root)
            device_pages = 0
        else:
            pages = min(len(row) for row in lent or [])
        work = self._pinned(prompt, match, pages, device_pages, terms, lent or [])
        work.branch, work.marks = self._marks(work, match, terms.boundaries)
        if earlier is not None:
            work.number, work.earlier, work.found = earlier.number, earlier, earlier.foreign
        self._next += 1
        self.works[work.hop] = self.ending.pinned[work.hop] = work
        try:
            self.ending.tell(work, RequestState.LOADING)
            hit = max(match.hit_pages, device_pages)
            if work.hit_pages < hit:
                if not work.resumed:
                    lost = (hit - work.hit_pages) * self.page_tokens
                    self.residency.metrics.add(("match", "miss", "no room"), lost)
                self.residency.metrics.add(("admit", "hit shortened"), 1)
                work.admitted_pages = hit
            work.origin = self.loading.origin_of(work)
            self._advance(work)
        except BaseException:
            # nobody knows of it: the next poll ends it, once what it began has ended
            work.hit_pages, work.ran, work.quiet = 0, False, work.resumed
            self.ending.tell(work, RequestState.GENERATION_DONE)
            self.loading.cancel(work)
            raise
        return work

    def _pinned(
        self,
        prompt: Prompt,
        match: Match,
        pages: int,
        device_pages: int,
        terms: Terms,
        lent: list[Slots],
    ) -> Work:
        """Pins the hit and takes the page table: of the whole hit, or else, so that a prefix never
        makes a request less admissible (R5), of what the device holds of every group, or of none.
        """
        tree, root, tokens = self.residency.tree, prompt.root, prompt.tokens
        lengths = sorted({match.hit_pages, match.device_pages, 0}, reverse=True)
        least: CapacityError | None = None
        end = Cursor(root, match.node, match.structural_pages)
        for length in lengths if self.placed else lengths[:1]:
            at = Cursor(root, end.node, length)
            lease, node, leased = tree.lease(at)
            hit = max(length, device_pages)
            work = Work(
                number=self._next,
                hop=self._next,
                tokens=tokens.copy(),
                chain=prompt.chain,
                count=len(tokens),
                prompt_tokens=len(tokens),
                lease=lease,
                at=Cursor(root, node, leased),
                held=[
                    Held.empty(rule, pages, hit, reuses=terms.chunk is not None and self.placed)
                    for rule in self.residency.rules
                ],
                pages=pages,
                hit_pages=hit,
                inserted=leased,
                admitted_pages=hit,
                cacheable=terms.cacheable,
                demand=terms.demand,
                chunk=terms.chunk,
                device_pages=device_pages,
                terms=terms,
            )
            for held, row in zip(work.held, lent if not self.placed else [], strict=False):
                held.slots, held.own = row.copy(), np.zeros(len(row), np.bool_)
            try:
                self._look_ahead(work, at, end.pages)
                self.loading.lay(work)
            except CapacityError as error:
                end = self.loading.end(work)  # what lay behind it may have been evicted meanwhile
                self.ending.unpin(work, stamp=False)
                if least is None or error.needed < least.needed:
                    least = error
            except BaseException:
                self.ending.unpin(work, stamp=False)
                raise
            else:
                return work
        raise least or InvariantError("I19", "no length of a hit was tried")

    def _look_ahead(self, work: Work, end: Cursor, structural: int) -> None:
        """Pins what lies behind the hit of groups that look ahead, and of no other."""
        if self._ahead and end.pages:
            behind = min(end.pages + self._ahead, structural)
            work.ahead = self.residency.tree.lease(end._replace(pages=behind), self._looking)[0]
            # the path above may have been split: its own end is where the first lease says
            work.at = self.residency.tree.lease_end(end.root, work.lease)

    def _marks(self, work: Work, match: Match, boundaries: Sequence[int]) -> tuple[int, list[int]]:
        """The branch signal, and the lengths in pages at which to keep what a hit there needs."""
        if not self.keeping.parts:
            return 0, []
        step = self.align_tokens // self.page_tokens
        known = known_pages(self.residency, match, step)
        branch = known if known > max(match.hit_pages, work.hit_pages) else 0
        lengths, ends = {branch}, list(boundaries)
        ends += [work.prompt_tokens - 1] if not self._states else []
        if work.cacheable is not None:
            ends.append(work.cacheable)
        # what goes on otherwise behind an end can't be hit where a group looked behind it
        pages = [end // self.page_tokens - lookahead_pages(self.residency) for end in ends]
        lengths.update(max(0, length) // step * step for length in pages)
        marks = sorted(length for length in lengths if length > work.hit_pages)
        return branch, marks

    def _advance(self, work: Work) -> None:
        here = (not work.hit_pages and not work.short) or self.loading.advance(work)
        if here and not self.loading.busy(work):
            self._run(work)

    def _run(self, work: Work) -> None:
        """The hit is on the device: the request runs."""
        metrics, page, tree = self.residency.metrics, self.page_tokens, self.residency.tree
        served = work.origin[: 0 if work.resumed else work.hit_pages]
        if work.resumed and work.hit_pages:
            metrics.add(("match", "resumed_tokens"), work.hit_pages * page)
        for tier in range(self.loading.top, len(self.residency.tiers) if len(served) else -1):
            if pages := int(np.count_nonzero(served == tier)):
                name = self.transfers.tier_name(tier)
                metrics.add(("match", "hit_tokens", name), pages * page)
        if not work.resumed and self.residency.shares is not None:
            self.residency.shares.count(work.at.root, hit=work.hit_pages * page)
        work.ran = True
        work.computed = work.told = work.hit_pages * page
        self.ending.tell(work, RequestState.RUNNING)
        if self.keeping.parts and work.inserted:
            tree.touch(work.at)  # the end of its lease moves on; what it used here was used now
            if self._states and self.placed:
                tree.narrow(work.lease, self._unpinned)
        if not work.resumed:
            self.transfers.asked(work.at, 0, work.inserted, work.origin[: work.inserted])
        if self.placed and work.inserted and not work.stale:
            # what was refused or lost below since it was computed is offered once more
            for source in range(self.transfers.deepest):
                self.keeping.offer(work, 0, work.inserted, source, unless_below=True)

    # ------------------------------------------------------------ running
    def append(self, work: Work, tokens: Tokens) -> None:
        """Adds sampled tokens; reserves pages as needed (all groups or none)."""
        if work.quiet:  # sampled by the step that was under way
            work.append(tokens)
            return
        self.ending.live(work, "append")
        self.stages.refuse(work, "append")
        total = work.count + len(tokens)
        need = -(-total // self.page_tokens) - work.pages
        if need > 0:
            if not self.placed:
                raise RequestError(
                    f"request {work.number}: lend {need} more slots a group before appending"
                )
            self._reserve_more(work, work.pages + need, total)
        work.append(tokens)

    def _reserve_more(self, work: Work, pages: int, total: int) -> None:
        rules = self.residency.rules
        behind = self.loading.behind_tokens
        needed = [blocks_needed(rule, total, work.chunk, behind) for rule in rules]
        counts = [0] * len(rules)
        owned = [len(held.private()) for held in work.held]
        for group, held in enumerate(work.held):
            if held.rule.per_position or held.reuses:
                continue
            last = -(-pages // held.rule.block_pages) * held.rule.block_pages
            counts[group] = len(held.ends(len(held.slots), last))
            if not held.rule.everywhere:
                needed[group] = owned[group] + counts[group]  # what fell behind was given back
        check_fits(
            self.residency, needed, work.at.root
        )  # before a window is left: nothing has changed
        left: LeftWindows | None = None
        try:
            for group, held in enumerate(work.held):
                if held.reuses and not held.rule.per_position:
                    short = needed[group] - owned[group]
                    left = self._leave(work, group, short, pages) if left is None else left
                    counts[group] = self._more(work, group, short, pages, left)
            more = reserve_more(work, self.residency, counts, left)
        except BaseException:
            if left is not None:
                left.undo()
            raise
        if left is not None:
            left.settle()
        for held, slots in zip(work.held, more, strict=True):
            old = len(held.slots)
            held.grow(pages)
            if held.reuses:
                held.spare += slots.tolist()
            elif not held.rule.per_position:
                ends = held.ends(old, len(held.slots))
                held.slots[ends], held.own[ends] = slots, True
        work.pages = pages

    def _leave(self, work: Work, group: int, short: int, pages: int) -> LeftWindows | None:
        """Lets go of windows that were left, where that many slots of a group are not there."""
        if min(short, pages - work.pages) <= self.residency.available(0, group, work.at.root):
            return None
        return leave_windows(work, self.residency, self.transfers, self.keeping.parts)

    def _more(
        self, work: Work, group: int, short: int, pages: int, left: LeftWindows | None
    ) -> int:
        """Slots that a group whose pages reuse them gets for more pages: up to all that it ever
        holds at once. Where there are too few, the blocks of the tree's in its window fund some:
        they fall behind, and leave room, before those slots are needed (R1). Not so of what the
        very next step needs: its own window stands as long.
        """
        held = work.held[group]
        more = max(0, min(short, pages - work.pages))
        room = self.residency.available(0, group, work.at.root)
        room += left.room(group) if left else 0
        if more > room:
            step = -(-(work.told + (work.chunk or 0)) // self.page_tokens)
            ends = held.ends(work.told // self.page_tokens, min(step, pages))
            bare = int((ends >= len(held.slots)).sum())
            bare += int((held.slots[ends[ends < len(held.slots)]] == NO_SLOT).sum())
            funded = int(((held.slots != NO_SLOT) & ~held.own).sum())
            more = max(min(more, bare - len(held.spare)), more - funded, 0)
        return more

    def lend(self, work: Work, slots: list[Slots]) -> None:
        """More of the engine's slots, a run behind the others (borrowed only)."""
        self.ending.live(work, "lend")
        if self.placed:
            raise RequestError(f"lend: the device slots of request {work.number} are the cache's")
        for held, more in zip(work.held, slots, strict=True):
            held.slots = np.concatenate((held.slots, more))
            held.own = np.zeros(len(held.slots), np.bool_)
        work.pages = min(len(row) for row in work.table)

    def running(self, work: Work, what: str) -> None:
        """``RequestError`` unless the request runs."""
        if work.state is not RequestState.RUNNING:
            raise RequestError(f"{what}: request {work.number} is {work.shown.value}, not running")

    def computed(self, work: Work, tokens: int, fence: Fence, reuse: Fence) -> None:
        """The state of the first ``tokens`` tokens is written once ``fence`` passes."""
        self.running(work, "computed")
        if not work.told <= tokens <= work.count:
            raise ValueError(
                f"computed is {tokens}, expected {work.told} to {work.count} tokens "
                f"of request {work.number}"
            )
        self.keeping.check_step(work, tokens)
        work.told = tokens
        work.waiting += 1
        self.fences.after(fence, lambda: self._computed(work, tokens, reuse))

    def _computed(self, work: Work, tokens: int, reuse: Fence) -> None:
        work.waiting -= 1
        before = self.ending.cacheable(work)
        work.computed = max(work.computed, tokens)
        self.keeping.advanced(work, before, self.ending.cacheable(work), reuse)

    def finish(
        self,
        work: Work,
        cacheable: int | None,
        fence: Fence,
        what: str = "finish",
        hints: Hints | None = None,
    ) -> None:
        """No more tokens: GENERATION_DONE now, the rest as stores and transfers allow."""
        self.ending.finish(work, cacheable, fence, what, hints)

    def preempt(self, work: Work, fence: Fence) -> None:
        """Gives up what it holds, by the path of an end that is told to nobody."""
        self.ending.preempt(work, fence)

    # ------------------------------------------------------------ events
    def ended(self, job: Job, arrived: npt.NDArray[np.bool_]) -> None:
        """A job ended, while its lease stands."""
        self._moved = True
        work = self.works.get(job.owner)
        if work is not None and not job.storing:
            work.rests = False
            self.loading.ended(work, job, arrived)

    def stir(self) -> None:
        """At the next poll every request that loads is looked at. Cost: those."""
        self._moved = True
        for work in self.ending.unsettled.values():
            work.rests = False

    def run(self) -> None:
        """Once a poll: fences, loads that can go on, stores to offer again, ends. Cost: those, not
        the requests that run.
        """
        try:
            self.fences.run()
        finally:
            self._go_on()

    def _go_on(self) -> None:
        for owner, jobs in self.transfers.expire().items():
            self._moved = True
            if owner in self.works:
                self.works[owner].rests = False
                self.loading.gave_up(self.works[owner], jobs)
        moved, self._moved = self._moved, False
        try:
            unsettled = self.ending.unsettled
            for hop in sorted(unsettled):  # the oldest first
                if hop in unsettled and not unsettled[hop].rests:
                    self._look_at(unsettled[hop], moved=moved)
        except BaseException:
            self._moved = self._moved or moved  # those behind it go on at the next poll
            raise

    def _look_at(self, work: Work, *, moved: bool) -> None:
        if work.state is RequestState.LOADING:
            if moved or work.short:  # slots that it lacks become free without a transfer too
                self._advance(work)
        elif work.state is RequestState.RUNNING:
            self.ending.retry(work)
        else:
            self.ending.close(work)

    def check(self) -> None:
        """Page tables name the tree's slots where they are shared (I10); counts are in order (I9).

        Whoever is not at rest is looked at by each poll (I30). Cost: the live requests' pages.
        """
        unsettled = self.ending.unsettled
        if not unsettled.keys() <= self.works.keys():
            raise InvariantError("I30", "a poll looks at a request that has ended")
        for work in self.works.values():
            who = f"request {work.number}"
            rests = work.state is RequestState.RUNNING and not work.refused
            if not rests and work.hop not in unsettled:
                raise InvariantError("I30", f"{who}: no poll looks at it, and it does not rest")
            if work.rests and not self.loading.busy(work):
                raise InvariantError("I30", f"{who}: it waits for loads that it has not")
            if not work.computed <= work.told <= work.count or work.hit_pages > work.pages:
                raise InvariantError("I9", f"{who}: {work.computed} computed of {work.count}")
            if any((held.slots[: held.passed] != NO_SLOT).any() for held in work.held):
                raise InvariantError("I10", f"{who}: it holds blocks behind what its window left")
            if not self.placed or work.stale or work.state not in LIVE:
                continue
            for group, held in enumerate(work.held):
                pages = np.flatnonzero((held.slots != NO_SLOT) & ~held.own)
                if not len(pages):
                    continue
                count = int(pages[-1]) + 1
                have = self.residency.blocks(self.loading.end(work), group, 0, 0, count)
                if not np.array_equal(have[pages], held.slots[pages]):
                    raise InvariantError("I10", f"{who}: its page table is not the tree's")
