"""What an engine that keeps its own page tables calls for all requests of a step: each call is the
loop of the single ones (``radix.driven``), but one crossing into the tree, and all or nothing:
where one request is refused the error names it and everything is as before (I11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from radix.arguments import count_of, int32, numbers_of
from radix.driven import Driven
from radix.errors import CacheError, RequestError
from radix.inserting import Entry, Inserts
from radix.keys import Namespace, Tokens, check_range
from radix.lease import Lease, leases_of, mask_of, release_all
from radix.lease import numbers_of as lease_numbers_of
from radix.ownership import rows_for_insert
from radix.steps import MATCHES, CursorRows, Matches, Numbers, of_request
from radix.tier import Keys, Slots
from radix.tree import EVERY_GROUP, NO_SLOT

Spaces: TypeAlias = "Namespace | Sequence[Namespace | None] | None"
MOST_LEAVE = 1 << 31
_T = TypeVar("_T")
_BAD = (CacheError, ValueError, TypeError)
_UNMARKED: Sequence[int] = ()  # no length beside the end is to be a hit
_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class Stepping(Driven):
    """The engine-driven part of a cache for the requests of a step."""

    def match_many(
        self,
        prompts: Sequence[object],
        *,
        namespaces: Spaces = None,
        leave: int = 1,
        contents: Sequence[object] | None = None,
    ) -> Matches:
        """``match`` for each prompt: as arrays, and the cursors that ``lease_many`` takes. Changes
        nothing.

        ``prompts``: int32 arrays, not copied (other integers are converted). ``namespaces``: one
        for all, or one each; ``contents``: those of each prompt. ``ValueError`` and ``TypeError``
        name the prompt. Cost: the tokens compared, in one crossing (where keys are digests, or hits
        are multiples of more than a page, in one each).
        """
        left, count = count_of("leave", leave), len(prompts)
        with self.gate:
            roots = self._roots_of(namespaces, count)
            if not self.keys.opaque and contents is None and not self._coarse:
                readable = self.residency.readable()
                return self.tree.match_many(roots, prompts, min(left, MOST_LEAVE), readable)
            return self._match_each(prompts, namespaces, left, _each("contents", contents, count))

    def _roots_of(self, namespaces: Spaces, count: int) -> Numbers:
        root = self._spaces.root
        if namespaces is None or isinstance(namespaces, Namespace):
            return np.full(count, root(namespaces), np.uint64)
        return np.array([root(one) for one in _each("namespaces", namespaces, count)], np.uint64)

    def _match_each(
        self,
        prompts: Sequence[object],
        namespaces: Spaces,
        leave: int,
        contents: Sequence[object],
    ) -> Matches:
        rows, at = np.empty(len(prompts), MATCHES), 0
        try:
            for at, tokens in enumerate(prompts):
                space = namespaces if isinstance(namespaces, Namespace | None) else namespaces[at]
                asked = self._prompts.of(int32(tokens), space, contents[at])
                rows[at] = (*self._prompts.match(asked, leave), asked.root)
        except _BAD as error:
            raise of_request(error, at) from None
        return Matches(rows)

    def lease_many(
        self, cursors: CursorRows, *, groups: Sequence[int] | None = None
    ) -> list[Lease]:
        """``lease`` for each of what ``match_many`` found, or each ``Cursor``: pins all or none.

        Each is released on its own, or by ``release_many``. ``StaleError`` where a namespace,
        empty, has gone meanwhile. Cost: the nodes newly pinned, one crossing.
        """
        with self.gate:
            if self._dropped:
                self._drain()
            if self._timed:
                self._tell_time()
            mask = EVERY_GROUP if groups is None else mask_of(groups, len(self.groups))
            return leases_of(self._home, cursors, mask)

    def release_many(self, leases: Sequence[Lease]) -> None:
        """``release`` for each, the last of them as the most recently used; all or none:
        ``LeaseError`` names one that is released, another cache's, or stands twice. Cost: one
        crossing.
        """
        release_all(self._home, leases)

    def insert_many(
        self,
        prompts: Sequence[object],
        leases: Sequence[Lease],
        *,
        slots: Sequence[Sequence[object] | None] | None = None,
        boundaries: Sequence[Sequence[int]] | None = None,
        contents: Sequence[object] | None = None,
    ) -> Inserts:
        """``insert`` for each prompt behind its lease; all of them or none.

        ``prompts``: whole ones; ``leases``: one each, none twice; ``slots``, ``boundaries``,
        ``contents``: of each what ``insert`` takes. Room for all new pages is made before the first
        goes in, also for those that two of the prompts share (the second's slots are given back):
        ``CapacityError`` names the first that finds none, where a loop might have gone on. Raises
        what ``insert`` raises, with the request's number, and ``MemoryError``; leases, slots and
        tree are as before, only what was evicted stays away. Cost: the new pages, one crossing.
        """
        count = len(prompts)
        if len(leases) != count:
            raise ValueError(f"leases must be one a prompt: {len(leases)} for {count}")
        with self.gate:
            if self._lent:
                raise RequestError("insert: borrowed device slots enter by computed alone")
            numbers = lease_numbers_of(self._home, leases)
            given = _each("slots", slots, count)
            marks = _each("boundaries", boundaries, count)
            inside = _each("contents", contents, count)
            entries = self._entries(prompts, leases, numbers, marks, inside)
            if slots is None and self._shared is None:
                return self._insert_all_owned(entries)
            return self._insert_all_shared(entries, given)

    def _entries(
        self,
        prompts: Sequence[object],
        leases: Sequence[Lease],
        numbers: list[int],
        boundaries: Sequence[Sequence[int] | None],
        contents: Sequence[object],
    ) -> list[Entry]:
        """What is new of each prompt, checked."""
        inserting, page, opaque = self._inserting, self.page_tokens, self.keys.opaque
        checks = inserting.gaps or self._epochs.begun
        entries: list[Entry] = []
        try:
            for prompt, lease, number, marked, content in zip(
                prompts, leases, numbers, boundaries, contents, strict=True
            ):
                cursor, run = lease.cursor, int32(prompt)
                first = cursor[2]
                count = len(run) // page - first
                if count < 0:
                    count = 0
                marks = _UNMARKED
                if marked:
                    marks = numbers_of("boundaries", marked)
                    marks = inserting.boundaries(marks, first, first + count)
                if checks and first:
                    inserting.check_device(lease)
                pages: Tokens | Keys = run
                if opaque or content is not None:
                    chain = self._prompts.behind(cursor, run, content).chain
                    if opaque:
                        pages = np.empty((first + count, self.keys.page_bytes), np.uint8)
                        pages[first:] = chain.span(run, first, first + count)
                        if inserting.parts:  # is looked for in the tree from its beginning
                            pages[:first] = self.tree.pages(cursor, 0, first)
                entries.append(_tuple(Entry, (lease, number, first, count, marks, run, pages)))
        except _BAD as error:
            raise of_request(error, len(entries)) from None
        return entries

    def _insert_all_owned(self, entries: list[Entry]) -> Inserts:
        if self.residency.tiers[0].capability.holds_bytes and any(e.fresh for e in entries):
            for entry in entries:
                check_range(entry.run)
            raise RequestError(
                "insert: nobody has written the slots that the cache owns; "
                "use admit and computed, or shared slots"
            )
        inserting = self._inserting
        ends = [entry.lease.cursor for entry in entries]
        if inserting.parts and entries:  # pages behind the hit may be there already
            roots = np.array([end.root for end in ends], np.uint64)
            found = self.tree.match_many(roots, [entry.pages for entry in entries], 0, 0)
            ends = [found.cursor(at) for at in range(len(entries))]
        return inserting.insert_many(entries, inserting.reserve_many(entries, ends))

    def _insert_all_shared(
        self, entries: list[Entry], slots: Sequence[Sequence[object] | None]
    ) -> Inserts:
        inserting, rules = self._inserting, self.residency.rules
        kept: list[Slots] = []
        unneeded: list[list[Slots]] = []
        try:
            for entry, own in zip(entries, slots, strict=True):
                rows = rows_for_insert(self.ownership, own, rules, entry.fresh) or []
                given, spare = inserting.needed(rows, entry.first, entry.marks)
                kept.append(np.stack(given) if given else np.empty((len(rules), 0), np.int32))
                unneeded.append(spare)
        except _BAD as error:
            raise of_request(error, len(kept)) from None
        if self.residency.quotas is not None:
            for entry, rows_of_it in zip(entries, kept, strict=True):
                self.residency.quotas.make_way(rows_of_it, entry.lease.cursor.root)
        shared = self._adopted()
        wide = np.concatenate(kept, axis=1) if kept else np.empty((len(rules), 0), np.int32)
        adopted = [row[row != NO_SLOT] for row in wide]
        shared.adopt_all(adopted)
        try:
            flat = [rows.reshape(-1) for rows in kept]
            done = inserting.insert_many(entries, np.concatenate(flat) if flat else wide[0])
        except BaseException:
            shared.withdraw_all(adopted)
            raise
        twice = [done[at].duplicates for at in range(len(entries))]
        for at, rows in enumerate(twice):
            for group, row in enumerate(rows):
                shared.withdraw(group, row)
                rows[group] = np.concatenate((row, unneeded[at][group]))
        done.twice = twice
        return done


def _each(name: str, values: Sequence[_T | None] | None, count: int) -> Sequence[_T | None]:
    """One value a request; None for each where none were given."""
    if values is None:
        return (None,) * count
    if len(values) != count:
        raise ValueError(f"{name} must be one a prompt: {len(values)} for {count}")
    return values
