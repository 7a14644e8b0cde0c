"""Host memory as a tier: one slab of exactly the asked size, lent in segments to the groups, and
pools adopted from memory that somebody else owns. Keeps the tier side of I7, I8, I22 and I25.

    slab     segment 0           segment 1                 limit_bytes
           +-------------------+-------------------+-----+
           | group 0           | group 1           | ... |   slots at a stride of whole 4 KiB
           +-------------------+-------------------+-----+

What lower tiers and other processes see of a slot is a number n at address base + n * stride. Where
a segment holds a whole number of strides that number is the slab's own; where it does not, it is
the index of the slot's first 4 KiB, because nothing else stays affine over segment ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radix.errors import TierError
from radix.groups import Group
from radix.pool import SlotError, SlotPool
from radix.tier import Capability, Slots, Tier, TierMode, TierUsage, View
from tiers.copies import CopyingTier, Mover, mover_of, plane_array
from tiers.memory import SharedMemory, memory_limit_bytes, require_node
from tiers.placement import Placed, Residence
from tiers.pools import checked_count
from tiers.slab import ALIGNMENT_BYTES, SEGMENT_BYTES, SlabAllocator, stride_bytes
from tiers.transfer import DEFAULT_THREADS, Planes
from tiers.views import Cut, run_sums, runs_of, view_bytes, views_of

_MAPPED = Capability(
    persistent=False,
    shared=False,
    layer_wise=True,
    address_mapped=True,
    shares_bytes=True,
    holds_bytes=True,
    finds=False,
)
_ADOPTED = Capability(
    persistent=False,
    shared=False,
    layer_wise=True,
    address_mapped=True,
    shares_bytes=False,
    holds_bytes=True,
    finds=False,
)
_NAMED = Capability(
    persistent=False,
    shared=True,
    layer_wise=True,
    address_mapped=True,
    shares_bytes=True,
    holds_bytes=True,
    finds=False,
)


class HostTier(CopyingTier):
    """A slab of host memory that holds blocks of every group of a cache.

    Beside the protocol: ``limit_bytes``; and, once attached, ``locked_bytes`` (that cannot be
    swapped out: 0 where the kernel's limit is low), ``residence`` (what lies on huge pages, and on
    the ``numa_node``), ``registered`` (a device copies to and from the slab directly), ``created``
    (False where another process made the named slab).
    """

    def __init__(
        self,
        limit_bytes: int,
        name: str = "host",
        *,
        file_name: str | None = None,
        threads: int = DEFAULT_THREADS,
        segment_bytes: int | None = None,
        verify: bool = False,
        numa_node: int | None = None,
        sealed: bool = False,
    ) -> None:
        """Takes no memory yet; ``attach`` does.

        ``file_name``: a name in /dev/shm, for several processes (one of them gives out slots);
        ``sealed``: instead a ``descriptor`` to pass on, through which others can only read;
        ``segment_bytes``: a multiple of 4 KiB, by default one that suits the groups; ``verify``
        keeps a checksum of each block from its commit and checks it at each load; ``numa_node``:
        where the slab should lie, by default next to the device above, where that tells.
        Raises: ``ValueError``, ``TypeError``; ``ValueError`` beyond what memory there is;
        ``TierUnavailableError`` for a node that the machine has not.
        """
        others_see = sealed or file_name is not None
        super().__init__(name, _NAMED if others_see else _MAPPED, threads)
        self.limit_bytes = checked_count(limit_bytes, f"tier {name!r}: limit_bytes")
        most, source = memory_limit_bytes()
        if limit_bytes > most:
            raise ValueError(
                f"tier {name!r}: limit_bytes {limit_bytes} is beyond {source}, {most} bytes"
            )
        if file_name is not None and (not file_name or "/" in file_name):
            raise ValueError(f"file_name must be a plain name, not {file_name!r}")
        if sealed and file_name is not None:
            raise ValueError("sealed memory has no file_name")
        self._sealed = sealed
        require_node(name, numa_node)
        self.numa_node = numa_node
        self._file_name = file_name
        self._threads = threads
        self._segment_bytes = segment_bytes
        self._verify = verify
        self.locked_bytes = 0
        self.registered = False
        self.created = False
        self._sums: list[npt.NDArray[np.uint64]] = []
        self._registrar: Mover | None = None

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        sizes = [group.block_bytes for group in groups]
        segment = self._segment_bytes or fitting_segment(sizes, self.limit_bytes)
        if self.limit_bytes < segment * len(sizes):
            raise ValueError(
                f"tier {self.name!r}: limit_bytes {self.limit_bytes} is too small: each of "
                f"{len(sizes)} groups needs a segment of {segment} bytes"
            )
        # Whoever held a short last segment would have fewer slots than its capacity says.
        whole = self.limit_bytes if len(sizes) == 1 else self.limit_bytes // segment * segment
        self._slab = SlabAllocator(sizes, limit_bytes=whole, segment_bytes=segment)
        if upper is not None and not upper.capability.address_mapped:
            self._registrar = mover_of(upper, self.name)
        self._units = [_Numbering(kind.stride_bytes, segment) for kind in self._slab.classes]
        if self._verify:
            self._sums = [
                np.zeros((self.limit_bytes // unit.stride + 1, runs_of(group.layout)), np.uint64)
                for unit, group in zip(self._units, groups, strict=True)
            ]
        if self.numa_node is None and isinstance(self._registrar, Placed):
            self.numa_node = self._registrar.numa_node
        memory = SharedMemory(
            *(self.name, self.limit_bytes, self._file_name, self._threads, self.numa_node),
            sealed=self._sealed,
        )
        if self._registrar is not None:
            self.registered = self._registrar.register(memory.address, self.limit_bytes)
        self._planes = [
            plane_array([(memory.address, unit.stride, size)])
            for unit, size in zip(self._units, sizes, strict=True)
        ]
        self._memory, self.created, self.locked_bytes = memory, memory.created, memory.locked_bytes
        return []

    def residence(self) -> Residence:
        """Bytes of the slab on huge pages, and on ``numa_node``: both are up to the kernel.

        Cost: the kernel walks the pages of the process.
        """
        self._open_or_raise()
        return self._memory.residence()

    @property
    def descriptor(self) -> int:
        """Of the memory file of the slab, -1 where it has none. It stays the tier's."""
        self._open_or_raise()
        return self._memory.descriptor

    def planes(self, group: int) -> Planes:
        """One plane: where the blocks of the group lie. Valid until ``close``."""
        self._open_or_raise()
        return self._planes[group]

    # ------------------------------------------------------------------ slots
    def capacity_blocks(self, group: int, beside: Sequence[int] | None = None) -> int:
        """Blocks of the group if it had every segment that others leave it. Cost: the groups."""
        return self._slab.capacity(group, beside)

    def free_blocks(self, group: int) -> int:
        """Blocks that ``reserve`` could give now, lending segments. Cost: mostly O(1)."""
        return self._slab.available(group) if self._mode is TierMode.ON else 0

    def reserve(self, group: int, count: int) -> Slots:
        """``count`` slots, all or nothing, lending segments as needed. Cost: count, and the
        segments where one must be lent.
        """
        self._may_reserve()
        slots = self._slab.reserve(group, count) if count >= 0 else None
        if slots is None:
            raise self._shortage(group, count)
        return self._units[group].outward(slots)

    def commit(self, group: int, slots: Slots) -> None:
        """Reserved slots hold final bytes. Cost: the slots; with ``verify`` their bytes."""
        self._open_or_raise()
        self._require_whole(group, slots)
        self._change(self._slab.commit, group, slots)
        self._arrivals.forget(group, slots)
        if self._verify:
            cut = self._cuts.find(group, None, None, None, "commit:")
            found = run_sums(self._planes[group][0], cut.below, cut.sizes, slots)
            self._sums[group][slots[:, None], cut.chosen] = found

    def arrived(self, group: int, slots: Slots, part: View) -> None:
        """Told by the tier below: this part of reserved slots was written, and can be read from
        here at once. Cost: the slots; with ``verify`` the bytes of the part.
        """
        self._open_or_raise()
        cut = self._cuts.find(group, part, None, None, "arrived:")
        if cut.whole:
            self._arrivals.forget(group, slots)
            return
        self._arrivals.add(group, slots, cut.chosen)
        if self._verify:
            found = run_sums(self._planes[group][0], cut.below, cut.sizes, slots)
            self._sums[group][slots[:, None], cut.chosen] = found

    def abort(self, group: int, slots: Slots) -> None:
        """Gives reserved slots back. Cost: the slots."""
        self._change(self._slab.abort, group, slots)
        self._arrivals.forget(group, slots)

    def free(self, group: int, slots: Slots) -> None:
        """Gives committed slots back. Cost: the slots."""
        self._change(self._slab.free, group, slots)

    def fence(self, group: int, slots: Slots) -> None:
        """Slots, all committed or all reserved, go into quarantine. Cost: the slots."""
        self._change(self._slab.fence, group, slots)
        self._arrivals.forget(group, slots)

    def lift(self, group: int, slots: Slots) -> None:
        """The fence of these slots has passed: they are free. Cost: the slots."""
        self._change(self._slab.lift, group, slots)

    def _change(self, call: Any, group: int, slots: Slots) -> None:
        self._open_or_raise()
        try:
            call(group, self._units[group].inward(slots))
        except SlotError as error:
            raise TierError(self.name, f"group {self._groups[group].name!r}: {error}") from None

    def _slot_limit(self, group: int) -> int:
        return self.limit_bytes // self._units[group].stride

    def sums(self, group: int, slots: Slots) -> npt.NDArray[np.uint64] | None:
        """The checksums taken at commit, (n, pieces, layers); None without ``verify``. Cost: the
        slots.
        """
        if not self._verify:
            return None
        runs = self._groups[group].layout.runs
        return self._sums[group][slots].reshape(len(slots), *runs.shape[:2])

    def _sound(self, group: int, slots: Slots, cut: Cut) -> npt.NDArray[np.bool_] | None:
        lacking = self._arrivals.lacking(group, slots, cut.chosen)
        if not self._verify:
            return None if lacking is None else ~lacking
        kept = self._sums[group][slots]
        if kept.shape[1] != len(cut.chosen):
            kept = kept[:, cut.chosen]
        found = run_sums(self._planes[group][0], cut.below, cut.sizes, slots)
        sound = np.asarray((found == kept).all(axis=1), np.bool_)
        return sound if lacking is None else sound & ~lacking

    # ------------------------------------------------------------------ books and end
    def usage(self) -> TierUsage:
        """Bytes of occupied slots, padding to 4 KiB included. Cost: the groups."""
        used = tuple(self._slab.occupied(group) for group in range(len(self._groups)))
        kinds = self._slab.classes if used else ()
        total = sum(n * kind.stride_bytes for n, kind in zip(used, kinds, strict=True))
        return TierUsage(total, self.limit_bytes, used)

    def check(self) -> None:
        """Raises ``InvariantError`` where the books disagree (I7, I8, I25). Cost: all slots."""
        if self._groups:
            self._slab.check()

    def close(self) -> None:
        """Waits for copies that run, then unmaps the slab. Idempotent.

        Close the tiers below first: they read and write this memory.
        """
        if self._closed:
            return
        super().close()
        if not self._groups:
            return
        if self.registered and self._registrar is not None:
            self._registrar.unregister(self._memory.address)
        self._memory.close()


