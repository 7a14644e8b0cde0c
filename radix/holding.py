"""Keeps: what the owner wants to find again for a time is pinned until that is over. They hold a
bounded part of each tier, and give way, the oldest first, to whoever would be refused room on their
account: a keep makes nothing inadmissible (I29). Their pins are leases (I13, I14); how long they
last is told by the owner's clock or his steps alone (I33).

    keep --> HELD --> released | expired | gave way | over its share | reset
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from radix.errors import RequestError
from radix.gate import Gate
from radix.misses import stepped
from radix.plan import Cursor, Pages
from radix.policy.limits import Moment, Patience
from radix.residency import Residency
from radix.tier import Slots
from radix.tree import EVERY_GROUP, NO_SLOT

RELEASED, EXPIRED, GAVE_WAY = "released", "expired", "gave way"
OVER_SHARE, RESET, NOTHING = "over its share", "reset", "nothing was there"
MOST_ENDED = 64  # before their time, or extended, of which the old time may be remembered


class Pin(Protocol):
    """Blocks that stay where they are while they are pinned."""

    @property
    def leases(self) -> int:
        """Leases of the tree that it takes."""
        ...

    def slots(self, tier: int, group: int) -> Slots:
        """The slots of its blocks. Cost: the blocks."""
        ...

    def loosen(self) -> None:
        """Gives the pin back; nothing becomes younger."""
        ...

    def fasten(self) -> None:
        """Pins them again, when nothing has changed since."""
        ...

    def ended(self) -> None:
        """It is over for good, and loosened."""
        ...


@dataclass(slots=True)
class Hold:
    """What the cache knows of one keep: its ``pin``; ``why`` it is over, empty while it holds."""

    number: int
    root: int
    since: Moment
    patience: Patience
    pin: Pin
    why: str = ""


class Keeps:
    """All keeps of one cache or store. ``enter``, ``extend``, ``end``, ``run`` once a poll;
    ``give_way`` for who lacks room. Ask: ``kept``, ``leases``. ``share``: of each tier that they
    may hold.
    """

    def __init__(self, residency: Residency, share: float, now: Callable[[], Moment]) -> None:
        self._residency, self._share, self.now = residency, share, now
        self._next = 1
        self.open: dict[int, Hold] = {}  # the oldest first
        # by step, time and poll: when whose time is over; some have ended before, or last longer
        self._due: list[list[tuple[int, int]]] = [[], [], []]
        residency.keeper = self

    def enter(self, root: int, patience: Patience, pin: Pin) -> Hold:
        """Takes over a pin until it is to be given back. Older ones that hold more than the share
        with it end. Cost: its blocks, and those of all where others pin as much.
        """
        hold = Hold(self._next, root, self.now(), patience, pin)
        self._next += 1
        self.open[hold.number] = hold
        self._time(hold)
        self._count("started")
        self._bound()
        return hold

    def extend(self, hold: Hold, patience: Patience) -> None:
        """From now on it lasts so long."""
        hold.since, hold.patience = self.now(), patience
        self._time(hold)

    def _time(self, hold: Hold) -> None:
        """Takes note of when its time is over. Cost: the logarithm of the keeps."""
        for which, end in enumerate(hold.patience.ends(hold.since)):
            due = self._due[which]
            if end is not None:
                heapq.heappush(due, (end, hold.number))
            if len(due) > 2 * len(self.open) + MOST_ENDED:
                each = [(one.patience.ends(one.since)[which], one) for one in self.open.values()]
                due[:] = sorted((end, one.number) for end, one in each if end is not None)

    def end(self, hold: Hold, why: str) -> None:
        """It holds nothing any more. Idempotent. Its blocks are as old as before it."""
        if not hold.why:
            hold.pin.loosen()
            self._over(hold, why)

    def _over(self, hold: Hold, why: str) -> None:
        hold.why = why
        del self.open[hold.number]
        self._count(why.replace(" ", "_"))
        hold.pin.ended()

    def end_all(self, why: str, roots: Sequence[int] | None = None) -> None:
        """Ends all of them (``roots``: of these namespaces)."""
        for hold in list(self.open.values()):
            if roots is None or hold.root in roots:
                self.end(hold, why)

    def run(self) -> None:
        """Ends those whose time is over, and what has come to hold too much. Cost: those, and where
        others pin as much as keeps may hold, the blocks of all.
        """
        if not self.open:
            return
        now = self.now()
        for due, reached in zip(self._due, now, strict=True):
            while due and due[0][0] <= reached:
                hold = self.open.get(heapq.heappop(due)[1])
                if hold is not None and hold.patience.over(hold.since, now):  # not extended since
                    self.end(hold, EXPIRED)
        self._bound()

    def give_way(self, counts: Sequence[int]) -> bool:
        """Ends as many as must, the oldest first, for ``counts`` blocks a group of the first tier
        to be had; False where none has to, or all of them would not be enough: then none has.
        Cost: their blocks.
        """
        short = [group for group, count in enumerate(counts) if not self._fits(group, count)]
        loose: list[Hold] = []
        for hold in list(self.open.values()) if short else ():
            if not any(len(hold.pin.slots(0, group)) for group in short):
                continue
            hold.pin.loosen()
            loose.append(hold)
            if self._shares or all(self._fits(group, counts[group]) for group in short):
                for each in loose:
                    self._over(each, GAVE_WAY)
                return True
        for hold in loose:
            hold.pin.fasten()
        return False

    @property
    def _shares(self) -> bool:
        """Whether blocks of any group make room in the first tier for those of another."""
        return self._residency.tiers[0].capability.shares_bytes

    def _fits(self, group: int, count: int) -> bool:
        return not count or (not self._shares and count <= self._residency.available(0, group))

    def kept(self, tier: int, group: int) -> int:
        """Blocks of (tier, group) that keeps hold, each counted once. Cost: the blocks."""
        slots = [hold.pin.slots(tier, group) for hold in self.open.values()]
        return len(np.unique(np.concatenate(slots))) if slots else 0

    @property
    def leases(self) -> int:
        """Leases that they hold. Cost: the keeps."""
        return sum(hold.pin.leases for hold in self.open.values())

    # ------------------------------------------------------------ their share
    def excess(self, slots: Callable[[int, int], Slots]) -> float:
        """How many times its share of a tier something takes that holds these slots, where that is
        most. Cost: the slots.
        """
        most = 0.0
        for tier in range(len(self._residency.tiers)):

            def count(group: int, tier: int = tier) -> int:
                return len(slots(tier, group))

            most = max(most, self._taken(tier, count) / self._share)
        return most

    def _taken(self, tier: int, count: Callable[[int], int]) -> float:
        """The part of a tier that ``count(group)`` blocks take: of one group's pool, or of all."""
        store, parts = self._residency.tiers[tier], []
        for group in range(len(self._residency.groups)):
            if blocks := count(group):
                parts.append(blocks / max(1, store.capacity_blocks(group)))
        together = sum if store.capability.shares_bytes else max
        return together(parts) if parts else 0.0

    def _bound(self) -> None:
        """Ends the oldest until they hold no more than their share of each tier."""
        tree = self._residency.tree
        for tier in range(len(self._residency.tiers)):

            def pinned(group: int, tier: int = tier) -> int:
                return tree.column_stats(tree.column(group, tier)).protected

            def kept(group: int, tier: int = tier) -> int:
                return self.kept(tier, group)

            if self._taken(tier, pinned) <= self._share:
                continue  # all pins together: no need to look at theirs
            while self._taken(tier, kept) > self._share:
                groups = range(len(self._residency.groups))
                holds = list(self.open.values())
                oldest = next(h for h in holds if any(len(h.pin.slots(tier, g)) for g in groups))
                self.end(oldest, OVER_SHARE)

    def _count(self, what: str) -> None:
        self._residency.metrics.add(("keep", what))


