"""Where the blocks of opaque keys lie. A block is named by its namespace's root and its key;
columns, slots, order and checks are those of the tree (I7, I8, I16, I17), and the event stream says
which namespace a key is of (I32).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.events import BlocksStored, Event
from radix.flat import FlatCore, Handles, evict
from radix.groups import Group
from radix.keysets import Mask, deepest_first
from radix.metrics import Metrics
from radix.plan import Cursor, Pages
from radix.residency import GHOSTS, MAX_STAMP, RESET, Residency
from radix.shares import FOR_ANYBODY, Claim
from radix.tier import Keys, Slots, Tier, TierMode
from radix.tree import NO_SLOT, TreeCore

GONE = ("corrupt", "failed", "reset")
_OFF = TierMode.OFF  # members of an Enum are slow to look up
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: no two words become one


@dataclass(frozen=True, slots=True)
class FlatMove:
    """Blocks of keys of one group and namespace that go from one tier to its neighbour. A node is
    0 where the key is new to the tree.
    """

    root: int
    group: int
    source: int
    target: int
    nodes: Handles
    keys: Keys
    positions: Pages

    @property
    def blocks(self) -> int:
        """Blocks to move."""
        return len(self.keys)


class FlatResidency(Residency):
    """The residency of a tree of opaque keys: blocks are named by (root, key).

    Look: ``core``, ``where``. Change: ``put``, ``fasten``, ``take_out``, ``clear``, ``expel``.
    Tell: ``tell_stored``, ``count_asked``. Check: ``check_owners``.
    """

    def __init__(
        self,
        tree: TreeCore,
        groups: Sequence[Group],
        tiers: Sequence[Tier],
        metrics: Metrics,
        events: list[Event] | None,
        root_keys: dict[int, bytes],
    ) -> None:
        super().__init__(tree, groups, tiers, metrics, events)
        self.root_keys = root_keys
        self._table = np.zeros(GHOSTS, np.uint64)
        self._ghosts = self._table
        self._why = [f"evicted from {tier.name}" for tier in self.tiers] + list(GONE)
        self._cores: dict[int, FlatCore] = {}

    def core(self, root: int) -> FlatCore:
        """The keys of one namespace."""
        core = self._cores.get(root)
        if core is None:
            if len(self._cores) > 2 * len(self.root_keys) + 8:
                self._cores = {k: v for k, v in self._cores.items() if k in self.root_keys}
            core = self._cores[root] = FlatCore(self.tree, root)
        return core

    def where(self, core: FlatCore, nodes: Handles, group: int) -> Slots:
        """The first readable tier that has each key's block, -1 where none. Cost: keys x tiers."""
        found = np.empty(len(nodes), np.int32)
        found.fill(-1)
        for number in range(len(self.tiers) - 1, -1, -1):
            if self.tiers[number].mode is not _OFF:
                have = core.slots(nodes, self.tree.column(group, number)) != NO_SLOT
                found[have] = number
        return found

    # ------------------------------------------------------------ change
    def put(
        self, root: int, group: int, tier: int, keys: Keys, positions: Pages, slots: Slots
    ) -> Slots:
        """Keys get slots (reserved, now final) in a tier, the last becoming the most recent.

        All or none; returns the canonical slots. Where a block was there, the given slot goes back
        to the tier.
        """
        canonical = self.core(root).insert(keys, self.tree.column(group, tier), slots)
        taken = self._settle(tier, group, slots, canonical)
        if self.events is not None:
            self.tell_stored(root, group, tier, keys[taken], positions[taken])
        return canonical

    def fasten(self, move: FlatMove, tier: int, good: Mask, slots: Slots) -> None:
        """A copy of the ``good`` blocks of a move ended in ``tier``: nothing becomes younger by it.
        What did not arrive goes back to the tier.
        """
        arrived = np.count_nonzero(good)
        if arrived:
            column, final = self.tree.column(move.group, tier), slots[good]
            canonical = self.core(move.root).attach(move.nodes[good], column, final)
            taken = self._settle(tier, move.group, final, canonical)
            if self.events is not None:
                keys, positions = move.keys[good][taken], move.positions[good][taken]
                self.tell_stored(move.root, move.group, tier, keys, positions)
        if arrived < len(good):
            self.tiers[tier].abort(move.group, slots[~good])

    def take_out(self, move: FlatMove, tier: int, bad: Mask, reason: str) -> None:
        """Blocks of a move are wrong or unreadable in ``tier``: it has them no more."""
        if not bad.any():
            return
        keys, nodes = move.keys[bad], move.nodes[bad]
        slots = self.expel(move.root, move.group, tier, nodes, keys, reason)
        self._give_back(tier, move.group, slots[slots != NO_SLOT])

    def clear(self, tier: int, group: int) -> None:
        """Every block that no lease pins leaves a tier. Cost: them."""
        column = self.tree.column(group, tier)
        slots, ids = self._take(column, self.tree.column_stats(column).resident, MAX_STAMP)
        if len(slots) and ids is not None:
            self._removed(tier, group, ids, RESET, self._why.index(RESET))
            self._give_back(tier, group, slots)

    def expel(
        self, root: int, group: int, tier: int, nodes: Handles, keys: Keys, reason: str
    ) -> Slots:
        """Blocks leave a tier, pinned or not: the slot of each, which is the caller's to give back,
        -1 where there was none. Cost: them.
        """
        slots = self.core(root).drop(nodes, self.tree.column(group, tier))
        had = slots != NO_SLOT
        if had.any():
            ids = self._ids(keys[had], np.full(int(had.sum()), root, np.uint64))
            self._removed(tier, group, ids, reason, self._why.index(reason))
        return slots

    # ------------------------------------------------------------ names
    def _take(
        self, column: int, count: int, upto: int, claim: Claim = FOR_ANYBODY
    ) -> tuple[Slots, Keys | None]:
        if self.shares is None:
            slots, keys, roots = evict(self.tree, column, count)
            return slots, self._ids(keys, roots)
        slots, roots = np.empty(count, np.int32), np.empty(count, np.uint64)
        keys = np.empty((count, self.tree.page_bytes), np.uint8)
        freed = self.shares.evict(column, claim, upto, slots, keys, roots)
        slots, keys, roots = slots[:freed], keys[:freed], roots[:freed]
        return slots, self._ids(keys, roots)

    def _ids(self, keys: Keys, roots: Handles) -> Keys:
        """Root key, then key: what names a block in events. Cost: the keys."""
        ids = np.empty((len(keys), 16 + keys.shape[1]), np.uint8)
        ids[:, 16:] = keys
        for root in set(roots.tolist()):
            ids[roots == root, :16] = np.frombuffer(self.root_keys[root], np.uint8)
        return ids

    @staticmethod
    def _short(ids: Keys) -> npt.NDArray[np.uint64]:
        """Eight bytes that depend on all bytes of an id: keys may well begin alike."""
        words = -(-ids.shape[1] // 8)
        padded = np.zeros((len(ids), words * 8), np.uint8)
        padded[:, : ids.shape[1]] = ids
        short = np.zeros(len(ids), np.uint64)
        for word in padded.view(np.uint64).T:
            short = (short ^ word) * _MIX
            short = (short ^ short >> np.uint64(32)) * _MIX
            short ^= short >> np.uint64(32)
        return short

    def tell_stored(self, root: int, group: int, tier: int, keys: Keys, positions: Pages) -> None:
        """Tells the stream of blocks that are resident now, a run of positions an event."""
        if self.events is not None and len(keys):
            self.events += self._runs(root, group, tier, keys, positions)

    def _runs(
        self, root: int, group: int, tier: int, keys: Keys, positions: Pages
    ) -> list[BlocksStored]:
        """An event for each run of positions. Cost: the keys."""
        order = deepest_first(positions)[::-1]
        ids = self._ids(keys[order], np.full(len(keys), root, np.uint64))
        place = positions[order]
        known = place >= 0
        cuts = np.flatnonzero((np.diff(place) != 1) & (known[1:] | known[:-1])) + 1
        edges = [0, *cuts.tolist(), len(keys)]
        return [
            BlocksStored(
                self.tiers[tier].name,
                self.groups[group].name,
                self.root_keys[root],
                ids[lo:hi].copy(),
                int(place[lo]),
                None,
                self.root_names[root],
            )
            for lo, hi in itertools.pairwise(edges)
        ]

    def resident(self) -> list[BlocksStored]:
        """What lies where now, as the stream would tell it, but for positions, which are not kept.

        Changes nothing. Cost: everything.
        """
        told = []
        for root in self.root_keys:
            nodes = np.array([view.node for view in self.tree.nodes(root)[1:]], np.uint64)
            told += self._there(root, nodes)
        return told

    def resident_piece(
        self, root: int, after: int, most: int
    ) -> tuple[list[BlocksStored], int | None]:
        """The same of at most ``most`` keys of a namespace, behind its node ``after`` (0: the
        first), and where to go on, None at the end. ``StaleError`` where ``after`` has gone.
        """
        nodes = [view.node for view in self.tree.children(root, after, most)]
        told = self._there(root, np.array(nodes, np.uint64)) if nodes else []
        return told, nodes[-1] if len(nodes) == most else None

    def _there(self, root: int, nodes: Handles) -> list[BlocksStored]:
        """What of these nodes lies where."""
        told = []
        for tier, group in itertools.product(range(len(self.tiers)), range(len(self.groups))):
            there = nodes[self.core(root).slots(nodes, self.tree.column(group, tier)) != NO_SLOT]
            if len(there):
                keys = np.concatenate([self._key_of(root, node) for node in there.tolist()])
                unknown = np.full(len(keys), -1, np.int64)
                told += self._runs(root, group, tier, keys, unknown)
        return told

    def _key_of(self, root: int, node: int) -> Keys:
        return self.tree.pages(Cursor(root, node, 1), 0, 1)

    def why_absent(self, root: int, keys: Keys, group: int) -> dict[str, int]:
        """Why no readable tier has the group's blocks of the keys, as far as is known: reasons with
        counts. Cost: the keys.
        """
        out = self._out(root, keys, group)
        reasons = {"tier out": int(out.sum())} if out.any() else {}
        keys = keys[~out]
        short = self._short(self._ids(keys, np.full(len(keys), root, np.uint64)))
        place = (short & np.uint64(GHOSTS - 1)).astype(np.int64)
        known = self._table[place] == short
        counts = np.bincount(self._ghost_why[place[known]], minlength=len(self._why)).tolist()
        reasons |= {why: count for why, count in zip(self._why, counts, strict=True) if count}
        if cold := len(keys) - int(known.sum()):
            reasons["cold"] = cold
        return reasons

    def _out(self, root: int, keys: Keys, group: int) -> Mask:
        """Which of the keys have the group's block in a tier that is off."""
        out = np.zeros(len(keys), np.bool_)
        for number, tier in enumerate(self.tiers):
            if tier.mode is _OFF and len(keys):
                core = self.core(root)
                out |= core.slots(core.find(keys), self.tree.column(group, number)) != NO_SLOT
        return out

    def count_asked(self, root: int, keys: Keys, found: Slots, group: int) -> None:
        """Counts keys that were asked for, by the tier that has them or why none has (I34)."""
        metrics = self.metrics
        metrics.add(("has", "blocks"), len(keys))
        if self.shares is not None:
            self.shares.count(root, asked=len(keys), hit=int(np.count_nonzero(found >= 0)))
        counts = np.bincount(found + 1, minlength=len(self.tiers) + 1).tolist()
        for tier, count in zip(self.tiers, counts[1:], strict=True):
            if count:
                metrics.add(("has", "hit", tier.name), count)
        if counts[0]:
            for reason, count in self.why_absent(root, keys[found < 0], group).items():
                metrics.add(("has", "miss", reason), count)

    def check_owners(self, tier: int, group: int, held: list[Slots]) -> None:
        """Each slot in use is held once, by a key or by what ``held`` names. Cost: everything."""
        column, owned = self.tree.column(group, tier), list(held)
        for root in self.root_keys:
            nodes = np.array([view.node for view in self.tree.nodes(root)[1:]], np.uint64)
            slots = self.core(root).slots(nodes, column)
            owned.append(slots[slots != NO_SLOT])
        slots = np.concatenate(owned)
        used = self.tiers[tier].usage().used_blocks[group]
        place = f"tier {self.tiers[tier].name!r} group {self.groups[group].name!r}"
        if len(np.unique(slots)) != len(slots):
            raise InvariantError("I7", f"{place}: a slot has two owners")
        if len(slots) != used:
            raise InvariantError("I8", f"{place}: {used} slots in use, {len(slots)} have an owner")
