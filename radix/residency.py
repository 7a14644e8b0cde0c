"""Which block lies where: the tree's columns and the tiers' slots, changed together and only here,
so that every slot has one owner (I7, I8) and the event stream is true (I32). Decides who goes when
a tier is short (I16, I17), and remembers in a small table what went, so that a miss can say
whether the prefix was never seen or was evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib, tree_evict
from radix.errors import CapacityError, TierError, TierFullError
from radix.events import BlocksRemoved, BlocksStored, Event
from radix.groups import Group, Rule
from radix.metrics import Metrics
from radix.plan import Cursor
from radix.shares import FOR_ANYBODY, Claim, Evictor, Quotas, Shares
from radix.tier import Keys, Slots, Tier, TierMode
from radix.tree import NO_SLOT, TreeCore
from radix.treeparts import NodeView

GHOSTS = 1 << 16
MAX_STAMP = (1 << 64) - 1
_ON, _OFF = TierMode.ON, TierMode.OFF  # members of an Enum are slow to look up
EVICTED = "evicted"
CORRUPT = "corrupt"
NOT_CACHEABLE = "not cacheable"
RESET = "reset"
OTHER_REASONS = (CORRUPT, NOT_CACHEABLE, RESET)


class Keeper(Protocol):
    """Who pins what nobody uses now, and gives it up for whoever lacks room."""

    def give_way(self, counts: Sequence[int]) -> bool:
        """Gives something up where so many blocks a group of the first tier are wanted."""
        ...

    def kept(self, tier: int, group: int) -> int:
        """Blocks that are pinned so."""
        ...


class Residency:
    """The tree over the tiers that it places blocks in.

    Room: ``reserve``, ``make_room``, ``evict``, ``available``. Change: ``attach``, ``drop``,
    ``forget``. Look: ``slots``, ``readable``, ``why_gone``, ``check``.
    """

    def __init__(
        self,
        tree: TreeCore,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        metrics: Metrics,
        events: list[Event] | None,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.tree = tree
        self.groups = tuple(groups)
        self.rules = tuple(rules)
        self.tiers = tuple(tiers)
        self.bits = tuple((tier, 1 << number) for number, tier in enumerate(self.tiers))
        self.metrics = metrics
        self.events = events
        self.root_keys: dict[int, bytes] = {}
        self.root_names: dict[int, bytes] = {}
        self.evictor: Evictor | None = None  # where not every block may go at once
        self.keeper: Keeper | None = None
        self.shares: Shares | None = None  # where tenants are told apart
        self.quotas: Quotas | None = None  # there, too
        self._ghosts = np.zeros(GHOSTS, np.uint64) if tree.key_bytes else None
        self._ghost_why = np.zeros(GHOSTS, np.uint8)
        self._why = [f"evicted from {tier.name}" for tier in self.tiers] + list(OTHER_REASONS)
        self._evict_keys = tuple(
            [
                ("evict", "blocks", tier.name, group.name)
                for group in self.groups
                for tier in self.tiers
            ]
        )

    def readable(self) -> int:
        """Bit mask of the tiers whose blocks count for a hit."""
        mask = 0
        for tier, bit in self.bits:
            if tier.mode is not _OFF:
                mask |= bit
        return mask

    def slots(self, at: Cursor, group: int, tier: int, first: int, count: int) -> Slots:
        """Slots of pages [first, first+count) of a path; -1 where none."""
        return self.tree.slots(at, self.tree.column(group, tier), first, count)

    def blocks(self, at: Cursor, group: int, tier: int, first: int, count: int) -> Slots:
        """The same by the page with which a block ends: a group that looks ahead has it further
        down the path. -1 where the path ends before.
        """
        ahead = self.rules[group].lookahead_pages
        if not ahead:
            return self.slots(at, group, tier, first, count)
        out = np.full(count, NO_SLOT, np.int32)
        there = min(count, at.pages - ahead - first)
        if there > 0:
            out[:there] = self.slots(at, group, tier, first + ahead, there)
        return out

    # ------------------------------------------------------------ room
    def available(self, tier: int, group: int, root: int | None = None) -> int:
        """Blocks that ``reserve`` could give now: free ones and those that may go; none of a tier
        that is not on. ``root``: to the tenant of this one, where tenants are told apart.
        """
        if self.tiers[tier].mode is not _ON:
            return 0
        if self.quotas is not None and root is not None:
            return self.quotas.available(tier, group, root)
        stats = self.tree.column_stats(self.tree.column(group, tier))
        return self.tiers[tier].free_blocks(group) + stats.resident - stats.protected

    def at_once(self, tier: int, group: int, root: int | None = None) -> int:
        """What is left of ``available`` after a ``reserve`` failed: what can be had without copying
        anything down first.
        """
        most = self.available(tier, group, root)
        return most if self.evictor is None else min(most, self.tiers[tier].free_blocks(group))

    def reserve(self, tier: int, group: int, count: int, root: int | None = None) -> Slots:
        """``count`` slots, evicting what has to go. All or nothing as to slots. ``root``: for the
        tenant of this one, where tenants are told apart; None: for nobody in particular.

        Raises as ``make_room``, and ``TierError`` for a tier that fails. Cost: the slots.
        """
        if self.quotas is not None and root is not None:
            return self.quotas.reserve(tier, group, count, root)
        self.make_room(tier, group, count)
        try:
            return self.tiers[tier].reserve(group, count)
        except TierFullError as error:
            raise self.shortage(tier, group, count) from error

    def make_room(self, tier: int, group: int, count: int) -> None:
        """Evicts what has to go for ``count`` slots. Raises ``CapacityError`` with what is short;
        evicts nothing if that could not help. Cost: what goes.
        """
        store = self.tiers[tier]
        if store.mode is not _ON:
            # It gives no slots whatever is evicted, and its blocks may still serve loads.
            raise self.shortage(tier, group, count)
        short = count - store.free_blocks(group)
        if short > 0:
            stats = self.tree.column_stats(self.tree.column(group, tier))
            may_go = stats.resident - stats.protected
            never = count > store.capacity_blocks(group)
            if never or (may_go < short and not self._others(tier, group)):
                raise self.shortage(tier, group, count)
            if self._shares_all(tier):
                self._make_bytes(tier, group, count)
            elif len(self.evict(tier, group, short)) < short:
                self._make_slots(tier, group, count)

    def _others(self, tier: int, group: int) -> bool:
        """Whether blocks of other groups of one byte budget could make room."""
        return self._oldest_other(tier, group) is not None

    def _make_slots(self, tier: int, group: int, count: int) -> None:
        store = self.tiers[tier]
        while (short := count - store.free_blocks(group)) > 0:
            if len(self.evict(tier, group, short)):
                continue
            victim = self._oldest_other(tier, group)
            if victim is None or not len(self.evict(tier, victim, max(short, 64))):
                return

    def _shares_all(self, tier: int) -> bool:
        """Whether any block that goes makes room for any other: no segment must be empty first."""
        capability = self.tiers[tier].capability
        return len(self.groups) > 1 and capability.shares_bytes and not capability.holds_bytes

    def _make_bytes(self, tier: int, group: int, count: int) -> None:
        """Evicts, over all groups, what was used longest ago, dead blocks first."""
        store, tree = self.tiers[tier], self.tree
        size = self.groups[group].block_bytes
        while (short := count - store.free_blocks(group)) > 0:
            heads = sorted(
                (stamp, other)
                for other in range(len(self.groups))
                if (stamp := tree.next_victim(tree.column(other, tier))) is not None
            )
            if not heads:
                return
            victim = heads[0][1]
            blocks = -(-short * size // self.groups[victim].block_bytes)
            upto = heads[1][0] if len(heads) > 1 else MAX_STAMP
            if not len(self.evict(tier, victim, blocks, upto)):
                return

    def _oldest_other(self, tier: int, group: int) -> int | None:
        if not self.tiers[tier].capability.shares_bytes:
            return None
        stamps = [
            (stamp, other)
            for other in range(len(self.groups))
            if other != group
            and (stamp := self.tree.next_victim(self.tree.column(other, tier))) is not None
        ]
        return min(stamps)[1] if stamps else None

    def shortage(self, tier: int, group: int, count: int, root: int | None = None) -> CapacityError:
        """The error that says what is short in (tier, group)."""
        if self.quotas is not None and root is not None:
            return self.quotas.shortage(tier, group, count, root)
        stats = self.tree.column_stats(self.tree.column(group, tier))
        dirty = min(self.dirty(tier, group), stats.protected)
        return CapacityError(
            f"tier {self.tiers[tier].name!r}, group {self.groups[group].name!r}",
            needed=count,
            free=self.tiers[tier].free_blocks(group),
            evictable=stats.resident - stats.protected + dirty,
            leased=stats.protected - dirty,
            dirty=dirty,
            kept=0 if self.keeper is None else self.keeper.kept(tier, group),
        )

    def dirty(self, tier: int, group: int) -> int:
        """Blocks that may go only once a copy of them below, which is under way, is acknowledged:
        none where copies are made as blocks are computed, because what is being copied is leased.
        """
        return 0 if self.evictor is None else self.evictor.leaving(tier, group)

    def evict(
        self,
        tier: int,
        group: int,
        count: int,
        upto: int = MAX_STAMP,
        claim: Claim = FOR_ANYBODY,
    ) -> Slots:
        """Evicts up to ``count`` blocks, oldest first, none that was used after ``upto``; the
        slots that became free. ``claim``: for whom, where tenants are told apart. Cost: them.
        """
        if self.evictor is not None:
            return self.evictor.evict(tier, group, count, upto, claim)
        return self.evict_now(tier, group, count, upto, claim)

    def evict_now(
        self,
        tier: int,
        group: int,
        count: int,
        upto: int = MAX_STAMP,
        claim: Claim = FOR_ANYBODY,
    ) -> Slots:
        """``evict``, whoever decides what may go: the next victims go."""
        column = self.tree.column(group, tier)
        slots, ids = self._take(column, count, upto, claim)
        if len(slots):
            self.metrics.add(self._evict_keys[column], len(slots))
            if ids is not None:
                self._removed(tier, group, ids, EVICTED, tier)
            self._give_back(tier, group, slots)
        return slots

    def _take(
        self, column: int, count: int, upto: int, claim: Claim = FOR_ANYBODY
    ) -> tuple[Slots, Keys | None]:
        """Takes the oldest blocks out of the tree: their slots, and what names them in events."""
        slots = np.empty(count, np.int32)
        ids = np.empty((count, 16), np.uint8) if self._ghosts is not None else None
        if self.shares is not None:  # which asks a user's own policy, too
            freed = self.shares.evict(column, claim, upto, slots, ids)
            return slots[:freed], None if ids is None else ids[:freed]
        if self.tree.before_choice is not None:
            self.tree.before_choice(column)
        freed = tree_evict(self.tree.capsule, column, count, upto, slots, ids)
        return slots[:freed], None if ids is None else ids[:freed]

    def _give_back(self, tier: int, group: int, slots: Slots) -> None:
        if len(slots):
            self.tiers[tier].free(group, slots)

    def _removed(self, tier: int, group: int, ids: Keys, reason: str, why: int) -> None:
        if self.events is not None:
            self.events.append(
                BlocksRemoved(self.tiers[tier].name, self.groups[group].name, ids, reason)
            )
        if self._ghosts is not None:
            short = self._short(ids)
            place = (short & np.uint64(GHOSTS - 1)).astype(np.int64)
            self._ghosts[place] = short
            self._ghost_why[place] = why

    @staticmethod
    def _short(ids: Keys) -> npt.NDArray[np.uint64]:
        """Eight bytes of each id, by which the table of what went knows it."""
        return np.ascontiguousarray(ids[:, :8]).view(np.uint64).ravel()

    # ------------------------------------------------------------ change
    def attach(self, at: Cursor, group: int, tier: int, first: int, slots: Slots) -> Slots:
        """Makes ``slots`` (reserved, now final; -1: none) resident for pages from ``first`` on.

        Returns the canonical slots. Where another block was there first, or none may stand there,
        the given slot goes back to the tier: of two equal blocks one is kept. So it does, below the
        first tier, where the tier does not take what was copied.
        """
        column = self.tree.column(group, tier)
        canonical = self.tree.attach(at, column, first, slots)
        try:
            taken = self._settle(tier, group, slots, canonical)
        except TierError:
            if not tier:  # a request holds these
                raise
            return self._undo(at, group, tier, first, slots, canonical)
        self.stored(at, group, tier, first, taken)
        return canonical

    def enter(self, at: Cursor, pages: object, tier: int, slots: Slots) -> None:
        """Adds pages behind ``at`` of which blocks lie in a tier already: ``slots``, (groups,
        pages), reserved in it and final, -1 for none. Where another block stands already, or the
        tier does not take one, that slot goes back. Cost: the pages.
        """
        columns = [self.tree.column(group, tier) for group in range(len(self.groups))]
        canonical = np.empty_like(slots)
        done = self.tree.insert(at, pages, np.array(columns, np.uint32), slots, canonical)
        end = Cursor(at.root, done.node, done.pages)
        for group, (row, kept) in enumerate(zip(slots, canonical, strict=True)):
            if (row == NO_SLOT).all():
                continue
            try:
                taken = self._settle(tier, group, row, kept)
            except TierError:
                self._undo(end, group, tier, at.pages, row, kept)
            else:
                self.stored(end, group, tier, at.pages, taken)

    def _undo(
        self, at: Cursor, group: int, tier: int, first: int, slots: Slots, canonical: Slots
    ) -> Slots:
        """Blocks that a tier refused to commit are not there; the canonical slots that are left."""
        refused: npt.NDArray[np.bool_] = (canonical == slots) & (slots != NO_SLOT)
        for page in (first + np.flatnonzero(refused)).tolist():
            self.tree.drop(at, self.tree.column(group, tier), page)
        self.metrics.add(("tier", "refused", self.tiers[tier].name), int(refused.sum()))
        with suppress(TierError):
            self.tiers[tier].abort(group, slots[slots != NO_SLOT])
        return np.where(refused, np.int32(NO_SLOT), canonical)

    def _settle(
        self, tier: int, group: int, slots: Slots, canonical: Slots
    ) -> npt.NDArray[np.bool_]:
        """Commits the slots that the tree took and gives the others back; which it took."""
        taken: npt.NDArray[np.bool_] = canonical == slots
        store = self.tiers[tier]
        if taken.all() and NO_SLOT not in slots:
            store.commit(group, slots)
            return taken
        offered = slots != NO_SLOT
        taken &= offered
        if taken.any():
            store.commit(group, slots[taken])
        if (twice := offered & ~taken).any():
            store.abort(group, slots[twice])
        return taken

    def stored(
        self, at: Cursor, group: int, tier: int, first: int, taken: npt.NDArray[np.bool_]
    ) -> None:
        """Tells the stream that the pages ``first + i`` with ``taken[i]`` are resident now."""
        if self.events is not None and taken.any():
            self.events += self._told(at, group, tier, first, taken)

    def _told(
        self, at: Cursor, group: int, tier: int, first: int, taken: npt.NDArray[np.bool_]
    ) -> list[BlocksStored]:
        """An event for each run of blocks. Cost: their pages."""
        keys, rule = self.tree.keys(at, first, len(taken)), self.rules[group]
        more, ahead = rule.block_pages - 1, rule.lookahead_pages
        told = []
        for lo, hi in runs(taken):
            begin = first + lo - more  # of the block, in the tree
            told.append(
                BlocksStored(
                    self.tiers[tier].name,
                    self.groups[group].name,
                    self.parent_key(at, begin if begin > ahead else 0),
                    keys[lo:hi].copy(),
                    first + lo,
                    self.tree.pages(at, begin - ahead, hi - lo + more),
                    self.root_names[at.root],
                )
            )
        return told

    def resident(self) -> list[BlocksStored]:
        """What lies where now, as the stream would tell it: parents before their children.

        Changes nothing. Cost: everything.
        """
        columns = [(g, t) for t in range(len(self.tiers)) for g in range(len(self.groups))]
        return [
            event
            for root in self.root_keys
            for node in self.tree.nodes(root)
            for group, tier in columns
            for event in self.of_node(root, node, group, tier)
        ]

    def of_node(self, root: int, node: NodeView, group: int, tier: int) -> list[BlocksStored]:
        """What of one node lies in a tier, as the stream would tell it. Cost: its pages."""
        lo, hi = self.tree.interval(node.node, self.tree.column(group, tier))
        if hi == lo:
            return []
        at = Cursor(root, node.node, node.start + node.pages)
        there = self.slots(at, group, tier, node.start + lo, hi - lo) != NO_SLOT
        return self._told(at, group, tier, node.start + lo, there)

    def parent_key(self, at: Cursor, page: int) -> bytes:
        """The key from which page ``page`` of the path chains."""
        if page == 0:
            return self.root_keys[at.root]
        return self.tree.keys(at, page - 1, 1).tobytes()

    def drop(
        self, at: Cursor, group: int, tier: int, page: int, *, read: bool, reason: str = CORRUPT
    ) -> None:
        """Takes one block out of a tier, pinned or not: it is wrong, or has gone through.

        ``read``: a transfer still reads the slot; it goes into quarantine, for the caller to lift.
        """
        column = self.tree.column(group, tier)
        key = self.tree.keys(at, page, 1) if self.tree.key_bytes else None
        slot = self.tree.drop(at, column, page)
        if slot == NO_SLOT:
            return
        if key is not None:
            why = tier if reason == EVICTED else self._why.index(reason)
            self._removed(tier, group, key, reason, why)
        if reason == EVICTED:
            self.metrics.add(self._evict_keys[column])
        gone = np.array([slot], np.int32)
        if read:
            self.tiers[tier].fence(group, gone)
        else:
            self._give_back(tier, group, gone)

    def forget(
        self,
        at: Cursor,
        first: int,
        tiers: Sequence[int] | None = None,
        reason: str = NOT_CACHEABLE,
    ) -> None:
        """Gives up, in every tier (``tiers``: in these), what lies behind page ``first`` and nobody
        else needs.
        """
        count = at.pages - first
        for tier in range(len(self.tiers)) if tiers is None else tiers:
            for group in range(len(self.groups)):
                slots = np.empty(count, np.int32)
                ids = np.empty((count, 16), np.uint8) if self.tree.key_bytes else None
                column = self.tree.column(group, tier)
                freed = self.tree.forget(at, column, first, slots, ids)
                if freed and ids is not None:
                    why = self._why.index(reason)
                    self._removed(tier, group, ids[:freed], reason, why)
                self._give_back(tier, group, slots[:freed])

    # ------------------------------------------------------------ look
    def why_gone(self, parent: bytes, page: bytes) -> str | None:
        """Why the page behind ``parent`` left the last tier that it left, as far as is known."""
        if self._ghosts is None:
            return None
        key = np.empty(16, np.uint8)
        lib.rdx_keys_chain(parent, page, 1, len(page), ffi.from_buffer("uint8_t[]", key))
        short = key[:8].view(np.uint64)[0]
        place = int(short) & (GHOSTS - 1)
        if self._ghosts[place] != short:
            return None
        return self._why[int(self._ghost_why[place])]

    def check(self, *, device: bool) -> None:
        """Walks the tree's invariants and each tier's own books. Cost: everything."""
        self.tree.check(device=device)
        for tier in self.tiers:
            tier.check()
        if self.shares is not None:
            self.shares.check()


def runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The [lo, hi) of each run of True. Cost: the mask."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(lo), int(hi)) for lo, hi in zip(edges[::2], edges[1::2], strict=True)]