def path_slots(
    residency: Residency, end: Callable[[], Cursor], pages: int
) -> Callable[[int, int], Slots]:
    """The slots, by (tier, group), of what a hit of ``pages`` pages needs on the path to ``end()``;
    none where a block is not there. Cost of each: the pages.
    """
    needs: list[Pages] = []
    for rule in residency.rules:
        size = rule.block_pages
        ends = np.arange(size - 1, pages, size, dtype=np.int64)
        first = rule.first_page(pages) if rule.lookup else pages
        needs.append(ends[ends >= first] + rule.lookahead_pages)

    def slots(tier: int, group: int) -> Slots:
        at, wanted = end(), needs[group]
        wanted = wanted[wanted < at.pages]
        if not len(wanted):
            return np.empty(0, np.int32)
        first = int(wanted[0])
        have = residency.slots(at, group, tier, first, int(wanted[-1]) - first + 1)
        have = have[wanted - first]
        found: Slots = have[have != NO_SLOT]
        return found

    return slots


class PathPin:
    """What a hit of ``pages`` pages needs on a path, pinned from the start: its blocks, and behind
    them those of groups that look ahead. ``then``: called when it is over.
    """

    def __init__(
        self, residency: Residency, at: Cursor, pages: int, then: Callable[[], None]
    ) -> None:
        """``at``: where the path is known to end. Raises what the tree raises."""
        self._tree, self._root, self._then = residency.tree, at.root, then
        self._ends = [(at._replace(pages=pages), EVERY_GROUP)]
        ahead = [rule.lookahead_pages for rule in residency.rules]
        if upto := min(pages + max(ahead), at.pages) - pages:
            mask = sum(1 << group for group, count in enumerate(ahead) if count)
            self._ends.append((at._replace(pages=pages + upto), mask))
        self._held: list[int] = []
        self.fasten()
        self.slots = path_slots(residency, self._at, pages)

    @property
    def leases(self) -> int:
        """Leases of the tree that it takes."""
        return len(self._ends)

    def _at(self) -> Cursor:
        """The end of what is pinned last, which lies deepest."""
        return self._tree.lease_end(self._root, self._held[-1])

    def loosen(self) -> None:
        """Gives the leases back."""
        tree, root = self._tree, self._root
        masks = [mask for _, mask in self._ends]
        ends = [tree.lease_end(root, lease) for lease in self._held]
        self._ends = list(zip(ends, masks, strict=True))
        while self._held:
            tree.release(self._held.pop(), stamp=False)

    def fasten(self) -> None:
        """Takes the leases."""
        try:
            for end, mask in self._ends:
                self._held.append(self._tree.lease(end, mask)[0])
        except BaseException:
            while self._held:
                self._tree.release(self._held.pop(), stamp=False)
            raise

    def ended(self) -> None:
        """It is over."""
        self._then()


