"""FlatStore: blocks by (group, opaque key) for engines that give keys without tokens or parents. It
puts a tree of opaque keys, the tiers and the transfers together, in operations on sets of keys.
Order, leases, slots and checks are literally the tree's. Keeps I8 (reservations and jobs counted),
I11 (a call that fails changes nothing), I31 (nothing of an older epoch), and one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from radix.arguments import slots_of, tiers_of
from radix.errors import RequestError, UnsupportedError
from radix.events import BlocksStored, Event
from radix.flat import FlatCore, Handles
from radix.flatasking import FlatAsking
from radix.flatepochs import FlatEpochs
from radix.flatfinding import FlatFinding
from radix.flatkeeping import keep_keys
from radix.flatmoves import FlatTransfers
from radix.flatplans import Offer, offer_of
from radix.flatresidency import FlatResidency
from radix.front import above
from radix.gate import Gate
from radix.groups import Group, check_groups
from radix.hints import Time
from radix.holding import Keep, Keeps, lasting, most_bytes
from radix.keys import Namespace
from radix.keysets import (
    HASHED_BYTES,
    Fetch,
    FetchState,
    FlatLease,
    Reservation,
    deepest_first,
    hash_keys,
    keys_of,
    mask_of,
    positions_of,
    width_of,
)
from radix.metrics import Metrics
from radix.namespaces import Namespaces
from radix.ownership import Ownership
from radix.plan import Pages
from radix.policy.eviction import PRICED_POLICIES, TIMED_POLICIES, EvictionPolicy, check_policy
from radix.policy.given import ask_policy
from radix.policy.limits import Limits, check_writes
from radix.quotas import install, told_apart
from radix.reservations import Reservations
from radix.restoring import adopt_keys
from radix.shares import Shares
from radix.tenants import Tenants
from radix.tier import Keys, Slots, Tier, TierMode, Urgency
from radix.tree import TreeCore

__all__ = ["Fetch", "FetchState", "FlatLease", "FlatStore", "Reservation", "hash_keys"]

WRITE_POLICIES = ("write_through", "none")
_RECORD_PAGE_BYTES = 1  # keys have no pages; no token cache has pages of one byte, so that the
_FLAT_LAYOUT = 1 << 31  # directories of the two never mix, nor do their namespaces


def _check_ownership(ownership: object, tiers: int) -> None:
    if ownership not in (Ownership.OWNED, Ownership.BORROWED):
        raise ValueError(f"ownership is {ownership}, expected owned or borrowed")
    if ownership is Ownership.BORROWED and tiers < 2:
        raise ValueError("borrowed rows need a tier below them")


class FlatStore(FlatAsking):
    """Blocks by key over tiers, fastest first.

    Ask: ``has``, ``seek``, ``probe``, ``prober``, ``coming``, ``valid_lengths``, ``slots``,
    ``root_key``, ``resident``. Pin, use: ``lease``, ``touch``. Bring: ``reserve``, then ``commit``
    or ``abort``; ``store`` from rows that the engine lends. Take: ``fetch`` into the first tier;
    ``load`` into rows. Lose: ``forget``, ``reset``. Run: ``poll``, ``wait``, ``set_mode``,
    ``flush``, ``check``, ``counters``, ``usage``, ``close``. Keys are (n, key_bytes) uint8; a set
    stands in the order of its prompt unless ``positions`` say otherwise. One thread at a time: a
    call while another runs raises ``BusyError``.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        *,
        key_bytes: int = HASHED_BYTES,
        ownership: Ownership = Ownership.OWNED,
        policy: str | EvictionPolicy = "lru",
        write: str = "write_through",
        events: bool = False,
        clock: Callable[[], int] | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        """Opens the tiers and takes over what a persistent one holds.

        ``tiers``: fastest first; they are the store's from now on and closed with it. With
        ``Ownership.BORROWED`` the first is memory of the engine's, whose rows ``store`` and
        ``load`` name; numbers of tiers count from the one behind it. ``events``: keep the stream
        of blocks stored and removed for ``poll``. ``clock``: nanoseconds, for events, limits and
        hints (None: 0, and hints that say seconds are refused).
        ``write``: keys go down when they are new (``"write_through"``), when they are leased or
        offered again (``"write_after"``), when they are likely read back (``"write_expected"``), or
        never (``"none"``). ``limits``: of these ``stores``, ``loads``, ``breaker`` and
        ``load_deadline`` count, the last for what comes into a tier (rows that the engine lent are
        its own once a load into them has ended), and those of writes. ``tenants``: whose blocks are
        whose, with weights, quotas and floors. Raises ``ValueError`` or ``TypeError`` for a bad
        argument, ``TierError`` for a tier that does not open; nothing stays open then.
        """
        self.groups = check_groups(groups)
        media = tiers_of(tiers)
        lent = ownership is Ownership.BORROWED
        _check_ownership(ownership, len(media))
        bounds = check_writes(write, limits)
        self._clock, self._time = clock, Time(clock, lambda: 0)
        if write == "write_back":
            raise UnsupportedError("write 'write_back' is not in this version of a flat store")
        persistent = [tier.name for tier in media if tier.capability.persistent]
        self.key_bytes = width_of(key_bytes, persistent)
        self.tiers = media[1:] if lent else media
        self.opened = media
        self.metrics = Metrics()
        self._events: list[Event] = []
        self.gate = Gate()
        self._dropped: deque[tuple[FlatCore, Handles]] = deque()
        self.tree = self._ordered(policy, seed)
        self._place(media, told_apart(tenants, self.tree, self.groups, self.tiers), events)
        self.transfers = FlatTransfers(
            self.residency,
            clock or (lambda: 0),
            self._spaces.names,
            media[1:] if lent else media,
            media[0] if lent else None,
            self._events,
            write,
            bounds,
        )
        self._reservations = Reservations(self.residency, self.transfers)
        self._open(media)

    def _place(self, media: tuple[Tier, ...], shares: Shares | None, events: bool) -> None:
        """Puts blocks into tiers."""
        layout = _FLAT_LAYOUT | self.key_bytes
        self._spaces = Namespaces(self.tree, self.groups, layout, placed=False)
        stream = self._events if events else None
        if shares is not None:
            self.opened = (*media[: len(media) - len(self.tiers)], *shares.fronts)
            self.tiers = shares.fronts
        self.residency = FlatResidency(
            self.tree, self.groups, self.tiers, self.metrics, stream, self._spaces.keys
        )
        self.residency.root_names = self._spaces.names
        install(self.residency, self._spaces, shares)

    def _ordered(self, policy: str | EvictionPolicy, seed: int) -> TreeCore:
        """The tree, with its order of eviction."""
        order = check_policy(policy)
        if order in PRICED_POLICIES:
            raise UnsupportedError(f"policy {order!r} needs positions, which keys do not have")
        self._timed = order in TIMED_POLICIES
        tree = TreeCore(
            self.key_bytes,
            groups=len(self.groups),
            tiers=len(self.tiers),
            check_ids=False,
            keep_keys=False,
            policy=order,
            seed=seed,
        )
        ask_policy(tree, policy, self.metrics, self.gate)
        return tree

    def _open(self, media: tuple[Tier, ...]) -> None:
        share = self.transfers.limits.keep_share
        self._keeps = Keeps(self.residency, share, self.transfers.now)
        self._epochs = FlatEpochs(self.residency, self.transfers, self._reservations, self._keeps)
        self._probers = {}
        self._finding = FlatFinding(self.residency, self.transfers, self._spaces.names)
        opened: list[Tier] = []
        try:
            for number, tier in enumerate(self.opened):
                upper = media[above(media, number)] if number else None
                tier.attach(self.groups, _RECORD_PAGE_BYTES, upper)
                opened.append(tier)
            if self.residency.shares is not None:
                self.residency.shares.opened()
            kept = adopt_keys(self.residency, self._spaces, self.key_bytes)
            self.transfers.wear.resume(kept)
        except BaseException:
            for tier in reversed(opened):
                tier.close()
            raise

    # ------------------------------------------------------------ pinning and using
    def lease(
        self, keys: object, *, namespace: Namespace | None = None, positions: object = None
    ) -> FlatLease:
        """Pins every block of the keys that are there, until it is released; ``held`` tells which.

        At its release the keys become the most recently used, the deepest the oldest of them.
        Cost: the keys.
        """
        asked = keys_of("keys", keys, self.key_bytes)
        places = positions_of(positions, len(asked))
        order = deepest_first(places)
        with self.gate:
            self._tell_time()
            _, core = self._space(namespace)
            lease = FlatLease(core, core.find(asked), order, self._dropped, self.gate)
            self._epochs.leases.add(lease)
            self._again(core.root, asked[order], places[order])
            return lease

    def _again(self, root: int, keys: Keys, positions: Pages) -> None:
        """Keys, deepest first, were asked for once more: those of them that are worth it by now go
        down (write_after, write_expected).
        """
        if not self.transfers.asked(root, keys):
            return
        for group in range(len(self.groups)):
            for source in range(self.transfers.deepest):
                self.transfers.store(offer_of(root, group, source, keys, positions))

    def keep(
        self,
        keys: object,
        seconds: float,
        max_bytes: int | None = None,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> Keep:
        """Holds what is there of the keys, in each tier that has it, for ``seconds`` of the store's
        clock; of them the first by position, or by order where none is known, whose blocks take at
        most ``max_bytes``, each counted once.

        All keeps together hold at most ``Limits.keep_share`` of a tier: the oldest end for a new
        one. They also end, the oldest first, for reservations that would be refused room on their
        account, and at a reset. Raises ``ValueError``, ``TypeError``. Cost: the keys.
        """
        asked, patience = keys_of("keys", keys, self.key_bytes), lasting(seconds, None)
        most = most_bytes(max_bytes)
        if positions is not None:
            asked = asked[deepest_first(positions_of(positions, len(asked)))[::-1]]
        with self.gate:
            _, core = self._space(namespace)
            return keep_keys(self.gate, self._keeps, self.residency, core, asked, patience, most)

    # ------------------------------------------------------------ bringing
    def reserve(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        keep: object = None,
    ) -> Reservation:
        """Slots of the first tier for the keys that are neither there nor on their way, all or
        none. Evicts what has to go, but none of ``keys`` and ``keep``; keys that are there count
        as used.

        Raises ``CapacityError`` if room is short now, ``NeverFitsError`` if it always will be,
        ``TierError`` for a tier that fails; nothing is reserved then. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        places = positions_of(positions, len(asked))
        kept = None if keep is None else keys_of("keep", keep, self.key_bytes)
        with self.gate:
            self._tell_time()
            _, core = self._space(namespace)
            taken = self._reservations.reserve(core, group, asked, places, kept)
            order = deepest_first(places)
            self._again(core.root, asked[order], places[order])
            return taken

    def commit(self, reservation: Reservation, good: object = None) -> None:
        """The slots are filled: their keys are there from now on, the deepest the oldest of them,
        and go down as the write policy says. ``good``: which slots hold what they should (None:
        all); the others are given back. ``LeaseError`` if it ended before. Cost: the keys.
        """
        filled = None if good is None else mask_of("good", good, len(reservation))
        with self.gate:
            self._drain()
            self._reservations.commit(reservation, filled)

    def abort(self, reservation: Reservation) -> None:
        """The slots will not be filled: all is as if they had never been reserved, but for what had
        to be evicted. ``LeaseError`` if it ended before. Cost: the keys.
        """
        with self.gate:
            self._drain()
            self._reservations.abort(reservation)

    def store(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> int:
        """Starts copying rows of the engine's memory into the first tier; the number whose
        ``KeysDone`` tells how each key fared: good if it is there or was on its way already.

        The rows must stay as they are until then. Only with borrowed rows. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        lent = self._rows(rows, len(asked), group)
        places = positions_of(positions, len(asked))
        order = deepest_first(places)
        with self.gate:
            root, _ = self._space(namespace)
            asked, places = asked[order], places[order]  # copies: the caller's may change
            self._again(root, asked, places)
            number = self.transfers.new_number()
            good = np.zeros(len(asked), np.bool_)
            offer = Offer(root, group, -1, asked, places, lent[order], number, good, order)
            self.transfers.offer(number, offer)
            return number

    def _rows(self, rows: object, count: int, group: int) -> Slots:
        if self.opened is self.tiers:
            raise RequestError("rows: the store owns the slots of its first tier; reserve some")
        lent = slots_of("rows", rows)
        most = self.opened[0].capacity_blocks(group)
        if len(lent) != count or (count and int(lent.max()) >= most):
            raise ValueError(f"rows must be {count} rows below {most}, one a key")
        return lent

    # ------------------------------------------------------------ taking
    def fetch(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        urgency: Urgency = Urgency.DEMAND,
    ) -> Fetch:
        """Starts moving keys into the first tier, as far as there is room without evicting each
        other. The ``KeysDone`` of its number tells the end.

        A block that is corrupt or fails to load is dropped where it lies: the key is a miss from
        then on, unless a deeper tier has it. Being fetched counts as use. Cost: the keys.
        """
        return self._climb(keys, None, group, namespace, positions, urgency)

    def load(
        self,
        keys: object,
        rows: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        urgency: Urgency = Urgency.DEMAND,
    ) -> Fetch:
        """Starts copying keys into rows of the engine's memory; ``KeysDone`` tells which arrived.

        As ``fetch`` otherwise; what is larger than the tiers in between streams through them. The
        rows are written until then. Only with borrowed rows. Cost: the keys.
        """
        count = len(keys_of("keys", keys, self.key_bytes))
        lent = self._rows(rows, count, self._group(group))
        if (count > 1 and len(np.unique(lent)) != count) or self.transfers.writes_to(group, lent):
            raise ValueError("rows: two loads into one row")
        return self._climb(keys, lent, group, namespace, positions, urgency)

    def _climb(
        self,
        keys: object,
        rows: Slots | None,
        group: int,
        namespace: Namespace | None,
        positions: object,
        urgency: Urgency,
    ) -> Fetch:
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        places = positions_of(positions, len(asked))
        with self.gate:
            root, _ = self._space(namespace)
            return self.transfers.bring(root, group, asked, places, rows, urgency)

    # ------------------------------------------------------------ losing
    def forget(self, keys: object, group: int = 0, *, namespace: Namespace | None = None) -> None:
        """Blocks that turned out to be wrong: no tier has them from now on, leased or not. Where
        something still reads a slot, it rests until that has ended. Cost: the keys and the
        transfers under way.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        with self.gate:
            _, core = self._space(namespace)
            self._epochs.forget(core, group, asked)
            self._finding.lose(core.root, group, asked)

    def purge(self, root: int, after: int = 0, most: int = 1024) -> tuple[int, int | None]:
        """A piece of a namespace, by its root, leaves every tier, leased or not: of the keys behind
        ``after`` at most ``most``. How many there were, and what to go on behind (None: it is
        through). Durable after ``flush``. Cost: the keys and the transfers under way.
        """
        with self.gate:
            self._drain()
            return self._epochs.purge(self.residency.core(root), after, most)

    def reset(self, tiers: Sequence[str] | None = None) -> None:
        """A new epoch in these tiers (None: all), in a persistent one durable when this returns:
        nothing stored before is found again, nor what is under way. Reservations that are open end
        as if aborted; slots that a transfer or a lease reads rest until it has ended. Two resets
        are one. Blocks while an epoch is made durable.

        Raises ``ValueError`` for a name that no tier has; ``TierError`` of a persistent tier that
        cannot keep the epoch: nothing has changed. Cost: what the tiers hold.
        """
        names = [tier.name for tier in self.tiers]
        if unknown := sorted(set(tiers or ()) - set(names)):
            raise ValueError(f"tiers: {unknown[0]!r} is not one of {names}")
        with self.gate:
            self._drain()
            self._finding.forget()
            self._epochs.reset(
                [number for number, name in enumerate(names) if tiers is None or name in tiers]
            )

    # ------------------------------------------------------------ running
    def poll(self) -> list[Event]:
        """Takes completions, lets what waited go on; the events since the last call.

        Never blocks. Cost: what ended and what waits.
        """
        with self.gate:
            self._drain()
            self._tell_time()
            self.transfers.run()
            self._finding.run()
            self._keeps.run()
            self._epochs.run()
            events = self._events[:]
            self._events.clear()
            return events

    def wait(self, timeout_s: float = 0.05) -> None:
        """Blocks until a tier has completions for ``poll``, or the time is over."""
        with self.gate:
            self.transfers.wait(timeout_s)

    def flush(self) -> list[Event]:
        """Ends every transfer and makes durable what is stored. Blocks; the events meanwhile."""
        events = self.poll()
        while not self.transfers.idle():
            self.wait()
            events += self.poll()
        with self.gate:
            for tier in self.tiers:
                tier.flush()
        return events

    def _switched(self, tier: Tier, mode: TierMode) -> None:
        self.transfers.breakers.asked(tier, mode)

    def resident(self) -> list[BlocksStored]:
        """What lies in which tier now, as the stream of events would tell it, but for positions,
        which are not kept. Changes nothing. Cost: everything.
        """
        with self.gate:
            return self.residency.resident()

    def check(self) -> None:
        """Walks every invariant of tree, tiers and transfers, and that each slot in use has one
        owner (I7, I8); ``InvariantError`` names the first broken. Cost: everything.
        """
        with self.gate:
            self._drain()
            self.residency.check(device=False)
            self.transfers.check()
            for number in range(len(self.tiers)):
                for group in range(len(self.groups)):
                    held = [self.transfers.targets(number, group)]
                    held.append(self._epochs.slots(number, group))
                    if number == 0:
                        held += self._reservations.slots(group)
                    self.residency.check_owners(number, group, held)

    def _drain(self) -> None:
        while self._dropped:
            core, leases = self._dropped.popleft()
            core.release(leases)
            self.metrics.add(("lease", "dropped"))
        if count := self._reservations.drain():
            self.metrics.add(("reserve", "dropped"), count)