def fitting_segment(block_bytes: Sequence[int], limit_bytes: int) -> int:
    """A segment size for these blocks: the whole slab for one size, else near 64 MiB (less in a
    small slab, so that every group can get some) and, where there is one, a common multiple.

    >>> fitting_segment([4096], 40960)
    40960
    """
    strides = {stride_bytes(max(1, size)) for size in block_bytes}
    if len(block_bytes) == 1:
        return max(strides.pop(), limit_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES)
    near = min(SEGMENT_BYTES, limit_bytes // (4 * len(block_bytes)))
    multiple = math.lcm(*strides)
    if multiple <= near:
        return near // multiple * multiple
    return max(*strides, near // ALIGNMENT_BYTES * ALIGNMENT_BYTES)


class _Numbering:
    """Between the slab's slot numbers and those that have an affine address."""

    def __init__(self, slot_bytes: int, segment_bytes: int) -> None:
        self._per_segment = segment_bytes // slot_bytes
        self._affine = self._per_segment * slot_bytes == segment_bytes
        self.stride = slot_bytes if self._affine else ALIGNMENT_BYTES
        self._slot_units = slot_bytes // ALIGNMENT_BYTES
        self._segment_units = segment_bytes // ALIGNMENT_BYTES

    def outward(self, slots: Slots) -> Slots:
        """The slab's numbers as those that others see."""
        if self._affine:
            return slots
        segment, index = np.divmod(slots, self._per_segment)
        numbers: Slots = segment * self._segment_units + index * self._slot_units
        return numbers

    def inward(self, slots: Slots) -> Slots:
        """The other way; a number at which no slot begins becomes -1, which no pool holds."""
        slots = np.ascontiguousarray(slots, np.int32)
        if self._affine:
            return slots
        segment, units = np.divmod(slots, self._segment_units)
        index, rest = np.divmod(units, self._slot_units)
        known = (rest == 0) & (index < self._per_segment) & (slots >= 0)
        numbers: Slots = np.where(known, segment * self._per_segment + index, np.int32(-1))
        return numbers


class AdoptedTier(CopyingTier):
    """Blocks in memory that somebody else owns: an engine's tensors, rows of a buffer.

    Block i of a group is row i of each of its fragments, in order; of a tier that holds a view, the
    runs of that view. The arrays are held as long as the tier lives; their bytes belong to whoever
    gave them.
    """

    def __init__(
        self,
        fragments: Sequence[Sequence[npt.NDArray[Any]]],
        name: str = "adopted",
        *,
        threads: int = 1,
        views: Sequence[View | None] | None = None,
    ) -> None:
        """``fragments``: for each group its arrays, dimension 0 the block, the rest contiguous;
        rows may be further apart than they are long. ``views``: for each group the part of its
        blocks that they hold, as of one rank; None: all.

        Raises: ``ValueError`` for no array, no row, a row that is not contiguous, arrays of one
        group that differ in rows, or memory that is not writable.
        """
        super().__init__(name, _ADOPTED, threads)
        self._asked_views = views
        self._fragments = [list(arrays) for arrays in fragments]
        self._rows = [_rows_of(name, arrays) for arrays in self._fragments]
        self._planes = [
            plane_array([_plane_of(name, array) for array in arrays]) for arrays in self._fragments
        ]

    def _open(self, groups: tuple[Group, ...], upper: Tier | None) -> list[SlotPool]:
        if len(groups) != len(self._planes):
            raise ValueError(
                f"tier {self.name!r}: fragments for {len(self._planes)} groups, the cache has "
                f"{len(groups)}"
            )
        views = views_of(self._asked_views, groups, self.name)
        for group, planes, view in zip(groups, self._planes, views, strict=True):
            total, expected = int(planes["bytes"].sum()), view_bytes(group.layout, view)
            if total != expected:
                raise ValueError(
                    f"tier {self.name!r} group {group.name!r}: rows of {total} bytes, a block "
                    f"has {expected}"
                )
        self._views = views
        return [SlotPool(rows) for rows in self._rows]

    def planes(self, group: int) -> Planes:
        """A plane for each fragment of the group."""
        self._open_or_raise()
        return self._planes[group]


def _rows_of(name: str, arrays: Sequence[npt.NDArray[Any]]) -> int:
    counts = {len(array) for array in arrays}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"tier {name!r}: fragments of a group must have one count of rows >= 1")
    return counts.pop()


def _plane_of(name: str, array: npt.NDArray[Any]) -> tuple[int, int, int]:
    if not array.flags.writeable:
        raise ValueError(f"tier {name!r}: the memory of a fragment is not writable")
    if not array[0].flags.c_contiguous or array.strides[0] < array[0].nbytes:
        raise ValueError(f"tier {name!r}: a row of {array.shape} is not contiguous")
    return array.ctypes.data, array.strides[0], array[0].nbytes
