"""Prefetches: a hit of lower tiers is brought to the tier below the device before the request is
admitted, so that its loads are short. They hold a bounded part of that tier, run behind demand
loads, can be cancelled at any moment and try nothing twice. Keeps I22 for what they move, and that
nothing is taken for a prompt that has no hit (C83-C86).

    start --> WAITING --(budget)--> RUNNING --(all settled)--> DONE --(release, deadline)--> over
                 \\--------------- cancel ------------------------------------------------/
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Self

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.finding import Asking, Finding
from radix.gate import Gate
from radix.groups import Rule
from radix.lifecycle import Held
from radix.plan import Cursor, Move, Pages
from radix.policy.limits import Moment
from radix.residency import Residency
from radix.tier import TierMode, Urgency
from radix.transfers import Job, Transfers
from radix.tree import NO_SLOT

MOST_WAITING = 256
MOST_BLOCKS = 64  # in one transfer, so that a cancelled one is over soon
Mask = npt.NDArray[np.bool_]


class PrefetchState(Enum):
    """WAITING for its budget, RUNNING, DONE (what came is pinned), OVER (nothing is)."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    OVER = "over"


@dataclass(slots=True)
class Ahead:
    """What the cache knows of one prefetch; by group, ``left``: pages, as the tree counts, that are
    still to go up; ``share``: blocks of the budget.
    """

    number: int
    end: Cursor
    hit: int
    left: list[Pages]
    share: list[int]
    since: Moment
    asking: Asking | None = None  # what else is there may come with the answer
    lease: int = 0  # taken with the share: who waits holds nothing (R4)
    state: PrefetchState = PrefetchState.WAITING


