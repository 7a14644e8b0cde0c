"""Where the bytes of one disk transfer lie in memory, and the native parts that move them. Memory
of the tier above is read and written in place where its blocks lie in one piece that the file
system accepts; else the bytes go through rows of our own. Each run of a block, one a (shard piece,
layer), is a native part with a checksum of its own. Keeps I22: a move holds its memory to the end.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radix._native import ffi, lib
from radix.tier import Slots, Tier, Transfer, View
from tiers.copies import plane_array
from tiers.pools import LoadedLayers
from tiers.slab import ALIGNMENT_BYTES, stride_bytes
from tiers.transfer import OP, PLANE, Ops, Planes
from tiers.views import Cut, Offsets

Statuses = npt.NDArray[np.int32]


class Rows:
    """Aligned memory for blocks on their way, one after the other at their stride."""

    def __init__(self, count: int, block_bytes: int) -> None:
        stride = stride_bytes(block_bytes)
        self.count = count
        self._map = mmap.mmap(-1, max(1, count) * stride)
        self._view = ffi.from_buffer(self._map)
        self.planes = plane_array([(int(ffi.cast("uintptr_t", self._view)), stride, block_bytes)])
        self.slots: Slots = np.arange(count, dtype=np.int32)

    def close(self) -> None:
        """Unmaps it; nothing may be on its way."""
        ffi.release(self._view)
        self._map.close()


@dataclass(slots=True)
class Move:
    """One transfer on its way, or one layer of it. ``planes`` and ``slots`` name the memory that is
    read from or written to the file, one plane of blocks; ``places``: where each run of ``cut``
    lies in such a block; ``statuses`` holds an RDX status for each block, ``sums`` a checksum for
    each of its runs. ``layered``: the load that this is a layer of.
    """

    transfer: Transfer
    upper: Tier
    storing: bool
    cut: Cut
    planes: Planes
    slots: Slots
    places: Offsets
    rows: Rows | None
    statuses: Statuses
    sums: npt.NDArray[np.uint64]
    ops: Ops = field(default_factory=lambda: np.zeros(0, OP))
    nbytes: int = 0
    recorded: int = 0
    epoch: int = 0  # of a store: the one in which it began
    layered: Layered | None = None

    @property
    def count(self) -> int:
        """Blocks of the transfer."""
        return len(self.slots)

    def release(self) -> None:
        """Gives its rows back."""
        if self.rows is not None:
            self.rows.close()
            self.rows = None


@dataclass(slots=True)
class Layered:
    """A load by layer, of the runs of ``view``: ``left`` moves that have not ended, ``ended`` by
    layer, ``statuses`` and ``nbytes`` of those that have. ``seen`` is what the tier tells of it.
    """

    seen: LoadedLayers
    view: View
    left: int
    ended: list[bool]
    statuses: Statuses
    nbytes: int = 0
    is_cancelled: bool = False

    def take(self, move: Move) -> bool:
        """One layer has ended; whether it was the last."""
        self.left -= 1
        self.nbytes += move.nbytes
        bad = (move.statuses != lib.RDX_OK) & (self.statuses == lib.RDX_OK)
        self.statuses[bad] = move.statuses[bad]
        layer = int(move.cut.layer[0]) - self.seen.span[0]
        self.ended[layer] = bool((move.statuses == lib.RDX_OK).all())
        self.look()
        return self.left == 0

    def look(self) -> None:
        """Counts the layers that are complete."""
        while self.seen.done < len(self.ended) and self.ended[self.seen.done]:
            self.seen.done += 1


def make_move(transfer: Transfer, upper: Tier, cut: Cut, *, storing: bool, aligned: bool) -> Move:
    """Chooses the memory of a transfer. ``aligned``: the file takes whole 4 KiB pages only, so
    that the padding of a block is moved with it.
    """
    slots = np.ascontiguousarray(transfer.upper_slots, np.int32)
    count = len(slots)
    rows: Rows | None = None
    places = cut.above
    planes: Planes = np.zeros(0, PLANE)
    if upper.capability.address_mapped:
        planes = np.ascontiguousarray(upper.planes(transfer.group))
    if not _in_place(planes, cut, aligned):
        rows = Rows(count, cut.nbytes)
        planes, slots = rows.planes, rows.slots
        places = np.cumsum(cut.sizes, dtype=np.uint64) - cut.sizes
    return Move(
        transfer=transfer,
        upper=upper,
        storing=storing,
        cut=cut,
        planes=planes,
        slots=slots,
        places=places,
        rows=rows,
        statuses=np.full(count, lib.RDX_ECANCELED, np.int32),
        sums=np.zeros((count, len(cut.sizes)), np.uint64),
    )


def _in_place(planes: Planes, cut: Cut, aligned: bool) -> bool:
    if len(planes) != 1:
        return False
    base, stride = int(planes["base"][0]), int(planes["stride"][0])
    if not aligned:
        return True
    if base % ALIGNMENT_BYTES or stride % ALIGNMENT_BYTES or (cut.above % ALIGNMENT_BYTES).any():
        return False
    return stride >= stride_bytes(int(cut.above[-1] + cut.sizes[-1]))


def file_order(
    fds: npt.NDArray[np.int32], places: npt.NDArray[np.uint64], block_bytes: int
) -> npt.NDArray[np.int64]:
    """In which order to move blocks that lie there: as they lie in a file, so that neighbours are
    moved as one piece; of several files a piece of each in turn, so that several drives are busy.
    """
    if len(fds) < 2:
        return np.zeros(len(fds), np.int64)
    order = np.lexsort((places, fds))
    if not len(fds) or fds.min() == fds.max():
        return order
    sorted_fds = fds[order]
    first = np.searchsorted(sorted_fds, sorted_fds)
    turns = (np.arange(len(order)) - first) // max(1, lib.RDX_PIECE_BYTES // block_bytes)
    return np.asarray(order[np.argsort(turns, kind="stable")], np.int64)


def file_ops(
    move: Move,
    chosen: npt.NDArray[np.int64],
    fds: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.uint64],
    *,
    aligned: bool,
) -> Ops:
    """The parts that move the blocks ``chosen``, one a run; ``fds`` and ``offsets`` say where each
    of them lies. A run alone in its block is padded to 4 KiB where ``aligned``.
    """
    cut = move.cut
    ops = np.zeros((len(chosen), len(cut.sizes)), OP)
    memory = (
        move.planes["base"][0] + move.slots[chosen].astype(np.uint64) * move.planes["stride"][0]
    )
    page = np.uint64(ALIGNMENT_BYTES)
    ops["kind"] = lib.RDX_OP_WRITE if move.storing else lib.RDX_OP_READ
    ops["fd"] = fds[:, None]
    ops["offset"] = offsets[:, None] + cut.below
    ops["memory"] = memory[:, None] + move.places
    ops["bytes"] = (cut.sizes + page - np.uint64(1)) // page * page if aligned else cut.sizes
    ops["payload_bytes"] = cut.sizes
    ops["checksum"] = move.sums[chosen]
    ops["block"] = chosen[:, None]
    return ops.reshape(-1)


def settle_ops(move: Move) -> int:
    """Takes statuses and bytes, and for a store checksums, from the parts that have ended; the
    bytes of a file that they touched, in pages.
    """
    ops = move.ops.reshape(-1, len(move.cut.sizes))
    if not len(ops):
        return 0
    blocks = ops["block"][:, 0].astype(np.int64)
    bad = ops["status"] != lib.RDX_OK
    first = np.argmax(bad, axis=1)
    found = ops["status"][np.arange(len(ops)), first]
    move.statuses[blocks] = np.where(bad.any(axis=1), found, lib.RDX_OK)
    move.nbytes = int(ops["payload_bytes"][~bad].sum())
    if move.storing:
        move.sums[blocks] = ops["checksum"]
    touched = np.where(bad, np.uint64(0), ops["bytes"]).sum(axis=1)
    page = np.uint64(ALIGNMENT_BYTES)
    return int(((touched + page - np.uint64(1)) // page * page).sum())


def views_of(move: Move, chosen: npt.NDArray[np.int64]) -> list[memoryview]:
    """The blocks ``chosen`` as views of memory, for LMDB to copy from."""
    base, stride = int(move.planes["base"][0]), int(move.planes["stride"][0])
    size = int(move.planes["bytes"][0])
    addresses = (base + stride * int(slot) for slot in move.slots[chosen])
    return [memoryview(ffi.buffer(ffi.cast("char *", place), size)) for place in addresses]
