"""What a flat store is asked: which tier has a key, what is on its way, how far runs reach. Keeps
I34 (hits and misses add up to what was asked).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.arguments import number_below
from radix.errors import LeaseError
from radix.flat import FlatCore
from radix.flatfinding import FlatFinding
from radix.flatmoves import FlatTransfers
from radix.flatresidency import FlatResidency
from radix.groups import Group
from radix.hints import Hints, Time, check_hints, said_of
from radix.keys import Namespace
from radix.keysets import FlatLease, Mask, deepest_first, keys_of, positions_of
from radix.namespaces import Namespaces
from radix.tenancy import Tenancy
from radix.tier import Slots, Tier, TierMode
from radix.tree import NO_SLOT, TreeCore, raise_status

_find, _slots = lib.rdx_flat_find, lib.rdx_flat_slots
_MOST_PROBERS = 64
_OFF = TierMode.OFF  # members of an Enum are slow to look up


class Prober:
    """Called with a key, as bytes, and the number of a group: the first readable tier that has the
    block, -1 where none. Cost: O(1), a microsecond or two; a group that is not there is -1 too.
    """

    def __init__(self, store: FlatAsking, namespace: Namespace | None) -> None:
        self._store = store
        self._namespace = namespace
        self._gate = store.gate
        self._native = store.tree.native
        self._width = store.key_bytes
        self._root = store.root_of(namespace)
        self._node = ffi.new("uint64_t[1]")
        self._slot = ffi.new("int32_t[1]")
        groups = range(len(store.groups))
        self._columns = {
            group: [(n, tier, store.tree.column(group, n)) for n, tier in enumerate(store.tiers)]
            for group in groups
        }

    def __call__(self, key: bytes, group: int) -> int:
        """The tier. Raises ``ValueError`` for a key of another width."""
        if len(key) != self._width:
            raise ValueError(f"key must have {self._width} bytes, not {len(key)}")
        gate, node, slot = self._gate, self._node, self._slot
        if gate.closed or not gate.take(False):
            gate.refuse()
        try:
            if _find(self._native, self._root, key, 1, node):
                # an empty namespace goes when many have come, and has another root from then on
                self._root = self._store.root_of(self._namespace)
                raise_status(_find(self._native, self._root, key, 1, node))
            if node[0]:
                for number, tier, column in self._columns.get(group, ()):
                    if status := _slots(self._native, node, 1, column, slot):
                        raise_status(status)
                    if slot[0] != NO_SLOT and tier.mode is not _OFF:
                        return number
            return -1
        finally:
            gate.leave()


class FlatAsking(Tenancy):
    """The half of :class:`radix.store.FlatStore` that brings and takes nothing."""

    groups: tuple[Group, ...]
    tiers: tuple[Tier, ...]
    key_bytes: int
    tree: TreeCore
    residency: FlatResidency
    transfers: FlatTransfers
    _clock: Callable[[], int] | None
    _time: Time
    _timed: bool
    _spaces: Namespaces
    _probers: dict[Namespace | None, Prober]
    _finding: FlatFinding

    def root_of(self, namespace: Namespace | None) -> int:
        """By what the tree knows a namespace now."""
        with self.gate:
            return self._space(namespace)[0]

    def release(self, lease: FlatLease, *, hints: Hints | None = None) -> None:
        """Gives a lease back. ``hints``: what is said of its keys. ``LeaseError`` if done before,
        or for another store's.
        """
        if not lease.belongs_to(self.gate):
            raise LeaseError("the lease belongs to another store")
        said = self._said(hints)
        lease.release()
        if said is not None and not self.gate.closed:
            with self.gate:
                lease.hint(said_of(said, self._tell_time()))

    def touch(
        self,
        keys: object,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        hints: Hints | None = None,
    ) -> None:
        """Makes the keys that are there the most recently used, the deepest the oldest of them.
        ``hints``: what is said of them. Cost: the keys.
        """
        asked, said = keys_of("keys", keys, self.key_bytes), self._said(hints)
        order = deepest_first(positions_of(positions, len(asked)))
        with self.gate:
            now = self._tell_time()
            _, core = self._space(namespace)
            nodes = core.find(asked)[order]
            core.touch(nodes)
            if said is not None:
                core.hint(nodes, said_of(said, now))

    def _said(self, hints: object) -> Hints | None:
        said = check_hints(hints)
        if said is not None and said.timed and self._clock is None:
            raise ValueError("hints say seconds, and the store has no clock")
        return said

    def _tell_time(self) -> int:
        """What time it is, in microseconds; the order of eviction knows it from now on."""
        if self._clock is None:
            return 0
        now = self._time.now()
        if self._timed:
            self.tree.tell_time(now)
        return now

    @abstractmethod
    def _drain(self) -> None:
        """Gives back what was dropped."""

    def _space(self, namespace: Namespace | None) -> tuple[int, FlatCore]:
        self._drain()
        root = self._spaces.root(namespace)
        return root, self.residency.core(root)

    def _group(self, group: object) -> int:
        return number_below("group", group, len(self.groups))

    def has(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
    ) -> Slots:
        """The first readable tier that has each key's block, -1 where none. Being asked for counts
        as use; nothing else changes. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        order = deepest_first(positions_of(positions, len(asked)))
        with self.gate:
            root, core = self._space(namespace)
            nodes = core.find(asked)
            found = self.residency.where(core, nodes, group)
            core.touch(nodes[order][found[order] >= 0])
            self.residency.count_asked(root, asked, found, group)
            return found

    def seek(
        self,
        keys: object,
        group: int = 0,
        *,
        namespace: Namespace | None = None,
        positions: object = None,
        chained: bool = False,
    ) -> int:
        """Asks tiers that other stores write to as well for keys that are not here; the number
        whose ``KeysDone`` tells which keys are here by then, to be fetched or not. A hint like
        ``has``: what is fetched is verified. ``chained``: a key is of no use without those before
        it, so that none is asked for behind the first that is absent. Never blocks. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes).copy(), self._group(group)
        places = positions_of(positions, len(asked)).copy()
        with self.gate:
            root, _ = self._space(namespace)
            return self._finding.ask(root, group, asked, places, chained=chained)

    def probe(self, key: bytes, group: int = 0, *, namespace: Namespace | None = None) -> int:
        """The first readable tier that has one key's block, -1 where none: nothing changes and
        nothing is counted (``touch`` and ``has`` do that, many at once). Cost: O(1).
        """
        return self.prober(namespace)(key, self._group(group))

    def prober(self, namespace: Namespace | None = None) -> Prober:
        """``probe`` for one namespace, for engines that ask key by key. Cost: O(1)."""
        prober = self._probers.get(namespace)
        if prober is None:
            if len(self._probers) >= _MOST_PROBERS:
                self._probers.clear()
            prober = self._probers[namespace] = Prober(self, namespace)
        return prober

    def coming(self, keys: object, group: int = 0, *, namespace: Namespace | None = None) -> Mask:
        """Which keys are on their way into the first tier: reserved, or being loaded. Changes
        nothing. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        with self.gate:
            root, _ = self._space(namespace)
            return self.transfers.landing(root, group, 0, asked)

    def valid_lengths(
        self, runs: Sequence[object], group: int = 0, *, namespace: Namespace | None = None
    ) -> npt.NDArray[np.int64]:
        """How many keys of each run, from its start without a gap, some readable tier has. Changes
        nothing. Cost: the keys, one crossing for all runs.
        """
        parts = [keys_of(f"runs[{i}]", run, self.key_bytes) for i, run in enumerate(runs)]
        group = self._group(group)
        if not parts:
            return np.zeros(0, np.int64)
        with self.gate:
            _, core = self._space(namespace)
            where = self.residency.where(core, core.find(np.concatenate(parts)), group)
        ends = np.cumsum([len(part) for part in parts])
        starts = np.concatenate(([0], ends[:-1]))
        gaps = np.append(np.flatnonzero(where < 0), len(where))
        first_gap = gaps[np.searchsorted(gaps[:-1], starts)]
        lengths: npt.NDArray[np.int64] = np.minimum(first_gap, ends) - starts
        return lengths

    def slots(
        self,
        keys: object,
        group: int = 0,
        *,
        tier: int = 0,
        namespace: Namespace | None = None,
    ) -> Slots:
        """The slot of each key's block in a tier, -1 where it has none. Changes nothing. A slot is
        only as good as a lease on its key. Cost: the keys.
        """
        asked, group = keys_of("keys", keys, self.key_bytes), self._group(group)
        number = number_below("tier", tier, len(self.tiers))
        with self.gate:
            _, core = self._space(namespace)
            return core.slots(core.find(asked), self.tree.column(group, number))

    def root_key(self, namespace: Namespace | None = None) -> bytes:
        """The 16 bytes with which the name of a namespace's block begins in events. Cost: O(1) once
        it is known.
        """
        with self.gate:
            root, _ = self._space(namespace)
            return self._spaces.keys[root]
