"""What an engine does to requests from outside: it preempts them and resumes them, resets the cache
under them, and gives it other weights.
"""

from __future__ import annotations

from radix.errors import CacheError
from radix.events import RequestState
from radix.lifecycle import Work
from tests.engineslots import Live, OwnSlots


class Past:
    """A part of a request that was preempted, where its slots were the engine's."""

    def __init__(self, work: Work, fence: object) -> None:
        self._work = work
        self.fence = fence

    @property
    def request(self) -> Past:
        """Asked for its state alone."""
        return self

    @property
    def state(self) -> RequestState:
        """RELEASED when nothing of that part is under way."""
        return self._work.state


class Interrupted(OwnSlots):
    """The engine's hand on requests that run. ``paused``: those that were preempted."""

    live: list[Live]
    paused: list[Live]
    known: set[tuple[bytes, tuple[int, ...]]]

    def watch(self, live: Live, fence: object) -> list[list[int]]:
        """What must stay as it is up to a fence; the private slots."""
        raise NotImplementedError

    def fenced(self, private: list[list[int]], fence: object) -> None:
        """These slots are given to nobody before the fence."""
        raise NotImplementedError

    def preempt(self, live: Live, *, fence: object = None) -> None:
        """Takes its slots away; what its kernels still write up to the fence goes where it went."""
        private = self.watch(live, fence)
        work = live.request._work
        live.request.preempt(fence=fence)
        assert live.request.state is RequestState.PREEMPTED
        live.past = work
        self.live.remove(live)
        self.paused.append(live)
        self.fenced(private, fence)
        for number, (owner, rows) in enumerate(self.lent):
            if owner is live:
                self.lent[number] = Past(work, fence), rows

    def resume(self, live: Live, **more: object) -> Live:
        """Admits it again; ``CacheError`` and it stays as it was."""
        rows: list[list[int]] = []
        if self.own:
            room = live.request._work
            total = max(room.count, room.prompt_tokens + room.terms.new)
            rows = self._take(-(-total // self._page))
            if self._borrows:
                rows = [self._sparse(group, row) for group, row in enumerate(rows)]
            more["slots"] = rows
        try:
            live.request.resume(**more)
        except CacheError:
            for free, row in zip(self.own, rows, strict=False):
                free += row
            raise
        self.paused.remove(live)
        again = Live(live.request, live.namespace, live.name)
        if self.own and self._borrows:
            self.lent.append((again, rows))
        self.live.append(again)
        self._look()
        return again

    def drop(self, live: Live, *, abort: bool = False, **more: int) -> None:
        """Ends one that is preempted."""
        if abort:
            live.request.abort()
        else:
            live.request.finish(**more)
        self.paused.remove(live)

    def _look(self) -> None:
        raise NotImplementedError
