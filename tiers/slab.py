"""Slab bookkeeping: a byte budget in segments of one size, lent to size classes and given back.
Pure: no I/O, no threads, the same calls give the same slots. The host tier lays the segments in
one slab in memory, the disk tier in slab files. Keeps I7 (a slot has one owner), I11 (double and
foreign frees raise and change nothing) and the segment part of I25 (lent bytes <= limit).

    segment   0             1             2             3 (tail, may be short)
            +-------------+-------------+-------------+------+
            | class 0     | class 1     | class 0     | free |
            | s0 s1 .. s3 | s2   s3     | s8 s9 .. s11|      |
            +-------------+-------------+-------------+------+

A slot's number names its place: slot = segment * slots_per_segment + index within the segment, so
that an address needs no table and a stored slot number stays true over a restart. Slot numbers of
a class have gaps where a segment is lent to another class. Over several drives (``stripe``)
segments go round them and are lent one of each at a time, with their slots in turn, so that what is
reserved together lies on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radix.errors import InvariantError
from radix.pool import FREE, QUARANTINE, RESERVED, USED, SlotError, SlotPool
from radix.tier import Slots

ALIGNMENT_BYTES = 4096
SEGMENT_BYTES = 64 << 20
TURN_BYTES = 512 << 10  # that lie side by side before it is the next drive's turn
UNLENT = -1
BANNED = -2  # its medium failed
HELD = -3  # not to be lent just now


def stride_bytes(block_bytes: int) -> int:
    """Bytes from a slot to the next: the block rounded up to 4 KiB.

    >>> stride_bytes(5000)
    8192
    """
    return -(-block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Blocks of one size: so long, so far apart, so many a segment."""

    block_bytes: int
    stride_bytes: int
    per_segment: int


