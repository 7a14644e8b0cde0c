"""Epochs of a flat store, and blocks that turn out to be wrong: what leaves is found in no tier
from then on, also after a restart, whatever is under way meanwhile. A slot that a transfer or a
lease still reads rests until these have ended (I31). Two resets are one.

    reset   durable epoch --> jobs, climbs, reservations of before outdated --> blocks leave
    slot    read by nobody: free      by some: quarantine until the last of them has let go
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet, ref

import numpy as np

from radix.flat import FlatCore, Handles
from radix.flatmoves import FlatTransfers
from radix.flatresidency import FlatResidency
from radix.holding import Keeps
from radix.keysets import FlatLease, names_of
from radix.plan import Cursor
from radix.reservations import Reservations
from radix.residency import CORRUPT, RESET
from radix.tier import Keys, Slots
from radix.tree import NO_SLOT

Place = tuple[int, int, int]  # tier, group, slot
Reader = int | ref[FlatLease]  # the number of a job, or a lease of the owner's


class FlatEpochs:
    """Begin: ``reset``. Lose: ``forget``, ``purge``. Go on: ``run``, each poll. Ask: ``slots``."""

    def __init__(
        self,
        residency: FlatResidency,
        transfers: FlatTransfers,
        reservations: Reservations,
        keeps: Keeps,
    ) -> None:
        self._residency = residency
        self._transfers = transfers
        self._reservations = reservations
        self._keeps = keeps
        self.leases: WeakSet[FlatLease] = WeakSet()
        self._fenced: dict[Place, list[Reader]] = {}

    def reset(self, tiers: Sequence[int]) -> None:
        """A new epoch in these tiers. ``TierError`` of a persistent one that cannot keep it:
        nothing has changed but that persistent tiers below it may have begun theirs, which costs
        hits alone. Cost: what they hold.
        """
        for tier in reversed(tiers):  # first what may not answer
            self._residency.tiers[tier].renew()
        for job in list(self._transfers.jobs.values()):
            if job.move.source in tiers or job.move.target in tiers:
                self._transfers.void(job)
        self._transfers.restart()
        self._keeps.end_all(RESET)
        if 0 in tiers:
            self._reservations.outdate()
        groups = range(len(self._residency.groups))
        for tier in tiers:
            for group in groups:
                self._residency.clear(tier, group)
        for root in list(self._residency.root_keys):
            self._expel(root, *self._left(root), (tiers, groups), RESET)
        self._residency.metrics.add(("reset", "epochs"))

    def forget(self, core: FlatCore, group: int, keys: Keys) -> None:
        """These blocks are wrong: no tier has them from now on, nor will one that is being given
        them. Cost: the keys and the jobs under way.
        """
        names = set(names_of(keys))
        for job in list(self._transfers.jobs.values()):
            same = (job.move.root, job.move.group) == (core.root, group)
            if same and not names.isdisjoint(job.keys):
                self._transfers.void(job)
        self._transfers.recall(core.root, group, names)
        nodes = core.find(keys)
        there = nodes != 0
        every = range(len(self._residency.tiers))
        self._expel(core.root, nodes[there], keys[there], (every, [group]), CORRUPT)

    def purge(self, core: FlatCore, after: int, most: int) -> tuple[int, int | None]:
        """At most ``most`` keys of a namespace, those behind the node ``after`` (0: the first),
        leave every tier, nor will one be given them that is on its way: how many, and what to go on
        behind (None: it is through). Cost: the keys and the jobs under way.
        """
        tree = self._residency.tree
        for job in list(self._transfers.jobs.values()):
            if job.move.root == core.root:
                self._transfers.void(job)
        self._transfers.recall(core.root)
        views = tree.children(core.root, after, most)
        keys = np.empty((len(views), tree.page_bytes), np.uint8)
        for row, view in enumerate(views):
            keys[row] = tree.pages(Cursor(core.root, view.node, 1), 0, 1)[0]
        nodes = np.array([view.node for view in views], np.uint64)
        every = range(len(self._residency.tiers))
        groups = range(len(self._residency.groups))
        self._expel(core.root, nodes, keys, (every, groups), RESET)
        if len(views) < most:
            return len(views), None
        left = core.find(keys)  # what a lease still names stays in the tree, without a block
        return len(views), int(left[left != 0][-1]) if (left != 0).any() else after

    def run(self) -> None:
        """Lets go the slots that nobody reads any more. Cost: those that rest."""
        for (tier, group, slot), readers in list(self._fenced.items()):
            if not any(map(self._reads, readers)):
                del self._fenced[tier, group, slot]
                self._residency.tiers[tier].lift(group, np.array([slot], np.int32))

    def slots(self, tier: int, group: int) -> Slots:
        """The slots that rest in (tier, group)."""
        here = [slot for where, which, slot in self._fenced if (where, which) == (tier, group)]
        return np.array(here, np.int32)

    def _reads(self, reader: Reader) -> bool:
        if isinstance(reader, int):
            return reader in self._transfers.jobs
        lease = reader()
        return lease is not None and not lease.released

    # ------------------------------------------------------------ leaving
    def _left(self, root: int) -> tuple[Handles, Keys]:
        """Every node of a namespace, with its key."""
        tree = self._residency.tree
        views = tree.nodes(root)[1:]
        keys = np.empty((len(views), tree.page_bytes), np.uint8)
        for row, view in enumerate(views):
            keys[row] = tree.pages(Cursor(root, view.node, 1), 0, 1)[0]
        return np.array([view.node for view in views], np.uint64), keys

    def _expel(
        self,
        root: int,
        nodes: Handles,
        keys: Keys,
        columns: tuple[Sequence[int], Sequence[int]],
        reason: str,
    ) -> None:
        """Blocks of these keys leave the tiers and groups of ``columns``; slots that are read rest,
        the others are free.
        """
        tiers, groups = columns
        if not len(nodes):
            return
        reading = self._reading()
        leased: dict[int, list[Reader]] = {}
        for lease in list(self.leases):
            if not lease.released:
                for node in lease.nodes.tolist():
                    leased.setdefault(node, []).append(ref(lease))
        for tier in tiers:
            for group in groups:
                slots = self._residency.expel(root, group, tier, nodes, keys, reason)
                for node, slot in zip(nodes.tolist(), slots.tolist(), strict=True):
                    if slot != NO_SLOT:
                        readers = list(reading.get((tier, group, slot), ()))
                        readers += leased.get(node, ()) if tier == 0 else ()
                        self._leave((tier, group, slot), readers)

    def _leave(self, place: Place, readers: list[Reader]) -> None:
        tier, group, slot = place
        store, gone = self._residency.tiers[tier], np.array([slot], np.int32)
        if readers:
            store.fence(group, gone)
            self._fenced[place] = readers
        else:
            store.free(group, gone)

    def _reading(self) -> dict[Place, list[Reader]]:
        """Which jobs read which slots."""
        found: dict[Place, list[Reader]] = {}
        for job in self._transfers.jobs.values():
            slots = job.upper_slots if job.storing else job.lower_slots
            for slot in slots.tolist():
                place = job.move.source, job.move.group, slot
                found.setdefault(place, []).append(job.number)
        return found
