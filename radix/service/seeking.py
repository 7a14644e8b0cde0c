"""Before blocks are used, what services on other machines stored of them: the remote tier is asked
for the keys that are not here, and the answer goes on when it has come, or when it is late. What is
found lies in the remote tier from then on, to be brought like anything below the pool.

    keys that clients make   asked for by each group, all at once
    pages of a prompt        groups that need every page: none behind the first that is absent;
                             then the others, as far as those reach
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radix.keysets import Mask
from radix.plan import Pages
from radix.service.context import Context
from radix.service.reach import first_gap
from radix.service.refusing import refuse
from radix.service.session import Opened, Session
from radix.tier import Keys, TierMode

MOST_KEYS = 1 << 16  # that are sought for one request
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sought:
    """Keys, the caller's no longer, that some groups are asked for; ``paged``: they are the pages
    of a prompt, in its order. ``op``, ``request``: of the frame.
    """

    op: int
    request: int
    keys: Keys
    positions: Pages | None
    groups: Sequence[int]
    paged: bool


def seek_first(
    context: Context, session: Session, opened: Opened, sought: Sought, then: Step
) -> None:
    """Calls ``then`` once it is known what others stored: at once, where nothing is to be asked.
    What it raises later is the refusal of its request. Never blocks. Cost: the keys.
    """
    remote = opened.hosted.remote
    if remote is None or remote.tier.mode is TierMode.OFF:
        then()
        return
    _Seeking(context, session, opened, sought, then).start()


class _Seeking:
    """The questions of one request, which together wait as long as one may. ``waits``: it left its
    frame unanswered.
    """

    def __init__(
        self, context: Context, session: Session, opened: Opened, sought: Sought, then: Step
    ) -> None:
        self._context, self._session, self._opened = context, session, opened
        self._sought, self._then = sought, then
        self._waits = False
        assert opened.hosted.remote is not None  # it is asked
        self._until = time.monotonic() + opened.hosted.remote.patience_s
        rules = opened.hosted.signature.rules
        groups = [group for group in sought.groups if not rules or rules[group].lookup]
        self._whole = [group for group in groups if sought.paged and rules[group].everywhere]
        self._rest = [group for group in groups if group not in self._whole]

    def start(self) -> None:
        """Asks for the groups that need every page, then for the others."""
        self._ask(self._whole, min(len(self._sought.keys), MOST_KEYS), self._second, chained=True)

    def _second(self) -> None:
        end = min(len(self._sought.keys), MOST_KEYS)
        for group in self._whole:
            end = min(end, first_gap(self._there(group, end)))
        self._ask(self._rest, end, self._end, chained=False)

    def _there(self, group: int, end: int) -> Mask:
        flat = self._opened.hosted.flat
        core = flat.residency.core(flat.root_of(self._opened.namespace))
        found: Mask = flat.residency.where(core, core.find(self._sought.keys[:end]), group) >= 0
        return found

    def _ask(self, groups: Sequence[int], end: int, after: Step, *, chained: bool) -> None:
        """Asks for what is not here of the first ``end`` keys; then ``after``."""
        hosted, sought, left = self._opened.hosted, self._sought, 1
        positions = None if sought.positions is None else sought.positions[:end]

        def ended(_: Mask | None = None) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._go(after)

        for group in groups:
            if self._there(group, end).all():
                continue
            number = hosted.flat.seek(
                sought.keys[:end],
                group,
                namespace=self._opened.namespace,
                positions=positions,
                chained=chained,
            )
            if not self._waits:
                self._waits = True
                self._session.unanswered += 1
                self._context.active.add(hosted)
            left += 1
            hosted.after(number, ended, max(0.0, self._until - time.monotonic()))
        ended()

    def _go(self, step: Step) -> None:
        """The next step; of a frame that was left, what goes wrong is told to its client."""
        if not self._waits:
            step()
            return
        if self._session.closed or self._opened.hosted.flat.gate.closed:
            self._answered()
            return
        try:
            step()
        except Exception as error:  # outermost: of this request
            self._answered()
            refuse(self._context, self._session, self._sought.op, self._sought.request, error)

    def _answered(self) -> None:
        if self._waits:
            self._waits = False
            self._session.unanswered -= 1

    def _end(self) -> None:
        self._answered()
        self._then()
