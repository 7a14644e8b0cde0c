"""PrefixCache: the facade. It puts the tree, the tiers, admission, transfers and the life of
requests together, applies each plan once, and hands out events when it is polled. It decides
nothing that a layer below could decide. Keeps I1 (empty namespaces go), I34 (hits and misses add up
to what was asked), and one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from radix._native import Match, tree_insert, tree_match
from radix.admission import reserve_all
from radix.arguments import (
    check_supported,
    count_of,
    int32,
    page_tokens_of,
    prompt_of,
    slots_of,
    tiers_of,
)
from radix.audit import check_slots
from radix.errors import LeaseError, RequestError
from radix.events import Event
from radix.facade import Facade
from radix.gate import Gate
from radix.groups import Group, check_groups
from radix.keys import Namespace, Tokens, check_range
from radix.lease import Lease, drain
from radix.lifecycle import Fences
from radix.metrics import Metrics
from radix.misses import explain, miss_reason
from radix.namespaces import Namespaces
from radix.ownership import AdoptedSlots, Ownership, rows_for_insert, rows_for_prompt
from radix.plan import Cursor, Explanation
from radix.policy.eviction import check_policy
from radix.request import Request
from radix.requests import Requests
from radix.residency import Residency
from radix.restoring import adopt
from radix.tier import Slots, Tier
from radix.transfers import Transfers
from radix.tree import NO_SLOT, TreeCore

_tuple = tuple.__new__  # a NamedTuple's own constructor takes twice as long
WRITE_POLICIES = ("write_through", "none")


class Inserted(NamedTuple):
    """What an insert did, in pages; by group, ``slots`` are those that count from now on, and
    ``duplicates`` those of the caller's that were not needed: they are the engine's again (shared).
    """

    existing_pages: int
    created_pages: int
    slots: list[Slots]
    duplicates: list[Slots]


class PrefixCache(Facade):
    """A prefix cache over tiers, the first of them the device (or the host where there is none).

    Requests: ``admit`` (then the request's own methods), ``poll``, ``wait``, ``passed``.
    Engine-driven: ``match``, ``lease``, ``insert``, ``evict``, ``offer``, ``spare``.
    Ask: ``explain``, ``counters``, ``usage``, ``borrowed``. Run: ``set_mode``, ``flush``,
    ``check``, ``close``. One thread at a time: a call while another runs raises ``BusyError``.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        *,
        page_tokens: int = 16,
        ownership: Ownership = Ownership.OWNED,
        policy: str = "lru",
        write: str = "write_through",
        events: bool = False,
        clock: Callable[[], int] = lambda: 0,
        seed: int = 0,
    ) -> None:
        """Opens the tiers and takes over what a persistent one holds.

        ``tiers``: fastest first; they are the cache's from now on and closed with it. ``events``:
        keep the stream of blocks stored and removed for ``poll``. ``clock``: nanoseconds, for
        events alone. Raises ``ValueError`` or ``TypeError`` for a bad argument, ``TierError`` for
        a tier that does not open; nothing stays open then.
        """
        self.groups = check_groups(groups)
        self.page_tokens = page_tokens_of(page_tokens)
        media = tiers_of(tiers)
        if not isinstance(ownership, Ownership):
            raise TypeError(f"ownership must be an Ownership, not {type(ownership).__name__}")
        self.ownership = ownership
        check_supported(self.groups, len(media), self.page_tokens)
        check_policy(policy)
        if write not in WRITE_POLICIES:
            raise ValueError(f"write is {write!r}, expected one of {', '.join(WRITE_POLICIES)}")
        self._lent = lent = ownership is Ownership.BORROWED
        if lent and len(media) < 2:
            raise ValueError("borrowed device slots need a tier below the device")
        if ownership is Ownership.SHARED:
            self._shared: AdoptedSlots | None = AdoptedSlots(media[0])
            self.tiers: tuple[Tier, ...] = (self._shared, *media[1:])
        else:
            self._shared, self.tiers = None, media
        self.opened = self.tiers
        placed = self.tiers[1:] if lent else self.tiers
        self.metrics = Metrics()
        self._events: list[Event] = []
        self.gate = Gate()
        self._dropped: deque[int] = deque()
        self.tree = TreeCore(
            self.page_tokens * 4,
            groups=len(self.groups),
            tiers=len(placed),
            keep_keys=events or len(placed) > 1 or lent or placed[0].capability.persistent,
            seed=seed,
        )
        self._spaces = Namespaces(self.tree, self.groups, self.page_tokens)
        stream = self._events if events else None
        self.residency = Residency(self.tree, self.groups, placed, self.metrics, stream)
        self.residency.root_keys = self._spaces.keys
        self.transfers = Transfers(
            self.residency,
            clock,
            self._spaces.names,
            media[1:] if lent else media,
            media[0] if lent else None,
            self._events,
            write != "none",
        )
        self.fences = Fences()
        self.requests = Requests(
            self.residency, self.transfers, self.fences, self.page_tokens, clock, self._events
        )
        self._open(media)

    def _open(self, media: tuple[Tier, ...]) -> None:
        opened: list[Tier] = []
        try:
            for number, tier in enumerate(self.tiers):
                upper = media[number - 1] if number else None
                tier.attach(self.groups, self.page_tokens * 4, upper)
                opened.append(tier)
            for number, tier in enumerate(self.residency.tiers):
                for found in tier.restore():
                    adopt(self.residency, self._spaces, number, found)
        except BaseException:
            for tier in reversed(opened):
                tier.close()
            raise

    def namespace(self, namespace: Namespace | None = None) -> bytes:
        """Canonical bytes of a namespace in this cache: the groups' layouts are always in it."""
        return self._spaces.canonical(namespace)

    # ------------------------------------------------------------ requests
    def admit(
        self,
        tokens: object,
        *,
        new_tokens: int = 0,
        namespace: Namespace | None = None,
        slots: Sequence[object] | None = None,
        device_tokens: int = 0,
        cacheable_upto: int | None = None,
    ) -> Request:
        """Starts a request: pins its hit, reserves its pages, starts the loads, all or nothing.

        ``tokens``: the prompt, int32 (other integers are converted once). ``new_tokens``: room to
        reserve for what will be sampled. ``slots``: by group, the engine's free slots to use
        (shared) or its page table (borrowed). ``device_tokens``: the engine's own device hit
        (borrowed). ``cacheable_upto``: tokens of which the state may be kept. Raises
        ``NeverFitsError``, ``CapacityError``, ``ValueError``, ``TypeError``. Cost: the prompt.
        """
        prompt = prompt_of(tokens)
        room = count_of("new_tokens", new_tokens)
        limit = None if cacheable_upto is None else count_of("cacheable_upto", cacheable_upto)
        most, page = count_of("device_tokens", device_tokens), self.page_tokens
        rows = rows_for_prompt(
            self.ownership, slots, len(self.groups), page, len(prompt), room, most
        )
        with self.gate:
            self._drain()
            root = self._spaces.root(namespace)
            match = self.tree.match(root, prompt, 1, self.residency.readable())
            device_pages = most // page
            reason = ""
            if match.limit_pages > max(match.hit_pages, device_pages):
                # before anything is evicted for this request, which could be what it looks at
                reason = miss_reason(self.residency, match, root, prompt, page)
            if self._shared is not None and rows is not None:
                self._shared.offer_all(rows)
            try:
                work = self.requests.admit(root, prompt, room, match, rows, device_pages, limit)
            except BaseException:
                if self._shared is not None and rows is not None:
                    self._shared.withdraw_all(rows)
                raise
            self._count(match.limit_pages, len(prompt), work.admitted_pages, reason)
            return Request(self, work)

    def _adopted(self) -> AdoptedSlots:
        if self._shared is None:
            raise RequestError(f"device slots are {self.ownership.value}, not shared")
        return self._shared

    def _count(self, limit_pages: int, tokens: int, hit_pages: int, reason: str) -> None:
        page, metrics = self.page_tokens, self.metrics
        metrics.add(("match", "queries"))
        metrics.add(("match", "queried_tokens"), tokens)
        if tail := tokens - limit_pages * page:
            metrics.add(("match", "miss", "below one page"), tail)
        if limit_pages > hit_pages:
            metrics.add(("match", "miss", reason), (limit_pages - hit_pages) * page)

    def poll(self) -> list[Event]:
        """Takes completions, lets what waited go on; the events since the last call.

        Never blocks. Cost: what ended and what waits.
        """
        with self.gate:
            self._drain()
            self.transfers.poll(self.requests.ended)
            self.requests.run()
            events = self._events[:]
            self._events.clear()
            return events

    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until a tier has completions for ``poll``, or the time is over."""
        with self.gate:
            self.transfers.wait(timeout_s)

    def passed(self, step: int) -> None:
        """Step fences up to ``step`` have passed; what waited for them happens at ``poll``."""
        with self.gate:
            self.fences.step = max(self.fences.step, count_of("step", step))

    # ------------------------------------------------------------ engine-driven
    def match(
        self, tokens: object, *, namespace: Namespace | None = None, leave: int = 1
    ) -> tuple[Match, Cursor]:
        """How much of ``tokens`` is there, in pages, and the cursor of its end; changes nothing.

        The last ``leave`` tokens never count as hit. Cost: the tokens compared.
        """
        # The most frequent call of all: no wrapper stands between it and the native one.
        gate = self.gate
        if not gate.take(False):
            gate.refuse()
        try:
            if gate.closed:
                gate.refuse()
            root, readable = self._spaces.root(namespace), self.residency.readable()
            try:
                found = tree_match(self.tree.capsule, root, tokens, leave, readable)
            except (TypeError, ValueError, OverflowError, BufferError):
                # No int32 buffer as it stands: converted, or refused by name.
                run, left = int32(tokens), count_of("leave", leave)
                found = tree_match(self.tree.capsule, root, run, left, readable)
            return found, _tuple(Cursor, (root, found[5], found[2]))
        finally:
            gate.leave()

    def lease(self, cursor: Cursor) -> Lease:
        """Pins the path to ``cursor``; a stale one pins a shorter path, never another.

        ``StaleError`` where its whole namespace, empty, has gone meanwhile: match again.
        """
        with self.gate:
            self._drain()
            return Lease(self.tree, cursor, self._dropped, self.gate)

    def insert(
        self,
        tokens: object,
        lease: Lease,
        *,
        slots: Sequence[object] | None = None,
        partial: bool = False,
    ) -> Inserted:
        """Shares the full pages of ``tokens`` behind the end of ``lease``, whose bytes are final.

        The lease then covers them. ``tokens``: the whole prompt. ``slots``: by group, the slots
        that hold the new pages (shared). Where the cache owns the slots it picks them itself, over
        a first tier without bytes only: requests fill theirs before ``computed``.
        ``partial``: insert what fits instead of raising ``CapacityError``. Raises ``LeaseError``
        for a lease that is released, another cache's, or ends behind what the device holds;
        ``ValueError``, ``SlotError``. Cost: the new pages.
        """
        run = int32(tokens)
        with self.gate:
            lease.native(self.tree)
            if self._lent:
                raise RequestError("insert: borrowed device slots enter by computed alone")
            first = lease.cursor.pages
            count = len(run) // self.page_tokens - first
            if count < 0:
                count = 0
            rows: list[Slots] | None = None
            if slots is not None or self._shared is not None:
                rows = rows_for_insert(self.ownership, slots, len(self.groups), count)
            if first and len(self.residency.tiers) > 1:
                self._on_device(lease)
            if partial and rows is None:
                room = [self.residency.available(0, group) for group in range(len(self.groups))]
                count = max(0, min(count, *room))
            if count == 0:
                return Inserted(0, 0, [], [])
            if rows is None:
                if self.residency.tiers[0].capability.holds_bytes:
                    check_range(run)
                    raise RequestError(
                        "insert: nobody has written the slots that the cache owns; "
                        "use admit and computed, or shared slots"
                    )
                return self._insert(run, lease, first, reserve_all(self.residency, count))
            shared = self._adopted()
            shared.adopt_all(rows)
            try:
                result = self._insert(run, lease, first, rows)
            except BaseException:
                shared.withdraw_all(rows)
                raise
            for group, row in enumerate(result.duplicates):
                shared.withdraw(group, row)
            return result

    def _on_device(self, lease: Lease) -> None:
        for group in range(len(self.groups)):
            if self.residency.slots(lease.cursor, group, 0, lease.pages - 1, 1)[0] == NO_SLOT:
                raise LeaseError(
                    f"the lease ends at page {lease.pages}, which the first tier does not hold"
                )

    def _insert(self, run: Tokens, lease: Lease, first: int, given: list[Slots]) -> Inserted:
        page, tier, count = self.page_tokens, self.residency.tiers[0], len(given[0])
        slots = np.stack(given) if len(given) > 1 else given[0]
        canonical = np.empty((len(given), count), np.int32)
        try:
            root, node, pages = lease.cursor
            result = tree_insert(
                self.tree.capsule,
                root,
                node,
                pages,
                run[first * page : (first + count) * page],
                self.requests.columns,
                slots,
                canonical,
                lease.native(self.tree),
            )
        except BaseException:
            for group, row in enumerate(given):
                tier.abort(group, row)
            raise
        lease.cursor = _tuple(Cursor, (root, result[0], result[1]))
        twice: list[Slots] = []
        for group, row in enumerate(given):
            kept = canonical[group]
            if self.residency.events is None and kept.tobytes() == row.tobytes():
                # As mostly; so it takes a fifth of what comparing them in numpy takes.
                tier.commit(group, row)
                twice.append(row[:0])
                continue
            taken = kept == row
            tier.commit(group, row[taken])
            tier.abort(group, row[~taken])
            twice.append(row[~taken])
            self.residency.stored(lease.cursor, group, 0, first, taken)
        for refused, _ in self.transfers.store(lease.cursor, first, count, 0, 0):
            self.transfers.count("declined", refused.target, refused.group, refused.blocks)
        return Inserted(result.existing, result.created, list(canonical), twice)

    def evict(self, group: int, count: int, *, tier: int = 0) -> Slots:
        """Evicts up to ``count`` blocks of a group, oldest first; the slots that went.

        Of the first tier they are the engine's again where it shares them. Cost: the blocks.
        """
        wanted = count_of("count", count)
        with self.gate:
            self._drain()
            self._known(group, tier)
            resident = self.tree.column_stats(self.tree.column(group, tier)).resident
            slots = self.residency.evict(tier, group, min(wanted, resident))
            if tier == 0 and self._shared is not None:
                self._shared.withdraw(group, slots)
            return slots

    def _known(self, group: int, tier: int = 0) -> None:
        for name, value, most in (
            ("group", group, len(self.groups)),
            ("tier", tier, len(self.residency.tiers)),
        ):
            if count_of(name, value) >= most:
                raise ValueError(f"{name} is {value}, expected 0 to {most - 1}")

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

    # ------------------------------------------------------------ asking
    def explain(self, tokens: object, *, namespace: Namespace | None = None) -> Explanation:
        """Why ``tokens`` would hit as far as they would; changes nothing, counts nothing."""
        prompt = prompt_of(tokens)
        with self.gate:
            root = self._spaces.root(namespace)
            match = self.tree.match(root, prompt, 1, self.residency.readable())
            return explain(self.residency, match, root, prompt, self.page_tokens)

    def borrowed(self) -> dict[int, Slots]:
        """The ledger of loans: job to the engine's slots that it reads or writes now (borrowed)."""
        with self.gate:
            return {
                number: job.upper_slots
                for number, job in self.transfers.jobs.items()
                if -1 in (job.move.source, job.move.target)
            }

    # ------------------------------------------------------------ running
    def flush(self) -> list[Event]:
        """Ends every transfer and makes durable what is stored. Blocks; the events meanwhile."""
        events = self.poll()
        while self.transfers.jobs:
            self._flush_tiers()
            self.wait()
            events += self.poll()
        self._flush_tiers()
        return events

    def _flush_tiers(self) -> None:
        with self.gate:
            for tier in self.transfers.media:
                tier.flush()

    def check(self) -> None:
        """Walks every invariant of tree and tiers; ``InvariantError`` names the first broken.

        Cost: everything. For tests and for doubt.
        """
        with self.gate:
            self._drain()
            self.residency.check(device=self.requests.placed)
            self.transfers.check()
            self.requests.check()
            check_slots(self.residency, self.transfers, self.requests, self._spaces.names)

    def _drain(self) -> None:
        if self._dropped:
            count = drain(self.tree, self._dropped)
            self.metrics.add(("lease", "dropped"), count)