class SlabAllocator:
    """Slots of several size classes within one byte limit.

    Take: ``reserve``, ``adopt``, ``claim``. Move on: ``commit``, ``abort``, ``free``, ``fence``,
    ``quarantine``, ``lift``. Ask: ``capacity``, ``available``, ``count``, ``place``, ``lent``,
    ``lent_bytes``. Segments: ``trim``, ``release``, ``changes``, ``ban``, ``hold``, ``unhold``,
    ``first_unlent``. Prove: ``check``.

    Each class is sure of one segment: the others can neither take its last one nor the one that
    it has yet to get. All else goes to who asks first.
    """

    def __init__(
        self,
        block_bytes: Sequence[int],
        *,
        limit_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
        stripe: int = 1,
    ) -> None:
        """One class for each entry of ``block_bytes``. A limit that is no multiple of the segment
        gives a short last segment, if a block of each class fits in it. ``stripe``: drives that
        segments go round.

        Raises: ``ValueError`` for no class, a block larger than a segment, a segment that is no
        multiple of 4 KiB, or fewer segments than classes.
        """
        if not block_bytes:
            raise ValueError("block_bytes must not be empty")
        if segment_bytes <= 0 or segment_bytes % ALIGNMENT_BYTES:
            raise ValueError(
                f"segment_bytes must be a positive multiple of {ALIGNMENT_BYTES}, "
                f"not {segment_bytes}"
            )
        self.segment_bytes, self.stripe = segment_bytes, stripe
        self.segments = -(-limit_bytes // segment_bytes)
        self.tail_bytes = limit_bytes - (self.segments - 1) * segment_bytes
        self.classes: list[SizeClass] = []
        for size in block_bytes:
            if size <= 0:
                raise ValueError(f"block_bytes must be at least 1, not {size}")
            stride = stride_bytes(size)
            if stride > segment_bytes:
                raise ValueError(
                    f"a block of {size} bytes does not fit a segment of {segment_bytes} bytes"
                )
            self.classes.append(SizeClass(size, stride, segment_bytes // stride))
        if self.tail_bytes < max(kind.stride_bytes for kind in self.classes):
            self.segments, self.tail_bytes = self.segments - 1, segment_bytes
        if self.segments < len(self.classes):
            raise ValueError(
                f"limit_bytes {limit_bytes} is too small: {len(self.classes)} classes need a "
                f"segment of {segment_bytes} bytes each"
            )
        self._pools = [SlotPool(0) for _ in self.classes]
        self._covered = [0] * len(self.classes)  # segments that the pool of a class has grown over
        # What a segment serves, and how many of its slots are not free. Longer than `segments`
        # only where a restart adopted segments that an earlier, larger limit had made.
        self._owner = np.full(self.segments, UNLENT, np.int32)
        self._busy = np.zeros(self.segments, np.int64)
        self._banned: set[int] = set()
        self._out_of_use = 0  # banned segments that nobody had
        self._lent_count = 0
        self._lent: list[int] = []
        self._returned: list[int] = []
        # by class the slots of segments that it could be lent; gone where a segment changes hands,
        # fills or empties
        self._to_lend: dict[int, int] = {}

    # ------------------------------------------------------------------ questions

    def slots_in(self, cls: int, segment: int) -> int:
        """Slots that ``segment`` holds when lent to class ``cls``; fewer in a short tail."""
        kind = self.classes[cls]
        if segment == self.segments - 1 and self.tail_bytes < self.segment_bytes:
            return self.tail_bytes // kind.stride_bytes
        return kind.per_segment

    def capacity(self, cls: int, beside: Sequence[int] | None = None) -> int:
        """The most slots that the class may have: every segment but one for each other, or those
        that so many slots of the others need. Where the last segment is short it is counted as this
        class's, so that the promise always holds. Cost: the classes.
        """
        taken = len(self.classes) - 1
        if beside is not None:
            taken = sum(
                max(1, -(-count // kind.per_segment))
                for other, (kind, count) in enumerate(zip(self.classes, beside, strict=True))
                if other != cls
            )
        segments = self.segments - self._out_of_use - taken
        if segments <= 0:
            return 0
        per_segment = self.classes[cls].per_segment
        return per_segment * (segments - 1) + self.slots_in(cls, self.segments - 1)

    def available(self, cls: int) -> int:
        """Slots that ``reserve`` could give now: free ones, those of segments not lent, and those
        of wholly free segments of other classes, up to the capacity. Cost: O(1), and the segments
        after one of them changed hands, or was the last to empty or the first to be used.
        """
        if (to_lend := self._to_lend.get(cls)) is None:
            to_lend = self._to_lend[cls] = self._lendable(cls)
        there = self._pools[cls].count(FREE) + to_lend
        return max(0, min(there, self.capacity(cls) - self.occupied(cls)))

    def count(self, cls: int, state: int) -> int:
        """Slots of the class in a state of ``radix.pool`` (FREE counts lent segments only)."""
        return self._pools[cls].count(state)

    def occupied(self, cls: int) -> int:
        """Slots of the class that are not free."""
        pool = self._pools[cls]
        return pool.count(RESERVED) + pool.count(USED) + pool.count(QUARANTINE)

    def state(self, cls: int, slot: int) -> int:
        """The state of one slot of the class."""
        return self._pools[cls].state(slot)

    def place(self, cls: int, slots: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Segment numbers and byte offsets within the segment. Cost: the slots."""
        kind = self.classes[cls]
        wide = np.asarray(slots, np.int64)
        segments, index = np.divmod(wide, kind.per_segment)
        return segments, index * kind.stride_bytes

    def owner(self, segment: int) -> int:
        """The class that a segment is lent to, or ``UNLENT``, ``BANNED``, ``HELD``."""
        return int(self._owner[segment]) if segment < len(self._owner) else UNLENT

    @property
    def segment_range(self) -> int:
        """One more than the greatest segment number there is."""
        return len(self._owner)

    @property
    def lent(self) -> int:
        """Segments lent now."""
        return self._lent_count

    @property
    def lent_bytes(self) -> int:
        """Bytes of the lent segments; never more than the limit."""
        short = self.segment_bytes - self.tail_bytes
        tail = self._owner[self.segments - 1] >= 0
        return self.lent * self.segment_bytes - (short if tail else 0)

    # ------------------------------------------------------------------ slots

    def reserve(self, cls: int, count: int) -> Slots | None:
        """``count`` reserved slots, lending segments as needed, or None (nothing changed).

        Segments with the lowest numbers are lent first, of each drive one; wholly free segments of
        other classes go last. Cost: count, and the segments where one must be lent.
        """
        pool = self._pools[cls]
        missing = count - pool.count(FREE)
        if self.occupied(cls) + count > self.capacity(cls):
            return None
        if missing > 0:
            chosen: list[int] = []
            for segment in self._obtainable(cls):
                if missing <= 0 and (not len(chosen) % self.stripe or self.owner(segment) >= 0):
                    break
                chosen.append(segment)
                missing -= self.slots_in(cls, segment)
            if missing > 0:
                return None
            for segment in chosen:
                if self._owner[segment] != UNLENT:
                    self.release(segment)
            self._lend(cls, chosen)
        slots = pool.reserve(count)
        if slots is not None:
            self._count(cls, slots, 1)
        return slots

    def commit(self, cls: int, slots: Slots) -> None:
        """Reserved slots become used. Raises ``SlotError`` (I11)."""
        self._pools[cls].move(slots, RESERVED, USED)

    def abort(self, cls: int, slots: Slots) -> None:
        """Reserved slots become free. Raises ``SlotError`` (I11)."""
        self._give_back(cls, slots, RESERVED)

    def free(self, cls: int, slots: Slots) -> None:
        """Used slots become free. Raises ``SlotError`` (I11)."""
        self._give_back(cls, slots, USED)

    def fence(self, cls: int, slots: Slots) -> None:
        """Used or reserved slots, all in one of the two states, go into quarantine."""
        slots = np.ascontiguousarray(slots, np.int32)
        if len(slots):
            source = RESERVED if self.state(cls, int(slots[0])) == RESERVED else USED
            self._pools[cls].move(slots, source, QUARANTINE)

    def quarantine(self, cls: int, slots: Slots, source: int) -> None:
        """Slots in state ``source`` go into quarantine. Raises ``SlotError`` (I11)."""
        self._pools[cls].move(slots, source, QUARANTINE)

    def require(self, cls: int, slots: Slots, state: int) -> None:
        """Changes nothing; raises ``SlotError`` unless all slots, each named once, are in
        ``state``.
        """
        # A move there and back lets the pool judge, duplicates and foreign numbers included.
        other = RESERVED if state != RESERVED else USED
        self._pools[cls].move(slots, state, other)
        self._pools[cls].move(slots, other, state)

    def lift(self, cls: int, slots: Slots) -> None:
        """Slots in quarantine become free, but in banned segments. Raises ``SlotError`` (I11)."""
        self._give_back(cls, slots, QUARANTINE)

    def claim(self, cls: int, slots: Slots) -> None:
        """Named free slots of adopted segments become used (restart). Raises ``SlotError``."""
        self._pools[cls].claim(slots)
        self._count(cls, slots, 1)

    # ------------------------------------------------------------------ segments

    def adopt(self, cls: int, *segments: int) -> None:
        """Lends named segments (restart). Their numbers may lie beyond the limit's own; how many
        are lent may not. Raises ``SlotError`` if one is lent or the limit is reached.
        """
        for segment in segments:
            if self.owner(segment) != UNLENT:
                raise SlotError(f"segment {segment} is not to be had (owner {self.owner(segment)})")
        if self.lent + len(segments) > self.segments:
            raise SlotError(f"segment {segments[-1]}: all {self.segments} segments are lent")
        more = max(segments, default=-1) + 1 - len(self._owner)
        if more > 0:
            self._owner = np.append(self._owner, np.full(more, UNLENT, np.int32))
            self._busy = np.append(self._busy, np.zeros(more, np.int64))
        self._lend(cls, self._in_turn(list(segments)))

    def release(self, segment: int) -> None:
        """Takes back a lent segment whose slots are all free. Raises ``SlotError`` otherwise."""
        cls = self.owner(segment)
        if cls < 0 or self._busy[segment]:
            raise SlotError(f"segment {segment} has slots in use or is not lent")
        first = segment * self.classes[cls].per_segment
        if not self._pools[cls].retire(first, self.slots_in(cls, segment)):
            raise InvariantError("I7", f"segment {segment} counts as free, its slots do not")
        self._owner[segment] = UNLENT
        self._to_lend.clear()
        self._lent_count -= 1
        self._returned.append(segment)

    def trim(self) -> int:
        """Takes back every wholly free segment; returns how many. Cost: the segments."""
        idle = np.flatnonzero((self._owner >= 0) & (self._busy == 0))
        for segment in idle:
            self.release(int(segment))
        return len(idle)

    def first_unlent(self, besides: Collection[int]) -> int:
        """The first segment within the limit that nobody has and ``besides`` does not name;
        ``UNLENT`` where there is none. Cost: the segments, no Python for each.
        """
        unlent = np.flatnonzero(self._owner[: self.segments] == UNLENT)[: len(besides) + 1]
        return next((at for at in unlent.tolist() if at not in besides), UNLENT)

    def hold(self, segment: int) -> bool:
        """Keeps an unlent segment from being lent; False where it is needed or not unlent."""
        unlent = np.count_nonzero(self._owner == UNLENT)
        if self.owner(segment) != UNLENT or unlent < 2 + len(self.classes):
            return False
        self._owner[segment] = HELD
        self._to_lend.clear()
        return True

    def unhold(self, segment: int) -> None:
        """Makes a held segment unlent again."""
        if self.owner(segment) == HELD:
            self._owner[segment] = UNLENT
            self._to_lend.clear()

    def ban(self, segment: int) -> None:
        """Takes a segment out of use for good: nothing free in it is given out again, and what is
        freed later stays in quarantine. Cost: the slots of the segment.
        """
        cls = self.owner(segment)
        if segment >= len(self._owner):
            return
        self._banned.add(segment)
        self._to_lend.clear()
        if cls < 0:
            self._out_of_use += cls != BANNED and segment < self.segments
            self._owner[segment] = BANNED
            return
        first = segment * self.classes[cls].per_segment
        slots = np.arange(first, first + self.slots_in(cls, segment), dtype=np.int32)
        pool = self._pools[cls]
        free = slots[[pool.state(int(slot)) == FREE for slot in slots]]
        pool.move(free, FREE, QUARANTINE)
        self._count(cls, free, 1)

    def changes(self) -> tuple[list[int], list[int]]:
        """Segments lent, and segments taken back, since the last call, in order. One that was
        taken back and lent again stands in both.
        """
        result = (self._lent, self._returned)
        self._lent, self._returned = [], []
        return result

    def check(self) -> None:
        """Raises ``InvariantError`` if pools, owners and counts disagree. Cost: every slot."""
        if self.lent > self.segments:
            raise InvariantError("I25", f"{self.lent} segments lent, {self.segments} allowed")
        if self.lent != int(np.count_nonzero(self._owner >= 0)):
            raise InvariantError("I8", f"{self.lent} segments counted as lent, others have owners")
        for cls, pool in enumerate(self._pools):
            if not pool.check():
                raise InvariantError("I7", f"pool of class {cls}: counts and states disagree")
            mine = [int(s) for s in np.flatnonzero(self._owner == cls)]
            slots = sum(self.slots_in(cls, segment) for segment in mine)
            if slots != self.occupied(cls) + pool.count(FREE):
                raise InvariantError("I8", f"class {cls}: {slots} slots lent, the pool disagrees")
            if int(self._busy[mine].sum()) != self.occupied(cls):
                raise InvariantError("I8", f"class {cls}: busy counts and pool disagree")
        for cls, to_lend in self._to_lend.items():
            if to_lend != (found := self._lendable(cls)):
                raise InvariantError("I12", f"class {cls}: {to_lend} slots to lend, not {found}")
        if np.any(self._busy < 0) or np.any(self._busy[self._owner < 0]):
            raise InvariantError("I7", "a segment that is not lent has slots in use")

    # ------------------------------------------------------------------ inside

    def _obtainable(self, cls: int) -> list[int]:
        """Segments that ``cls`` could be lent now, in the order in which it would get them."""
        alone = len(self.classes) == 1
        if alone and self._lent_count >= self.segments:
            return []
        counts = np.bincount(self._owner[self._owner >= 0], minlength=len(self.classes))
        starving = int(np.count_nonzero(counts == 0)) - int(counts[cls] == 0)
        room = max(0, self.segments - self._lent_count - starving)
        result = self._in_turn(np.flatnonzero(self._owner == UNLENT).tolist())[:room]
        if alone:
            return result
        for segment in np.flatnonzero((self._owner >= 0) & (self._busy == 0)):
            other = int(self._owner[segment])
            if other != cls and counts[other] > 1:
                counts[other] -= 1
                result.append(int(segment))
        return result

    def _lendable(self, cls: int) -> int:
        return sum(self.slots_in(cls, segment) for segment in self._obtainable(cls))

    def _give_back(self, cls: int, slots: Slots, source: int) -> None:
        pool = self._pools[cls]
        slots = np.ascontiguousarray(slots, np.int32)
        if source != QUARANTINE and self._banned:
            # All or nothing first; then there is one path for what must not be given out again.
            pool.move(slots, source, QUARANTINE)
            source = QUARANTINE
        if self._banned:
            segments, _ = self.place(cls, slots)
            slots = slots[~np.isin(segments, list(self._banned))]
        pool.move(slots, source, FREE)
        self._count(cls, slots, -1)

    def _in_turn(self, segments: list[int]) -> list[int]:
        """Ascending segments, the first of each drive before the second of any."""
        if self.stripe == 1:
            return segments
        seen = [0] * self.stripe
        ranks = []
        for segment in segments:
            ranks.append(seen[segment % self.stripe])
            seen[segment % self.stripe] += 1
        return [segment for _, segment in sorted(zip(ranks, segments, strict=True))]

    def _lend(self, cls: int, segments: Sequence[int]) -> None:
        kind, pool = self.classes[cls], self._pools[cls]
        self._to_lend.clear()
        for segment in segments:
            while self._covered[cls] <= segment:
                # The pool's numbers run on without a gap; what is not lent is retired at once.
                pool.grow(kind.per_segment)
                pool.retire(self._covered[cls] * kind.per_segment, kind.per_segment)
                self._covered[cls] += 1
            self._owner[segment] = cls
            self._lent_count += 1
            self._lent.append(segment)
        turn = max(1, TURN_BYTES // kind.stride_bytes) if self.stripe > 1 else kind.per_segment
        for lot in range(0, len(segments), self.stripe):
            for at in range(0, kind.per_segment, turn):
                for segment in segments[lot : lot + self.stripe]:
                    slots = min(turn, self.slots_in(cls, segment) - at)
                    if slots > 0 and not pool.revive(segment * kind.per_segment + at, slots):
                        raise InvariantError("I7", f"segment {segment}: its slots are not retired")

    def _count(self, cls: int, slots: Slots, sign: int) -> None:
        segments, _ = self.place(cls, slots)
        alone = len(self.classes) == 1  # then nobody else has an empty segment to give
        if not alone and sign > 0 and not self._busy[segments].all():
            self._to_lend.clear()
        np.add.at(self._busy, segments, sign)
        if not alone and sign < 0 and not self._busy[segments].all():
            self._to_lend.clear()
