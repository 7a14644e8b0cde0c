"""PrefixCache: the facade. It puts the tree, the tiers, admission, transfers and the life of
requests together, applies each plan once, and hands out events when it is polled. It decides
nothing that a layer below could decide. Keeps I1 (empty namespaces go), I34 (hits and misses add up
to what was asked), and one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from radix._native import Match
from radix.admission import reserve_all
from radix.errors import RequestError, UnsupportedError
from radix.events import Event
from radix.gate import Gate
from radix.groups import Group, check_groups
from radix.keys import Namespace, Tokens, as_tokens, root_key
from radix.lease import Lease, drain
from radix.lifecycle import Fences
from radix.metrics import Metrics
from radix.ownership import AdoptedSlots, Ownership
from radix.plan import Cursor, Explanation
from radix.policy.eviction import check_policy
from radix.request import Request
from radix.requests import Requests, miss_reason
from radix.residency import Residency
from radix.tier import Restored, Slots, Tier, TierMode, TierUsage
from radix.transfers import Transfers
from radix.tree import TreeCore

WRITE_POLICIES = ("write_through", "none")


class Inserted(NamedTuple):
    """What an insert did, in pages; ``slots[group]`` are the slots that count from now on."""

    existing_pages: int
    created_pages: int
    slots: list[Slots]


class PrefixCache:
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
        self.page_tokens = _page_tokens(page_tokens)
        self.ownership = ownership
        _supported(self.groups, self.page_tokens)
        check_policy(policy)
        if write not in WRITE_POLICIES:
            raise ValueError(f"write is {write!r}, expected one of {', '.join(WRITE_POLICIES)}")
        media = tuple(tiers)
        names = [tier.name for tier in media]
        if not media:
            raise ValueError("tiers must not be empty")
        if len(set(names)) != len(names):
            raise ValueError(f"two tiers of one name in {names}")
        lent = ownership is Ownership.BORROWED
        if lent and len(media) < 2:
            raise ValueError("borrowed device slots need a tier below the device")
        if ownership is Ownership.SHARED:
            media = (AdoptedSlots(media[0]), *media[1:])
        self.tiers = media
        placed = media[1:] if lent else media
        self.metrics = Metrics()
        self._events: list[Event] = []
        self._owner = Gate()
        self._dropped: deque[int] = deque()
        self._roots: dict[bytes, int] = {}
        self._known: dict[Namespace | None, int] = {}
        self._names: dict[int, bytes] = {}
        self._sweep_at = 64
        self.tree = TreeCore(
            self.page_tokens * 4,
            groups=len(self.groups),
            tiers=len(placed),
            keep_keys=events or len(placed) > 1 or lent or placed[0].capability.persistent,
            seed=seed,
        )
        stream = self._events if events else None
        self.residency = Residency(self.tree, self.groups, placed, self.metrics, stream)
        self.transfers = Transfers(
            self.residency,
            clock,
            self._names,
            tuple(tiers)[1:] if lent else tuple(tiers),
            media[0] if lent else None,
            self._events,
            write != "none",
        )
        self.fences = Fences()
        self._requests = Requests(
            self.residency, self.transfers, self.fences, self.page_tokens, clock, self._events
        )
        self._layout = b"".join(
            len(group.name).to_bytes(2, "big") + group.name.encode() + group.layout.fingerprint
            for group in self.groups
        ) + self.page_tokens.to_bytes(4, "big")
        self._open()

    def _open(self) -> None:
        opened: list[Tier] = []
        try:
            for number, tier in enumerate(self.tiers):
                upper = self.transfers.media[number - 1] if number and not self._lent else None
                if self._lent and number:
                    upper = self.tiers[number - 1]
                tier.attach(self.groups, self.page_tokens * 4, upper)
                opened.append(tier)
            for number, tier in enumerate(self.residency.tiers):
                for found in tier.restore():
                    self._adopt(number, found)
        except BaseException:
            for tier in reversed(opened):
                tier.close()
            raise

    @property
    def _lent(self) -> bool:
        return self.ownership is Ownership.BORROWED

    def _adopt(self, tier: int, found: Restored) -> None:
        """Links what a persistent tier kept; what cannot be linked is given back to it."""
        records, tree = found.records, self.tree
        linked = np.zeros(len(found.slots), np.bool_)
        fits = records.pages is not None and records.keys.shape[1] == 16
        if fits and records.pages is not None and records.pages.shape[1] == tree.page_bytes:
            root = self._root_of(records.namespace)
            column = tree.column(found.group, tier)
            linked = tree.restore(
                root, column, records.keys, records.parents, records.pages, found.slots
            )
            self._tell_restored(root, tier, found.group)
        if not linked.all():
            self.residency.tiers[tier].free(found.group, found.slots[~linked])
        name = self.residency.tiers[tier].name
        self.metrics.add(("restore", "blocks", name), int(linked.sum()))
        self.metrics.add(("restore", "unlinked", name), int((~linked).sum()))

    def _tell_restored(self, root: int, tier: int, group: int) -> None:
        if self.residency.events is None:
            return
        column = self.tree.column(group, tier)
        for node in self.tree.nodes(root):
            lo, hi = self.tree.interval(node.node, column)
            if hi > lo:
                at = Cursor(root, node.node, node.start + node.pages)
                whole = np.ones(hi - lo, np.bool_)
                self.residency.stored(at, group, tier, node.start + lo, whole)

    # ------------------------------------------------------------ namespaces
    def namespace(self, namespace: Namespace | None = None) -> bytes:
        """Canonical bytes of a namespace in this cache: the groups' layouts are always in it."""
        base = namespace if namespace is not None else Namespace()
        layout = len(base.layout).to_bytes(4, "big") + base.layout + self._layout
        return Namespace(base.model, base.adapter, layout, base.salt, base.content).canonical()

    def _root(self, namespace: Namespace | None) -> int:
        root = self._known.get(namespace)
        if root is None:
            root = self._known[namespace] = self._root_of(self.namespace(namespace))
        return root

    def _root_of(self, canonical: bytes) -> int:
        root = self._roots.get(canonical)
        if root is None:
            if len(self._roots) >= self._sweep_at:
                self._sweep()
            key = root_key(canonical)
            root = self.tree.root(key)
            self._roots[canonical] = root
            self._names[root] = canonical
            self.residency.root_keys[root] = key
        return root

    def _sweep(self) -> None:
        """Lets empty namespaces go (I1). Cost: the namespaces, spread over as many new ones."""
        self._known.clear()
        for canonical, root in list(self._roots.items()):
            if self.tree.drop_root(root):
                del self._roots[canonical], self._names[root], self.residency.root_keys[root]
        self._sweep_at = max(64, 2 * len(self._roots))

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
        prompt = _prompt(tokens)
        if new_tokens < 0:
            raise ValueError(f"new_tokens must not be negative, not {new_tokens}")
        with self._owner:
            self._drain()
            root = self._root(namespace)
            match = self.tree.match(root, prompt, 1, self.residency.readable())
            lent = self._take_slots(slots, len(prompt) + new_tokens, device_tokens)
            work = self._requests.admit(
                root, prompt, new_tokens, match, lent, device_tokens // self.page_tokens
            )
            work.cacheable = cacheable_upto
            self._count(match, root, prompt, work.admitted_pages)
            return Request(self, work)

    def _take_slots(
        self, slots: Sequence[object] | None, tokens: int, device_tokens: int
    ) -> list[Slots] | None:
        """The engine's slots as int32 rows, one a group; offered at once where it shares them."""
        if slots is None:
            if self._lent:
                raise ValueError("slots: borrowed device slots need the page table of every group")
            return None
        if self.ownership is Ownership.OWNED:
            raise ValueError("slots: the cache owns the device slots, none can be passed in")
        rows = [np.ascontiguousarray(row, np.int32) for row in slots]
        if len(rows) != len(self.groups):
            raise ValueError(f"slots: {len(rows)} rows for {len(self.groups)} groups")
        if self._lent:
            pages = -(-tokens // self.page_tokens)
            if min(len(row) for row in rows) < pages:
                raise ValueError(f"slots: {pages} pages need a slot in every group")
            if device_tokens % self.page_tokens or not 0 <= device_tokens <= tokens:
                raise ValueError(
                    f"device_tokens is {device_tokens}, expected whole pages of the prompt"
                )
        else:
            for group, row in enumerate(rows):
                self._adopted().offer(group, row)
        return rows

    def _adopted(self) -> AdoptedSlots:
        first = self.tiers[0]
        if not isinstance(first, AdoptedSlots):
            raise RequestError(f"device slots are {self.ownership.value}, not shared")
        return first

    def _count(self, match: Match, root: int, prompt: Tokens, hit_pages: int) -> None:
        page, metrics = self.page_tokens, self.metrics
        limit = max(match.limit_pages, hit_pages)
        metrics.add(("match", "queries"))
        metrics.add(("match", "queried_tokens"), len(prompt))
        if tail := len(prompt) - limit * page:
            metrics.add(("match", "miss", "below one page"), tail)
        if limit > hit_pages:
            at = Cursor(root, match.node, match.structural_pages)
            reason = miss_reason(self.residency, match, at, prompt, page)
            metrics.add(("match", "miss", reason), (limit - hit_pages) * page)

    def poll(self) -> list[Event]:
        """Takes completions, lets what waited go on; the events since the last call.

        Never blocks. Cost: what ended and what waits.
        """
        with self._owner:
            self._drain()
            self.transfers.poll(self._requests.ended)
            self._requests.run()
            events = self._events[:]
            self._events.clear()
            return events

    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until a tier has completions for ``poll``, or the time is over."""
        with self._owner:
            busy = [tier for tier in self.transfers.media if tier.pending()]
            for tier in busy:
                tier.wait(timeout_s / len(busy))

    def passed(self, step: int) -> None:
        """Step fences up to ``step`` have passed; what waited for them happens at ``poll``."""
        with self._owner:
            self.fences.step = max(self.fences.step, step)

    # ------------------------------------------------------------ engine-driven
    def match(
        self, tokens: object, *, namespace: Namespace | None = None, leave: int = 1
    ) -> tuple[Match, Cursor]:
        """How much of ``tokens`` is there, in pages, and the cursor of its end; changes nothing.

        The last ``leave`` tokens never count as hit. Cost: the tokens compared.
        """
        with self._owner:
            root = self._root(namespace)
            found = self.tree.match(root, _int32(tokens), leave, self.residency.readable())
            return found, Cursor(root, found.node, found.structural_pages)

    def lease(self, cursor: Cursor) -> Lease:
        """Pins the path to ``cursor``; a stale one pins a shorter path, never another."""
        with self._owner:
            self._drain()
            return Lease(self.tree, cursor, self._dropped)

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
        that hold the new pages (shared; what was there already stays the engine's: ``spare``).
        ``partial``: insert what fits instead of raising ``CapacityError``. Cost: the new pages.
        """
        run = _int32(tokens)
        with self._owner:
            first = lease.pages
            count = len(run) // self.page_tokens - first
            if count <= 0:
                return Inserted(0, 0, [])
            if partial:
                room = [self.residency.available(0, group) for group in range(len(self.groups))]
                count = min(count, *room)
                if count <= 0:
                    return Inserted(0, 0, [])
            self._take_slots(slots, 0, 0)
            given = reserve_all(self.residency, count)
            return self._insert(run, lease, first, count, given)

    def _insert(
        self, run: Tokens, lease: Lease, first: int, count: int, given: list[Slots]
    ) -> Inserted:
        page, tier = self.page_tokens, self.residency.tiers[0]
        slots = np.stack(given) if len(given) > 1 else given[0][None]
        canonical = np.empty_like(slots)
        try:
            result = self.tree.insert(
                lease.cursor,
                run[first * page : (first + count) * page],
                self._requests.columns,
                slots,
                canonical,
                lease.native,
            )
        except BaseException:
            for group, row in enumerate(given):
                tier.abort(group, row)
            raise
        lease.cursor = Cursor(lease.cursor.root, result.node, result.pages)
        for group, row in enumerate(given):
            taken = canonical[group] == row
            if taken.all():
                tier.commit(group, row)
            else:
                tier.commit(group, row[taken])
                tier.abort(group, row[~taken])
            self.residency.stored(lease.cursor, group, 0, first, taken)
        for refused, _ in self.transfers.store(lease.cursor, first, count, 0, 0):
            name = self.residency.tiers[refused.target].name
            self.metrics.add(
                ("store", "declined", name, self.groups[refused.group].name), refused.blocks
            )
        return Inserted(result.existing, result.created, list(canonical))

    def evict(self, group: int, count: int, *, tier: int = 0) -> Slots:
        """Evicts up to ``count`` blocks of a group, oldest first; the slots that went."""
        with self._owner:
            self._drain()
            return self.residency.evict(tier, group, count)

    def offer(self, group: int, slots: object) -> None:
        """Gives the cache free slots of the engine's (shared)."""
        with self._owner:
            self._adopted().offer(group, np.ascontiguousarray(slots, np.int32))

    def spare(self, group: int) -> Slots:
        """Takes back the slots that the cache does not use (shared): offered in excess, evicted,
        or holding what another block holds already.
        """
        with self._owner:
            return self._adopted().spare(group)

    # ------------------------------------------------------------ asking
    def explain(self, tokens: object, *, namespace: Namespace | None = None) -> Explanation:
        """Why ``tokens`` would hit as far as they would; changes nothing, counts nothing."""
        prompt = _prompt(tokens)
        with self._owner:
            root = self._root(namespace)
            match = self.tree.match(root, prompt, 1, self.residency.readable())
            at = Cursor(root, match.node, match.structural_pages)
            served: dict[str, int] = {}
            left = np.ones(match.hit_pages, np.bool_)
            for number, tier in enumerate(self.residency.tiers):
                if tier.mode is TierMode.OFF:
                    continue
                have = self.residency.slots(at, 0, number, 0, match.hit_pages) >= 0
                if count := int((have & left).sum()):
                    served[tier.name] = count * self.page_tokens
                left &= ~have
            return Explanation(
                prompt_tokens=len(prompt),
                structural_tokens=match.structural_pages * self.page_tokens,
                device_tokens=match.device_pages * self.page_tokens,
                hit_tokens=match.hit_pages * self.page_tokens,
                tiers=served,
                reason=miss_reason(self.residency, match, at, prompt, self.page_tokens),
            )

    def counters(self) -> Mapping[str, int]:
        """Every counter by its dotted name, sorted."""
        return self.metrics.snapshot()

    def usage(self) -> dict[str, TierUsage]:
        """Bytes and blocks in use by tier."""
        with self._owner:
            return {tier.name: tier.usage() for tier in self.tiers}

    def borrowed(self) -> dict[int, Slots]:
        """The ledger of loans: job to the engine's slots that it reads or writes now (borrowed)."""
        return {
            number: job.upper_slots
            for number, job in self.transfers.jobs.items()
            if -1 in (job.move.source, job.move.target)
        }

    # ------------------------------------------------------------ running
    def set_mode(self, tier: str, mode: TierMode) -> None:
        """Switches a tier on, read-only or off while requests run."""
        with self._owner:
            for each in self.tiers:
                if each.name == tier:
                    each.set_mode(mode)
                    return
            raise ValueError(f"tier {tier!r} is not one of {[t.name for t in self.tiers]}")

    def flush(self) -> list[Event]:
        """Ends every transfer and makes durable what is stored. Blocks; the events meanwhile."""
        events = self.poll()
        while self.transfers.jobs:
            with self._owner:
                for tier in self.transfers.media:
                    tier.flush()
            events += self.poll()
        with self._owner:
            for tier in self.transfers.media:
                tier.flush()
        return events

    def check(self) -> None:
        """Walks every invariant of tree and tiers; ``InvariantError`` names the first broken.

        Cost: everything. For tests and for doubt.
        """
        with self._owner:
            self._drain()
            self.residency.check(device=self._requests.placed)

    def _drain(self) -> None:
        if self._dropped:
            count = drain(self.tree, self._dropped)
            self.metrics.add(("lease", "dropped"), count)

    def close(self) -> None:
        """Ends what is under way, keeps what is durable, closes the tiers. Idempotent."""
        if self._owner.closed:
            return
        with self._owner:
            for tier in reversed(self.tiers):
                tier.close()
            self._owner.close()

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _page_tokens(page_tokens: object) -> int:
    if isinstance(page_tokens, bool) or not isinstance(page_tokens, int):
        raise TypeError(f"page_tokens must be an int, not {type(page_tokens).__name__}")
    if not 1 <= page_tokens <= 65536:
        raise ValueError(f"page_tokens must be 1 to 65536, not {page_tokens}")
    return page_tokens


def _supported(groups: tuple[Group, ...], page_tokens: int) -> None:
    for group in groups:
        if group.retention.rule != "full" or group.per_sequence or group.lookahead:
            raise UnsupportedError(
                f"group {group.name!r}: retention {group.retention.rule!r} is not in this version"
            )
        if group.grid_tokens not in (None, page_tokens):
            raise UnsupportedError(
                f"group {group.name!r}: blocks of {group.grid_tokens} tokens over pages of "
                f"{page_tokens} are not in this version"
            )
        if group.layout.store_shards != 1:
            raise UnsupportedError(f"group {group.name!r}: sharded blocks are not in this version")


def _int32(tokens: object) -> Tokens:
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        return tokens if tokens.flags.c_contiguous else np.ascontiguousarray(tokens)
    return as_tokens(tokens)


def _prompt(tokens: object) -> Tokens:
    prompt = _int32(tokens)
    if not len(prompt):
        raise ValueError("tokens: an empty prompt")
    if int(prompt.min()) < 0:
        raise ValueError("tokens hold an id outside [0, 2^31)")
    return prompt