class Prefetches:
    """All prefetches of one cache. ``start``, ``release``; ``ended`` for each of their transfers;
    ``run`` once a poll. Ask: ``held``, ``check``.

    A poll looks at those for which something may have changed. By number, that is by age:

        WAITING   ``_asking`` for an answer, or ``_queue`` for the budget: the first that is short
                  of it blocks all behind it
        RUNNING   ``_out``: transfers are under way, by owner; ``_back[tier]``: pages wait for a
                  place among the loads of that tier; an item may be in several of these
    """

    def __init__(self, transfers: Transfers, finding: Finding) -> None:
        self._transfers = transfers
        self._finding = finding
        self._residency: Residency = transfers.residency
        self._limits = transfers.limits
        self.goal = 1 if transfers.borrowed is None else 0
        self._next = 1
        self.open: dict[int, Ahead] = {}  # the oldest first
        self._asking: dict[int, Ahead] = {}
        self._queue: list[int] = []
        self._out: set[int] = set()
        self._back: list[list[int]] = [[] for _ in self._residency.tiers]
        self._stirred: set[int] = set()  # more of them is to go up: a lower hop has ended
        self._taken = [0] * len(self._residency.rules)
        self._loads: list[set[int]] = [set() for _ in self._residency.tiers]  # of ours, by source

    def start(self, at: Cursor, hit: int, asking: Asking | None = None) -> Ahead:
        """Begins with a hit of ``hit`` pages on the path to ``at``, or with the one known once the
        tier that was asked (``asking``) has answered; takes nothing where it has nothing in the
        lower tiers. Cost: the pages.
        """
        groups = len(self._residency.rules)
        none = [np.empty(0, np.int64) for _ in range(groups)]
        item = Ahead(self._next, at, hit, none, [0] * groups, self._transfers.now(), asking)
        self._next += 1
        if asking is None and not any(len(pages) for pages in self._needs(item)):
            item.state = PrefetchState.OVER
            return item
        self.open[item.number] = item
        if asking is None:
            self._queue.append(item.number)
        else:
            self._asking[item.number] = item
        if len(self._queue) + len(self._asking) > MOST_WAITING:
            self._count("declined", 1)
            self.release(item)
        else:
            self.run()
        return item

    def _needs(self, item: Ahead) -> list[Pages]:
        """By group the pages that lie too low now, on what is left of the path."""
        tree = self._residency.tree
        item.end = tree.resolve(item.end)
        most = min(item.hit, item.end.pages)
        item.hit = tree.joint(item.end, most, self._residency.readable())[0] if most else 0
        return [
            self._away(item.end, group, rule, item.hit) if item.hit else np.empty(0, np.int64)
            for group, rule in enumerate(self._residency.rules)
        ]

    def _away(self, end: Cursor, group: int, rule: Rule, hit: int) -> Pages:
        """The entries that the hit needs of a group and that lie below the goal, as many as the
        budget ever allows.
        """
        wanted = Held.empty(rule, hit, hit, reuses=False).wanted(hit) + rule.lookahead_pages
        wanted = wanted[wanted < end.pages]
        if not len(wanted):
            return wanted
        there = self._source(end, group, wanted) > self.goal
        return wanted[there][: self.budget(group)]

    def _source(self, end: Cursor, group: int, pages: Pages) -> npt.NDArray[np.int8]:
        """The uppermost readable tier that holds each page; -1 where none does."""
        source = np.full(len(pages), -1, np.int8)
        first, count = int(pages[0]), int(pages[-1] - pages[0]) + 1
        for tier in reversed(range(len(self._residency.tiers))):
            if self._residency.tiers[tier].mode is not TierMode.OFF:
                have = self._residency.slots(end, group, tier, first, count)
                source[have[pages - first] != NO_SLOT] = tier
        return source

    def budget(self, group: int) -> int:
        """Blocks of a group that prefetches may hold in their tier at once."""
        if self.goal >= len(self._residency.tiers):
            return 0
        capacity = self._residency.tiers[self.goal].capacity_blocks(group)
        most = self._limits.prefetch_blocks
        return capacity // 2 if most is None else min(most, capacity)

    def held(self, group: int) -> int:
        """Blocks of the budget that are taken. Cost: O(1)."""
        return self._taken[group]

    # ------------------------------------------------------------ going on
    def run(self) -> None:
        """Ends those whose time is over, moves what can move, starts those that have their budget,
        the oldest first. Cost: those for which something has changed.
        """
        self._expire()
        over = self._out.difference(self._transfers.outstanding)  # in C: a budget may be large
        for number in sorted(self._stirred.union(-owner for owner in over)):
            self._stirred.discard(number)
            self._advance(self.open[number])
        for tier, back in enumerate(self._back):
            while back and not self._crowded(tier):
                self._advance(self.open[back[0]])
        for item in list(self._asking.values()):
            if item.asking is not None and item.asking.settled:
                del self._asking[item.number]
                if self._is_answered(item, item.asking):
                    insort(self._queue, item.number)
        while self._queue and self._begin(self.open[self._queue[0]]):
            self._advance(self.open[self._queue.pop(0)])

    def _expire(self) -> None:
        bound = self._limits.prefetch_deadline
        if not self.open or bound.endless:
            return
        now = self._transfers.now()
        while (item := next(iter(self.open.values()), None)) and bound.over(item.since, now):
            self._count("expired", 1)
            self.release(item)

    def _is_answered(self, item: Ahead, asking: Asking) -> bool:
        """What it hits is known: whether that is something below; it is over where it is not."""
        found, item.asking = self._finding.reached(asking), None
        if found is not None:
            item.end, item.hit = found
            if any(len(pages) for pages in self._needs(item)):
                return True
        self.release(item)
        return False

    def _begin(self, item: Ahead) -> bool:
        """Takes its share of the budget, and a pin; False where that is short."""
        left = self._needs(item)
        share = [len(pages) for pages in left]
        for group, count in enumerate(share):
            if count and self.held(group) + count > self.budget(group):
                return False
        tree, end = self._residency.tree, item.end
        ahead = max((rule.lookahead_pages for rule in self._residency.rules), default=0)
        pages = min(item.hit + ahead, end.pages)
        item.lease, node, pages = tree.lease(end._replace(pages=pages))
        item.end = Cursor(end.root, node, pages)
        item.left, item.share, item.state = left, share, PrefetchState.RUNNING
        self._take(share, 1)
        return True

    def _take(self, share: list[int], sign: int) -> None:
        for group, count in enumerate(share):
            self._taken[group] += sign * count

    def _advance(self, item: Ahead) -> None:
        self._forget(item)
        for group, pages in enumerate(item.left):
            if len(pages):
                item.left[group] = self._climb(item, group, pages)
        if -item.number in self._transfers.outstanding:
            self._out.add(-item.number)
        elif not any(len(pages) for pages in item.left):
            self._finish(item)

    def _forget(self, item: Ahead) -> None:
        """Nothing of one that runs waits any more."""
        self._out.discard(-item.number)
        for back in self._back:
            _remove(back, item.number)

    def _climb(self, item: Ahead, group: int, pages: Pages) -> Pages:
        """Starts what can start; the pages that have to wait."""
        source = self._source(item.end, group, pages)
        later: list[Pages] = []
        for tier in range(self.goal + 1, len(self._residency.tiers)):
            these = pages[source == tier]
            if len(these):
                target = self._transfers.above(tier)
                coming = self._transfers.landing(item.end, target, group, these)
                these = these[~coming]  # somebody brings them
            while len(these):
                if self._crowded(tier):
                    later.append(these)
                    _insert(self._back[tier], item.number)
                    break
                sent = self._load(item, group, tier, these[:MOST_BLOCKS])
                these = these[sent:] if sent else these[MOST_BLOCKS:]
        return np.sort(np.concatenate(later)) if later else np.empty(0, np.int64)

    def _crowded(self, tier: int) -> bool:
        """Whether as many loads of a tier as may run do. Cost: so many."""
        most, loads, jobs = self._limits.prefetches, self._loads[tier], self._transfers.jobs
        if most is None or len(loads) < most:
            return False
        # What ended is gone, and what was late has no owner any more.
        loads.intersection_update([n for n in loads if n in jobs and jobs[n].owner < 0])
        return len(loads) >= most

    def _load(self, item: Ahead, group: int, tier: int, pages: Pages) -> int:
        """Starts one transfer one tier up; of how many pages. What finds no room, or is refused,
        does not come.
        """
        target = self._transfers.above(tier)
        slots = self._transfers.fitting(target, group, len(pages), item.end.root)
        if not len(slots):
            return 0
        move = Move(item.end, group, tier, target, pages[: len(slots)])
        owner = -item.number
        job = self._transfers.load(move, slots, owner, Urgency.PREFETCH)
        if job is None:
            self._residency.tiers[target].abort(group, slots)
            return 0
        if self._limits.prefetches is not None:
            self._loads[tier].add(job.number)
        return len(slots)

    def ended(self, job: Job, arrived: Mask) -> None:
        """One of their transfers ended, while its pin stands."""
        item = self.open.get(-job.owner)
        if item is None or item.state is not PrefetchState.RUNNING:
            return
        came = job.move.pages[arrived]
        if job.move.target > self.goal and len(came):
            group = job.move.group
            item.left[group] = np.union1d(item.left[group], came).astype(np.int64)
            self._stirred.add(item.number)
        elif len(came):
            self._count("blocks", len(came))

    # ------------------------------------------------------------ the end
    @property
    def leases(self) -> int:
        """Leases that they hold. Cost: what is open."""
        return sum(item.lease != 0 for item in self.open.values())

    def _finish(self, item: Ahead) -> None:
        item.state = PrefetchState.DONE

    def release(self, item: Ahead) -> None:
        """Gives up what it pins and cancels what it moves. Idempotent."""
        if item.state is PrefetchState.OVER:
            return
        if item.state is PrefetchState.WAITING:
            self._asking.pop(item.number, None)
            _remove(self._queue, item.number)
        else:
            self._take(item.share, -1)
            self._forget(item)
            self._stirred.discard(item.number)
        done, item.state = item.state is PrefetchState.DONE, PrefetchState.OVER
        del self.open[item.number]
        if -item.number in self._transfers.outstanding:
            for job in list(self._transfers.jobs.values()):
                if job.owner == -item.number:
                    self._transfers.cancel(job)
        if item.lease:
            self._residency.tree.release(item.lease, stamp=done)

    def _count(self, what: str, count: int) -> None:
        self._residency.metrics.add(("prefetch", what), count)

    def check(self) -> None:
        """Each stands where its state says, and what they have of the budget adds up. Raises
        ``InvariantError``. Cost: what is open, and the jobs.
        """
        waiting, running, done = (
            [item for item in self.open.values() if item.state is state]
            for state in (PrefetchState.WAITING, PrefetchState.RUNNING, PrefetchState.DONE)
        )
        known = sorted([*self._asking, *self._queue])
        if known != [item.number for item in waiting] or self._queue != sorted(self._queue):
            raise InvariantError("I22", f"prefetches that wait: {waiting}, known {known}")
        back = {number for each in self._back for number in each}
        for item in running:
            waits = any(len(pages) for pages in item.left) and item.number not in self._stirred
            if waits and item.number not in back:
                raise InvariantError("I22", f"pages of prefetch {item.number} are forgotten")
            if -item.number not in self._out and item.number not in back:
                raise InvariantError("I22", f"prefetch {item.number} runs and waits for nothing")
        known = [*(-owner for owner in self._out), *back, *self._stirred]
        if set(known) - {item.number for item in running}:
            raise InvariantError("I22", "a prefetch is awaited that does not run")
        for group, taken in enumerate(self._taken):
            if taken != sum(item.share[group] for item in (*running, *done)):
                raise InvariantError("I22", f"prefetches have {taken} blocks of group {group}")


