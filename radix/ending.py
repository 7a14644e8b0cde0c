"""The end of a request, and of what a request held when it was preempted: one path, in three steps
that are told once each, in order, however it ends (I30). What is computed is kept, what was put off
is offered until a tier takes or declines it, private slots and pins go behind the fence, and only
what no transfer holds any more is gone.

    GENERATION_DONE    computed() whose fence has not passed, stores that a full queue refused
    FINALIZED          transfers under way; pins until the fence
    RELEASED
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from radix.errors import RequestError
from radix.events import Event, RequestEvent, RequestState
from radix.hints import Hints, Time, said_of
from radix.keeping import Keeping
from radix.lifecycle import LIVE, Fence, Fences, Work
from radix.loading import Loading
from radix.residency import RESET, Residency
from radix.stages import Stages
from radix.transfers import Transfers


class Ending:
    """``finish``, ``preempt``; ``close`` and ``retry`` once a poll; ``unpin``. Tell: ``tell``. Ask:
    ``live``, ``cacheable``, ``leases``, ``open``. ``works``: what has not ended, by ``hop``;
    ``pinned``: what holds leases; ``unsettled``: what loads, ends, or has stores to offer again.
    """

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        fences: Fences,
        loading: Loading,
        keeping: Keeping,
        stages: Stages,
        clock: Callable[[], int],
        events: list[Event],
        time: Time,
    ) -> None:
        self.works: dict[int, Work] = {}
        self.pinned: dict[int, Work] = {}
        self.unsettled = keeping.unsettled
        self._residency = residency
        self._transfers = transfers
        self._fences = fences
        self._loading = loading
        self._keeping = keeping
        self._stages = stages
        self._clock = clock
        self._events = events
        self._time = time

    def finish(
        self,
        work: Work,
        cacheable: int | None,
        fence: Fence,
        what: str = "finish",
        hints: Hints | None = None,
    ) -> None:
        """No more tokens: GENERATION_DONE now, the rest as stores and transfers allow."""
        if hints is not None:
            work.terms = replace(work.terms, hints=hints)
        if work.quiet:
            self._end_preempted(work, cacheable)
            return
        self.live(work, what)
        self._stages.close(work, fence)
        limits = [value for value in (work.cacheable, cacheable) if value is not None]
        work.cacheable = min(limits) if limits else None
        work.end_fence = fence
        if work.state is RequestState.LOADING:
            self._loading.cancel(work)
        self.tell(work, RequestState.GENERATION_DONE)
        self.close(work)

    def preempt(self, work: Work, fence: Fence) -> None:
        """Gives up what it holds, by the path of an end that is told to nobody."""
        self.live(work, "preempt")
        self._stages.close(work, fence)
        work.end_fence = fence
        if work.state is RequestState.LOADING:
            self._loading.cancel(work)
        self.tell(work, RequestState.PREEMPTED)
        work.quiet, work.state = True, RequestState.GENERATION_DONE
        self.close(work)

    def _end_preempted(self, work: Work, cacheable: int | None) -> None:
        """The end of what may have given up everything already: told as far as it is true."""
        reached, work.quiet = work.state, False
        limits = [value for value in (work.cacheable, cacheable) if value is not None]
        work.cacheable = min(limits) if limits else None
        self.tell(work, RequestState.GENERATION_DONE)
        if reached is RequestState.GENERATION_DONE:
            self.close(work)
            return
        self.tell(work, RequestState.FINALIZED)
        if not work.lease:
            self._cut(work)
            self._forget(work)
        if reached is RequestState.RELEASED:
            self.tell(work, RequestState.RELEASED)

    def close(self, work: Work) -> None:
        """Goes on with an end as far as it can."""
        earlier = None if work.earlier is None else work.earlier.state
        if work.state is RequestState.GENERATION_DONE:
            if work.refused:
                self.retry(work)
            loads = not work.ran and self._loading.busy(work)
            if not work.waiting and work.ran:
                self._keeping.settle(work, self.cacheable(work))
            if work.waiting or work.refused or loads:
                return
            if earlier is RequestState.GENERATION_DONE:
                return
            self._finalize(work)
        if earlier is RequestState.FINALIZED:
            return
        work.earlier = None
        if work.state is RequestState.FINALIZED and not self._loading.busy(work):
            self.tell(work, RequestState.RELEASED)
            del self.works[work.hop]
            self._forget(work)

    def _finalize(self, work: Work) -> None:
        """No store is submitted any more: private slots go, and the pin, each behind the fence."""
        if self._keeping.placed:
            for group, held in enumerate(work.held):
                self._keeping.quarantine(group, held.release(), work.end_fence)
        if not work.ran and not work.resumed:
            lost = work.hit_pages * self._keeping.page_tokens
            self._residency.metrics.add(("match", "miss", "aborted"), lost)
        self.tell(work, RequestState.FINALIZED)
        # what computes up to the fence reads the shared pages too: they stay as long
        self._fences.after(work.end_fence, lambda: self._let_go(work))

    def _let_go(self, work: Work) -> None:
        self._cut(work)
        if work.kept is not None:
            self._residency.tree.move(work.lease, work.at._replace(pages=work.kept))
            self._forget(work)
        tree, hints = self._residency.tree, work.terms.hints
        end = tree.lease_end(work.at.root, work.lease) if hints is not None else work.at
        self.unpin(work, stamp=True)
        if hints is not None:
            now = self._time.now()
            tree.tell_time(now)
            tree.hint(end, said_of(hints, now))

    def _cut(self, work: Work) -> None:
        """What may be kept of it, where that is not all."""
        if work.cacheable is not None and work.ran and not work.stale:
            # what was there before this request is not its own to give up
            kept = max(work.cacheable // self._keeping.page_tokens, work.foreign)
            if kept < work.inserted:
                work.kept = kept

    def _forget(self, work: Work) -> None:
        """Gives up what may not be kept: when the pin goes, and again once no transfer holds it."""
        if work.kept is None:
            return
        at = self._residency.tree.resolve(work.at)
        if at.pages > work.kept:
            self._residency.forget(at, work.kept)

    def retry(self, work: Work) -> None:
        """Offers the stores that were refused once more."""
        again, work.refused = work.refused, []
        for move, upper in again:
            if not self._transfers.store_again(move, upper, work.hop):
                work.refused.append((move, upper))
        if work.state is RequestState.RUNNING and not work.refused:
            self.unsettled.pop(work.hop, None)

    # ------------------------------------------------------------ older epochs
    def outdate(self, work: Work) -> None:
        """It goes on with what it holds, and from now on shares and stores nothing (C53)."""
        work.stale = work.settled = True
        work.marks.clear()
        for move, _ in work.refused:
            self._transfers.count("declined", move.target, move.group, move.blocks)
        work.refused = []

    def restart(self, work: Work) -> None:
        """It loads, and of what it loads nothing is to be used: it begins without a hit."""
        self._loading.shorten(work, 0, RESET)

    # ------------------------------------------------------------ its parts
    def unpin(self, work: Work, *, stamp: bool) -> None:
        """Gives its leases back."""
        tree = self._residency.tree
        tree.release(work.lease, stamp=stamp)
        self.pinned.pop(work.hop, None)
        self._transfers.let_go(-work.hop)
        work.lease = 0
        for lease in (work.ahead, *work.apart.values()):
            if lease:
                tree.release(lease, stamp=False)
        work.ahead = 0
        work.apart.clear()

    def live(self, work: Work, what: str) -> None:
        """``RequestError`` unless it loads or runs."""
        if work.state not in LIVE:
            raise RequestError(f"{what}: request {work.number} is {work.shown.value}")

    def tell(self, work: Work, state: RequestState) -> None:
        """Enters a state; its owner hears of it unless it was preempted."""
        work.state, work.rests = state, False
        if state is RequestState.RELEASED or (state is RequestState.RUNNING and not work.refused):
            self.unsettled.pop(work.hop, None)
        else:
            self.unsettled[work.hop] = work
        if work.quiet:
            return
        self._residency.metrics.add(("request", state.value))
        self._events.append(RequestEvent(work.number, state, self._clock()))

    @staticmethod
    def cacheable(work: Work) -> int:
        """Tokens that may be shared."""
        if work.stale:
            return work.inserted * work.held[0].rule.page_tokens
        return work.computed if work.cacheable is None else min(work.computed, work.cacheable)

    @property
    def leases(self) -> int:
        """Leases of requests. Cost: the requests."""
        return sum(1 + (work.ahead != 0) + len(work.apart) for work in self.pinned.values())

    def open(self) -> list[Work]:
        """The requests that load or run."""
        return [work for work in self.works.values() if work.state in LIVE]
