"""What an engine that keeps its own page tables calls of a cache, a prompt at a time: match, lease,
insert, evict; and how slots come and go that it shares. These are the shortest calls: none of them
gives up the interpreter's lock. Keeps I34: a match counts nothing, the engine may ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from radix._native import Match, tree_column, tree_match
from radix.arguments import count_of, int32, number_below, numbers_of, slots_of
from radix.content import PageKeys, Prompt
from radix.errors import RequestError
from radix.gate import Gate
from radix.hints import Time
from radix.inserting import Inserted, Inserting, Rows
from radix.keys import Namespace, check_range
from radix.lease import Home, Lease, lease_of, mask_of
from radix.namespaces import Namespaces
from radix.ownership import AdoptedSlots, rows_for_insert
from radix.plan import Cursor
from radix.pooled import PooledInsert
from radix.residency import Residency
from radix.serving import Serving
from radix.tier import Slots, TierMode
from radix.tree import EVERY_GROUP, NO_SLOT

_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_OFF = TierMode.OFF  # members of an Enum are slow to look up


class Reach:
    """What the shortest calls look at, side by side: a cache has more attributes than the
    interpreter finds by their place. ``plain``: a page is its tokens, and a hit may end at any.
    """

    __slots__ = ("bits", "capsule", "gate", "known", "plain", "seen")

    def __init__(self, gate: Gate, residency: Residency, spaces: Namespaces, plain: bool) -> None:
        self.gate = gate
        self.capsule = residency.tree.capsule
        self.known = spaces.known
        self.bits = residency.bits
        self.plain = plain
        self.seen = Cursor(0, 0, 0)  # the end of the last match: nothing was known behind it


class Driven(Serving):
    """The engine-driven part of a cache, call by call."""

    keys: PageKeys
    _lent: bool
    _coarse: bool
    _reach: Reach
    _home: Home
    _time: Time
    _timed: bool
    _dropped: deque[int]
    _inserting: Inserting
    _pooled: PooledInsert | None

    def _tell_time(self) -> None:
        """What time it is, where the order of eviction goes by it."""
        if self._timed:
            self.tree.tell_time(self._time.now())

    def _adopted(self) -> AdoptedSlots:
        if self._shared is None:
            raise RequestError(f"device slots are {self.ownership.value}, not shared")
        return self._shared

    def match(
        self,
        tokens: object,
        *,
        namespace: Namespace | None = None,
        leave: int = 1,
        content: object = None,
    ) -> tuple[Match, Cursor]:
        """How much of ``tokens`` is there, in pages, and the cursor of its end; changes nothing.

        The last ``leave`` tokens never count as hit. ``content``: as in ``admit``. Cost: the tokens
        compared, where keys are digests all of them.
        """
        # The most frequent call of all: no wrapper stands between it and the native one.
        reach = self._reach
        gate = reach.gate
        if not gate.take(False):
            gate.refuse()
        try:
            if gate.closed:
                gate.refuse()
            if content is not None or not reach.plain:
                asked = self._prompts.of(int32(tokens), namespace, content)
                found = self._prompts.match(asked, count_of("leave", leave))
                return found, _tuple(Cursor, (asked.root, found[5], found[2]))
            root = reach.known.get(namespace) or self._spaces.root(namespace)
            readable = 0
            for tier, bit in reach.bits:
                if tier.mode is not _OFF:
                    readable |= bit
            try:
                found = tree_match(reach.capsule, root, tokens, leave, readable)
            except (TypeError, ValueError, OverflowError, BufferError):
                # No int32 buffer as it stands: converted, or refused by name.
                run, left = int32(tokens), min(count_of("leave", leave), 1 << 31)
                found = tree_match(reach.capsule, root, run, left, readable)
            reach.seen = seen = _tuple(Cursor, (root, found[5], found[2]))
            return found, seen
        finally:
            gate.leave()

    def lease(self, cursor: Cursor, *, groups: Sequence[int] | None = None) -> Lease:
        """Pins the path to ``cursor``; a stale one pins a shorter path, never another.

        Of groups that need not every block it pins what a hit at its end needs; ``groups``: of
        these alone. ``StaleError`` where its whole namespace, empty, has gone meanwhile: match
        again. Cost: the nodes newly pinned.
        """
        home = self._home
        gate = home.gate
        if not gate.take(False):
            gate.refuse()
        try:
            if gate.closed:
                gate.refuse()
            if home.dropped:
                self._drain()
            if self._timed:
                self._tell_time()
            mask = EVERY_GROUP if groups is None else mask_of(groups, len(self.groups))
            return lease_of(home, cursor, mask)
        finally:
            gate.leave()

    def insert(
        self,
        tokens: object,
        lease: Lease,
        *,
        slots: Sequence[object] | None = None,
        partial: bool = False,
        boundaries: Sequence[int] = (),
        content: object = None,
    ) -> Inserted:
        """Shares the full pages of ``tokens`` behind the end of ``lease``, whose bytes are final.

        The lease then covers them. ``tokens``: the whole prompt. ``slots``: by group, the slots
        that hold the new pages, -1 where there is none (shared): the i-th is of the block that
        stands at the i-th new page. Where the cache owns the slots it picks them itself, over a
        first tier without bytes only: requests fill theirs before ``computed``. ``boundaries``:
        lengths in tokens at which a hit is to be possible beside the end; checkpoints stand there
        alone. ``content``: as in ``admit``. ``partial``: insert what fits instead of raising
        ``CapacityError``. Raises ``LeaseError`` for a lease that is released, another cache's, or
        ends behind what the device holds; ``ValueError``, ``SlotError``. Cost: the new pages.
        """
        run, gate = int32(tokens), self._reach.gate
        if not gate.take(False):
            gate.refuse()
        try:
            if gate.closed:
                gate.refuse()
            number = lease.native(self.tree)
            if self._lent:
                raise RequestError("insert: borrowed device slots enter by computed alone")
            if self._pooled is not None and slots is None and content is None:
                done = self._pooled.insert(run, lease, number, boundaries)
                if done is not None:
                    return done
            asked = self._prompts.behind(lease.cursor, run, content)
            first = lease.cursor.pages
            count = max(0, len(run) // self.page_tokens - first)
            inserting = self._inserting
            lengths = numbers_of("boundaries", boundaries) if boundaries else []
            if lengths:
                lengths = inserting.boundaries(lengths, first, first + count)
            rows: list[Slots] | None = None
            if slots is not None or self._shared is not None:
                rows = rows_for_insert(self.ownership, slots, self.residency.rules, count)
            if first and (inserting.gaps or self._epochs.begun):
                inserting.check_device(lease)
            if count == 0:
                return Inserted(0, 0, [], [])
            if rows is None:
                return self._insert_owned(asked, lease, count, lengths, partial)
            shared = self._adopted()
            rows, unneeded = inserting.needed(rows, first, lengths)
            if self.residency.quotas is not None:
                self.residency.quotas.make_way(rows, asked.root)
            shared.adopt_all([row[row != NO_SLOT] for row in rows])
            try:
                given = Rows(np.stack(rows), [None] * len(rows))
                result = inserting.insert(asked, lease, first, given)
            except BaseException:
                shared.withdraw_all([row[row != NO_SLOT] for row in rows])
                raise
            for group, row in enumerate(result.duplicates):
                shared.withdraw(group, row)
                result.duplicates[group] = np.concatenate((row, unneeded[group]))
            return result
        finally:
            gate.leave()

    def _insert_owned(
        self, asked: Prompt, lease: Lease, count: int, lengths: list[int], partial: bool
    ) -> Inserted:
        if self.residency.tiers[0].capability.holds_bytes:
            check_range(asked.tokens)
            raise RequestError(
                "insert: nobody has written the slots that the cache owns; "
                "use admit and computed, or shared slots"
            )
        inserting, first, at = self._inserting, lease.cursor.pages, lease.cursor
        if inserting.parts and at != self._reach.seen:  # pages behind the hit may be there already
            found = self._prompts.find(asked, 0, 0)
            at = Cursor(at.root, found.node, found.structural_pages)
        if not partial:
            rows = inserting.reserve(first, first + count, lengths, at)
        elif (some := inserting.fitting(at, first, count, lengths)) is not None:
            rows = some
        else:
            return Inserted(0, 0, [], [])
        return inserting.insert(asked, lease, first, rows)

    def evict(self, group: int, count: int, *, tier: int = 0) -> Slots:
        """Evicts up to ``count`` blocks of a group, oldest first; the slots that went.

        Of the first tier they are the engine's again where it shares them. Cost: the blocks.
        """
        wanted, gate, tree = count_of("count", count), self.gate, self.tree
        if not gate.take(False):
            gate.refuse()
        try:
            if gate.closed:
                gate.refuse()
            if self._dropped:
                self._drain()
            if self._timed:
                self._tell_time()
            self._known(group, tier)
            resident = tree_column(tree.capsule, group * tree.tiers + tier)[0]
            slots = self.residency.evict(tier, group, min(wanted, resident))
            if len(slots) < min(wanted, resident) and tier == 0 and self._shared is not None:
                slots = self._evict_kept(group, slots, wanted)
            if tier == 0 and self._shared is not None:
                self._shared.withdraw(group, slots)
            return slots
        finally:
            gate.leave()

    def _evict_kept(self, group: int, gone: Slots, wanted: int) -> Slots:
        """Evicts what is only kept too, until enough went; all slots that did."""
        keeper, counts = self.residency.keeper, [0] * len(self.groups)
        while (short := wanted - len(gone)) > 0 and keeper is not None:
            counts[group] = self.residency.tiers[0].free_blocks(group) + short
            if not keeper.give_way(counts):
                break
            more = self.residency.evict(0, group, short)
            gone = np.concatenate((gone, more))
        return gone

    def _known(self, group: int, tier: int = 0) -> None:
        if type(group) is not int or not 0 <= group < len(self.groups):
            number_below("group", group, len(self.groups))
        if type(tier) is not int or not 0 <= tier < len(self.residency.tiers):
            number_below("tier", tier, len(self.residency.tiers))

    def offer(self, group: int, slots: object) -> None:
        """Gives the cache free slots of the engine's (shared)."""
        row = slots_of("slots", slots)
        with self.gate:
            self._known(group)
            self._adopted().offer(group, row)

    def spare(self, group: int) -> Slots:
        """Takes back the slots that the cache does not use (shared): offered in excess, given up by
        a request, or evicted to make room.
        """
        with self.gate:
            self._known(group)
            return self._adopted().spare(group)
