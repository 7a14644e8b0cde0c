"""What the disk tier knows of each slot while it is open: its state, the id and the checksums of
its record, and whether the record is on its way out. No I/O. Keeps I7, I8 and I11 for the disk, and
the rule that a slot is written again only once the removal of its record is durable.

    reserve -> RESERVED -> commit -> USED -> free -> QUARANTINE (leaving) -> removed -> FREE
                  |                    |                ^
                  +------ fence -------+-> QUARANTINE --+ lift
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.layout import Layout
from radix.pool import FREE, QUARANTINE, RESERVED, USED, SlotError
from radix.tier import Slots
from tiers.arrivals import Arrivals
from tiers.committer import RemovalWork
from tiers.slab import SlabAllocator
from tiers.views import runs_of

Sums = npt.NDArray[np.uint64]
MOST_HEADROOM_BLOCKS = 4096


def headroom_blocks(capacity: int) -> int:
    """Slots of ``capacity`` that the cache may not fill: freed ones rest until a commit, and stores
    go on meanwhile.
    """
    return min(MOST_HEADROOM_BLOCKS, max(1, capacity // 16))


class _Table:
    """Columns by slot number, grown as slots appear."""

    def __init__(self, runs: int) -> None:
        self.ids = np.zeros(0, np.uint64)  # 0: no record
        self.sums: Sums = np.zeros((0, runs), np.uint64)
        self.leaving = np.zeros(0, np.bool_)

    def cover(self, slots: Slots) -> None:
        """Makes room for these slot numbers."""
        needed = int(slots.max(initial=-1)) + 1
        have = len(self.ids)
        if needed > have:
            more = max(needed, 2 * have) - have
            self.ids = np.append(self.ids, np.zeros(more, np.uint64))
            self.sums = np.append(self.sums, np.zeros((more, self.sums.shape[1]), np.uint64), 0)
            self.leaving = np.append(self.leaving, np.zeros(more, np.bool_))


class DiskBooks:
    """Slots and their records.

    Slots: ``reserve``, ``commit``, ``abort``, ``free``, ``fence``, ``lift``, ``adopt``. Records:
    ``recorded``, ``removed``, ``sums``, ``has_record``. Ask: ``capacity``, ``allowed``,
    ``headroom``, ``leaving``, ``resident``. Prove: ``check``. ``arrivals``: of reserved slots that
    are written in parts, what has come.
    """

    def __init__(self, slab: SlabAllocator, layouts: Sequence[Layout]) -> None:
        """``layouts``: of the blocks of each group."""
        self.slab = slab
        self.arrivals = Arrivals(layouts)
        self._tables = [_Table(runs_of(layout)) for layout in layouts]
        self._leaving = [0] * len(layouts)

    # ------------------------------------------------------------------ questions

    def headroom(self, group: int) -> int:
        """Slots of the group beyond what the cache may fill."""
        return headroom_blocks(self.slab.capacity(group))

    def capacity(self, group: int, beside: Sequence[int] | None = None) -> int:
        """The most blocks of the group that can be resident at once, ``beside`` those of others."""
        others = None
        if beside is not None:
            others = [count + self.headroom(other) for other, count in enumerate(beside)]
        return max(0, self.slab.capacity(group, others) - self.headroom(group))

    def leaving(self, group: int) -> int:
        """Slots whose records are on their way out."""
        return self._leaving[group]

    def resident(self, group: int) -> int:
        """Slots that are given out: reserved, used or fenced, those leaving left out."""
        return self.slab.occupied(group) - self._leaving[group]

    def allowed(self, group: int) -> int:
        """Slots that may be given out: free ones, and those whose removal is under way. Cost: as
        ``SlabAllocator.available``.
        """
        room = self.capacity(group) - self.resident(group)
        return max(0, min(room, self.slab.available(group) + self._leaving[group]))

    def has_record(self, group: int, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which slots a durable record names."""
        table = self._tables[group]
        table.cover(slots)
        result: npt.NDArray[np.bool_] = table.ids[slots] != 0
        return result

    def record_ids(self, group: int, slots: Slots) -> npt.NDArray[np.uint64]:
        """Ids of the records of these slots."""
        return self._tables[group].ids[slots]

    def sums(self, group: int, slots: Slots) -> Sums:
        """Checksums (n, runs) of these slots."""
        return self._tables[group].sums[slots]

    # ------------------------------------------------------------------ slots

    def reserve(self, group: int, count: int) -> Slots | None:
        """``count`` reserved slots, or None (nothing changed): not allowed, or not free yet."""
        return None if count > self.allowed(group) else self.slab.reserve(group, count)

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots become used. Raises ``SlotError``, also for one that is not whole."""
        some = self.arrivals.incomplete(group, slots)
        if some:
            raise SlotError(
                f"of slot {some[0]} only some parts have arrived: it cannot be committed"
            )
        self.slab.commit(group, slots)
        self.arrivals.forget(group, slots)

    def abort(self, group: int, slots: Slots) -> RemovalWork | None:
        """Gives reserved slots back; the records of those that have one are to be removed."""
        self.slab.quarantine(group, slots, RESERVED)
        self.arrivals.forget(group, slots)
        return self._leave(group, slots)

    def free(self, group: int, slots: Slots) -> RemovalWork | None:
        """Gives used slots back; their records are to be removed. Raises ``SlotError``."""
        self.slab.quarantine(group, slots, USED)
        return self._leave(group, slots)

    def fence(self, group: int, slots: Slots) -> None:
        """Used or reserved slots, all in one of the two states, must not be given out again."""
        self.slab.fence(group, slots)
        self.arrivals.forget(group, slots)

    def lift(self, group: int, slots: Slots) -> RemovalWork | None:
        """Fenced slots are free once their records are removed. Raises ``SlotError``."""
        table = self._tables[group]
        known = slots[(slots >= 0) & (slots < len(table.leaving))]
        if table.leaving[known].any():
            raise SlotError("a slot was freed already and waits for its removal to be durable")
        self.slab.require(group, slots, QUARANTINE)
        return self._leave(group, slots)

    def _leave(self, group: int, slots: Slots) -> RemovalWork | None:
        """Of slots in quarantine: frees those without a record, and names the records to go."""
        slots = np.array(slots, np.int32)
        recorded = self.has_record(group, slots)
        if not recorded.all():
            self.slab.lift(group, slots[~recorded])
        going = slots[recorded]
        if not len(going):
            return None
        self._tables[group].leaving[going] = True
        self._leaving[group] += len(going)
        return RemovalWork(group, going, self._tables[group].ids[going])

    # ------------------------------------------------------------------ records

    def recorded(self, group: int, slots: Slots, ids: npt.NDArray[np.uint64], sums: Sums) -> None:
        """A durable record names each of these slots now."""
        table = self._tables[group]
        table.cover(slots)
        table.ids[slots] = ids
        table.sums[slots] = sums[:, : table.sums.shape[1]]

    def removed(self, work: RemovalWork) -> None:
        """A removal is durable: its slots may be given out again."""
        table = self._tables[work.group]
        table.ids[work.slots] = 0
        table.leaving[work.slots] = False
        self._leaving[work.group] -= len(work.slots)
        self.slab.lift(work.group, work.slots)

    def check(self) -> None:
        """Raises ``InvariantError`` where pools and records disagree. Cost: every slot."""
        self.slab.check()
        for group, table in enumerate(self._tables):
            leaving = np.flatnonzero(table.leaving)
            if len(leaving) != self._leaving[group]:
                raise InvariantError(
                    "I8",
                    f"group {group}: {len(leaving)} slots are leaving, "
                    f"counted {self._leaving[group]}",
                )
            for slot in leaving.tolist():
                if self.slab.state(group, slot) != QUARANTINE:
                    raise InvariantError("I7", f"group {group}: slot {slot} leaves, but is in use")
            for slot in np.flatnonzero(table.ids).tolist():
                if self.slab.state(group, slot) == FREE:
                    raise InvariantError("I7", f"group {group}: a record names free slot {slot}")
            live = table.ids[table.ids != 0]
            if len(np.unique(live)) != len(live):
                raise InvariantError("I7", f"group {group}: one record names two slots")