def length_within(
    keeps: Keeps, residency: Residency, at: Cursor, pages: int, step: int, max_bytes: int | None
) -> int:
    """The longest prefix of a hit of ``pages`` pages, itself a hit and a multiple of ``step``, of
    which the blocks take at most ``max_bytes``, each counted once however many tiers have it, and
    of each tier no more than the share of keeps. Changes nothing. Cost: the pages, a few times.
    """
    readable, tiers = residency.readable(), range(len(residency.tiers))
    while pages:
        length = pages
        slots = path_slots(residency, lambda: at, length)
        ratio = keeps.excess(slots)
        if max_bytes is not None:
            nbytes = sum(
                max(len(slots(tier, group)) for tier in tiers) * spec.block_bytes
                for group, spec in enumerate(residency.groups)
            )
            ratio = max(ratio, nbytes / max_bytes)
        if ratio <= 1:
            return pages
        fewer = min(pages - 1, int(pages / ratio))
        pages = residency.tree.joint(at, fewer, readable)[0] if fewer else 0
        pages = stepped(residency, at, pages, step, readable)
    return 0


def blocks_of(residency: Residency, slots: Callable[[int, int], Slots]) -> int:
    """Blocks of all groups, each counted once however many tiers have it. Cost: the blocks."""
    tiers = range(len(residency.tiers))
    groups = range(len(residency.groups))
    return sum(max(len(slots(tier, group)) for tier in tiers) for group in groups)


