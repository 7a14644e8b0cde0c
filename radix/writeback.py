"""Write-back: a block goes down when it is about to be evicted, or once it has waited long enough,
not when it is new. A block without a copy below is *dirty*; it leaves its tier only after that copy
is acknowledged, or the lower tier refused it, or the wait for it is over: then it is dropped and
counted. Keeps I23 (demotion only after the acknowledgement; a clean block is evicted without a
write) and the order of I17 among what may go.

    attached in t --> dirty --(due, or next victim)--> job t -> t+1 --ack--> clean --> evicted
                                          \\-- refused, or waited too long --> dropped, counted
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radix.plan import Cursor
from radix.policy.limits import Limits, Moment
from radix.residency import MAX_STAMP
from radix.shares import FOR_ANYBODY, ONCE, Claim
from radix.tier import Slots, TierMode
from radix.transfers import Transfers
from radix.tree import NO_SLOT
from radix.treeparts import Heads

Mask = npt.NDArray[np.bool_]
NOBODY = 0  # the owner of copies that nobody waits for
_DOWN, _STUCK, _GONE = "goes down", "cannot go now", "is refused"


class _Due(NamedTuple):
    """Blocks that were dirty at ``since``, to be looked at when they have waited long enough."""

    since: Moment
    at: Cursor
    first: int
    pages: int
    source: int
    groups: tuple[int, ...] | None


class Room(NamedTuple):
    """Blocks of one group in one tier: ``free`` slots; resident ones that are ``clean`` or
    ``dirty``; how many of both are ``leased``.
    """

    free: int
    clean: int
    dirty: int
    leased: int


class WriteBack:
    """Who goes down when. ``later`` takes what is new, ``run`` once a poll, ``evict`` instead of an
    eviction that would not look; ``everything`` for a flush. Ask: ``room``.
    """

    def __init__(self, transfers: Transfers, limits: Limits, *, enabled: bool) -> None:
        self._transfers = transfers
        self._residency = transfers.residency
        self._tree = transfers.tree
        self._limits = limits
        self._heads = Heads(self._tree.native)
        self._due: list[deque[_Due]] = [deque() for _ in transfers.tiers]  # by where they are
        self._stuck: dict[tuple[int, int], Moment] = {}
        self.enabled = enabled
        if enabled:
            transfers.later = self.later
            transfers.residency.evictor = self

    def later(
        self, at: Cursor, first: int, count: int, source: int, groups: tuple[int, ...] | None
    ) -> None:
        """Blocks are new in a tier: nothing moves now."""
        if not self._limits.demote_after.endless:
            due = _Due(self._transfers.now(), at, first, count, source, groups)
            self._due[source].append(due)

    def run(self) -> None:
        """What has waited long enough goes down, the oldest first, as long as the queue of the tier
        below takes it: what that refuses it refuses all behind it. Cost: what goes.
        """
        now = self._transfers.now()
        for due in self._due:
            while due and self._limits.demote_after.over(due[0].since, now):
                item = due.popleft()
                if not self._send(item):
                    due.appendleft(item)
                    break

    def _send(self, item: _Due) -> bool:
        """Starts the copies of what is still there and dirty; False where a queue is full."""
        at = self._tree.resolve(item.at)
        count = min(item.pages, at.pages - item.first)
        if count <= 0:
            return True
        return self._store(at, item.first, count, item.source, item.groups)

    def _store(
        self, at: Cursor, first: int, count: int, source: int, groups: tuple[int, ...] | None
    ) -> bool:
        """One tier down, while the path is pinned; False where a queue is full."""
        lease, node, pages = self._tree.lease(at, 0)
        try:
            at = Cursor(at.root, node, pages)
            refused = self._transfers.store(
                at, first, count, source, NOBODY, unless_below=True, groups=groups, at_once=True
            )
        finally:
            self._tree.release(lease, stamp=False)
        return not refused

    # ------------------------------------------------------------ eviction
    def evict(
        self,
        tier: int,
        group: int,
        count: int,
        upto: int = MAX_STAMP,
        claim: Claim = FOR_ANYBODY,
    ) -> Slots:
        """Evicts up to ``count`` clean blocks, oldest first; dirty ones on the way there start on
        theirs, and are not waited for. The slots that became free. Cost: the blocks looked at.
        """
        column = self._tree.column(group, tier)
        gone: list[Slots] = []
        left = count
        once = Claim(claim.tenant, claim.how | ONCE)  # what is behind may be dirty
        while left > 0:
            stamp, node = self._next(column, claim)
            if stamp is None or stamp > upto:
                break
            most, last = left, 0
            if stamp:
                most, last = self._may_go(tier, group, column, node), upto
            if most < 0:
                break
            if most == 0:
                continue
            slots = self._residency.evict_now(tier, group, min(most, left), last, once)
            if not len(slots):
                break
            gone.append(slots)
            left -= len(slots)
        return np.concatenate(gone) if gone else np.empty(0, np.int32)

    def _next(self, column: int, claim: Claim) -> tuple[int | None, int]:
        """The stamp of the next victim, None where nothing can go; and the node that it is of,
        where tenants are told apart.
        """
        shares = self._residency.shares
        if shares is None:
            return self._tree.next_victim(column), 0
        head = shares.head(column, claim)
        return (None, 0) if head is None else (head.stamp, head.node)

    def _may_go(self, tier: int, group: int, column: int, node: int) -> int:
        """How many blocks of the next victim's node may be evicted; 0: its copies have begun and
        another is next; -1: it has to wait.
        """
        at, first, count = self._heads.of(column, self._residency.root_keys, node)
        dirty = self._dirty(at, tier, group, first, count)
        if self._residency.rules[group].everywhere:
            dirty = dirty[::-1]  # a leaf goes from its end, a window from its front
        clean = int(dirty.argmax()) if dirty.any() else len(dirty)
        if clean:
            return clean
        held = int((~dirty).argmax()) if not dirty.all() else len(dirty)
        state = self._demote(at, tier, group, first, count)
        if state == _DOWN:
            self._stuck.pop((tier, group), None)
            return 0
        if state == _STUCK:
            now = self._transfers.now()
            since = self._stuck.setdefault((tier, group), now)
            if not self._limits.drop_after.over(since, now):
                return -1
        self._transfers.count("dropped", tier, group, held, "demote")
        return held

    def _dirty(self, at: Cursor, tier: int, group: int, first: int, count: int) -> Mask:
        """By block of the pages that the tier holds, in order: whether no lower tier has it."""
        have = self._residency.slots(at, group, tier, first, count) != NO_SLOT
        below = self._transfers.held(at, group, self._below(tier), first, count)
        dirty: Mask = ~below[have]
        return dirty

    def _below(self, tier: int) -> range:
        return range(tier + 1, self._transfers.deepest + 1)

    def _demote(self, at: Cursor, tier: int, group: int, first: int, count: int) -> str:
        target = tier + 1
        if target > self._transfers.deepest:
            return _GONE
        lease, node, end = self._tree.lease(at, 0)  # a job pins less: what is behind it may go
        try:
            taken = self._store(Cursor(at.root, node, end), first, count, tier, (group,))
            pages = np.arange(first, first + count, dtype=np.int64)
            at = self._tree.lease_end(at.root, lease)
            coming = self._transfers.landing(at, target, group, pages).any()
        finally:
            self._tree.release(lease, stamp=False)
        if coming:
            return _DOWN
        if self._transfers.wear.spent(target, group, self._transfers.now().ns):
            return _GONE  # there is no telling when it could be written
        if not taken or self._hopeful(target):
            return _STUCK
        return _GONE

    def _hopeful(self, tier: int) -> bool:
        """Whether something under way may make room in a tier that has none now."""
        if self._transfers.tiers[tier].mode is not TierMode.ON:
            return False
        return any(
            tier in (job.move.source, job.move.target) for job in self._transfers.jobs.values()
        )

    def leaving(self, tier: int, group: int) -> int:
        """Blocks on their way down, which may go once that is acknowledged. Cost: the jobs."""
        return sum(
            job.move.blocks
            for job in self._transfers.jobs.values()
            if job.storing and (job.move.source, job.move.group) == (tier, group)
        )

    # ------------------------------------------------------------ all of it
    def dirty_runs(self, tier: int, group: int) -> Iterator[tuple[Cursor, int, int, int]]:
        """(end of the node, first page, pages, dirty blocks among them). Cost: the tree."""
        column = self._tree.column(group, tier)
        for root in list(self._residency.root_keys):
            for node in self._tree.nodes(root):
                lo, hi = self._tree.interval(node.node, column)
                if hi > lo:
                    at = Cursor(root, node.node, node.start + hi)
                    dirty = self._dirty(at, tier, group, node.start + lo, hi - lo)
                    yield at, node.start + lo, hi - lo, int(dirty.sum())

    def everything(self) -> int:
        """Sends every dirty block down; how many there were. Cost: the tree."""
        found = 0
        for tier in range(self._transfers.deepest if self.enabled else 0):
            for group in range(len(self._residency.groups)):
                for at, first, count, dirty in list(self.dirty_runs(tier, group)):
                    end = self._tree.resolve(at)
                    left = min(count, end.pages - first)
                    if dirty and left > 0:
                        found += dirty
                        self._store(end, first, left, tier, (group,))
        return found

    def room(self, tier: int) -> tuple[Room, ...]:
        """What a tier has of each group. Cost: the tree."""
        rooms: list[Room] = []
        for group in range(len(self._residency.groups)):
            stats = self._tree.column_stats(self._tree.column(group, tier))
            dirty = 0
            if tier < self._transfers.deepest:
                dirty = sum(run[3] for run in self.dirty_runs(tier, group))
            free = self._residency.tiers[tier].free_blocks(group)
            rooms.append(Room(free, stats.resident - dirty, dirty, stats.protected))
        return tuple(rooms)