def _insert(numbers: list[int], number: int) -> None:
    """Enters it into a sorted list, once."""
    at = bisect_left(numbers, number)
    if at == len(numbers) or numbers[at] != number:
        numbers.insert(at, number)


def _remove(numbers: list[int], number: int) -> None:
    """Takes it out of a sorted list, if it is there."""
    at = bisect_left(numbers, number)
    if at < len(numbers) and numbers[at] == number:
        del numbers[at]


class Prefetch:
    """A prefetch that was asked for, from ``PrefixCache.prefetch`` on. What it brought stays pinned
    until ``release``, the end of a ``with`` block, or its deadline; admit meanwhile.
    """

    __slots__ = ("_gate", "_item", "_page_tokens", "_release")

    def __init__(
        self, gate: Gate, item: Ahead, release: Callable[[Ahead], None], page_tokens: int
    ) -> None:
        self._gate = gate
        self._item = item
        self._release = release
        self._page_tokens = page_tokens

    @property
    def tokens(self) -> int:
        """What the prompt hits, as far as is known by now: where a tier was asked that other caches
        store in, more may come with its answer.
        """
        return self._item.hit * self._page_tokens

    @property
    def state(self) -> PrefetchState:
        """Where it is; it goes on at each ``poll`` of the cache."""
        return self._item.state

    @property
    def settled(self) -> bool:
        """Whether nothing of it moves any more."""
        return self._item.state in (PrefetchState.DONE, PrefetchState.OVER)

    def release(self) -> None:
        """Cancels what moves, unpins what came. Idempotent; nothing on a closed cache."""
        if not self._gate.closed:
            with self._gate:
                self._release(self._item)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