def kept_pages(residency: Residency, keeps: Keeps, at: Cursor, pages: int) -> int:
    """How many of the first ``pages`` pages of a path keeps hold in some tier. Cost: the keeps and
    their blocks.
    """
    if not pages or not keeps.open:
        return 0
    held = np.zeros(pages, np.bool_)
    for tier in range(len(residency.tiers)):
        for group, rule in enumerate(residency.rules):
            if not rule.everywhere:
                continue
            mine = [hold.pin.slots(tier, group) for hold in keeps.open.values()]
            have = residency.blocks(at, group, tier, 0, pages)
            ends = np.flatnonzero((have != NO_SLOT) & np.isin(have, np.concatenate(mine)))
            for back in range(rule.block_pages):
                held[ends - back] = True
    return int(held.sum())


class Keep:
    """A prefix, or a set of keys, that is held for a time: ``PrefixCache.keep``,
    ``FlatStore.keep``. It ends by itself; ``release`` ends it early, ``extend`` begins it anew.
    Dropping this object ends nothing. As a context it is released at the end of the block.
    """

    __slots__ = ("_gate", "_hold", "_keeps", "_release", "blocks", "tokens")

    def __init__(
        self,
        gate: Gate,
        keeps: Keeps,
        hold: Hold | None,
        tokens: int,
        blocks: int,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """``tokens``, ``blocks``: what it holds, blocks counted once however many tiers have them;
        ``release``: what ends with it when its owner says so.
        """
        self._gate, self._keeps, self._hold = gate, keeps, hold
        self.tokens, self.blocks, self._release = tokens, blocks, release

    @property
    def held(self) -> bool:
        """Whether it still holds something."""
        return self._hold is not None and not self._hold.why

    @property
    def ended(self) -> str:
        """Why it holds nothing: "released", "expired", "gave way" (somebody lacked room), "over its
        share", "reset" or "nothing was there"; empty while it holds.
        """
        return NOTHING if self._hold is None else self._hold.why

    def extend(self, seconds: float | None = None, *, steps: int | None = None) -> None:
        """From now on it lasts so long. ``RequestError`` once it has ended; ``ValueError``,
        ``TypeError``.
        """
        patience = lasting(seconds, steps)
        with self._gate:
            if self._hold is None or self._hold.why:
                raise RequestError(f"extend: the keep has ended: {self.ended}")
            self._keeps.extend(self._hold, patience)

    def release(self) -> None:
        """Ends it. Idempotent; nothing on a closed cache."""
        if self._gate.closed:
            return
        if self._hold is not None:
            with self._gate:
                self._keeps.end(self._hold, RELEASED)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def lasting(seconds: object, steps: object) -> Patience:
    """How long a keep lasts: at least one of the two. ``ValueError``, ``TypeError`` by name."""
    ns = None
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
            raise TypeError(f"seconds must be a number, not {type(seconds).__name__}")
        if not 0 < float(seconds) < float("inf"):
            raise ValueError(f"seconds must be finite and above 0, not {seconds}")
        ns = max(1, round(float(seconds) * 1e9))
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(f"steps must be an int, not {type(steps).__name__}")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
    elif ns is None:
        raise ValueError("seconds or steps must say how long to keep it")
    return Patience(steps=steps, ns=ns)


def most_bytes(value: object) -> int | None:
    """``max_bytes`` of a keep: at least 1, or None. ``ValueError``, ``TypeError``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_bytes must be an int or None, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"max_bytes must be at least 1, not {value}")
    return value
