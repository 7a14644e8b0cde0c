"""Insertion by an engine that keeps its own page tables: the new pages of a prompt enter the tree
at once, and of groups that do not keep everything only what a hit at its end, or at a boundary that
the engine names, needs. Keeps I15, I27 and I28: what is not needed gets no slot.

    pages         lease ........ boundary .......... end
    every block   | new new new new new new new new new |
    a window                | new new |     | new new |
    a state                         s               s    where the boundaries say so
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from radix._native import tree_insert
from radix.content import Prompt
from radix.errors import CapacityError, LeaseError
from radix.groups import Rule
from radix.keys import Tokens
from radix.lease import Lease
from radix.misses import lookahead_pages
from radix.plan import Cursor
from radix.residency import Residency
from radix.steps import CURSORS, Counts, of_request
from radix.tier import Slots
from radix.transfers import Transfers
from radix.tree import NO_SLOT

Mask = npt.NDArray[np.bool_]
_NONE = np.empty(0, np.int32)
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class Inserted(NamedTuple):
    """What an insert did, in pages; by group, ``slots`` are those that count from now on, and
    ``duplicates`` those of the caller's that were not needed: they are the engine's again (shared).
    """

    existing_pages: int
    created_pages: int
    slots: list[Slots]
    duplicates: list[Slots]


class Entry(NamedTuple):
    """One insert of a batch: ``fresh`` pages behind ``first``, ``marks`` the lengths at which a
    hit is to be possible. ``pages``: the prompt ``run`` as the tree takes it, from its beginning.
    """

    lease: Lease
    number: int
    first: int
    fresh: int
    marks: Sequence[int]
    run: Tokens
    pages: object


class Inserts(Sequence[Inserted]):
    """What a batch of inserts did, as a sequence: an ``Inserted`` each; as arrays:
    ``existing_pages`` and ``created_pages``, (n,) uint32.
    """

    __slots__ = ("_groups", "_kept", "_starts", "created_pages", "existing_pages", "twice")

    def __init__(
        self, existing: Counts, created: Counts, kept: Slots, groups: int, twice: list[list[Slots]]
    ) -> None:
        self.existing_pages = existing
        self.created_pages = created
        self.twice = twice  # by request and group: slots that were not needed; empty for none
        self._kept = kept
        self._groups = groups
        self._starts: list[int] = [0, *np.cumsum(groups * (existing + created)).tolist()]

    def __len__(self) -> int:
        return len(self.existing_pages)

    @overload
    def __getitem__(self, index: int) -> Inserted: ...
    @overload
    def __getitem__(self, index: slice) -> list[Inserted]: ...
    def __getitem__(self, index: int | slice) -> Inserted | list[Inserted]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        lo, hi = self._starts[at], self._starts[at + 1]
        if lo == hi:
            return Inserted(0, 0, [], [])
        kept = list(self._kept[lo:hi].reshape(self._groups, -1))
        twice = self.twice[at] if self.twice else [row[:0] for row in kept]
        return Inserted(int(self.existing_pages[at]), int(self.created_pages[at]), kept, twice)


class Rows(NamedTuple):
    """Slots of new pages, (groups, pages), -1 for none; by group the one span [lo, hi) of those
    that are slots, None where they may lie anywhere.
    """

    slots: Slots
    spans: Sequence[tuple[int, int] | None]


class Inserting:
    """The engine-driven insert of one cache. ``columns``: those of the first tier, by group."""

    def __init__(
        self, residency: Residency, transfers: Transfers, page_tokens: int, align_tokens: int
    ) -> None:
        self.residency = residency
        self.transfers = transfers
        self.page_tokens = page_tokens
        self.align_tokens = align_tokens
        self.parts = any(not rule.everywhere for rule in residency.rules)
        self._step, self._ahead = align_tokens // page_tokens, lookahead_pages(residency)
        # An end at which nothing can be hit: its windows begin further up.
        self.coarse = self._step > 1 and any(rule.reach_tokens for rule in residency.rules)
        self.plain = all(
            rule.everywhere and rule.block_pages == 1 and not rule.lookahead_pages
            for rule in residency.rules
        )
        # Whether a path may go on behind what the first tier holds of it: in a tier below, or in
        # another group, whose blocks go on their own.
        self.gaps = len(residency.tiers) > 1 or len(residency.rules) > 1
        tree = residency.tree
        self.columns = np.array(
            [tree.column(group, 0) for group in range(len(residency.groups))], np.uint32
        )

    # ------------------------------------------------------------ what needs a slot
    def boundaries(self, positions: Sequence[int], first: int, last: int) -> list[int]:
        """The lengths in pages, of [first, last], at which a hit is to be possible. ``ValueError``
        for one that lies elsewhere or off the grid.
        """
        found: dict[int, None] = {}
        for position in positions:
            if position % self.align_tokens:
                raise ValueError(
                    f"boundaries: {position} is not a multiple of {self.align_tokens}, the length "
                    "at which every group can be hit"
                )
            pages = position // self.page_tokens
            if not first < pages <= last:
                raise ValueError(
                    f"boundaries: {position} lies outside the new pages, tokens "
                    f"{first * self.page_tokens} to {last * self.page_tokens}"
                )
            if pages in found:
                raise ValueError(f"boundaries: {position} is named twice")
            found[pages] = None
        return list(found)

    def wanted(self, rule: Rule, first: int, last: int, boundaries: Sequence[int]) -> Mask:
        """Which of the pages [first, last) get a slot."""
        mask = np.zeros(last - first, np.bool_)
        if not rule.kept:
            return mask
        size, ahead = rule.block_pages, rule.lookahead_pages
        if rule.everywhere:
            mask[max(0, ahead - first) :] = True
        elif rule.per_position:
            mask[np.array(boundaries, np.int64) - 1 - first] = True
        else:
            for length in boundaries:
                lo = rule.first_page(length) + ahead
                mask[max(0, lo - first) : max(0, min(length + ahead, last) - first)] = True
            mask[max(0, self._kept_from(rule, last) + ahead - first) :] = True
        if size > 1:
            mask &= (np.arange(first, last) + 1) % size == 0
        return mask

    # ------------------------------------------------------------ room
    def needed(
        self, rows: Sequence[Slots], first: int, boundaries: Sequence[int]
    ) -> tuple[list[Slots], list[Slots]]:
        """The engine's rows without what is not to be kept, and, by group, those slots.
        ``ValueError`` where one lacks a block of a group of which every block is needed.
        """
        kept: list[Slots] = []
        spare: list[Slots] = []
        for group, (rule, row) in enumerate(zip(self.residency.rules, rows, strict=True)):
            mask = self.wanted(rule, first, first + len(row), boundaries)
            if rule.everywhere and (lacking := np.flatnonzero(mask & (row == NO_SLOT))).size:
                page = first + int(lacking[0])
                raise ValueError(f"slots[{group}]: none at page {page}, where a needed block ends")
            kept.append(np.where(mask, row, np.int32(NO_SLOT)).astype(np.int32))
            spare.append(row[~mask & (row != NO_SLOT)])
        return kept, spare

    def reserve(self, first: int, last: int, boundaries: Sequence[int], at: Cursor) -> Rows:
        """Slots for what pages [first, last) want and the path to ``at`` does not hold yet: a row a
        group, -1 elsewhere; all or none.
        """
        rules, count = self.residency.rules, last - first
        if len(rules) == 1 and self.plain:
            slots = self.residency.reserve(0, 0, count, at.root).reshape(1, count)
            return _tuple(Rows, (slots, ((0, count),)))
        slots = np.full((len(rules), count), NO_SLOT, np.int32)
        spans: list[tuple[int, int] | None] = []
        masks: list[Mask | slice] = []  # by group, which of the pages
        # Making room must not take what stands behind the caller's lease and gets no slot here.
        pin = 0
        if at.pages > first:
            pin, node, pages = self.residency.tree.lease(at, 0)
            at = Cursor(at.root, node, pages)
        try:
            for group, rule in enumerate(rules):
                span = self._one_span(rule, first, last, boundaries) if at.pages <= first else None
                spans.append(span)
                if span is None:
                    masks.append(self._missing(group, rule, first, last, boundaries, at))
                else:
                    masks.append(slice(*span))
            # By the row, not by (group, mask): for that numpy gives the interpreter's lock up.
            needed = [
                row[mask].size if isinstance(mask, slice) else int(np.count_nonzero(mask))
                for row, mask in zip(slots, masks, strict=True)
            ]
            self._check_room(needed, at.root)
            for group, (row, mask, need) in enumerate(zip(slots, masks, needed, strict=True)):
                if need:
                    row[mask] = self.residency.reserve(0, group, need, at.root)
        except BaseException:
            for group, row in enumerate(slots):
                self.give_back(group, row)
            raise
        finally:
            if pin:
                self.residency.tree.release(pin, stamp=False)
        return Rows(slots, spans)

    def _one_span(
        self, rule: Rule, first: int, last: int, boundaries: Sequence[int]
    ) -> tuple[int, int] | None:
        """Which of the new pages get a slot, as mostly: all in a row. None: look closely."""
        if rule.block_pages > 1 or rule.lookahead_pages or not rule.kept:
            return None
        if rule.everywhere:
            return 0, last - first
        if rule.per_position:
            if len(boundaries) > 1:
                return None
            return (boundaries[0] - 1 - first, boundaries[0] - first) if boundaries else (0, 0)
        if boundaries and (len(boundaries) > 1 or boundaries[0] != last):
            return None
        return max(0, self._kept_from(rule, last) - first), last - first

    def _kept_from(self, rule: Rule, last: int) -> int:
        """The first page that is kept of a window at an end: what the longest hit before it needs,
        and all behind that, for what goes on from there.
        """
        end = max(0, last - self._ahead) // self._step * self._step
        return rule.first_page(end // rule.block_pages * rule.block_pages)

    def _missing(
        self, group: int, rule: Rule, first: int, last: int, boundaries: Sequence[int], at: Cursor
    ) -> Mask:
        """Which of the pages get a slot and have none on the path to ``at``."""
        mask = self.wanted(rule, first, last, boundaries)
        count = min(len(mask), at.pages - first)
        if count > 0:
            mask[:count] &= self.residency.slots(at, group, 0, first, count) == NO_SLOT
        return mask

    def _check_room(self, needed: Sequence[int], root: int) -> None:
        """``CapacityError`` where some group cannot get its slots, before anything goes of another.
        Of a budget that groups share, the first of them finds out.
        """
        residency = self.residency
        if residency.tiers[0].capability.shares_bytes:
            return
        for group, need in enumerate(needed):
            if need and need > residency.available(0, group, root):
                raise residency.shortage(0, group, need, root)

    def fitting(self, at: Cursor, first: int, count: int, boundaries: Sequence[int]) -> Rows | None:
        """Slots of as many of the pages as there is room for; None for none."""
        while count:
            last = first + count
            inside = [length for length in boundaries if length <= last]
            try:
                return self.reserve(first, last, inside, at)
            except CapacityError as error:
                room = max(0, error.free + error.evictable)
                count = min(count - 1, max(room, count // 2))
        return None

    def give_back(self, group: int, row: Slots) -> None:
        """Reserved slots of a row go back to the tier."""
        self.residency.tiers[0].abort(group, row[row != NO_SLOT])

    def check_device(self, lease: Lease) -> None:
        """``LeaseError`` where a lease ends behind what the first tier holds."""
        for group, rule in enumerate(self.residency.rules):
            last = lease.pages // rule.block_pages * rule.block_pages - 1
            if not rule.everywhere or last < rule.lookahead_pages:
                continue  # no block of it has to stand there
            if self.residency.slots(lease.cursor, group, 0, last, 1)[0] == NO_SLOT:
                raise LeaseError(
                    f"the lease ends at page {lease.pages}, which the first tier does not hold"
                )

    # ------------------------------------------------------------ in
    def insert(self, prompt: Prompt, lease: Lease, first: int, given: Rows) -> Inserted:
        """The pages enter the tree with ``given`` slots (reserved, or adopted), the lease covers
        them, and what is new goes down (write_after: what was asked for again, for which the whole
        path is looked at). On an error the slots go back.
        """
        slots, spans = given
        count = slots.shape[1]
        tree = self.residency.tree
        canonical = np.empty(slots.shape, np.int32)
        try:
            at = lease.cursor
            if self.parts and at[2]:
                tree.touch(at)  # what it hit there was used: its end moves on
            result = tree_insert(
                tree.capsule,
                at,
                prompt.chain.span(prompt.tokens, first, first + count),
                self.columns,
                slots,
                canonical,
                lease.native(tree),
            )
        except BaseException:
            for group, row in enumerate(slots):
                self.give_back(group, row)
            raise
        lease.cursor = _tuple(Cursor, (at[0], result[0], result[1]))
        same = self.residency.events is None and canonical.tobytes() == slots.tobytes()
        twice = [
            self._commit(group, slots[group], span)
            # As mostly; so it takes a fifth of what comparing them in numpy takes.
            if same
            else self._settle(lease.cursor, group, first, slots[group], canonical[group])
            for group, span in enumerate(spans)
        ]
        if self.transfers.deepest > 0:
            self.send_down(lease.cursor, first, count)
        return _tuple(Inserted, (result[2], result[3], list(canonical), twice))

    def send_down(self, at: Cursor, first: int, count: int) -> None:
        """New pages of the path are copied down, as far as they are to be."""
        moves = self.transfers
        if moves.reuse is not None or moves.expected is not None:
            # what it went on from was asked for again, and found on the device
            moves.asked(at, 0, first + count, np.zeros(first, np.int8))
            first, count = 0, first + count
        for refused, _ in self.transfers.store(at, first, count, 0, 0):
            self.transfers.count("declined", refused.target, refused.group, refused.blocks)

    # ------------------------------------------------------------ a step's
    def reserve_many(self, entries: Sequence[Entry], ends: Sequence[Cursor]) -> Slots:
        """``reserve`` for each, all or none, as ``insert_many`` takes them. ``ends``: of each
        prompt, how far the tree knows it. ``CapacityError`` names the first without room.
        """
        if len(self.residency.rules) == 1 and self.plain and self.residency.quotas is None:
            try:
                return self.residency.reserve(0, 0, sum(entry.fresh for entry in entries))
            except CapacityError as error:
                sums = np.cumsum([entry.fresh for entry in entries])
                room = max(0, error.free + error.evictable)
                raise of_request(error, int(np.searchsorted(sums, room, "right"))) from None
        found: list[Slots] = []
        tree, pins = self.residency.tree, []
        try:
            for entry, at in zip(entries, ends, strict=True):
                if entry.fresh and at.pages > entry.first:
                    # what one prompt finds there must not go for another's room
                    pins.append(tree.lease(at, 0)[0])
            for entry, at in zip(entries, ends, strict=True):
                first, last = entry.first, entry.first + entry.fresh
                rows = self.reserve(first, last, entry.marks, at).slots if entry.fresh else _NONE
                found.append(rows.reshape(-1))
        except BaseException as error:
            for entry, row in zip(entries, found, strict=False):
                self._give_all(entry, row)
            if isinstance(error, CapacityError):
                raise of_request(error, len(found)) from None
            raise
        finally:
            for pin in pins:
                tree.release(pin, stamp=False)
        return np.concatenate(found) if found else _NONE

    def _give_all(self, entry: Entry, row: Slots) -> None:
        if entry.fresh:
            for group, part in enumerate(row.reshape(-1, entry.fresh)):
                self.give_back(group, part)

    def insert_many(self, entries: Sequence[Entry], flat: Slots) -> Inserts:
        """``insert`` for each, all or none, in one crossing. ``flat``: of each in turn its slots,
        (groups, pages). On an error they go back.
        """
        tree, groups = self.residency.tree, len(self.columns)
        work = [entry for entry in entries if entry.fresh]
        kept = np.empty(len(flat), np.int32)
        try:
            rows = tree.insert_many(
                [entry.lease.cursor for entry in work],
                [entry.pages for entry in work],
                self.columns,
                flat,
                kept,
                [entry.number for entry in work],
                touch=self.parts,  # what it hit there was used: its end moves on
            )
        except BaseException:
            at = 0
            for entry in work:
                self._give_all(entry, flat[at : at + groups * entry.fresh])
                at += groups * entry.fresh
            raise
        for entry, end in zip(work, rows[list(CURSORS.names or ())].tolist(), strict=True):
            entry.lease.cursor = _tuple(Cursor, end)
        twice = self._settle_many(work, flat, kept)
        existing, created = np.zeros((2, len(entries)), np.uint32)
        busy = slice(None) if len(work) == len(entries) else [entry.fresh > 0 for entry in entries]
        existing[busy], created[busy] = rows["existing"], rows["created"]
        if twice and len(work) < len(entries):
            each = iter(twice)
            twice = [next(each) if entry.fresh else [] for entry in entries]
        return Inserts(existing, created, kept, groups, twice)

    def _settle_many(self, entries: Sequence[Entry], flat: Slots, kept: Slots) -> list[list[Slots]]:
        """Commits what the tree took, and sends it down; by entry what was not needed, if any."""
        groups, plain = len(self.columns), self.plain and len(self.columns) == 1
        twice: list[list[Slots]] = []
        if self.residency.events is None and kept.tobytes() == flat.tobytes():
            if plain:
                self.residency.tiers[0].commit(0, flat)
            else:
                self._commit_rows(entries, flat)
        elif plain and self.residency.events is None:
            twice = self._settle_plain(entries, flat, kept)
        else:
            at = 0
            for entry in entries:
                end = at + groups * entry.fresh
                shape = (groups, entry.fresh)
                pairs = zip(flat[at:end].reshape(shape), kept[at:end].reshape(shape), strict=True)
                twice.append(
                    [
                        self._settle(entry.lease.cursor, group, entry.first, row, mine)
                        for group, (row, mine) in enumerate(pairs)
                    ]
                )
                at = end
        if self.transfers.deepest > 0:
            for entry in entries:
                self.send_down(entry.lease.cursor, entry.first, entry.fresh)
        return twice

    def _settle_plain(
        self, entries: Sequence[Entry], flat: Slots, kept: Slots
    ) -> list[list[Slots]]:
        """``_settle`` for each where one group keeps every block of a page."""
        tier, taken = self.residency.tiers[0], kept == flat
        tier.commit(0, flat[taken])
        spare = flat[~taken]
        tier.abort(0, spare)
        starts = np.cumsum([0, *(entry.fresh for entry in entries)])
        ends = np.concatenate(([0], np.cumsum(~taken)))[starts].tolist()
        return [[spare[lo:hi]] for lo, hi in itertools.pairwise(ends)]

    def _commit_rows(self, entries: Sequence[Entry], flat: Slots) -> None:
        groups, at = len(self.columns), 0
        parts: list[list[Slots]] = [[] for _ in range(groups)]
        for entry in entries:
            end = at + groups * entry.fresh
            for part, row in zip(parts, flat[at:end].reshape(groups, entry.fresh), strict=True):
                part.append(row)
            at = end
        for group, part in enumerate(parts):
            if part:
                self._commit(group, np.concatenate(part), None)

    def _commit(self, group: int, row: Slots, span: tuple[int, int] | None) -> Slots:
        """Commits every slot of a row; none was not needed."""
        taken = row[row != NO_SLOT] if span is None else row[span[0] : span[1]]
        if len(taken):
            self.residency.tiers[0].commit(group, taken)
        return row[:0]

    def _settle(self, at: Cursor, group: int, first: int, row: Slots, kept: Slots) -> Slots:
        """Commits what the tree took; the slots that it did not need."""
        tier = self.residency.tiers[0]
        taken = (kept == row) & (row != NO_SLOT)
        tier.commit(group, row[taken])
        spare: Slots = row[~taken & (row != NO_SLOT)]
        if len(spare):
            tier.abort(group, spare)
        self.residency.stored(at, group, 0, first, taken)
        return spare
